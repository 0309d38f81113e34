"""What `generate` gives back when all is asked for: the reference's fields, and more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.decoding import Finish
from glassformer.ground.errors import InputError
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [8, 8, 30, 41, 2, 19]])
ALL = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("output")
    theirs = reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False), theirs


def outputs(both: tuple[Any, Any], ids: torch.Tensor = IDS, **settings: Any) -> tuple[Any, Any]:
    settings = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None, **ALL, **settings}
    ours, theirs = both
    return ours.generate(ids, **settings), theirs.generate(ids, attention_mask=torch.ones_like(ids), **settings)


def equal(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


def test_greedy_output_equals_the_reference(both: tuple[Any, Any]) -> None:
    ours, theirs = outputs(both, repetition_penalty=1.3)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert equal(ours.scores, theirs.scores)
    assert equal(ours.logits, theirs.logits)
    assert not equal(ours.scores, ours.logits)
    assert ours.sequences_scores is None
    assert ours.finish == [Finish.LENGTH, Finish.LENGTH]
    assert ours.seed is None
    assert [step.id for step in ours.steps[1]] == ours.sequences[1, 6:].tolist()
    assert ours[0] is ours.sequences
    assert "beam_indices" not in ours
    for normalize in (False, True):
        result = both[0].compute_transition_scores(ours.sequences, ours.scores, normalize_logits=normalize)
        expected = both[1].compute_transition_scores(theirs.sequences, theirs.scores, normalize_logits=normalize)
        assert torch.allclose(result, expected, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3])
def test_beam_output_equals_the_reference(both: tuple[Any, Any], count: int) -> None:
    ours, theirs = outputs(both, num_beams=3, num_return_sequences=count, no_repeat_ngram_size=2)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert torch.allclose(ours.sequences_scores, theirs.sequences_scores, atol=1e-4)
    assert ours.beam_indices.tolist() == theirs.beam_indices.tolist()
    assert equal(ours.scores, theirs.scores)
    assert equal(ours.logits, theirs.logits)
    result = both[0].compute_transition_scores(ours.sequences, ours.scores, ours.beam_indices)
    expected = both[1].compute_transition_scores(theirs.sequences, theirs.scores, theirs.beam_indices)
    assert torch.allclose(result, expected, atol=1e-4)
    assert torch.allclose(result.sum(1) / 6, ours.sequences_scores, atol=1e-4)


def test_rows_of_different_lengths_are_padded(both: tuple[Any, Any]) -> None:
    free = both[0].generate(IDS, max_new_tokens=6, eos_token_id=None)
    at, end = next((at, token) for at, token in enumerate(free[0, 6:].tolist()) if token not in free[1, 6:].tolist())
    result = both[0].generate(IDS, max_new_tokens=6, eos_token_id=end, pad_token_id=0, logprobs=2, **ALL)
    assert result.finish == [Finish.EOS, Finish.LENGTH]
    assert [len(row) for row in result.steps] == [at + 1, 6]
    assert len(result.scores) == 6
    assert result.scores[5][0].argmax() == 0
    assert math.isinf(result.scores[5][0, 1])
    assert result.logprobs.shape == (2, 6)
    assert result.logprobs[0, at + 1 :].tolist() == [0.0] * (5 - at)
    for at, step in enumerate(result.steps[1]):
        expected = result.logits[at][1].log_softmax(-1)
        assert float(result.logprobs[1, at]) == pytest.approx(float(expected[step.id]), abs=1e-4)
        assert step.candidates.logprobs == pytest.approx(expected.topk(2).values.numpy(), abs=1e-4)


def test_prompt_logprobs_equal_the_log_softmax(both: tuple[Any, Any]) -> None:
    result = both[0].generate(IDS, max_new_tokens=1, prompt_logprobs=0, return_dict_in_generate=True)
    expected = both[0](IDS).logits.log_softmax(-1)
    for row in range(2):
        assert result.prompt_logprobs[row][0] is None
        picked = [float(expected[row, at, IDS[row, at + 1]]) for at in range(5)]
        assert result.prompt_logprobs[row][1:] == pytest.approx(picked, abs=1e-4)
        assert all(step.candidates is None for step in result.prompt_steps[row])


def test_steps_carry_logprobs(both: tuple[Any, Any]) -> None:
    result = [step for _, step in both[0].steps(IDS[:1], max_new_tokens=2, logprobs=3)]
    assert all(len(step.candidates) == 3 and step.logprob < 0 for step in result)


def test_num_return_sequences(both: tuple[Any, Any]) -> None:
    settings = {"do_sample": True, "seed": 5, "max_new_tokens": 6, "eos_token_id": None}
    result = both[0].generate(IDS, num_return_sequences=3, return_dict_in_generate=True, **settings)
    assert result.sequences.shape == (6, 12)
    assert result.seed == 5
    assert result.sequences[:, :6].tolist() == IDS.repeat_interleave(3, 0).tolist()
    assert len({tuple(row) for row in result.sequences.tolist()}) == 6
    assert result.sequences[0].tolist() == both[0].generate(IDS[:1], **settings)[0].tolist()
    more = both[0].generate(IDS, num_return_sequences=4, **settings)
    assert more[:3].tolist() == result.sequences[:3].tolist()


def test_settings_come_back_with_their_origins(both: tuple[Any, Any]) -> None:
    result = both[0].generate(IDS, max_new_tokens=2, return_dict_in_generate=True)
    assert result.settings.in_force["max_new_tokens"] == (2, "this call")
    assert result.settings.origin("eos_token_id") == "generation_config.json"


def test_a_new_generation_config_keeps_the_models_eos(both: tuple[Any, Any]) -> None:
    ours = both[0]
    free = ours.generate(IDS[:1], max_new_tokens=6, eos_token_id=None)
    ours.generation_config.eos_token_id, before = int(free[0, 8]), ours.generation_config.eos_token_id
    try:
        given = glassformer.GenerationConfig(max_new_tokens=6)
        result = ours.generate(IDS[:1], generation_config=given, return_dict_in_generate=True)
    finally:
        ours.generation_config.eos_token_id = before
    assert result.finish == [Finish.EOS]
    assert given.eos_token_id is None


class Blank:
    def detokenizer(self, skip: bool = True) -> None: ...

    def encode(self, text: str) -> list[int]:
        return []


def test_an_empty_negative_prompt_is_the_bos_token(both: tuple[Any, Any]) -> None:
    settings = {"guidance_scale": 2.0, "max_new_tokens": 4, "eos_token_id": None}
    result = both[0].generate(IDS, negative_prompt="", tokenizer=Blank(), **settings)
    assert result.tolist() == both[0].generate(IDS, negative_prompt_ids=[1], **settings).tolist()


def test_seeds_of_64_bits(both: tuple[Any, Any]) -> None:
    texts = {
        tuple(both[0].generate(IDS[:1], do_sample=True, seed=seed, eos_token_id=None, max_new_tokens=12)[0].tolist())
        for seed in (2**63, 2**63 + 1000, 2**64 - 1)
    }
    assert len(texts) == 3


@pytest.mark.filterwarnings("error")
def test_a_tiny_temperature_is_greedy(both: tuple[Any, Any]) -> None:
    greedy = both[0].generate(IDS, max_new_tokens=5, eos_token_id=None)
    for value in (1e-39, 1e-300, 1e-9):
        cold = both[0].generate(IDS, max_new_tokens=5, eos_token_id=None, do_sample=True, temperature=value, seed=1)
        assert cold.tolist() == greedy.tolist()


def test_a_generation_config_of_transformers_is_accepted(both: tuple[Any, Any]) -> None:
    from transformers import GenerationConfig

    before = both[0].generation_config
    try:
        both[0].generation_config = GenerationConfig(max_new_tokens=3, eos_token_id=None)
        assert both[0].generate(IDS).shape == (2, 9)
    finally:
        both[0].generation_config = before


def test_bad_outputs_streamers_and_assistants_are_refused(both: tuple[Any, Any], tmp_path: Path) -> None:
    ours = both[0]
    shapes = (torch.zeros(3, 2, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), torch.zeros(1, 2))
    for bad in (*shapes, "8", {}, [2**63], [[5], [6, 7]]):
        with pytest.raises(InputError, match="negative_prompt_ids"):
            ours.generate(IDS, guidance_scale=2.0, negative_prompt_ids=bad)


def test_a_repetition_loop_is_logged_in_one_line(both: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    both[0].generate(IDS, max_new_tokens=40, eos_token_id=None, allowed_tokens=[7, 8])
    (line,) = caplog.messages
    assert "repeats itself" in line
