"""Encoders and encoder-decoders out of plain text: what is hidden, what is taken out, and that it is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from glassformer.blueprints import model_types, module_for, read_config
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import InputError, SettingError
from glassformer.tasks import pipeline
from glassformer.text import Tokenizer
from glassformer.training.events import Sampled, StepDone
from glassformer.training.new_tokenizer import SENTINELS, add_gap_tokens, new_tokenizer, sentinel_ids, tokens_around
from glassformer.training.objectives.language_model import MaskedLanguageModel, SpanCorruption, random_parts
from glassformer.training.sharding import Ranks
from glassformer.training.text_training import TextTraining
from glassformer.training.trained_model import write_model
from glassformer.training.training_folder import TrainingFolder
from tests.training.small_presets import last_evaluation, losses, small_preset

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = "the cat sat on the mat and the rat ate the hat, while the bat was fat. " * 30
LETTERS = "abcdefghijklmnopqrstuv"
ALPHABETS = "".join(f" {letter}" for letter in LETTERS + LETTERS.upper()) * 40  # a window is one of the two
BY_HEART: dict[str, Any] = {
    "vocabulary": 420,  # a letter is a token
    "held_out": 0.2005,  # whole windows, and the end of the text
    "settings": {"steps": 200, "learning_rate": 1e-2, "warmup_steps": 20},
}
SIZES = {
    "vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_encoder_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
OTHERS = [name for name in model_types() if module_for(name).Config.default_head != "causal"]
__all__ = ["small_preset"]


def tokenizer_of(head: Any) -> Tokenizer:
    return new_tokenizer([TEXT], 400, head)


def ids_of(tokenizer: Tokenizer, count: int) -> np.ndarray[Any, Any]:
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    return np.resize(np.array(ids, np.uint16), count)


def masked(count: int = 4000, length: int = 42) -> MaskedLanguageModel:
    tokenizer = tokenizer_of("masked")
    return MaskedLanguageModel(tokenizer, ids_of(tokenizer, count), length, ids_of(tokenizer, 400), "test")


def spans(count: int = 4000, length: int = 41) -> SpanCorruption:
    tokenizer = tokenizer_of("seq2seq")
    return SpanCorruption(tokenizer, t5_config(tokenizer), ids_of(tokenizer, count), length, ids_of(tokenizer, 400), "test")


def t5_config(tokenizer: Tokenizer) -> Any:
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "dropout_rate": 0.0}
    return read_config({"model_type": "t5", **SIZES, **ids})


# What is hidden -------------------------------------------------------------------------------------------------------


def test_of_each_window_a_share_is_to_be_guessed_and_most_of_it_masked() -> None:
    """BERT's shares: 15 % to be guessed, of which 80 % masked, 10 % replaced and 10 % left."""
    objective = masked()
    guessed = hidden = replaced = total = 0
    for step in range(12):
        objective.step_seed = step
        batch = objective.batch(range(objective.examples))
        ids, targets = batch.inputs["input_ids"], batch.targets
        chosen = targets != -100
        shown, truth = ids[chosen], targets[chosen]
        guessed, total = guessed + len(truth), total + objective.examples * objective.size
        hidden += int((shown == objective.mask).sum())
        replaced += int(((shown != objective.mask) & (shown != truth)).sum())
        assert not np.isin(shown[shown != objective.mask], objective.special).any()
    assert guessed / total == pytest.approx(0.15, abs=0.01)
    assert hidden / guessed == pytest.approx(0.8, abs=0.02)
    assert replaced / guessed == pytest.approx(0.1, abs=0.02)  # a few of them by themselves, and so not counted here


def test_a_window_stands_between_the_tokens_that_stand_around_a_text() -> None:
    objective = masked()
    tokenizer = objective.tokenizer
    batch = objective.batch([1, 3])
    ids, targets = batch.inputs["input_ids"], batch.targets
    assert ids[:, 0].tolist() == [tokenizer.cls_token_id] * 2
    assert ids[:, -1].tolist() == [tokenizer.sep_token_id] * 2
    restored = torch.where(targets == -100, ids, targets)[1, 1:-1]
    assert restored.tolist() == objective.data[3 * 40 : 4 * 40].tolist()


def test_what_is_drawn_depends_on_the_step_and_the_window_alone() -> None:
    for objective in (masked(), spans()):
        objective.step_seed = 7
        alone, together = objective.batch([5]), objective.batch([2, 5])
        assert torch.equal(alone.inputs["input_ids"][0], together.inputs["input_ids"][1])
        held_out = objective.batch([1], held_out=True)
        objective.step_seed = 8
        assert not torch.equal(objective.batch([5]).inputs["input_ids"], alone.inputs["input_ids"])
        assert torch.equal(objective.batch([1], held_out=True).inputs["input_ids"], held_out.inputs["input_ids"])


