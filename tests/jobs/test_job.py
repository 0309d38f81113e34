"""Jobs over tiny models: each row once, with the text it has alone, however often the job was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
from glassformer.decoding.loop import Loop
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, GlassError, InputError, SettingError, UnknownArgument, WriteError
from glassformer.ground.files import write_error
from glassformer.jobs import JobProgress, continuous_batch, row_workers, run_job
from glassformer.jobs import job as job_module
from glassformer.jobs.row_workers import row_seed
from glassformer.see.tensor_files import model_fingerprint
from tests.jobs.models import GREEDY, SAMPLED, chat_folder, chat_model, read_rows, write_rows
from tests.see.models import both, encoder
from tests.sweeps import examples

pytestmark = pytest.mark.usefixtures("one_thread")
MIXED = [row for pair in zip(GREEDY, SAMPLED, strict=True) for row in pair]


def run(tmp_path: Path, rows: Any, **keywords: Any) -> list[dict[str, Any]]:
    """The answers to rows."""
    write_rows(tmp_path / "in.jsonl", rows)
    run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "out.jsonl", **keywords)
    return read_rows(tmp_path / "out.jsonl")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job of greedy and sampled rows."""
    folder = tmp_path_factory.mktemp("unbroken")
    write_rows(folder / "in.jsonl", MIXED)
    run_job(chat_model(), folder / "in.jsonl", folder / "out.jsonl", seed=7)
    return folder


ODD_ROWS = (
    '{"id": "nan", "prompt": "hi", "metadata": NaN}',
    '{"id": "inf", "prompt": "hi", "metadata": [1e999, -Infinity]}',
    '{"id": "deep", "prompt": "hi", "metadata": ' + "[" * 300 + "]" * 300 + "}",
    '{"id": "long", "prompt": "hi", "metadata": ' + "9" * 5000 + "}",
    '{"id": ' + "[9]" * 1 + ', "prompt": "hi", "metadata": NaN}',
    '{"id": "half \\ud800", "prompt": "hi", "metadata": ["\\udfff", 123456789012345678901234567890]}',
    '{"id": "twice", "id": "once", "prompt": "hi"}',
    '{"id": "once", "prompt": "hi", "metadata": {"a": 1.5}}',
    '{"id": 7, "prompt": "hi"}',
)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_that_json_cannot_represent_are_error_rows(suffix: str, tmp_path: Path) -> None:
    """The others go on, and the job ends: also when it is run again."""
    (tmp_path / "in.jsonl").write_text("\n".join(ODD_ROWS))
    for _ in range(2):
        summary = run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / f"out{suffix}", max_new_tokens=2)
        assert (summary.rows, summary.failed) == (9, 6)
    if suffix == ".jsonl":
        answers = read_rows(tmp_path / "out.jsonl")
        ids = [answer["id"] for answer in answers]
        assert ids == ["nan", "inf", "deep", 3, 4, "half \ud800", "once", "once", 7]
        assert [answer["error"] is None for answer in answers] == [False] * 5 + [True, True, False, True]
        assert answers[5]["metadata"] == ["\udfff", 123456789012345678901234567890]
        assert "the row holds NaN or Infinity" in answers[0]["error"]
        assert all(len(answer["error"] or "") < 400 for answer in answers)


# Answers ---------------------------------------------------------------------------------------------------------------


def test_rows_have_the_texts_that_they_have_alone(unbroken: Path) -> None:
    answers = read_rows(unbroken / "out.jsonl")
    assert [answer["id"] for answer in answers] == [row["id"] for row in MIXED]
    for row, answer in zip(MIXED, answers, strict=True):
        keywords = {name: value for name, value in row.items() if name not in ("id", "prompt")}
        alone = chat_model().watch(row["prompt"], seed=row_seed(7, row["id"]), **keywords)
        assert answer["text"] == alone.text
        assert answer["ids"] == list(alone.ids)
        assert answer["finish"] == alone.finish.value  # type: ignore[union-attr]
        counts = {"prompt_tokens": len(alone.prompt_ids), "completion_tokens": len(alone.ids)}
        assert answer["usage"] == {**counts, "total_tokens": sum(counts.values())}
        assert answer["error"] is None
    assert len({answer["text"] for answer in answers}) > len(GREEDY)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_neither_batch_nor_order_changes_an_answer(unbroken: Path, tmp_path: Path, batch_size: int) -> None:
    answers = run(tmp_path, reversed(MIXED), batch_size=batch_size, seed=7)
    assert answers == list(reversed(read_rows(unbroken / "out.jsonl")))


