"""A task's name to the task: `pipeline`, and whether a model's head fits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from glassformer.errors import ExecutorError, InputError, InputTypeError, nearest
from glassformer.opened import AutoTokenizer
from glassformer.runtime.model import Model, load
from glassformer.tasks.entities import TokenClassification
from glassformer.tasks.labels import TextClassification
from glassformer.tasks.mask import FillMask
from glassformer.tasks.questions import QuestionAnswering
from glassformer.tasks.task import Task
from glassformer.tasks.vectors import Embed, FeatureExtraction, Similarity
from glassformer.tasks.writing import Summarization, TextGeneration, TextToText, Translation

TASKS: Mapping[str, type[Task]] = {
    task.name: task
    for task in (
        TextGeneration, TextToText, Translation, Summarization, FillMask, TextClassification, TokenClassification,
        QuestionAnswering, Embed, Similarity, FeatureExtraction,
    )
}  # fmt: skip
ALIASES = {
    "sentiment-analysis": "text-classification",
    "ner": "token-classification",
    "qa": "question-answering",
    "text2text": "text2text-generation",
    "summarisation": "summarization",
    "embedding": "embed",
    "sentence-similarity": "similarity",
}
HEAD_NAMES = {  # for people
    "base": "no head", "causal": "a head for the next token", "seq2seq": "a decoder", "masked": "a head for gaps",
    "sequence": "a head for a text's label", "token": "a head for tokens' labels", "question": "a head for answers",
}  # fmt: skip
LANGUAGES = re.compile(r"translation_(\w+)_to_(\w+)")


def find(name: str) -> tuple[type[Task], dict[str, Any]]:
    """A task by its name or another that the field has for it, and the options that the name implies."""
    if not isinstance(name, str):
        raise InputTypeError(f"a task's name is text, not {type(name).__name__}. There are: {', '.join(TASKS)}.")
    if languages := LANGUAGES.fullmatch(name):
        return Translation, {"src_lang": languages[1], "tgt_lang": languages[2]}
    known = ALIASES.get(name, name)
    if known not in TASKS:
        raise InputError(f"there is no task {name!r}.{nearest(name, [*TASKS, *ALIASES])} There are: {', '.join(TASKS)}.")
    return TASKS[known], {}


def pipeline(
    task: str | None = None,
    model: Any = None,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    device: Any = None,
    torch_dtype: Any = None,
    progress: Any = None,
    **options: Any,
) -> Task:
    """A task over a model, to be called with texts.

    Args:
        task: 'fill-mask', 'embed', …; by default what the model's head is for.
        model: a name, hub id or path; a model from `load`, or one of the Auto classes with its tokenizer.
        tokenizer: for a model from an Auto class; a name, or a tokenizer.
        dtype: 'float32', 'bfloat16', …; by default as stored.
        device: where it runs, such as 'cuda'; -1 is the CPU.
        torch_dtype: the older name of dtype.
        progress: called as (what, bytes so far, bytes in all) while something is fetched.
        options: the task's own, for every call: `top_k=3`, `batch_size=8`, ….
    """
    dtype = None if (dtype or torch_dtype) == "auto" else dtype or torch_dtype
    if task is None:
        if model is None:
            raise InputError(f"name a task or a model. Tasks: {', '.join(TASKS)}.")
        loaded = _loaded(model, tokenizer, dtype, device, progress)
        return fitting(loaded)[0](loaded, **options)
    kind, implied = find(task)
    if model is None and kind.model_name is None:
        raise InputError(
            f"{kind.name} has no default model that can be had without a hub. Name one: {kind.suggested!r}, or a path."
        )
    loaded = _loaded(kind.model_name if model is None else model, tokenizer, dtype, device, progress)
    check_fit(kind, loaded)
    return kind(loaded, **implied, **options)


def fitting(model: Model) -> list[type[Task]]:
    """The tasks that a model's head is for, the most natural first."""
    return [task for task in TASKS.values() if model.head in task.heads]


def check_fit(task: type[Task], model: Model) -> None:
    """Refuse a model whose head answers another question, and say which it answers."""
    if model.head in task.heads:
        return
    others = " or ".join(other.name for other in fitting(model))
    raise InputError(
        f"{task.name} needs a model with {HEAD_NAMES[task.heads[0]]}, and {model.name} ({model.config.model_type}) has "
        f"{HEAD_NAMES[model.head]}: use it for {others}. For {task.name} take {task.suggested!r} or its like."
    )


def _loaded(model: Any, tokenizer: Any, dtype: str | None, device: Any, progress: Any) -> Model:
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    if isinstance(model, (str, os.PathLike)):
        model = load(model, dtype=dtype, progress=progress)
    if isinstance(model, Model):
        found = model if tokenizer is None else model.with_tokenizer(tokenizer)
    elif hasattr(model, "base_model") and hasattr(model, "config"):
        if tokenizer is None:
            raise InputError("a model from an Auto class comes without its tokenizer. Pass tokenizer=….")
        found = Model.around(model, tokenizer)
    else:
        raise InputTypeError(f"a model is a name, a path or a loaded model, not {type(model).__name__}.")
    if device is not None:
        try:
            found.module.to("cpu" if device == -1 else device)
        except (RuntimeError, AssertionError) as error:
            raise ExecutorError(f"nothing can run on device {device!r} here ({error}). Leave it out for the CPU.") from error
    return found
