"""Tokenizers out of files and into them, templates that grow, and texts that are typed."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import click
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, processors

from glassformer import AutoTokenizer
from glassformer.cli.chat import line_input
from glassformer.cli.text_input import read_text
from glassformer.ground.errors import CheckpointError, InputError, TemplateError
from glassformer.see.tokens import batch
from glassformer.text import ChatTemplate, Tokenizer
from glassformer.text.tokenizer_files.gguf.export import tokenizer_fields
from glassformer.text.tokenizer_files.tiktoken import build
from tests.messages.calls import USER, Entry, chat_tokenizer, write
from tests.see.test_views import letters
from tests.text.models import byte_level

MARKED = {"role": "user", "content": "<x>"}
LAST = "{{ messages[-1].content }}"
NESTED = "{% set ns = namespace(x=1) %}{% for i in range(20000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {}[ns.x] }}"


def exported(size: int = 300, backend: Any = None, **parts: Any) -> Any:
    """A tokenizer as GGUF's fields; `parts`: of its pipeline, in place of what it has."""
    backend = backend or byte_level()
    for part, value in parts.items():
        setattr(backend, part, value)
    return tokenizer_fields(backend, {"bos_token": "<s>"}, None, size)


def unspellable() -> Any:
    """A tokenizer that has one way to write <x>."""
    other = copy.copy(chat_tokenizer())
    other.backend = Backend(models.WordLevel({"<x>": 0, "\n": 1, "?": 2}, unk_token="?"))
    other.backend.add_special_tokens(["<x>"])
    return other


def merging(*pair: str, prefix: str = "", **vocabulary: int) -> Any:
    model = {"type": "BPE", "vocab": vocabulary, "merges": [pair], "continuing_subword_prefix": prefix}
    return AutoTokenizer.from_pretrained(write(f"merging{prefix}/tokenizer.json", json.dumps({"model": model})).parent)


def added_tokens() -> Any:
    write("added/vocab.txt", "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n")
    return AutoTokenizer.from_pretrained(write("added/added_tokens.json", '{"<x>": "7"}').parent)


def at_a_terminal() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
        read_text(None, "TEXT")


class Lines:
    """What is typed, line by line."""

    def __init__(self, *given: str) -> None:
        self.left = iter(given)

    def line(self, more: bool) -> str | None:
        return next(self.left, None)


MESSAGES: dict[str, list[Entry]] = {
    "tokenizers as GGUF": [
        (CheckpointError, lambda: exported(259),
         "the tokenizer's token '</s>' has the id 259, but the model scores only 259 tokens. Is this the tokenizer of "
         "this model?"),
        (CheckpointError, lambda: exported(2, Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))),
         "the tokenizer is neither byte-level BPE nor SentencePiece's nor BERT's, as GGUF has them. Keep the checkpoint as "
         "it is; load(…, weights=…) packs its weights all the same."),
        (CheckpointError, lambda: exported(normalizer=normalizers.Lowercase()),
         "the tokenizer splits a text in a way that GGUF has no name for. Keep the checkpoint as it is; load(…, "
         "weights=…) packs its weights all the same."),
        (CheckpointError, lambda: exported(post_processor=processors.TemplateProcessing(
            single="<s> <s> $A", special_tokens=[("<s>", 258)])),
         "the tokenizer does something to 'The quick brown fox' that GGUF's fields cannot say. Keep the checkpoint as "
         "it is; load(…, weights=…) packs its weights all the same."),
        (CheckpointError, lambda: Tokenizer.from_gguf({"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a"]}),
         "GGUF's tokenizer is of the kind 'rwkv' (RWKV's greedy match of the longest byte string), which is not "
         "supported. Use another model."),
    ],
    "files of tokenizers": [
        (CheckpointError, lambda: build({b"a": 0, b"b": 1}, r"\S+", {"<x>": 1}),
         "the special token '<x>' or its id 1 is already in the ranks. Give another."),
        (CheckpointError, lambda: merging("a", "b", prefix="####", a=0, b=1, ab=2),
         "…/merging####/tokenizer.json: its merge ['a', 'b'] lacks the prefix '####'. Fetch it again."),
        (CheckpointError, added_tokens,
         "…/added/added_tokens.json: does not map tokens to ids. Fetch it again."),
        (CheckpointError, lambda: merging("ab", "ab", ab=0),
         "…/merging/tokenizer.json: its merges make 'abab', which its vocabulary lacks. Fetch it again."),
    ],
    "texts and templates": [
        (InputError, lambda: unspellable().apply_chat_template(
            [MARKED], chat_template=LAST, sanitize_control_tokens=True),
         "'<x>' cannot be kept as text: the tokenizer has no other spelling. Take it out."),
        (TemplateError, lambda: ChatTemplate(NESTED).render([USER]),
         "the chat template was stopped: it handles values that are nested more than 200 levels deep. Pass another with "
         "chat_template=…."),
        (InputError, lambda: batch(Tokenizer(letters()[0]), ["ab", "a"]),
         "this tokenizer has no token for padding, and none that ends a text and could stand in. Give one text at a "
         "time."),
        (click.BadParameter, at_a_terminal,
         "say something, or pipe a text in."),
        (InputError, lambda: line_input.read_message(Lines('"""', "text")),
         'the text after """ has no end. Close it with """.'),
    ],
}  # fmt: skip
