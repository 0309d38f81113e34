"""`glass tokens`: what it says of a text, of several as a batch, at every width, and of the vocabulary."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len
from rich.console import Console

from glassformer.ground.errors import InputError
from glassformer.model_files import AutoTokenizer
from glassformer.page.terminal import TerminalPage
from glassformer.see.schema import schema
from glassformer.see.tokens import Batch, TokenizedText, batch, tokenized
from glassformer.text import Tokenizer
from tests.cli.test_cli import failed, glass
from tests.see.test_views import letters


def drawn(shown: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(shown)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


class TestOneText:
    def test_table_of_tokens(self, smollm2: Path) -> None:
        done = glass("tokens", "Hello héllo 👋<|im_start|>")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            "      id  token         text          characters     word  bytes",
            "0  19556  Hello         Hello                0–5        0  48 65 6c 6c 6f",
            "1    294  Ġh            ␣h                   5–7        1  20 68",
            "2   2756  Ã©            é                    7–8        1  c3 a9",
            "3  31394  llo           llo                 8–11        1  6c 6c 6f",
            r"4  15107  ĠðŁ           ␣\xf0\x9f          11–13        2  20 f0 9f",
            r"5    235  ĳ             \x91               12–13        2  91",
            r"6    229  ĭ             \x8b               12–13        2  8b",
            "7      1  <|im_start|>  <|im_start|>       13–25  special  3c 7c 69 6d 5f 73 74 61 72 74 7c 3e",
            "",
            "8 tokens of 25 characters",
            "vocabulary: trained 49,152 · with added tokens 49,152 · scores 49,152",
        ]

    def test_pair_as_json(self, minilm: Path) -> None:
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

    def test_ids_equal_the_tokenizers(self, smollm2: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        text = "  Blanks,\ttabs\nand “quotes” — 山泉 "
        found = tokenized(tokenizer, text)
        assert [piece.id for piece in found.tokens] == tokenizer.encode(text)
        for piece in found.tokens:
            if "\\x" not in piece.text:
                assert text[piece.start : piece.end] == piece.text

    def test_bytes_join_to_the_text(self, smollm2: Path) -> None:
        """Joined, they are what was written; where there is no room for them, they go first."""
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        text = "  “quotes” — 山泉 👋\t"
        found = tokenized(tokenizer, text)
        assert bytes.fromhex("".join(piece.bytes for piece in found.tokens)).decode() == text
        assert "no room for: bytes" in drawn(found, 40)
        assert not any("e2 80" in line for line in drawn(found, 40))

    def test_long_stdin_is_shortened(self, smollm2: Path) -> None:
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
        assert "  added  3c 74" in shown
        assert "  special  3c 7c" in shown
        assert shown.endswith(
            "vocabulary: trained 151,643 · with added tokens 151,669 · scores 151,936\n"
            "267 ids stand for no text: the scores are padded to a size that hardware likes.\n"
        )
        alone = glass("tokens", "hi", "-m", str(qwen3_tokenizer))
        assert alone.stdout.endswith("vocabulary: trained 151,643 · with added tokens 151,669\n")

    def test_unknown_family_still_has_a_tokenizer(self, gpt2_tokenizer: Path, tmp_path: Path) -> None:
        """Its tokens can be shown all the same; a line says why there is no third number."""
        shutil.copytree(gpt2_tokenizer, tmp_path, dirs_exist_ok=True)
        (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
        done = glass("tokens", "hi", "-m", str(tmp_path))
        assert done.stdout.endswith("with added tokens 50,257\n")
        assert "unheard_of" in done.stderr

    def test_tiktoken_ranks(self, cl100k: Path) -> None:
        found = json.loads(glass("tokens", "农夫山泉", "-m", "cl100k_base", "--json").stdout)
        assert [(token["id"], token["text"]) for token in found["tokens"]][4] == (58911, "山")
        assert found["vocabulary"]["embedded"] is None

    def test_tokens_do_not_import_torch(self, smollm2: Path) -> None:
        code = "import sys; sys.argv = ['glass', 'tokens', 'hi']\nfrom glassformer.cli import main\ntry: main()\n"
        code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def test_tokens_help(self) -> None:
        shown = glass("tokens", "--help").stdout
        assert "--pair" in shown
        assert "Example" in shown


TEXTS = ["how are you?", "Hi!", "The quick brown fox jumps over the lazy dog."]


class TestBatches:
    def test_padded_batch_table(self, smollm2: Path) -> None:
        done = glass("tokens", *TEXTS[:2])
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            "text    0      1     2     3",
            "1       how    ␣are  ␣you  ?",
            "  ids   6778   359   346   47",
            "  mask  1      1     1     1",
            "2       Hi     !     ·     ·",
            "  ids   26843  17    2     2",
            "  mask  1      1     0     0",
            "",
            "2 texts, padded on the right with <|im_end|> (id 2): (2, 4), 2 of 8 places are padding (25.0%, shown",
            "as ·)",
            'in Python: tokenizer(texts, padding=True, return_tensors="pt")',
            "vocabulary: trained 49,152 · with added tokens 49,152 · scores 49,152",
        ]

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("special", [True, False])
    def test_batch_equals_transformers(self, minilm: Path, side: str, special: bool) -> None:
        """And what its own line of Python gives."""
        import transformers

        tokenizer = AutoTokenizer.from_pretrained(minilm)
        found = batch(tokenizer, TEXTS, side=side, special=special)
        options = {"padding": True, "padding_side": side, "add_special_tokens": special}
        theirs = transformers.AutoTokenizer.from_pretrained(minilm)(TEXTS, **options)
        own = eval(found.python, {"tokenizer": tokenizer, "texts": TEXTS})
        held = {"input_ids": found.ids, "attention_mask": found.attention_mask, "token_type_ids": found.token_type_ids}
        for name, values in held.items():
            assert [list(row) for row in values or ()] == theirs[name] == own[name].tolist()
        for text, pieces in zip(TEXTS, found.tokens, strict=True):
            assert pieces == tokenized(tokenizer, text, special=special).tokens
        assert (found.shape, found.padding_side, found.pad_token, found.borrowed) == (
            own["input_ids"].shape,
            side,
            "[PAD]",
            False,
        )

    def test_end_of_text_token_pads(self, gpt2_tokenizer: Path) -> None:
        """The tokenizer is left as it is."""
        tokenizer = AutoTokenizer.from_pretrained(gpt2_tokenizer)
        tokenizer.pad_token = None
        found = batch(tokenizer, TEXTS)
        assert tokenizer.pad_token is None
        assert (found.borrowed, found.pad_token, found.token_type_ids) == (True, "<|endoftext|>", None)
        setting, call = found.python.splitlines()
        exec(setting, {"tokenizer": tokenizer})
        own = eval(call, {"tokenizer": tokenizer, "texts": TEXTS})
        assert [list(row) for row in found.ids] == own["input_ids"].tolist()
        assert [list(row) for row in found.attention_mask] == own["attention_mask"].tolist()
        shown = "\n".join(drawn(found, 100))
        assert "This tokenizer has no padding token; its end-of-text token stands in, and the mask hides it." in shown
        assert "in Python: tokenizer.pad_token = tokenizer.eos_token\n           tokenizer(texts" in shown

    def test_no_token_to_pad_with(self) -> None:
        backend, _ = letters()
        tokenizer = Tokenizer(backend)
        with pytest.raises(InputError, match="padding"):
            batch(tokenizer, ["ab", "a"])
        found = batch(tokenizer, ["ab", "cd"])  # where nothing is filled up, nothing is needed
        assert (found.shape, found.pad_token, found.pad_token_id, found.borrowed) == ((2, 2), None, None, False)
        assert "2 texts, all of one length: (2, 2), 0 of 4 places are padding" in drawn(found, 80)

    @pytest.mark.parametrize(
        ("texts", "side", "said"),
        [
            (["a"], "up", "side='up' is not known. Use 'left' or 'right'."),
        ],
    )
    def test_refused_batches(self, texts: list[str], side: str | None, said: str) -> None:
        with pytest.raises(InputError, match=said):
            batch(Tokenizer(letters()[0]), texts, side=side)

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_tokens_fit_the_width(self, width: int, smollm2: Path) -> None:
        """Many places and many texts are cut in the middle, with a word on how many; all of them can be had."""
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        texts = [f"{number} internationalisation " + "of everything 山泉 " * (number % 5) for number in range(40)]
        found = batch(tokenizer, texts, side="left")
        lines = drawn(found, width)
        assert max(map(cell_len, lines)) <= width
        assert f"{found.shape[1] - 10} more" in lines[0]
        assert "… 28 more" in [line.rstrip() for line in lines]
        assert sum(line.startswith("  mask") for line in lines) == 12
        whole = drawn(TerminalPage(found.page(everything=True)), width)
        assert max(map(cell_len, whole)) <= width
        tables = -(-found.shape[1] // 8)
        assert sum(line.startswith("  mask") for line in whole) == 40 * tables
        masks = [line.split()[1:] for line in whole if line.startswith("  mask")]
        joined = ["".join("".join(masks[part * 40 + row]) for part in range(tables)) for row in range(40)]
        assert joined == ["".join(map(str, row)) for row in found.attention_mask]

    def test_batch_as_json(self, minilm: Path) -> None:
        found = json.loads(glass("tokens", *TEXTS, "--left", "-m", "minilm", "--json").stdout)
        jsonschema.validate(found, schema(Batch))
        assert (found["schema"], found["padding_side"]) == ("glassformer.batch/1", "left")
        assert found["texts"] == TEXTS
        assert found["attention_mask"][1] == [0] * 8 + [1] * 4
        assert found["token_type_ids"][0] == [0] * 12
        assert [piece["token"] for piece in found["tokens"][1]] == ["[CLS]", "hi", "!", "[SEP]"]
        jsonschema.validate(json.loads(glass("tokens", "Hi", "--json").stdout), schema(TokenizedText))

    def test_lines_of_stdin_are_a_batch(self, smollm2: Path) -> None:
        for words in (("--lines",), ("-", "--lines")):
            found = json.loads(glass("tokens", *words, "--json", stdin="\n".join([*TEXTS, "", ""])).stdout)
            assert found["texts"] == TEXTS
        one = json.loads(glass("tokens", "--lines", "--json", stdin="Hi!\n").stdout)
        assert (one["schema"], one["texts"]) == ("glassformer.batch/1", ["Hi!"])
        beside = json.loads(glass("tokens", "-", "Hi!", "--json", stdin="how are you?\n").stdout)
        assert beside["texts"] == ["how are you?", "Hi!"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "the text is empty. Give at least one character."),
        (("hi", ""), "text 2 is empty. Give at least one character."),
        (("hi", "ho", "--pair", "x"), "--pair goes with one text, not with several."),
        (("hi", "--left"), "--left says where a batch is padded. Give several texts, or leave it out."),
        (("hi", "--right"), "--right says where a batch is padded."),
        (("hi", "--lines"), "--lines reads the texts from stdin. Leave it out, or the texts."),
        (("--lines",), "a batch has at least one text."),
        (("hi", "-m", "smolm2"), "Did you mean 'smollm2'"),
        (("hi", "-m", "./nowhere"), "there is no file or folder './nowhere'. Check the path."),
    ],
)
def test_tokens_errors(words: tuple[str, ...], said: str) -> None:
    message = failed(glass("tokens", *words))
    assert said in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("verb", ["tokens", "run", "look"])
def test_stdin_that_is_no_text_is_refused(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from glassformer.cli import main; main()", verb, "-"],
        input=b"\xff\xfe",
        capture_output=True,
        env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
    )
    assert done.returncode == 1
    assert done.stderr == b"glass: the input is not utf-8 text (invalid start byte). Convert it first.\n"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tokens_fit_the_width(width: int, smollm2: Path) -> None:
    found = tokenized(
        AutoTokenizer.from_pretrained(smollm2), "internationalisation " + "=" * 64 + "<|im_start|> 农夫山泉\x1b[2J 👋"
    )
    lines = drawn(TerminalPage(found.page()), width)
    assert max(map(cell_len, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    assert sum("special" in line for line in lines) == 1
    assert any("=…" in line for line in lines) == (width < 120)  # long pieces give way
