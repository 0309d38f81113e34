"""token-classification: which label each token has, and the entities that tokens of one label form.

A text that is longer than the model can read is read in overlapping windows, and each token's scores are taken from the
window in which it is farthest from an edge; only then are entities formed, so that no window's edge cuts one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.tasks.forward import EncodedRow, ForwardTask, input_rows, softmax, unpad
from glassformer.tasks.task import TaskOptions, parse_text

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class EntityOptions(TaskOptions):
    CHOICES: ClassVar = {"aggregation_strategy": STRATEGIES}

    aggregation_strategy: str = "none"  # how tokens form entities; see TokenClassificationTask
    ignore_labels: Sequence[str] = ("O",)  # labels to leave out
    stride: int | None = None  # tokens that neighboring windows of a long text share; by default a quarter of a window
    is_split_into_words: bool = False  # the input is a list of words
    delimiter: str = " "  # between those words, in the text that start and end count in


@dataclass(frozen=True)
class LabelledToken:
    piece: str  # as it is in the vocabulary
    probabilities: npt.NDArray[np.float32]  # (labels,)
    start: int
    end: int
    index: int  # in the encoded text
    continues_word: bool  # belongs to the same word as the token before it


@dataclass(frozen=True)
class EntitySpan:
    """One or more tokens under one label."""

    label: str
    score: float
    pieces: list[str]
    start: int
    end: int

    @property
    def entity_type(self) -> str:
        """The label without its B- or I- mark, which says whether it begins an entity or continues one."""
        return self.label[2:] if self.label[:2] in ("B-", "I-") else self.label


class TokenClassificationTask(ForwardTask):
    """Labeled tokens, `[{"entity", "score", "index", "word", "start", "end"}, …]`, or entities made of them.

    How tokens become entities (`aggregation_strategy`):
        none       they do not
        simple     neighbors of one type are one entity; a B- label begins another
        first      the same, but a word has the label of its first token
        average    … the label with the best mean probability over its tokens
        max        … the label of its most confident token
    """

    name = "token-classification"
    about = "the names and places in a text"
    heads = ("token",)
    suggested = "bert-ner"
    example = "Ada Lovelace lived in London."
    options_type = EntityOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if (
            self._merge_options(options).is_split_into_words
            and isinstance(inputs, Sequence)
            and all(isinstance(word, str) for word in inputs)
        ):
            inputs = [inputs]  # one text's words are a batch of one, as in transformers
        return super().__call__(inputs, **options)

    def parse_input(self, value: Any, options: EntityOptions) -> Any:
        if not options.is_split_into_words:
            return parse_text(value)
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
            raise InputTypeError("with is_split_into_words=True an input is a list of words.")
        if not value:
            raise InputError("the list of words is empty. Give it at least one.")
        return list(value)

    def preprocess(self, items: Sequence[Any], options: EntityOptions) -> list[EncodedRow]:
        encoding = self.tokenizer(
            list(items),
            is_split_into_words=options.is_split_into_words,
            truncation=True,
            max_length=self.limit,
            stride=self._stride(options),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        rows = input_rows(encoding)
        if not options.is_split_into_words:
            return rows
        return [EncodedRow(row.owner, {**row.columns, "words": encoding.word_ids(index)}) for index, row in enumerate(rows)]

    def _stride(self, options: EntityOptions) -> int:
        room = self.limit - self.tokenizer.num_special_tokens_to_add()
        stride = room // 4 if options.stride is None else options.stride
        if not 0 <= stride < room:
            raise SettingError(f"stride is {stride}; windows of {room} tokens can share at least 0 and fewer than that.")
        return stride

    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        return [softmax(scores) for scores in unpad(output.logits, rows)]

    def postprocess(
        self, item: Any, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: EntityOptions
    ) -> list[dict[str, Any]]:
        text = options.delimiter.join(item) if options.is_split_into_words else item
        tokens = list(self._tokens(item, text, rows, outputs, options))
        strategy = options.aggregation_strategy.lower()
        if strategy == "none":
            return [
                {
                    "entity": span.label, "score": span.score, "index": token.index, "word": token.piece,
                    "start": token.start, "end": token.end,
                }
                for token in tokens
                if (span := self._span([token], token.probabilities)).label not in options.ignore_labels
            ]  # fmt: skip
        if strategy == "simple":
            spans = [self._span([token], token.probabilities) for token in tokens]
        else:
            spans = self._word_spans(tokens, strategy)
        return [
            {
                "entity_group": group[0].entity_type,
                "score": float(np.mean([span.score for span in group])),
                "word": self.tokenizer.convert_tokens_to_string([piece for span in group for piece in span.pieces]),
                "start": group[0].start,
                "end": group[-1].end,
            }
            for group in group_spans(spans)
            if group[0].entity_type not in options.ignore_labels
        ]

    def _tokens(
        self, item: Any, text: str, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: EntityOptions
    ) -> Iterator[LabelledToken]:
        """The text's own tokens, each from the window that has most context around it."""
        word_starts = np.cumsum([0, *(len(word) + len(options.delimiter) for word in item)]) if text is not item else None
        step = max(1, len(_text_positions(rows[0])) - self._stride(options))
        best: dict[int, tuple[int, EncodedRow, int, Any]] = {}  # by the token's index in the text
        for window, (row, probabilities) in enumerate(zip(rows, outputs, strict=True)):
            positions = _text_positions(row)
            for index, position in enumerate(positions):
                distance = min(index, len(positions) - 1 - index)
                if window * step + index not in best or distance > best[window * step + index][0]:
                    best[window * step + index] = distance, row, position, probabilities[position]
        first = _text_positions(rows[0])[0] if best else 0
        for index in sorted(best):
            _, row, position, probabilities = best[index]
            start, end = row.columns["offset_mapping"][position]
            if word_starts is not None:
                word_start = int(word_starts[row.columns["words"][position]])
                start, end = start + word_start, end + word_start
            token_id = row.columns["input_ids"][position]
            unknown = token_id == self.tokenizer.unk_token_id
            piece = text[start:end] if unknown else self.tokenizer.convert_ids_to_tokens(token_id)
            continues_word = not unknown and self._continues_word(piece, text, start, end)
            yield LabelledToken(piece, probabilities, start, end, index + first, continues_word)

    def _continues_word(self, piece: str, text: str, start: int, end: int) -> bool:
        """Whether a piece continues a word: WordPiece marks those; elsewhere a missing space shows it."""
        if getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None):
            return len(piece) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]

    def _span(self, tokens: Sequence[LabelledToken], probabilities: npt.NDArray[np.float32]) -> EntitySpan:
        best = int(probabilities.argmax())
        pieces = [token.piece for token in tokens]
        return EntitySpan(self.model.label(best), float(probabilities[best]), pieces, tokens[0].start, tokens[-1].end)

    def _word_spans(self, tokens: Sequence[LabelledToken], strategy: str) -> list[EntitySpan]:
        """A span for each word, under one label."""
        words: list[list[LabelledToken]] = []
        for token in tokens:
            if token.continues_word and words:
                words[-1].append(token)
            else:
                words.append([token])
        return [self._word_span(word, strategy) for word in words]

    def _word_span(self, word: Sequence[LabelledToken], strategy: str) -> EntitySpan:
        match strategy:
            case "first":
                probabilities = word[0].probabilities
            case "max":
                probabilities = max((token.probabilities for token in word), key=lambda values: float(values.max()))
            case _:
                probabilities = np.mean([token.probabilities for token in word], axis=0)
        span = self._span(word, probabilities)
        return replace(span, pieces=[self.tokenizer.convert_tokens_to_string(span.pieces)])


def group_spans(spans: Sequence[EntitySpan]) -> list[list[EntitySpan]]:
    """Neighbors of one type; a label marked B- begins a new group."""
    groups: list[list[EntitySpan]] = []
    for span in spans:
        if groups and groups[-1][-1].entity_type == span.entity_type and not span.label.startswith("B-"):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _text_positions(row: EncodedRow) -> list[int]:
    """The positions of a row's tokens that are text, and no special tokens around it."""
    return [position for position, special in enumerate(row.columns["special_tokens_mask"]) if not special]
