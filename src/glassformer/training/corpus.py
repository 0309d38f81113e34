"""Plain text to train on: the files of a path, checked before anything is computed, in pieces for the tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress

PIECE = 1 << 20  # bytes that are tokenized at once, at least; a document is cut at line ends
LONGEST_LINE = 64 << 20  # bytes; a longer one is hardly text, and would be held in memory several times
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".text", "")


@dataclass(frozen=True)
class Corpus:
    """The text files of a training; each is a document."""

    paths: tuple[Path, ...]
    bytes: int
    digest: str  # of all contents

    def documents(self, progress: Progress | None = None) -> Iterator[Iterator[str]]:
        """Each document, as pieces of bounded size; `progress` is told how many bytes are done with."""
        done = 0

        def pieces(path: Path) -> Iterator[str]:
            nonlocal done
            with path.open("rb") as file:
                while lines := file.readlines(PIECE - 1):  # until there are PIECE bytes
                    piece = b"".join(lines)
                    yield piece.decode("utf-8")
                    done += len(piece)
                    if progress is not None:
                        progress(done, self.bytes)

        return map(pieces, self.paths)


def read_corpus(source: Path, progress: Progress | None = None) -> Corpus:
    """The text files of a path, each read once and checked: UTF-8, and no line without end."""
    paths = _text_files(source)
    sizes = [path.stat().st_size for path in paths]
    digest, done = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as file:
            for index, line in enumerate(iter(lambda file=file: file.readline(LONGEST_LINE + 1), b""), 1):  # type: ignore[misc]
                check_line(path, index, line)
                digest.update(line)
                done += len(line)
                if progress is not None and index % 10_000 == 0:
                    progress(done, sum(sizes))
        digest.update(b"\0")
    if not done:
        raise InputError(f"{source}: is empty. Give a file or folder with text.")
    return Corpus(tuple(paths), done, digest.hexdigest())


def check_line(path: Path, index: int, line: bytes) -> None:
    """Refuse a line that is too long, or is not UTF-8."""
    if len(line) > LONGEST_LINE:
        raise InputError(f"{path}, line {index}: is longer than {LONGEST_LINE >> 20} MiB. Break it into lines.")
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {index}: not UTF-8 text ({error.reason} at its byte {error.start}). Convert the file first."
        ) from None


def _text_files(source: Path) -> Sequence[Path]:
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file() and _is_text_name(path, source))
        if not paths:
            raise InputError(
                f"{source}: holds no text files ({', '.join(filter(None, TEXT_SUFFIXES))}). Give another folder."
            )
        return paths
    if not source.exists():
        raise InputError(f"{source}: there is no such file or folder. Check the path.")
    if not source.is_file():
        raise InputError(f"{source}: is neither a file nor a folder. Give one with text.")
    return [source]


def _is_text_name(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in TEXT_SUFFIXES
