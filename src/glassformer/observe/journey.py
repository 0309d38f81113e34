"""The journey: how a text becomes the next token, stage by stage, each with its shape and the Python that gives it.

    text ─ tokenizer ▶ ids ─ base model ▶ states ─ head ▶ scores ─ top 1 ▶ id ─ tokenizer ▶ text

An encoder-decoder's text is its source, and the next token the first of its target; an encoder's way ends at its states,
or at the scores of its head. Shapes come from the blueprint, so nothing has to be recorded; only the final scores come
from a real pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.candidates import Candidates
from glassformer.engine.protocol import Executor, Feed
from glassformer.errors import InputError
from glassformer.observe.seen import Seen
from glassformer.observe.tokens import Token
from glassformer.observe.vocabulary import Vocabulary
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.show.page import Page

TOP = 10


@dataclass(frozen=True)
class Stage:
    """One value on the way, or the same value in several equal blocks."""

    name: str  # a site, or one of the steps around the model
    shape: tuple[int, ...]
    python: str
    module: str = ""
    parameters: int = 0  # of one block, where the row stands for several
    blocks: tuple[int, int] | None = None  # first and last of the equal blocks
    stack: str = ""  # "encoder." in the encoder of an encoder-decoder


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str
    score: float
    probability: float


@dataclass(frozen=True)
class Journey(Seen):
    SCHEMA = "glassformer.journey/1"

    model: str
    prompt: str
    tokens: tuple[Token, ...]
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]
    vocabulary: Vocabulary
    answer: str = "the next token"  # what the candidates are for

    @property
    def next(self) -> Candidate:
        """The most likely next token, or whatever else the model scores."""
        if not self.candidates:
            raise InputError(f"{self.model} scores nothing: it ends with the states of its tokens.")
        return self.candidates[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.journey import page

        return page(self, everything)

    def __repr__(self) -> str:
        return f"Journey({len(self.tokens)} tokens → {self.next.text if self.candidates else 'states'!r})"


def journey(
    tokenizer: Tokenizer,
    blueprint: Blueprint,
    text: str,
    ids: Sequence[int],
    found: Sequence[Candidate] = (),
    *,
    name: str = "",
    answer: str = "the next token",
    start: int | None = None,
) -> Journey:
    """The journey of an encoded prompt to what was `found`; `start` is what an encoder-decoder's target begins with."""
    special = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    tokens = tuple(
        Token(n, i, tokenizer.convert_ids_to_tokens(i), shown_bytes(tokenizer.token_bytes(i)), i in special)
        for n, i in enumerate(ids)
    )
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"]) == list(ids)
    way = stages(blueprint, len(ids), len(text), plain=plain, start=start)
    return Journey(name, text, tokens, tuple(way), tuple(found), Vocabulary.of(tokenizer, blueprint), answer)


def next_token(
    tokenizer: Tokenizer, executor: Executor, ids: Sequence[int], start: int | None = None
) -> tuple[Candidate, ...]:
    """The best candidates for what follows a prompt, or for what an encoder-decoder's target begins with; one pass."""
    row = executor.open(None if start is None else ids)
    try:
        scores = executor.run([Feed(row, ids if start is None else (start,))])[0]
        return candidates(tokenizer, scores.top(TOP))
    finally:
        executor.close(row)


def candidates(tokenizer: Tokenizer, top: Candidates) -> tuple[Candidate, ...]:
    """Candidates with their texts."""
    return tuple(
        Candidate(int(i), shown_bytes(tokenizer.token_bytes(int(i))), float(score), float(probability))
        for i, score, probability in zip(top.ids, top.scores, top.probabilities, strict=True)
    )


