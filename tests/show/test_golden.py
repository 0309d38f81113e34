"""Pictures as they were last looked at, of tiny models whose every number is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.observe.journey import Journey
from glassformer.observe.plan import plan
from glassformer.observe.tokens import batch, cut
from tests.show import golden as kept
from tests.show.golden import WIDTHS, golden
from tests.test_views import SHAPES, TEXT, make

pytestmark = pytest.mark.usefixtures("one_thread")

LOOKS: dict[str, tuple[str, dict[str, Any]]] = {  # of each shape: what is looked at
    "gpt2": (TEXT, {}),
    "t5": (TEXT, {}),
    "bart": (TEXT, {}),
    "masked": ("the [MASK] sat on [MASK]", {}),
    "classifier": (TEXT, {}),
    "tagger": ("a cat sat on the mat", {}),
    "spans": ("the cat", {"pair": "a cat sat on the mat"}),
    "base": ("[CLS] the cat", {}),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    made: dict[str, Any] = {}

    def get(shape: str) -> Any:
        if shape not in made:
            family, head, changes = SHAPES[shape]
            made[shape] = glassformer.load(make(tmp_path_factory.mktemp(shape), family, head, **changes))
        return made[shape]

    return get


def still(journey: Journey) -> Journey:
    """Without what differs from one machine, or one second, to the next."""
    legs = [
        replace(leg, seconds=0.001 * (number + 1), each=tuple(0.0005 for _ in leg.each))
        for number, leg in enumerate(journey.legs)
    ]
    return replace(journey, model="tiny", legs=tuple(legs), measured="the cpu executor (portable, 1 thread)")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", LOOKS)
def test_journeys(loaded: Any, shape: str, width: int) -> None:
    text, more = LOOKS[shape]
    golden(f"journey-{shape}", still(loaded(shape).look(text, **more)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan(loaded: Any, width: int) -> None:
    golden("plan", plan(loaded("bart").blueprint, 9, name="tiny"), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens(loaded: Any, width: int) -> None:
    model = loaded("masked")
    golden("tokens", cut(model.tokenizer, "the cats sat", "on a mat", name="tiny", blueprint=model.blueprint), width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch(loaded: Any, width: int, side: str) -> None:
    model = loaded("masked")
    texts = ["the cat", "a cat sat on the mat " * 3, "sat"]
    golden(f"batch-{side}", batch(model.tokenizer, texts, side=side, name="tiny", blueprint=model.blueprint), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_why(loaded: Any, width: int) -> None:
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 1}
    run = loaded("t5").watch(TEXT, max_new_tokens=3, **settings)
    golden("why", run.why(1), width)


def test_what_is_not_there_yet_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.delenv("GLASS_GOLDEN", raising=False)
    with pytest.raises(AssertionError, match="nothing-80.txt is not there yet. Write it: GLASS_GOLDEN=write"):
        golden("nothing", "a picture", 80)
    monkeypatch.setenv("GLASS_GOLDEN", "write")
    golden("nothing", "a picture", 80)
    monkeypatch.delenv("GLASS_GOLDEN")
    golden("nothing", "a picture", 80)
    with pytest.raises(AssertionError):
        golden("nothing", "another", 80)
