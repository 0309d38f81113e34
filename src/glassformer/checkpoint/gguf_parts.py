"""What newer GGUF files have in two parts, where families, and older files, have one tensor: joined again when it is read,
taken apart when it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.stored_tensors import Bytes, Floats, StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError

Shape: TypeAlias = tuple[int, ...]
Indices: TypeAlias = npt.NDArray[np.intp]
Pair: TypeAlias = tuple[StoredTensor, StoredTensor]


class Parts(Protocol):
    @property
    def whole(self) -> str:
        """The tensor's name in a block."""

    @property
    def names(self) -> tuple[str, str]:
        """Of its parts."""

    def shapes(self, shape: Shape, config: Mapping[str, Any]) -> tuple[Shape, Shape]:
        """Of the parts of a tensor of this shape."""

    def split(self, values: Floats, config: Mapping[str, Any]) -> tuple[Floats, Floats]: ...

    def join(self, name: str, parts: Pair, config: Mapping[str, Any]) -> StoredTensor | None:
        """The tensor that the parts make; None: they do not fit."""


class ExpandedLatents:
    """What makes keys and values of latents, head by head: the keys' part is (heads, latent, key size), the values'
    (heads, value size, latent)."""

    whole, names = "attn_kv_b", ("attn_k_b", "attn_v_b")

    def shapes(self, shape: Shape, config: Mapping[str, Any]) -> tuple[Shape, Shape]:
        heads, size, latent = config["num_attention_heads"], config["qk_nope_head_dim"], shape[1]
        return (heads, latent, size), (heads, shape[0] // heads - size, latent)

    def split(self, values: Floats, config: Mapping[str, Any]) -> tuple[Floats, Floats]:
        by_head = values.reshape(config["num_attention_heads"], -1, values.shape[1])
        keys, others = np.split(by_head, [config["qk_nope_head_dim"]], axis=1)
        return keys.swapaxes(1, 2), others

    def join(self, name: str, parts: Pair, config: Mapping[str, Any]) -> StoredTensor | None:
        keys, values = parts
        if not len(keys.shape) == len(values.shape) == 3 or keys.shape[:2] != (values.shape[0], values.shape[2]):
            return None
        heads, latent, size = keys.shape

        def compute() -> Floats:
            both = keys.to_float32().swapaxes(1, 2), values.to_float32()
            return np.concatenate(both, 1).reshape(-1, latent)

        shape = (heads * (size + values.shape[1]), latent)
        return computed_tensor(name, shape, compute, parts, "keys and values of latents")


@dataclass(frozen=True)
class Halves:
    """A tensor whose parts have half its rows each, the first ones and the last."""

    whole: str
    names: tuple[str, str]

    def shapes(self, shape: Shape, config: Mapping[str, Any]) -> tuple[Shape, Shape]:
        half = (shape[0] // 2, *shape[1:])
        return half, half

    def split(self, values: Floats, config: Mapping[str, Any]) -> tuple[Floats, Floats]:
        first, second = np.split(values, 2)
        return first, second

    def join(self, name: str, parts: Pair, config: Mapping[str, Any]) -> StoredTensor | None:
        first, second = parts
        return _rows_of_both(name, parts, "one after another") if first.shape == second.shape else None


class SharesOfKeys:
    """A projection in which each key head has its share of queries, keys, values and gates. Its parts have all queries, all
    keys, and all values; and all gates. Rows only change their places, so that packed ones stay as they are."""

    whole, names = "ssm_in", ("attn_qkv", "attn_gate")

    def shapes(self, shape: Shape, config: Mapping[str, Any]) -> tuple[Shape, Shape]:
        heads, sizes = self._shares(config)
        return (heads * sum(sizes[:3]), shape[1]), (heads * sizes[3], shape[1])

    def split(self, values: Floats, config: Mapping[str, Any]) -> tuple[Floats, Floats]:
        first, second = self._rows(config)
        return values[first], values[second]

    def join(self, name: str, parts: Pair, config: Mapping[str, Any]) -> StoredTensor | None:
        first, second = parts
        if len(first.shape) != 2 or not first.elements or (first.shape, second.shape) != self.shapes(first.shape, config):
            return None
        return _rows_of_both(name, parts, "shares of keys", np.argsort(np.concatenate(self._rows(config))))

    def _rows(self, config: Mapping[str, Any]) -> tuple[Indices, Indices]:
        """The tensor's rows that are in each part."""
        heads, sizes = self._shares(config)
        every = np.arange(heads * sum(sizes)).reshape(heads, -1)
        *others, gates = (columns.reshape(-1) for columns in np.split(every, np.cumsum(sizes[:3]), axis=1))
        return np.concatenate(others), gates

    def _shares(self, config: Mapping[str, Any]) -> tuple[int, list[int]]:
        """How many heads keys have, and of how many rows their shares are; none in a config that is refused."""
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        sizes: list[Any] = [config.get(f"linear_{name}") for name in names]
        if not all(type(size) is int and size > 0 for size in sizes):
            return 0, [0] * 4
        heads, values, key_size, size = sizes
        return heads, [key_size, key_size, *[values // heads * size] * 2]


def _rows_of_both(name: str, parts: Pair, recipe: str, places: Indices | slice = slice(None)) -> StoredTensor:
    """Their rows in an order; packed as they are, if they are packed alike."""
    count, shape = sum(part.shape[0] for part in parts), parts[0].shape[1:]
    if len({part.kind for part in parts}) > 1:
        whole = (count, *shape)
        return computed_tensor(
            name, whole, lambda: np.concatenate([part.to_float32() for part in parts])[places], parts, recipe
        )

    def rows() -> Bytes:
        return np.concatenate([part.bytes for part in parts]).reshape(count, -1)[places]

    size = sum(part.size for part in parts)
    return computed_tensor(name, (count, *shape), rows, parts, recipe, kind=parts[0].kind, size=size)


EXPANDED_LATENTS, SHARES_OF_KEYS = ExpandedLatents(), SharesOfKeys()


def with_whole_tensors(
    raw: Mapping[str, StoredTensor], known: Iterable[Parts], config: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """A file's tensors by name, those in parts under the names of what they make."""
    whole = dict(raw)
    for parts in known:
        for block, ending in dict.fromkeys(match.group(1, 3) for name in raw if (match := _matched(name, parts))):
            names = [f"{block}{part}{ending}" for part in parts.names]
            found = [whole.pop(part) for part in names if part in whole]
            joined = parts.join(f"{block}{parts.whole}{ending}", (found[0], found[1]), config) if len(found) > 1 else None
            if joined is None:
                raise CheckpointError(
                    f"{found[0].file.path}: GGUF tensors {' and '.join(names)} do not fit together: both must be there, of "
                    "shapes that make one matrix. Fetch the file again."
                )
            whole[joined.name] = joined
    return whole


def is_part(name: str, known: Iterable[Parts]) -> bool:
    return any(_matched(name, parts) for parts in known)


def _matched(name: str, parts: Parts) -> re.Match[str] | None:
    return re.fullmatch(rf"(blk\.\d+\.)({'|'.join(parts.names)})(\.(?:weight|bias))", name)


def part_names(name: str, parts: Parts | None) -> tuple[str, str] | None:
    """Of a tensor that is written in parts."""
    found = re.fullmatch(rf"(blk\.\d+\.){parts.whole}(\.\w+)", name) if parts is not None else None
    if parts is None or found is None:
        return None
    first, second = (f"{found[1]}{part}{found[2]}" for part in parts.names)
    return first, second
