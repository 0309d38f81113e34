"""A receipt, and what came of replaying one."""

from __future__ import annotations

from glassformer.observe.receipt import Receipt, Replay
from glassformer.show.journey import shortened
from glassformer.show.page import Column, Heading, Page, Part, Passage, Row, Table, Words, middle
from glassformer.show.words import tame, visible

MOST = 64


def page(found: Receipt, everything: bool = False) -> Page:
    about = {
        "model": found.model,
        "path": found.path or "",
        "weights": f"sha256 {found.weights}" if found.weights else "in memory",
        "executor": ", ".join(str(found.executor.get(name, "")) for name in ("name", "dtype")),
        "versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "seed": "" if found.seed is None else str(found.seed),
        "ended": found.finish or "",
        "changed": ", ".join(found.changes),
    }
    rows = tuple(Row((name, value)) for name, value in about.items() if value)
    settings = tuple(Row((name, str(was.value), was.origin)) for name, was in found.settings.items())
    tokens = [
        Row((str(number), str(one.id), visible(one.text), "" if one.draw is None else f"{one.draw:.6f}"))
        for number, one in enumerate(found.steps)
    ]
    columns = (Column("", "number"), Column("id", "number"), Column("token", "token", least=8), Column("draw", "number"))
    parts: list[Part] = [
        Heading("what it was made with"),
        Table((Column(), Column(least=20)), rows),
        Heading("settings, and where each came from"),
        Table((Column("setting"), Column("value", least=12), Column("from")), settings),
        Heading("the prompt, as the model saw it"),
        Passage(shortened(found.prompt, everything)),
        Heading("what came out"),
        Words(tame(found.text)),
        Table(columns, tuple(tokens) if everything else middle(tokens, MOST)),
    ]
    return Page(f"{found.model}: receipt", tuple(parts))


def replay(found: Replay, everything: bool = False) -> Page:
    parts: list[Part] = []
    if found.identical:
        parts.append(Words("identical: every token is the same", "chosen"))
    else:
        was = "the end" if found.was is None else visible(found.was)
        now = "the end" if found.now is None else visible(found.now)
        parts.append(Words(f"not identical: at token {found.step} there was {was}, now it is {now}", "strong"))
        logs = ["–" if one is None else f"{one:.4f}" for one in found.logprobs]
        parts.append(Words(f"their log-probabilities: {logs[0]} then, {logs[1]} now", "dim"))
    parts += [Words(one, "dim") for one in found.differences]
    return Page("replay", tuple(parts))
