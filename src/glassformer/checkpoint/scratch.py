"""One file with a model written from scratch: `model.ckpt` with its `h_params` beside the tensors, or the tensors alone.

The names are those of the book's chapter (`transformer_blocks.0.mha.heads.0.Wq`); its public repository spells some of
them otherwise. Sizes are taken from the tensors wherever they show, and compared with `h_params`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.checkpoint.torch_file import TorchFile, read_torch_file
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

SPELLINGS: Mapping[str, tuple[str, ...]] = {  # the config's name: what h_params may call it
    "hidden_size": ("d_model", "n_embd", "emb_dim"),
    "max_position_embeddings": ("context_length", "block_size", "context_len"),
    "num_hidden_layers": ("num_blocks", "n_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_heads", "n_heads", "n_head"),
}
RENAMED = {  # the repository's name: the chapter's
    "layer_norm_1": "ln1",
    "layer_norm_2": "ln2",
    "multi_head_attention_layer": "mha",
    "feed_forward_layer": "ffn",
    "query_layer": "Wq",
    "key_layer": "Wk",
    "value_layer": "Wv",
    "tril": "mask",
    "language_model_out_linear_layer": "model_out_linear_layer",
}
TABLE, OUTPUT = "token_embedding_lookup_table.weight", "model_out_linear_layer.weight"
MASK = "transformer_blocks.0.mha.heads.0.mask"
BLOCK = re.compile(r"transformer_blocks\.(\d{1,6})\.mha\.")
HEAD = re.compile(r"transformer_blocks\.0\.mha\.heads\.(\d{1,6})\.")


class ScratchCheckpoint:
    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        table, output = self._chapter_tensors[TABLE], self._chapter_tensors.get(OUTPUT)
        shown = self._shown_sizes()
        config: dict[str, Any] = {"model_type": "scratch", "vocab_size": table.shape[0]}
        for name, spellings in SPELLINGS.items():
            config[name] = self._agreed_size(name, spellings, shown[name])
        rows = output.shape[0] if output is not None and output.shape else table.shape[0]
        self._check_vocabulary(table.shape[0], rows)
        if rows != table.shape[0]:
            config["output_size"] = rows
        if "dropout" in self._h_params:
            config["dropout"] = self._dropout()
        return {**config, "tie_word_embeddings": output is table}

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {name: tensor for name, tensor in self._chapter_tensors.items() if not name.endswith(".mask")}

    @cached_property
    def _file(self) -> TorchFile:
        return read_torch_file(self.path)

    @cached_property
    def _chapter_tensors(self) -> Mapping[str, StoredTensor]:
        """The file's tensors under the chapter's names."""
        stored = self._file.tensors
        tensors = {chapter_name(name): tensor for name, tensor in stored.items()}
        if TABLE not in tensors or len(tensors[TABLE].shape) != 2:
            names = ", ".join(brief(name) for name in list(stored)[:3])
            raise CheckpointError(
                f"{self.path}: holds {len(stored)} tensors ({names}, …), but no model from scratch: there is no {TABLE} "
                "of two dimensions. Weights alone need a folder with their config.json: give that folder."
            )
        return tensors

    @cached_property
    def _h_params(self) -> Mapping[Any, Any]:
        h_params = self._file.content.get("h_params", {})
        if not isinstance(h_params, dict):
            raise CheckpointError(
                f"{self.path}: 'h_params' holds a {type(h_params).__name__} where a dictionary belongs. Save it as a dict."
            )
        return dict(dict.items(h_params))

    def _shown_sizes(self) -> dict[str, int | None]:
        """The sizes that the tensors show; the last transformer block is a LayerNorm, and has no attention."""
        tensors, mask = self._chapter_tensors, self._chapter_tensors.get(MASK)
        return {
            "hidden_size": tensors[TABLE].shape[1],
            "max_position_embeddings": mask.shape[-1] if mask is not None and mask.shape else None,
            "num_hidden_layers": len({match[1] for name in tensors if (match := BLOCK.match(name))}) or None,
            "num_attention_heads": len({match[1] for name in tensors if (match := HEAD.match(name))}) or None,
        }

    def _agreed_size(self, name: str, spellings: tuple[str, ...], shown: int | None) -> int:
        spelling = next((spelling for spelling in spellings if spelling in self._h_params), None)
        value = shown if spelling is None else self._h_params[spelling]
        if spelling is None and shown is None:
            raise CheckpointError(
                f"{self.path}: neither h_params nor tensors tell {name}. Save h_params with {spellings[0]!r} beside them."
            )
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(
                f"{self.path}: h_params say that {spelling!r} is {brief(value)}, where a whole number from 1 on "
                "belongs. Save them again with the right value."
            )
        if shown not in (None, value):
            raise CheckpointError(
                f"{self.path}: h_params say that {spelling!r} is {value}, but the tensors have {shown}. "
                "Are these the h_params of these weights?"
            )
        return value

    def _check_vocabulary(self, rows: int, scored: int) -> None:
        """`max_token_value` is the number of tokens to some, and the largest of them to others."""
        for name, allowed in (("vocab_size", {rows, scored}), ("max_token_value", {rows, rows - 1, scored})):
            value = self._h_params.get(name, rows)
            if not isinstance(value, int) or value not in allowed:
                raise CheckpointError(
                    f"{self.path}: h_params say that {name!r} is {brief(value)}, but the table of embeddings has "
                    f"{rows} rows. Are these the h_params of these weights?"
                )

    def _dropout(self) -> float:
        value = self._h_params["dropout"]
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise CheckpointError(
                f"{self.path}: h_params say that 'dropout' is {brief(value)}, where a number from 0 to 1 belongs. "
                "Save them again with the right value."
            )
        return value


def chapter_name(name: str) -> str:
    """A tensor's name in the chapter's spelling."""
    return ".".join(RENAMED.get(part, part) for part in name.split("."))
