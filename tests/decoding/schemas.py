"""Twenty JSON schemas of every sort. Each bounds its texts, and lists, and depth, so that an answer ends by itself.

The longest answer fits into `ROOM` tokens even where each character is a token, and each escape six.
"""

from __future__ import annotations

from typing import Any

ROOM = 256


def record(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them there, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def many(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


COLOUR = {"enum": ["red", "green", "blue", "dark orange"]}

SCHEMAS: dict[str, dict[str, Any]] = {
    "a person": record(name=text(12), age=whole(0, 120), member={"type": "boolean"}),
    "a colour": COLOUR,
    "a constant": record(version={"const": "1.0"}, kind={"const": {"of": ["a", 1, None]}}, rest={"const": None}),
    "dice": many(whole(1, 6), most=8, least=3),
    "a house, three deep": record(
        house=record(floor=record(room=record(width=whole(1, 99), colour=COLOUR)), number=whole(1, 999)),
    ),
    "tags": record(tags=many(text(6), most=4, least=1)),
    "a licence plate": record(plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"}, valid={"type": "boolean"}),
    "temperatures": many({"type": "number", "minimum": -40, "maximum": 60, "multipleOf": 0.5}, most=5, least=1),
    "perhaps nothing": record(note={"type": ["string", "null"], "maxLength": 10}, count={"type": ["integer", "null"],
                              "minimum": -5, "maximum": 5}),
    "one way or another": {
        "anyOf": [record(circle=whole(1, 50)), record(width=whole(1, 50), height=whole(1, 50)), {"type": "null"}],
    },
    "a shape by its kind": {
        "oneOf": [
            record(kind={"const": "circle"}, radius=whole(1, 9)),
            record(kind={"const": "square"}, side=whole(1, 9)),
        ],
    },
    "a tree of definitions": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "leaf": record(leaf=whole(0, 9)),
            "branch": record(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
            "tree": record(low={"$ref": "#/$defs/branch"}, high={"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}),
        },
    },
    "some of it optional": {
        "type": "object",
        "properties": {"id": whole(1, 9999), "nick": text(8), "seen": {"type": "boolean"}, "rank": whole(1, 3)},
        "required": ["id"],
        "additionalProperties": False,
    },
    "a day": record(
        day={"type": "string", "format": "date", "pattern": "^20(04|24|28)-"},  # leap years, as February may have 29 days
        address={"type": "string", "format": "ipv4"},
        key={"type": "string", "format": "uuid"},
    ),
    "names in other scripts": record(**{"größe": whole(100, 220), "名前": text(5), "🙂": {"type": "boolean"}}),
    "what must be escaped": record(**{
        'say "hi"': {"enum": ['"quoted"', "back\\slash", "two\nlines", "tab\there", "/", "é🙂"]},
        "a\\b": {"const": "\"\\\n"},
    }),
    "a point": {"type": "array", "prefixItems": [whole(-9, 9), whole(-9, 9), COLOUR], "items": False, "minItems": 3},
    "a table": many(many(whole(0, 99), most=3, least=3), most=3, least=2),
    "scores by name": {
        "type": "object",
        "patternProperties": {"^[a-c]{1,4}$": whole(0, 100)},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
    "both at once": {
        "allOf": [
            {"type": "object", "properties": {"x": whole(0, 100)}, "required": ["x"]},
            {"type": "object", "properties": {"x": {"type": "integer", "multipleOf": 5}, "y": COLOUR}, "required": ["y"]},
        ],
        "properties": {"x": {"maximum": 50}, "y": True},
        "additionalProperties": False,
    },
}  # fmt: skip
