"""The plain executor: the families' own PyTorch, run over ragged rows. It works everywhere and defines what is right.

Shapes: ids (rows, length), short rows padded at the end; logits (scored positions, vocabulary).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.engine import checks
from glassformer.engine.plain.kv_cache import CacheWindow, KvSnapshot, PlainRow, RowCache, SourceCache
from glassformer.engine.protocol import (
    BEST,
    NOT_CHOSEN,
    Capabilities,
    Choice,
    ChosenTokens,
    Description,
    DeviceSampler,
    Draws,
    Feed,
    Row,
    first_block,
    read_length,
)  # fmt: skip
from glassformer.engine.row_history import forked
from glassformer.engine.row_states import StatefulRows
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.errors import ExecutorError
from glassformer.ground.ownership import ForkSafeLock, NotCopied
from glassformer.ground.sites import ENCODER, Observer, Tap, where_of
from glassformer.torch.heads import CausalLM, Seq2SeqLM
from glassformer.torch.mask import Mask
from glassformer.torch.outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from glassformer.torch.positions import RotaryEmbedding
from glassformer.torch.shapes import EncoderDecoder

PAD_ID = 0  # any id: what is computed at padded positions is never read


class HostCopy:
    """The logits of a whole pass, brought to the host by one copy when the first of them is asked for.

    Not a `cached_property`: that of Python 3.11 has a lock, which a forked process could inherit held.
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits  # (scored positions, vocabulary)
        self._copy: npt.NDArray[np.float32] | None = None

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        if self._copy is None:
            self._copy = self._logits.float().cpu().numpy()
        return self._copy


