"""What many clients wait for: a queue for each of them, served in turn, so that none waits for all that another sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ClientQueues(Generic[Item]):
    """Not locked: its owner does that.

    >>> queues = ClientQueues[int]()
    >>> for client, item in (("a", 1), ("a", 2), ("b", 3)): queues.add(client, item)
    >>> [queues.take(client) for client in iter(queues.next_client, None)]
    [1, 3, 2]
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Item]] = {}  # the next to be served is the first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return (item for queue in self._queues.values() for item in queue)

    def add(self, client: str, item: Item) -> None:
        self._queues.setdefault(client, deque()).append(item)
        self._count += 1

    def next_client(self, besides: Container[str] = ()) -> str | None:
        """Whose turn it is; of others than these, if any of them waits."""
        return next((client for client in self._queues if client not in besides), None)

    def first(self, client: str) -> Item:
        """What a client has waited for longest."""
        return self._queues[client][0]

    def take(self, client: str) -> Item:
        """Serve a client, which is the last to be served again."""
        queue = self._queues.pop(client)
        item = queue.popleft()
        self._count -= 1
        if queue:
            self._queues[client] = queue
        return item

    def discard(self, client: str, item: Item) -> None:
        """Take something out, if it still waits."""
        queue = self._queues.get(client, deque())
        if item in queue:
            queue.remove(item)
            self._count -= 1
            if not queue:
                del self._queues[client]

    def clear(self) -> list[Item]:
        """Take everything out."""
        items = [*self]
        self._queues.clear()
        self._count = 0
        return items
