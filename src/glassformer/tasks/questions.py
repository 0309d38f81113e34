"""question-answering: the passage of a text that answers a question.

A text that does not fit beside its question is read in overlapping windows. In each, every token has a score for an
answer's beginning and one for its end; a passage's score is the product of the two probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.candidates import top
from glassformer.errors import InputError, InputTypeError, SettingError
from glassformer.tasks.reading import Reading, Row, cut, rows_of, softmax
from glassformer.tasks.task import Options, check_positive, checked_text


@dataclass(frozen=True)
class QuestionOptions(Options):
    top_k: int = 1  # the best so many answers; more than one gives a list
    max_answer_len: int = 15  # tokens
    doc_stride: int = 128  # how many tokens the windows of a long text share
    max_seq_len: int = 384  # tokens of a window, question included
    handle_impossible_answer: bool = False  # an empty answer may win
    align_to_words: bool = True  # an answer is made of whole words

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "top_k", "max_answer_len", "max_seq_len")
        if isinstance(self.doc_stride, bool) or not isinstance(self.doc_stride, int) or self.doc_stride < 0:
            raise SettingError(f"doc_stride is {self.doc_stride!r}; it must be a whole number of at least 0.")


@dataclass(frozen=True)
class Asked:
    question: str
    context: str
    room: int  # tokens of the context that fit beside the question


class QuestionAnswering(Reading):
    """The best passage, `{"score", "start", "end", "answer"}`; a list of them with `top_k` above 1."""

    name = "question-answering"
    about = "the passage that answers a question"
    heads = ("question",)
    suggested = "distilbert-squad"
    example = "Where does Ada live? --context 'Ada lives in London.'"
    Options = QuestionOptions

    def __call__(
        self, inputs: Any = None, context: str | Sequence[str] | None = None, *, question: Any = None, **options: Any
    ) -> Any:
        """One question, as `question=…, context=…` or as a mapping with those two, or a list of such mappings."""
        if context is not None and question is None:
            inputs, question = None, inputs
        if inputs is None:
            if question is None or context is None:
                raise InputError("give a question and the context that answers it: task(question='…', context='…').")
            inputs = {"question": question, "context": context}
            if isinstance(question, (list, tuple)):
                contexts = [context] * len(question) if isinstance(context, str) else context
                if len(contexts) != len(question):
                    raise InputError(f"there are {len(question)} questions but {len(contexts)} contexts. Give each one.")
                inputs = [{"question": q, "context": c} for q, c in zip(question, contexts, strict=True)]
        return super().__call__(inputs, **options)

    def check(self, given: Any, options: QuestionOptions) -> Asked:
        if not isinstance(given, Mapping) or not given.keys() >= {"question", "context"}:
            raise InputTypeError("a question is {'question': '…', 'context': '…'}.")
        question, context = checked_text(given["question"]), checked_text(given["context"])
        tokens = len(self.tokenizer(question, add_special_tokens=False)["input_ids"])
        limit = self._window(options)
        room = limit - self.tokenizer.num_special_tokens_to_add(pair=True) - tokens
        if room < 1:  # the text is read in windows, but the question stands in each of them whole
            raise InputError(
                f"the question has {tokens} tokens, which leaves no room for its text in a window of {limit}. Shorten it."
            )
        return Asked(question, context, room)

    def _window(self, options: QuestionOptions) -> int:
        return min(self.limit, options.max_seq_len)

    def rows(self, items: Sequence[Asked], options: QuestionOptions) -> list[Row]:
        """Windows of the context beside the question."""
        rows: list[Row] = []
        for number, item in enumerate(items):
            encoded = self.tokenizer(
                [item.question],
                [item.context],
                truncation="only_second",
                max_length=self._window(options),
                stride=min(options.doc_stride, item.room // 2),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            rows += [
                Row(number, {**row.columns, "owners": encoded.sequence_ids(at), "words": encoded.word_ids(at)})
                for at, row in enumerate(rows_of(encoded))
            ]
        return rows

    def take(self, output: Any, rows: Sequence[Row]) -> list[Any]:
        return list(zip(cut(output.start_logits, rows), cut(output.end_logits, rows), strict=True))

    def conclude(self, item: Asked, rows: Sequence[Row], found: Sequence[Any], options: QuestionOptions) -> Any:
        passages: list[tuple[float, int, int]] = []
        empty = 1.0  # the least that any window gives to "the answer is not here"
        for row, (starts, ends) in zip(rows, found, strict=True):
            spans, none = self._spans(row, starts, ends, options)
            passages += spans
            empty = min(empty, none)
        if options.handle_impossible_answer:
            passages.append((empty, 0, 0))
        best: dict[tuple[int, int], float] = {}  # windows overlap: one passage may come out of two
        for score, start, end in sorted(passages, key=lambda one: -one[0]):
            best.setdefault((start, end), score)
        answers = [
            {"score": score, "start": start, "end": end, "answer": item.context[start:end]}
            for (start, end), score in list(best.items())[: options.top_k]
        ]
        if not answers:
            raise InputError("the context has no tokens, so nothing in it can be an answer.")
        return answers[0] if options.top_k == 1 else answers

    def _spans(
        self, row: Row, starts: Any, ends: Any, options: QuestionOptions
    ) -> tuple[list[tuple[float, int, int]], float]:
        """One window's best passages as (score, start, end), and the score of no passage."""
        mine = np.array([owner == 1 for owner in row.columns["owners"]])
        first = mine.copy()
        first[0] |= options.handle_impossible_answer  # the state of the first token stands for "not here"
        begin, stop = (softmax(np.where(first, scores, -1e4)) for scores in (starts, ends))
        none = float(begin[0] * stop[0])
        begin, stop = np.where(mine, begin, 0), np.where(mine, stop, 0)
        scores = np.tril(np.triu(np.outer(begin, stop)), options.max_answer_len - 1)  # ends at or behind its beginning
        best = top(scores.ravel(), options.top_k)
        spans = [
            (score, *self._characters(row, *divmod(at, len(row)), options.align_to_words))
            for at, score, _ in best
            if score > 0
        ]
        return spans, none

    def _characters(self, row: Row, first: int, last: int, whole: bool) -> tuple[int, int]:
        """Where a passage of tokens begins and ends in the context, widened to whole words if asked for."""
        words, owners, offsets = (row.columns[name] for name in ("words", "owners", "offset_mapping"))
        if whole and words[first] is not None and words[last] is not None:
            while first > 0 and owners[first - 1] == 1 and words[first - 1] == words[first]:
                first -= 1
            while last + 1 < len(row) and owners[last + 1] == 1 and words[last + 1] == words[last]:
                last += 1
        return offsets[first][0], offsets[last][1]
