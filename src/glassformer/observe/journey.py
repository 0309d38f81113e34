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
    parameters: int = 0  # of all the blocks that this row stands for
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> Any:
        from glassformer.show.terminal import journey

        return journey(self)

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
    return Journey(name, text, tokens, tuple(stages(blueprint, len(ids))), candidates(tokenizer, top))


def candidates(tokenizer: Tokenizer, top: Candidates) -> tuple[Candidate, ...]:
    """Candidates with their texts."""
    return tuple(
        Candidate(int(i), shown_bytes(tokenizer.token_bytes(int(i))), float(score), float(probability))
        for i, score, probability in zip(top.ids, top.scores, top.probabilities, strict=True)
    )


def stages(blueprint: Blueprint, length: int) -> list[Stage]:
    """Every shape from ids to text, for one prompt of so many tokens, with equal blocks folded into one."""
    sizes = {"batch": 1, "length": length, "keys": length}
    before, blocks, after = _parts(blueprint)
    counted: set[str] = set()
    found = [
        Stage("ids", (1, length), 'tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")'),
        Stage("sites", (len(blueprint.sites),), 'at = model(**tokens, watch="*").sites'),
        *_rows(before, sizes, counted),
    ]
    first = 0
    while first < len(blocks):
        last = first
        while last + 1 < len(blocks) and _alike(blocks[first], blocks[last + 1]):
            last += 1
        found += _rows(blocks[first], sizes, counted, (first, last))
        first = last + 1
    vocabulary = blueprint.ops[-1].shape[-1]
    assert isinstance(vocabulary, int)
    return [
        *found,
        *_rows(after, sizes, counted),
        Stage("next scores", (1, vocabulary), "scores = model(**tokens).logits[:, -1]"),
        Stage("best id", (1, 1), "best = scores.topk(1).indices"),
        Stage("next text", (1,), "tokenizer.decode(best)"),
    ]


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


def _rows(ops: list[Op], sizes: dict[str, int], counted: set[str], blocks: tuple[int, int] | None = None) -> list[Stage]:
    """A row for each site of these ops; an op without one lends its parameters to the next that has."""
    rows = []
    waiting = 0
    many = blocks[1] - blocks[0] + 1 if blocks else 1
    for op in ops:
        waiting += sum(weight.elements for weight in op.weights if weight.name not in counted)
        counted.update(weight.name for weight in op.weights)  # a tied table counts where it is first used
        for site, shape in [*op.beside.items(), *([(op.site, op.shape)] if op.site else [])]:
            real = tuple(sizes[size] if isinstance(size, str) else size for size in shape)
            rows.append(Stage(site, real, f'at["{site}"]', op.module, waiting * many, blocks))
            waiting = 0
    return rows
