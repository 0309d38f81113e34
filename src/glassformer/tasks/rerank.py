"""rerank: documents by how well they answer a query, as a cross-encoder reads them: each together with the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.typecheck import brief
from glassformer.tasks.forward import ForwardTask, InputRow, TruncationOptions, encode_pairs
from glassformer.tasks.task import check_choice, check_positive, parse_text
from glassformer.tasks.text_classification import FUNCTIONS, apply_function


@dataclass(frozen=True)
class RerankOptions(TruncationOptions):
    truncation: bool = True  # cut a pair that is too long
    top_k: int | None = None  # the best so many; by default all
    return_documents: bool = False  # each document's text too
    function_to_apply: str | None = None  # sigmoid or none; by default as the model was trained

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "top_k")
        check_choice(self, "function_to_apply", FUNCTIONS)


class RerankTask(ForwardTask):
    """Documents, best first: `[{"index", "score"}, …]`, with `"text"` too if return_documents asks."""

    name = "rerank"
    about = "documents by how well they answer a query"
    heads = ("sequence",)
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

    def preprocess(self, items: Sequence[tuple[str, list[str]]], options: RerankOptions) -> list[InputRow]:
        if (count := self.model.config.label_count) != 1:
            raise InputError(f"{self.model.name} sorts texts into {count} labels; ranking needs a model with one score.")
        owners = [index for index, (_, documents) in enumerate(items) for _ in documents]
        pairs = [(query, document) for query, documents in items for document in documents]
        return [InputRow(owners[row.owner], row.columns) for row in encode_pairs(self, pairs, options)]

    def split_output(self, output: Any, rows: Sequence[InputRow]) -> list[Any]:
        return list(output.logits.float().cpu().numpy())

    def postprocess(
        self, item: tuple[str, list[str]], rows: Sequence[InputRow], outputs: Sequence[Any], options: RerankOptions
    ) -> list[dict[str, Any]]:
        scores = apply_function(np.concatenate(outputs), options.function_to_apply, self.model.config.problem_type, 1)
        order = np.argsort(-scores, kind="stable")[: options.top_k].tolist()
        texts = {number: {"text": item[1][number]} if options.return_documents else {} for number in order}
        return [{"index": number, "score": float(scores[number]), **texts[number]} for number in order]
