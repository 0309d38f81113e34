"""A folder of activations: what was recorded there, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import format_bytes, format_shape, pluralize
from glassformer.views.view import View

ROWS = 16  # sites that are shown


@dataclass(frozen=True)
class RecordedSite:
    site: str
    shape: tuple[int, ...]  # of a row
    bytes: int


@dataclass(frozen=True)
class ActivationFiles(View):
    """What a folder of activations holds."""

    SCHEMA = "glassformer.activation-files/1"

    model: str
    folder: str
    texts: int
    tokens: int
    rows: int  # of each site
    cut: int  # texts that have more tokens than were read
    dtype: str
    positions: str  # 'all', or of each text the 'last' alone
    shards: int
    complete: bool
    sites: tuple[RecordedSite, ...]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"ActivationFiles({self.texts:,} texts, {self.rows:,} rows of {len(self.sites)} sites)"


def draw(view: ActivationFiles, everything: bool = False) -> Page:
    title = f"{view.model}: activations of {pluralize(view.texts, 'text')}"
    kept = "each token" if view.positions == "all" else "the last token of each text"
    size = format_bytes(sum(site.bytes for site in view.sites))
    lines = [
        f"{pluralize(view.tokens, 'token')}; of {kept} a row in {view.dtype}: {pluralize(view.rows, 'row')}, {size} in "
        f"{pluralize(view.shards, 'shard')} in {view.folder}"
    ]
    if view.cut:
        lines.append(f"{pluralize(view.cut, 'text')} had more tokens than were read")
    if not view.complete:
        lines.append("the recording was stopped before its end: --resume goes on")
    rows = [TableRow((site.site, format_shape(site.shape), format_bytes(site.bytes))) for site in view.sites]
    columns = (Column("site"), Column("shape of a row"), Column("size", "number"))
    table = Table(columns, tuple(rows) if everything else elide_middle(rows, ROWS))
    return Page(title, (Heading(title), Paragraph("\n".join(lines)), table))
