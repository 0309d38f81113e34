"""`glass chat`: a conversation at a terminal and through a pipe, its commands, its files, and what is read only once."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassformer.cli.chat import handle, line_input
from glassformer.cli.chat.commands import COMMANDS, complete
from glassformer.cli.chat.conversation import Conversation, Message
from glassformer.cli.chat.session import Session, cancel_on_interrupt
from glassformer.cli.chat.word_wrap import WordWrapper
from glassformer.engine.protocol import Feed
from glassformer.ground.errors import GlassError, InputError, SettingError, TemplateError
from glassformer.ground.files import home
from glassformer.runtime.model import Model, load
from glassformer.see.schema import schema
from tests.cli.test_cli import failed, glass
from tests.patience import patience
from tests.see.test_views import make

TEMPLATE = (
    "{% for one in messages %}<{{ one.role }}>{{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if mood is defined %}{{ mood }}{% endif %}"
)
ROOT = Path(__file__).parent.parent.parent
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


def talker(folder: Path, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """A tiny model of letters that can be talked with."""
    make(folder, "gpt2", "causal", **changes)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **({"chat_template": template} if template else {})}))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Model:
    return load(tiny, executor="plain")


@pytest.fixture
def talk(loaded: Model, one_thread: None) -> Session:
    return session(loaded)


def session(model: Model, **more: Any) -> Session:
    return Session(model.with_prefix_cache(), Conversation(model.name, {"max_new_tokens": 8}), terminal=False, **more)


def contents(talk: Session) -> list[str]:
    return [one.content for one in talk.conversation.messages]


# What was said --------------------------------------------------------------------------------------------------


class TestConversation:
    def test_the_whole_conversation_goes_through_the_template(
        self, talk: Session, capsys: pytest.CaptureFixture[str]
    ) -> None:
        talk.send("one")
        first = capsys.readouterr()
        talk.send("two")
        _, one, _, two = talk.conversation.messages
        assert first.out == one.content + "\n"
        assert two.run is not None
        assert two.run.prompt == f"<user>one\n<assistant>{one.content}\n<user>two\n<assistant>"
        assert re.fullmatch(
            r"8 tokens, cut at the limit \(/continue goes on\) · [\d.]+ tokens/s · context \d+% full\n", first.err
        )

    def test_answers_equal_model_chat(self, talk: Session, loaded: Model) -> None:
        said: list[dict[str, str]] = []
        for text in ("Hi", "And you?", "Why?"):
            talk.send(text)
            said.append({"role": "user", "content": text})
            said.append({"role": "assistant", "content": loaded.chat(said, max_new_tokens=8)})
        assert [{"role": one.role, "content": one.content} for one in talk.conversation.messages] == said

    def test_a_drawn_seed_is_printed(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/set temperature=0.9")
        talk.send("Hi")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert f"· seed {answer.seed} ·" in capsys.readouterr().err

    def test_without_a_template_the_text_is_continued(self, tmp_path: Path, one_thread: None) -> None:
        talk = session(load(talker(tmp_path, None), executor="plain"))
        assert talk.no_template_note == "This model has no chat template: it continues the text, yours and its own."
        talk.send("Once")
        talk.send("And then")
        _, first, _, second = talk.conversation.messages
        assert second.run is not None
        assert second.run.prompt == f"Once{first.content}\nAnd then"

    def test_an_encoder_decoder_reads_each_message_by_itself(self, tmp_path: Path, one_thread: None) -> None:
        talk = session(load(make(tmp_path, "t5", "seq2seq"), executor="plain"))
        assert talk.no_template_note == "This model has no chat template: it reads each message by itself."
        talk.send("the cat")
        talk.send("the dog")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        assert answer.run.prompt == "the dog"

    def test_an_encoder_is_refused(self, minilm: Path) -> None:
        assert "it reads text and writes none" in failed(glass("chat", "-m", "minilm", stdin="Hi\n"))

    def test_a_full_context_is_reported_then_refused(
        self, tmp_path: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        talk = session(load(talker(tmp_path, n_positions=60), executor="plain"))
        handle(talk, "/set max_new_tokens=100")
        handle(talk, "/set min_new_tokens=100")
        talk.send("Hi")
        assert "glass: the model's context is full. /undo takes the last exchange back" in capsys.readouterr().err
        before = talk.conversation
        with pytest.raises(InputError, match="context holds 60"):
            talk.send("And?")
        assert talk.conversation is before
        handle(talk, "/clear")
        handle(talk, "/set min_new_tokens=")
        talk.send("Hi")
        assert len(talk.conversation.messages) == 2

    def test_a_chat_that_shifts_goes_on_when_the_context_is_full(
        self, tmp_path: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        talk = session(load(talker(tmp_path, n_positions=120), executor="plain"))
        handle(talk, "/system Be brief.")
        handle(talk, "/shift on")
        assert "the oldest messages are left out when the context is full." in capsys.readouterr().err
        for number in range(12):
            talk.send(f"message {number}")
        assert "glass: the context is full; the model reads no more of the first" in capsys.readouterr().err
        assert len(talk.conversation.messages) == 25  # all that was said is kept
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        assert "Be brief." in answer.run.prompt
        assert "message 0\n" not in answer.run.prompt
        assert "message 11" in answer.run.prompt
        assert len(answer.run.prompt_ids) + len(answer.run.steps) <= 120
        handle(talk, "/shift off")
        with pytest.raises(InputError, match="/shift on"):
            talk.send("One more.")
        with pytest.raises(InputError, match="'maybe'"):
            handle(talk, "/shift maybe")

    def test_what_was_left_out_is_read_again_in_another_conversation(self, tmp_path: Path, one_thread: None) -> None:
        talk = session(load(talker(tmp_path, n_positions=120), executor="plain"), shifts=True)
        for number in range(8):
            talk.send(f"message {number}")
        handle(talk, "/clear")
        talk.send("anew")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        assert "anew" in answer.run.prompt

    def test_an_error_leaves_the_conversation_as_it_was(self, talk: Session) -> None:
        """What is settled at the first token, and cannot be foreseen, leaves the conversation as it was."""
        talk.send("Hi")
        before = talk.conversation
        talk.change(settings={"max_new_tokens": 8, "suppress_tokens": list(range(256))})
        changed = talk.conversation
        with pytest.raises(SettingError, match="step 0"):
            talk.send("Hi again")
        assert talk.conversation is changed
        assert talk.conversation.messages == before.messages


class TestConversationFiles:
    def saved(self, tmp_path: Path) -> Path:
        said = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello <b>\x1b", "length", 7, 2))
        return Conversation("smollm2", {"seed": 7}, {"mood": "gay"}, said).save(tmp_path / "talk.json")

    def test_json_round_trip(self, tmp_path: Path) -> None:
        import jsonschema

        file = self.saved(tmp_path)
        raw = json.loads(file.read_text("utf-8"))
        assert raw["schema"] == "glassformer.chat/1"
        assert raw["messages"][2] == {
            "role": "assistant", "content": "Hello <b>\x1b", "finish": "length", "seed": 7, "tokens": 2,
        }  # fmt: skip
        jsonschema.validate(raw, schema(Conversation))
        found = Conversation.load(file)
        assert found.to_dict() == raw
        assert found.system == "Be brief."
        assert [one.role for one in found.dialogue] == ["user", "assistant"]

    def test_md_txt_and_html(self, tmp_path: Path) -> None:
        found = Conversation.load(self.saved(tmp_path))
        assert found.save(tmp_path / "talk.md").read_text("utf-8") == (
            "# A conversation with smollm2\n\n## System\n\nBe brief.\n\n## You\n\nHi\n\n## Answer (cut)\n\nHello <b>\x1b\n"
        )
        assert (
            found.save(tmp_path / "talk.txt").read_text("utf-8").startswith("System:\nBe brief.\n\nYou:\nHi\n\nAnswer (cut)")
        )
        assert "Hello &lt;b&gt;\\x1b" in found.save(tmp_path / "talk.html").read_text("utf-8")

    def test_a_handwritten_file_loads(self, tmp_path: Path) -> None:
        """Little is needed."""
        file = tmp_path / "talk.json"
        file.write_text('{"schema": "glassformer.chat/1", "model": "m", "messages": [{"role": "user", "content": "Hi"}]}')
        assert Conversation.load(file) == Conversation("m", {}, {}, (Message("user", "Hi"),))

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{", "is not JSON"),
            ("\xff", "is not JSON"),
            ("[]", "schema"),
            ('{"schema": "glassformer.why/1"}', "schema"),
            ('{"model": 3}', "model"),
            ('{"messages": {}}', "messages"),
            ('{"settings": []}', "settings"),
            ('{"messages": [3]}', "message 1"),
            ('{"messages": [{"role": "user"}]}', "message 1: its content"),
            ('{"messages": [{"role": "user", "content": "", "seed": "x"}]}', "its seed"),
            ('{"messages": [{"role": "judge", "content": ""}]}', "'judge'"),
            (
                '{"messages": [{"role": "user", "content": ""}, {"role": "system", "content": ""}]}',
                "message 2 is by 'system'",
            ),
        ],
    )
    def test_malformed_files_are_refused(self, text: str, said: str, tmp_path: Path) -> None:
        file = tmp_path / "talk.json"
        whole = {"schema": "glassformer.chat/1", "model": "m", "messages": []}
        raw = text if '{"' not in text or '"schema"' in text else json.dumps({**whole, **json.loads(text)})
        file.write_bytes(raw.encode("latin-1"))
        with pytest.raises(InputError, match=re.escape(said)):
            Conversation.load(file)


# Commands -----------------------------------------------------------------------------------------------------------


class TestCommands:
    def test_why(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        talk.send("Hi")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        capsys.readouterr()
        handle(talk, "/why 2")
        assert " ".join(answer.run.explain(2).sentences) in " ".join(capsys.readouterr().out.split())
        handle(talk, "/why")
        assert " ".join(answer.run.explain().sentences) in " ".join(capsys.readouterr().out.split())
        with pytest.raises(InputError, match="token 8"):
            handle(talk, "/why 8")

    def test_rules(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        talk.send("Hi")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        capsys.readouterr()
        handle(talk, "/rules 2")
        assert capsys.readouterr().out == str(answer.run.why(2))
        handle(talk, "/rules")
        assert capsys.readouterr().out.startswith("token 0: ")
        handle(talk, "/rules -1")
        assert capsys.readouterr().out.startswith("token 7: ")
        with pytest.raises(InputError, match="token 8"):
            handle(talk, "/rules 8")

    def test_a_token_is_found_by_word(self, smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
        talk = session(load("smollm2"))
        talk.send("What is the capital of France?")
        capsys.readouterr()
        for word, number in (("France", 3), ("france", 3), ("capital of", 1), ("Fran", 3), ("is Par", 4)):
            handle(talk, f"/rules {word}")
            assert capsys.readouterr().out.startswith(f"token {number}: ")
        handle(talk, "/rules i")
        found = capsys.readouterr()
        assert found.err.startswith("the first of ")
        with pytest.raises(InputError, match="'London'"):
            handle(talk, "/rules London")
        handle(talk, "/tokens")
        shown = capsys.readouterr().out
        assert re.search(r"\b3 ␣France +\d+\.\d%", shown)
        assert max(map(len, shown.splitlines())) <= 80

    def test_seed(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/seed")
        handle(talk, "/seed 7")
        handle(talk, "/set temperature=2")
        handle(talk, "/seed")
        talk.send("Hi")
        assert talk.conversation.last_answer is not None
        assert talk.conversation.last_answer.seed == 7
        with pytest.raises(SettingError, match="its seed"):
            handle(talk, "/retry")
        handle(talk, "/seed -")
        handle(talk, "/retry")
        handle(talk, "/seed")
        shown = capsys.readouterr()
        seed = talk.conversation.last_answer.seed
        assert "seed 7 from now on, once answers are sampled: /set temperature=0.8." in shown.err
        assert "drawn for each answer\nfixed to 7\n" in shown.out
        assert shown.out.endswith(f"drawn for each answer; the last answer's was {seed}\n")
        with pytest.raises(SettingError, match="'seven'"):
            handle(talk, "/seed seven")

    def test_system(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/system")
        talk.send("Hi")
        handle(talk, "/system Be \x1bbrief.")
        handle(talk, "/system")
        talk.send("And?")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        assert answer.run.prompt.startswith("<system>Be \x1bbrief.\n<user>Hi\n")
        handle(talk, "/clear")
        assert contents(talk) == ["Be \x1bbrief."]
        handle(talk, "/system -")
        assert contents(talk) == []
        shown = capsys.readouterr()
        assert shown.out.startswith("there is no system message.\n")
        assert "\nBe \\x1bbrief.\n" in shown.out
        assert "the system message is set." in shown.err
        assert "the system message is removed." in shown.err

    def test_a_template_that_refuses_a_system_message(self, tmp_path: Path, one_thread: None) -> None:
        refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
        talk = session(load(talker(tmp_path, refusing), executor="plain"))
        with pytest.raises(TemplateError, match="no system"):
            handle(talk, "/system Be brief.")
        assert contents(talk) == []

    def test_set(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/set top_p=0.5")
        assert capsys.readouterr().err == "top_p=0.5 from now on.\n"
        handle(talk, "/set")
        shown = capsys.readouterr().out
        assert re.search(r"^do_sample +True +you$", shown, re.M)
        assert re.search(r"^top_k +50 +default$", shown, re.M)
        assert "seed" not in shown
        handle(talk, "/set temperature=0")  # how many people say greedy
        assert talk.conversation.settings == {"max_new_tokens": 8, "do_sample": False}
        handle(talk, "/set min_p=0.1")
        assert talk.conversation.settings == {"max_new_tokens": 8, "min_p": 0.1}
        handle(talk, "/set min_p=")
        handle(talk, "/set max_new_tokens =")
        assert talk.conversation.settings == {}
        assert capsys.readouterr().err.endswith("max_new_tokens=256 (default) from now on.\n")
        handle(talk, "/set temperature")
        assert capsys.readouterr().out == "temperature=1.0 (default): below 1 sharpens, above 1 flattens\n"

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("/set temprature=1", "'temprature'"),
            ("/set temp 0.7", "'temp'"),
            ("/set temp", "'temp'"),
            ("/set temprature=", "'temprature'"),
            ("/set temprature", "'temprature'"),
            ("/set =3", "'=3'"),
            ("/set temperature=-1", "temperature is -1"),
            ("/set logprobs=2", "logprobs"),
            ("/set num_return_sequences=2", "num_return_sequences=2"),
            ("/set output_scores=true", "output_scores"),
            ("/set top_h=0.5", "'top_h'"),
            ("/set use_cache=true", "'use_cache'"),
            (
                "/wy",
                "'/wy'",
            ),
            ("/", "there is no command '/'"),
            ("/clear all", "/clear"),
            ("/save", "/save"),
            ("/load", "/load"),
            ("/save talk.json", "nothing to save"),
            ("/continue", "no answer"),
            ("/retry", "no message"),
            ("/undo", "no message"),
        ],
    )
    def test_refused(self, line: str, said: str, talk: Session) -> None:
        before = talk.conversation
        with pytest.raises(GlassError, match=re.escape(said)):
            handle(talk, line)
        assert talk.conversation is before

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("/save talk.doc", "talk.doc"),
            (
                "/save /nowhere/talk.json",
                "/nowhere/talk.json",
            ),
        ],
    )
    def test_files_that_cannot_be_written_are_refused(self, line: str, said: str, talk: Session) -> None:
        talk.send("Hi")
        with pytest.raises(GlassError, match=re.escape(said)):
            handle(talk, line)

    def test_continue_goes_on_with_the_same_answer(self, talk: Session, loaded: Model) -> None:
        whole = loaded.watch([{"role": "user", "content": "Hi"}], max_new_tokens=16)
        talk.send("Hi")
        handle(talk, "/continue")
        answer = talk.conversation.last_answer
        assert answer is not None
        assert answer.run is not None
        assert (answer.content, answer.tokens) == (whole.text, 16)
        assert [step.id for step in answer.run.steps] == [step.id for step in whole.steps]
        assert answer.run.prompt == whole.prompt
        assert contents(talk) == ["Hi", whole.text]
        handle(talk, "/rules 12")  # a token of the second part

    @pytest.mark.parametrize(
        ("message", "said"),
        [
            (Message("assistant", "Hello.", "eos"), "the last answer is finished. /retry generates another."),
            (Message("assistant", "Hello.", "length"), "was loaded from a file, without its tokens. /retry generates"),
        ],
    )
    def test_what_cannot_go_on_is_refused(self, message: Message, said: str, talk: Session) -> None:
        talk.change(messages=(Message("user", "Hi"), message))
        with pytest.raises(InputError, match=said):
            handle(talk, "/continue")

    def test_a_setting_can_be_set_without_an_equals_sign(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/set temperature 0.7")
        handle(talk, "/set temperature")
        shown = capsys.readouterr()
        assert shown.err == "temperature=0.7 from now on.\n"
        assert shown.out.startswith("temperature=0.7: ")

    def test_retry_and_undo(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        talk.send("Hi")
        with pytest.raises(SettingError, match="greedy"):
            handle(talk, "/retry")
        first = contents(talk)
        handle(talk, "/set temperature=5")
        handle(talk, "/retry")
        assert contents(talk)[0] == "Hi"
        assert contents(talk) != first
        talk.send("This is longer than what can be told of it in half a line, certainly.")
        handle(talk, "/undo")
        assert len(contents(talk)) == 2
        assert "taken back: This is longer than what can be told of it in hal…\n" in capsys.readouterr().err
        handle(talk, "/undo")
        assert contents(talk) == []

    def test_save_and_load(self, talk: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/set temperature=0.7")
        handle(talk, "/system Be brief.")
        talk.send("Hi")
        file = tmp_path / "talk.json"
        handle(talk, f"/save {file}")
        before = talk.conversation
        handle(talk, "/clear")
        handle(talk, f"/load {file}")
        assert talk.conversation == before
        assert "2 messages. The last one: " in capsys.readouterr().err
        with pytest.raises(InputError, match="/retry"):
            handle(talk, "/why")
        raw = json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps({**raw, "model": "another", "messages": raw["messages"][:2]}))
        handle(talk, f"/load {file}")
        note = capsys.readouterr().err
        assert re.search(r"It was held with another, and continues with .*Hi /retry answers it\.\n$", note)
        handle(talk, "/retry")
        assert talk.conversation.last_answer is not None
        file.write_text(json.dumps({**raw, "settings": {"temprature": 1}}))
        before = talk.conversation
        with pytest.raises(GlassError, match="'temperature'"):
            handle(talk, f"/load {file}")
        assert talk.conversation is before

    def test_help_and_quit(self, talk: Session, capsys: pytest.CaptureFixture[str]) -> None:
        handle(talk, "/help")
        shown = capsys.readouterr().out
        assert [line.split()[0] for line in shown.splitlines() if line.startswith("/")] == [f"/{name}" for name in COMMANDS]
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        for word in ("/quit", "/exit"):
            talk.over = False
            handle(talk, word)
            assert talk.over

    def test_a_space_before_the_slash_makes_a_message(self, talk: Session) -> None:
        handle(talk, " /etc is a folder")
        assert contents(talk)[0] == "/etc is a folder"

    def test_completion_of_commands_and_settings(self) -> None:
        assert complete("/s") == ["/seed ", "/system ", "/steer ", "/set ", "/shift ", "/save "]
        assert complete("/cle") == ["/clear"]
        assert complete("/set temp") == ["temperature="]
        assert complete("Hi") == complete("") == []

    def test_docs_list_every_command(self) -> None:
        page = (ROOT / "docs" / "chat.md").read_text("utf-8")
        told = re.findall(r"^\| `(/\w+)", page, re.M)
        assert told == [f"/{name}" for name in COMMANDS]


# How it is read and written -----------------------------------------------------------------------------------------


class ScriptedLines:
    """Lines of a list."""

    def __init__(self, *given: str) -> None:
        self.left = list(given)
        self.asked: list[bool] = []

    def line(self, more: bool) -> str | None:
        self.asked.append(more)
        return self.left.pop(0) if self.left else None


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (("Hi", "you"), "Hi"),
        (("one\\", "two\\", "three", "four"), "one\ntwo\nthree"),
        (("one\\",), "one"),
        (('"""', "a", "", '  b"', '"""'), 'a\n\n  b"'),
        (('"""one', 'two"""'), "one\ntwo"),
        (('"""one"""', "two"), "one"),
        (('"""', "/* not a command */", '"""'), " /* not a command */"),
        (("pasted\nat once",), "pasted\nat once"),
        ((), None),
    ],
)
def test_read_message_joins_lines(given: tuple[str, ...], found: str | None) -> None:
    told = ScriptedLines(*given)
    assert line_input.read_message(told) == found
    assert told.asked == [False, *[True] * (len(told.asked) - 1)]


