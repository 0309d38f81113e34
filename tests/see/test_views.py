"""The journey of every kind of model: its stages, answers and render; and the two verbs that show it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import glassformer
from glassformer.cli.app import app
from glassformer.ground.errors import ConfigError, InputError
from glassformer.see.journey.view import Journey
from tests.compat.test_scratch import CL100K, ckpt
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the cat sat"


# Tiny models with tiny tokenizers -------------------------------------------------------------------------------


def pieces() -> tuple[Tokenizer, dict[str, str]]:
    """As BERT has it: whole words, between [CLS] and [SEP]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", "a"]
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(words[:5])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {f"{word[1:-1].lower()}_token": word for word in words[:5]}
    return made, {"tokenizer_class": "BertTokenizer", **named}


def sentence() -> tuple[Tokenizer, dict[str, str]]:
    """As T5 has it: SentencePiece's spelling, and an end."""
    words = ["<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁", "s", "a", "▁dog"]
    made = Tokenizer(models.Unigram([(word, -float(number)) for number, word in enumerate(words)], unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(words[:3])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made, {"tokenizer_class": "T5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def letters() -> tuple[Tokenizer, dict[str, str]]:
    """As GPT-2 has it: bytes, without any merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made, {"tokenizer_class": "GPT2Tokenizer"}


TOKENIZERS: dict[str, Callable[[], tuple[Tokenizer, dict[str, str]]]] = {
    "bert": pieces, "t5": sentence, "bart": sentence, "gpt2": letters,
}  # fmt: skip


def make(folder: Path, family: str, head: str, **changes: Any) -> Path:
    """A whole checkpoint: weights, config, tokenizer."""
    tokenizer, named = TOKENIZERS[family]()
    reference.write(folder, family, head, vocab_size=tokenizer.get_vocab_size(), **changes)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


LABELS = {"num_labels": 3, "id2label": {0: "calm", 1: "glad", 2: "sad"}, "label2id": {"calm": 0, "glad": 1, "sad": 2}}
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("t5", "seq2seq", {}),
    "bart": ("bart", "seq2seq", {"decoder_start_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 0,
                                 "forced_eos_token_id": 1}),
    "masked": ("bert", "masked", {}),
    "classifier": ("bert", "sequence", LABELS),
    "base": ("bert", "base", {}),
    "tagger": ("bert", "token", LABELS),
    "spans": ("bert", "question", {}),
    "gpt2": ("gpt2", "causal", {"bos_token_id": 0, "eos_token_id": 0}),
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A model of some shape, made when first asked for."""
    made: dict[str, Any] = {}

    def get(shape: str) -> Any:
        if shape not in made:
            family, head, changes = SHAPES[shape]
            made[shape] = glassformer.load(make(tmp_path_factory.mktemp(shape), family, head, **changes))
        return made[shape]

    return get


def picture(journey: Journey, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(journey)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def run_lines(model: Any, journey: Journey) -> dict[str, Any]:
    """Run every Python line of a journey, each with what those before it left; hold its shape against the told one."""
    names: dict[str, Any] = {"tokenizer": model.tokenizer, "model": model.module, "torch": torch}
    names |= {"text": journey.prompt, "pair": journey.pair}
    for stage in journey.stages:
        target, equals, _ = stage.python.partition(" = ")
        if equals and "(" not in target:
            exec(stage.python, names)
            value = names[target]
        else:
            value = eval(stage.python, names)
        if stage.name == "ids":
            value = value["input_ids"]
            assert value.tolist() == [[token.id for token in journey.tokens]]
        shape = tuple(value.shape) if hasattr(value, "shape") else (len(value),)
        assert shape == stage.shape, stage
    return names


# Journeys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_journey_python_lines_give_their_shapes(loaded: Any, shape: str) -> None:
    model = loaded(shape)
    journey = model.look(TEXT)
    names = run_lines(model, journey)
    told = {stage.name for stage in journey.stages}
    assert told >= {"text", "ids", "sites", "embedding", "blocks.0.residual", "final"}
    config = model.config
    blocks = {"": config.num_hidden_layers, "encoder.": config.encoder_layers}
    assert {(stage.stack, stage.blocks) for stage in journey.stages if stage.blocks} == {
        (stack, (0, count - 1)) for stack, count in blocks.items() if count
    }
    every_site = set(model.blueprint.site_names.names)
    assert names["at"].keys() == every_site - ({"scores"} if shape in ("base", "spans") else set()) or shape == "spans"
    if model.writes:
        assert names["best"].tolist() == [[journey.next.id]]
        assert journey.stages[-1].name == "next text"
    assert json.loads(json.dumps(journey.to_dict()))["prompt"] == TEXT


@pytest.mark.parametrize("shape", ["t5", "bart"])
def test_journey_of_an_encoder_decoder(loaded: Any, shape: str) -> None:
    """The text is the source; the target so far is the start token, and what is scored is what follows it."""
    model = loaded(shape)
    journey = model.look(TEXT)
    start = {"t5": 0, "bart": 1}[shape]
    assert model.decoder_start_token == start
    assert [token.token for token in journey.tokens] == ["▁the", "▁cat", "▁sat", "</s>"]
    assert journey.tokens[-1].special
    assert journey.answer == "the target's first token"
    assert f"start = torch.tensor([[{start}]])" in [stage.python for stage in journey.stages]
    assert [token.id for token in journey.target] == [start]
    shown = picture(journey, 80)
    assert "2 · 4 tokens of the source, out of 12 ─" in shown
    assert f"the target so far: {journey.target[0].token} (id {start}), its start token" in shown
    assert journey.shapes["encoder.blocks.0.residual"] == (1, 4, 48)
    assert journey.shapes["blocks.0.cross.pattern"] == (1, 4, 1, 4)
    assert journey.shapes["blocks.0.attention.pattern"] == (1, 4, 1, 1)
    with torch.no_grad():
        ids = torch.tensor([[token.id for token in journey.tokens]])
        scores = model.module(ids, decoder_input_ids=torch.tensor([[start]])).logits[0, -1]
    assert journey.next.id == int(scores.argmax())
    assert journey.next.score == pytest.approx(float(scores.max()), rel=1e-4)
    run = model.watch(TEXT, max_new_tokens=4, forced_eos_token_id=None)
    assert run.steps[0].id == journey.next.id
    assert run.journey.next == journey.next
    tokens = model.tokenizer(TEXT, return_tensors="pt")
    written = model.module.generate(**tokens, max_new_tokens=4, forced_eos_token_id=None)[0, 1:]
    assert [step.id for step in run.steps] == written.tolist()[: len(run.steps)]
    assert model.chat(TEXT, max_new_tokens=4, forced_eos_token_id=None) == run.text


def test_journey_of_a_masked_token(loaded: Any) -> None:
    model = loaded("masked")
    journey = model.look("the [MASK] sat on [MASK]")
    assert [token.token for token in journey.tokens] == ["[CLS]", "the", "[MASK]", "sat", "on", "[MASK]", "[SEP]"]
    assert [token.special for token in journey.tokens] == [True, False, True, False, False, True, True]
    assert journey.answer == "the masked token"
    with torch.no_grad():
        scores = model.module(torch.tensor([[token.id for token in journey.tokens]])).logits[0, 2]
    assert [one.id for one in journey.candidates] == scores.topk(10).indices.tolist()
    assert journey.next.probability == pytest.approx(float(scores.softmax(-1).max()), rel=1e-4)
    assert journey.next.text.strip() in model.tokenizer.get_vocab()
    assert "scores of the masked token" in picture(journey, 80)


@pytest.mark.parametrize("shape", ["masked", "base"])
def test_journey_without_answers_ends_at_the_states(loaded: Any, shape: str) -> None:
    """A text without a gap, and a model without a head: the way ends there."""
    journey = loaded(shape).look(TEXT)
    assert journey.answers == ()
    assert journey.candidates == ()
    assert repr(journey) == "Journey(5 tokens → 'states')"
    with pytest.raises(InputError, match="scores nothing"):
        _ = journey.next
    text = picture(journey, 80)
    assert "3 · shapes on the way" in text
    assert "4 · where time and bytes went" in text
    assert "scores of" not in text


def test_journey_of_a_classifier(loaded: Any) -> None:
    model = loaded("classifier")
    journey = model.look(TEXT)
    assert journey.answer == "the label"
    assert {one.text for one in journey.candidates} == {"calm", "glad", "sad"}
    with torch.no_grad():
        scores = model.module(**model.tokenizer(TEXT, return_tensors="pt")).logits[0]
    assert journey.next.text == model.config.id2label[int(scores.argmax())]
    assert sum(one.probability for one in journey.candidates) == pytest.approx(1.0, rel=1e-4)
    assert journey.shapes["scores"] == (1, 1, 3)
    text = picture(journey, 80)
    assert "4 · scores of the label" in text
    assert "5 · the label" in text
    assert f"{journey.next.text}  id {journey.next.id}" in text


def test_journey_numbers_unnamed_labels(tmp_path: Path) -> None:
    journey = glassformer.load(make(tmp_path, "bert", "sequence", num_labels=2)).look(TEXT)
    assert {one.text for one in journey.candidates} == {"LABEL_0", "LABEL_1"}


def test_journey_of_the_from_scratch_model(tmp_path: Path, cl100k: Path) -> None:
    model = glassformer.load(ckpt(tmp_path, CL100K))
    journey = model.look(TEXT)
    run_lines(model, journey)
    assert [token.text for token in journey.tokens] == ["the", " cat", " sat"]
    assert journey.shapes["blocks.0.attention.query"] == (1, 2, 3, 4)
    assert sum(one.parameters * (2 if one.blocks else 1) for one in journey.stages) == model.module.num_parameters()


@pytest.mark.parametrize("shape", ["t5", "bart", "base", "masked", "classifier", "tagger", "spans", "gpt2"])
def test_journey_stage_weights_sum_to_the_model(loaded: Any, shape: str) -> None:
    model = loaded(shape)
    rows = model.look(TEXT).stages
    found = sum(row.parameters * (row.blocks[1] - row.blocks[0] + 1 if row.blocks else 1) for row in rows)
    assert found == model.blueprint.parameters


# Pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.every_combination
def test_journey_fits_the_width(loaded: Any, shape: str, width: int) -> None:
    """Each line of Python whole; a block's, where they are too long, by how they begin; none where there is no room."""
    text = picture(loaded(shape).look(TEXT * 10), width)
    assert max(len(line) for line in text.splitlines()) <= width
    lines = [line.partition("  ")[0] if line[:1] != " " else "" for line in text.splitlines()]
    pair = shape in ("t5", "bart")
    assert ('at["blocks.0.attention.query"]' in text) == (width == 120 or (width == 80 and not pair))
    assert ('at["encoder.blocks.0.…"]' in text) == (width == 80 and pair)
    if pair:
        told = ["encoder (the source)", "encoder blocks 0–1, each", "decoder (the target)", "decoder blocks 0–2, each"]
        assert [line for line in lines if line in told] == told
        assert "blocks 0–2, each" not in lines
    else:
        assert "blocks 0–2, each" in lines
        assert not any("coder" in line for line in lines)


def test_control_characters_do_not_reach_the_terminal(loaded: Any) -> None:
    text = picture(loaded("gpt2").look("a\x1b[2J\r\tb\n"), 80)
    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)
    assert r"\x1b[2J\x0d" in text
    assert "⇥" in text
    assert "⏎" in text


# An encoder writes nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["masked", "classifier", "base", "tagger", "spans"])
def test_an_encoder_refuses_to_generate(loaded: Any, shape: str) -> None:
    model = loaded(shape)
    assert not model.writes
    assert model.decoder_start_token is None
    for ask in (model.chat, model.watch, model.stream):
        with pytest.raises(InputError, match=r"\(bert\)"):
            ask(TEXT)
    with pytest.raises(InputError, match="writes none"):
        _ = model.executor


def test_a_causal_family_with_a_classification_head_classifies(tmp_path: Path) -> None:
    """A classifier is one in every family, and writes nothing."""
    model = glassformer.load(make(tmp_path, "gpt2", "sequence", **LABELS, bos_token_id=0, eos_token_id=0))
    journey = model.look(TEXT)
    run_lines(model, journey)
    assert journey.answer == "the label"
    assert {one.text for one in journey.candidates} == {"calm", "glad", "sad"}
    with pytest.raises(InputError, match="sequence head"):
        model.chat(TEXT)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("masked", "Put [MASK] into the text to see what this model would fill in."),
        ("base", "This model ends with the states of its tokens."),
    ],
)
def test_journey_says_why_there_is_no_answer(loaded: Any, shape: str, reason: str) -> None:
    journey = loaded(shape).look(TEXT)
    assert journey.answer == reason
    assert reason in picture(journey, 80)


def test_look_refuses_a_head_that_the_family_lacks(tmp_path: Path) -> None:
    folder = make(tmp_path, "t5", "seq2seq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["T5ForSequenceClassification"]}))
    with pytest.raises(ConfigError, match="AutoModelForSequenceClassification"):
        glassformer.load(folder).look(TEXT)


# The verbs ------------------------------------------------------------------------------------------------------


def glass(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})


class TestVerbs:
    def test_run_and_look_at_t5(self, loaded: Any) -> None:
        model = loaded("t5")
        done = glass("run", TEXT, "-m", model.name, "-n", "4")
        assert done.exit_code == 0, done.output
        assert done.stdout == model.chat(TEXT, max_new_tokens=4) + "\n"
        assert " · raw text · greedy · cpu (" in done.stderr
        found = json.loads(glass("run", TEXT, "-m", model.name, "-n", "4", "--json").stdout)
        assert found["prompt_ids"] == [3, 4, 5, 1]
        shown = glass("look", TEXT, "-m", model.name)
        assert shown.exit_code == 0
        for words in ("encoder blocks 0–1, each", "decoder blocks 0–2, each", "scores of the target's first token"):
            assert words in shown.stdout
        told = json.loads(glass("look", TEXT, "-m", model.name, "--json").stdout)
        assert told["candidates"][0]["id"] == found["ids"][0]
        assert {stage["stack"] for stage in told["stages"]} == {"", "encoder."}

    def test_look_at_bert(self, loaded: Any) -> None:
        model = loaded("masked")
        shown = glass("look", "the [MASK] sat", "-m", model.name)
        assert shown.exit_code == 0
        assert "scores of the masked token" in shown.stdout
        assert "[MASK]" in shown.stdout
        told = json.loads(glass("look", TEXT, "-m", model.name, "--json").stdout)
        assert told["candidates"] == []
        assert told["stages"][-1]["name"] == "scores"
        done = glass("run", TEXT, "-m", model.name)
        assert done.exit_code == 1
        assert done.stdout == ""
        assert isinstance(done.exception, InputError)  # which the command's own entry turns into its one sentence
        assert "reads text and writes none" in str(done.exception)
