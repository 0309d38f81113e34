"""All tasks by name: `pipeline`, whether a model's head fits, and what a model is for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any

from glassformer.decoding.settings import json_value
from glassformer.ground.arguments import checked
from glassformer.ground.errors import ExecutorError, InputError, InputTypeError, did_you_mean
from glassformer.ground.progress import NamedProgress
from glassformer.ground.typecheck import OWN_CHECK, brief
from glassformer.model_files import AdapterNames, AutoTokenizer
from glassformer.runtime.model import Model, load
from glassformer.see.model_description import Architecture, ModelDescription, TaskFit
from glassformer.tasks.embeddings import EmbedTask, FeatureExtractionTask, SimilarityTask
from glassformer.tasks.fill_mask import FillMaskTask
from glassformer.tasks.generation import SummarizationTask, TextGenerationTask, TextToTextTask, TranslationTask
from glassformer.tasks.question_answering import QuestionAnsweringTask
from glassformer.tasks.ranking import RerankTask
from glassformer.tasks.task import Task
from glassformer.tasks.text_classification import TextClassificationTask, ZeroShotClassificationTask
from glassformer.tasks.token_classification import TokenClassificationTask

TASKS: Mapping[str, type[Task]] = {
    task.name: task
    for task in (
        TextGenerationTask, TextToTextTask, TranslationTask, SummarizationTask, FillMaskTask, TextClassificationTask,
        ZeroShotClassificationTask, RerankTask, TokenClassificationTask, QuestionAnsweringTask, EmbedTask, SimilarityTask,
        FeatureExtractionTask,
    )
}  # fmt: skip
ALIASES = {  # other names; those of `glass train --task` among them
    "sentiment-analysis": "text-classification",
    "classify": "text-classification",
    "ner": "token-classification",
    "tag": "token-classification",
    "qa": "question-answering",
    "text2text": "text2text-generation",
    "seq2seq": "text2text-generation",
    "translate": "translation",
    "summarisation": "summarization",
    "summarize": "summarization",
    "fill": "fill-mask",
    "embedding": "embed",
    "sentence-similarity": "similarity",
    "zero-shot": "zero-shot-classification",
    "text-ranking": "rerank",
}
HEADS = {  # in words
    "base": "no head", "causal": "a language modeling head", "seq2seq": "an encoder and a decoder",
    "masked": "a masked language modeling head", "sequence": "a text classification head",
    "token": "a token classification head", "question": "a question answering head",
    "discriminator": "a head that finds replaced tokens",
}  # fmt: skip
LANGUAGES = re.compile(r"translation_(\w+)_to_(\w+)")


def find_task(name: str) -> tuple[type[Task], dict[str, Any]]:
    """A task by its name or an alias, and the options that the name implies."""
    if not isinstance(name, str):
        raise InputTypeError(f"a task's name is text, not {type(name).__name__}. There are: {', '.join(TASKS)}.")
    if languages := LANGUAGES.fullmatch(name):
        return TranslationTask, {"src_lang": languages[1], "tgt_lang": languages[2]}
    task = TASKS.get(ALIASES.get(name, name))
    if task is None:
        hint = did_you_mean(name, [*TASKS, *ALIASES])
        raise InputError(f"there is no task {name!r}.{hint} There are: {', '.join(TASKS)}.")
    return task, {}


@checked
def pipeline(
    task: str | None = None,
    model: Any = None,
    tokenizer: Any = None,
    *,
    dtype: Annotated[str | None, OWN_CHECK] = None,
    device: Any = None,
    device_map: Any = None,
    torch_dtype: Any = None,
    adapter: Annotated[AdapterNames | None, OWN_CHECK] = None,
    progress: NamedProgress | None = None,
    **options: Any,
) -> Task:
    """A task over a model, to be called with texts.

    Args:
        task: 'fill-mask', 'embed', …; by default what the model's head is for.
        model: a name, hub id or path; a model from `load`, or one of the Auto classes with its tokenizer.
        tokenizer: for a model from an Auto class; a name, or a tokenizer.
        dtype: 'float32', 'bfloat16', …; by default as stored.
        device: where it runs, such as 'cuda'; -1 is the CPU.
        device_map: the same; 'auto' takes a GPU if there is one.
        torch_dtype: the older name of dtype.
        adapter: a LoRA on top of a model that is named: a folder of peft or a .gguf file; as in `load`.
        progress: called as (what, bytes so far, bytes in all) while something is fetched.
        options: the task's own, for every call: `top_k=3`, `batch_size=8`, ….
    """
    if device_map is not None:
        if device is not None:
            raise InputError("device and device_map say the same thing in two ways. Pass one of them.")
        device = _mapped_device(device_map)
    dtype = torch_dtype if dtype is None else dtype
    dtype = None if isinstance(dtype, str) and dtype == "auto" else dtype
    if task is None:
        if model is None:
            raise InputError(f"name a task or a model. Tasks: {', '.join(TASKS)}.")
        loaded = _load_model(model, tokenizer, dtype, device, progress, adapter)
        return fitting_tasks(loaded)[0](loaded, **options)
    task_type, implied = find_task(task)
    if model is None and task_type.model_name is None:
        raise InputError(
            f"{task_type.name} has no default model without a hub. Name one: {task_type.suggested!r}, or a path."
        )
    loaded = _load_model(task_type.model_name if model is None else model, tokenizer, dtype, device, progress, adapter)
    check_head(task_type, loaded)
    return task_type(loaded, **implied, **options)


def fitting_tasks(model: Model) -> list[type[Task]]:
    """The tasks that a model's head is for, the most natural first."""
    return [task for task in TASKS.values() if model.head in task.heads]