def laid(written: str, width: int) -> list[str]:
    """What a terminal makes of it, as far as it is used here."""
    rows, column = [""], 0
    for part in re.findall(r"\x1b\[\d+D|\x1b\[K|\n|.", written, re.S):
        if part == "\n":
            rows, column = [*rows, ""], 0
        elif part == "\x1b[K":
            rows[-1] = rows[-1][:column]
        elif part.endswith("D") and len(part) > 1:
            column -= int(part[2:-1])
        else:
            rows[-1] = rows[-1][:column] + part
            column += 1
        assert 0 <= column < width
    return rows


@pytest.mark.parametrize("size", [1, 3, 7, 400])
def test_word_wrap_breaks_between_words(size: int) -> None:
    text = "In a small village, nestled between two hills, lived a supercalifragilistic-and-more glassmaker  named Elara."
    wrapping = WordWrapper(24)
    shown = "".join(wrapping.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert [line.rstrip() for line in laid(shown, 24)] == [
        "In a small village,", "nestled between two", "hills, lived a", "supercalifragilistic-an", "d-more glassmaker",
        "named Elara.",
    ]  # fmt: skip
    assert WordWrapper(24).feed("ab\ncd\n\n") == "ab\ncd\n\n"


def test_word_wrap_of_wide_characters_and_tabs() -> None:
    shown = WordWrapper(10).feed("农夫山泉有点甜")
    assert shown == "农夫山泉\n有点甜"
    assert WordWrapper(20).feed("\tab\tcd ef") == "\tab\tcd \nef"


def test_no_word_wrap_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.cli.chat.word_wrap.Console", lambda: SimpleNamespace(is_dumb_terminal=True))
    assert WordWrapper.for_terminal() is str


# Read once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["plain", "cpu"])
@pytest.mark.usefixtures("one_thread")
def test_prefix_cache_with_beams_guidance_and_drafts(tiny: Path, which: str) -> None:
    """Whatever drives the rows, answers stay what they are without it."""
    model = load(tiny, executor=which)  # type: ignore[arg-type]
    keeping = model.with_prefix_cache()
    said = "<user>Hi, how are you?\n<assistant>"
    for more in (
        {"num_beams": 3},
        {"guidance_scale": 1.5},
        {"prompt_lookup_num_tokens": 4},
        {"seed": 3, "do_sample": True},
    ):
        for text in (said, said + "So\n<user>And", said):
            wanted = {"max_new_tokens": 12, "raw": True, **more}
            assert keeping.chat(text, **wanted) == model.chat(text, **wanted)
    assert keeping.cached_prefix(keeping.encode(said, raw=True)[1]) == len(said) - 1
    assert model.cached_prefix(keeping.encode(said, raw=True)[1]) == 0


# Through a pipe -------------------------------------------------------------------------------------------------------


class TestPiped:
    def test_each_line_is_a_message(self, tiny: Path) -> None:
        model = load(tiny)
        first = model.chat([{"role": "user", "content": "Hi"}], max_new_tokens=6)
        said = [("user", "Hi"), ("assistant", first), ("user", "And\nyou?")]
        second = model.chat([{"role": role, "content": text} for role, text in said], max_new_tokens=6)
        done = glass("chat", "-m", str(tiny), "-n", "6", stdin='\ufeffHi\n\n   \n"""And\nyou?"""')
        assert done.returncode == 0
        assert done.stdout == f"{first}\n{second}\n"
        assert len(done.stderr.splitlines()) == 2
        assert ">" not in done.stderr

    def test_options_of_the_command(self, tiny: Path, tmp_path: Path) -> None:
        words = (
            "--system",
            "Be brief.",
            "--temperature",
            "0.8",
            "--seed",
            "7",
            "-o",
            "min_p=0.01",
            "--template",
            'mood="?"',
        )
        file = tmp_path / "talk.json"
        done = glass("chat", "-m", str(tiny), "-n", "6", *words, stdin=f"Hi\n/save {file}\n")
        assert "seed 7" in done.stderr
        raw = json.loads(file.read_text("utf-8"))
        assert raw["settings"] == {"max_new_tokens": 6, "temperature": 0.8, "seed": 7, "do_sample": True, "min_p": 0.01}
        assert raw["template"] == {"mood": "?"}
        assert [(one["role"], one["seed"]) for one in raw["messages"]] == [
            ("system", None),
            ("user", None),
            ("assistant", 7),
        ]
        assert raw["model"] == str(tiny)
        again = glass("chat", "--load", str(file), "--seed", "8", "--system", "Go on.", stdin=f"And?\n/save {file}\n")
        assert again.returncode == 0
        raw = json.loads(file.read_text("utf-8"))
        assert (raw["settings"]["seed"], len(raw["messages"]), raw["messages"][0]["content"]) == (8, 5, "Go on.")

    def test_json_lines(self, tiny: Path) -> None:
        stdin = "Hi\n/why\n/rules\n/tokens\n/set\n/help\n/system\n/nothing\nAnd?\n/quit\nnever"
        done = glass("chat", "-m", str(tiny), "-n", "3", "--json", "-o", "logprobs=2", stdin=stdin)
        assert done.returncode == 1
        first, why, rules, tokens, error, second = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(first["ids"]) == len(first["logprobs"]) == 3
        assert (why["schema"], rules["schema"]) == ("glassformer.explanation/1", "glassformer.why/1")
        assert [one["id"] for one in tokens] == first["ids"]
        assert tokens[0]["probability"] == pytest.approx(np.exp(first["logprobs"][0]["logprob"]))
        assert error["error"].startswith("there is no command '/nothing'")
        assert "<user>Hi" in second["prompt"]
        assert "there is no system message." in done.stderr

    def test_an_error_is_printed_and_the_next_line_read(self, tiny: Path) -> None:
        done = glass("chat", "-m", str(tiny), "-n", "3", stdin="/nothing\nHi\n")
        assert done.returncode == 1
        assert done.stdout.strip()
        assert "Traceback" not in done.stderr
        assert "there is no setting 'temprature'" in failed(
            glass("chat", "-m", str(tiny), "-o", "temprature=1", stdin="Hi\n")
        )
        assert "is set twice" in failed(glass("chat", "-m", str(tiny), "--seed", "1", "-o", "seed=1", stdin="Hi\n"))

    def test_bytes_that_are_no_text_are_refused(self, tiny: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "from glassformer.cli import main; main()", "chat", "-m", str(tiny), "-n", "2"],
            input=b"Hi\n\xff\xfe\nHi\n",
            capture_output=True,
        )
        assert done.returncode == 1
        assert done.stderr.endswith(b"glass: the input is not utf-8 text (invalid start byte). Convert it first.\n")
        assert done.stdout.count(b"\n") >= 1  # what came before it was answered

    def test_chat_does_not_import_torch(self, smollm2: Path) -> None:
        code = "import sys, io; sys.argv = ['glass', 'chat', '-n', '2']\n"
        code += "sys.stdin = io.TextIOWrapper(io.BytesIO(b'Hi\\n/why\\n/rules\\n/tokens\\n'))\n"
        code += "from glassformer.cli import main\n"
        code += "try: main()\nexcept SystemExit as left: assert not left.code\nassert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "smollm2: why " in done.stdout
        assert "token 0: " in done.stdout

    def test_smollm2_remembers_the_conversation(self, smollm2: Path) -> None:
        done = glass("chat", stdin="What is the capital of France?\nAnd of Italy?\n")
        assert "Paris" in done.stdout.splitlines()[0]
        assert "Rome" in done.stdout.splitlines()[1]

    def test_help(self) -> None:
        done = glass("chat", "--help")
        assert done.returncode == 0
        assert "--load" in done.stdout
        assert "Example" in done.stdout

    @POSIX
    def test_ctrl_c_ends_a_piped_chat(self, endless: Path) -> None:
        words = [sys.executable, "-c", "from glassformer.cli import main; main()", "chat", "-m", str(endless), *ENDLESS]
        process: Any = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        assert process.stdout.read1(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patience(60))
        assert process.returncode == 130
        assert b"Traceback" not in said


