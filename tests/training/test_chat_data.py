"""Conversations as tokens: the assistant's words are found whatever the template, and bad rows are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.errors import InputError, SettingError
from glassformer.training.chat_rows import ChatExample, ChatTokenizer, read_conversation, read_preference
from glassformer.training.fine_tuning import ChatTraining
from glassformer.training.packing import TrainingRow
from glassformer.training.rows import DataRow
from glassformer.training.sharding import Ranks
from glassformer.training.training_folder import TrainingFolder
from tests.training.chat_models import CHATML, CHATS, FORGETFUL, MARKED, chat_tokenizer, write_chat_model, write_rows

pytestmark = pytest.mark.usefixtures("one_thread")
TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_THOUGHTS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": "12 cm — assistant"},
    {"role": "user", "content": "And 漢字?\n<b>"},
    {"role": "assistant", "content": "漢字!"},
]


def row(**fields: Any) -> DataRow:
    return DataRow(fields, "chats.jsonl, row 3")


def rows_of(template: str, **fields: Any) -> list[TrainingRow]:
    return ChatTokenizer(chat_tokenizer(template), "tiny").rows(read_conversation(row(**fields)))


def learned(rows: list[TrainingRow]) -> list[list[str]]:
    """The texts that are predicted, as runs of tokens."""
    tokenizer, texts = chat_tokenizer(), []
    for example in rows:
        runs: list[list[int]] = [[]]
        for token, predicted in zip(example.ids, example.predicted, strict=True):
            if predicted:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        texts.append([tokenizer.decode(run) for run in runs if run])
    return texts


def test_answers_and_the_ends_of_their_turns_are_learned() -> None:
    (example,) = rows_of(CHATML, messages=TALK)
    assert learned([example]) == [["12 cm — assistant<|im_end|>\n", "漢字!<|im_end|>\n"]]
    assert chat_tokenizer().decode(example.ids).count("<|im_start|>") == 5


def test_the_mask_is_that_of_the_reference(tmp_path: Path) -> None:
    """A template that marks the answers, in transformers; and the same one without its marks, which are found again."""
    from transformers import AutoTokenizer

    chat_tokenizer(MARKED).save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        TALK, return_assistant_tokens_mask=True, return_dict=True
    )
    for template in (MARKED, CHATML):
        (example,) = rows_of(template, messages=TALK)
        assert list(example.ids) == theirs["input_ids"]
        assert list(map(int, example.predicted)) == theirs["assistant_masks"]


def test_a_template_that_rewrites_earlier_answers_gives_a_row_for_each() -> None:
    thoughtful = [dict(message) for message in TALK]
    thoughtful[2]["reasoning_content"] = "hm"
    assert learned(rows_of(FORGETFUL, messages=thoughtful)) == [
        ["<think>hm</think>12 cm — assistant<|im_end|>\n"],
        ["漢字!<|im_end|>\n"],  # asked not to think, as the commands ask
    ]
    texts = [chat_tokenizer().decode(example.ids) for example in rows_of(FORGETFUL, messages=thoughtful)]
    assert "hm" in texts[0]
    assert "hm" not in texts[1]


def test_a_prompt_that_opens_thoughts_leads_to_answers_without_them() -> None:
    assert learned(rows_of(OPENS_THOUGHTS, messages=TALK[:3])) == [["12 cm — assistant<|im_end|>\n"]]


def test_tools_and_their_answers_are_context() -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Thanks."},
    ]
    (example,) = rows_of(TOOLS, messages=messages, tools=[{"type": "function", "function": {"name": "add"}}])
    ((call, answer),) = learned([example])
    assert call.startswith("<call>")
    assert '"add"' in call
    assert answer == "Two.<|im_end|>\n"
    text = chat_tokenizer().decode(example.ids)
    assert text.startswith("<|im_start|>system\n[")
    assert "Thanks." not in text  # nothing answers it


def test_prompts_and_completions_are_texts_or_messages() -> None:
    expected = [["Four.<|im_end|>\n"]]
    assert learned(rows_of(CHATML, prompt="2 + 2?", completion="Four.")) == expected
    answer = [{"role": "assistant", "content": "Four."}]
    assert learned(rows_of(CHATML, prompt=[*TALK, {"role": "user", "content": "?"}], completion=answer)) == expected
    opened = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "2 + 2?"}, *answer]
    assert learned(rows_of(CHATML, messages=opened)) == expected  # a greeting answers nothing
    assert learned(rows_of(MARKED, messages=opened)) == expected


def test_preferences_are_two_answers_to_one_prompt() -> None:
    expected = [(TALK[:2], "Yes."), (TALK[:2], "No.")]
    answers = [{"role": "assistant", "content": text} for _, text in expected]
    shapes: list[dict[str, Any]] = [
        {"prompt": TALK[:2], "chosen": "Yes.", "rejected": "No."},
        {"messages": TALK[:2], "chosen": [answers[0]], "rejected": answers[1]},
        {"chosen": [*TALK[:2], answers[0]], "rejected": [*TALK[:2], answers[1]]},
    ]
    for fields in shapes:
        pair = read_preference(row(**fields))
        assert [(list(chat.messages[:2]), chat.messages[2]["content"]) for chat in pair] == expected
        assert [chat.first_learned for chat in pair] == [2, 2]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", "the chat template refused the conversation: no system role"),
        ("{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}", "the answer's words cannot be told apart"),
        (MARKED.replace("== 'assistant'", "== 'model'"), "marks 0 answers of 2"),
        (MARKED.replace("{% generation %}{{ message.content }}<|im_end|>\n", "{% generation %}"), "no token of its own"),
    ],
    ids=["refusal", "no prompt", "no marks", "no words"],
)
def test_templates_that_do_not_fit_are_refused_with_the_row(template: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^chats.jsonl, row 3: .*({message})"):
        rows_of(template, messages=TALK)


def prepared(folder: Path, **changes: Any) -> Any:
    fields = {"data": str(folder / "chats.jsonl"), "init": str(folder / "base"), "held_out": 0.0, **changes}
    return ChatTraining(**fields).prepare(TrainingFolder(folder / "out"), Ranks())


def test_rows_that_are_too_long_are_left_out_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_chat_model(tmp_path / "base")
    long = {"prompt": "x" * 100, "completion": "y"}
    write_rows(tmp_path / "chats.jsonl", [CHATS[0], long, CHATS[1]])
    objective = prepared(tmp_path, length=60).trainer.objective
    assert objective.examples == 2
    assert "1 of 3 rows are left out, since they have more than 60 tokens; the first: chats.jsonl, row 2 with" in caplog.text
    write_rows(tmp_path / "chats.jsonl", [long])
    with pytest.raises(InputError, match="no row is left to train on"):
        prepared(tmp_path, length=60)
    with pytest.raises(SettingError, match="length=100000"):
        prepared(tmp_path, length=100_000)
    write_rows(tmp_path / "chats.jsonl", [])
    with pytest.raises(InputError, match="holds no rows"):
        prepared(tmp_path)


def test_settings_follow_from_the_rows(tmp_path: Path) -> None:
    asked = ChatTraining(data="x", init="y", epochs=2)
    settings = asked.training_settings(100, None)
    assert (settings.steps, settings.batch_size, settings.learning_rate) == (50, 4, 2e-5)
    assert (asked.training_settings(2000, None).batch_size, asked.training_settings(2000, None).save_every) == (16, 250)
    few = ChatTraining(data="x", init="y", epochs=6).training_settings(20, None)
    assert (few.steps, few.batch_size) == (60, 2)  # and not 8 updates
    told = ChatTraining(data="x", init="y", settings={"steps": 9}).training_settings(20, None)
    assert (told.steps, told.batch_size) == (9, 16)


def test_a_model_that_does_not_write_is_refused(tmp_path: Path) -> None:
    from tests.parity import reference

    reference.write(tmp_path / "base", "bert", "MaskedLM")
    write_rows(tmp_path / "chats.jsonl", CHATS)
    with pytest.raises(SettingError, match="is no model that predicts the next token"):
        prepared(tmp_path)


def test_conversations_are_frozen_data() -> None:
    assert read_conversation(row(prompt="a", completion="b")) == ChatExample(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], 1, "chats.jsonl, row 3"
    )
