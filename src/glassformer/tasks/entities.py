"""token-classification: which label each token has, and the entities that tokens of one label form.

A text that is longer than the model can read is read in overlapping windows, and each token's scores are taken from the
window in which it stands farthest from an edge; only then are entities formed, so that no window's edge cuts one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.errors import InputError, InputTypeError, SettingError
from glassformer.tasks.reading import Reading, Row, cut, rows_of, softmax
from glassformer.tasks.task import Options, check_choice, checked_text

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class EntityOptions(Options):
    aggregation_strategy: str = "none"  # how tokens are put together; see TokenClassification
    ignore_labels: Sequence[str] = ("O",)  # labels that stand for nothing
    stride: int | None = None  # how many tokens the windows of a long text share; by default a quarter of one
    is_split_into_words: bool = False  # the input is a list of words
    delimiter: str = " "  # what stands between those words in the text that start and end count in

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "aggregation_strategy", STRATEGIES)


@dataclass(frozen=True)
class Token:
    piece: str  # as the vocabulary spells it
    shares: npt.NDArray[np.float32]  # (labels,)
    start: int
    end: int
    index: int  # in the encoded text
    inner: bool  # goes on with the word before it


@dataclass(frozen=True)
class Part:
    """One or more tokens under one label."""

    label: str
    score: float
    pieces: list[str]
    start: int
    end: int

    @property
    def kind(self) -> str:
        """The label without the mark that says whether it begins an entity or goes on with one."""
        return self.label[2:] if self.label[:2] in ("B-", "I-") else self.label


class TokenClassification(Reading):
    """Labelled tokens, `[{"entity", "score", "index", "word", "start", "end"}, …]`, or entities made of them.

    How tokens become entities (`aggregation_strategy`):
        none       they do not
        simple     neighbours of one kind are one entity; a B- label begins another
        first      the same, but a word has the label of its first token
        average    … the label that is best on average over its tokens
        max        … the label of its surest token
    """

    name = "token-classification"
    about = "the names and places in a text"
    heads = ("token",)
    suggested = "bert-ner"
    example = "Ada Lovelace lived in London."
    Options = EntityOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if (
            self._given(options).is_split_into_words
            and isinstance(inputs, Sequence)
            and all(isinstance(w, str) for w in inputs)
        ):
            inputs = [inputs]  # one text's words are a batch of one, as the field has it
        return super().__call__(inputs, **options)

    def check(self, given: Any, options: EntityOptions) -> Any:
        if not options.is_split_into_words:
            return checked_text(given)
        if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise InputTypeError("with is_split_into_words=True an input is a list of words.")
        if not given:
            raise InputError("the list of words is empty. Give it at least one.")
        return list(given)

    def rows(self, items: Sequence[Any], options: EntityOptions) -> list[Row]:
        encoded = self.tokenizer(
            list(items),
            is_split_into_words=options.is_split_into_words,
            truncation=True,
            max_length=self.limit,
            stride=self._stride(options),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        rows = rows_of(encoded)
        if not options.is_split_into_words:
            return rows
        return [Row(row.owner, {**row.columns, "words": encoded.word_ids(at)}) for at, row in enumerate(rows)]

    def _stride(self, options: EntityOptions) -> int:
        room = self.limit - self.tokenizer.num_special_tokens_to_add()
        stride = room // 4 if options.stride is None else options.stride
        if not 0 <= stride < room:
            raise SettingError(f"stride is {stride}; windows of {room} tokens can share at least 0 and fewer than that.")
        return stride

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        return [softmax(scores) for scores in cut(output.logits, rows)]

    def conclude(self, item: Any, rows: Sequence[Row], found: Sequence[Any], options: EntityOptions) -> list[dict[str, Any]]:
        text = options.delimiter.join(item) if options.is_split_into_words else item
        tokens = list(self._tokens(item, text, rows, found, options))
        strategy = options.aggregation_strategy.lower()
        if strategy == "none":
            return [
                {
                    "entity": part.label, "score": part.score, "index": token.index, "word": token.piece,
                    "start": token.start, "end": token.end,
                }
                for token in tokens
                if (part := self._part([token], token.shares)).label not in options.ignore_labels
            ]  # fmt: skip
        parts = [self._part([one], one.shares) for one in tokens] if strategy == "simple" else self._words(tokens, strategy)
        return [
            {
                "entity_group": group[0].kind,
                "score": float(np.mean([part.score for part in group])),
                "word": self.tokenizer.convert_tokens_to_string([piece for part in group for piece in part.pieces]),
                "start": group[0].start,
                "end": group[-1].end,
            }
            for group in grouped(parts)
            if group[0].kind not in options.ignore_labels
        ]

    def _tokens(
        self, item: Any, text: str, rows: Sequence[Row], found: Sequence[Any], options: EntityOptions
    ) -> Iterator[Token]:
        """The text's own tokens, each out of the window that shows most of what is around it."""
        begins = np.cumsum([0, *(len(word) + len(options.delimiter) for word in item)]) if text is not item else None
        step = max(1, len(_own(rows[0])) - self._stride(options))
        best: dict[int, tuple[int, Row, int, Any]] = {}
        for number, (row, shares) in enumerate(zip(rows, found, strict=True)):
            own = _own(row)
            for at, place in enumerate(own):
                distance = min(at, len(own) - 1 - at)
                if number * step + at not in best or distance > best[number * step + at][0]:
                    best[number * step + at] = distance, row, place, shares[place]
        first = _own(rows[0])[0] if best else 0
        for position in sorted(best):
            _, row, place, shares = best[position]
            start, end = row.columns["offset_mapping"][place]
            if begins is not None:
                begin = int(begins[row.columns["words"][place]])
                start, end = start + begin, end + begin
            number = row.columns["input_ids"][place]
            unknown = number == self.tokenizer.unk_token_id
            piece = text[start:end] if unknown else self.tokenizer.convert_ids_to_tokens(number)
            inner = not unknown and self._inner(piece, text, start, end)
            yield Token(piece, shares, start, end, position + first, inner)

    def _inner(self, piece: str, text: str, start: int, end: int) -> bool:
        """Whether a piece goes on with a word: WordPiece marks those; elsewhere the spaces must tell."""
        if getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None):
            return len(piece) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]

    def _part(self, tokens: Sequence[Token], shares: npt.NDArray[np.float32]) -> Part:
        best = int(shares.argmax())
        pieces = [token.piece for token in tokens]
        return Part(self.model.label(best), float(shares[best]), pieces, tokens[0].start, tokens[-1].end)

    def _words(self, tokens: Sequence[Token], strategy: str) -> list[Part]:
        """Whole words, each under one label."""
        words: list[list[Token]] = []
        for token in tokens:
            if token.inner and words:
                words[-1].append(token)
            else:
                words.append([token])
        return [self._word(word, strategy) for word in words]

    def _word(self, word: Sequence[Token], strategy: str) -> Part:
        match strategy:
            case "first":
                shares = word[0].shares
            case "max":
                shares = max((token.shares for token in word), key=lambda one: float(one.max()))
            case _:
                shares = np.mean([token.shares for token in word], axis=0)
        part = self._part(word, shares)
        text = self.tokenizer.convert_tokens_to_string(part.pieces)
        return Part(part.label, part.score, [text], part.start, part.end)


def grouped(parts: Sequence[Part]) -> list[list[Part]]:
    """Neighbours of one kind; a label marked B- begins a new group."""
    groups: list[list[Part]] = []
    for part in parts:
        if groups and groups[-1][-1].kind == part.kind and not part.label.startswith("B-"):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _own(row: Row) -> list[int]:
    """The places of a row's tokens that are text, and not put around it."""
    return [at for at, special in enumerate(row.columns["special_tokens_mask"]) if not special]
