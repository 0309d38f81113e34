"""What a journey holds beside its shapes: answers, times, bytes, modules, warnings; and the plan of a config alone."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import glassformer
from glassformer.blueprints import blueprint, read_config
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.protocol import Description, Feed, Want
from glassformer.ground.candidates import Candidates
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputTypeError
from glassformer.model_files import open_model
from glassformer.see.journey import compute as clocks
from glassformer.see.journey.compute import Clock, assemble, next_token
from glassformer.see.journey.prompt_warnings import generation_prompts, prompt_warnings
from glassformer.see.journey.view import Journey
from glassformer.see.plan import Plan, plan
from glassformer.see.schema import schema
from glassformer.see.tokens import batch
from glassformer.text.prompt import prompt_texts
from tests.cli.test_cli import failed, glass
from tests.parity import reference
from tests.see.test_views import LABELS, SHAPES, TEXT, make, picture, run_lines

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTION, PASSAGE = "the cat", "a cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The checkpoint of a shape, made when first asked for."""
    made: dict[str, Path] = {}

    def get(shape: str) -> Path:
        if shape not in made:
            family, head, changes = SHAPES[shape]
            made[shape] = make(tmp_path_factory.mktemp(shape), family, head, **changes)
        return made[shape]

    return get


@pytest.fixture(scope="module")
def load(folder: Callable[[str], Path]) -> Callable[..., Any]:
    held: dict[tuple[str, str], Any] = {}

    def get(shape: str, executor: Any = "auto") -> Any:
        if (shape, executor) not in held:
            held[shape, executor] = glassformer.load(folder(shape), executor=executor)
        return held[shape, executor]

    return get


def theirs(path: Path, head: str, text: str, pair: str | None = None) -> Any:
    """What the reference's model gives, for what our tokenizer makes of a text (which has tests of its own)."""
    model = reference.auto(head).from_pretrained(path).eval()
    tokens = glassformer.AutoTokenizer.from_pretrained(path)(text, pair, return_tensors="pt")
    with torch.no_grad():
        return tokens["input_ids"][0].tolist(), model(**tokens)


# Answers --------------------------------------------------------------------------------------------------------