@torch.no_grad()
def test_the_masked_loss_is_the_references_of_the_same_batch() -> None:
    objective = masked()
    torch.manual_seed(0)
    model = model_class_for_head("bert", "masked")(read_config({"model_type": "bert", **SIZES})).eval()
    batch = objective.batch([0, 1, 2])
    logits = model(batch.inputs["input_ids"]).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(objective.loss(model, batch), expected)
    assert batch.count == int((batch.targets != -100).sum())


# What is taken out ----------------------------------------------------------------------------------------------------


def restored(source: list[int], target: list[int], sentinels: list[int]) -> list[int]:
    """A window out of its source and its target: a slow way back."""
    parts: dict[int, list[int]] = {}
    for number in target:
        if number in sentinels:
            last = number
            parts[last] = []
        else:
            parts[last].append(number)
    window = []
    for number in source:
        window += parts[number] if number in sentinels else [number]
    return window


def test_source_and_target_together_are_the_window() -> None:
    objective = spans()
    lengths = []
    for row in range(20):
        batch = objective.batch([row])
        source, target = batch.inputs["input_ids"][0].tolist(), batch.targets[0].tolist()
        assert source[-1] == target[-1] == objective.end
        assert restored(source[:-1], target[:-1], objective.sentinels) == objective.window(row, held_out=False).tolist()
        used = [number for number in source if number in objective.sentinels]
        assert used == objective.sentinels[: len(used)]  # in their order
        assert target[-2] == objective.sentinels[len(used)]  # the last one ends the last span
        assert batch.inputs["decoder_input_ids"][0].tolist() == [0, *target[:-1]]
        lengths.append((len(source), len(target), len(used)))
    assert set(lengths) == {(40 - 6 + 2 + 1, 6 + 2 + 1 + 1, 2)}  # 15 % of 40, in spans of 3


def test_parts_add_up_and_every_way_occurs() -> None:
    draw = np.random.default_rng(1)
    seen = {tuple(random_parts(4, 2, draw)) for _ in range(100)}
    assert seen == {(1, 3), (2, 2), (3, 1)}
    assert random_parts(3, 1, draw) == [3]


def test_many_spans_make_do_with_the_sentinels_that_there_are() -> None:
    objective = spans(9000, 4001)
    source = objective.batch([0]).inputs["input_ids"][0].tolist()
    assert sum(number in objective.sentinels for number in source) == 99  # of 100, one ends the last span


# Tokenizers -----------------------------------------------------------------------------------------------------------


