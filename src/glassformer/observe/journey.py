"""The journey: how a text becomes the next token, stage by stage, each with its shape and the Python that gives it.

    text ─ tokenizer ▶ ids ─ base model ▶ states ─ head ▶ scores ─ top 1 ▶ id ─ tokenizer ▶ text

Shapes come from the blueprint, so nothing has to be recorded; only the final scores come from a real pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glassformer.blueprints import Blueprint, Op
from glassformer.candidates import Candidates
from glassformer.engine.protocol import Executor, Feed
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes

TOP = 10


@dataclass(frozen=True)
class Token:
    """One token of the prompt."""

    position: int
    id: int
    token: str  # as the vocabulary spells it
    text: str  # as it reads; half a character as its bytes
    special: bool


@dataclass(frozen=True)
class Stage:
    """One value on the way, or the same value in several equal blocks."""

    name: str  # a site, or one of the steps around the model
    shape: tuple[int, ...]
    python: str
    module: str = ""
    parameters: int = 0  # of one block, where the row stands for several
    blocks: tuple[int, int] | None = None  # first and last of the equal blocks


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str
    score: float
    probability: float


@dataclass(frozen=True)
class Journey:
    model: str
    prompt: str
    tokens: tuple[Token, ...]
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]

    @property
    def next(self) -> Candidate:
        """The most likely next token."""
        return self.candidates[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> Any:
        from glassformer.show.terminal import journey

        return journey(self)

    def __str__(self) -> str:
        """The whole picture, without colours."""
        from rich.console import Console

        console = Console(width=100, no_color=True, force_terminal=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get()

    def __repr__(self) -> str:
        return f"Journey({len(self.tokens)} tokens → {self.next.text!r})"


def journey(
    tokenizer: Tokenizer, blueprint: Blueprint, executor: Executor, text: str, ids: Sequence[int], name: str = ""
) -> Journey:
    """The journey of an encoded prompt; one pass of the executor."""
    row = executor.open()
    try:
        scores = executor.run([Feed(row, ids)])[0]
        top = scores.top(TOP)
    finally:
        executor.close(row)
    special = set(tokenizer.get_added_vocab().values())
    tokens = tuple(
        Token(n, i, tokenizer.convert_ids_to_tokens(i), shown_bytes(tokenizer.token_bytes(i)), i in special)
        for n, i in enumerate(ids)
    )
    return Journey(name, text, tokens, tuple(stages(blueprint, len(ids), len(text))), candidates(tokenizer, top))


def candidates(tokenizer: Tokenizer, top: Candidates) -> tuple[Candidate, ...]:
    """Candidates with their texts."""
    return tuple(
        Candidate(int(i), shown_bytes(tokenizer.token_bytes(int(i))), float(score), float(probability))
        for i, score, probability in zip(top.ids, top.scores, top.probabilities, strict=True)
    )


def stages(blueprint: Blueprint, length: int, characters: int | None = None) -> list[Stage]:
    """Every shape from ids to text, for one prompt of so many tokens, with equal blocks folded into one."""
    sizes = {"batch": 1, "length": length, "keys": length}
    before, blocks, after = _parts(blueprint)
    weights = _weights(blueprint)
    found = [
        *([] if characters is None else [Stage("text", (characters,), "text  # all of part 1")]),
        Stage("ids", (1, length), 'tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")'),
        Stage("sites", (len(blueprint.sites),), 'at = model(**tokens, watch="*").sites'),
        *_rows(before, sizes, weights),
    ]
    first = 0
    while first < len(blocks):
        last = first
        while last + 1 < len(blocks) and _alike(blocks[first], blocks[last + 1]):
            last += 1
        found += _rows(blocks[first], sizes, weights, (first, last))
        first = last + 1
    vocabulary = blueprint.ops[-1].shape[-1]
    assert isinstance(vocabulary, int)
    return [
        *found,
        *_rows(after, sizes, weights),
        Stage("next scores", (1, vocabulary), "scores = model(**tokens).logits[:, -1]"),
        Stage("best id", (1, 1), "best = scores.topk(1).indices"),
        Stage("next text", (1,), "tokenizer.decode(best)"),
    ]


def _weights(blueprint: Blueprint) -> dict[str, int]:
    """How many weights go into what is seen at each site: its own op's, and those of ops on the way to it."""
    readers: dict[int, int] = {}
    for number, op in enumerate(blueprint.ops):
        for source in op.reads:
            readers.setdefault(source, number)
    counts: dict[str, int] = {}
    counted: set[str] = set()  # a tied table counts where it is first used
    for number, op in enumerate(blueprint.ops):
        home = number
        while blueprint.ops[home].site is None and home in readers:
            home = readers[home]
        site = blueprint.ops[home].site or ""
        fresh = [weight for weight in op.weights if weight.name not in counted]
        counts[site] = counts.get(site, 0) + sum(weight.elements for weight in fresh)
        counted.update(weight.name for weight in fresh)
    return counts


def _parts(blueprint: Blueprint) -> tuple[list[Op], list[list[Op]], list[Op]]:
    """The ops before the blocks, of each block, and after."""
    blocks: list[list[Op]] = [[] for _ in range(blueprint.blocks)]
    before: list[Op] = []
    after: list[Op] = []
    for op in blueprint.ops:
        if op.block is not None:
            blocks[op.block].append(op)
        else:
            (after if blocks[-1] else before).append(op)
    return before, blocks, after


def _alike(one: list[Op], other: list[Op]) -> bool:
    """Whether two blocks differ in nothing but their number."""

    def face(ops: list[Op]) -> list[Any]:
        return [(op.kind, op.shape, tuple(w.shape for w in op.weights), tuple(op.options.items())) for op in ops]

    return face(one) == face(other)


def _rows(
    ops: list[Op], sizes: dict[str, int], weights: dict[str, int], blocks: tuple[int, int] | None = None
) -> list[Stage]:
    """A row for each site of these ops."""
    rows = []
    for op in ops:
        for site, shape in [*op.beside.items(), *([(op.site, op.shape)] if op.site else [])]:
            real = tuple(sizes[size] if isinstance(size, str) else size for size in shape)
            rows.append(Stage(site, real, f'at["{site}"]', op.module, weights.get(site, 0), blocks))
    return rows
