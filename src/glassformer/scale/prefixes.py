"""Which replica has read the beginning of a prompt already.

A replica keeps the prefixes that it has read, so a request is answered soonest where an earlier one began alike: the next
turn of a conversation, another question about the same document. A prompt is compared by the hashes of its leading blocks,
each over all the text before it and over whose it is, so that equal hashes are equal beginnings that a replica would use
again. Where many requests begin alike, one replica
would get all of them: none gets more than its share and a bit, and the next one learns the prefix (the bound is that of
consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2018).
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

BLOCK = 256  # characters; about 60 tokens
MAX_BLOCKS = 2048  # of a prompt that are compared
MAX_KEYS = 200_000  # that are remembered
SHARE = 1.25  # of the mean load that a replica may have, for the sake of a prefix
SLACK = 4  # requests beyond that
FIELDS = ("model", "tools", "system", "instructions", "messages", "prompt", "input")  # in the order that templates read them
R = TypeVar("R", bound=Hashable)


def prefix_keys(body: bytes, salt: Callable[[Any], str] = lambda request: "") -> tuple[int, ...]:
    """A key for every block of a request's prompt; nothing where the body is no request with one.

    `salt`: what of a request says whose prefixes it may use.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(request, dict):
        return ()
    text = "\n".join(part for field in FIELDS if field in request for part in (field, *_parts(request[field])))
    keys, digest = [], salt(request).encode()
    for start in range(0, min(len(text) // BLOCK, MAX_BLOCKS) * BLOCK, BLOCK):
        block = text[start : start + BLOCK].encode("utf-8", "surrogatepass")
        digest = blake2b(block, digest_size=8, key=digest).digest()
        keys.append(int.from_bytes(digest))
    return tuple(keys)


def _parts(value: Any) -> list[str]:
    """A field as texts, of which the first stay the same when something is appended to it."""
    values = value if isinstance(value, list) else [value]
    return [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in values]


class PrefixIndex(Generic[R]):
    """What replicas have read, as far as it is remembered: keys that were not seen for long are forgotten first."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._readers: OrderedDict[int, tuple[R, ...]] = OrderedDict()  # by key, the last reader last
        self._max_keys = max_keys
        self._prompts: Counter[R] = Counter()  # that each replica has read

    def __len__(self) -> int:
        return len(self._readers)

    def record(self, keys: Sequence[int], replica: R) -> None:
        """A replica reads a prompt with these keys."""
        self._prompts[replica] += 1
        for key in reversed(keys):  # so that a prefix is forgotten after what it is a prefix of
            others = (reader for reader in self._readers.get(key, ()) if reader != replica)
            self._readers[key] = (*others, replica)
            self._readers.move_to_end(key)
        while len(self._readers) > self._max_keys:
            self._readers.popitem(last=False)

    def rank(self, keys: Sequence[int], loads: Mapping[R, int]) -> list[R]:
        """The replicas that a request could go to, by how many requests each has in progress: the best first.

        Among equals it is the one that has read the fewest prompts, so that what is kept is spread over all of them.
        """
        prompts = self._prompts.get
        ranked = sorted(loads, key=lambda replica: (loads[replica], prompts(replica, 0)))
        bound = SHARE * sum(loads.values()) / max(1, len(loads)) + SLACK
        for key in reversed(keys):
            readers = [replica for replica in ranked if replica in self._readers.get(key, ()) and loads[replica] < bound]
            if readers:
                return [*readers, *(replica for replica in ranked if replica not in readers)]
        return ranked
