"""docs/tokenizer-files.md: its tables are the code's own, and its block runs."""

from __future__ import annotations

import re

import pytest

from glassformer.text.tokenizer_files.config_fields import FIELDS
from glassformer.text.tokenizer_files.gguf import BUILDERS, UNSUPPORTED
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from tests.test_docs import ROOT

TEXT = (ROOT / "docs" / "tokenizer-files.md").read_text("utf-8")


def between(mark: str) -> str:
    """What stands on the page between two marks."""
    (part,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", TEXT, re.S)
    return part.strip()


def names(every: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in every)


def fields_table() -> str:
    """Fields of one meaning in one line, in the code's order."""
    lines = ["| field | holds | here | what it is |", "|---|---|---|---|"]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, field in FIELDS.items():
        groups.setdefault((field.value, field.use, field.meaning), []).append(name)
    lines += [f"| {names(group)} | {value} | {use} | {meaning} |" for (value, use, meaning), group in groups.items()]
    return "\n".join(lines)


def pre_tokenizers_table() -> str:
    """Names of one type in one line."""
    lines = ["| `tokenizer.ggml.pre` | split by | more |", "|---|---|---|"]
    groups: dict[object, list[str]] = {}
    for name, split in PRE_TOKENIZER_TYPES.items():
        groups.setdefault(split, []).append(name)
    for group in groups.values():
        split = PRE_TOKENIZER_TYPES[group[0]]
        flags = {
            "whole tokens before merges": split.ignore_merges, "begins with the begin-of-text token": split.add_bos,
            "separator between two texts": split.add_sep, "no byte-level alphabet": not split.byte_level,
        }  # fmt: skip
        steps = f"{len(split.patterns)} pattern{'s' * (len(split.patterns) > 1)}"
        more = ", ".join(flag for flag, is_set in flags.items() if is_set)
        lines.append(f"| {names(group)} | {'NFC, ' if split.nfc else ''}{steps} | {more} |")
    return "\n".join(lines)


def kinds() -> str:
    supported, unsupported = names(list(BUILDERS)), names(list(UNSUPPORTED))
    return f"`tokenizer.ggml.model` may be {supported}. Refused by name: {unsupported}."


@pytest.mark.parametrize(
    ("mark", "table"), [("fields", fields_table()), ("pre-tokenizers", pre_tokenizers_table()), ("kinds", kinds())]
)
def test_tables_are_the_code_s(mark: str, table: str) -> None:
    assert between(mark) == table, f"the page should say:\n\n{table}\n"
