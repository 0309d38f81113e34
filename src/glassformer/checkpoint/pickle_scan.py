"""What a PyTorch file asks for, checked before torch opens it.

torch's own careful unpickler (`weights_only=True`) runs no foreign code, but it still makes whatever the file asks for:
arrays of any size, keys nested deeply enough to end the process. So a file is first read with the standard library's
disassembler, which makes nothing: only what a dictionary of tensors needs may be asked for, and in sane sizes.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from pathlib import Path
from typing import IO, Any, TypeAlias

from glassformer.checkpoint.stored_tensors import MappedFile
from glassformer.ground.errors import CheckpointError

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
