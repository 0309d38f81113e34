"""How well a model predicts a text."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_seconds, pluralize
from glassformer.views.view import View


@dataclass(frozen=True)
class TextEvaluation(View):
    """A text's surprisal under a model. Bits per byte compare models of any vocabularies; perplexity does not.

    Only tokens that are predicted count, in bits and in bytes: not one that begins a window with nothing before it.
    """

    SCHEMA = "glassformer.evaluation/2"

    model: str
    tokens: int  # that were scored
    bytes: int  # of the tokens that were scored
    bits: float  # of surprisal, in all
    loss: float  # as trainings have it: the mean surprisal, in nats
    perplexity: float
    bits_per_byte: float  # bits ÷ bytes
    window: int  # tokens that are read together
    stride: int  # tokens that each window adds
    seconds: float

    def page(self, everything: bool = False) -> Page:
        return draw(self)

    def __repr__(self) -> str:
        return f"TextEvaluation({self.perplexity:.2f} perplexity, {self.bits_per_byte:.3f} bits per byte)"


def draw(view: TextEvaluation) -> Page:
    title = f"{view.model}: {pluralize(view.tokens, 'token')} of text"
    rows = (
        ("surprisal", f"{view.bits / view.tokens:.4f}", "bits per token"),
        ("loss", f"{view.loss:.4f}", "the same in nats, as trainings have it"),
        ("perplexity", f"{view.perplexity:.3f}", "as if choosing among so many tokens"),
        ("bits per byte", f"{view.bits_per_byte:.4f}", "what comparing models of other vocabularies takes"),
    )
    overlap = view.window - view.stride
    context = f"each window begins with {overlap} tokens of the one before" if overlap else "each window begins anew"
    speed = f"{view.tokens / view.seconds:,.0f} tokens/s" if view.seconds else ""
    note = f"in windows of {view.window} tokens; {context} · {format_seconds(view.seconds)} · {speed}"
    columns = (Column("", "text"), Column("", "number"), Column("", "text"))
    return Page(title, (Heading(title), Table(columns, tuple(TableRow(row) for row in rows)), Paragraph(note)))