def test_new_tokenizers_have_what_their_models_need(tmp_path: Path) -> None:
    encoder, pairs = tokenizer_of("masked"), tokenizer_of("seq2seq")
    assert encoder.convert_ids_to_tokens(encoder("the cat", "the mat")["input_ids"]) == [
        "[CLS]", "the", "Ġcat", "[SEP]", "the", "Ġmat", "[SEP]",
    ]  # fmt: skip
    gap = encoder("the [MASK] sat", add_special_tokens=False)["input_ids"]
    assert encoder.convert_ids_to_tokens(gap) == ["the", "[MASK]", "Ġsat"]  # a mask stands for a word with its space
    assert tokens_around(pairs) == ([], [pairs.eos_token_id])
    assert pairs.convert_ids_to_tokens(sentinel_ids(pairs)) == list(SENTINELS)
    for tokenizer in (encoder, pairs):
        tokenizer.save_pretrained(tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for text in ("the cat sat", f"a {tokenizer.mask_token or SENTINELS[3]} naïve 漢字"):
            assert theirs(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert theirs.special_tokens_map.get("mask_token") == tokenizer.mask_token


def test_tokenizers_that_exist_get_what_they_lack() -> None:
    tokenizer = tokenizer_of("causal")
    before = len(tokenizer)
    assert add_gap_tokens(tokenizer, "causal") == 0
    assert add_gap_tokens(tokenizer, "masked") == 1
    assert tokenizer.mask_token == "[MASK]"
    assert add_gap_tokens(tokenizer, "seq2seq") == 100
    assert len(tokenizer) == before + 101
    assert add_gap_tokens(tokenizer, "seq2seq") == 0


# Trainings ------------------------------------------------------------------------------------------------------------


def prepared(folder: Path, architecture: str, text: str = TEXT, **changes: Any) -> Any:
    (folder / "text.txt").write_text(text)
    request = TextTraining(**{"text": str(folder / "text.txt"), "architecture": architecture, "held_out": 0.2, **changes})
    return request.prepare(TrainingFolder(folder / "out"), Ranks())


def test_a_text_is_learned_by_heart_by_an_encoder(small_preset: Any, tmp_path: Path) -> None:
    """Two alphabets: the place tells the letter, the other letters tell its case."""
    training = prepared(tmp_path, "bert", ALPHABETS, **BY_HEART)
    events = list(training.trainer.run())
    assert losses(events)[0] == pytest.approx(np.log(330), abs=1.0)
    assert np.mean(losses(events)[-10:]) < 0.05
    assert last_evaluation(events).loss < 0.05
    assert [event.text for event in events if isinstance(event, Sampled)][-1] in ALPHABETS
    write_model(tmp_path / "model", training.trainer.model, training.parts.tokenizer)
    text = " A B C D E [MASK]" + "".join(f" {letter}" for letter in LETTERS[6:].upper())
    (best, *_) = pipeline("fill-mask", str(tmp_path / "model"))(text)
    assert best["token_str"] == " F"
    (same, *_) = transformers.pipeline("fill-mask", str(tmp_path / "model"))(text)
    assert same["token"] == best["token"]
    assert same["score"] == pytest.approx(best["score"], abs=1e-3)


def test_a_text_is_learned_by_heart_by_an_encoder_decoder(small_preset: Any, tmp_path: Path) -> None:
    training = prepared(tmp_path, "t5", ALPHABETS, length=23, **BY_HEART)
    events = list(training.trainer.run())
    assert np.mean(losses(events)[-10:]) < 0.05
    assert last_evaluation(events).loss < 0.05
    model, objective = training.trainer.model, training.trainer.objective
    (target,) = objective.batch([0], held_out=True).targets
    assert objective.sample(model) == training.parts.tokenizer.decode(target.tolist())


@pytest.mark.parametrize("architecture", OTHERS)
def test_every_family_learns_by_its_head(architecture: str, small_preset: Any, tmp_path: Path) -> None:
    training = prepared(tmp_path, architecture, settings={"steps": 4, "batch_size": 4, "warmup_steps": 0})
    events = list(training.trainer.run())
    assert training.trainer.objective.head == module_for(architecture).Config.default_head
    assert losses(events)[-1] < losses(events)[0]
    assert training.trainer.model.config.context >= 24


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_a_resumed_training_ends_with_the_same_weights(architecture: str, small_preset: Any, tmp_path: Path) -> None:
    """With dropout, so that all that is drawn at random is drawn again."""
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {"steps": 6, "batch_size": 4, "save_every": 2}
    request = TextTraining(text=str(tmp_path / "text.txt"), architecture=architecture, settings=settings)
    unbroken = request.prepare(TrainingFolder(tmp_path / "unbroken"), Ranks()).trainer
    events = list(unbroken.run())
    broken = TrainingFolder(tmp_path / "broken")
    for event in request.prepare(broken, Ranks()).trainer.run():
        if isinstance(event, StepDone) and event.step == 5:
            break  # killed after the checkpoint of step 4
    resumed = request.prepare(broken, Ranks(), resume=True).trainer
    assert resumed.step == 4
    assert losses(list(resumed.run())) == losses(events)[4:]
    mine, theirs = dict(resumed.model.named_parameters()), dict(unbroken.model.named_parameters())
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_model_is_trained_further_by_its_own_head(small_preset: Any, tmp_path: Path) -> None:
    first = prepared(tmp_path, "bert", settings={"steps": 2})
    list(first.trainer.run())
    write_model(tmp_path / "model", first.trainer.model, first.parts.tokenizer)
    request = TextTraining(text=str(tmp_path / "text.txt"), init=str(tmp_path / "model"), settings={"steps": 1})
    further = request.prepare(TrainingFolder(tmp_path / "further"), Ranks())
    assert further.trainer.objective.head == "masked"
    before = first.trainer.model.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in further.trainer.model.state_dict().items())
    assert "fill-mask" in further.parts.usage
    with pytest.raises(SettingError, match="length=99 is more than the model's context of 24"):
        replace(request, length=99).prepare(TrainingFolder(tmp_path / "long"), Ranks())


# Errors ---------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_is_refused(small_preset: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fewer than one window of 22. Give more text, or a shorter length"):
        prepared(tmp_path, "bert", text="a few words")
    with pytest.raises(InputError, match="a window of 3 tokens has no room for text. Give a longer length"):
        prepared(tmp_path, "bert", length=3)
    with pytest.raises(SettingError, match="is for a model that continues texts; this one fills gaps. Leave it out"):
        prepared(tmp_path, "bert", prompt="Once")
