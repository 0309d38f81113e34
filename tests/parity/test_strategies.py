"""Every strategy against the reference's `generate`: greedy, beams, prompt lookup and a model that drafts.

Ids must be equal, beams' scores close. The reference fills rows that ended with the first end token when the padding id
is 0, so it is 1 here.
"""

from __future__ import annotations

import copy
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

import glassformer
from tests.parity import reference
from tests.parity.compare import close, ids_for, load, ragged
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT: dict[str, dict[str, Any]] = {  # as many layers on both sides: the reference's cache wants that
    "t5": {"num_layers": 2, "num_decoder_layers": 2},
    "mt5": {"num_layers": 2, "num_decoder_layers": 2},
    "bart": {"encoder_layers": 2, "decoder_layers": 2},
}
LIKE = ("mistral", "qwen2")  # decoders that are much like the others
QUICK = [family for family in (*reference.DECODERS, *reference.PAIRS) if family not in LIKE]
WIDE = swept(LIKE)
NEW = {"max_new_tokens": 12, "pad_token_id": 1}


class Models(NamedTuple):
    theirs: Any
    ours: Any
    family: str
    helpers: list[tuple[Any, Any]]  # (theirs, ours): one that agrees often, and one that always does
    ends: list[int]  # tokens that do come, the rare ones first: some texts end with them


def head(family: str) -> str:
    return "seq2seq" if family in reference.PAIRS else "causal"


def side(models: Models) -> str:
    """Where the reference wants its padding: a learned position is a column with BART."""
    return "right" if models.family in reference.PAIRS else "left"


DRAFTING = ("prompt_lookup_num_tokens", "max_matching_ngram_size")


@pytest.fixture(scope="module", params=[*QUICK, *WIDE])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    theirs = reference.write(folder, family, head(family), **SHORT.get(family, {}))
    near = copy.deepcopy(theirs)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
    near.save_pretrained(folder / "near")
    ours = load(folder, head(family))
    ids = ids_for(theirs, 4, 6, seed=9)
    free = {"num_beams": 4, "num_return_sequences": 4, "do_sample": False, "eos_token_id": None, "forced_eos_token_id": None}
    texts = ours.generate(ids, **NEW, **free)[:, -12:]
    counts = Counter(texts.flatten().tolist())
    ends = sorted(counts, key=lambda token: counts[token])
    return Models(theirs, ours, family, [(near, load(folder / "near", head(family))), (theirs, ours)], ends)


def both(models: Models, ids: Tensor, mask: Tensor | None = None, **settings: Any) -> tuple[Any, Any]:
    """What the reference and ours write; `ends`: how many tokens end a text, `helper`: which model drafts."""
    settings = {"do_sample": False, "attention_mask": torch.ones_like(ids) if mask is None else mask, **NEW, **settings}
    if "ends" in settings:
        settings["eos_token_id"] = models.ends[: settings.pop("ends")]
    drafting: list[dict[str, Any]] = [{}, {}]
    if "helper" in settings:
        drafting = [{"assistant_model": helper} for helper in models.helpers[settings.pop("helper")]]
    known = settings
    if models.family in reference.RECURRENT:  # there the reference cannot draft: its text without is the same
        drafting[0], known = {}, {name: value for name, value in settings.items() if name not in DRAFTING}
    return models.theirs.generate(ids, **known, **drafting[0]), models.ours.generate(ids, **settings, **drafting[1])


def same(models: Models, ids: Tensor, mask: Tensor | None = None, **settings: Any) -> list[list[int]]:
    expected, result = both(models, ids, mask, **settings)
    assert result.tolist() == expected.tolist()
    texts: list[list[int]] = result.tolist()
    return texts


