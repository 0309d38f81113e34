"""docs/decoding.md: its blocks are run in order, every message on it is provoked, and its tables are the code's.

A table that has fallen behind the code is printed as it should be, to be pasted between its two marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from glassformer.decoding import Finish, GenerationConfig
from glassformer.decoding.settings import UNSUPPORTED
from glassformer.decoding.settings_table import RULES, SETTINGS
from glassformer.ground.errors import SettingError
from glassformer.torch.outputs import GenerateOutput
from tests.docs.pages import blocks, run
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "decoding.md"
TEXT = PAGE.read_text("utf-8")
GROUPS = {  # what the settings are about, and the first of each group
    "How long": "max_new_tokens", "Which strategy": "do_sample", "Guidance": "guidance_scale",
    "Favoured tokens": "sequence_bias", "Against repetition": "repetition_penalty", "What may not come": "bad_words_ids",
    "Which texts are allowed": "json_schema", "Which tokens are allowed": "prefix_allowed_tokens_fn",
    "Your own rules, and the order of all": "logits_processor", "How to draw": "temperature",
    "What comes back": "return_dict_in_generate", "The model's own": "bos_token_id",
}  # fmt: skip
PHASES = {  # what the rules do, and the first of each kind
    "lead away from the negative prompt": "guidance_scale", "favour and penalise": "sequence_bias",
    "ban, allow, force": "no_repeat_ngram_size", "your own functions of tensors": "logits_processor",
    "shape the draw": "temperature",
}  # fmt: skip


def grouped(names: Iterable[str], firsts: Mapping[str, str]) -> dict[str, list[str]]:
    """Names in their order, cut where a group begins."""
    every = list(names)
    cuts = [*(every.index(first) for first in firsts.values()), len(every)]
    assert cuts == sorted(cuts)
    return {title: every[start:end] for title, (start, end) in zip(firsts, pairwise(cuts), strict=True)}


def between(mark: str) -> str:
    """What stands on the page between two marks."""
    (found,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", TEXT, re.S)
    return found.strip()


def code(value: Any) -> str:
    return "–" if value is None else f"`{value!r}`"


def settings_table() -> str:
    defaults = GenerationConfig()
    lines = ["| setting | what it does | default | needs |", "|---|---|---|---|"]
    for title, names in grouped(SETTINGS, GROUPS).items():
        lines.append(f"| **{title}** | | | |")
        for name in names:
            info = SETTINGS[name]
            needs = " or ".join(f"`{needed}`" for needed in (info.needs, info.or_needs) if needed)
            lines.append(f"| `{name}` | {info.summary} | {code(getattr(defaults, name))} | {needs} |")
    return "\n".join(lines)


def order_table() -> str:
    lines = ["| | rules, first to last |", "|---|---|"]
    for title, names in grouped(RULES, PHASES).items():
        lines.append(f"| {title} | {' → '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def elsewhere() -> str:
    *others, last = (f"`{name}`" for name in sorted(UNSUPPORTED))
    return f"Not here, and refused when asked for: {', '.join(others)} and {last}."


def rows(header: str) -> list[list[str]]:
    """The cells of the table with this header."""
    body = TEXT.split(f"{header}\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body.splitlines()[1:]]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_setting_is_in_the_table() -> None:
    assert between("settings") == settings_table(), f"the table of settings should be:\n\n{settings_table()}\n"


def test_the_order_of_rules_is_the_code_s() -> None:
    assert between("order") == order_table(), f"the table of rules should be:\n\n{order_table()}\n"


def test_what_is_not_here_is_told() -> None:
    assert " ".join(between("elsewhere").split()) == elsewhere(), f"the page should say:\n\n{elsewhere()}\n"


def test_every_finish_is_told_with_settings_that_exist() -> None:
    found = rows("| finish | why | asked for by |")
    assert sorted(codes(finish)[0] for finish, _, _ in found) == sorted(finish.value for finish in Finish)
    assert {name for _, _, asked in found for name in codes(asked)} <= SETTINGS.keys()


def test_every_field_that_comes_back_is_told() -> None:
    told = [name for field, _ in rows("| field | what it is |") for name in codes(field)]
    assert sorted(told) == sorted(field.name for field in fields(GenerateOutput))


@pytest.mark.parametrize("given", [codes(cell)[0] for cell, _ in rows("| not together | why |")])
def test_contradictions_are_errors(given: str) -> None:
    with pytest.raises(SettingError, match=r"\. [A-Z].*\.$"):  # and say how to fix it
        GenerationConfig().merged(eval(f"dict({given})"))


def test_python(smollm2: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    facts(run(PAGE, caplog), capsys.readouterr().out)


def facts(names: dict[str, Any], printed: str) -> None:
    """What the page says in words of what its blocks left behind."""
    person, schema = names["person"], names["schema"]
    assert list(person) == schema["required"]
    assert 1 <= person["age"] <= 99
    assert re.search(r"^1\d{3}\n(yes|no)\n\d+ \+ \d+ = \d+$", printed, re.M)
    told, kept = names["told"], names["tokenizer"].decode(names["kept"][0])
    assert (told.text, told.stop, told.finish) == (" P", "aris.", Finish.STOP)
    assert kept == "The capital of France is Paris."
    assert names["story"].finish is Finish.CANCELLED
    output = names["output"]
    assert output.prompt_logprobs[0][0] is None
    assert len(output.prompt_logprobs[0]) == names["tokens"]["input_ids"].shape[1]
    assert len(output.steps[0][0].candidates) == 2
    assert re.search(r"^temperature +0\.7 +this call$", printed, re.M)
    assert re.search(r"^top_k +50 +default$", printed, re.M)
    assert re.search(r"^eos_token_id +\[2\] +the GGUF file$", printed, re.M)
    assert re.search(r"^ +candidate +model( +repetition)? +temperature +top_k( +top_p)? +prob\. +removed by", printed, re.M)
    assert names["circle"].remedy is not None


def test_every_message_has_its_block() -> None:
    marks = [mark for mark, _, _ in blocks(PAGE)]
    assert marks.count("text") == sum(mark in ("python raises", "python notes") for mark in marks)
    assert set(marks) == {"python", "python raises", "python notes", "sh", "text"}
