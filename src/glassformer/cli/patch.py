"""`glass patch`: activation patching between two texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.ground.errors import InputError
from glassformer.views.view import View

if TYPE_CHECKING:
    from glassformer.training.rows import DataRow

METRICS = ("recovered", "logit_difference", "probability", "kl")
PARTS = ("residual", "attention", "mlp", "heads", "query", "key", "value", "pattern")
EXAMPLE = (
    'Example: glass patch --raw "The capital of France is" "The capital of Italy is"   ·   '
    'glass patch --raw "The capital of France is" "The capital of Italy is" --part heads   ·   '
    "glass patch --raw --pairs pairs.jsonl   ·   "
    'glass patch --raw "The capital of France is" "The capital of Italy is" --from blocks.23.attention.heads.4 --to final'
)


def patch(
    first: Annotated[str | None, argument(help="The text whose activations are patched in.", default_shown=False)] = None,
    second: Annotated[
        str | None, argument(help="The text they are patched into, of equal length.", default_shown=False)
    ] = None,
    part: Annotated[
        str | None,
        option(
            "--part", help=f"What is patched: {', '.join(PARTS[:-1])} or {PARTS[-1]}; by default residual, of pairs heads."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        option(
            "--pairs", help="In place of two texts: many pairs, of a .jsonl or .csv file (first, second, answer, against)."
        ),
    ] = None,
    metric: Annotated[str | None, option("--metric", help=f"Of pairs: {', '.join(METRICS[:-1])} or {METRICS[-1]}.")] = None,
    sender: Annotated[
        str | None,
        option("--from", help="Along a path: the site that sends, such as blocks.5.attention.heads.1; a pattern for many."),
    ] = None,
    receivers: Annotated[
        list[str] | None,
        option(
            "--to", help="Along a path: the site that receives, such as blocks.9.attention.query.6 or final; repeatable."
        ),
    ] = None,
    freeze_mlps: Annotated[bool, option("--freeze-mlps", help="Along a path: MLPs keep their values too.")] = False,
    token: Annotated[
        list[str] | None,
        option("--token", "-t", help="Only at this position, or token of the second text; repeatable."),
    ] = None,
    answer: Annotated[
        str | None, option(help="The token to restore, by text or #id; by default the first text's best.")
    ] = None,
    against: Annotated[str | None, option(help="The token it is compared with; by default the second text's best.")] = None,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output so far.")] = None,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Patch one text's activations into another's forward pass, place by place: see which restore its answer."""
    from glassformer.training.rows import read_rows

    path = bool(sender or receivers)
    if pairs is None and (first is None or second is None):
        raise InputError("name two texts, or a file of them with --pairs.")
    if pairs is not None and any(named is not None for named in (first, answer, against)):
        raise InputError("the texts and their answers are in the file of --pairs: leave them out here.")
    if pairs is None and metric is not None:
        raise InputError("--metric is for --pairs; of two texts it is always how much is restored.")
    if path and any(named is not None for named in (pairs, part, target)):
        raise InputError("a path has two ends (--from, --to) between two texts: leave out --pairs, --part and --target.")
    if freeze_mlps and not path:
        raise InputError("--freeze-mlps is for a path: name its ends with --from and --to.")
    rows = [] if pairs is None else read_rows(pairs)
    model = model_options.load()
    view: View
    with bars.counter_bar(f"patching {model_options.model}") as progress:
        common: dict[str, Any] = {"positions": token, **prompt_options.keywords(), "progress": progress}
        texts: dict[str, Any] = {"first": first, "second": second, "answer": answer, "against": against}
        own: dict[str, Any]
        if pairs is not None:
            own = {"part": part or "heads", "metric": metric or "recovered", "target": target}
            with _rows_named(rows):
                view = model.patch_pairs([_pair(row) for row in rows], **own, **common)
        elif path:
            own = {"sender": sender or "blocks.*.attention.heads", "receivers": receivers or "final"}
            view = model.patch_path(**texts, **own, **common, freeze_mlps=freeze_mlps)
        else:
            own = {"part": part or "residual", "target": target}
            view = model.patch(**texts, **own, **common)
    output.show(view)


def _pair(row: DataRow) -> dict[str, Any]:
    """The pair of a row; an empty field of a CSV is none."""
    return {name: value for name, value in row.fields.items() if value != ""}


@contextmanager
def _rows_named(rows: Sequence[DataRow]) -> Iterator[None]:
    """Around the patching of a file's pairs: an error says in which row of the file it is."""
    from glassformer.observe.patching import PairError

    try:
        yield
    except PairError as error:
        raise InputError(f"{rows[error.number - 1].place}{error.problem}") from error
