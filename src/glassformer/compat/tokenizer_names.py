"""Tokenizers under the names that scripts have for them: `BertTokenizer`, `GPT2TokenizerFast`, `PreTrainedTokenizerFast`, ….

There is one class for all of them; what a tokenizer does is in its files. `isinstance` asks whether it is a tokenizer,
and where the files name a class, whether it is this one.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from glassformer.ground.errors import InputTypeError
from glassformer.model_files import AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.tokenizer_classes import CLASS_BY_NAME

NAME = re.compile(r"(\w+?)Tokenizer(Fast|Base)?")
ANY = "PreTrained"  # what the names of the general classes begin with


class NamedTokenizer(type):
    """The class of such names."""

    stem: str

    def __call__(cls, *args: Any, **named: Any) -> Any:
        raise InputTypeError(f"{cls.__name__} is made from files: {cls.__name__}.from_pretrained(folder or name).")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tokenizer) and cls.stem in (ANY, *instance.class_stems)

    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Tokenizer:
        """The tokenizer of a model, as AutoTokenizer finds it."""
        return AutoTokenizer.from_pretrained(name, **options)


@cache
def find_tokenizer(name: str) -> NamedTokenizer | None:
    """`BertTokenizer` and the like, or None for a name that is not known."""
    match = NAME.fullmatch(name)
    if match is None or match[1] not in (ANY, *CLASS_BY_NAME) or (match[2] == "Base" and match[1] != ANY):
        return None
    return NamedTokenizer(name, (), {"stem": match[1], "__doc__": "Tokenizers, by one of their names."})