def test_prompts_messages_and_ids(tmp_path: Path) -> None:
    model, messages = chat_model(), [{"role": "user", "content": "hi"}]
    ids = list(model.start("hi").prompt_ids)
    rows = [
        "hi",
        {"prompt": "hi"},
        {"messages": messages},
        {"ids": ids},
        {"prompt": model.render("hi"), "raw": True},
        {"prompt": "hi", "system": "Be brief."},
    ]
    texts = [answer["text"] for answer in run(tmp_path, rows, max_new_tokens=6)]
    assert texts[:5] == [model.chat("hi", max_new_tokens=6)] * 5
    assert texts[5] == model.chat("hi", system="Be brief.", max_new_tokens=6)


def test_settings_of_the_job_and_of_rows(tmp_path: Path) -> None:
    rows = [
        {"prompt": "hi"},
        {"prompt": "hi", "max_new_tokens": 2},
        {"prompt": "hi", "stop_strings": chat_model().chat("hi", max_new_tokens=5)[-1]},
        {"prompt": "hi", "num_return_sequences": 2, "do_sample": True, "metadata": {"from": ["a"]}},
        {"prompt": "hi", "logprobs": 2, "prompt_logprobs": 0},
        {"prompt": "hi", "num_beams": 3},
        {"prompt": "hi", "prompt_lookup_num_tokens": 2},
    ]
    plain, short, stopped, several, scored, beams, drafted = run(tmp_path, rows, max_new_tokens=5)
    assert len(plain["ids"]) == 5
    assert short["ids"] == plain["ids"][:2]
    assert stopped["finish"] == "stop"
    assert stopped["text"] + stopped["stop"] == plain["text"][: len(stopped["text"]) + len(stopped["stop"])]
    assert several["choices"][0]["text"] == several["text"]
    assert len({choice["text"] for choice in several["choices"]}) == 2
    assert several["usage"]["completion_tokens"] == 10
    assert several["metadata"] == {"from": ["a"]}
    assert [entry["id"] for entry in scored["logprobs"]] == scored["ids"] == plain["ids"]
    assert len(scored["logprobs"][0]["best"]) == 2
    assert len(scored["prompt_logprobs"]) == scored["usage"]["prompt_tokens"]
    assert beams["text"] == chat_model().chat("hi", num_beams=3, max_new_tokens=5)
    assert drafted["text"] == plain["text"]


BAD: dict[str, Any] = {
    "not a row": (["hi"], "a row is an object with a prompt, messages or ids, not list."),
    "nothing": ({}, "a row has a prompt, messages or ids; this one has none of them."),
    "two prompts": ({"prompt": "a", "ids": [1]}, "a row has a prompt, messages or ids; this one has prompt and ids."),
    "a number": ({"prompt": 3}, "prompt must be a text, not 3."),
    "messages": ({"messages": "hi"}, "messages must be a list, not 'hi'."),
    "ids": ({"ids": ["a"]}, "ids must be a list of whole numbers, not ['a']."),
    "no ids": ({"ids": []}, "the prompt has no tokens. Say something."),
    "unknown ids": ({"ids": [10**6]}, "token id 1000000 is outside the vocabulary of 256."),
    "ids with a system message": ({"ids": [1], "system": "a"}, "a prompt of token ids has no place for a system message."),
    "empty": ({"prompt": ""}, "the prompt is empty. Say something."),
    "surrogate": ({"prompt": "\ud800"}, ""),
    "unknown field": ({"prompt": "a", "temprature": 1}, "there is no setting 'temprature'. Did you mean 'temperature'?"),
    "contradiction": ({"prompt": "a", "temperature": 2.0}, '"temperature": 2.0 has no effect without sampling.'),
    "long": ({"prompt": "a" * 300}, "a prompt of at least 318 tokens does not fit into the model's context of 256."),
    "assistant": ({"prompt": "a", "assistant_model": "/etc"}, "assistant_model is for all rows or none."),
    "many texts": ({"prompt": "a", "num_return_sequences": 10**9}, "num_return_sequences is 1000000000; a row can have 128"),
    "id": ({"id": [1], "prompt": "a"}, "id is [1]; it must be a text or a whole number."),
    "duplicate": ({"id": "first", "prompt": "a"}, "the id 'first' is that of an earlier row. Give it another."),
    "no token left": ({"prompt": "a", "suppress_tokens": list(range(256))}, "no token is left at step 0: "),
}  # fmt: skip


