"""The terminal's view, with rich. Fits 80 columns and reads without colour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from glassformer.observe.journey import Candidate, Journey, Stage
from glassformer.observe.tokens import Token
from glassformer.observe.vocabulary import Vocabulary

MOST_TOKENS = 96
MOST_CHARACTERS = 1200
BAR = 20
NARROW = 20  # characters: less than that is no room for a line of Python
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(what: RenderableType, width: int = 100) -> str:
    """As text, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def journey(j: Journey, everything: bool = False) -> RenderableType:
    """A journey from top to bottom; long prompts are shortened in the middle unless `everything` is wanted."""
    special = [token.text for token in j.tokens if token.special]
    return Group(
        Rule(f"1 · the prompt, as {j.model} sees it", align="left"),
        Padding(prompt(j.prompt, special, everything), (0, 2)),
        Rule(f"2 · {len(j.tokens)} tokens, out of {j.vocabulary.listed:,}", align="left"),
        tokens(j.tokens, everything),
        Rule("3 · shapes on the way", align="left"),
        Stages(j.stages),
        *(answer(j) if j.candidates else [Text(f"  {j.answer}", "dim")]),
    )


def answer(j: Journey) -> list[RenderableType]:
    """What the model scores, and the best of it."""
    best = Text.assemble((visible(j.next.text), "bold reverse"), f"  id {j.next.id}, {j.next.probability:.1%} likely")
    return [
        Rule(f"4 · scores of {j.answer}", align="left"),
        *([Padding(vocabulary(j.vocabulary), (0, 2))] if j.vocabulary.scored else []),
        candidates(j.candidates, j.answer.split()[-1]),
        Rule(f"5 · {j.answer}", align="left"),
        Padding(best, (0, 2)),
    ]


def vocabulary(sizes: Vocabulary) -> Text:
    """Its sizes in a line, and why they differ."""
    why = sizes.why()
    return Text(f"vocabulary: {sizes.words()}" + (f"\n{why}" if why else ""), "dim")


def prompt(text: str, special: Sequence[str], everything: bool = False) -> Text:
    """The prompt with its special tokens marked."""
    if len(text) > MOST_CHARACTERS and not everything:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} more characters (--all) …\n{text[-half:]}"
    shown = Text(tame(text.rstrip("\n")))
    for token in set(special):
        shown.highlight_regex(re.escape(token), "bold magenta")
    return shown


def visible(text: str) -> str:
    """Spaces and line breaks that can be seen."""
    return tame(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def tame(text: str) -> str:
    r"""Control characters by their numbers, for they would act on the terminal; line breaks and tabs stay.

    >>> tame("a\x1b[2J\n")
    'a\\x1b[2J\n'
    """
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def tokens(rows: Sequence[Token], everything: bool = False) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    table.add_column("position", justify="right", style="dim")
    table.add_column("id", justify="right")
    table.add_column("token")
    table.add_column("text")
    half = MOST_TOKENS // 2
    whole = everything or len(rows) <= MOST_TOKENS
    for number, row in enumerate(rows if whole else [*rows[:half], *rows[-half:]]):
        if not whole and number == half:
            table.add_row("…", f"{len(rows) - 2 * half} more", "(--all)", "…")
        style = "bold magenta" if row.special else ""
        table.add_row(str(row.position), str(row.id), Text(tame(row.token), style), Text(visible(row.text), style))
    return table


@dataclass(frozen=True)
class Stages:
    """The shapes on the way, each with its line of Python.

    Where a block's lines do not fit, its heading says once how they begin; where there is no room at all, they go.
    """

    rows: Sequence[Stage]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("what", no_wrap=True)
        table.add_column("shape", no_wrap=True)
        table.add_column("weights", justify="right", no_wrap=True)
        told = [(self.name(row), size(row.shape), count(row.parameters)) for row in self.rows]
        left = options.max_width - sum(max(map(len, column)) + 2 for column in zip(*told, strict=True))
        brief = any(len(row.python) > left for row in self.rows if row.blocks)
        if left >= NARROW:
            table.add_column("Python", style="cyan", overflow="fold")
        said: tuple[str, tuple[int, int] | None] = ("", None)
        for row, columns in zip(self.rows, told, strict=True):
            if (row.stack, row.blocks) != said:
                said = row.stack, row.blocks
                if row.blocks is not None:
                    begins = f'at["{row.stack}blocks.{row.blocks[0]}.…"]' if brief else ""
                    table.add_row(Text(self.heading(row), "bold"), "", "", *([begins] if left >= NARROW else []))
            python = "" if brief and row.blocks else row.python
            table.add_row(*columns, *([python] if left >= NARROW else []))
        yield table

    def heading(self, row: Stage) -> str:
        assert row.blocks is not None
        first, last = row.blocks
        stack = row.stack.replace(".", " ") or ("decoder " if any(one.stack for one in self.rows) else "")
        return f"{stack}block {first}" if first == last else f"{stack}blocks {first}–{last}, each"

    @staticmethod
    def name(row: Stage) -> str:
        return row.name if row.blocks is None else "  " + re.sub(r"^(encoder\.)?blocks\.\d+\.", "", row.name)


def count(parameters: int) -> str:
    """
    >>> count(576), count(17_280), count(28_311_552), count(0)
    ('576', '17.3k', '28.3M', '')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters or "")


def share(probability: float) -> str:
    """
    >>> share(0.25), share(0.0001)
    ('25.0%', '<0.1%')
    """
    return f"{probability:.1%}" if probability >= 0.0005 else "<0.1%"


def size(shape: Sequence[int]) -> str:
    return "[" + ", ".join(str(one) for one in shape) + "]"


def candidates(rows: Sequence[Candidate], what: str) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    table.add_column(what)
    table.add_column("id", justify="right")
    table.add_column("score", justify="right")
    table.add_column("probability", justify="right")
    table.add_column("")
    for row in rows:
        bar = "█" * round(row.probability * BAR)
        table.add_row(Text(visible(row.text)), str(row.id), f"{row.score:.2f}", share(row.probability), Text(bar, "green"))
    return table
