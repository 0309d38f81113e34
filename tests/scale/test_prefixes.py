"""Which replica a request goes to: where its beginning was read, unless that one has too much to do."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.scale.prefixes import BLOCK, MAX_BLOCKS, SHARE, SLACK, PrefixIndex, prefix_keys
from tests.sweeps import examples


def keys(**request: Any) -> tuple[int, ...]:
    return prefix_keys(json.dumps(request).encode())


def message(content: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": content}


LONG = "a question about a document " * 40


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1]", b"null", b"[" * 100_000, b'{"messages": [{"role": "user"}]}'])
def test_what_has_no_long_prompt_has_no_keys(body: bytes) -> None:
    assert prefix_keys(body) == ()


def test_a_conversation_begins_with_the_keys_of_its_earlier_turns() -> None:
    first = keys(model="m", messages=[message(LONG)])
    second = keys(model="m", messages=[message(LONG), message("an answer", "assistant"), message("more")], temperature=1)
    assert len(first) == len(json.dumps(message(LONG))) // BLOCK
    assert second[: len(first)] == first


@pytest.mark.parametrize(
    ("request_", "longer"),
    [
        ({"prompt": LONG}, {"prompt": f"{LONG} and so on"}),
        ({"system": LONG, "messages": [message("a")]}, {"system": LONG, "messages": [message("b")]}),
        ({"instructions": LONG, "input": "a"}, {"input": "b", "instructions": LONG}),
        ({"tools": [{"name": LONG}], "messages": [message("a")]}, {"messages": [message("b")], "tools": [{"name": LONG}]}),
    ],
)
def test_every_dialect_has_its_prompt_compared(request_: dict[str, Any], longer: dict[str, Any]) -> None:
    assert keys(**request_)
    assert keys(**longer)[: len(keys(**request_))] == keys(**request_)


def test_other_beginnings_and_models_have_other_keys() -> None:
    every = [keys(prompt=LONG), keys(prompt=f"b{LONG}"), keys(prompt=LONG, model="m"), keys(prompt=LONG, model="n")]
    assert len({each for request in every for each in request}) == sum(map(len, every))
    assert len(keys(prompt="x" * BLOCK * (MAX_BLOCKS + 10))) == MAX_BLOCKS
    assert keys(prompt="\ud800" * BLOCK)


def test_prompts_of_other_clients_have_other_keys() -> None:
    body = json.dumps({"prompt": LONG, "user": "a"}).encode()
    salts = [prefix_keys(body, lambda request, client=client: f"{client} {request['user']}") for client in "abb"]  # type: ignore[misc]
    assert salts[1] == salts[2]
    assert not {*salts[0]} & {*salts[1]}


def test_the_longest_prefix_decides() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.record((1, 2), "a")
    index.record((1, 2, 3), "b")
    loads = {"a": 0, "b": 1, "c": 0}
    assert index.rank((1, 2, 3, 4), loads)[0] == "b"
    assert index.rank((1, 2, 9), loads)[0] == "a"  # both have read so much: the one with less to do
    assert index.rank((7,), loads) == ["c", "a", "b"]  # c has read nothing yet
    assert index.rank((1, 2, 3), {"a": 0, "c": 0})[0] == "a"  # b is gone


def test_an_overloaded_replica_is_passed_over_and_the_next_learns_the_prefix() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.record((1,), "a")
    busy = {"a": 2 * SLACK, "b": 0, "c": 1}
    assert index.rank((1,), busy)[0] == "b"
    index.record((1,), "b")
    assert index.rank((1,), {"a": 0, "b": 1, "c": 0})[:2] == ["a", "b"]


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    index: PrefixIndex[str] = PrefixIndex(max_keys=4)
    index.record((1, 2), "a")
    index.record((3, 4), "b")
    index.record((1, 2), "a")
    index.record((5,), "c")
    assert len(index) == 4
    loads = {"z": 0, "a": 1, "b": 1, "c": 1}
    assert index.rank((1, 2), loads)[0] == "a"
    assert index.rank((3,), loads)[0] == "b"  # the beginning of a text outlives its end
    assert index.rank((3, 4), loads)[0] == "b"
    assert (index.rank((4,), loads)[0], index.rank((5,), loads)[0]) == ("z", "c")


@settings(deadline=None, max_examples=examples(10, 40))
@given(st.lists(st.integers(0, 3), min_size=1, max_size=100), st.integers(1, 8))
def test_no_replica_gets_more_than_its_share(prefixes: list[int], count: int) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    loads: Counter[int] = Counter(dict.fromkeys(range(count), 0))
    for prefix in prefixes:  # none of which ends
        best = index.rank((prefix,), loads)[0]
        bound = SHARE * loads.total() / count + SLACK
        assert loads[best] < bound
        loads[best] += 1
        index.record((prefix,), best)