class TestBeams:
    QUICK: list[dict[str, Any]] = [
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 4, "length_penalty": -0.5, "early_stopping": True, "ends": 8},
        {"num_beams": 5, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": "never", "ends": 8},
        {"num_beams": 3, "length_penalty": 0.0, "repetition_penalty": 1.4, "min_new_tokens": 5, "ends": 8},
        {"num_beams": 4, "num_return_sequences": 3, "no_repeat_ngram_size": 2, "ends": 3},
        {"num_beams": 2, "num_return_sequences": 2, "forced_bos_token_id": 11, "forced_eos_token_id": 2},
    ]
    WIDE = swept(
        {"num_beams": width, "num_return_sequences": width - 1, "length_penalty": penalty, "early_stopping": early} | more
        for width, penalty, early, more in product(
            (3, 4, 5),
            (-0.5, 0.0, 1.0, 2.0),
            (False, True, "never"),
            (
                {},
                {"ends": 8},
                {"repetition_penalty": 1.3, "min_new_tokens": 4, "ends": 8},
                {"no_repeat_ngram_size": 2, "ends": 2},
            ),
        )
    )

    @torch.no_grad()
    @pytest.mark.parametrize("settings", [*QUICK, *WIDE], ids=str)
    def test_beam_texts_equal_the_reference(self, models: Models, settings: dict[str, Any]) -> None:
        """Prompts of one length, so that the reference's rules see no padding."""
        same(models, ids_for(models.theirs, 3, 7), **settings)

    @torch.no_grad()
    @pytest.mark.parametrize("early", [False, *swept((True, "never"))])
    def test_prompts_of_different_lengths(self, models: Models, early: Any) -> None:
        _, ids, mask = ragged(models.theirs, (9, 3, 12, 6), side(models))
        texts = same(models, ids, mask, num_beams=3, num_return_sequences=2, ends=8, early_stopping=early)
        assert len(texts) == 8

    @torch.no_grad()
    def test_beam_output_fields_equal_the_reference(self, models: Models) -> None:
        ids = ids_for(models.theirs, 1, 7)
        settings = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.7, "ends": 2}
        options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        expected, result = both(models, ids, **settings, **options)
        assert result.sequences.tolist() == expected.sequences.tolist()
        assert result.beam_indices.tolist() == expected.beam_indices.tolist()
        close(result.sequences_scores, expected.sequences_scores)
        assert len(result.scores) == len(expected.scores)
        for mine, yours in zip((*result.scores, *result.logits), (*expected.scores, *expected.logits), strict=True):
            assert torch.equal(mine.isneginf(), yours.isneginf())
            close(mine.clamp(min=-1e4), yours.clamp(min=-1e4))
        arguments = expected.sequences, expected.scores, expected.beam_indices
        close(models.ours.compute_transition_scores(*arguments), models.theirs.compute_transition_scores(*arguments))

    @torch.no_grad()
    def test_a_custom_stopping_criterion(self, models: Models) -> None:
        settings: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "ends": 1, "forced_eos_token_id": None}
        ids = ids_for(models.theirs, 1, 6)
        free = same(models, ids, **settings)
        middle = {text[-6] for text in free}

        def stop(input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
            return torch.isin(input_ids[:, -1], torch.tensor(sorted(middle)))

        assert same(models, ids, stopping_criteria=[stop], **settings) != free


class TestSingleSequence:
    """Strategies that give the greedy text."""

    @torch.no_grad()
    def test_greedy_equals_the_reference(self, models: Models) -> None:
        _, ids, mask = ragged(models.theirs, (9, 3, 12, 6), side(models))
        same(models, ids, mask, ends=8)

    @torch.no_grad()
    @pytest.mark.parametrize(
        "rules",
        [{}, {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3}, {"min_new_tokens": 6, "ends": 8}],
    )
    def test_prompt_lookup(self, models: Models, rules: dict[str, Any]) -> None:
        ids = ids_for(models.theirs, 1, 5).repeat(1, 3)
        text = same(models, ids, prompt_lookup_num_tokens=4, max_matching_ngram_size=3, **rules)
        assert text == same(models, ids, **rules)

    @torch.no_grad()
    @pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.2, "ends": 8}], ids=str)
    def test_assisted_generation_equals_the_reference(self, models: Models, settings: dict[str, Any]) -> None:
        ids = ids_for(models.theirs, 1, 7)
        greedy = same(models, ids, **settings)
        for helper in range(len(models.helpers)):
            assert same(models, ids, helper=helper, **settings) == greedy

    @torch.no_grad()
    @pytest.mark.parametrize("sampled", [False, True])
    def test_assisted_generation_in_a_batch(self, models: Models, sampled: bool) -> None:
        """What the reference cannot do; each row is as it would be without."""
        _, ids, mask = ragged(models.theirs, (9, 3, 12, 6), side(models))
        settings = {**NEW, "attention_mask": mask, "eos_token_id": models.ends[:8], "do_sample": sampled}
        settings.update({"seed": 5, "temperature": 0.8, "num_return_sequences": 2} if sampled else {})
        expected = models.ours.generate(ids, **settings)
        assert torch.equal(models.ours.generate(ids, **settings, prompt_lookup_num_tokens=3), expected)
        for _, helper in models.helpers:
            assert torch.equal(models.ours.generate(ids, **settings, assistant_model=helper), expected)


PROMPTS = ("What is the capital of France?", "List three fruits: an apple, a pear, and")
STRATEGIES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {"num_beams": 3, "length_penalty": 0.0, "early_stopping": True},
    {"prompt_lookup_num_tokens": 4},
    {"assistant_model": True},
]


@pytest.mark.sweep
@torch.no_grad()
def test_strategies_on_smollm2(smollm2: Path) -> None:
    """Here the model drafts for itself."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    ours = glassformer.AutoModelForCausalLM.from_pretrained("smollm2").requires_grad_(False)
    tokenizer = glassformer.AutoTokenizer.from_pretrained("smollm2")
    for prompt, strategy in product(PROMPTS, STRATEGIES):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected, result = (
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=2,
                **{name: model if name == "assistant_model" else value for name, value in strategy.items()},
            )
            for model in (theirs, ours)
        )  # fmt: skip
        assert result.tolist() == expected.tolist(), strategy