# At a terminal ----------------------------------------------------------------------------------------------------------

ENDLESS = ("-n", "30000", "-o", "min_new_tokens=30000")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose answers take long enough for anybody to stop them."""
    return talker(tmp_path_factory.mktemp("endless"), n_positions=40_000)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A home without a history, and with the engine that is built already."""
    (home() / "native").mkdir(parents=True, exist_ok=True)
    (tmp_path / "native").symlink_to(home() / "native")
    return tmp_path


class Terminal:
    """A process at a pseudo-terminal of 80 columns, and what it shows."""

    def __init__(self, *words: str, code: str = "", verb: str = "chat", **environment: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{code}\nfrom glassformer.cli import main; main()", verb, *words],
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null", "PYTHONIOENCODING": "utf-8", **environment},
        )
        os.close(side)

    def see(self, text: str) -> str:
        """Wait until this is shown; what was shown before it, since the last time."""
        end = time.monotonic() + patience(120)
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} is not in {self.shown!r}"
            if select.select([self.main], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.main, 65536).decode("utf-8", "replace")
                except OSError:  # it has gone
                    pytest.fail(f"{text!r} is not in {self.shown!r}")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def interrupt(self, until: str) -> None:
        """Ctrl-C at the prompt. Python notices it when it waits for a key; a moment earlier, only at the next one."""
        for _ in range(60):
            self.type("\x03")
            while until not in self.shown and select.select([self.main], [], [], 2)[0]:
                self.shown += os.read(self.main, 65536).decode("utf-8", "replace")
            if until in self.shown:
                break
        self.see(until)

    def left(self) -> int:
        """How it ended."""
        while True:
            try:
                self.shown += os.read(self.main, 65536).decode("utf-8", "replace")
            except OSError:
                break
        return self.process.wait(timeout=patience(60))


