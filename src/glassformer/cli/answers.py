"""Tasks' answers for people: one small picture per kind of answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

AROUND = 30  # characters before and after an answer
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def answers(task: str, found: Sequence[tuple[Any, Any]]) -> RenderableType:
    """Inputs and their answers, in the task's own form."""
    if task == "similarity":
        return _similar(found)
    form: Callable[[Any, Any], RenderableType] = FORMS.get(task, _written)
    shown = [form(given, answer) for given, answer in found]
    if len(shown) == 1:
        return shown[0]
    return Group(*(part for (given, _), one in zip(found, shown, strict=True) for part in (_asked(given), one)))


def _asked(given: Any) -> Text:
    """What an answer belongs to, where there are several."""
    text = given.get("question", given.get("text", "")) if isinstance(given, Mapping) else given
    return Text(str(text), style="dim", no_wrap=True, overflow="ellipsis")


def _share(value: float) -> str:
    """A probability; raw scores stay as they are."""
    return f"{value:6.1%}" if 0 <= value <= 1 else f"{value:6.3g}"


def _rows(rows: Sequence[Sequence[Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return table


def _filled(given: str, answer: Any) -> RenderableType:
    gaps = answer if answer and isinstance(answer[0], list) else [answer]
    several = len(gaps) > 1
    return _rows(
        [
            [
                *([f"gap {number}"] if several else []),
                _share(one["score"]),
                Text(one["token_str"], style="bold"),
                one["sequence"],
            ]
            for number, gap in enumerate(gaps, 1)
            for one in gap
        ]
    )


def _labels(given: Any, answer: Any) -> RenderableType:
    every = answer if isinstance(answer, list) else [answer]
    return _rows([[_share(one["score"]), Text(one["label"], style="bold")] for one in every])


def _entities(given: Any, answer: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The text with its entities in colour, and a line for each."""
    if not answer:
        return Text("no entities", style="dim")
    kinds = list(dict.fromkeys(one.get("entity_group", one.get("entity")) for one in answer))
    colour = {kind: COLOURS[at % len(COLOURS)] for at, kind in enumerate(kinds)}
    text = Text(given if isinstance(given, str) else " ".join(given))
    rows = []
    for one in answer:
        kind = one.get("entity_group", one.get("entity"))
        text.stylize(f"bold {colour[kind]}", one["start"], one["end"])
        place = f"{one['start']}–{one['end']}"
        rows.append(
            [_share(one["score"]), Text(str(kind), style=colour[kind]), text.plain[one["start"] : one["end"]], place]
        )
    return Group(text, _rows(rows))


def _passages(given: Mapping[str, str], answer: Any) -> RenderableType:
    every = answer if isinstance(answer, list) else [answer]
    rows = []
    for one in every:
        before, after = given["context"][: one["start"]], given["context"][one["end"] :]
        before = before if len(before) <= AROUND else f"…{before[-AROUND:].partition(' ')[2]}"
        after = after if len(after) <= AROUND else f"{after[:AROUND].rpartition(' ')[0]}…"
        around = Text.assemble((before, "dim"), (one["answer"], "bold"), (after, "dim"))
        around.plain = around.plain.replace("\n", " ")
        rows.append([_share(one["score"]), Text(one["answer"] or "no answer", style="bold"), around])
    return _rows(rows)


def _vector(given: str, answer: Any) -> RenderableType:
    shown = "  ".join(f"{number:.4f}" for number in answer[:6].tolist())
    return Text(f"{len(answer)} numbers: {shown}{'  …' if len(answer) > 6 else ''}")


def _states(given: str, answer: Any) -> RenderableType:
    return Text(f"({len(answer)}, {len(answer[0])}, {len(answer[0][0])}): {len(answer[0])} tokens; --json gives the numbers")


def _written(given: Any, answer: Sequence[Mapping[str, str]]) -> RenderableType:
    return Group(*(Text(str(next(iter(one.values())))) for one in answer))


def _similar(found: Sequence[tuple[tuple[str, str], float]]) -> RenderableType:
    """The most alike first."""
    order = sorted(found, key=lambda one: -one[1])
    return _rows(
        [
            [f"{score:.3f}", second if len({a for (a, _), _ in found}) == 1 else f"{first} · {second}"]
            for (first, second), score in order
        ]
    )


FORMS: Mapping[str, Callable[[Any, Any], RenderableType]] = {
    "fill-mask": _filled,
    "text-classification": _labels,
    "token-classification": _entities,
    "question-answering": _passages,
    "embed": _vector,
    "feature-extraction": _states,
}
