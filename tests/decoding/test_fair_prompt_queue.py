"""Prompts that take turns: nobody waits for ever, whatever comes, and clients share what there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from glassformer.decoding.loop import FairPromptQueue

CHUNK = 128


@dataclass
class Simulation:
    """Passes that read prompts as a loop does: whole chunks, those that fit."""

    queue: FairPromptQueue = field(default_factory=lambda: FairPromptQueue(CHUNK))
    left: dict[int, int] = field(default_factory=dict)  # tokens of each prompt that are to be read
    clients: dict[int, str] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)  # passes from a prompt's joining to its end
    tokens: Counter[str] = field(default_factory=Counter)  # read for each client
    passes: int = 0

    def join(self, tokens: int, client: str) -> int:
        key = len(self.clients)
        self.left[key], self.clients[key], self.joined[key] = tokens, client, self.passes
        self.queue.join(key, client)
        return key

    def run_pass(self) -> None:
        self.passes += 1
        room = CHUNK
        for key in self.queue.order([*self.left]):
            tokens = min(self.left[key], CHUNK)
            if tokens > room:
                continue
            self.queue.read(key, tokens)
            self.tokens[self.clients[key]] += tokens
            self.left[key] -= tokens
            room -= tokens
            if not self.left[key]:
                del self.left[key]
                self.queue.leave(key)
                self.waits[key] = self.passes - self.joined[key]


def new_clients() -> Iterator[str]:
    return (f"client {number}" for number in range(10**6))


@pytest.mark.parametrize("clients", [new_clients, lambda: iter(lambda: "the same", None)], ids=["new clients", "one client"])
def test_a_long_prompt_is_read_beside_an_endless_stream_of_short_ones(clients: Callable[[], Iterator[str]]) -> None:
    simulation, names = Simulation(), clients()
    long = simulation.join(40 * CHUNK, next(names))
    while long not in simulation.waits:
        assert simulation.passes < 40 * 6
        while len(simulation.left) < 12:  # more than a pass can read
            simulation.join(CHUNK // 4, next(names))
        simulation.run_pass()


def test_short_prompts_do_not_wait_for_a_long_one() -> None:
    simulation = Simulation()
    simulation.join(100 * CHUNK, "reader")
    short = []
    for number in range(60):
        simulation.run_pass()
        short.append(simulation.join(20, f"client {number}"))
    assert max(simulation.waits.get(key, 99) for key in short[:-1]) <= 2


def test_short_prompts_wait_for_few_of_many_long_ones() -> None:
    simulation = Simulation()
    for number in range(10):
        simulation.join(100 * CHUNK, f"reader {number}")
    for _ in range(50):
        simulation.run_pass()
    short = simulation.join(20, "client")
    for _ in range(10):
        simulation.run_pass()
    assert simulation.waits[short] <= 10


def test_clients_share_passes_however_many_prompts_each_has() -> None:
    simulation = Simulation()
    for _ in range(50):
        simulation.join(10 * CHUNK, "greedy")
    simulation.join(200 * CHUNK, "modest")
    for _ in range(100):
        simulation.run_pass()
    assert simulation.tokens["modest"] == pytest.approx(simulation.tokens["greedy"], rel=0.1)


def test_a_client_that_was_alone_does_not_pay_for_it_later() -> None:
    simulation = Simulation()
    simulation.join(1000 * CHUNK, "first")
    for _ in range(300):
        simulation.run_pass()
    before = simulation.tokens["first"]
    simulation.join(1000 * CHUNK, "second")
    for _ in range(20):
        simulation.run_pass()
    assert simulation.tokens["first"] - before == pytest.approx(simulation.tokens["second"], rel=0.2)