def stages(
    blueprint: Blueprint,
    length: int,
    characters: int | None = None,
    *,
    plain: bool = True,
    start: int | None = None,
) -> list[Stage]:
    """Every shape from ids to text, for one prompt of so many tokens, with equal blocks folded into one."""
    own = 1 if blueprint.encoder else length  # an encoder-decoder's target so far: its start token
    sizes = {"batch": 1, "length": own, "keys": own, "source": length}
    weights = _weights(blueprint)
    around = ", add_special_tokens=False" if plain else ""
    begun = ", decoder_input_ids=start" if blueprint.encoder else ""
    found = [
        *([] if characters is None else [Stage("text", (characters,), "text  # all of part 1")]),
        Stage("ids", (1, length), f'tokens = tokenizer(text{around}, return_tensors="pt")'),
        *([Stage("start", (1, 1), f"start = torch.tensor([[{start}]])")] if blueprint.encoder else []),
        Stage("sites", (len(blueprint.sites),), f'at = model(**tokens{begun}, watch="*").sites'),
    ]
    runs = _runs(blueprint)
    first = 0
    while first < len(runs):
        last = first
        while last + 1 < len(runs) and _alike(blueprint, runs[first], runs[last + 1]):
            last += 1
        found += _rows(blueprint, runs[first], sizes, weights, blueprint.ops[runs[last][0]].block)
        first = last + 1
    if blueprint.head == "base" and blueprint.ops[-1].kind == "activate":  # a pooler, which the output gives by name
        hidden = blueprint.ops[-1].shape[-1]
        assert isinstance(hidden, int)
        found.append(Stage("pooled", (1, hidden), "model(**tokens).pooler_output"))
    if blueprint.head not in ("causal", "seq2seq"):
        return found
    vocabulary = blueprint.ops[-1].shape[-1]
    assert isinstance(vocabulary, int)
    return [
        *found,
        Stage("next scores", (1, vocabulary), f"scores = model(**tokens{begun}).logits[:, -1]"),
        Stage("best id", (1, 1), "best = scores.topk(1).indices"),
        Stage("next text", (1,), "tokenizer.decode(best)"),
    ]


def _weights(blueprint: Blueprint) -> dict[int, list[Weight]]:
    """The weights that go into what an op gives: its own, and those of ops on the way to it that nobody can see.

    A tied table counts where it is first used. What is seen nowhere in its own block stays with its op.
    """
    ops = blueprint.ops
    readers: dict[int, int] = {}
    for number, op in enumerate(ops):
        for source in op.reads:
            readers.setdefault(source, number)
    found: dict[int, list[Weight]] = {}
    counted: set[str] = set()
    for number, op in enumerate(ops):
        home = number
        while ops[home].site is None and home in readers and _place(ops[readers[home]]) == _place(op):
            home = readers[home]
        fresh = [weight for weight in op.weights if weight.name not in counted]
        found.setdefault(home if ops[home].site else number, []).extend(fresh)
        counted.update(weight.name for weight in fresh)
    return found


def _place(op: Op) -> tuple[str, int | None]:
    return op.stack, op.block


def _runs(blueprint: Blueprint) -> list[list[int]]:
    """The ops' numbers in runs: those of one block together, and what lies before, between and after."""
    runs: list[list[int]] = []
    for number, op in enumerate(blueprint.ops):
        if runs and _place(blueprint.ops[runs[-1][0]]) == _place(op):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _alike(blueprint: Blueprint, one: list[int], other: list[int]) -> bool:
    """Whether two runs are blocks of one stack that differ in nothing but their number."""

    def face(run: list[int]) -> list[Any]:
        ops = [blueprint.ops[number] for number in run]
        return [(op.kind, op.stack, op.shape, tuple(w.shape for w in op.weights), tuple(op.options.items())) for op in ops]

    blocks = (blueprint.ops[run[0]].block is not None for run in (one, other))
    return all(blocks) and face(one) == face(other)


def _rows(
    blueprint: Blueprint, run: list[int], sizes: dict[str, int], weights: dict[int, list[Weight]], last: int | None
) -> list[Stage]:
    """A row for each site of a run, which may stand for equal blocks up to the last; and for weights seen at none."""
    first = blueprint.ops[run[0]].block
    blocks = None if first is None or last is None else (first, last)
    rows = []
    for number in run:
        op, own = blueprint.ops[number], weights.get(number, [])
        for site, shape in [*op.beside.items(), *([(op.site, op.shape)] if op.site else [])]:
            real = tuple(sizes[size] if isinstance(size, str) else size for size in shape)
            count = sum(weight.elements for weight in own) if site == op.site else 0
            rows.append(Stage(site, real, f'at["{site}"]', op.module, count, blocks, op.stack))
        if op.site is None and own:
            count = sum(weight.elements for weight in own)
            python = f'model.get_parameter("{own[0].name}")'
            short = ".".join(op.module.split(".")[-2:]) if len(op.module) < 20 else op.module.rpartition(".")[2]
            rows.append(Stage(short, own[0].shape, python, op.module, count, blocks, op.stack))
    return rows
