"""`glass tokens`: what it says of a text, at every width, and what it says of the vocabulary."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from glassformer.observe.tokens import cut
from glassformer.opening import AutoTokenizer
from glassformer.show.terminal import Drawn
from tests.cli.test_cli import failed, glass


def drawn(shown: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(shown)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


class TestCommand:
    def test_a_text(self, smollm2: Path) -> None:
        done = glass("tokens", "Hello héllo 👋<|im_start|>")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            "      id  token         text          characters     word",
            "0  19556  Hello         Hello                0–5        0",
            "1    294  Ġh            ␣h                   5–7        1",
            "2   2756  Ã©            é                    7–8        1",
            "3  31394  llo           llo                 8–11        1",
            r"4  15107  ĠðŁ           \x20\xf0\x9f       11–13        2",
            r"5    235  ĳ             \x91               12–13        2",
            r"6    229  ĭ             \x8b               12–13        2",
            "7      1  <|im_start|>  <|im_start|>       13–25  special",
            "",
            "8 tokens of 25 characters",
            "vocabulary: trained 49,152 · with added tokens 49,152 · scores 49,152",
        ]

    def test_two_texts_as_json(self, minilm: Path) -> None:
        done = glass("tokens", "-m", "minilm", "A question?", "--pair", "Unbelievable.", "--json")
        found = json.loads(done.stdout)
        assert (found["model"], found["text"], found["pair"]) == ("minilm", "A question?", "Unbelievable.")
        assert found["vocabulary"] == {"trained": 30522, "listed": 30522, "embedded": 30522, "scored": None, "beyond": 0}
        tokens = found["tokens"]
        assert [token["token"] for token in tokens][:5] == ["[CLS]", "a", "question", "?", "[SEP]"]
        assert (tokens[0]["start"], tokens[0]["word"], tokens[0]["special"]) == (None, None, True)
        texts = {False: found["text"], True: found["pair"]}
        words: dict[int, str] = {}
        for token in tokens:
            if token["second"] and token["word"] is not None:
                words[token["word"]] = words.get(token["word"], "") + texts[True][token["start"] : token["end"]]
        assert words == {0: "Unbelievable", 1: "."}
        assert [token["position"] for token in tokens] == list(range(len(tokens)))
        bare = json.loads(glass("tokens", "-m", "minilm", "A question?", "--no-special", "--json").stdout)
        assert [token["token"] for token in bare["tokens"]] == ["a", "question", "?"]

    def test_the_ids_are_the_tokenizers(self, smollm2: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        text = "  Blanks,\ttabs\nand “quotes” — 山泉 "
        found = cut(tokenizer, text)
        assert [piece.id for piece in found.tokens] == tokenizer.encode(text)
        for piece in found.tokens:
            if "\\x" not in piece.text:
                assert text[piece.start : piece.end] == piece.text

    def test_from_stdin_and_shortened(self, smollm2: Path) -> None:
        text = "The quick brown fox jumps. " * 40
        done = glass("tokens", "-", stdin=text + "\n")
        lines = done.stdout.splitlines()
        whole = glass("tokens", "--all", stdin=text).stdout.splitlines()
        count = len(AutoTokenizer.from_pretrained(smollm2).encode(text))
        assert len(whole) == count + 4
        assert len(lines) == 1 + 48 + 1 + 48 + 3
        assert lines[49].split() == ["…", str(count - 96), "more", "(--all)"]
        assert [line.split() for line in lines[1:49]] == [line.split() for line in whole[1:49]]
        assert lines[-2] == f"{count} tokens of {len(text):,} characters"

    def test_blanks_are_tokens(self, smollm2: Path) -> None:
        assert "␣" in glass("tokens", " ").stdout
        assert "1 token of 1 character\n" in glass("tokens", " ").stdout

    def test_padding_is_explained(self, tiny_qwen3: Path, qwen3_tokenizer: Path) -> None:
        shown = glass("tokens", "<think>hi<|im_end|>", "-m", str(tiny_qwen3)).stdout
        assert "  added\n" in shown
        assert "  special\n" in shown
        assert shown.endswith(
            "vocabulary: trained 151,643 · with added tokens 151,669 · scores 151,936\n"
            "267 ids stand for no text: the scores are padded to a size that hardware likes.\n"
        )
        alone = glass("tokens", "hi", "-m", str(qwen3_tokenizer))
        assert alone.stdout.endswith("vocabulary: trained 151,643 · with added tokens 151,669\n")

    def test_a_model_that_is_not_known(self, gpt2_tokenizer: Path, tmp_path: Path) -> None:
        """Its tokens can be shown all the same; a line says why there is no third number."""
        shutil.copytree(gpt2_tokenizer, tmp_path, dirs_exist_ok=True)
        (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
        done = glass("tokens", "hi", "-m", str(tmp_path))
        assert done.stdout.endswith("with added tokens 50,257\n")
        assert "unheard_of" in done.stderr

    def test_ranks(self, cl100k: Path) -> None:
        found = json.loads(glass("tokens", "农夫山泉", "-m", "cl100k_base", "--json").stdout)
        assert [(token["id"], token["text"]) for token in found["tokens"]][4] == (58911, "山")
        assert found["vocabulary"]["embedded"] is None

    def test_no_torch(self, smollm2: Path) -> None:
        code = "import sys; sys.argv = ['glass', 'tokens', 'hi']\nfrom glassformer.cli import main\ntry: main()\n"
        code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def test_help(self) -> None:
        shown = glass("tokens", "--help").stdout
        assert "--pair" in shown
        assert "Example" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "the text is empty. Give at least one character."),
        (("hi", "-m", "smolm2"), "Did you mean 'smollm2'"),
        (("hi", "-m", "./nowhere"), "there is no file or folder './nowhere'. Check the path."),
    ],
)
def test_errors(words: tuple[str, ...], said: str) -> None:
    message = failed(glass("tokens", *words))
    assert said in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("verb", ["tokens", "run", "look"])
def test_bytes_that_are_no_text(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from glassformer.cli import main; main()", verb, "-"],
        input=b"\xff\xfe",
        capture_output=True,
        env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
    )
    assert done.returncode == 1
    assert done.stderr == b"glass: the input is not utf-8 text (invalid start byte). Convert it first.\n"


def test_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    from glassformer.cli.common import read_text

    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    with pytest.raises(typer.BadParameter, match="say something, or pipe a text in"):
        read_text(None, "TEXT")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits(width: int, smollm2: Path) -> None:
    found = cut(
        AutoTokenizer.from_pretrained(smollm2), "internationalisation " + "=" * 64 + "<|im_start|> 农夫山泉\x1b[2J 👋"
    )
    lines = drawn(Drawn(found.page()), width)
    assert max(map(cell_len, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    assert sum("special" in line for line in lines) == 1
    assert any("=…" in line for line in lines) == (width < 120)  # long pieces give way
