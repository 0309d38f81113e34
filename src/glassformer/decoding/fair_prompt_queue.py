"""The order in which prompts are read, where a pass has room for some tokens of them only.

A prompt is due when it joins. When a part of it has been read it is due again later, in `WAIT` passes for each whole chunk,
and so is every other prompt of the same client. Who is overdue for longest goes first. So a short prompt does not wait for
a long one to be read, a long one gets its turn however many short ones come, and a client with many prompts takes no more
than one with a single one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

WAIT = 2  # passes that a whole chunk puts a prompt back: half of the passes are left to newcomers


class FairPromptQueue:
    """Prompts by a key, each of some client."""

    def __init__(self, chunk: int | None) -> None:
        """`chunk`: tokens of prompts that a pass has room for; None: for all."""
        self._chunk = math.inf if chunk is None else chunk
        self._passes = 0
        self._due: dict[int, float] = {}  # by prompt: the number of a pass
        self._client_due: dict[Hashable, float] = {}
        self._clients: dict[int, Hashable] = {}
        self._client_tokens: dict[Hashable, int] = {}  # that go through this pass

    def join(self, key: int, client: Hashable) -> None:
        self._due[key] = self._passes
        self._clients[key] = client

    def leave(self, key: int) -> Hashable:
        """Forget a prompt, which has been read or is not wanted any more; whose it was."""
        self._due.pop(key, None)
        return self._clients.pop(key, None)

    def order(self, keys: Iterable[int]) -> list[int]:
        """These prompts, the next to be read first: for one more pass."""
        self._passes += 1
        self._client_tokens.clear()
        self._client_due = {client: due for client, due in self._client_due.items() if due > self._passes}
        return sorted(keys, key=lambda key: (self._client_due.get(self._clients[key], self._passes), self._due[key]))

    def read(self, key: int, tokens: int) -> None:
        """So many tokens of a prompt go through this pass."""
        client = self._clients[key]
        self._client_tokens[client] = self._client_tokens.get(client, 0) + tokens
        self._due[key] = self._after(tokens)
        self._client_due[client] = self._after(self._client_tokens[client])

    def _after(self, tokens: int) -> float:
        """When somebody is due again of whom so many tokens are read in this pass."""
        return self._passes + WAIT * tokens / self._chunk