def test_a_bad_row_becomes_an_error_row(tmp_path: Path) -> None:
    rows = [{"id": "first", "prompt": "a"}, *(row for row, _ in BAD.values()), {"id": "last", "prompt": "a"}]
    answers = run(tmp_path, rows, max_new_tokens=3)
    assert answers[0]["text"] == answers[-1]["text"] == chat_model().chat("a", max_new_tokens=3)
    for name, answer in zip(BAD, answers[1:-1], strict=True):
        assert "text" not in answer, name
        assert answer["error"].startswith(BAD[name][1]), name
    summary = run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "out.jsonl", max_new_tokens=3)
    assert (summary.rows, summary.failed) == (len(rows), len(BAD))


class YieldingLoop(Loop):
    """A loop that yields the error of a text, and goes on."""

    def step(self) -> Iterator[Any]:
        while True:
            before = self.policies
            try:
                yield from super().step()
                return
            except GlassError as error:
                writing = [id(policy) for policy in self.policies]
                yield from ((policy, error) for policy in before if id(policy) not in writing)
            if not self._unchosen:
                return


@pytest.mark.parametrize("loop", [Loop, YieldingLoop])
def test_a_text_that_fails_takes_only_its_own_row_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: type[Loop]
) -> None:
    monkeypatch.setattr(continuous_batch, "Loop", loop)
    failing = {"prompt": "hi", "suppress_tokens": list(range(256)), "do_sample": True, "num_return_sequences": 3}
    rows = [{"prompt": f"the cat {number}"} for number in range(5)]
    answers = run(tmp_path, [*rows[:2], failing, *rows[2:], failing], max_new_tokens=4, batch_size=4)
    assert [answer["error"] is None for answer in answers] == [True, True, False, True, True, True, False]
    good = [answer["text"] for answer in answers if answer["error"] is None]
    assert good == [chat_model().chat(row["prompt"], max_new_tokens=4) for row in rows]


def test_a_pass_that_fails_ends_the_job_and_it_goes_on_later(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = iter(range(12))
    original = Loop._run

    def run_or_fail(self: Loop) -> None:
        if next(passes, None) is None:
            raise ExecutorError("the device is gone.")
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_run", run_or_fail)
        with pytest.raises(ExecutorError, match="the device is gone"):
            run(tmp_path, MIXED, seed=7, batch_size=4)
    assert not (tmp_path / "out.jsonl").exists()
    summary = run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "out.jsonl", seed=7)
    assert 0 < summary.resumed < summary.rows
    assert (tmp_path / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()


# Going on --------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(6, 25), deadline=None)
@given(part=st.floats(0, 1), batch_size=st.sampled_from([1, 4, 32]))
def test_a_job_goes_on_from_any_byte_of_its_ledger(
    unbroken: Path, tmp_path_factory: pytest.TempPathFactory, part: float, batch_size: int
) -> None:
    folder = tmp_path_factory.mktemp("resumed")
    ledger = (unbroken / "out.jsonl.ledger").read_bytes()
    cut = round(part * len(ledger))
    (folder / "out.jsonl.ledger").write_bytes(ledger[:cut])
    summary = run_job(chat_model(), unbroken / "in.jsonl", folder / "out.jsonl", seed=7, batch_size=batch_size)
    assert summary.resumed == max(0, ledger[:cut].count(b"\n") - 1)
    assert (folder / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()
    rows = [json.loads(line)["row"] for line in (folder / "out.jsonl.ledger").read_text().splitlines()[1:]]
    assert sorted(rows) == list(range(len(MIXED)))


def test_a_drawn_seed_is_kept(tmp_path: Path) -> None:
    rows = [{**SAMPLED[0], "seed": None}, *SAMPLED[1:]]
    answers = run(tmp_path, rows)
    ledger = (tmp_path / "out.jsonl.ledger").read_bytes().splitlines(keepends=True)
    assert isinstance(json.loads(ledger[0])["seed"], int)
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "out.jsonl.ledger").write_bytes(ledger[0])
    assert run(tmp_path, rows) == answers


def test_a_finished_job_has_nothing_left_to_do(unbroken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_workers.TextWorker, "answers", lambda *_: pytest.fail("nothing was left to answer"))
    written = (unbroken / "out.jsonl").read_bytes()
    summary = run_job(chat_model(), unbroken / "in.jsonl", unbroken / "out.jsonl", seed=7)
    assert summary.resumed == summary.rows == len(MIXED)
    (unbroken / "out.jsonl").unlink()
    run_job(chat_model(), unbroken / "in.jsonl", unbroken / "out.jsonl", seed=7)  # from the ledger
    assert (unbroken / "out.jsonl").read_bytes() == written


def changed(tmp_path: Path, model: Any, **keywords: Any) -> str:
    with pytest.raises(InputError) as caught:
        run_job(model, tmp_path / "in.jsonl", tmp_path / "out.jsonl", **keywords)
    message = str(caught.value)
    assert message.startswith("out.jsonl was begun as another job: ")
    assert message.endswith(f". Run it as it was begun, or remove {tmp_path / 'out.jsonl.ledger'} to begin anew.")
    return message.removeprefix("out.jsonl was begun as another job: ").partition(". Run it")[0]


def test_a_changed_job_is_refused_and_says_what_changed(tmp_path: Path) -> None:
    model = chat_model()
    run(tmp_path, GREEDY[:2], repetition_penalty=1.1)
    assert changed(tmp_path, model) == "repetition_penalty was 1.1 and is not set"
    both_changed = "repetition_penalty was 1.1 and is 1.2; seed was not set and is 3"
    assert changed(tmp_path, model, repetition_penalty=1.2, seed=3) == both_changed
    other = glassformer.load(chat_folder(), executor="plain")
    assert changed(tmp_path, other, repetition_penalty=1.1).startswith('executor was "cpu" and is "plain"; dtype was')
    ablated = model.changed({"blocks.0.mlp.update": Change(scale=0)})
    assert "blocks.0.mlp.update" in changed(tmp_path, ablated, repetition_penalty=1.1)
    write_rows(tmp_path / "in.jsonl", GREEDY[:3])
    assert changed(tmp_path, model, repetition_penalty=1.1) == "the input file is another"


def test_a_fingerprint_is_of_what_a_model_computes() -> None:
    fingerprint = model_fingerprint(chat_model())
    assert model_fingerprint(glassformer.load(chat_folder(), executor="cpu")) == fingerprint
    other = model_fingerprint(both("qwen3", "cpu").model)
    assert {name for name in other if other[name] != fingerprint[name]} >= {"weights", "config", "tokenizer"}
    module = chat_model().module
    in_memory = glassformer.Model.from_module(module, chat_model().tokenizer)
    before = model_fingerprint(in_memory)["weights"]
    module.model.norm.weight.data.mul_(2)
    assert model_fingerprint(in_memory)["weights"] != before
    module.model.norm.weight.data.div_(2)


def test_a_file_that_is_not_the_jobs_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(InputError, match="out.jsonl"):
        run(tmp_path, GREEDY)
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    assert not (tmp_path / "out.jsonl.ledger").exists()


def test_an_output_that_cannot_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path) -> None:
        raise write_error(path, OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "atomic_file", full_disk)
        with pytest.raises(WriteError, match="Free some space"):
            run(tmp_path, GREEDY)
    summary = run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert summary.resumed == len(read_rows(tmp_path / "out.jsonl")) == len(GREEDY)


