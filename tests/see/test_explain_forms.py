"""Terminal, JSON, page and studio say the same of one explanation, digit by digit; and what put a token first is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from glassformer.see.explain.explanation import Explanation
from tests.see import planted
from tests.see.models import both

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = "the capital of France is"


@pytest.fixture(scope="module")
def why() -> Any:
    """One with all parts that an explanation can have."""
    return planted.look_up("llama").explain(TEXT, raw=True, tokens=1, evidence=True)


def numbers(text: str) -> list[str]:
    return re.findall(r"[-+]?\d+(?:\.\d+)?%?", text)


def test_every_form_says_the_same_digit_by_digit(why: Explanation, tmp_path: Path) -> None:
    stored = json.loads(json.dumps(why.to_dict()))
    file = tmp_path / "why.html"
    why.save(file)
    page, terminal = re.sub(r"<[^>]+>", " ", file.read_text("utf-8")), " ".join(str(why).split())
    for sentence in why.sentences:
        assert sentence in terminal
        assert sentence in " ".join(page.split())
    assert tuple(stored["sentences"]) == why.sentences
    assert stored["lead"] == why.lead
    assert f"by {stored['lead']:.1f} bits" in why.sentences[0]
    for word in stored["words"]:
        changes = [one["change"] for one in word["exchanges"]]
        shown = [word["left_out"], *([sorted(changes)[len(changes) // 2]] if len(changes) % 2 else [])]
        for change in shown:
            assert f"{change:+.1f}" in numbers(terminal)
            assert f"{change:+.1f}" in numbers(page)
    (part,) = stored["carried"]["parts"]
    for said in (f"{part['restored']:.0%}", f"{part['together']:.0%}"):
        assert said in numbers(terminal)
        assert said in numbers(page)
    for check in stored["checks"]:
        assert f"{check['lead']:+.1f}" in numbers(terminal)
    for row in stored["evidence"]:
        assert row["value"] in terminal


def test_an_explanation_is_the_same_when_it_is_asked_for_again(why: Explanation) -> None:
    again = planted.look_up("llama").watch(TEXT, raw=True, max_new_tokens=1).explain(evidence=True)
    assert again.to_dict() == why.to_dict()
    quick = planted.look_up("llama").explain(TEXT, raw=True, tokens=1, quick=True)
    assert (quick.answer, quick.lead, quick.against) == (why.answer, why.lead, why.against)
    assert quick.words[0].text == why.words[0].text
    assert quick.carried.parts[0].name == why.carried.parts[0].name
    assert quick.checks == ()


class TestWhatPutATokenFirst:
    """The model's own best is Paris, whatever took another token."""

    def first_sentence(self, **settings: Any) -> tuple[str, Any]:
        why = planted.look_up("llama").watch(TEXT, raw=True, max_new_tokens=1, **settings).explain(0)
        return why.sentences[0], why.draw

    def test_nothing(self) -> None:
        said, draw = self.first_sentence()
        assert draw is None
        assert said.startswith("“Paris” led ")

    def test_a_draw(self) -> None:
        found = [self.first_sentence(do_sample=True, temperature=20.0, seed=seed) for seed in range(4)]
        said, draw = next((said, draw) for said, draw in found if draw is not None)
        assert draw.by == "draw"
        assert re.match(r"The model's own best was “Paris” with [\d.]+%; the draw took .*, its .* with ", said)

    def test_a_grammar(self) -> None:
        """A grammar needs a tokenizer with letters, so this model's own best is anything."""
        why = both("qwen3", "cpu").model.watch("the cat", raw=True, max_new_tokens=1, regex="[xyz]").explain(0)
        assert why.draw.ruled_out
        assert re.match(
            r"The model's own best was .*; regex ruled that out, and “[xyz]” .*was taken, its ", why.sentences[0]
        )

    def test_a_penalty(self) -> None:
        paris = planted.Planting.id("Paris")
        said, draw = self.first_sentence(sequence_bias=[[[paris], -50.0]])
        assert (draw.by, draw.ruled_out) == ("sequence_bias", False)
        assert re.match(r"The model's own best was “Paris” with .*%; sequence_bias put .* before it", said)

    def test_a_token_that_is_forbidden(self) -> None:
        _, draw = self.first_sentence(suppress_tokens=[planted.Planting.id("Paris")])
        assert (draw.by, draw.ruled_out) == ("suppress_tokens", True)

    def test_beams(self) -> None:
        _, draw = self.first_sentence(num_beams=3)
        assert draw is None or draw.by == "beams"


def test_a_piece_of_a_word_is_said_to_be_one() -> None:
    model = both("qwen3", "cpu").model  # whose tokens are letters
    reading = model.read_ids(model.tokenizer("the cat")["input_ids"], model.tokenizer(" sat on")["input_ids"])
    position = reading.prompt_length + 1  # of the "s" of "sat"
    assert "“a” (of “sat”)" in reading.explain(position, token="a").sentences[0]
    assert "(of" not in reading.explain(position, token="o").sentences[0]  # which was not written there
    assert "(of" not in reading.explain().sentences[0]


def test_a_similarity_is_the_same_in_every_form(tmp_path: Path) -> None:
    model = planted.look_up("bert", head="masked", pooling="cls")
    why = model.explain("the capital of France is", pair="today tick in France", evidence=True)
    stored, file = json.loads(json.dumps(why.to_dict())), tmp_path / "why.html"
    assert (stored["answer"], stored["against"], stored["similarity"]["function"]) == (None, None, "cosine")
    assert f"similar by {stored['lead']:.2f} (cosine)" in why.sentences[0]
    why.save(file)
    page, terminal = re.sub(r"<[^>]+>", " ", file.read_text("utf-8")), " ".join(str(why).split())
    for said in (*why.sentences, *(f"{word.left_out:+.2f}" for word in why.words[:4]), "the second"):
        assert said in terminal
        assert said in " ".join(page.split())
    assert "exchanged" not in terminal
    quick = model.explain("the capital of France is", pair="today tick in France", quick=True)
    assert (quick.words, quick.sentences, quick.checks) == (why.words, why.sentences[:2], ())
