"""A model of transformers, and the calls that are made of it: over a text, one token after a cache, over a source.

Shapes: ids (1, length), one row at a time, so that what a row gets never depends on what runs beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from glassformer.blueprints.blueprint import Head
from glassformer.blueprints.bridged import LIBRARY, BridgedBlueprint, BridgedConfig, bridged_blueprint
from glassformer.engine.bridge.anatomy import Anatomy, examine
from glassformer.engine.bridge.installed import quiet
from glassformer.ground.errors import SiteError
from glassformer.ground.ownership import ForkSafeLock, Shared
from glassformer.ground.sites import ENCODER, Observer, Tap, Watch, module_of, module_sites, where_of
from glassformer.torch.module_sites import ModulePlace, hooked

CACHES = ("past_key_values", "cache_params", "state", "mems")  # what models call it in what they take and what they give


@dataclass(frozen=True)
class Output:
    """What one call gave."""

    logits: Tensor | None  # (length, vocabulary), or of the positions that were to be kept
    states: Tensor | None  # of a model without a head
    cache: Any
    patterns: Mapping[str, Sequence[Tensor | None]]  # by what attends: "attention", "cross"
    whole: Any


class BridgedModel(Shared):
    def __init__(self, module: nn.Module, config: BridgedConfig, head: Head) -> None:
        self.module, self.config, self.head = module, config, head
        self.lock = ForkSafeLock()
        self._takes = frozenset(inspect.signature(module.forward).parameters)

    @property
    def is_pair(self) -> bool:
        """Whether it is an encoder-decoder."""
        return self.head == "seq2seq"

    @cached_property
    def cache_name(self) -> str | None:
        return next((name for name in CACHES if name in self._takes), None)

    @cached_property
    def encoder(self) -> nn.Module:
        found: nn.Module = self.module.get_encoder()  # type: ignore[operator]
        return found

    @cached_property
    def encoder_name(self) -> str:
        return next(str(name) for name, module in self.module.named_modules() if module is self.encoder)

    @cached_property
    def anatomy(self) -> Anatomy:
        with self.lock:
            return examine(self)

    @cached_property
    def blueprint(self) -> BridgedBlueprint:
        found = self.anatomy
        names = [name for name, _ in self.module.named_modules()]
        inside = f"{self.encoder_name}." if self.is_pair else ""
        sites = module_sites(names, lambda name: bool(inside) and f"{name}.".startswith(inside))
        weights = {name: tuple(weight.shape) for name, weight in self.module.named_parameters()}
        return bridged_blueprint(
            self.config, self.head, found.sites, found.blocks, found.encoder_blocks, weights, self._table, sites
        )  # fmt: skip

    @property
    def _table(self) -> str:
        """The name of the vectors of its tokens."""
        weight = self.module.get_input_embeddings().weight  # type: ignore[operator]
        return next((name for name, own in self.module.named_parameters() if own is weight), "")

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)

    def encode(self, ids: Sequence[int], patterns: bool = False) -> Any:
        """An encoder-decoder's encoded source."""
        with quiet(), self._eager() if patterns else nullcontext():
            return self.encoder(input_ids=self.tensor(ids), return_dict=True, **_asked(patterns))

    def call(
        self, ids: Sequence[int], *, encoded: Any = None, cache: Any = None, use_cache: bool = False,
        keep: int | None = None, patterns: bool = False, inputs: Mapping[str, Tensor] | None = None,
    ) -> Output:  # fmt: skip
        """One pass; `encoded`: an encoder's output, `keep`: how many of the last positions are scored, where it can tell."""
        given: dict[str, Any] = {"decoder_input_ids" if self.is_pair else "input_ids": self.tensor(ids), **(inputs or {})}
        if encoded is not None:
            given["encoder_outputs"] = encoded
        if "use_cache" in self._takes:
            given["use_cache"] = use_cache
        if cache is not None and self.cache_name is not None:
            given[self.cache_name] = cache
        if keep is not None and "logits_to_keep" in self._takes:
            given["logits_to_keep"] = keep
        with quiet(), self._eager() if patterns else nullcontext():
            output = self.module(**given, return_dict=True, **_asked(patterns))
        logits, states = getattr(output, "logits", None), getattr(output, "last_hidden_state", None)
        names = {"attention": "decoder_attentions" if self.is_pair else "attentions", "cross": "cross_attentions"}
        found = {kind: tuple(getattr(output, name, None) or ()) for kind, name in names.items()}
        kept = None if self.cache_name is None else getattr(output, self.cache_name, None)
        return Output(None if logits is None else logits[0], states, kept, found if patterns else {}, output)

    def read(
        self, ids: Sequence[int], watch: Watch, second: int | None = None
    ) -> tuple[npt.NDArray[np.float32] | None, dict[str, npt.NDArray[np.float32]]]:
        """One pass of a model that only reads: its logits for each token or for the text, and what the watch read.

        `second`: where the second of two texts begins. Patterns take a pass of their own.
        """
        watch, record = watch.expanded(self.blueprint.site_names), dict[str, Tensor]()
        check_changes(watch)
        inputs = {}
        if second is not None and "token_type_ids" in self._takes:
            inputs["token_type_ids"] = (torch.arange(len(ids), device=self.device) >= second).long()[None]
        patterns = [site for site in watch.reads if site in self.anatomy.patterns]
        reads = watch.reads - {"scores", *patterns}
        changes = {site: change for site, change in watch.changes.items() if site != "scores"}
        with self.lock, torch.inference_mode():
            tap = Tap([Observer(Watch(reads, changes), 0, 0, len(ids), record=record)]) if reads or changes else None
            with self.watched(tap, len(ids)):
                logits = self.call(ids, inputs=inputs).logits
            if patterns:
                again = Tap([Observer(Watch(changes=changes), 0, 0, len(ids))]) if changes else None
                with self.watched(again, len(ids)):
                    given = self.call(ids, patterns=True, inputs=inputs).patterns
                for site in patterns:
                    kind, index = self.anatomy.patterns[site]
                    record[site] = cast(Tensor, given[kind][index])
        if logits is not None and (change := watch.changes.get("scores")) is not None:
            logits = change.apply(logits[None], where_of("scores", 0))[0]
        if logits is not None and "scores" in watch.reads:
            record["scores"] = logits[None]
        sites = {site: value[0].float().cpu().numpy() for site, value in record.items()}
        return None if logits is None else logits.float().cpu().numpy(), sites

    @contextmanager
    def watched(self, tap: Tap | None, length: int, stack: str = "") -> Iterator[None]:
        """Around a call: the sites of a stack go through the tap."""
        if tap is None:
            yield
            return
        places = {
            site: place
            for site, place in self.anatomy.places.items()
            if tap.wants(site) and site.startswith(ENCODER) == bool(stack)
        }
        for site in tap.modules:
            if site.startswith(ENCODER) == bool(stack):
                places[site] = ModulePlace(module_of(site), self.anatomy.layouts.get(module_of(site)))
        with hooked(self.module, places, tap, 1, length):
            yield

    @contextmanager
    def _eager(self) -> Iterator[None]:
        """Attention that gives its patterns."""
        before = getattr(self.module.config, "_attn_implementation", None)
        if before in (None, "eager"):
            yield
            return
        self.module.set_attn_implementation("eager")  # type: ignore[operator]
        try:
            yield
        finally:
            self.module.set_attn_implementation(before)  # type: ignore[operator]


def check_changes(watch: Watch) -> None:
    """Refuse what cannot be changed."""
    for site in watch.changes:
        if site.endswith(".pattern"):
            raise SiteError(
                f"{site!r} can be read, and not changed: {LIBRARY} gives its patterns when they have been used. Change "
                f"{site.removesuffix('pattern') + 'update'!r}."
            )


def _asked(patterns: bool) -> dict[str, bool]:
    return {"output_attentions": True} if patterns else {}