def test_an_input_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", GREEDY)

    def progress(state: JobProgress) -> None:
        if state.rows == 3:
            path.write_text(path.read_text() + "\n")

    with pytest.raises(InputError, match="in.jsonl was changed"):
        run_job(chat_model(), path, tmp_path / "out.jsonl", progress=progress)
    assert not (tmp_path / "out.jsonl").exists()


# Calls ------------------------------------------------------------------------------------------------------------------


def test_progress_counts_rows_and_tokens(tmp_path: Path) -> None:
    states: list[JobProgress] = []
    answers = run(tmp_path, [*GREEDY, {}], progress=states.append)
    assert states[0] == JobProgress(0, len(GREEDY) + 1, 0, 0)
    assert states[-1].rows == states[-1].total == len(GREEDY) + 1
    assert states[-1].failed == 1
    assert states[-1].tokens == sum(answer["usage"]["completion_tokens"] for answer in answers if answer["error"] is None)


def test_wrong_calls(tmp_path: Path) -> None:
    model, path = chat_model(), write_rows(tmp_path / "in.jsonl", GREEDY)
    out = tmp_path / "out.jsonl"
    with pytest.raises(InputError, match="out.csv"):
        run_job(model, path, tmp_path / "out.csv")
    with pytest.raises(InputError, match="is the input"):
        run_job(model, path, path)
    with pytest.raises(SettingError, match="batch_size is 0"):
        run_job(model, path, out, batch_size=0)
    with pytest.raises(UnknownArgument, match="no setting 'temprature'"):
        run_job(model, path, out, temprature=1)
    with pytest.raises(UnknownArgument, match="'batchsize'"):
        run_job(model, path, out, batchsize=1)
    with pytest.raises(InputError, match="writes none"):
        run_job(encoder("bert").model, path, out)
    with pytest.raises(SettingError, match="top_k=…"):
        run_job(glassformer.pipeline("fill-mask", encoder("bert").model), path, out, top_k=3)
    assert not list(tmp_path.glob("*.ledger"))


