"""The answers of tasks, drawn for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.page.format import escape_control

CONTEXT_CHARACTERS = 30  # before and after an answer
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def render_answers(task: str, pairs: Sequence[tuple[Any, Any]]) -> RenderableType:
    """Inputs and their answers, in the task's own form."""
    if task == "similarity":
        return _similarities(pairs)
    render: Callable[[Any, Any], RenderableType] = RENDERERS.get(task, _generated)
    if len(pairs) == 1:
        return render(*pairs[0])
    return Group(*(part for value, answer in pairs for part in (_input_line(value), render(value, answer))))


def _input_line(value: Any) -> Text:
    """An input, above its answer."""
    text = value.get("question", value.get("query", value.get("text", ""))) if isinstance(value, Mapping) else value
    return _text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _text(value: Any, **options: Any) -> Text:
    """A text from anywhere."""
    return Text(escape_control(str(value)), **options)


def _probability(value: float) -> str:
    """A probability; raw scores stay as they are."""
    return f"{value:6.1%}" if 0 <= value <= 1 else f"{value:6.3g}"


def _rows(rows: Sequence[Sequence[Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _text(cell) for cell in row))
    return table


def _gaps(text: str, answer: Any) -> RenderableType:
    gaps = answer if answer and isinstance(answer[0], list) else [answer]
    several = len(gaps) > 1
    return _rows(
        [
            [
                *([f"gap {number}"] if several else []),
                _probability(candidate["score"]),
                _text(candidate["token_str"], style="bold"),
                candidate["sequence"],
            ]
            for number, candidates in enumerate(gaps, 1)
            for candidate in candidates
        ]
    )


def _labels(text: Any, answer: Any) -> RenderableType:
    labels = answer if isinstance(answer, list) else [answer]
    return _rows([[_probability(label["score"]), _text(label["label"], style="bold")] for label in labels])


def _own_labels(text: Any, answer: Mapping[str, Any]) -> RenderableType:
    pairs = zip(answer["scores"], answer["labels"], strict=True)
    return _rows([[_probability(score), _text(label, style="bold")] for score, label in pairs])


def _ranking(value: Mapping[str, Any], answer: Sequence[Mapping[str, Any]]) -> RenderableType:
    documents = value["documents"]
    return _rows([[_probability(entry["score"]), documents[entry["index"]]] for entry in answer])


def _entities(value: Any, answer: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The text with its entities in colour, and a line for each."""
    if not answer:
        return Text("no entities", style="dim")
    types = [entity.get("entity_group", entity.get("entity")) for entity in answer]
    colours = dict(zip(dict.fromkeys(types), cycle(COLOURS), strict=False))
    source = value if isinstance(value, str) else " ".join(value)
    text = _text(source)
    rows = []
    for kind, entity in zip(types, answer, strict=True):
        start, end = entity["start"], entity["end"]
        first, last = (len(escape_control(source[:offset])) for offset in (start, end))
        text.stylize(f"bold {colours[kind]}", first, last)
        name = _text(kind, style=colours[kind])
        rows.append([_probability(entity["score"]), name, source[start:end], f"{start}–{end}"])
    return Group(text, _rows(rows))


def _passages(question: Mapping[str, str], answer: Any) -> RenderableType:
    rows = []
    for passage in answer if isinstance(answer, list) else [answer]:
        before, after = question["context"][: passage["start"]], question["context"][passage["end"] :]
        if len(before) > CONTEXT_CHARACTERS:
            before = f"…{before[-CONTEXT_CHARACTERS:].partition(' ')[2]}"
        if len(after) > CONTEXT_CHARACTERS:
            after = f"{after[:CONTEXT_CHARACTERS].rpartition(' ')[0]}…"
        pieces = ((before, "dim"), (passage["answer"], "bold"), (after, "dim"))
        context = Text.assemble(*((escape_control(piece.replace("\n", " ")), style) for piece, style in pieces))
        rows.append([_probability(passage["score"]), _text(passage["answer"] or "no answer", style="bold"), context])
    return _rows(rows)


def _vector(text: str, answer: Any) -> RenderableType:
    numbers = "  ".join(f"{number:.4f}" for number in answer[:6].tolist())
    return Text(f"{len(answer)} numbers: {numbers}{'  …' if len(answer) > 6 else ''}")


def _states(text: str, answer: Any) -> RenderableType:
    return Text(f"({len(answer)}, {len(answer[0])}, {len(answer[0][0])}): {len(answer[0])} tokens; --json gives the numbers")


def _generated(text: Any, answer: Sequence[Mapping[str, str]]) -> RenderableType:
    return Group(*(_text(next(iter(result.values()))) for result in answer))


def _similarities(pairs: Sequence[tuple[tuple[str, str], float]]) -> RenderableType:
    """The most similar first."""
    one_first = len({first for (first, _), _ in pairs}) == 1
    best_first = sorted(pairs, key=lambda pair: -pair[1])
    return _rows([[f"{score:.3f}", second if one_first else f"{first} · {second}"] for (first, second), score in best_first])


RENDERERS: Mapping[str, Callable[[Any, Any], RenderableType]] = {
    "fill-mask": _gaps,
    "text-classification": _labels,
    "zero-shot-classification": _own_labels,
    "rerank": _ranking,
    "token-classification": _entities,
    "question-answering": _passages,
    "embed": _vector,
    "feature-extraction": _states,
}
