"""Rules and stops by the names of transformers' classes, with its numbers."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.generation import logits_process, stopping_criteria

import glassformer
from glassformer.compat.processors import RULE_CLASSES
from glassformer.ground.errors import GlassError, InputError, SettingError, UnknownArgument
from tests.ecosystem.models import load_tokenizers, write_tokenizer

VOCABULARY = 40
IDS = torch.tensor([[1, 5, 6, 5, 6, 7], [3, 3, 9, 2, 3, 3]])
INF = float("inf")
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("TemperatureLogitsWarper", (0.7,), {}),
    ("TopKLogitsWarper", (5,), {}),
    ("TopKLogitsWarper", (2,), {"filter_value": -7.0, "min_tokens_to_keep": 4}),
    ("TopPLogitsWarper", (0.6,), {}),
    ("TopPLogitsWarper", (0.1,), {"min_tokens_to_keep": 3}),
    ("MinPLogitsWarper", (0.2,), {}),
    ("TypicalLogitsWarper", (0.5,), {}),
    ("TypicalLogitsWarper", (), {}),
    ("EpsilonLogitsWarper", (0.02,), {}),
    ("EtaLogitsWarper", (0.05,), {}),
    ("RepetitionPenaltyLogitsProcessor", (1.3,), {}),
    ("RepetitionPenaltyLogitsProcessor", (1.3,), {"prompt_ignore_length": 3}),
    ("NoRepeatNGramLogitsProcessor", (2,), {}),
    ("SequenceBiasLogitsProcessor", ({(7, 8): -3.0, (4,): 2.0, (3, 3, 11): 5.0},), {}),
    ("NoBadWordsLogitsProcessor", ([[7, 8], [12], [2]], 2), {}),
    ("PrefixConstrainedLogitsProcessor", (lambda row, ids: [row + 1, int(ids[-1])], 1), {}),
    ("MinLengthLogitsProcessor", (6, 2), {}),
    ("MinLengthLogitsProcessor", (7, [2, 3]), {}),
    ("MinNewTokensLengthLogitsProcessor", (3, 4, 2), {}),
    ("MinNewTokensLengthLogitsProcessor", (3, 3, 2), {}),
    ("ForcedBOSTokenLogitsProcessor", (5,), {}),
    ("ForcedEOSTokenLogitsProcessor", (7, 2), {}),
    ("ForcedEOSTokenLogitsProcessor", (9, 2), {}),
    ("ExponentialDecayLengthPenalty", ((1, 1.5), 2, 3), {}),
    ("ExponentialDecayLengthPenalty", ((3, 1.5), 2, 3), {}),
    ("SuppressTokensLogitsProcessor", ([4, 5],), {}),
    ("SuppressTokensAtBeginLogitsProcessor", ([4, 5], 6), {}),
    ("SuppressTokensAtBeginLogitsProcessor", ([4, 5], 5), {}),
]


@pytest.mark.parametrize(
    ("name", "values", "named"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)]
)
def test_a_rule_gives_the_reference_s_scores(name: str, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    scores = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(4)) * 3
    ours, theirs = getattr(glassformer, name)(*values, **named), getattr(logits_process, name)(*values, **named)
    for ids in (IDS, IDS[:, :1]):
        before = scores.clone()
        torch.testing.assert_close(ours(ids, scores), theirs(ids, scores.clone()), atol=1e-5, rtol=1e-5)
        assert torch.equal(scores, before)
    assert isinstance(ours, glassformer.LogitsProcessor)


def test_every_rule_is_compared_and_the_reference_has_no_other() -> None:
    assert {case[0] for case in CASES} == RULE_CLASSES.keys()
    theirs = {name for name in vars(logits_process) if re.fullmatch(r"\w+(Warper|Processor|Penalty|Normalization)", name)}
    others = {name for name in theirs - RULE_CLASSES.keys() if hasattr(transformers, name)}
    listed = {name for names in glassformer._ELSEWHERE for name in names.split()}
    rest = {"LogitsProcessor", "TopHLogitsWarper"} | {name for name in others if "Guidance" in name or "Whisper" in name}
    special = {"AlternatingCodebooks", "Bark", "Dia", "SynthID"}  # of models and of watermarks that are not here
    assert {name for name in others - listed - rest if not any(name.startswith(word) for word in special)} == set()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: glassformer.TopKLogitsWarper(), InputError, "needs 'top_k'"),
        (lambda: glassformer.TopKLogitsWarper(5, top=3), UnknownArgument, "no argument 'top'"),
        (lambda: glassformer.TopKLogitsWarper(5, 0.0, 1, 2), UnknownArgument, "takes 3 arguments"),
        (lambda: glassformer.TopPLogitsWarper(1.5), SettingError, "top_p is 1.5"),
        (lambda: glassformer.ExponentialDecayLengthPenalty((1,), 2, 3), SettingError, "a pair of"),
        (lambda: glassformer.StopStringCriteria(None, []), SettingError, "stop_strings is empty"),
    ],
)
def test_what_a_rule_cannot_be_made_of(make: Any, error: type[GlassError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_stops_are_the_reference_s() -> None:
    for name, values in (
        ("MaxLengthCriteria", (4,)), ("MaxLengthCriteria", (20,)), ("EosTokenCriteria", (2,)),
        ("EosTokenCriteria", ([7, 3],)), ("MaxTimeCriteria", (0.5, time.time() - 1)), ("MaxTimeCriteria", (500.0,)),
    ):  # fmt: skip
        ours, theirs = getattr(glassformer, name)(*values), getattr(stopping_criteria, name)(*values)
        assert ours(IDS, None).tolist() == theirs(IDS, None).tolist()


def test_a_text_stops_where_its_last_token_completes_a_string(tmp_path: Path) -> None:
    tokenizer = load_tokenizers(write_tokenizer(tmp_path)).ours
    ids = tokenizer("cat the cat sat", return_tensors="pt", add_special_tokens=False)["input_ids"]
    for stop, expected in (("cat", [True, False, True, False]), (["e c", "at s"], [False, False, True, True])):
        criterion = glassformer.StopStringCriteria(tokenizer, stop)
        assert [criterion(ids[:, : count + 1], None).item() for count in range(4)] == expected


def test_generate_takes_them() -> None:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = glassformer.AutoModelForCausalLM.from_config(glassformer.LlamaConfig(**sizes))
    rules = [glassformer.SuppressTokensLogitsProcessor(list(range(2, 39))), glassformer.TopKLogitsWarper(1)]
    stops = [glassformer.MaxLengthCriteria(9)]
    result = model.generate(IDS, max_new_tokens=20, logits_processor=rules, stopping_criteria=stops, eos_token_id=None)
    assert result.shape == (2, 9)
    assert set(result[:, 6:].flatten().tolist()) <= {0, 1, 39}
    by_setting = model.generate(IDS, max_new_tokens=9, exponential_decay_length_penalty=(2, 1000.0), eos_token_id=4)
    assert all(row[6:].tolist().index(4) <= 4 for row in by_setting)
    with pytest.raises(SettingError, match=r"exponential_decay_length_penalty is \(1,\)"):
        model.generate(IDS, exponential_decay_length_penalty=(1,), eos_token_id=4)


class TestEverywhere:
    @pytest.fixture
    def model(self) -> Any:
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        torch.manual_seed(0)
        return glassformer.AutoModelForCausalLM.from_config(glassformer.LlamaConfig(**sizes))

    @pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.0, "do_sample": True, "top_p": 0.9}])
    def test_a_temperature_of_zero_is_greedy(self, settings: dict[str, Any], model: Any) -> None:
        greedy = model.generate(IDS, max_new_tokens=4, do_sample=False)
        assert torch.equal(model.generate(IDS, max_new_tokens=4, **settings), greedy)
        model.generation_config.temperature = 0
        assert torch.equal(model.generate(IDS, max_new_tokens=4, do_sample=True), greedy)

    def test_without_a_prompt_a_text_begins(self, model: Any) -> None:
        model.generation_config.bos_token_id = 1
        expected = model.generate(torch.tensor([[1]]), max_new_tokens=3)
        assert torch.equal(model.generate(max_new_tokens=3), expected)
        assert model.generate(max_new_tokens=3, bos_token_id=7)[0, 0] == 7
        model.generation_config.bos_token_id = None
        with pytest.raises(InputError, match="token that begins"):
            model.generate(max_new_tokens=3)

    def test_settings_are_found_saved_and_shown(self, smollm2: Path, tmp_path: Path) -> None:
        settings = glassformer.GenerationConfig.from_pretrained(smollm2, max_new_tokens=7)
        assert settings.max_new_tokens == 7
        assert settings.eos_token_id is not None
        settings.save_pretrained(tmp_path)
        again = transformers.GenerationConfig.from_pretrained(tmp_path)
        assert again.max_new_tokens == settings.to_diff_dict()["max_new_tokens"] == 7
        (tmp_path / "file").write_text("")
        with pytest.raises(glassformer.GlassError, match="cannot be written"):
            settings.save_pretrained(tmp_path / "file")

    def test_a_model_that_is_not_found_is_an_os_error(self) -> None:
        with pytest.raises(OSError, match="no-such-model"):
            glassformer.AutoModelForCausalLM.from_pretrained("no-such-model")

    def test_names_that_scripts_import(self, tmp_path: Path) -> None:
        import tokenizers

        from glassformer.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

        assert issubclass(CausalLMOutputWithPast, glassformer.ModelOutput)
        assert issubclass(BaseModelOutput, glassformer.ModelOutput)
        assert glassformer.AddedToken is tokenizers.AddedToken
        with pytest.raises(ImportError, match="no Trainer"):
            from glassformer import Trainer  # noqa: F401

    def test_a_pipeline_by_its_class(self, model: Any, tmp_path: Path) -> None:
        tokenizer = load_tokenizers(write_tokenizer(tmp_path)).ours
        task = glassformer.TextGenerationPipeline(model=model, tokenizer=tokenizer, max_new_tokens=2)
        assert isinstance(task, glassformer.TextGenerationPipeline)
        assert not isinstance(task, glassformer.FillMaskPipeline)
        assert "generated_text" in task("the cat")[0]
        with pytest.raises(AttributeError, match="NoSuchPipeline"):
            _ = glassformer.NoSuchPipeline
