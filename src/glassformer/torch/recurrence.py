"""Layers that keep a state from token to token: a short convolution, and heads whose state is decayed, written to and read.

Many tokens are computed in chunks of fixed size that begin at fixed positions of a text: inside one as a few matrix
products, from one to the next through the state. Padding is passed over: it neither decays a state nor is written to it.

Shapes: x (batch, length, columns); query, key (batch, key heads, length, key_size); value (batch, heads, length, head_size);
write (batch, length, heads); decay the same, or, of each row of a state, (batch, length, heads · key_size); state (batch,
heads, key_size, head_size).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.ground.errors import InputError
from glassformer.ops.activate import torch_activation
from glassformer.torch.container import Container
from glassformer.torch.forward_pass import ForwardPass

CHUNK = 64  # tokens; the last piece of a text may be shorter
COLUMNS = 8  # of keys that are multiplied at a time, where each has decays of its own
SMALLEST = 1e-30  # decay: its logarithm is taken, and a state times less is nothing


class CausalConv1d(nn.Module):
    """A sum over each column's last inputs, weighted by how long ago they were; printed as a Conv1d."""

    state_index: int  # of its state among those of the model

    def __init__(self, columns: int, kernel: int, bias: bool, how: str | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns, 1, kernel))
        self.bias = nn.Parameter(torch.zeros(columns)) if bias else None
        self.how = how
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        kernel = self.weight.shape[-1]
        if p.present is not None:
            x = x * p.present[..., None]
        before = None if p.cache is None else p.cache.load_state(self.state_index)
        before = x.new_zeros(len(x), kernel - 1, x.shape[-1]) if before is None else before.to(x.dtype)
        window = torch.cat((before, x), 1)
        if p.cache is not None:
            p.cache.keep_state(self.state_index, _last(window, kernel - 1, p.present), p.mask.keys)
        total = F.conv1d(window.mT, self.weight, self.bias, groups=x.shape[-1]).mT
        return torch_activation(self.how, total)

    def _get_name(self) -> str:
        return "Conv1d"

    def extra_repr(self) -> str:
        columns, _, kernel = self.weight.shape
        bias = "" if self.bias is not None else ", bias=False"
        return f"{columns}, {columns}, kernel_size=({kernel},), stride=(1,), padding=({kernel - 1},), groups={columns}{bias}"


def _last(window: Tensor, count: int, present: Tensor | None) -> Tensor:
    """The last inputs before each text's end."""
    if present is None or not count:
        return window[:, window.shape[1] - count :]
    places = torch.arange(1, present.shape[1] + 1, device=present.device)
    ends = (present * places).amax(1)  # after the last real token
    return window.gather(
        1, (ends[:, None] + torch.arange(count, device=ends.device))[..., None].expand(-1, -1, window.shape[-1])
    )


class Recurrence(Container):
    """Projections, norms and convolutions are its parts and steps; here is what happens to its state."""

    state_index: int
    delta: bool
    scale: float
    site_prefix = "attention"
    skip_name = ""  # of the parameter that says how much of a token's own value passes by the state

    def recur(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, p: ForwardPass) -> Tensor:
        """All heads' outputs, side by side: (batch, length, heads · head_size)."""
        dtype, wide = value.dtype, torch.promote_types(value.dtype, torch.float32)
        groups = value.shape[1] // key.shape[1]
        query, key = (x.to(wide).repeat_interleave(groups, 1) for x in (query * self.scale, key))
        value, write = value.to(wide), write.to(wide).mT
        decay = decay.to(wide).clamp_min(0)
        decay = decay.reshape(*decay.shape[:2], value.shape[1], -1).transpose(1, 2)
        if p.present is not None:
            decay, write = decay.masked_fill(~p.present[:, None, :, None], 1.0), write * p.present[:, None]
        before = None if p.cache is None else p.cache.load_state(self.state_index)
        starts = [0] if p.cache is None else p.mask.columns[:, 0].tolist()
        first = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1]) if before is None else before.to(wide)
        watched = p.tap is not None and p.tap.wants(self.site(f"{self.site_prefix}.state_norm", p))
        if value.shape[2] == 1:
            heads, state = one_step(query, key, value, decay, write, first, self.delta)
        else:
            heads, state = in_chunks(query, key, value, decay, write, first, self.delta, starts)
        skip = getattr(self, self.skip_name).to(wide)[:, None, None] if self.skip_name else None
        if skip is not None:
            heads = heads + skip * value
        if p.tap is not None:
            if watched:
                norms = state_norms(key, value, decay, write, first, self.delta)
                self.at_site(f"{self.site_prefix}.state_norm", norms.mT.to(dtype), p)
            heads = self._seen_heads(heads, query, key, value, decay, write, skip, p, any(starts))
            state = self.at_site(f"{self.site_prefix}.state", state, p)
        if p.cache is not None:
            p.cache.keep_state(self.state_index, state, p.mask.keys)
        return heads.to(dtype).transpose(1, 2).flatten(2)

    def _seen_heads(
        self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, skip: Tensor | None,
        p: ForwardPass, begun: bool,
    ) -> Tensor:  # fmt: skip
        """The sites of pattern and heads; the heads are computed from the pattern only where it is changed."""
        assert p.tap is not None
        site = self.site(f"{self.site_prefix}.pattern", p)
        if p.tap.wants(site):
            if begun:
                raise InputError(
                    f"{site!r} needs what earlier passes have written to the state. Give the text in one pass, without a "
                    "cache."
                )
            weights = effective_pattern(query, key, decay, write, self.delta)
            if skip is not None:
                weights = weights + skip * torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
            weights = p.tap.apply(site, weights)
            if p.tap.changes(site):
                heads = weights.to(value.dtype) @ value
        return self.at_site(f"{self.site_prefix}.heads", heads, p)


