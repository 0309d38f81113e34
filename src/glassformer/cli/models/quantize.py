"""`glass models quantize`: a model's weights packed into one GGUF file, and what that costs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.cli.models.working import working
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.observe.perplexity import Likelihood
    from glassformer.opened import Opened

EXAMPLE = "Example: glass models quantize ./my-model --to q4_k -o my-model.gguf"
FEWEST = 32  # tokens that a perplexity is measured on


def quantize(
    model: Annotated[str, typer.Argument(help="A catalogue name, a hub id, or a path.")],
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="q8_0, q6_k, q5_k, q5_0, q4_k, q4_1, q4_0, bf16, f16 or f32.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default MODEL-KIND.gguf.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", help="What the perplexity is measured on; by default a chapter of Moby-Dick.")
    ] = None,
    perplexity: Annotated[bool, typer.Option("--perplexity/--no-perplexity", help="Measure what the packing costs.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Write a model as one GGUF file with packed weights, and say what it saves and what it costs."""
    from glassformer.checkpoint.packing import known_kind
    from glassformer.observe.perplexity import HELD_OUT
    from glassformer.opened import open_model
    from glassformer.quantize import quantise
    from glassformer.quantize.kinds import label

    common.listen()
    kind, words = known_kind(to), _text(text or HELD_OUT)
    if output is not None and output.suffix.lower() != ".gguf":
        raise InputError(f"--output {str(output)!r}: by its name nobody would know it for a GGUF file. End it in .gguf.")
    with common.progress_bar() as progress:
        opened = open_model(model, progress=progress)
    measured = perplexity and opened.head == "causal"
    ids = opened.tokenizer(words, add_special_tokens=False)["input_ids"] if measured else []
    if measured and len(ids) < FEWEST:
        raise InputError(
            f"--text {str(text)!r} has {len(ids)} tokens; fewer than {FEWEST} say nothing about a model. Give a longer one."
        )
    path = output or Path(f"{label(opened)}-{kind.lower()}.gguf")
    with working(f"packing {path.name}") as packing:
        quantise(opened, path, kind, force=force, progress=packing)
    found: dict[str, Any] = {"path": str(path), "kind": kind, "from": opened.kind, **_sizes(opened, path)}
    common.note(
        f"{found['from']} {found['bytes_before'] / 1e6:,.1f} MB → {kind} {found['bytes_after'] / 1e6:,.1f} MB, "
        f"{found['bits']:.2f} bits for each weight"
    )
    if len(found["kinds"]) > 1:
        said = ", ".join(f"{count} as {name}" for name, count in found["kinds"].items())
        common.note(f"matrices: {said} (tables get eight bits or more; where a row does not fit {kind}, the nearest kind)")
    if measured:
        before, after = (_likelihood(str(name), ids) for name in (model, path))
        found |= {
            "tokens": before.tokens,
            "perplexity_before": round(before.perplexity, 4),
            "perplexity_after": round(after.perplexity, 4),
        }
        more = after.perplexity / before.perplexity - 1
        common.note(
            f"perplexity {before.perplexity:,.2f} → {after.perplexity:,.2f} ({more:+.1%}) over {before.tokens:,} tokens of "
            f"{'Moby-Dick, chapter 86' if text is None else text.name}"
        )
    print(json.dumps(found) if as_json else path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {str(path)!r} is no text that can be read: {error}") from error


def _sizes(opened: Opened, path: Path) -> dict[str, Any]:
    """The files' bytes before and after, and how many bits a weight has now."""
    from glassformer.checkpoint.gguf import Gguf

    sources = {one.file.path for one in opened.tensors.values()}
    packed = Gguf(path).raw.values()
    return {
        "bytes_before": sum(source.stat().st_size for source in sources),
        "bytes_after": path.stat().st_size,
        "bits": round(8 * sum(one.size for one in packed) / sum(one.elements for one in packed), 4),
        "kinds": dict(Counter(one.kind for one in packed if len(one.shape) > 1).most_common()),
    }


def _likelihood(name: str, ids: list[int]) -> Likelihood:
    from glassformer.observe.perplexity import begins_with, likelihood
    from glassformer.runtime.model import load

    model = load(name)
    with common.waiting(f"measuring the perplexity of {name}"):
        return likelihood(model.executor, ids, begin=begins_with(model.tokenizer))
