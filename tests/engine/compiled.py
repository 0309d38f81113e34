"""What tests compile is kept in build/, and compiled anew when anything that it is made of has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from glassformer.engine.cpu import build
from glassformer.ground.files import temporary_folder

KEPT = Path(__file__).parents[2] / "build"


def kept(name: str, command: Sequence[str], sources: Iterable[Path], compile_to: Callable[[Path], object]) -> Path:
    """The folder that `compile_to` has filled, now or in an earlier run, by this command from these sources."""
    digest = sha256("\0".join([build.machine(), build._compiler_identity(command)]).encode())
    for path in sources:
        digest.update(b"\0".join([b"", path.name.encode(), path.read_bytes()]))
    folder = KEPT / f"{name}-{digest.hexdigest()[:16]}"
    if not folder.exists():
        KEPT.mkdir(exist_ok=True)
        with temporary_folder(KEPT, "building-") as work:
            compile_to(work)
            with suppress(OSError):  # another process was faster
                work.rename(folder)
    return folder