class TestAnswers:
    def test_candidates_of_every_mask(self, load: Any, folder: Any) -> None:
        text = "the [MASK] sat on [MASK] mat"
        journey = load("masked").look(text)
        ids, found = theirs(folder("masked"), "masked", text)
        places = [at for at, token in enumerate(ids) if token == 4]
        assert [one.position for one in journey.answers] == places == [2, 5]
        for one in journey.answers:
            scores = found.logits[0, one.position]
            assert [candidate.id for candidate in one.candidates] == scores.topk(10).indices.tolist()
            assert [candidate.score for candidate in one.candidates] == pytest.approx(scores.topk(10).values.tolist(), 1e-3)
        assert journey.candidates == journey.answers[0].candidates
        shown = picture(journey, 80)
        assert "4 · scores of the masked tokens ─" in shown
        assert "gap 2 of 2, at position 5" in shown
        assert "5 · the masked tokens ─" in shown

    def test_all_labels(self, tmp_path: Path) -> None:
        names = {number: f"label {number}" for number in range(14)}
        make(tmp_path, "bert", "sequence", num_labels=14, id2label=names, label2id={v: k for k, v in names.items()})
        journey = glassformer.load(tmp_path).look(TEXT)
        _, found = theirs(tmp_path, "sequence", TEXT)
        (answer,) = journey.answers
        assert answer.how == "softmax"
        assert len(answer.candidates) == 14
        shares = found.logits[0].softmax(-1)
        assert [one.id for one in answer.candidates] == shares.argsort(descending=True).tolist()
        assert [one.probability for one in answer.candidates] == pytest.approx(
            shares.sort(descending=True)[0].tolist(), 1e-3
        )
        assert picture(journey, 80).count("label 1") >= 5  # 1 and 10 to 13

    @pytest.mark.parametrize(("problem", "how"), [("multi_label_classification", "sigmoid"), ("regression", "none")])
    def test_labels_that_do_not_exclude_each_other(self, tmp_path: Path, problem: str, how: str) -> None:
        make(tmp_path, "bert", "sequence", **LABELS, problem_type=problem)
        journey = glassformer.load(tmp_path).look(TEXT)
        _, found = theirs(tmp_path, "sequence", TEXT)
        (answer,) = journey.answers
        assert answer.how == how
        assert [one.id for one in answer.candidates] == found.logits[0].argsort(descending=True).tolist()
        told = json.loads(json.dumps(journey.to_dict(), allow_nan=False))["answers"][0]["candidates"]
        shown = picture(journey, 80)
        if how == "none":
            assert all(math.isnan(one.probability) for one in answer.candidates)
            assert all(one["probability"] is None for one in told)
            assert "a number, not one of several labels" in shown
            assert ", probability" not in shown
        else:
            wanted = found.logits[0].sigmoid().sort(descending=True)[0].tolist()
            assert [one["probability"] for one in told] == pytest.approx(wanted, rel=1e-3)
            assert "each label by itself: more than one may hold" in shown

    def test_the_label_of_each_token(self, load: Any, folder: Any) -> None:
        journey = load("tagger").look(PASSAGE)
        _, found = theirs(folder("tagger"), "token", PASSAGE)
        assert journey.answer == "the label of each token"
        assert [one.position for one in journey.answers] == [1, 2, 3, 4, 5, 6]  # not what is put around the text
        for one in journey.answers:
            shares = found.logits[0, one.position].softmax(-1)
            assert one.candidates[0].text == LABELS["id2label"][int(shares.argmax())]
            assert sorted(candidate.probability for candidate in one.candidates) == pytest.approx(
                sorted(shares.tolist()), 1e-3
            )
        lines = picture(journey, 80).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("4 · the label of each token"))
        assert [line.split()[1] for line in lines[first + 2 : first + 8]] == ["␣a", "␣cat", "␣sat", "␣on", "␣the", "␣mat"]
        assert len(json.loads(json.dumps(journey.to_dict()))["answers"]) == 6

    def test_the_passage_that_answers(self, load: Any, folder: Any) -> None:
        """Against every passage tried one by one, with the reference's scores."""
        model = load("spans")
        journey = model.look(QUESTION, pair=PASSAGE)
        ids, found = theirs(folder("spans"), "question", QUESTION, PASSAGE)
        own = range(4, len(ids) - 1)  # [CLS] the cat [SEP] … [SEP]
        starts, ends = (one[0, own.start : own.stop].softmax(-1).tolist() for one in (found.start_logits, found.end_logits))
        spans = {
            (first, last): starts[first] * ends[last]
            for first, last in itertools.product(range(len(own)), repeat=2)
            if first <= last
        }
        best = sorted(spans, key=lambda span: -spans[span])[:10]
        (answer,) = journey.answers
        assert [(one.id - 4, (one.last or 0) - 4) for one in answer.candidates] == best
        assert [one.probability for one in answer.candidates] == pytest.approx([spans[one] for one in best], rel=1e-3)
        words = PASSAGE.split()
        assert [one.text for one in answer.candidates] == [" ".join(words[first : last + 1]) for first, last in best]
        assert journey.warnings == ()
        names = run_lines(model, journey)
        assert names["tokens"]["token_type_ids"].tolist() == [[0] * 4 + [1] * 7]
        shown = picture(journey, 80)
        assert f"  {journey.next.text}  tokens " in shown
        assert PASSAGE in shown

    def test_without_a_passage_it_says_so(self, load: Any) -> None:
        journey = load("spans").look(TEXT)
        assert journey.next.text in TEXT
        (said,) = journey.warnings
        assert "give that with --pair, or pair=…" in said
        assert "give that with" in picture(journey, 80)

    def test_texts_without_tokens_to_answer_for(self, load: Any) -> None:
        """Texts of blanks and signs alone: a word instead of an answer."""
        for found, said in (
            (load("spans").look(QUESTION, pair=" "), "There are no tokens in which an answer could be found."),
            (load("tagger").look("[SEP]"), "There are no tokens that could have a label."),
        ):
            assert (found.answers, found.candidates, found.answer) == ((), (), said)
            assert said in picture(found, 80)

    def test_a_classifier_of_conversations(self, tiny_qwen3: Path, tmp_path: Path) -> None:
        """A decoder with labels and a chat template: what it reads is the rendered conversation."""
        for file in tiny_qwen3.iterdir():
            shutil.copy(file, tmp_path)
        reference.write(tmp_path, "qwen3", "sequence", vocab_size=151936, hidden_size=32, intermediate_size=64, head_dim=8,
                        tie_word_embeddings=True, eos_token_id=151645, pad_token_id=151643, **LABELS)  # fmt: skip
        model = glassformer.load(tmp_path)
        found = model.look("how are you?")
        assert found.prompt.startswith("<|im_start|>user")
        assert len(found.answers[0].candidates) == 3
        run_lines(model, found)

    @pytest.mark.parametrize(
        ("prompt", "said"),
        [(5, "a prompt is"), ([0.5], "message 0 is 0.5"), ([{"content": "no role"}], "message 0 is")],
    )
    def test_prompts_that_are_refused(self, model: Any, prompt: Any, said: str) -> None:
        with pytest.raises(InputTypeError, match=said):
            model.look(prompt)

    @pytest.mark.parametrize("head", ["sequence", "question"])
    def test_an_encoder_decoder_that_reads(self, tmp_path: Path, head: str) -> None:
        """Its decoder reads the source once more: every shape is the real one."""
        family, _, changes = SHAPES["bart"]
        model = glassformer.load(make(tmp_path, family, head, **changes, **(LABELS if head == "sequence" else {})))
        journey = model.look(TEXT)
        assert journey.shapes["blocks.0.residual"] == (1, 4, 48)
        assert "start" not in journey.shapes
        skipped = {"scores"} if head == "question" else set()
        run_lines(model, without(journey, skipped))
        assert [phase.name for phase in journey.phases][1:5] == [
            "source embedding", "encoder blocks 0–1", "target embedding", "decoder blocks 0–2",
        ]  # fmt: skip


