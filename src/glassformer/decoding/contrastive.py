"""Contrastive search: among the likeliest tokens, the one that is least like what stands already (https://arxiv.org/abs/2202.06417).

For each of the `top_k` likeliest tokens v, the score is

    (1 − α) · p(v) − α · max over all tokens x of the text of cos(h_v, h_x)

where h is a token's last hidden state, after the last norm. So the model must read each candidate before one is chosen: they
are fed side by side, as the branches of a token tree, together with the token that was chosen before them. What follows
the chosen one is then known too, so that a token costs one pass.

Shapes: states (tokens, hidden), each of length one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.decoding.lane import Lane, close_all
from glassformer.decoding.policy import NOTHING, Policy, Step
from glassformer.decoding.shortlist import Floats, Shortlist
from glassformer.engine import protocol
from glassformer.engine.protocol import Executor, Feed, Want
from glassformer.ground.errors import NotNumbers
from glassformer.ground.sites import Watch

FINAL = "final"
STATES = Watch(frozenset((FINAL,)))
States = npt.NDArray[np.float32]


def contrastive(executor: Executor, policies: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end; yields (which, step) as tokens come. All texts run together."""
    texts: dict[int, ContrastiveText] = {}
    try:
        for index, policy in enumerate(policies):
            texts[index] = ContrastiveText(executor, policy)
        while texts:
            logits = executor.run([text.next_feed() for text in texts.values()])
            for (index, text), text_logits in zip([*texts.items()], logits, strict=True):
                step = text.receive(text_logits)
                if step is None:
                    continue
                if step.finish:
                    texts.pop(index).lane.close()
                yield index, step
    finally:
        close_all([text.lane for text in texts.values()])


class ContrastiveText:
    """One text, and the candidates for its next token."""

    def __init__(self, executor: Executor, policy: Policy) -> None:
        self.executor = executor
        self.policy = policy
        self.alpha = policy.settings.penalty_alpha or 0.0
        self.lane = Lane(executor, policy, STATES)
        self._feed = self.lane.feeds[0]  # the prompt at first
        self._unread: tuple[int, ...] = ()  # the token that was chosen last, which the row has not read
        self._text_states: States | None = None
        self._stages: list[Shortlist] = []  # of the next token: the logits, and what each rule left
        self._candidates: list[int] = []
        self._probabilities: npt.NDArray[np.float64] = np.empty(0)  # of the candidates
        self._states: list[States] = []  # of the candidates that have been read, as are their logits
        self._logits: list[Floats] = []

    def next_feed(self) -> Feed:
        """The prompt; then the last token, and as many candidates behind it as the row has room for."""
        if self._text_states is None:
            return self._feed
        row = self._feed.row
        room = self.executor.context - row.length - len(self._unread)
        waiting = self._candidates[len(self._states) :][: max(room, 1)]
        parents = (*range(-1, len(self._unread) - 1), *[len(self._unread) - 1] * len(waiting))
        self._feed = Feed(row, (*self._unread, *waiting), Want.ALL, parents, STATES)
        self.lane.feeds = [self._feed]
        return self._feed

    def receive(self, logits: protocol.Logits) -> Step | None:
        """Take what a pass gave; the next token, once all of its candidates have been read."""
        states = unit_length(logits.sites[FINAL][0])
        if self._text_states is None:
            self._text_states = states
            self._set_candidates(logits.host())
            return None
        read = len(self._unread)
        self.executor.rewind(self._feed.row, self._feed.row.length - len(self._feed.ids) + read)
        for position in range(read, len(self._feed.ids)):
            self._states.append(states[position])
            self._logits.append(logits.host(position).copy())
        self._unread = ()
        return self._choose() if len(self._states) == len(self._candidates) else None

    def _choose(self) -> Step:
        assert self._text_states is not None
        likeness = (np.stack(self._states) @ self._text_states.T).max(-1)
        best = int(((1 - self.alpha) * self._probabilities - self.alpha * likeness).argmax())
        token, logits = self._candidates[best], self._stages[0].scores
        step = self.policy.accept(token, gap=float(logits.max() - logits[token]))
        if self.policy.detail is not NOTHING:
            step = self.policy.explain(step, self._stages)
        if step.finish is None:
            self._text_states = np.concatenate((self._text_states, self._states[best][None]))
            self._unread = (token,)
            self._set_candidates(self._logits[best])
        return self.lane.with_outcome(step)

    def _set_candidates(self, logits: Floats) -> None:
        """The likeliest tokens after the rules, the best first."""
        try:
            self.policy.best(logits)
        except NotNumbers as error:
            raise self.lane.located(error) from None
        self._stages = self.policy.stages(logits)
        self.policy.check_not_empty(self._stages)
        shortlist = self._stages[-1]
        order = np.argsort(-shortlist.scores, kind="stable")[: self.policy.settings.top_k or None]
        in_play = order[shortlist.scores[order] > -np.inf]
        self._candidates = [shortlist.id_at(int(index)) for index in in_play]
        self._probabilities = shortlist.probabilities()[in_play]
        self._states, self._logits = [], []


def unit_length(states: Any) -> States:
    """States, of whatever library and on whatever device, as the host's own, each of length one."""
    values = np.asarray(states.float().cpu().numpy() if hasattr(states, "cpu") else states, np.float32)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12), np.float32)
