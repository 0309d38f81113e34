"""Two texts, two models, two runs side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bench.reference import compare_with_transformers

import glassformer
from glassformer.ground.changes import Change
from glassformer.see import compare_models
from glassformer.see.compare import compare, compare_runs
from tests.see.models import TEXT, both, encoder
from tests.see.test_reading import fits, valid

pytestmark = pytest.mark.usefixtures("one_thread")


class TestCompareTexts:
    @pytest.mark.parametrize("executor", ["plain", "cpu"])
    def test_only_what_stands_before_changes_a_token(self, smollm2: Any, executor: str) -> None:
        """After the same beginning the same, whatever follows; after another, another."""
        model = glassformer.load("smollm2", executor=executor)
        hi, more, hello = (model.read(text, raw=True) for text in ("Hi dog", "Hi dog how are you?", "Hello dog"))
        same: Any = compare(hi, more, token="dog")
        assert same.positions == (1, 1)
        assert same.shared == 2
        other: Any = compare(hi, hello, token="dog")
        assert (other.diverges_at, other.shared) == ("0", 0)
        assert other.layers[0].largest == 0  # the same row of the table
        assert other.divergence > 1e-3
        if executor == "cpu":  # which is batch-invariant
            assert same.same
            assert same.divergence == 0
        else:  # PyTorch's products are not batch-invariant, and the view says so
            assert same.same or "dog is the same but for rounding" in " ".join(fits(same).split())
        assert max(one.largest for one in same.layers) < 1e-2
        valid(other)
        assert "until block 0" in fits(other)

    def test_layers_are_the_references(self) -> None:
        pair = both("llama")
        one, other = pair.model.read("the cat"), pair.model.read("a bat")
        found: Any = compare(one, other)
        at = found.positions
        states = [pair.run(side).hidden_states for side in (one, other)]
        for layer, (first, second) in zip(found.layers, zip(*states, strict=True), strict=False):
            if layer.layer == found.layers[-1].layer:
                break  # the reference's last is after the norm
            difference = first[0, at[0]] - second[0, at[1]]
            assert layer.largest == pytest.approx(float(difference.abs().max()), abs=1e-4)
            cosine = torch.nn.functional.cosine_similarity(first[0, at[0]], second[0, at[1]], dim=0)
            assert layer.cosine == pytest.approx(float(cosine), abs=1e-4)

    def test_a_number_is_a_place_in_both(self) -> None:
        model = both("gpt2").model
        found: Any = compare(model.read("abc"), model.read("axc"), token=1)
        assert (found.positions, found.diverges_at) == ((1, 1), "embedding")

    def test_an_encoder_has_no_next_token(self) -> None:
        model = encoder("bert", "base").model
        found: Any = compare(model.read("the cat sat"), model.read("the mat sat"), token="sat")
        assert found.divergence is None
        assert found.diverges_at == "0"
        valid(found)


class TestCompareModels:
    def test_a_model_and_itself(self) -> None:
        model = both("qwen3").model
        found: Any = compare(model, model, text="the quick brown fox " * 4)
        assert (found.divergence, found.agreement, found.first) == (0.0, 1.0, None)
        assert found.perplexity[0] == found.perplexity[1]
        assert all(gap.error == 0 for gap in found.gaps)
        assert found.names[1].endswith("again")
        valid(found)

    def test_kl_agreement_and_perplexity_by_hand(self) -> None:
        """KL, agreement and perplexity by hand, from uncached passes."""
        pair = both("llama")
        change = {"blocks.1.mlp.update": Change(scale=0)}
        reading = pair.model.read("the quick brown fox jumps")
        found: Any = compare(reading, pair.model.changed(change).read("the quick brown fox jumps"))
        ids = torch.tensor([reading.ids])
        with torch.no_grad():
            runs = (pair.model.module(ids, watch=watch).logits[0] for watch in (None, change))
            one, other = (scores.double().log_softmax(-1) for scores in runs)
        divergence = (one.exp() * (one - other)).sum(-1) / math.log(2)
        assert found.divergence == pytest.approx(float(divergence.mean()), rel=1e-3)
        assert found.worst[0].divergence == pytest.approx(float(divergence.max()), rel=1e-3)
        agree = one.argmax(-1) == other.argmax(-1)
        assert found.agreement == pytest.approx(float(agree.double().mean()))
        parted = np.flatnonzero(~agree.numpy())
        assert found.first is not None
        assert found.first.position == int(parted[0]) + 1
        given = torch.tensor(reading.ids[1:])
        for side, logs in zip(found.perplexity, (one, other), strict=True):
            assert side == pytest.approx(math.exp(float(torch.nn.functional.nll_loss(logs[:-1], given))), rel=1e-3)
        gaps = {gap.layer: gap.error for gap in found.gaps}
        assert gaps["embedding"] == gaps["0"] == 0
        assert gaps["1"] > 0
        assert "worst layers first" in fits(found)
        valid(found)

    def test_what_comes_after_the_text_is_compared_too(self) -> None:
        model = both("llama").model
        last = Change(scale=-3.0, positions=[4])
        found: Any = compare(model.read("abcde"), model.changed({"blocks.2.residual": last}).read("abcde"))
        assert found.first.position == 5
        assert (found.first.token, found.first.probability) == ("", (None, None))
        assert found.tokens == 4
        assert found.agreement == pytest.approx(4 / 5)
        assert "differ at position 5" in fits(found)

    def test_executors_agree(self) -> None:
        found: Any = compare(both("llama", "plain").model, both("llama", "cpu").model, text=TEXT * 3)
        assert found.divergence < 1e-5
        assert found.agreement == 1
        assert max(gap.error for gap in found.gaps) < 1e-3

    def test_scores_and_hidden_states_are_those_of_transformers(self) -> None:
        found = compare_with_transformers(both("llama").model, TEXT * 3)
        assert found.names[1] == "transformers"
        assert found.divergence < 1e-6
        assert max(gap.error for gap in found.gaps) < 1e-4

    def test_long_texts_go_window_by_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compare_models, "WINDOW", 16)
        model = both("gpt2").model
        calls: list[tuple[int, int]] = []
        found: Any = compare(model, model, text="x" * 40, progress=lambda *call: calls.append(call))
        assert found.tokens == 15 + 15 + 7
        assert calls == [(16, 40), (32, 40), (40, 40)]


class TestCompareRuns:
    @pytest.mark.parametrize("executor", ["plain", "cpu"])
    def test_runs_under_other_settings(self, executor: str) -> None:
        model = both("qwen3", executor).model
        settings = {"max_new_tokens": 6, "eos_token_id": None}
        one = model.watch(TEXT, **settings)
        other = model.watch(TEXT, do_sample=True, temperature=5.0, seed=1, **settings)
        found: Any = compare(one, other, names=("greedy", "hot"))
        ids = [[step.id for step in run.steps] for run in (one, other)]
        step = next(at for at, pair in enumerate(zip(*ids, strict=True)) if pair[0] != pair[1])
        assert found.step == found.shown == step
        changed = {setting.name: setting.values for setting in found.settings}
        assert changed["temperature"] == ("–", "5.0")
        best = {one.id: one for one in found.candidates}
        for number, run in enumerate((one, other)):
            chosen = run.steps[step]
            assert best[chosen.id].probability[number] > 0
            assert best[chosen.id].model[number] == pytest.approx(math.exp(chosen.logprob), rel=1e-3)
        assert "hot" in fits(found)
        valid(found)

    def test_the_same_run_twice(self) -> None:
        model = both("gpt2").model
        one, other = (model.watch(TEXT, max_new_tokens=3, eos_token_id=None) for _ in range(2))
        found: Any = compare(one, other)
        assert found.same
        assert found.settings == ()
        assert "the same, token by token" in str(found)

    def test_probabilities_that_no_rule_changed_are_shown_once(self) -> None:
        model = both("gpt2").model
        greedy, other, sampled = (
            model.watch("the cat", max_new_tokens=2, **settings)
            for settings in (
                {},
                {"change": {"blocks.1.mlp.update": Change(scale=0)}},
                {"do_sample": True, "temperature": 2.0},
            )
        )
        shown = str(compare_runs(greedy, other))
        assert "model 1" not in shown
        assert "prob.: under the model, which no rule changed" in shown
        shown = str(compare_runs(greedy, sampled))
        assert "model 1" in shown
        assert "prob.: after the rules" in shown

    def test_one_run_is_longer(self) -> None:
        model = both("gpt2").model
        one, other = (model.watch(TEXT, max_new_tokens=count, eos_token_id=None) for count in (2, 4))
        found: Any = compare(one, other)
        assert (found.step, found.shown) == (2, 0)

    def test_another_prompt_and_a_change(self) -> None:
        model = both("gpt2").model
        one = model.watch("the cat", max_new_tokens=2, eos_token_id=None)
        other = model.watch("the bat", max_new_tokens=2, eos_token_id=None, change={"blocks.*.residual": Change(scale=0.9)})
        found: Any = compare(one, other)
        assert found.shared_prompt == 4
        assert found.changes[1] == ("blocks.0.residual", "blocks.1.residual", "blocks.2.residual")
        assert "second: changed at blocks.0.residual" in str(found)
