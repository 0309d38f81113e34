"""What a model is, and which tasks its head is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from glassformer.page.document import Column, Page, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.views.view import View

Architecture: TypeAlias = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class TaskFit:
    """A task, and whether the model is for it."""

    name: str
    about: str
    fits: bool
    needs: str  # the head that it is for, in words
    suggested: str  # a model that has it


@dataclass(frozen=True)
class ModelDescription(View):
    """A model in a few words and numbers: what can be asked of it, and what can be looked at in it."""

    SCHEMA = "glassformer.model/1"

    model: str
    family: str  # its model_type
    architecture: Architecture
    head: str  # in words
    writes: bool  # whether it generates text
    context: int  # tokens that it can read
    blocks: int  # of an encoder-decoder: the decoder's
    encoder_blocks: int  # of an encoder-decoder
    heads: int  # of each block's attention
    chat_template: bool
    thinking: bool  # whether its template can switch thinking on
    mask_token: str | None
    tasks: tuple[TaskFit, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # in force where a request sets none; empty: it writes no text

    def page(self, everything: bool = False) -> Page:
        return draw(self)


def draw(view: ModelDescription) -> Page:
    encoder = f"{pluralize(view.encoder_blocks, 'encoder block')}, " if view.encoder_blocks else ""
    about = (
        f"{view.model} ({view.family}): {view.architecture} with {view.head}, {encoder}{pluralize(view.blocks, 'block')} "
        f"of {pluralize(view.heads, 'head')}, reads {pluralize(view.context, 'token')}"
    )
    rows = [TableRow((task.name, task.about), "strong" if task.fits else "dim") for task in view.tasks]
    return Page(view.model, (Paragraph(about), Table((Column("task"), Column("what it gives")), tuple(rows))))
