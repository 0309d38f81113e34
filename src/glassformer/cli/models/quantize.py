"""`glass models quantize`: write a model as a quantized GGUF file, and measure the loss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import argument, option
from glassformer.ground.errors import InputError

if TYPE_CHECKING:
    from glassformer.model_files import ModelFiles
    from glassformer.see.evaluation import Likelihood

EXAMPLE = "Example: glass models quantize ./my-model --to q4_k --out my-model.gguf"
TABLES = ("token_embd", "output", "position_embd")  # whose kind does not follow from their rows
MIN_TOKENS = 32  # that a perplexity is measured on


def quantize(
    model: Annotated[str, argument(help="A catalogue name, a hub id, or a path.")],
    to: Annotated[str, option("--to", metavar="KIND", help="q8_0, q6_k, q5_k, q5_0, q4_k, q4_1, q4_0, bf16, f16 or f32.")],
    out: Annotated[
        Path | None, option("--out", metavar="FILE", help="The file to write; by default MODEL-KIND.gguf.")
    ] = None,
    text: Annotated[
        Path | None, option("--text", help="The text to measure perplexity on; by default a chapter of Moby-Dick.")
    ] = None,
    perplexity: Annotated[bool, option("--perplexity/--no-perplexity", help="Measure perplexity before and after.")] = True,
    force: Annotated[bool, option("--force", help="Overwrite an existing file.")] = False,
    allow_requantize: Annotated[
        bool, option("--allow-requantize", help="Pack weights once more that are packed already, which loses more.")
    ] = False,
    threads: common.ThreadsOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Write a model as a GGUF file with quantized weights, and report its size and perplexity."""
    from glassformer.checkpoint.quantization import check_kind
    from glassformer.model_files import open_model
    from glassformer.quantize import quantize
    from glassformer.quantize.tensor_kinds import model_label
    from glassformer.see.evaluation import HELD_OUT

    common.log_to_stderr()
    common.use_threads(threads)
    kind, words = check_kind(to), _text(text or HELD_OUT)
    if out is not None and out.suffix.lower() != ".gguf":
        raise InputError(f"--out {str(out)!r} is not the name of a GGUF file. End it in .gguf.")
    with bars.download_bar() as progress:
        opened = open_model(model, progress=progress)
    measured = perplexity and opened.head == "causal"
    ids = opened.tokenizer(words, add_special_tokens=False)["input_ids"] if measured else []
    if measured and len(ids) < MIN_TOKENS:
        raise InputError(
            f"--text {str(text)!r} has {len(ids)} tokens; a perplexity needs at least {MIN_TOKENS}. Give a longer text."
        )
    path = out or Path(f"{model_label(opened)}-{kind.lower()}.gguf")
    with common.explained_interrupt("No file was written."), bars.work_bar(f"quantizing {path.name}") as progress:
        quantize(opened, path, kind, force=force, allow_requantize=allow_requantize, progress=progress)
    report: dict[str, Any] = {"path": str(path), "kind": kind, "from": opened.kind, **_sizes(opened, path)}
    common.note(
        f"{opened.kind_text} {report['bytes_before'] / 1e6:,.1f} MB → {_kind_text(kind, path)} "
        f"{report['bytes_after'] / 1e6:,.1f} MB, {report['bits']:.2f} bits per weight"
    )
    if len(report["kinds"]) > 1:
        counts = ", ".join(f"{count} as {name}" for name, count in report["kinds"].items())
        common.note(f"matrices: {counts} (embeddings get eight bits or more; rows that do not fit {kind}, the nearest kind)")
    if measured:
        with common.explained_interrupt(f"{path} is written; its perplexity is not measured."):
            before, after = [_likelihood(str(name), ids) for name in (model, path)]
        report |= {
            "tokens": before.tokens,
            "perplexity_before": round(before.perplexity, 4),
            "perplexity_after": round(after.perplexity, 4),
        }
        source = "Moby-Dick, chapter 86" if text is None else text.name
        growth = after.perplexity / before.perplexity - 1
        common.note(
            f"perplexity {before.perplexity:,.2f} → {after.perplexity:,.2f} ({growth:+.1%}) "
            f"over {before.tokens:,} tokens of {source}"
        )
    common.print_json(report) if as_json else common.print_line(path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {str(path)!r} cannot be read as text: {error}") from error


def _sizes(opened: ModelFiles, path: Path) -> dict[str, Any]:
    """The files' sizes before and after, the bits per weight, and the matrices of each kind."""
    from glassformer.checkpoint.content_digest import stored_files
    from glassformer.checkpoint.gguf import GgufCheckpoint

    sources, _ = stored_files(tensor.file for tensor in opened.tensors.values())
    tensors = GgufCheckpoint(path).raw.values()
    return {
        "bytes_before": sum(source.stat().st_size for source in sources),
        "bytes_after": path.stat().st_size,
        "bits": round(8 * sum(tensor.size for tensor in tensors) / sum(tensor.elements for tensor in tensors), 4),
        "kinds": dict(Counter(tensor.kind for tensor in tensors if len(tensor.shape) > 1).most_common()),
    }


def _kind_text(kind: str, path: Path) -> str:
    from glassformer.checkpoint.gguf import GgufCheckpoint
    from glassformer.checkpoint.quantization import kind_text

    raw = GgufCheckpoint(path).raw
    return kind_text(kind, [tensor for name, tensor in raw.items() if len(tensor.shape) > 1 and not name.startswith(TABLES)])


def _likelihood(name: str, ids: list[int]) -> Likelihood:
    from glassformer.runtime.model import load
    from glassformer.see.evaluation import added_bos, likelihood

    model = load(name)
    with bars.spinner(f"measuring the perplexity of {name}"):
        return likelihood(model.executor, ids, bos=added_bos(model.tokenizer))