class PlainLogits:
    def __init__(self, copy: HostCopy, positions: range, sites: Mapping[str, Any]) -> None:
        self._copy = copy
        self._positions = positions  # of this feed among all that were scored
        self.sites = sites

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        if not self._positions:
            raise ExecutorError(checks.NOT_SCORED)
        logits: npt.NDArray[np.float32] = self._copy.logits[self._positions[index]]
        return logits

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class PlainExecutor(NotCopied, StatefulRows):
    """An `Executor` over any model that scores the next token."""

    def __init__(self, model: CausalLM | Seq2SeqLM, make_tap: Callable[[Sequence[Observer]], Tap] = Tap) -> None:
        """`make_tap`: what watches a pass, where the values at some sites are not whole."""
        self.model = model
        self._make_tap = make_tap
        self.base = model.base_model
        self.context: int = model.config.context
        config = model.config
        described = self.base.described
        self._set_states(described)
        self._checks = checks.InputChecks(
            config.context, self.base.vocabulary_size, self.base.site_names, source_context=config.source_context,
            global_tokens=described.has_global_tokens,
            capabilities=Capabilities(
                takes_vectors=True, begins_at_blocks=described.blocks_stand_alone, calls_modules=make_tap is Tap
            ),
        )  # fmt: skip
        self._set_ropes(module.rope for module in self.base.modules() if isinstance(module, RotaryEmbedding))
        self._cache = RowCache(described.caching_layers(), described.key_shapes())
        self._lock = ForkSafeLock()

    @property
    def capabilities(self) -> Capabilities:
        """Modules may have hooks, which see no token that nobody wants: so none is chosen ahead."""
        sampler = DeviceSampler(_is_best, self._decode_best, max_tokens=1)
        return replace(
            self._checks.capabilities,
            sampler=sampler,
            export_kv=None if self._state_size else self.export_kv,
            same_frequencies=self.same_frequencies,
            resumes_at=self._resumes_at,
        )

    @checks.locked
    def open(self, source: Sequence[int] | None = None) -> PlainRow:
        row = self._cache.add(self._checks.source(source))
        row.history, row.state = self._new_history(), self._new_state()
        return row

    @checks.locked
    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[PlainLogits]:
        rows = [self._open_row(feed.row) for feed in feeds]
        feeds = [self._checks.feed(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checks.check_fed_once(rows)
        logits: list[PlainLogits] = self._run_rows(feeds, rows) if feeds else []
        return logits

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[PlainRow]) -> list[PlainLogits]:
        order = sorted(range(len(feeds)), key=lambda index: (first_block(feeds[index]), rows[index].slot))
        logits: dict[int, PlainLogits] = {}
        with checks.unchanged_weights(self.model), checks.rewound(feeds, rows):
            encoder_sites = self._encode(feeds, rows)
            for _, group in groupby(order, key=lambda index: first_block(feeds[index])):
                indices = list(group)
                passed = self._run_pass(
                    [feeds[index] for index in indices], [rows[index] for index in indices], encoder_sites
                )
                logits |= zip(indices, passed, strict=True)
            for feed, row in zip(feeds, rows, strict=True):
                row.length += len(feed.ids)
        return [logits[index] for index in range(len(feeds))]

    def _open_row(self, row: Row) -> PlainRow:
        return checks.open_row(row, PlainRow)

    def _encode(self, feeds: Sequence[Feed], fed: Sequence[PlainRow]) -> dict[int, dict[str, Any]]:
        """Encode the sources of rows that run for the first time; the sites that their watches read there, by slot."""
        unread = [(feed, row) for feed, row in zip(feeds, fed, strict=True) if row.source and not row.encoded]
        if not unread:
            return {}
        base = self.base
        assert isinstance(base, EncoderDecoder)
        device = base.token_embedding.weight.device
        rows = [row for _, row in unread]
        longest = max(len(row.source) for row in rows)
        ids = torch.tensor([[*row.source, *[PAD_ID] * (longest - len(row.source))] for row in rows], device=device)
        present = torch.tensor([[n < len(row.source) for n in range(longest)] for row in rows], device=device)
        positions, mask = base.positions_and_mask(ids, present, causal=False)
        if any(row.source.global_tokens for row in rows):
            chosen = [[n in row.source.global_tokens for n in range(longest)] for row in rows]
            mask = mask.with_global_tokens(torch.tensor(chosen, device=device))
        observers = {
            row.slot: Observer(feed.watch, index, source=len(row.source))
            for index, (feed, row) in enumerate(unread)
            if feed.watch is not None
        }
        tap = self._make_tap(list(observers.values())) if observers else None
        with base.modules_hooked(tap, ids, ENCODER):
            states = base.encode(base.embed_source(ids), base.new_pass(positions, mask, tap=tap))
        buffers, slots = self._cache.source, [row.slot for row in rows]
        self._cache.reserve_sources(longest)
        for layer, crossing in enumerate(base.cross_attention_modules):
            key, value = crossing.project_source(states)
            keys, values = buffers.allocated(len(self._cache.rows), key, value)
            keys[layer, slots, :, :longest] = key
            values[layer, slots, :, :longest] = value
        for row in rows:
            row.encoded = True
        return {slot: observer.record for slot, observer in observers.items()}

    def _run_pass(
        self, feeds: Sequence[Feed], rows: Sequence[PlainRow], encoder_sites: Mapping[int, dict[str, Any]]
    ) -> list[PlainLogits]:
        device = self.base.token_embedding.weight.device
        lengths = [len(feed.ids) for feed in feeds]
        longest = max(lengths)
        ids = torch.tensor([[*feed.ids, *[PAD_ID] * (longest - len(feed.ids))] for feed in feeds], device=device)
        starts = [row.length for row in rows]
        self._cache.reserve(max(starts) + longest)
        window = CacheWindow(self._cache, rows, starts, longest, device)
        has_tree = any(feed.parents is not None for feed in feeds)
        mask = Mask(window.columns, window.keys, aligned=window.aligned and not has_tree)
        positions = window.columns
        if has_tree:
            positions = self._apply_trees(feeds, starts, mask, positions)
        observers = [
            Observer(
                replace(feed.watch, reads=feed.watch.reads - {"scores"}),
                index,
                row.length,
                length,
                row.length + length,
                len(row.source),
                encoder_sites.get(row.slot, {}),
            )
            if feed.watch is not None
            else None
            for index, (feed, row, length) in enumerate(zip(feeds, rows, lengths, strict=True))
        ]
        tap = self._make_tap([observer for observer in observers if observer is not None]) if any(observers) else None
        scored = [checks.scored_columns(feed) for feed in feeds]
        keep = (
            torch.tensor([index for index, columns in enumerate(scored) for _ in columns], dtype=torch.long, device=device),
            torch.tensor([column for columns in scored for column in columns], dtype=torch.long, device=device),
        )
        vectors = self._vectors(ids, feeds) if any(feed.vectors is not None for feed in feeds) else None
        begin = self._block_input(feeds, longest) if feeds[0].begin is not None else None
        present = self._present(lengths, longest, device)
        lengths = [read_length(feed, start) for feed, start in zip(feeds, starts, strict=True)]
        logits = self._logits(ids, rows, window, mask, positions, lengths, keep, tap, vectors, begin, present)
        copy, first, results = HostCopy(logits), 0, []
        for feed, observer, start, columns in zip(feeds, observers, starts, scored, strict=True):
            result = PlainLogits(copy, range(first, first + len(columns)), {})
            if observer is not None:
                result = _watched_logits(feed, logits[first : first + len(columns)], observer, start + columns.start)
            results.append(result)
            first += len(columns)
        return results

    def _logits(
        self, ids: Tensor, rows: Sequence[PlainRow], window: CacheWindow, mask: Mask, positions: Tensor,
        lengths: Sequence[int], keep: int | tuple[Tensor, Tensor], tap: Tap | None = None, vectors: Tensor | None = None,
        begin: tuple[int, Tensor] | None = None, present: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The model itself, over one token of each row or more; `lengths`: of the texts, `keep`: the positions to score."""
        encoder_decoder = isinstance(self.base, EncoderDecoder)
        source = SourceCache(self._cache.source, rows, ids.device) if encoder_decoder else None
        p = self.base.new_pass(positions, mask, window, tap, source, lengths=lengths)
        p = replace(p, begin=begin, present=present, ids=ids)
        names = ("decoder_input_ids", "decoder_inputs_embeds") if encoder_decoder else ("input_ids", "inputs_embeds")
        tokens = {names[0]: ids} if vectors is None else {names[1]: vectors}
        with self.base.modules_hooked(tap, ids):
            output: CausalLMOutputWithPast | Seq2SeqLMOutput = self.model(**tokens, p=p, logits_to_keep=keep)
        assert output.logits is not None
        return output.logits

    def _present(self, lengths: Sequence[int], longest: int, device: Any) -> Tensor | None:
        """Which tokens of a pass are no padding, where states must not see it."""
        if not self._state_size or min(lengths) == longest:
            return None
        return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]

    def _vectors(self, ids: Tensor, feeds: Sequence[Feed]) -> Tensor:
        """The embeddings of the tokens, (rows, length, hidden), and in their place the vectors that some feeds have."""
        vectors = self.base.embed(ids, None)
        for row, feed in zip(vectors, feeds, strict=True):
            if feed.vectors is not None:
                row[: len(feed.vectors)] = feed.vectors
        return vectors

    def _block_input(self, feeds: Sequence[Feed], longest: int) -> tuple[int, Tensor]:
        """The block that these feeds begin at, and what enters it: (rows, length, hidden)."""
        weight, hidden = self.base.token_embedding.weight, self.model.config.hidden_size
        states = torch.zeros(len(feeds), longest, hidden)
        for row, feed in zip(states, feeds, strict=True):
            assert feed.begin is not None
            row[: len(feed.ids)] = torch.from_numpy(checks.block_states(feed.begin, len(feed.ids), hidden))
        return first_block(feeds[0]), states.to(weight.device, weight.dtype)

    @checks.locked
    @torch.inference_mode()
    def import_kv(
        self, snapshot: KvSnapshot, source: Sequence[int] = (), ids: Sequence[int] = (), vectors: Any = None
    ) -> PlainRow:
        """A new row with these keys and values: what `export_kv` gave, or a caller's; `source`: what the encoder is to read,
        if they have nothing of it; `ids`, `vectors`: the text whose beginning it is."""
        row = self._cache.import_kv(snapshot, source)
        row.history = self._new_history()
        if snapshot.text:
            vectors = None if vectors is None else vectors[: row.length]
            self._record(row, Feed(row, ids[: row.length] or (PAD_ID,) * row.length, vectors=vectors), 0, row.length)
        return row

    @checks.locked
    def export_kv(self, row: Row, length: int) -> KvSnapshot:
        """A copy of the keys and values of a row's first `length` tokens, and of its source."""
        return self._cache.export_kv(self._open_row(row), length)

    @checks.locked
    @torch.inference_mode()
    def _decode_best(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> list[ChosenTokens]:
        """The best tokens: logits stay on the model's device, and ids until the end."""
        fed, count = [self._open_row(row) for row in rows], draws.shape[1]
        self._checks.steps(fed, tokens, count)
        if not fed or not count:
            return [ChosenTokens([]) for _ in fed]
        order = sorted(range(len(fed)), key=lambda index: fed[index].slot)
        with checks.restored(fed, [row.length for row in fed]), checks.unchanged_weights(self.model):
            self._encode([Feed(row, (token,)) for row, token in zip(fed, tokens, strict=True)], fed)
            steps = self._begin_steps(fed, tokens, count)
            best = self._decode([fed[index] for index in order], [tokens[index] for index in order], count)
            self._end_steps(fed)
        best[np.maximum.accumulate(best == NOT_CHOSEN, axis=1)] = NOT_CHOSEN
        ids = dict(zip(order, best.tolist(), strict=True))
        return [row_steps.take(ChosenTokens(ids[index])) for index, row_steps in enumerate(steps)]

    def _decode(self, rows: Sequence[PlainRow], tokens: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """The best ids of rows in the order of their slots; NOT_CHOSEN where the best logit is no number."""
        device = self.base.token_embedding.weight.device
        longest = max(row.length for row in rows)
        self._cache.reserve(longest + count)
        ids, chosen = torch.tensor(tokens, device=device)[:, None], []
        for _ in range(count):
            window = CacheWindow(self._cache, rows, [row.length for row in rows], 1, device)
            mask = Mask(window.columns, window.keys, aligned=window.aligned)
            lengths = [row.length + 1 for row in rows]
            logits, best = self._logits(ids, rows, window, mask, window.columns, lengths, 1).max(-1)
            chosen.append(best.masked_fill(~logits.isfinite(), NOT_CHOSEN))
            ids = best
            for row in rows:
                row.length += 1
        all_ids: npt.NDArray[np.int32] = torch.cat(chosen, 1).int().cpu().numpy()
        return all_ids

    def _apply_trees(self, feeds: Sequence[Feed], starts: Sequence[int], mask: Mask, positions: Tensor) -> Tensor:
        """Tree attention: each token sees only its ancestors, and stands one position after its parent."""
        positions = positions.clone()
        visible = mask.visible().clone()
        for row, (feed, start) in enumerate(zip(feeds, starts, strict=True)):
            if feed.parents is None:
                continue
            for index, parent in enumerate(feed.parents):
                keys = visible[row, 0, index]
                keys[start:] = False if parent < 0 else visible[row, 0, parent, start:]
                keys[start + index] = True
                positions[row, index] = start if parent < 0 else positions[row, parent] + 1
        key_positions = torch.arange(mask.keys, device=visible.device).repeat(len(feeds), 1)
        key_positions.scatter_(1, mask.columns, positions)
        mask.use_tree(visible, key_positions, positions)
        return positions

    @checks.locked
    @torch.inference_mode()
    def fork(self, row: Row, length: int | None = None) -> PlainRow:
        parent = self._open_row(row)
        fork = self._cache.add(parent.source)
        fork.length = parent.length if length is None else max(0, min(length, parent.length))
        fork.encoded = parent.encoded
        fork.history = forked(parent.history, fork.length)
        fork.state = None if parent.state is None else parent.state.fork(fork.length)
        self._cache.copy([fork.slot], [parent])
        return fork

    @checks.locked
    @torch.inference_mode()
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        targets = [self._open_row(row) for row in rows]
        chosen = [targets[parent] for parent in parents]
        states = [
            (row.length, row.source, row.encoded, forked(row.history, row.length), row.state and row.state.fork(row.length))
            for row in chosen
        ]
        self._cache.copy([row.slot for row in targets], chosen)
        for row, state in zip(targets, states, strict=True):
            row.length, row.source, row.encoded, row.history, row.state = state

    @checks.locked
    def rewind(self, row: Row, length: int) -> int:
        cached = self._open_row(row)
        cached.length = max(0, min(cached.length, length))
        cached.history = forked(cached.history, cached.length)
        if cached.state is not None:
            cached.state.go_back(cached.length)
        return cached.length

    @checks.locked
    @torch.inference_mode()
    def close(self, row: Row) -> None:
        self._cache.remove(self._open_row(row))

    @torch.inference_mode()
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        weight = self.base.token_embedding.weight
        residual = torch.from_numpy(checks.residual_states(states, self.model.config.hidden_size))
        with checks.unchanged_weights(self.model):
            normed = self.base.final_states(residual.to(weight.device, weight.dtype))
            logits: npt.NDArray[np.float32] = self.model.head_module(normed).float().cpu().numpy()
        return logits

    def describe(self) -> Description:
        weight = self.base.token_embedding.weight
        dtype = str(weight.dtype).removeprefix("torch.")
        token_bytes = self._cache.text.bytes_per_token
        return Description("plain", str(weight.device), dtype, torch.get_num_threads(), token_bytes, self._state_bytes)


def _is_best(choice: Choice) -> bool:
    return choice == BEST


def _watched_logits(feed: Feed, logits: Tensor, observer: Observer, start: int) -> PlainLogits:
    """One feed's logits, changed and recorded if its watch asks for the site `scores`; `start`: the first one's position."""
    assert feed.watch is not None
    if (change := feed.watch.changes.get("scores")) is not None and len(logits):
        logits = change.apply(logits[None], where_of("scores", start))[0]
    if "scores" in feed.watch.reads:
        observer.record["scores"] = logits[None]
    return PlainLogits(HostCopy(logits), range(len(logits)), observer.record)
