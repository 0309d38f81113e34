"""Many texts through a model, several in a pass: what their tokens have at some sites.

Texts are read as they are, without a chat template. Short ones go through together, since an engine is fastest with a few
hundred tokens at once; a long one goes through alone, in chunks. So memory depends on neither their number nor their
lengths.

Shapes: values (tokens, …), whatever the site's own order of axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from glassformer.engine.protocol import Executor, Feed, Row, Want
from glassformer.ground.errors import InputError, InputTypeError, SiteError
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch, axes
from glassformer.ground.typecheck import brief
from glassformer.see.passes import encoder_pass, grouped
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats

BATCH_TOKENS = 1024  # that go through together, about
BATCH_BYTES = 64_000_000  # of their values, about
BATCH_TEXTS = 32  # that are encoded together
Item = TypeVar("Item")
TOKEN_AXES = ("length", "keys", "source")


@dataclass(frozen=True)
class EncodedText:
    text: str
    ids: tuple[int, ...]
    cut: bool  # whether it has more tokens than are read


@dataclass(frozen=True)
class TextPart:
    """Some tokens of a text, and what they have at some sites."""

    text_index: int
    start: int  # the position of the first token
    values: Mapping[str, Floats]  # by site: (tokens, …)


def encode_texts(model: ModelLike, texts: Iterable[str], length: int | None = None, first: int = 1) -> Iterator[EncodedText]:
    """Texts and their ids, as many as fit into the context, or `length` of them; `first`: the first one's index."""
    room = min(length or model.config.context, model.config.context)
    for index, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputTypeError(f"text {index} is {brief(text)}; each must be a string.")
        ids = model.tokenizer(text)["input_ids"]
        cut = len(ids) > room
        if cut:
            ids = model.tokenizer(text, truncation=True, max_length=room)["input_ids"]
        if not ids:
            raise InputError(f"text {index} has no tokens. Leave it out.")
        yield EncodedText(text, tuple(ids), cut)


def token_sites(model: ModelLike, patterns: Sequence[str], *, slots: bool = False) -> dict[str, tuple[int, ...]]:
    """The sites that match patterns, with the shape of one token's value; all must have one value for each token read.

    `slots`: whether a site will do whose numbers are other experts' at each token.
    """
    if not patterns:
        raise InputError("name the sites to read, such as 'blocks.*.residual'.")
    blueprint = model.blueprint
    sites = [
        site for site in blueprint.site_names.expand(patterns) if site in blueprint.sites or site in patterns
    ]  # fmt: skip
    shapes = {}
    for site in sites:
        if site not in blueprint.sites:
            raise SiteError(f"{model.name} has no site {site!r}.")
        if not slots:
            blueprint.site_names.check_numbered(site)
        tokens = [axis for axis in axes(site) if axis in TOKEN_AXES]
        if len(tokens) > 1:
            raise SiteError(
                f"{site!r} has a value for each pair of tokens, not for each token; model.read(text).record(…) writes those "
                "of one text."
            )
        if model.decoder_start_token is not None and tokens != ["source"]:
            raise SiteError(
                f"{model.name} is an encoder-decoder, whose encoder reads the texts: name its sites, such as "
                f"'encoder.blocks.*.residual', not {site!r}."
            )
        shape = zip(axes(site), blueprint.sites[site], strict=True)
        shapes[site] = tuple(int(size) for axis, size in shape if axis not in ("batch", *TOKEN_AXES))
    return shapes


def read_texts(model: ModelLike, rows: Sequence[Sequence[int]], sites: Mapping[str, tuple[int, ...]]) -> Iterator[TextPart]:
    """What the tokens of some texts have at some sites, in an order that depends on these texts alone."""
    watch = Watch(frozenset(sites))
    if not model.writes:
        for text_index, ids in enumerate(rows):
            yield TextPart(text_index, 0, _by_token(sites, encoder_pass(model, ids, watch)[1], batched=False))
        return
    most = max(1, min(BATCH_TOKENS, BATCH_BYTES // (4 * sum(math.prod(shape) for shape in sites.values()))))
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # for executors that pad
    for group in grouped(by_length, lambda index: len(rows[index]), most):
        executor = model.executor
        opened = [executor.open(rows[index] if model.decoder_start_token is not None else None) for index in group]
        try:
            for start, values in _run_group(model, executor, opened, [rows[index] for index in group], watch, most):
                for text_index, value in zip(group, values, strict=True):
                    yield TextPart(text_index, start, _by_token(sites, value, batched=True))
        finally:
            for row in opened:
                executor.close(row)


def _run_group(
    model: ModelLike, executor: Executor, opened: Sequence[Row], texts: Sequence[Sequence[int]], watch: Watch, most: int
) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """The passes over texts that go together: one, unless it is a single text that is too long for that."""
    want = Want.ALL if "scores" in watch.reads else Want.NONE
    fed = texts if model.decoder_start_token is None else [(model.decoder_start_token,)] * len(texts)
    for start in range(0, max(map(len, fed)), most) if len(fed) == 1 else (0,):
        part = [ids[start : start + most] if len(fed) == 1 else ids for ids in fed]
        feeds = [
            Feed(row, ids, want, watch=watch, text_length=len(text))
            for row, ids, text in zip(opened, part, fed, strict=True)
        ]
        yield start, [output.sites for output in executor.run(feeds)]


def _by_token(sites: Iterable[str], values: Mapping[str, Any], *, batched: bool) -> dict[str, Floats]:
    """Values with the axis of tokens first."""
    by_token = {}
    for site in sites:
        value = values[site]
        array: Floats = value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
        names = axes(site)[1:]
        axis = next(index for index, name in enumerate(names) if name in TOKEN_AXES)
        by_token[site] = np.moveaxis(array[0] if batched else array, axis, 0)
    return by_token


def batches_of_texts(
    model: ModelLike, texts: Iterable[str], sites: Mapping[str, tuple[int, ...]], length: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[list[EncodedText], Iterator[TextPart]]]:  # fmt: skip
    """All texts, some at a time, each batch with its parts, which are to be used up before the next one."""
    total = len(texts) if isinstance(texts, Sized) else None
    encoded, done = encode_texts(model, texts, length), 0
    while batch := list(islice(encoded, BATCH_TEXTS)):
        yield batch, read_texts(model, [text.ids for text in batch], sites)
        done += len(batch)
        if progress is not None and total is not None:
            progress(done, total)
    if done == 0:
        raise InputError("there are no texts to read. Give at least one.")
