"""Tools whose arguments a grammar can force to an end, whatever a random model would write."""

from __future__ import annotations

from typing import Any

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": function} for function in (WEATHER, NOW)]
CITIES = ({"city": "Paris"}, {"city": "Rome"})
