"""Files that torch.save wrote: `.bin`, `.pt`, `.ckpt`, which are pickles. Scanned first, then opened by torch itself.

`weights_only=True` always, and no fallback. Newer files are zip archives, which torch maps into memory; a tensor then
lies where it lies in the file. Files of the old format (before PyTorch 1.6) are read. torch is imported on first use.

torch's own careful unpickler runs no foreign code, but it still makes whatever the file asks for: arrays of any size, keys
nested deeply enough to end the process. So a file is first read with the standard library's disassembler, which makes
nothing: only what a dictionary of tensors needs may be asked for, and in sane sizes.
"""

from __future__ import annotations

import io
import pickletools
import re
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from glassformer.checkpoint.stored_tensors import BufferedFile, Bytes, MappedFile, StoredTensor
from glassformer.ground.errors import CheckpointError, MissingExtra, needed_for

if TYPE_CHECKING:
    from torch import Tensor

ZIP = b"PK\x03\x04"
MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that files of the old format begin with, pickled
OLD_FORMAT_PICKLES = 5  # one after the other: magic, version, system, object, storage keys
MAX_PICKLE_BYTES = 16 << 20  # bytes of one pickle; that of a model with a thousand tensors has a few hundred thousand,
MAX_INSTRUCTIONS = 500_000  # and some forty thousand instructions
MAX_DEPTH, MAX_WIDTH = 100, 10_000  # tuples in tuples, and their items in all: hashing them takes stack and time
ADVICE = "Fetch the safetensors file instead, or save the model's state_dict() alone with torch.save."

ALLOWED = {
    *("collections.OrderedDict", "collections.Counter", "builtins.set"),
    *(f"torch._utils._rebuild_{what}" for what in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
    *("torch._utils._rebuild_parameter_with_state", "torch.nn.parameter.Parameter", "torch.Size", "torch.device"),
    *(f"torch.{kind}Storage" for kind in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte")),
    *(f"torch.{kind}Storage" for kind in ("Bool", "ComplexFloat", "ComplexDouble")),
    "torch.storage.UntypedStorage",
}
DTYPES = ("float", "bfloat", "int", "uint", "bool", "complex")

Item: TypeAlias = str | tuple[int, int] | None  # on the pickle machine's stack: a text, (depth, width), or a mark


def scan(file: MappedFile) -> list[int] | None:
    """Refuse a file that asks for more than tensors; the sizes of its zip's storages, or None for the old format."""
    if file.buffer[:4] == ZIP:
        return _scan_zip(file)
    file.buffer.seek(0)
    for index in range(OLD_FORMAT_PICKLES):
        _walk(file.buffer, file.path)
        if index == 0 and file.buffer[2 : 2 + len(MAGIC)] != MAGIC:
            raise CheckpointError(f"{file.path}: a pickle, but not one that torch.save wrote. {ADVICE}")
    return None


def _scan_zip(file: MappedFile) -> list[int]:
    with zipfile.ZipFile(file.path) as archive:
        parts = archive.infolist()
        names = {part.filename.lower() for part in parts}
        folder = parts[0].filename.partition("/")[0] if parts else ""
        if f"{folder}/constants.pkl" in names:
            raise CheckpointError(f"{file.path}: a TorchScript program, which is not run. {ADVICE}")
        if f"{folder}/data.pkl".lower() not in names:
            raise CheckpointError(f"{file.path}: a zip archive, but not one that torch.save wrote. {ADVICE}")
        plain = all(part.compress_type == zipfile.ZIP_STORED and part.compress_size == part.file_size for part in parts)
        if not plain or len(names) < len(parts) or sum(part.file_size for part in parts) > len(file):
            raise CheckpointError(
                f"{file.path}: its parts are compressed, doubled or larger than the file, which torch.save never makes "
                f"them. {ADVICE}"
            )
        for part in parts:
            if part.filename.lower().endswith(".pkl"):
                if part.file_size > MAX_PICKLE_BYTES:
                    raise _too_large(file.path)
                _walk(io.BytesIO(archive.read(part)), file.path)
        return [part.file_size for part in parts if part.filename.startswith(f"{folder}/data/")]


def _walk(stream: IO[bytes] | Any, path: Path) -> None:
    """One pickle, instruction by instruction, as far as its end; nothing is made of it."""
    stack: list[Item] = []
    memo: dict[int, Item] = {}
    protocol = 0
    argument: Any
    for index, (operation, argument, _) in enumerate(pickletools.genops(stream)):
        if index > MAX_INSTRUCTIONS:
            raise _too_large(path)
        match operation.name:
            case "MARK":
                stack.append(None)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "PROTO":
                protocol = argument
            case name:
                taken = _pop_operands(stack, operation)
                item: Item = (1, 1)
                if name in ("GLOBAL", "INST"):
                    _check_allowed(path, *argument.split(" ", 1))
                elif name == "STACK_GLOBAL":
                    _check_allowed(path, *(str(item) for item in reversed(taken)))
                elif name.startswith("EXT"):
                    _check_allowed(path, "extension", str(argument))
                elif name.startswith("TUPLE"):
                    item = _tuple_size(taken, path)
                elif isinstance(argument, str):
                    item = argument
                stack.extend(item for _ in operation.stack_after)
    if protocol > 3:
        raise CheckpointError(f"{path}: written in pickle protocol {protocol}, which torch does not read safely. {ADVICE}")


def _pop_operands(stack: list[Item], operation: pickletools.OpcodeInfo) -> list[Item]:
    """What an instruction takes off the stack: a fixed number, or all down to the last mark and a fixed number more."""
    count = len(operation.stack_before)
    taken: list[Item] = []
    if pickletools.markobject in operation.stack_before:
        count = operation.stack_before.index(pickletools.markobject)
        while (item := stack.pop()) is not None:
            taken.append(item)
    return taken + [stack.pop() for _ in range(count)]


def _tuple_size(items: list[Item], path: Path) -> tuple[int, int]:
    """(depth, width) of a tuple of these."""
    depth = 1 + max((item[0] for item in items if isinstance(item, tuple)), default=0)
    width = 1 + sum(item[1] if isinstance(item, tuple) else 1 for item in items)
    if depth > MAX_DEPTH or width > MAX_WIDTH:
        raise _too_large(path)
    return depth, width


def _check_allowed(path: Path, module: str, name: str) -> None:
    """Refuse any other name. torch.save's protocols use Python 2's names; checked and shown are Python 3's."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    name = f"{module}.{name}"
    kind = name.removeprefix("torch.").rstrip("0123456789_efmnuzqx")  # torch.float32, torch.float8_e4m3fn
    if name not in ALLOWED and not (name.startswith("torch.") and kind in DTYPES):
        shown = name if name.isprintable() and len(name) < 100 else repr(name)[:100]
        raise CheckpointError(f"{path}: its pickle asks for {shown}, which is not run. {ADVICE}")


def _too_large(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: its pickle is longer or more deeply nested than that of any model. {ADVICE}")


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
