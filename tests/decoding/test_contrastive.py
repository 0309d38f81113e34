"""Contrastive search against its definition, said slowly; and functions that say which tokens may follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import glassformer
from glassformer.decoding import GenerationConfig
from glassformer.ground.errors import SettingError
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [8, 8, 30, 41, 2, 19]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
FREE: dict[str, Any] = {"eos_token_id": None, "forced_eos_token_id": None}


@pytest.fixture(scope="module", params=["llama", "gpt2", "t5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("contrastive")
    is_pair = request.param == "t5"
    reference.write(folder, request.param, "seq2seq" if is_pair else "causal")
    auto = glassformer.AutoModelForSeq2SeqLM if is_pair else glassformer.AutoModelForCausalLM
    return auto.from_pretrained(folder).requires_grad_(False)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    reference.write(folder, "llama", max_position_embeddings=16)
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def states_and_scores(model: Any, ids: list[int], source: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's last state, of length one, and the scores after the last: everything is read anew."""
    if model.config.encoder_layers:
        output = model(torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), output_hidden_states=True)
        states = output.decoder_hidden_states[-1][0]
    else:
        output = model(torch.tensor([ids]), output_hidden_states=True)
        states = output.hidden_states[-1][0]
    return torch.nn.functional.normalize(states, dim=-1), output.logits[0, -1]


def slow_contrastive(model: Any, prompt: list[int], alpha: float, k: int, count: int) -> list[int]:
    """Equation 5 of https://arxiv.org/abs/2202.06417, a candidate at a time."""
    ids = [model.config.decoder_start_token_id] if model.config.encoder_layers else prompt
    start = len(ids)
    for _ in range(count):
        states, scores = states_and_scores(model, ids, prompt)
        best = scores.softmax(-1).topk(k)
        objective = []
        for probability, token in zip(best.values, best.indices.tolist(), strict=True):
            state = states_and_scores(model, [*ids, token], prompt)[0][-1]
            objective.append((1 - alpha) * probability - alpha * (states @ state).max())
        ids = [*ids, int(best.indices[int(torch.stack(objective).argmax())])]
    return ids[start:]


@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), (0.2, 8), (1.0, 3)])
def test_contrastive_search_equals_its_definition(model: Any, alpha: float, k: int) -> None:
    texts = model.generate(IDS, attention_mask=MASK, penalty_alpha=alpha, top_k=k, max_new_tokens=6, **FREE)
    for row, mask, text in zip(IDS, MASK.bool(), texts.tolist(), strict=True):
        assert text[-6:] == slow_contrastive(model, row[mask].tolist(), alpha, k, 6)


def test_it_differs_from_greedy_and_follows_rules(model: Any) -> None:
    text = model.generate(IDS, penalty_alpha=0.6, top_k=4, max_new_tokens=6, **FREE)
    assert text.tolist() != model.generate(IDS, max_new_tokens=6, **FREE).tolist()
    first = int(text[0, -6])
    other = model.generate(IDS, penalty_alpha=0.6, top_k=4, suppress_tokens=[first], max_new_tokens=6, **FREE)
    assert first not in other[0, -6:].tolist()


def test_texts_end_and_explain_themselves(llama: Any) -> None:
    settings = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 6}
    text = llama.generate(IDS, eos_token_id=None, **settings)[0, 6:].tolist()
    steps = [step for row, step in llama.steps(IDS, eos_token_id=text[2], look=3, **settings) if row == 0]
    assert [step.id for step in steps] == text[: text.index(text[2]) + 1]
    assert all(len(step.candidates) == 3 for step in steps)
    assert "contrastive" in GenerationConfig(penalty_alpha=0.6).strategy


def test_at_the_end_of_the_context_candidates_are_read_one_by_one(llama: Any) -> None:
    """Side by side they would not fit behind the text."""
    text = llama.generate(IDS[:1], penalty_alpha=0.4, top_k=5, max_new_tokens=50, **FREE)
    assert text.shape == (1, 16)
    assert text[0, 6:].tolist() == slow_contrastive(llama, IDS[0].tolist(), 0.4, 5, 10)


def test_other_executors_search_too(llama: Any, tmp_path: Any) -> None:
    from glassformer.decoding import Policy, Recipe, generate

    llama.save_pretrained(tmp_path)
    settings = GenerationConfig().merged({"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": 6})
    executor = glassformer.load(tmp_path, executor="cpu").executor
    policy = Policy(Recipe.of(settings), IDS[0].tolist(), context=16)
    expected = llama.generate(IDS[:1], penalty_alpha=0.6, top_k=4, max_new_tokens=6, **FREE)[0, 6:].tolist()
    assert [step.id for _, step in generate(executor, [policy])] == expected


def test_what_contrastive_search_does_not_go_with(llama: Any) -> None:
    for other in ({"do_sample": True}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}, {"guidance_scale": 2.0}):
        with pytest.raises(SettingError, match=f"penalty_alpha and {next(iter(other))}"):
            llama.generate(IDS, penalty_alpha=0.6, **other)
    with pytest.raises(SettingError, match="states, attentions"):
        llama.generate(IDS, penalty_alpha=0.6, output_attentions=True, return_dict_in_generate=True)


class TestPrefixAllowedTokens:
    @pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 1}])
    def test_it_equals_the_reference(self, way: dict[str, Any], tmp_path: Any) -> None:
        theirs = reference.write(tmp_path, "llama")
        ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)

        def allowed(prompt: int, ids: torch.Tensor) -> list[int]:
            return [token for token in range(160) if token % 7 == (int(ids[-1]) + prompt) % 7]

        settings = {"prefix_allowed_tokens_fn": allowed, "max_new_tokens": 6, "eos_token_id": None, **way}
        expected = theirs.generate(IDS, attention_mask=torch.ones_like(IDS), pad_token_id=0, **settings)
        assert ours.generate(IDS, **settings).tolist() == expected.tolist()

    def test_misuse_is_refused(self, llama: Any) -> None:
        for wrong in ([], None, [160], [-1], "x"):
            with pytest.raises(SettingError, match="prefix_allowed_tokens_fn gave"):
                llama.generate(IDS, prefix_allowed_tokens_fn=lambda prompt, ids, wrong=wrong: wrong)