def check_head(task: type[Task], model: Model) -> None:
    """Refuse a model whose head is for other tasks, and name these."""
    if model.head in task.heads:
        return
    alternatives = " or ".join(fitting.name for fitting in fitting_tasks(model))
    raise InputError(
        f"{task.name} needs a model with {HEADS[task.heads[0]]}, and {model.name} ({model.config.model_type}) has "
        f"{HEADS[model.head]}: use it for {alternatives}. For {task.name} use {task.suggested!r} or a similar model."
    )


def _mapped_device(device_map: Any) -> Any:
    """The one device that a map names; None where it leaves the choice to us."""
    if isinstance(device_map, Mapping):
        if len(set(device_map.values())) != 1:
            raise InputError(f"device_map is {brief(device_map)}; a model is on one device here. Name it, or pass 'auto'.")
        device_map = next(iter(device_map.values()))
    if not isinstance(device_map, str) or device_map not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return device_map
    if find_spec("torch") is None:
        return None
    import torch

    return "cuda" if torch.cuda.is_available() else None


def _load_model(
    model: Any, tokenizer: Any, dtype: str | None, device: Any, progress: Any, adapter: AdapterNames | None
) -> Model:
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    if isinstance(model, (str, os.PathLike)):
        model = load(model, dtype=dtype, progress=progress, adapter=adapter)
    elif adapter is not None:
        raise InputError("adapter is for a model that is named; this one is loaded already. Load it with adapter=….")
    if isinstance(model, Model):
        loaded = model if tokenizer is None else model.with_tokenizer(tokenizer)
    elif hasattr(model, "base_model") and hasattr(model, "config"):
        if tokenizer is None:
            raise InputError("a model from an Auto class comes without its tokenizer. Pass tokenizer=….")
        loaded = Model.from_module(model, tokenizer)
    else:
        raise InputTypeError(f"a model is a name, a path or a loaded model, not {type(model).__name__}.")
    if device is not None:
        known = isinstance(device, (str, int)) and not isinstance(device, bool)
        if not known and type(device).__name__ != "device":
            raise InputTypeError(
                f"device is {brief(device)}; it must be a name such as 'cuda', a number, or a torch.device."
            )
        try:
            loaded.module.to("cpu" if device == -1 else device)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ExecutorError(f"nothing can run on device {device!r} here ({error}). Leave it out for the CPU.") from error
    return loaded


class NamedPipeline(type):
    """The class of such names."""

    task: str

    def __call__(cls, model: Any = None, tokenizer: Any = None, **options: Any) -> Task:
        return pipeline(cls.task, model, tokenizer, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TASKS[cls.task])


@cache
def find_pipeline(name: str) -> NamedPipeline | None:
    """`TextGenerationPipeline` and the like, or None for a name that no task has."""
    for task in TASKS:
        if name == "".join(word.capitalize() for word in task.split("-")) + "Pipeline":
            return NamedPipeline(name, (), {"task": task, "__doc__": f"The task {task!r}."})
    return None


def describe_model(model: Model) -> ModelDescription:
    """What a model is, and which tasks its head is for: read from its config and tokenizer; no weights are."""
    blueprint, tokenizer = model.blueprint, model.tokenizer
    templated = tokenizer.chat_template is not None
    _, heads, *_ = next(shape for site, shape in blueprint.sites.items() if site.endswith("attention.heads"))
    return ModelDescription(
        model=model.name,
        family=model.config.model_type,
        architecture=_architecture(model),
        head=HEADS[model.head],
        writes=model.writes,
        context=model.config.source_context,
        blocks=blueprint.blocks,
        encoder_blocks=blueprint.encoder_blocks,
        heads=int(heads),
        one_stream=not blueprint.mixes_streams,
        chat_template=templated,
        thinking=templated and "enable_thinking" in tokenizer.template().variables,
        mask_token=tokenizer.mask_token,
        tasks=tuple(
            TaskFit(task.name, task.about, model.head in task.heads, HEADS[task.heads[0]], task.suggested)
            for task in TASKS.values()
        ),
        settings={name: json_value(value) for name, (value, _) in model.settings.in_force.items()} if model.writes else {},
    )


def _architecture(model: Model) -> Architecture:
    if model.blueprint.encoder_blocks:
        return "encoder-decoder"
    return "encoder" if model.config.default_head == "masked" else "decoder"