def without(journey: Journey, names: set[str]) -> Journey:
    """A journey without some stages."""
    return replace(journey, stages=tuple(stage for stage in journey.stages if stage.name not in names))


# Time -----------------------------------------------------------------------------------------------------------


def alone(model: Any, ids: Sequence[int]) -> Candidates:
    """The best candidates of a pass that nobody watches."""
    row = model.executor.open(None if model.decoder_start_token is None else ids)
    scores = model.executor.run([Feed(row, ids if model.decoder_start_token is None else (model.decoder_start_token,))])[0]
    found = scores.top(10)
    model.executor.close(row)
    return found


class TestClock:
    @pytest.mark.parametrize("executor", ["cpu", "plain"])
    @pytest.mark.parametrize("shape", ["t5", "bart", "gpt2"])
    def test_a_clock_changes_no_bit(self, load: Any, shape: str, executor: str) -> None:
        model = load(shape, executor)
        journey = model.look(TEXT)
        wanted = alone(model, [token.id for token in journey.tokens])
        assert [one.id for one in journey.candidates] == wanted.ids.tolist()
        assert np.array([one.score for one in journey.candidates], np.float32).tobytes() == wanted.scores.tobytes()
        blocks = [phase for phase in journey.phases if "blocks" in phase.name]
        assert [len(phase.each) for phase in blocks] == [2, 3][-len(blocks) :]
        for phase in journey.phases:
            assert phase.seconds is not None
            assert phase.seconds >= sum(phase.each) * 0.999 >= 0

    @pytest.mark.parametrize("executor", ["cpu", "plain"])
    def test_each_tick_is_counted_once(self, load: Any, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
        """With a clock that goes on by one each time it is asked: every block one, and the head what comes behind."""
        model = load("gpt2", executor)
        counter = itertools.count()
        monkeypatch.setattr(clocks.time, "perf_counter", lambda: float(next(counter)))
        clock = Clock(model.blueprint)
        _, ids = model.encode(TEXT)
        done = next_token(model.tokenizer, model.executor, clock, ids)
        sites = ["embedding", *(f"blocks.{n}.residual" for n in range(3)), "final", "scored", "chosen", "decoded"]
        assert done.seconds == dict.fromkeys(sites, 1.0)

    def test_a_long_prompt_goes_through_in_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reference.write(tmp_path, "llama", max_position_embeddings=1024)
        opened = open_model(tmp_path)
        executor = CpuExecutor(opened.config, opened.blueprint(), opened.tensors)
        counter = itertools.count()
        monkeypatch.setattr(clocks.time, "perf_counter", lambda: float(next(counter)))
        clock = Clock(opened.blueprint())
        clock.start()
        executor.run([Feed(executor.open(), [5] * 600, Want.LAST, watch=clock.watch)])
        assert clock.seconds == {"embedding": 3.0, **{f"blocks.{n}.residual": 3.0 for n in range(3)}, "final": 3.0}

    def test_a_journey_is_one_pass(self, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = load("gpt2", "cpu")
        passes = []
        run = type(model.executor).run
        monkeypatch.setattr(type(model.executor), "run", lambda *given: passes.append(given) or run(*given))
        model.look(TEXT)
        assert len(passes) == 1

    @pytest.mark.parametrize("executor", ["cpu", "plain"])
    @pytest.mark.parametrize("shift", [None, np.full(48, 0.25, np.float32), torch.full((48,), 0.25)])
    def test_what_is_changed_stays_changed(self, load: Any, executor: str, shift: Any) -> None:
        """A change where a clock stands: both happen."""
        model = load("gpt2", executor)
        other = model.changed({"blocks.1.residual": Change(scale=0.5, shift=shift)})
        journey = other.look(TEXT)
        wanted = alone(other, [token.id for token in journey.tokens])
        assert [one.score for one in journey.candidates] == wanted.scores.tolist()
        assert journey.candidates != model.look(TEXT).candidates
        assert all(phase.seconds is not None for phase in journey.phases)

    def test_a_reader_under_a_change(self, load: Any) -> None:
        model = load("classifier")
        other = model.changed({"final": Change(scale=0.0)})
        assert other.look(TEXT).candidates == other.look(PASSAGE).candidates
        assert model.look(TEXT).candidates != model.look(PASSAGE).candidates

    def test_an_executor_that_never_calls_the_clock(self, load: Any) -> None:
        """It takes changes for data, as a captured graph would: the pass is timed as a whole, and blocks stay unknown."""

        class Blind:
            def open(self, source: Any = None) -> None: ...

            def close(self, row: Any) -> None: ...

            def run(self, feeds: Any) -> Any:
                return [self]

            def top(self, k: int) -> Candidates:
                return Candidates(np.arange(2), np.ones(2, np.float32), np.full(2, 0.5, np.float32))

            def describe(self) -> Description:
                return Description("blind", "nowhere", "float32", 1)

        model = load("gpt2")
        blind: Any = Blind()
        done = next_token(model.tokenizer, blind, Clock(model.blueprint), [5, 6])
        found = assemble(model.tokenizer, model.blueprint, "ab", [5, 6], done)
        known = {phase.name: phase.seconds is not None for phase in found.phases}
        assert known == {"text to ids": True, "embedding": False, "blocks 0–2": False, "norm and head": False,
                         "choosing": True, "id to text": True}  # fmt: skip
        shown = picture(found, 80)
        assert "one pass on the blind executor (on nowhere, float32). " in shown
        assert "clock" not in shown

    def test_the_journey_of_a_run(self, load: Any) -> None:
        model = load("gpt2")
        run = model.watch(TEXT, max_new_tokens=3)
        assert run.journey.next.id == run.steps[0].id
        assert [phase.name for phase in run.journey.phases] == [phase.name for phase in model.look(TEXT).phases]
        assert "cpu executor" in run.journey.measured

    def test_a_model_in_memory(self, load: Any) -> None:
        model = load("gpt2")
        inner = glassformer.Model.from_module(model.module, model.tokenizer)
        journey = inner.look(TEXT)
        assert "plain executor (on cpu, float32)" in journey.measured
        assert sum(phase.stored or 0 for phase in journey.phases) == 4 * model.blueprint.parameters


# Bytes and modules ----------------------------------------------------------------------------------------------


class TestBytes:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_values_are_as_large_as_said(self, load: Any, shape: str) -> None:
        model = load(shape)
        journey = model.look(TEXT)
        names = run_lines(model, journey)
        told = {stage.name: stage for stage in journey.stages}
        assert told["text"].bytes == len(TEXT)
        assert told["ids"].bytes == names["tokens"]["input_ids"].nbytes
        for name, value in names["at"].items():
            if name in told:
                assert told[name].bytes == value.nbytes, name
                assert f"torch.{told[name].dtype}" == str(value.dtype)

    def test_bytes_in_half_precision(self, folder: Any) -> None:
        journey = glassformer.load(folder("gpt2"), dtype="bfloat16").look(TEXT)
        stage = next(stage for stage in journey.stages if stage.name == "embedding")
        assert (stage.dtype, stage.bytes) == ("bfloat16", 11 * 48 * 2)
        assert "what goes on to the next part, in bfloat16" in picture(journey, 80)
        stored = next(phase.stored for phase in journey.phases if phase.name == "embedding")
        assert stored == stage.stored == 4 * stage.parameters

    @pytest.mark.parametrize("shape", SHAPES)
    def test_weights_as_they_are_stored(self, load: Any, folder: Any, shape: str) -> None:
        """Each tensor of the file once: those that the model uses twice, or not at all, aside."""
        journey = load(shape).look(TEXT)
        own = open_model(folder(shape)).blueprint().weights
        assert sum(phase.stored or 0 for phase in journey.phases) == 4 * sum(weight.elements for weight in own)
        assert all(stage.stored == 4 * stage.parameters for stage in journey.stages if stage.module)

    def test_stored_bytes_of_quantized_weights(self, smollm2: Path) -> None:
        model = glassformer.load(smollm2)
        journey = model.look("Hi")
        tensors = model.opened.tensors
        assert sum(phase.stored or 0 for phase in journey.phases) == sum(one.size for one in tensors.values())
        query = next(stage for stage in journey.stages if stage.name == "blocks.0.attention.query")
        assert query.stored == tensors["model.layers.0.self_attn.q_proj.weight"].size < 2 * query.parameters
        scores = next(stage for stage in journey.stages if stage.name == "scores")
        assert (scores.parameters, scores.shares) == (0, "model.embed_tokens.weight")
        assert "a tied table counts where it is used first" in " ".join(picture(journey, 80).split())

    @pytest.mark.parametrize("shape", SHAPES)
    def test_modules_of_stages_exist(self, load: Any, shape: str) -> None:
        model = load(shape)
        journey = model.look(TEXT)
        for stage in journey.stages:
            model.module.get_submodule(stage.module)
            if stage.parameters and stage.module:
                inside = sum(one.numel() for one in model.module.get_submodule(stage.module).parameters())
                assert inside, stage
        shown = picture(journey, 120)
        block = next(stage.module for stage in journey.stages if stage.blocks and stage.name.endswith("residual"))
        assert ".".join(block.split(".")[: 1 + next(n for n, part in enumerate(block.split(".")) if part == "0")]) in shown


# Warnings -------------------------------------------------------------------------------------------------------


CHAT = [{"role": "user", "content": "how are you?"}]


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    return glassformer.load(tiny_qwen3)


class TestPromptWarnings:
    def test_a_good_prompt_has_no_warnings(self, model: Any, load: Any) -> None:
        assert model.look("how are you?").warnings == ()
        assert model.look(CHAT, system="Be brief.").warnings == ()
        assert model.look("how are you?", template={"enable_thinking": True}).warnings == ()
        assert model.watch("how are you?", max_new_tokens=2).journey.warnings == ()
        assert load("gpt2").look(TEXT).warnings == ()  # no conversations, no word on them
        assert load("masked").look("the [MASK] sat").warnings == ()  # a gap is wanted
        assert load("masked").look("the zebra sat").warnings == ()  # what is not known is no sign
        assert "!" not in picture(load("masked").look("the [MASK] sat"), 80)

    def test_a_doubled_bos(self, load: Any) -> None:
        journey = load("base").look("[CLS] the cat")
        assert journey.warnings[0] == (
            "The prompt begins with [CLS] twice (id 2): the text has one, and another is put before it. "
            "Leave it out of the text."
        )
        assert "! The prompt begins with [CLS] twice" in picture(journey, 80)
        assert json.loads(json.dumps(journey.to_dict()))["warnings"] == list(journey.warnings)

    @pytest.mark.parametrize("thinking", [True, False])
    def test_a_missing_generation_prompt(self, model: Any, thinking: bool) -> None:
        tokenizer = model.tokenizer

        def render(**more: Any) -> str:
            return str(tokenizer.apply_chat_template(CHAT, tokenize=False, enable_thinking=thinking, **more))

        (said,) = [one for one in model.look(render(), raw=True).warnings if "does not end" in one]
        assert said == (
            "The conversation does not end with '<|im_start|>assistant', which the chat template puts before an answer: the "
            "model may continue as somebody else. Render it with add_generation_prompt=True."
        )
        whole = render(add_generation_prompt=True)
        for text in (whole, whole.rstrip(), whole + "Fine, thank"):  # the last is to be gone on with
            assert not any("does not end" in one or "plain text" in one for one in model.look(text, raw=True).warnings)
        again = whole + "Fine.<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n"
        assert any("does not end" in one for one in model.look(again, raw=True).warnings)

    def test_plain_text_for_a_chat_model(self, model: Any) -> None:
        for found in (model.look("Once upon", raw=True), model.watch("Once upon", raw=True, max_new_tokens=1).journey):
            (said,) = found.warnings
            assert said.startswith("This is plain text for a model that was trained on conversations")
            assert "leave out --raw" in said

    def test_generation_prompts(self, model: Any) -> None:
        begin = "<|im_start|>assistant\n"
        assert generation_prompts(model.tokenizer) == (begin, begin + "<think>\n\n</think>\n\n")

    @pytest.mark.parametrize(
        "template", ["{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }}{% endfor %}", {"tool_use": "x"}]
    )
    def test_a_template_that_adds_nothing_or_refuses(self, tiny_qwen3: Path, template: Any) -> None:
        tokenizer = glassformer.AutoTokenizer.from_pretrained(tiny_qwen3)
        tokenizer.chat_template = template
        assert generation_prompts(tokenizer) == ()
        assert prompt_warnings(tokenizer, "Hi", [13048]) == ()

    def test_special_tokens_in_a_users_text(self, model: Any) -> None:
        (said,) = model.look("stop<|im_end|>here").warnings
        assert said.startswith("Your text contains <|im_end|> (at character 4): the model reads that as a special token")
        assert "sanitize_control_tokens=True" in said
        chat = [*CHAT, {"role": "assistant", "content": "<|im_end|>"}]
        (said,) = model.look(chat, system="<|im_start|>").warnings
        assert "<|im_start|> (at character 0 of text 1), <|im_end|> (at character 0 of text 3)" in said
        (said,) = model.look("<|im_end|>" * 5).warnings
        assert "(at character 20) and 2 more: the model" in said

    def test_prompt_texts(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
        chat = [{"role": "user", "content": parts}, {"role": "tool"}, {"role": "assistant", "content": "c"}]
        assert prompt_texts(chat) == ["a", "b", "c"]
        assert prompt_texts("d") == ["d"]

    def test_special_tokens_in_raw_text(self, model: Any, load: Any) -> None:
        *_, said = model.look("stop<|im_end|>", raw=True).warnings
        assert said == (
            "The text contains <|im_end|> (at character 4): the model reads that as a special token, not as words."
        )
        (said,) = load("base").look("the cat [SEP] sat").warnings
        assert said.startswith("The text contains [SEP] (at character 8)")
        (said,) = load("classifier").look("the cat", pair="[SEP] sat").warnings
        assert said.startswith("The text contains [SEP] (at character 0 of text 2)")

    def test_little_room(self, load: Any) -> None:
        (said,) = load("gpt2").look("a" * 200).warnings
        assert said == "The prompt takes 200 of the model's 256 tokens, so an answer ends after 56. Shorten it."
        assert load("gpt2").look("a" * 100).warnings == ()


# As data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_json_is_as_its_schema_says(load: Any, shape: str) -> None:
    told = json.loads(json.dumps(load(shape).look("the [MASK] sat").to_dict(), allow_nan=False))
    jsonschema.validate(told, schema(Journey))
    assert {"answers", "phases", "measured", "warnings", "target", "pair"} <= told.keys()


@pytest.mark.parametrize("ending", ["html", "txt", "json"])
def test_views_are_saved(load: Any, tmp_path: Path, ending: str) -> None:
    model = load("masked")
    views = {
        "glad": load("classifier").look(TEXT),
        "[MASK]": model.look("the [MASK] sat"),
        "cross": plan(load("t5").blueprint),
        "padded on" if ending != "json" else "attention_mask": batch(model.tokenizer, ["the cat", "a"]),
    }
    for said, view in views.items():
        assert said in view.save(tmp_path / f"view.{ending}").read_text("utf-8")


# Plans ----------------------------------------------------------------------------------------------------------


class TestPlan:
    @pytest.mark.parametrize("family", reference.FAMILIES)
    def test_counts_and_shapes(self, family: str) -> None:
        model = reference.build(family, reference.HEADS[family][1])
        found = glassformer.plan(read_config(json.loads(reference.config(family).to_json_string())), 7)
        extra = {"cls.predictions.decoder.bias", "lm_head.decoder.bias", "vocab_projector.weight"}
        extra -= {"lm_head.decoder.bias"} if family == "gte" else set()  # whose only one it is
        if family in (*reference.SINUSOIDAL, "roformer"):  # whose positions follow from the config
            extra |= {name for name, _ in model.named_parameters() if "embed_positions" in name}
        count = sum(one.numel() for name, one in model.named_parameters() if name not in extra)
        assert found.parameters == count + reference.kept_in_buffers(model)
        assert found.weights == {"float32": 4 * found.parameters, "bfloat16": 2 * found.parameters}
        hidden_size = getattr(model.config, "decoder", model.config).hidden_size
        assert found.shapes["embedding"] == (1, 1 if found.encoder else 7, hidden_size)
        assert "sites" not in found.shapes
        jsonschema.validate(json.loads(json.dumps(found.to_dict())), schema(Plan))

    @pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "t5", "bart"])
    def test_the_cache_is_as_large_as_said(self, tmp_path: Path, family: str) -> None:
        reference.write(tmp_path, family, reference.HEADS[family][1])
        opened = open_model(tmp_path)
        found = plan(opened, 9)
        auto: Any = glassformer.AutoModelForSeq2SeqLM if found.encoder else glassformer.AutoModelForCausalLM
        model = auto.from_pretrained(tmp_path)
        ids = torch.full((1, 9), 5)
        more = {"decoder_input_ids": torch.tensor([[0]])} if found.encoder else {}
        with torch.no_grad():
            cache = model(ids, **more, use_cache=True).past_key_values
        parts = [cache.self_attention_cache, cache.cross_attention_cache] if found.encoder else [cache]
        held = sum(one.numel() for part in parts for layer in part for one in layer)
        assert found.cache == {"float32": 4 * held, "bfloat16": 2 * held}

    def test_a_plan_has_the_journeys_shapes(self, load: Any) -> None:
        for shape in ("gpt2", "t5", "classifier"):
            model = load(shape)
            journey = model.look(TEXT)
            found = plan(model, len(journey.tokens))
            assert found.model == model.name
            assert plan(model.module, len(journey.tokens), name=found.model) == found
            assert {name: journey.shapes[name] for name in found.shapes} == found.shapes

    def test_a_plan_with_another_head(self, load: Any) -> None:
        config = load("masked").config
        assert plan(config).head == "masked"
        assert plan(config, head="sequence").shapes["scores"] == (1, 1, 2)
        assert plan(blueprint(config, "base")).cache == {"float32": 0, "bfloat16": 0}
        assert repr(plan(config, name="a model")).startswith("Plan(a model: ")

    def test_look_blueprint_command(self, tmp_path: Path, folder: Any) -> None:
        """A folder with nothing but a config, that file itself, and one with a tokenizer."""
        (tmp_path / "config.json").write_text((folder("t5") / "config.json").read_text())
        shown = glass("look", "--blueprint", "-m", str(tmp_path), "--length", "5", COLUMNS="80")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(f"{tmp_path}: t5, seq2seq head, 2 + 3 blocks ─"[:40])
        for said in ("encoder (the source)", "layer.1.EncDecAttention.q", "of 5 source tokens and 1 target token"):
            assert said in shown.stdout
        assert max(map(len, shown.stdout.splitlines())) <= 80
        moved = tmp_path / "other.json"
        (tmp_path / "config.json").rename(moved)
        found = json.loads(glass("look", "--blueprint", "-m", str(moved), "--json").stdout)
        assert (found["schema"], found["length"], found["encoder"]) == ("glassformer.plan/1", 16, 2)
        counted = json.loads(glass("look", "--blueprint", "-m", str(folder("gpt2")), "the cat", "--json").stdout)
        assert counted["length"] == 7

    def test_no_torch_and_no_weights(self, tmp_path: Path, folder: Any, smollm2: Path) -> None:
        (tmp_path / "config.json").write_text((folder("gpt2") / "config.json").read_text())
        (tmp_path / "model.safetensors").write_bytes(b"these are no weights")
        for name in (str(tmp_path), "smollm2"):
            code = f"import sys; sys.argv = ['glass', 'look', '--blueprint', '-m', {name!r}]\n"
            code += "from glassformer.cli import main\ntry: main()\nexcept SystemExit as left: assert not left.code\n"
            code += "assert 'torch' not in sys.modules"
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def test_a_catalogue_model_of_which_only_the_config_is_here(self, empty_home: Path, tmp_path: Path, folder: Any) -> None:
        """Its weights are not asked for."""
        snapshot = tmp_path / "hf" / "hub" / "models--openai-community--gpt2"
        (snapshot / "snapshots" / "1").mkdir(parents=True)
        (snapshot / "refs").mkdir()
        (snapshot / "refs" / "main").write_text("1")
        (snapshot / "snapshots" / "1" / "config.json").write_text((folder("gpt2") / "config.json").read_text())
        environment = {"HF_HOME": str(tmp_path / "hf"), "GLASS_HOME": str(empty_home), "HF_HUB_OFFLINE": "1"}
        for name in ("gpt2", "openai-community/gpt2"):
            done = glass("look", "--blueprint", "-m", name, "--json", **environment)
            assert json.loads(done.stdout)["model_type"] == "gpt2", done.stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("Hi", "--length", "4"), "--length goes with --blueprint. Give --blueprint too, or leave --length out."),
            (("Hi", "--blueprint", "--length", "4"), "PROMPT has no use with --length."),
            (("--blueprint", "-m", "cl100k_base"), "the ranks of a tokenizer, not a model."),
            (("--blueprint", "-m", "./nowhere.json"), "there is no file or folder './nowhere.json'. Check the path."),
        ],
    )
    def test_refusals_of_the_command(self, words: tuple[str, ...], message: str, cl100k: Path) -> None:
        assert message in failed(glass("look", *words))

    def test_a_config_of_nothing_known(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
        assert "which is not a known family" in failed(glass("look", "--blueprint", "-m", str(tmp_path / "config.json")))


def test_look_command_with_a_pair(folder: Any) -> None:
    found = json.loads(glass("look", QUESTION, "--pair", PASSAGE, "-m", str(folder("spans")), "--json").stdout)
    assert found["pair"] == PASSAGE
    assert found["answers"][0]["candidates"][0]["text"] in PASSAGE
