"""Why transformers could not read, build or run a checkpoint, in our words: which field of which file, what it is, and what
it may be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassformer.blueprints.bridged import LIBRARY
from glassformer.ground.errors import CheckpointError, ConfigError, GlassError, join_names, reason_of
from glassformer.ground.typecheck import brief

EXPECTED = re.compile(r"expected (?:an? )?(\w+)")  # what transformers says of a value's type
JSON_TYPES = {"NoneType": "null", "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false",
              "list": "a list", "dict": "an object"}  # fmt: skip
MOST_BLAMED = 3  # fields; an error that names more of them says nothing about any


@contextmanager
def explained(
    path: Path, config: Mapping[str, Any], doing: str, spellings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Around what transformers does with a checkpoint: its errors, as errors about the fields of `config.json`.

    Args:
        doing: what it cannot do then, as a verb before the config.
        spellings: its names of fields, to those that the file may have for them.
    """
    try:
        yield
    except GlassError:
        raise
    except ImportError as error:
        raise CheckpointError(f"{path}: {LIBRARY} cannot {doing} its config: {reason_of(error)}.") from error
    except Exception as error:
        raise ConfigError(f"{path / 'config.json'}: {_sentence(error, config, doing, spellings or {})}") from error


def _sentence(error: Exception, config: Mapping[str, Any], doing: str, spellings: Mapping[str, str]) -> str:
    blamed = blamed_fields(error, config, spellings)
    values = join_names([f"{name!r} ({brief(config[name])})" for name in blamed])
    types = list(dict.fromkeys(EXPECTED.findall(str(error))))
    if len(blamed) == 1 and types:
        wanted = " or ".join(JSON_TYPES.get(name, name) for name in types)
        return f"config field {blamed[0]!r} is {brief(config[blamed[0]])}; it must be {wanted}."
    reason = f"it knows no {error}" if isinstance(error, KeyError) else reason_of(error)
    if blamed:
        return f"{LIBRARY} cannot {doing} config {'field' if len(blamed) == 1 else 'fields'} {values}: {reason}."
    sizes = [size for size in dict.fromkeys(map(int, re.findall(r"\b\d{1,9}\b", str(error)))) if size > 1]
    same = [name for size in sizes for name in fields_with(config, size)]
    advice = f"Fields that are one of these numbers: {join_names(same)}." if same else "Is this the config of these weights?"
    return f"{LIBRARY} cannot {doing} this config: {reason}. {advice}"


def blamed_fields(error: Exception, config: Mapping[str, Any], spellings: Mapping[str, str]) -> list[str]:
    """The fields of a file that an error names, or whose value it names; of a division by zero, those that are zero."""
    words = re.findall(r"\w+", str(error))
    named = dict.fromkeys(name if name in config else spellings.get(name, "") for name in words)
    found = [name for name in named if name in config and not isinstance(config[name], bool)]
    if not found and isinstance(error, ZeroDivisionError):
        found = fields_with(config, 0)
    if not found and isinstance(error, KeyError | ValueError | AttributeError):
        found = [
            name for name, value in config.items() if isinstance(value, str) and value in words and name != "model_type"
        ]
    return found if len(found) <= MOST_BLAMED else []


def mismatch_sentence(mismatched: Collection[Sequence[Any]], config: Mapping[str, Any]) -> str:
    """Of weights with other shapes than a config gives them, as (name, shape in the file, shape by the config)."""
    told = sorted((str(name), tuple(stored), tuple(by_config)) for name, stored, by_config in mismatched)

    def guilty(stored: tuple[int, ...], by_config: tuple[int, ...]) -> list[str]:
        sizes = [size for place, size in enumerate(by_config) if stored[place : place + 1] != (size,)]
        return [field for size in dict.fromkeys(sizes) for field in fields_with(config, size)]

    name, stored, by_config = min(told, key=lambda one: (not guilty(*one[1:]), len(guilty(*one[1:]))))
    fields = guilty(stored, by_config)
    cause = f", as {' or '.join(map(repr, fields[:MOST_BLAMED]))} is {config[fields[0]]}" if fields else ""
    others = f" {len(told) - 1:,} more have other shapes than theirs." if len(told) > 1 else ""
    return (
        f"by this config the weight {name!r} is {[*by_config]}{cause}; in the file it is {[*stored]}.{others} Is this the "
        "config of these weights?"
    )


def fields_with(config: Mapping[str, Any], size: int) -> list[str]:
    """The fields of a config that are this number; those of tokens are no sizes."""
    return [
        name
        for name, value in config.items()
        if type(value) is int and value == size and not name.endswith(("_id", "_index"))
    ]
