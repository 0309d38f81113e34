"""Tiny models that chat: a reference model's folder, a byte-level tokenizer, and ChatML as its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from glassformer.text import Tokenizer

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (  # the same, with the assistant's words marked
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # earlier thoughts are left out, and a prompt that is not to be thought about closes them
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>"
    "{% elif message.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
VOCABULARY = 256 + len(SPECIAL)
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": f"{a + b}."}]}
    for a in range(6)
    for b in range(4)
]


def chat_tokenizer(template: str | None = CHATML) -> Tokenizer:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    backend.add_special_tokens(list(SPECIAL))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, special={"pad_token": SPECIAL[0], "eos_token": SPECIAL[2]})
    tokenizer.chat_template = template
    return tokenizer


def write_chat_model(folder: Path, model_type: str = "llama", template: str | None = CHATML, **changes: Any) -> Any:
    """A reference model in a folder, with the tokenizer beside it."""
    from tests.parity import reference

    sizes = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": VOCABULARY - 1, "pad_token_id": 256}
    model = reference.write(folder, model_type, **sizes, **changes)
    chat_tokenizer(template).save_pretrained(folder)
    return model


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)
