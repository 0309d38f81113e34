"""`glass task`, run in this process, with small models."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.tasks import TASKS
from tests.patience import patience
from tests.tasks.conftest import Make, make, named_labels

__all__ = ["make", "named_labels"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_thread")

Glass = Callable[..., tuple[int, str, str]]


@pytest.fixture
def glass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Glass:
    def run(*words: Any, stdin: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["glass", "task", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((stdin or "").encode())))
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setenv("COLUMNS", "100")
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_task_list(glass: Glass) -> None:
    code, out, err = glass()
    assert code == 0
    for name, task in TASKS.items():
        assert name in out
        assert (task.model_name or task.suggested) in out
    assert "name that one from the hub, or a similar one" in err
    listed = json.loads(glass("--json")[1])
    assert [one["name"] for one in listed] == list(TASKS)
    assert next(one["options"] for one in listed if one["name"] == "embed")[:2] == ["batch_size", "pooling"]


def test_labels_of_your_own_and_documents_for_a_query(glass: Glass, make: Make) -> None:
    names = {"id2label": {0: "no", 1: "entailment"}, "label2id": {"no": 0, "entailment": 1}}
    folder = make("bert", "SequenceClassification", **names)
    code, out, _ = glass("zero-shot-classification", "Help!", "-m", folder, "-o", "candidate_labels=urgent,later")
    assert code == 0
    assert {line.split()[1] for line in out.splitlines()} == {"urgent", "later"}
    ranker = make("bert", "SequenceClassification", num_labels=1)
    code, out, _ = glass("rerank", "Who wrote it?", "Goethe did.", "It rained.", "-m", ranker)
    assert code == 0
    assert {line.split("%")[1].strip() for line in out.splitlines()} == {"Goethe did.", "It rained."}
    (answer,) = lines(glass("rerank", "Who wrote it?", "Goethe did.", "It rained.", "-m", ranker, "--json")[1])
    assert answer["input"] == {"query": "Who wrote it?", "documents": ["Goethe did.", "It rained."]}
    assert {entry["index"] for entry in answer["output"]} == {0, 1}


def test_similarity_of_texts_and_files(glass: Glass, tmp_path: Path) -> None:
    code, out, _ = glass("similarity", "How old are you?", "I like fish.", "What is your age?")
    assert code == 0
    first, second = out.splitlines()
    assert first.split(maxsplit=1)[1].strip() == "What is your age?"
    assert float(first.split()[0]) > 0.7 > 0.4 > float(second.split()[0])
    (tmp_path / "texts.txt").write_text("What is your age?\nI like fish.\n")
    found = lines(glass("similarity", "How old are you?", "-f", tmp_path / "texts.txt")[1])
    assert [one["input"][1] for one in found] == ["What is your age?", "I like fish."]
    assert found[0]["output"] > found[1]["output"]
    (tmp_path / "pairs.jsonl").write_text('["a", "b"]\n{"text": "a", "text_pair": "a"}\n')
    found = lines(glass("similarity", "-f", tmp_path / "pairs.jsonl")[1])
    assert found[1]["output"] == pytest.approx(1, abs=1e-5)
    code, out, err = glass("similarity", "alone")
    assert (code, out) == (1, "")
    assert "give at least two" in err


def test_embed_reads_lines_of_stdin(glass: Glass) -> None:
    code, out, err = glass("embed", stdin="one\n\nthree\n")
    assert code == 1
    one, two, three = lines(out)
    assert (one["input"], three["input"]) == ("one", "three")
    assert len(one["output"]) == len(three["output"]) == 384
    assert two == {"input": "", "error": "the text is empty. Give it at least one word."}
    assert "1 of the texts could not be answered; their lines say why." in err
    assert "384 numbers: " in glass("embed", "one")[1]
    assert "(1, 3, 384): 3 tokens" in glass("feature-extraction", "one")[1]


def test_many_lines_stay_in_order(glass: Glass, make: Make) -> None:
    folder = make("bert", "SequenceClassification")
    asked = [f"text {'x ' * (number * 7 % 40)}{number}" for number in range(150)]
    found = lines(glass("text-classification", "-m", folder, stdin="\n".join(asked))[1])
    assert [one["input"] for one in found] == asked
    alone = lines(glass("text-classification", "-m", folder, asked[77], "--json")[1])
    assert found[77]["output"]["label"] == alone[0]["output"]["label"]
    assert found[77]["output"]["score"] == pytest.approx(alone[0]["output"]["score"], abs=1e-5)


def test_text_classification(glass: Glass, make: Make) -> None:
    code, out, _ = glass("text-classification", "Hello", "Hi", "-m", make("bert", "SequenceClassification"), "-o", "top_k=2")
    assert code == 0
    assert out.count("LABEL_0") == out.count("LABEL_1") == 2
    assert "Hello" in out


def test_fill_mask(glass: Glass, make: Make) -> None:
    code, out, _ = glass("fill-mask", "A [MASK].", "-m", make("bert", "MaskedLM"), "-o", "top_k=3")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "gap 2" in glass("fill-mask", "A [MASK] [MASK].", "-m", make("bert", "MaskedLM"))[1]
    code, out, err = glass("fill-mask", "No gap", "A [MASK].", "-m", make("bert", "MaskedLM"))
    assert code == 1
    assert "%" in out
    assert "'No gap': the text has no gap" in err


def test_token_classification(glass: Glass, make: Make, named_labels: dict[str, Any]) -> None:
    folder = make("bert", "TokenClassification", **named_labels)
    code, out, _ = glass("ner", "Ada lives in London.", "-m", folder, "-o", "ignore_labels=[]")
    assert code == 0
    assert out.splitlines()[0] == "Ada lives in London."
    grouped = lines(glass("ner", "Ada lives in London.", "-m", folder, "--json")[1])[0]["output"]
    assert all("entity_group" in one for one in grouped)
    assert "no entities" in glass("ner", "Ada", "-m", folder, "-o", 'ignore_labels=["O", "PER", "LOC"]')[1]


def test_question_answering(glass: Glass, make: Make, tmp_path: Path) -> None:
    folder = make("bert", "QuestionAnswering")
    code, out, _ = glass("qa", "Where?", "-m", folder, "--context", "Ada lives in London.", "-o", "top_k=2")
    assert code == 0
    assert len(out.splitlines()) == 2
    (tmp_path / "story.txt").write_text("Ada lives in London.\n")
    asked = ("qa", "Where?", "-m", folder, "--json")
    from_file = lines(glass(*asked, "-f", tmp_path / "story.txt")[1])
    assert from_file[0]["output"] == lines(glass(*asked, "--context", "Ada lives in London.")[1])[0]["output"]
    (tmp_path / "asked.jsonl").write_text('{"question": "Where?", "context": "Ada lives in London."}\n')
    assert lines(glass("qa", "-m", folder, "-f", tmp_path / "asked.jsonl")[1])[0]["output"] == from_file[0]["output"]
    code, out, err = glass("qa", "Where?", "-m", folder)
    assert (code, out) == (2, "")
    assert "where is the answer? Give --context or --file." in err


def test_generation_tasks(glass: Glass, make: Make, tmp_path: Path) -> None:
    folder = make("gpt2", "CausalLM")
    code, out, _ = glass("text-generation", "Once upon", "-m", folder, "-n", "3")
    assert code == 0
    assert out.startswith("Once upon")
    (tmp_path / "long.txt").write_text("Once\nupon")
    whole = lines(glass("text-generation", "-m", folder, "-n", "3", "-f", tmp_path / "long.txt", "--whole")[1])
    assert [one["input"] for one in whole] == ["Once\nupon"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("embd", "x"), 1, "there is no task 'embd'. Did you mean 'embed'?"),
        (
            ("fill-mask", "x"),
            1,
            "fill-mask has no default model without a hub. Name one: 'bert-base-uncased'",
        ),
        (("embed", "x", "-o", "pooling"), 1, "--option 'pooling' is not NAME=VALUE, such as top_k=3."),
        (("embed", "x", "-o", "poolin=cls"), 1, "the task embed has no option 'poolin'. Did you mean 'pooling'?"),
        (("embed", "x", "--context", "y"), 2, "only question-answering reads a context"),
        (("qa", "x", "--context", "y", "-f", "z"), 2, "it goes with questions as TEXT, and without --file"),
        (("qa", "-f", "z.txt"), 2, "what is the question?"),
        (("embed", "-f", "-", "-f", "-"), 2, "stdin can be read only once"),
        (("embed", "x", "-o", "model=y"), 2, "'model' is no option of a task; use --model."),
        (("embed", "x", "-o", "progress=3"), 2, "'progress' is no option of a task."),
        (("embed", "x", "-o", "normalize=no"), 1, "normalize is 'no'; it must be true, false or null."),
        (("embed", "-f", "/not/there"), 1, "/not/there: cannot be read: No such file or directory."),
        (("embed", "-f", "/not/there", "--whole"), 1, "/not/there: cannot be read: No such file or directory."),
        (
            ("fill-mask", "x", "-m", "minilm"),
            1,
            "fill-mask needs a model with a masked language modeling head, and minilm (bert) has no head",
        ),
        (("embed", "x", "-n", "3"), 1, "the task embed has no option 'max_new_tokens'"),
    ],
)
def test_wrong_task_calls(glass: Glass, words: tuple[str, ...], code: int, said: str) -> None:
    found, out, err = glass(*words)
    assert (found, out) == (code, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_a_broken_line_does_not_end_the_job(glass: Glass, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_bytes(
        b'\xef\xbb\xbf"fine"\n{"text": \n"caf\xe9"\r\n{"text": "b", "id": 7}\n"\\ud800"\n'
    )
    code, out, err = glass("embed", "-f", tmp_path / "broken.jsonl")
    assert code == 1
    first, cut, latin, last, half = lines(out)
    assert first["input"] == "fine"
    assert cut["input"] == '{"text": '
    assert "broken.jsonl, line 2: not valid JSON" in cut["error"]
    assert latin["input"] == '"caf\ufffd"'
    assert "broken.jsonl, line 3: not UTF-8 text (invalid continuation byte). Convert it first." in latin["error"]
    assert last["input"] == {"text": "b", "id": 7}
    assert len(first["output"]) == len(last["output"]) == 384
    assert half["input"] == "\ud800"
    assert "lone surrogate" in half["error"]
    assert "3 of the texts could not be answered" in err
    code, _, err = glass("embed", "-f", tmp_path / "broken.jsonl", "--whole")
    assert code == 1
    assert "not UTF-8 text (invalid continuation byte at byte" in err


def test_stdin_as_jsonl(glass: Glass) -> None:
    found = lines(glass("similarity", "--jsonl", stdin='["a", "a"]\n')[1])
    assert found[0]["output"] == pytest.approx(1, abs=1e-5)
    (alone,) = lines(glass("embed", "-o", "batch_size=1", "-o", "normalize=False", stdin="\ufeffa\r\n")[1])
    assert alone["input"] == "a"
    assert sum(number**2 for number in alone["output"]) != pytest.approx(1, abs=0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_counter_bar_leaves_stdout_alone(minilm: Path) -> None:
    """With stderr on a terminal and stdout elsewhere, there is a count, and the answers go where they were sent."""
    import os
    import pty
    import subprocess

    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from glassformer.cli import main; main()", "task", "embed", "-m", str(minilm)]
    done = subprocess.run(command, input=b"one\ntwo\n", stdout=subprocess.PIPE, stderr=theirs, timeout=patience(240))
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert [one["input"] for one in lines(done.stdout.decode())] == ["one", "two"]
    assert "answered" in shown
    assert "input" not in shown