def test_a_job_without_rows(tmp_path: Path) -> None:
    assert run(tmp_path, []) == []


# Tasks ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoders_in_a_continuous_batch(tmp_path: Path, family: str) -> None:
    model = both(family, "cpu").model
    texts = ["the cat sat", "a dog", "the mat the mat the mat", "sat", "on the mat"]
    path = write_rows(tmp_path / "in.jsonl", [*texts, {"text": "a cat", "id": "x"}, {"text": ""}])
    task = glassformer.pipeline("text2text-generation", model, max_new_tokens=6)
    run_job(task, path, tmp_path / "out.jsonl", batch_size=2)
    *answers, empty = read_rows(tmp_path / "out.jsonl")
    assert [answer["output"] for answer in answers] == list(task.stream([*texts, "a cat"]))
    assert answers[-1]["id"] == "x"
    assert empty == {"id": 6, "error": "the text is empty. Give it at least one word."}
    run_job(model, path, tmp_path / "texts.jsonl", max_new_tokens=6)
    assert [answer["text"] for answer in read_rows(tmp_path / "texts.jsonl")[:5]] == [
        model.chat(text, max_new_tokens=6) for text in texts
    ]


def test_sampled_answers_of_a_task_go_on_too(tmp_path: Path) -> None:
    task = glassformer.pipeline("text-generation", chat_model(), max_new_tokens=6, do_sample=True, seed=3)
    path = write_rows(tmp_path / "in.jsonl", ["the cat", "the dog", "the cat", "a mat"])
    run_job(task, path, tmp_path / "out.jsonl")
    answers = read_rows(tmp_path / "out.jsonl")
    assert answers[0]["output"] != answers[2]["output"]  # a draw of its own for each row
    ledger = (tmp_path / "out.jsonl.ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "again.jsonl.ledger").write_bytes(b"".join(ledger[:3]))
    run_job(task, path, tmp_path / "again.jsonl", batch_size=1)
    assert read_rows(tmp_path / "again.jsonl") == answers


@pytest.mark.parametrize("reader", ["engine", "module"])
def test_vectors_are_the_same_wherever_the_job_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    model = encoder("bert").model
    if reader == "module":  # which pads its rows
        monkeypatch.setattr(type(model), "reader", None)
    monkeypatch.setattr(row_workers, "CHUNK", 4)
    task = glassformer.pipeline("embed", model)
    texts = ["the cat " * (number % 5 + 1) for number in range(10)]
    path = write_rows(tmp_path / "in.jsonl", [*texts, 3])
    summary = run_job(task, path, tmp_path / "out.jsonl")
    assert (summary.failed, summary.completion_tokens) == (1, 0)
    assert summary.prompt_tokens == sum(len(model.tokenizer(text)["input_ids"]) for text in texts)
    answers = read_rows(tmp_path / "out.jsonl")
    vectors = np.array([answer["output"] for answer in answers[:-1]], np.float32)
    np.testing.assert_allclose(vectors, task(texts), atol=1e-6)
    assert answers[-1]["error"] == "a task takes text, not int."
    ledger = (tmp_path / "out.jsonl.ledger").read_bytes().splitlines(keepends=True)
    for lines in (2, 4, 7):
        (tmp_path / f"{lines}.jsonl.ledger").write_bytes(b"".join(ledger[:lines]))
        run_job(task, path, tmp_path / f"{lines}.jsonl")
        assert (tmp_path / f"{lines}.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_another_task_or_option_is_another_job(tmp_path: Path) -> None:
    model = encoder("bert").model
    write_rows(tmp_path / "in.jsonl", ["the cat"])
    run_job(glassformer.pipeline("embed", model), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    other = glassformer.pipeline("embed", model, normalize=True)
    assert changed(tmp_path, other) == "normalize was not set and is true"
    assert changed(tmp_path, glassformer.pipeline("feature-extraction", model)).startswith('task was "embed" and is')


def test_numbers_that_are_not_finite_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = glassformer.pipeline("embed", encoder("bert").model)
    monkeypatch.setattr(type(task), "stream", lambda *_: iter([np.array([np.nan])]))
    run_job(task, write_rows(tmp_path / "in.jsonl", ["the cat"]), tmp_path / "out.jsonl")
    (answer,) = read_rows(tmp_path / "out.jsonl")
    assert answer["error"] == "the answer holds numbers that are not finite, which JSON cannot represent."
