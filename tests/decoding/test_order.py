"""The order of rules: the default one, a user's, and a user's own functions among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.decoding import GenerationConfig, Policy, Recipe, StepDetail
from glassformer.decoding.settings_table import RULES, SETTINGS
from glassformer.ground.errors import SettingError

SCORES = np.array([0.0, 3.0, 2.0, 1.0, -1.0], np.float32)


def recipe(**changes: Any) -> Recipe:
    return Recipe.of(GenerationConfig().merged(changes))


def names(**changes: Any) -> list[str]:
    return [name for name, _ in recipe(**changes).rules]


def shaped(**changes: Any) -> list[float]:
    found = Policy(recipe(**changes), [3, 1], context=9, seed=1).shape(SCORES).full_scores(5)
    return [round(score, 4) for score in found.tolist()]


def test_rules_are_called_as_their_settings() -> None:
    assert set(RULES) <= set(SETTINGS)


def test_only_rules_in_force_are_there_in_the_default_order() -> None:
    assert names() == []
    assert names(do_sample=True, top_k=0) == []
    given = {"do_sample": True, "min_p": 0.1, "temperature": 0.5, "repetition_penalty": 1.1, "no_repeat_ngram_size": 2}
    assert names(**given) == ["repetition_penalty", "no_repeat_ngram_size", "temperature", "top_k", "min_p"]
    assert names(suppress_tokens=[1], logit_bias={2: 1.0}, temperature=1.0) == ["logit_bias", "suppress_tokens"]


def test_another_order_gives_another_result() -> None:
    given = {"do_sample": True, "temperature": 0.1, "top_p": 0.8, "top_k": 0}
    assert shaped(**given) == [-np.inf, 30.0, -np.inf, -np.inf, -np.inf]
    assert shaped(**given, rules=["top_p", "temperature"]) == [-np.inf, 30.0, 20.0, -np.inf, -np.inf]


class TestCustomRules:
    def test_a_function_of_numpy_arrays(self) -> None:
        seen = []

        def third_only(ids: Any, scores: Any) -> Any:
            seen.append((ids.tolist(), scores.tolist()))
            scores[:] = -np.inf
            scores[2] = 1.0
            return scores

        policy = Policy(recipe(rules=[third_only]), [3, 1], context=9)
        assert policy.feed(SCORES).id == 2
        assert seen == [([3, 1], SCORES.tolist())]
        assert policy.feed(SCORES).id == 2
        assert seen[1][0] == [3, 1, 2]

    def test_a_logits_processor_of_tensors(self) -> None:
        def reversed_scores(input_ids: Any, scores: Any) -> Any:
            assert input_ids.shape == (1, 2)
            assert scores.shape == (1, 5)
            assert input_ids.dtype == torch.long
            return -scores

        assert shaped(logits_processor=[reversed_scores]) == (-SCORES).tolist()

    def test_the_references_own_processors_fit(self) -> None:
        from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

        processors = [RepetitionPenaltyLogitsProcessor(1.5), MinPLogitsWarper(0.3)]
        assert shaped(logits_processor=processors) == shaped(do_sample=True, top_k=0, repetition_penalty=1.5, min_p=0.3)

    def test_they_are_named_in_the_waterfall(self) -> None:
        def mine(ids: Any, scores: Any) -> Any:
            scores[1] = -np.inf
            return scores

        given = {"do_sample": True, "temperature": 0.5, "top_k": 2, "rules": ["top_k", mine, "temperature"], "seed": 1}
        step = Policy(recipe(**given), [1], context=9, detail=StepDetail(5, waterfall=True)).feed(SCORES)
        assert step.waterfall is not None
        assert step.waterfall.stages == ("model", "top_k", "mine", "temperature")
        assert step.waterfall.removed_by(1) == "mine"
        assert step.waterfall.removed_by(0) == "top_k"
        assert step.id == 2

    def test_scores_of_another_shape_are_refused(self) -> None:
        with pytest.raises(SettingError, match="the rule short"):
            Policy(recipe(rules=[short]), [1], context=9).feed(SCORES)

    @pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), ("abc", "str"), ([1.0], "list")])
    def test_results_that_are_no_scores_are_refused(self, given: Any, kind: str) -> None:
        def odd(ids: Any, scores: Any) -> Any:
            return given

        with pytest.raises(SettingError, match=f"odd gave {kind}"):
            Policy(recipe(rules=[odd]), [1], context=9).feed(SCORES)


def short(ids: Any, scores: Any) -> Any:
    return scores[:3]


def test_rules_that_leave_nothing_are_named() -> None:
    given = {"allowed_tokens": [1, 2], "suppress_tokens": [1, 2], "repetition_penalty": 1.2}
    with pytest.raises(SettingError, match="step 0: allowed_tokens, suppress_tokens"):
        Policy(recipe(**given), [3], context=9).feed(SCORES)
