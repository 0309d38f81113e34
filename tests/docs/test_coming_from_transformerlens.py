"""`docs/coming-from-transformerlens.md`: its tables are those of the code, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from glassformer.blueprints import blueprint, read_config
from glassformer.blueprints.synonyms import ABSENT, ABSENT_OUTSIDE, SHORT
from glassformer.see.model_description import site_names
from tests.docs.pages import run
from tests.parity import reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming-from-transformerlens.md"
BLOCK = 1  # whose names stand for those of all
NEXT_BLOCK = {"embedding": "0", f"blocks.{BLOCK}.residual": "N+1"}  # which a site enters, and which has a name for it, too


def names_table() -> str:
    view = site_names(blueprint(read_config(reference.config("gpt2").to_dict())))
    rows = []
    for site in view.sites:
        if re.search(rf"\bblocks\.(?!{BLOCK}\b)", site.name):
            continue
        hooks, paths = [], []
        for name in site.other_names:
            if re.search(r"\.2\b", name):
                continue  # as the next block calls it: see below
            if name.endswith((".input", ".output")):
                paths.append(numberless(name))
            elif "hook_resid_pre" not in name and not name.startswith("resid_pre."):
                hooks.append(numberless(name))
        hooks = [name for name in hooks if name != "blocks.0.hook_in"]
        if (block := NEXT_BLOCK.get(site.name)) is not None:
            hooks = [f"blocks.{block}.hook_resid_pre", f"resid_pre.{block}", *hooks]
            paths += ["transformer.h.N+1.input"] if block == "N+1" else []
        rows.append(f"| `{numberless(site.name)}` | {', '.join(site.axes)} | {code(hooks)} | {code(paths)} |\n")
    return "".join(["| site | axes | TransformerLens | nnsight |\n|---|---|---|---|\n", *rows])


def numberless(name: str) -> str:
    return re.sub(rf"(?<=\.){BLOCK}\b", "N", name)


def code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def absent_table() -> str:
    rows = [f"| {code([f'blocks.N.{name}', *SHORT.get(name, ())])} | {reason} |\n" for name, reason in ABSENT.items()]
    rows += [f"| `{name}` | {reason} |\n" for name, reason in ABSENT_OUTSIDE.items()]
    return "".join(["| TransformerLens | |\n|---|---|\n", *rows])


@pytest.mark.parametrize(("mark", "table"), [("names", names_table), ("absent", absent_table)])
def test_tables_are_those_of_the_code(mark: str, table: Any) -> None:
    (shown,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", PAGE.read_text("utf-8"), re.S)
    assert shown == table(), f"between the marks {mark!r} the page should have:\n\n{table()}\n"


@pytest.mark.usefixtures("smollm2")
def test_its_python_runs(caplog: pytest.LogCaptureFixture) -> None:
    names = run(PAGE, caplog)
    assert len(names["residuals"]) == 30
    assert (names["reading"].at("model.layers.22.output") == names["reading"].at("blocks.22.residual")).all()


def test_the_readme_links_the_page() -> None:
    assert "(docs/coming-from-transformerlens.md)" in (ROOT / "README.md").read_text("utf-8")
