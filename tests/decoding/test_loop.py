"""The loop over real rows: shared prompts, guidance, log-probabilities of prompts, and scores that are not numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.decoding import GenerationConfig, Policy, Recipe, generate, policies
from glassformer.decoding.lane import CHUNK
from glassformer.decoding.loop import loop
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import NO_EXTRAS
from glassformer.ground.errors import ExecutorError, InputError, SettingError
from tests.decoding.oracle import CountedExecutor
from tests.parity import reference

PROMPTS = ([5, 9, 14, 3], [77, 21], [5, 9, 14, 3, 8, 60])


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "t5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    reference.write(folder, request.param, head="seq2seq" if request.param == "t5" else "causal")
    auto = glassformer.AutoModelForSeq2SeqLM if request.param == "t5" else glassformer.AutoModelForCausalLM
    return auto.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("loop")
    reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).eval()


def begun(model: Any, prompt: list[int], seed: int = 3, **changes: Any) -> list[Policy]:
    recipe = Recipe.of(GenerationConfig().merged({"max_new_tokens": 8, **changes}))
    if hasattr(model.config, "decoder_start_token_id") and model.config.model_type == "t5":
        return policies(recipe, [0], context=64, seed=seed, source=prompt)
    return policies(recipe, prompt, context=64, seed=seed)


def written(model: Any, *groups: list[Policy]) -> list[list[int]]:
    every = [policy for group in groups for policy in group]
    for _ in generate(PlainExecutor(model), every):
        pass
    return [policy.chosen for policy in every]


def test_a_text_is_the_same_alone_and_in_any_batch(model: Any) -> None:
    settings = {"do_sample": True, "temperature": 1.3, "repetition_penalty": 1.1, "num_return_sequences": 3}
    alone = [written(model, begun(model, prompt, **settings)) for prompt in PROMPTS]
    together = written(model, *(begun(model, prompt, **settings) for prompt in PROMPTS))
    assert together == [ids for each in alone for ids in each]
    assert len({tuple(ids) for ids in together}) > 3
    single = written(model, begun(model, PROMPTS[1], do_sample=True, temperature=1.3, repetition_penalty=1.1))
    assert single[0] == alone[1][0]


def test_texts_after_one_prompt_read_it_once(llama: Any) -> None:
    class Counted(PlainExecutor):
        passes: list[list[int]] = []

        def run(self, feeds: Any) -> Any:
            self.passes.append([len(feed.ids) for feed in feeds])
            return super().run(feeds)

    executor = Counted(llama)
    every = begun(llama, PROMPTS[0], do_sample=True, num_return_sequences=3, max_new_tokens=3)
    for _ in loop(executor, [*every, *begun(llama, PROMPTS[1], max_new_tokens=3)]):
        pass
    assert executor.passes == [[4, 2], [1, 1, 1, 1], [1, 1, 1, 1]]


class TestGuidance:
    def test_guidance_follows_the_formula(self, llama: Any) -> None:
        """By hand: from the negative's log-probabilities, so many times the way to the prompt's."""
        prompt, negative, scale = PROMPTS[0], PROMPTS[1], 2.5
        recipe = Recipe.of(GenerationConfig(max_new_tokens=6, guidance_scale=scale))
        policy = Policy(recipe, prompt, context=64, negative=negative)
        for _ in loop(PlainExecutor(llama), [policy]):
            pass
        chosen: list[int] = []
        for _ in range(6):
            with torch.no_grad():
                ours, other = (
                    llama(torch.tensor([[*ids, *chosen]])).logits[0, -1].log_softmax(-1) for ids in (prompt, negative)
                )
            chosen.append(int((other + scale * (ours - other)).argmax()))
        assert policy.chosen == chosen

    def test_guidance_equals_the_reference(self, llama: Any, tmp_path: Path) -> None:
        theirs = reference.write(tmp_path, "llama")
        for scale in (0.5, 1.5, 3.0):
            ids = torch.tensor([PROMPTS[0]])
            settings = {"max_new_tokens": 6, "guidance_scale": scale, "do_sample": False, "eos_token_id": None}
            ours = llama.generate(ids, **settings, pad_token_id=0)
            expected = theirs.generate(ids, **settings, attention_mask=torch.ones_like(ids), pad_token_id=0)
            assert ours.tolist() == expected.tolist()
            negative = torch.tensor([PROMPTS[1]])
            ours = llama.generate(ids, **settings, negative_prompt_ids=negative, pad_token_id=0)
            expected = theirs.generate(ids, **settings, negative_prompt_ids=negative, pad_token_id=0)
            assert ours.tolist() == expected.tolist()

    def test_an_encoder_decoder_has_no_natural_negative(self) -> None:
        recipe = Recipe.of(GenerationConfig(guidance_scale=2.0))
        with pytest.raises(SettingError, match="negative prompt"):
            Policy(recipe, [0], context=64, source=[5, 6])
        assert Policy(recipe, [0], context=64, source=[5, 6], negative=[7]).negative == [7]

    def test_in_an_encoder_decoder_the_negative_is_another_source(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "t5", head="seq2seq")
        t5 = glassformer.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
        ids, negative = torch.tensor([[5, 9, 14]]), torch.tensor([[7, 7]])
        found = t5.generate(ids, guidance_scale=3.0, negative_prompt_ids=negative, max_new_tokens=4, eos_token_id=None)
        chosen = [0]
        for _ in range(4):
            with torch.no_grad():
                ours, other = (
                    t5(input_ids=source, decoder_input_ids=torch.tensor([chosen])).logits[0, -1].log_softmax(-1)
                    for source in (ids, negative)
                )
            chosen.append(int((other + 3.0 * (ours - other)).argmax()))
        assert found[0].tolist() == chosen


def test_prompt_logprobs_are_the_models(model: Any) -> None:
    long = [5 + n % 50 for n in range(CHUNK + 9)][:60]
    (policy,) = begun(model, long, prompt_logprobs=2, max_new_tokens=2)
    *_, (_, last) = generate(PlainExecutor(model), [policy])
    assert last.outcome is not None
    prompt_steps = last.outcome.prompt_steps
    if model.config.model_type == "t5":
        assert [step.id for step in prompt_steps] == [0]
        return
    with torch.no_grad():
        expected = model(torch.tensor([long])).logits[0].log_softmax(-1)
    assert [step.id for step in prompt_steps] == long
    assert prompt_steps[0].logprob is None
    for position, step in enumerate(prompt_steps[1:]):
        assert step.logprob == pytest.approx(float(expected[position, step.id]), abs=1e-4)
        assert step.candidates is not None
        assert step.candidates.logprobs == pytest.approx(expected[position].topk(2).values.numpy(), abs=1e-4)
    (plain,) = begun(model, long, max_new_tokens=2)
    for _ in generate(PlainExecutor(model), [plain]):
        pass
    assert plain.chosen == policy.chosen


def test_a_lane_that_cannot_begin_leaves_no_row_behind(llama: Any) -> None:
    executor = CountedExecutor(llama)
    recipe = Recipe.of(GenerationConfig(guidance_scale=2.0))
    with pytest.raises(InputError, match="token id 999"):
        list(loop(executor, [Policy(recipe, [5], context=64, negative=[999])]))
    t5_like = Recipe.of(GenerationConfig(guidance_scale=2.0, prompt_logprobs=1))
    with pytest.raises(InputError, match="outside the vocabulary"):
        list(loop(executor, [Policy(t5_like, [5, 999, 6], context=64, negative=[5])]))
    assert not executor.rows


class TestNotNumbers:
    @pytest.mark.parametrize("settings", [{}, {"do_sample": True}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}])
    def test_the_step_and_the_first_site_are_named(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        reference.write(tmp_path, "llama")
        model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[3] = float("nan")
        message = r"at step 0 are not numbers \(NaN or infinite\). The first place where they are not is blocks.1.mlp.update"
        with pytest.raises(ExecutorError, match=message):
            model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=4, **settings)

    def test_nan_at_a_later_step_is_located(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "llama")
        model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        ids = torch.tensor([PROMPTS[0]])
        second = int(model.generate(ids, max_new_tokens=2, eos_token_id=None)[0, -1])
        with torch.no_grad():
            model.model.embed_tokens.weight[second] = float("nan")
        with pytest.raises(ExecutorError, match="step 2 .* embedding"):
            model.generate(ids, max_new_tokens=4, eos_token_id=None)

    def test_nan_where_no_site_can_be_watched(self) -> None:
        class Blind:
            capabilities = NO_EXTRAS

            def open(self, source: Any = None) -> Any:
                return SimpleNamespace(length=1)

            def run(self, feeds: Any) -> Any:
                class One:
                    sites: dict[str, Any] = {}

                    def host(self, index: int = -1) -> Any:
                        return np.array([0.0, np.nan], np.float32)

                return [One() for _ in feeds]

            def rewind(self, row: Any, length: int) -> int:
                raise ExecutorError("it cannot go back.")

            def close(self, row: Any) -> None: ...

        policy = Policy(Recipe.of(GenerationConfig()), [1], context=9)
        with pytest.raises(ExecutorError, match="at step 0 are not numbers.* No site shows where they begin"):
            list(loop(Blind(), [policy]))  # type: ignore[arg-type]
