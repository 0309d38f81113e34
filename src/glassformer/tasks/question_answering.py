"""question-answering: the passage of a text that answers a question.

A text that does not fit with its question into one window is read in overlapping ones. In each, every token has a score for
an answer's start and one for its end; a passage's score is the product of the two probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glassformer.ground.candidates import top
from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.tasks.forward import EncodedRow, ForwardTask, input_rows, softmax, unpad
from glassformer.tasks.task import TaskOptions, parse_text


@dataclass(frozen=True)
class QuestionOptions(TaskOptions):
    POSITIVE: ClassVar = (*TaskOptions.POSITIVE, "top_k", "max_answer_len", "max_seq_len")

    top_k: int = 1  # how many answers; more than one gives a list
    max_answer_len: int = 15  # tokens
    doc_stride: int = 128  # tokens that neighboring windows of a long text share
    max_seq_len: int = 384  # tokens of a window, question included
    handle_impossible_answer: bool = False  # an empty answer may win
    align_to_words: bool = True  # an answer is made of whole words

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.doc_stride, bool) or not isinstance(self.doc_stride, int) or self.doc_stride < 0:
            raise SettingError(f"doc_stride is {self.doc_stride!r}; it must be a whole number of at least 0.")


@dataclass(frozen=True)
class QuestionInput:
    question: str
    context: str
    room: int  # tokens of the context that fit into a window with the question


class QuestionAnsweringTask(ForwardTask):
    """The best passage, `{"score", "start", "end", "answer"}`; a list of them with `top_k` above 1."""

    name = "question-answering"
    about = "the passage that answers a question"
    heads = ("question",)
    suggested = "distilbert-squad"
    example = "Where does Ada live? --context 'Ada lives in London.'"
    options_type = QuestionOptions

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

    def parse_input(self, value: Any, options: QuestionOptions) -> QuestionInput:
        if not isinstance(value, Mapping) or not value.keys() >= {"question", "context"}:
            raise InputTypeError("a question is {'question': '…', 'context': '…'}.")
        question, context = parse_text(value["question"]), parse_text(value["context"])
        tokens = len(self.tokenizer(question, add_special_tokens=False)["input_ids"])
        limit = self._window(options)
        room = limit - self.tokenizer.num_special_tokens_to_add(pair=True) - tokens
        if room < 1:  # every window has the whole question
            raise InputError(
                f"the question has {tokens} tokens, which leaves no room for its text in a window of {limit}. Shorten it."
            )
        return QuestionInput(question, context, room)

    def _window(self, options: QuestionOptions) -> int:
        return min(self.limit, options.max_seq_len)

    def preprocess(self, items: Sequence[QuestionInput], options: QuestionOptions) -> list[EncodedRow]:
        """Windows of the context, each after the question."""
        rows: list[EncodedRow] = []
        for index, item in enumerate(items):
            encoding = self.tokenizer(
                [item.question],
                [item.context],
                truncation="only_second",
                max_length=self._window(options),
                stride=min(options.doc_stride, item.room // 2),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            rows += [
                EncodedRow(
                    index, {**row.columns, "owners": encoding.sequence_ids(window), "words": encoding.word_ids(window)}
                )
                for window, row in enumerate(input_rows(encoding))
            ]
        return rows

    def split_output(self, output: Any, rows: Sequence[EncodedRow]) -> list[Any]:
        return list(zip(unpad(output.start_logits, rows), unpad(output.end_logits, rows), strict=True))

    def postprocess(
        self, item: QuestionInput, rows: Sequence[EncodedRow], outputs: Sequence[Any], options: QuestionOptions
    ) -> Any:
        passages: list[tuple[float, int, int]] = []
        no_answer = 1.0  # the lowest score that any window gives to "the answer is not here"
        for row, (starts, ends) in zip(rows, outputs, strict=True):
            spans, window_no_answer = self._spans(row, starts, ends, options)
            passages += spans
            no_answer = min(no_answer, window_no_answer)
        if options.handle_impossible_answer:
            passages.append((no_answer, 0, 0))
        best: dict[tuple[int, int], float] = {}  # windows overlap, so two may give the same passage
        for score, start, end in sorted(passages, key=lambda passage: -passage[0]):
            best.setdefault((start, end), score)
        answers = [
            {"score": score, "start": start, "end": end, "answer": item.context[start:end]}
            for (start, end), score in list(best.items())[: options.top_k]
        ]
        if not answers:
            raise InputError("the context has no tokens, so nothing in it can be an answer.")
        return answers[0] if options.top_k == 1 else answers

    def _spans(
        self, row: EncodedRow, starts: Any, ends: Any, options: QuestionOptions
    ) -> tuple[list[tuple[float, int, int]], float]:
        """One window's best passages as (score, start, end), and the score of no answer."""
        in_context = np.array([owner == 1 for owner in row.columns["owners"]])
        allowed = in_context.copy()
        allowed[0] |= options.handle_impossible_answer  # the first token means "not here"
        start, end = (softmax(np.where(allowed, scores, -1e4)) for scores in (starts, ends))
        no_answer = float(start[0] * end[0])
        start, end = np.where(in_context, start, 0), np.where(in_context, end, 0)
        scores = np.tril(
            np.triu(np.outer(start, end)), min(options.max_answer_len, len(start)) - 1
        )  # the end is not before the start
        best = top(scores.ravel(), options.top_k)
        spans = [
            (score, *self._characters(row, *divmod(place, len(row)), options.align_to_words))
            for place, score, _ in best
            if score > 0
        ]
        return spans, no_answer

    def _characters(self, row: EncodedRow, first: int, last: int, whole_words: bool) -> tuple[int, int]:
        """Where a passage of tokens starts and ends in the context, widened to whole words if asked for."""
        words, owners, offsets = (row.columns[name] for name in ("words", "owners", "offset_mapping"))
        if whole_words and words[first] is not None and words[last] is not None:
            while first > 0 and owners[first - 1] == 1 and words[first - 1] == words[first]:
                first -= 1
            while last + 1 < len(row) and owners[last + 1] == 1 and words[last + 1] == words[last]:
                last += 1
        return offsets[first][0], offsets[last][1]
