"""rerank: documents by how well they answer a query. A model reads each together with the query, and gives one score.

A cross-encoder has a head for it. A reranker that writes (Qwen3-Reranker) is asked in words whether the document answers
the query; its score is the logit of "yes" minus that of "no" where its answer would begin: by a sigmoid, the probability of
"yes" among the two (https://arxiv.org/abs/2506.05176). Which tokens these are, and how it is asked, a folder of
sentence-transformers says: in a LogitScore module, a chat template with the roles `query` and `document`, and a prompt.
Where files say nothing of it, the question is that of Qwen3-Reranker's model card, put by the model's chat template.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np

from glassformer.checkpoint.sentence_pooling import AnswerTokens
from glassformer.engine.protocol import Feed, Want, common_prefix
from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.ground.typecheck import brief
from glassformer.runtime.model import Model
from glassformer.tasks.forward import EncodedRow, TruncationOptions, batches, encode_texts
from glassformer.tasks.task import parse_text
from glassformer.tasks.text_classification import FUNCTIONS, LabelTask, apply_function

note = logging.getLogger("glassformer").warning
TOKENS_TOGETHER = 2048  # that an executor reads in one pass, if no batch_size is given
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SPELLED_ROLES = [re.compile(rf"""["']{role}["']""") for role in ("query", "document")]  # in a chat template
RANKED: Mapping[str, str] = {"Identity": "none", "Sigmoid": "sigmoid"}  # what rerankers' files call a function


def stated_function(config: Any, stated: str | None) -> str | None:
    """What a reranker makes of its score, as its files say; `stated`: by those of sentence-transformers.

    A config names a class, of which the last word counts; nothing of that name is imported.
    """
    settings = config.extra_fields.get("sentence_transformers")
    named = settings.get("activation_fn") if isinstance(settings, Mapping) else None
    name = stated or named or config.extra_fields.get("sbert_ce_default_activation_function")
    if name is None:
        return None
    function = RANKED.get(str(name).rpartition(".")[2])
    if function is None:
        raise SettingError(
            f"the model's files say {brief(name)} of its scores, which is not known. Say function_to_apply='sigmoid' or "
            "'none'."
        )
    return function


def judges(model: Model) -> bool:
    """Whether a model reads a document together with a query, as far as its files say; others compare vectors."""
    if model.head == "sequence":
        return True
    asked = model.tokenizer.chat_template is not None and not model.sentence.stated
    return model.head == "causal" and (model.sentence.answers is not None or asked)


@cache
def note_unstated(name: str) -> None:
    """Once for each model."""
    note(
        f"the files of {name} do not say that it is a reranker: it is asked for yes or no in the words of Qwen3-Reranker's "
        "model card, and its scores are worth something only if it was trained to be."
    )


@dataclass(frozen=True)
class RerankOptions(TruncationOptions):
    POSITIVE: ClassVar = (*TruncationOptions.POSITIVE, "top_k")
    CHOICES: ClassVar = {"function_to_apply": FUNCTIONS}

    truncation: bool = True  # cut a pair that is too long
    top_k: int | None = None  # how many of the best; by default all
    return_documents: bool = False  # each document's text too
    function_to_apply: str | None = None  # sigmoid or none; by default as the model's files say, or sigmoid
    instruction: str | None = None  # what to judge by, for a model that is asked in words; by default as its files say


class RerankTask(LabelTask):
    """Documents, best first: `[{"index", "score"}, …]`, with `"text"` too if return_documents asks."""

    name = "rerank"
    about = "documents by how well they answer a query"
    heads = ("sequence", "causal")
    suggested = "cross-encoder/ms-marco-MiniLM-L6-v2"
    example = "'Who wrote Faust?' 'Goethe wrote it.' 'It rained.'"
    options_type = RerankOptions

    def __call__(self, inputs: Any, documents: Any = None, **options: Any) -> Any:
        """The order for a query and a list of documents; or for each of many {"query": …, "documents": […]}."""
        if documents is not None:
            inputs = {"query": inputs, "documents": documents}
        elif isinstance(inputs, str):
            raise InputError("rerank takes a query and documents: rerank('…', ['…', '…']).")
        return super().__call__(inputs, **options)

    def parse_input(self, value: Any, options: Any) -> tuple[str, list[str]]:
        if not isinstance(value, Mapping) or "query" not in value or "documents" not in value:
            raise InputError(f"rerank takes {{'query': …, 'documents': […]}}, not {brief(value)}.")
        documents = value["documents"]
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Sequence):
            raise InputTypeError(f"documents are a list of texts, not {brief(documents)}.")
        if not documents:
            raise InputError("documents is empty. Give at least one text.")
        return parse_text(value["query"]), [parse_text(document) for document in documents]

    def preprocess(self, items: Sequence[tuple[str, list[str]]], options: RerankOptions) -> list[EncodedRow]:
        if self.model.head == "sequence" and (count := self.model.config.label_count) != 1:
            raise InputError(f"{self.model.name} sorts texts into {count} labels; ranking needs a model with one score.")
        owners = [index for index, (_, documents) in enumerate(items) for _ in documents]
        pairs = [(query, document) for query, documents in items for document in documents]
        if self.tokenizer.chat_template is not None:
            rows = [self._asked(*pair, options) for pair in pairs]
            return [
                EncodedRow(owner, {"input_ids": ids, "attention_mask": [1] * len(ids)})
                for owner, ids in zip(owners, rows, strict=True)
            ]
        if options.instruction is not None or self.model.head == "causal":
            raise InputError(
                f"{self.model.name} has no chat template, so it cannot be asked in words whether a document answers a "
                f"query. Use {self.suggested!r} or a similar model, without an instruction."
            )
        return [EncodedRow(owners[row.owner], row.columns) for row in encode_texts(self, pairs, options)]

    def run_rows(self, rows: Sequence[EncodedRow], options: RerankOptions) -> list[Any]:
        """Each row's score: by the head, or by what the model would write first."""
        if self.model.head == "sequence":
            return super().run_rows(rows, options)
        executor, answers = self.model.executor, self.answers
        outputs: list[Any] = [None] * len(rows)
        for batch in batches([len(row) for row in rows], options.batch_size, True, TOKENS_TOGETHER):
            feeds: list[Feed] = []
            try:
                feeds.extend(Feed(executor.open(), rows[index].columns["input_ids"], Want.LAST) for index in batch)
                for index, output in zip(batch, executor.run(feeds), strict=True):
                    outputs[index] = answers.score(output.host())
            finally:
                for feed in feeds:
                    executor.close(feed.row)
        return outputs

    def postprocess(
        self, item: tuple[str, list[str]], rows: Sequence[EncodedRow], outputs: Sequence[Any], options: RerankOptions
    ) -> list[dict[str, Any]]:
        config = self.model.config
        function = options.function_to_apply or stated_function(config, self.model.sentence.activation)
        scores = apply_function(np.concatenate(outputs), function, config.problem_type, 1)
        order = np.argsort(-scores, kind="stable")[: options.top_k].tolist()
        texts = {index: {"text": item[1][index]} if options.return_documents else {} for index in order}
        return [{"index": index, "score": float(scores[index]), **texts[index]} for index in order]

    @property
    def is_stated(self) -> bool:
        """Whether the model's files say that it is a reranker."""
        return self.model.head == "sequence" or self.model.sentence.ranks or self._has_roles

    @cached_property
    def answers(self) -> AnswerTokens:
        """The tokens that its score is made of: those that its files name, or `yes` and `no`."""
        sentence = self.model.sentence
        answers = sentence.answers
        if not self.is_stated:
            note_unstated(self.model.name)
        if answers is None:
            answers = AnswerTokens(*(self._answer(word) for word in ("yes", "no")))
        count = self.model.config.vocab_size
        if max(answers.true, answers.false or 0) >= count:
            raise InputError(f"{self.model.name}: its files score by the tokens {answers}, but it has {count} in all.")
        return answers

    def _answer(self, word: str) -> int:
        token = self.tokenizer.convert_tokens_to_ids(word)
        if token is None or token == self.tokenizer.unk_token_id:
            raise InputError(
                f"{self.model.name} has no token {word!r}, and its files name none to score by. Use {self.suggested!r} or a "
                "similar model."
            )
        return int(token)

    def _asked(self, query: str, document: str, options: RerankOptions) -> list[int]:
        """A pair's ids in the words of the chat template; of a pair that is too long, what follows the document is kept."""
        ids = self._rendered(query, document, options.instruction)
        limit = min(self.limit, options.max_length or self.limit)
        if len(ids) <= limit or not (options.truncation or options.max_length):
            return ids
        bare = self._rendered(query, "", options.instruction)
        kept = common_prefix(bare[::-1], ids[::-1])
        return ids[: max(0, limit - kept)] + ids[len(ids) - min(kept, limit) :]

    @property
    def _has_roles(self) -> bool:
        """Whether its chat template is one for a query and a document."""
        return all(role.search(self.tokenizer.get_chat_template()) for role in SPELLED_ROLES)

    def _rendered(self, query: str, document: str, instruction: str | None) -> list[int]:
        tokenizer, sentence = self.tokenizer, self.model.sentence
        if instruction is None and sentence.prompt is not None:
            instruction = sentence.prompts[sentence.prompt]
        if self._has_roles:
            messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            if instruction is not None:
                messages.insert(0, {"role": "system", "content": instruction})
            opened = False  # such a template ends where the answer begins
        else:
            question = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
            messages = [{"role": "system", "content": JUDGE}, {"role": "user", "content": question}]
            opened = True
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=opened, enable_thinking=False, sanitize_control_tokens=True, return_dict=False
        )
        return ids