@pytest.fixture
def terminal(place: Path) -> Iterator[Callable[..., Terminal]]:
    begun: list[Terminal] = []

    def begin(*words: str, **more: str) -> Terminal:
        begun.append(Terminal(*words, **{"GLASS_HOME": str(place), **more}))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.wait()
        os.close(one.main)


@POSIX
class TestTerminal:
    def test_run_without_a_prompt_chats(self, endless: Path, terminal: Callable[..., Terminal]) -> None:
        it = terminal("-m", str(endless), "-n", "3", verb="run")
        it.see("/help lists the commands, Ctrl-D leaves.")
        it.type("Hi\n")
        it.see("3 tokens, cut at the limit")
        it.see("> ")
        it.type("\x04")
        assert it.left() == 0

    def test_what_is_for_a_prompt_is_refused_without_one(self, endless: Path, terminal: Callable[..., Terminal]) -> None:
        it = terminal("-m", str(endless), "--why", verb="run")
        it.see("--why is for a prompt, and there is none.")
        assert it.left() == 1

    def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(
        self, endless: Path, terminal: Callable[..., Terminal], tmp_path: Path
    ) -> None:
        it = terminal("-m", str(endless), *ENDLESS)
        assert "chat template · greedy" in " ".join(it.see("/help lists the commands, Ctrl-D leaves.").split())
        it.see("> ")
        it.type("Hi\r")
        it.see("Hi\r\n")
        while len(it.shown) < 200:  # it writes
            it.shown += os.read(it.main, 4096).decode("utf-8", "replace")
        it.type("\x03")
        it.see("stopped by you (/continue goes on) ·")
        it.see("> ")
        it.type("abc")
        it.see("abc")
        it.interrupt("Ctrl-D or /quit leaves.")
        it.see("> ")
        it.type(f"/save {tmp_path / 'talk.json'}\r")  # the line that was begun is gone
        it.see("2 messages in")
        it.see("> ")
        it.type("abc")
        it.see("abc")
        it.interrupt("> ")
        it.type("\x04")
        assert it.left() == 0
        assert "leaves" not in it.shown  # that is said once
        found = Conversation.load(tmp_path / "talk.json")
        assert (found.messages[0].content, found.messages[1].finish) == ("Hi", "cancelled")
        assert found.messages[1].tokens

    def test_messages_of_several_lines_commands_and_completion(self, tiny: Path, terminal: Callable[..., Terminal]) -> None:
        it = terminal("-m", str(tiny), "-n", "3")
        it.see("> ")
        it.type("one\\\r")
        it.see(". ")
        it.type("two\r")
        it.see("context")
        it.see("> ")
        it.type('"""\r')
        it.see(". ")
        it.type("three\r")
        it.see(". ")
        it.type('"""\r')
        it.see("context")
        it.see("> ")
        it.type("/nothing\r")
        it.see("glass: there is no command '/nothing'.")
        it.see("> ")
        it.type('"""\r')
        it.see(". ")
        it.type("\x04")
        it.see('glass: the text after """ has no end.')
        it.see("> ")
        it.type("/ru\t2\r")
        it.see("/rules 2")
        it.see("token 2: ")
        it.see("> ")
        it.type("/undo\r")
        it.see("taken back: three")
        it.see("> ")
        it.type("/undo\r")
        it.see("taken back: one two")
        it.see("> ")
        it.type("/quit\r")
        assert it.left() == 0

    def test_history_is_kept_between_chats(self, tiny: Path, terminal: Callable[..., Terminal], place: Path) -> None:
        file = place / "chat-history.jsonl"
        file.write_text("\n".join(json.dumps(f"old {number}") for number in range(1200)) + "\nno JSON\n")
        file.chmod(0o600)
        it = terminal("-m", str(tiny), "-n", "1")
        it.see("> ")
        it.type("first\r")
        it.see("context")
        it.see("> ")
        it.type("\x1b[200~pasted\rlines\x1b[201~\r")  # as terminals mark it
        it.see("context")
        it.see("> ")
        it.type("\x1b[A\r")  # once more
        it.see("context")
        it.see("> ")
        it.type("\x04")
        assert it.left() == 0
        kept = file.read_text().splitlines()
        assert len(kept) == 1000
        assert kept[-2:] == ['"first"', '"pasted\\nlines"']  # the same again is no news
        assert kept[0] == '"old 203"'
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        it = terminal("-m", str(tiny), "-n", "1")
        it.see("> ")
        it.type("\x1b[A\x1b[A\r")
        it.see("first")
        it.see("context")

    def test_history_file_is_private(self, tiny: Path, terminal: Callable[..., Terminal], place: Path) -> None:
        it = terminal("-m", str(tiny), "-n", "1")
        it.see("> ")
        it.type("Hi\r")
        it.see("context")
        assert stat.S_IMODE((place / "chat-history.jsonl").stat().st_mode) == 0o600

    def test_a_read_only_home_is_no_error(self, tiny: Path, terminal: Callable[..., Terminal], place: Path) -> None:
        (place / "chat-history.jsonl").mkdir()
        it = terminal("-m", str(tiny), "-n", "1")
        for _ in range(2):
            it.see("> ")
            it.type("Hi\r")
            it.see("context")

    def test_chat_works_without_readline(self, tiny: Path, terminal: Callable[..., Terminal]) -> None:
        """Several lines that come at once are one message all the same."""
        it = terminal("-m", str(tiny), "-n", "1", code="import sys; sys.modules['readline'] = None")
        it.see("> ")
        it.type("one\ntwo\nthree\n")
        it.see("context")
        it.see("> ")
        it.type("/undo\n")
        it.see("taken back: one two three")

    @pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
    def test_bytes_that_are_no_text_are_refused(self, tiny: Path, terminal: Callable[..., Terminal], errors: str) -> None:
        code = "import sys; sys.modules['readline'] = None"
        it = terminal("-m", str(tiny), "-n", "1", code=code, PYTHONIOENCODING=f"utf-8:{errors}")
        it.see("> ")
        os.write(it.main, b"\xff\n")
        it.see("glass: the input is not utf-8 text")
        it.see("> ")
        it.type("Hi\n")
        it.see("context")

    def test_control_characters_are_escaped(self, tiny: Path, terminal: Callable[..., Terminal]) -> None:
        """At a terminal; into a pipe a text goes as it is. `glass run` does the same."""
        (escape,) = load(tiny).tokenizer.encode("\x1b")
        only = ("-m", str(tiny), "-n", "3", "-o", f"allowed_tokens=[{escape}]")
        it = terminal(*only)
        it.see("> ")
        it.type("Hi\r")
        it.see("\\x1b\\x1b\\x1b\r\n")
        assert glass("chat", *only, stdin="Hi\n").stdout == "\x1b\x1b\x1b\n"
        assert glass("run", "Hi", *only).stdout == "\x1b\x1b\x1b\n"
        code = "import sys; sys.argv[1] = 'run'"
        shown = terminal("Hi", *only, code=code)
        shown.see("\\x1b\\x1b\\x1b\r\n")
        assert shown.left() == 0

    def test_answers_redirected_to_a_file(self, tiny: Path, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
        """The prompt is no part of them."""
        file = tmp_path / "answers.txt"
        it = terminal(
            "-m", str(tiny), "-n", "3", code=f"import os; os.dup2(os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY), 1)"
        )
        it.see("> ")
        it.type("Hi\n")
        it.see("context")
        it.see("> ")
        it.type("\x04")
        assert it.left() == 0
        answer = load(tiny).chat([{"role": "user", "content": "Hi"}], max_new_tokens=3)
        assert file.read_text("utf-8") == answer + "\n"


@POSIX
class TestInterrupting:
    def test_ctrl_c_before_the_first_token_takes_the_message_back(
        self, loaded: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The message is taken back, and nothing is left open."""
        talk = session(loaded)
        talk.terminal = True
        talk.send("Hi")
        kept: Any = talk.model.executor
        before = talk.conversation

        def slow(feeds: Sequence[Feed]) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

        real = kept.executor.run
        monkeypatch.setattr(kept.executor, "run", slow)
        talk.send("And?")
        assert talk.conversation is before
        assert "stopped before the first token; the message was taken back." in capsys.readouterr().err
        monkeypatch.setattr(kept.executor, "run", real)
        talk.send("And?")
        assert len(talk.conversation.messages) == 4

    def test_ctrl_c_pressed_twice_stops_at_once(self, loaded: Model) -> None:
        """The first is a wish; the second does not wait."""
        run = loaded.start("Hi")
        handler = signal.getsignal(signal.SIGINT)
        with cancel_on_interrupt(run):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            run.steps.append(SimpleNamespace(finish=None))  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGINT)
            assert run.cancelling.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