def one_step(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor, delta: bool
) -> tuple[Tensor, Tensor]:
    """One token: the heads' outputs, and the state after it."""
    state = state * _by_row(decay).mT
    if delta:
        value = value - key @ state
    state = state + key.mT @ (value * write[..., None])
    return query @ state, state


def in_chunks(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor, delta: bool,
    starts: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Some tokens of each text: the heads' outputs, and the states after them. Texts that go on from different positions
    have chunks of their own."""
    if len({start % CHUNK for start in starts}) == 1:
        return chunked(query, key, value, decay, write, state, delta, starts[0])
    made = []
    for row, start in enumerate(starts):
        q, k, v, d, w, s = (x[row : row + 1] for x in (query, key, value, decay, write, state))
        made.append(chunked(q, k, v, d, w, s, delta, start))
    heads, states = zip(*made, strict=True)
    return torch.cat(heads), torch.cat(states)


def chunked(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor, delta: bool, start: int
) -> tuple[Tensor, Tensor]:
    """Some tokens from position `start` on: the heads' outputs, and the state after them."""
    heads, length, first, decay = [], value.shape[2], 0, _by_row(decay)
    while first < length:
        end = min(length, first + CHUNK - (start + first) % CHUNK)
        q, k, v = (x[:, :, first:end] for x in (query, key, value))
        kept = decay[:, :, first:end].clamp_min(SMALLEST).log().cumsum(2)  # of what was there before: its logarithm
        v = v * write[..., first:end, None]
        if delta:
            v = _without_known(k, v, write[..., first:end], kept, _read(k, kept, state))
        heads.append(_read(q, kept, state) + _products(q, k, kept) @ v)
        last = kept[:, :, -1:]
        state = state * last.exp().mT + (k * (last - kept).exp()).mT @ v
        first = end
    return torch.cat(heads, 2), state


def _by_row(decay: Tensor) -> Tensor:
    """Decays of each row of a state, or one for all: (batch, heads, length, key_size or 1)."""
    return decay if decay.ndim == 4 else decay[..., None]


def _read(x: Tensor, kept: Tensor, state: Tensor) -> Tensor:
    """What queries or keys find of a state from before the chunk; `kept`: of it, by each token's place, as logarithms."""
    grown = kept.exp()
    return grown * (x @ state) if grown.shape[-1] == 1 else (x * grown) @ state


def _products(x: Tensor, key: Tensor, kept: Tensor) -> Tensor:
    """Of queries or keys with the keys of all tokens so far, as far as these are kept: (batch, heads, length, length)."""
    if kept.shape[-1] == 1:
        return x @ key.mT * _lower_triangle((kept - kept.mT).exp())
    total = x.new_zeros(*x.shape[:-1], key.shape[2])
    later = torch.ones_like(total, dtype=torch.bool).triu(1)[..., None]
    for first in range(0, x.shape[-1], COLUMNS):
        some = slice(first, first + COLUMNS)
        since = (kept[:, :, :, None, some] - kept[:, :, None, :, some]).masked_fill(later, -torch.inf).exp()
        total = total + (x[:, :, :, None, some] * since * key[:, :, None, :, some]).sum(-1)
    return total


def _without_known(key: Tensor, written: Tensor, write: Tensor, kept: Tensor, known: Tensor) -> Tensor:
    """What a chunk's tokens write, less what the state has for their keys by then; `known`: what it had before the chunk."""
    overlap = _products(key, key, kept) * write[..., None]
    return torch.linalg.solve_triangular(
        overlap.tril(-1), written - known * write[..., None], upper=False, unitriangular=True
    )


def _lower_triangle(x: Tensor) -> Tensor:
    return torch.where(torch.ones_like(x, dtype=torch.bool).tril(), x, 0.0)


def effective_pattern(query: Tensor, key: Tensor, decay: Tensor, write: Tensor, delta: bool) -> Tensor:
    """How much of each token's value is in each output: (batch, heads, length, length)."""
    kept = _by_row(decay).clamp_min(SMALLEST).log().cumsum(2)
    weights, written = _products(query, key, kept), torch.diag_embed(write)
    if delta:
        overlap = _products(key, key, kept) * write[..., None]
        written = torch.linalg.solve_triangular(overlap.tril(-1), written, upper=False, unitriangular=True)
    return weights @ written


def state_norms(key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor, delta: bool) -> Tensor:
    """How long the state's numbers are, as one vector, after each token: (batch, heads, length)."""
    norms, decay = [], _by_row(decay)
    for place in range(value.shape[2]):
        k, v, d, w = key[:, :, place, None], value[:, :, place, None], decay[:, :, place, None], write[..., place, None]
        _, state = one_step(k, k, v, d, w, state, delta)
        norms.append(state.flatten(2).norm(dim=-1))
    return torch.stack(norms, -1)
