"""Files that torch.save wrote: `.bin`, `.pt`, `.ckpt`, which are pickles. Scanned first, then opened by torch itself.

`weights_only=True` always, and no fallback. Newer files are zip archives, which torch maps into memory; a tensor then
lies where it lies in the file. Files of the old format (before PyTorch 1.6) are read. torch is imported on first use.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.pickle_scan import ADVICE, scan
from glassformer.checkpoint.stored_tensors import BufferedFile, Bytes, MappedFile, StoredTensor
from glassformer.ground.errors import CheckpointError, MissingExtra, needed_for

if TYPE_CHECKING:
    from torch import Tensor

TORCH_SUFFIXES = (".bin", ".pt", ".ckpt", ".pth")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # under which a training script keeps the tensors
KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class TorchFile:
    path: Path
    content: Mapping[Any, Any]  # the dictionary in the file, as it is
    tensors: dict[str, StoredTensor]


def read_torch_file(path: Path) -> TorchFile:
    """A file's dictionary, and its tensors; two names of one tensor get one `StoredTensor`."""
    file = MappedFile(path)
    try:
        content, sizes, mapped = _load(file)
        return TorchFile(path, content, dict(_stored_tensors(_unwrapped(content), file, sizes, mapped)))
    except (CheckpointError, MissingExtra):
        raise
    except Exception as error:  # what a damaged file may raise in torch has no end
        match = re.search(r"WeightsUnpickler error:\s*(.+)", str(error)) or re.search("(.+)", str(error))
        informative = match and not isinstance(error, LookupError)  # a bare key or index tells nobody anything
        reason = f"{type(error).__name__}: {match[1].strip()[:120]}" if match and informative else type(error).__name__
        reason = "".join(letter if letter.isprintable() else "?" for letter in reason)
        raise CheckpointError(
            f"{path}: damaged, or not a file that torch.save wrote ({reason}). Fetch it again, or the safetensors file."
        ) from error


def _load(file: MappedFile) -> tuple[dict[Any, Any], list[int], bool]:
    """The dictionary in a file, the sizes in bytes that its storages have there, and whether torch has mapped them."""
    with needed_for(f"{file.path}, a file that torch.save wrote,"):
        import torch

    storage_sizes: list[int] = []

    def place(storage: Any, location: str) -> Any:
        """For each storage of an old file, before it is filled: together they cannot be larger than the file."""
        storage_sizes.append(storage.nbytes())
        if sum(storage_sizes) > len(file):
            raise CheckpointError(f"{file.path}: its tensors would be larger than the file. Fetch it again.")
        return storage.fill_(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about protocols and odd texts, which are not the reader's to fix
        sizes = scan(file)
        if sizes is None:
            content = torch.load(file.path, map_location=place, weights_only=True)
        else:
            content = torch.load(file.path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.path}: holds a {type(content).__name__} where named tensors belong. {ADVICE}")
    return _plain_dict(content), storage_sizes if sizes is None else sizes, sizes is not None


def _plain_dict(content: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary's own items: a pickle may have given an OrderedDict attributes in the place of its methods."""
    return dict(dict.items(content))


def _unwrapped(content: dict[Any, Any]) -> dict[Any, Any]:
    inner = next((content[name] for name in WRAPPERS if isinstance(content.get(name), dict)), None)
    return content if inner is None else _plain_dict(inner)


def _stored_tensors(
    content: dict[Any, Any], file: MappedFile, sizes: list[int], mapped: bool
) -> Iterator[tuple[str, StoredTensor]]:
    import torch

    unique: dict[Any, StoredTensor] = {}  # by place, shape and strides
    storages: dict[int, int] = {}
    room = len(file)  # for copies: they cannot need more than the file has, unless a tensor repeats itself
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            continue
        tensor = torch.Tensor.detach(value)
        kind = KINDS.get(str(tensor.dtype).removeprefix("torch."))
        if kind is None:
            raise CheckpointError(
                f"{file.path}: tensor {name!r} is of {tensor.dtype}, which is not supported. Known: {', '.join(KINDS)}."
            )
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg())
        if tensor.numel() and place in unique:
            yield name, unique[place]
            continue
        if tensor.numel():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        source = file if mapped else None
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() % tensor.element_size():
            room -= tensor.numel() * tensor.element_size()
            if room < 0:
                raise CheckpointError(f"{file.path}: its tensors would be larger than the file. Fetch it again.")
            tensor = tensor.resolve_neg().clone(memory_format=torch.contiguous_format)
            source = None
        buffered = BufferedFile(file.path, _bytes(tensor), source)
        unique[place] = StoredTensor(name, kind, tuple(tensor.shape), buffered, 0, len(buffered))
        yield name, unique[place]
    if not unique:
        raise CheckpointError(f"{file.path}: holds no tensors but {_names(content)}. {ADVICE}")
    if Counter(storages.values()) - Counter(sizes):
        raise CheckpointError(f"{file.path}: a tensor's storage is not as long as the file says. Fetch it again.")


def _bytes(tensor: Tensor) -> Bytes:
    import torch

    numbers: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    return numbers


def _names(content: dict[Any, Any], most: int = 5) -> str:
    names = [repr(name)[:40] for name in list(content)[:most]]
    more = f" and {len(content) - most} more" if len(content) > most else ""
    return ", ".join(names) + more if names else "nothing"
