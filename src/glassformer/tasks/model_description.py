"""A model's description: what it is, and which tasks its head is for."""

from __future__ import annotations

from glassformer.decoding.settings import json_value
from glassformer.runtime.model import Model
from glassformer.tasks.registry import HEADS, TASKS
from glassformer.views.model_description import Architecture, ModelDescription, TaskFit


def describe_model(model: Model) -> ModelDescription:
    """Read from its config and tokenizer; no weights are."""
    blueprint, tokenizer = model.blueprint, model.tokenizer
    templated = tokenizer.chat_template is not None
    _, heads, *_ = blueprint.sites["blocks.0.attention.heads"]
    return ModelDescription(
        model=model.name,
        family=model.config.model_type,
        architecture=_architecture(model),
        head=HEADS[model.head],
        writes=model.writes,
        context=model.config.context,
        blocks=blueprint.blocks,
        encoder_blocks=blueprint.encoder_blocks,
        heads=int(heads),
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
