"""What a tokenizer gives: ids and masks as a mapping, in lists, numpy arrays or torch tensors."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from glassformer.errors import InputError

Tensors: TypeAlias = Literal["pt", "np"] | None


class BatchEncoding(UserDict[str, Any]):
    """What a tokenizer gives: a mapping that `model(**tokens)` accepts, its keys also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(
                f"the encoding has no {name!r}; it has {', '.join(self.__dict__.get('data', {}))}"
            ) from None

    def to(self, device: Any) -> BatchEncoding:
        """The same with its tensors on another device."""
        return BatchEncoding({k: v.to(device) if hasattr(v, "to") else v for k, v in self.data.items()})


def array(rows: Sequence[Sequence[Any]], kind: Tensors) -> Any:
    """Rows of one length as a (rows, length) array of the wanted kind; (rows, length, 2) where each entry is two numbers."""
    lengths = {len(row) for row in rows} or {0}
    if len(lengths) > 1:
        raise InputError(f"texts of {min(lengths)} to {max(lengths)} tokens do not form one tensor. Pass padding=True.")
    two = any(isinstance(row[0], tuple) for row in rows if row)
    shape = (len(rows), *lengths, *([2] if two else []))
    if kind == "pt":
        import torch

        return torch.tensor(rows, dtype=torch.long).reshape(shape)
    if kind == "np":
        import numpy as np

        return np.array(rows, dtype=np.int64).reshape(shape)
    raise InputError(f"return_tensors={kind!r} is not known. Use 'pt', 'np' or None.")
