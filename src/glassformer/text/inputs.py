"""A tokenizer's inputs: a text or many, each alone or with a second one, as strings or as lists of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.ground.errors import InputError, InputTypeError


def as_batch(text: Any, second: Any, words: bool) -> tuple[bool, list[Any]]:
    """Whether it was one text and no batch, and what the library takes: texts, or pairs of them."""
    if words:
        return _word_lists(text, second)
    if isinstance(text, str):
        if second is not None and not isinstance(second, str):
            raise InputTypeError(f"one text takes one second text, not {type(second).__name__}.")
        return True, [(text, second) if second else text]  # an empty second text is none, as the field has it
    if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray)):
        raise InputTypeError(f"the tokenizer takes a string or a list of strings, not {type(text).__name__}.")
    return False, list(text) if second is None else _paired(text, second)


def _word_lists(text: Any, second: Any) -> tuple[bool, list[Any]]:
    if isinstance(text, (str, bytes)) or not isinstance(text, Sequence):
        raise InputTypeError(f"is_split_into_words=True takes a list of words, not {type(text).__name__}.")
    if text and isinstance(text[0], (list, tuple)):
        return False, list(text) if second is None else _paired(text, second)
    if isinstance(second, (str, bytes)) or not isinstance(second, Sequence | None):
        raise InputTypeError(f"a list of words takes a list of words beside it, not {type(second).__name__}.")
    return True, [(list(text), list(second)) if second else list(text)]


def _paired(texts: Sequence[Any], seconds: Any) -> list[Any]:
    if isinstance(seconds, (str, bytes)) or not isinstance(seconds, Sequence):
        raise InputTypeError(f"a list of texts takes a list of second texts, not {type(seconds).__name__}.")
    if len(seconds) != len(texts):
        raise InputError(f"there are {len(texts)} texts but {len(seconds)} second texts. Give each text one.")
    return [text if second is None else (text, second) for text, second in zip(texts, seconds, strict=True)]


def check_inputs(batch: Sequence[Any], single: bool, words: bool) -> None:
    """Raise for the first entry that is no text, or no whole one; return when all are well."""
    for index, entry in enumerate(batch):
        where = "" if single else f", in entry {index} of the batch"
        pair = isinstance(entry, (tuple, list)) and len(entry) == 2
        if words:
            pair = pair and all(isinstance(part, (tuple, list)) for part in entry)
        for part in entry if pair else (entry,):
            if words and (isinstance(part, str) or not isinstance(part, Sequence)):
                raise InputTypeError(f"the tokenizer takes lists of words here, not {type(part).__name__}{where}.")
            for text in part if words else (part,):
                if not isinstance(text, str):
                    raise InputTypeError(f"the tokenizer takes text, not {type(text).__name__}{where}.")
                refuse_lone_surrogates(text, "the text", where)


def refuse_lone_surrogates(text: Any, what: str, where: str = "") -> None:
    """Raise for half a character, which Python's texts can hold and UTF-8 cannot."""
    if not isinstance(text, str) or not (halves := [mark for mark in text if "\ud800" <= mark <= "\udfff"]):
        return
    if all("\udc80" <= half <= "\udcff" for half in halves):  # as Python reads bytes of a command that are no text
        raise InputError(f"{what} holds bytes that are not UTF-8{where}. Convert it first.")
    raise InputError(f"{what} holds a lone surrogate, which is no character{where}. Repair its encoding first.")
