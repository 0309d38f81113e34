"""PyTorch's threads inside of our own calls: the fastest number, unless somebody has said how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.torch import threads as torch_threads
from glassformer.torch.threads import by_fastest_threads, chosen_threads, fastest_threads, measured_threads
from tests.parity import reference


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads by default, of which one is faster."""
    for name in torch_threads.SAID_BY:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(torch_threads, "DEFAULT", 2)
    monkeypatch.setattr(torch_threads, "measured_threads", lambda most: 1)
    yield  # type: ignore[misc]
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_number_holds_inside_alone() -> None:
    with pytest.raises(ValueError), fastest_threads():  # noqa: PT011, PT012
        assert torch.get_num_threads() == 1
        raise ValueError
    assert torch.get_num_threads() == 2
    for inside in by_fastest_threads(torch.get_num_threads() for _ in range(3)):
        assert (inside, torch.get_num_threads()) == (1, 2)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["bert", "t5", "llama"])
def test_a_models_call_takes_the_measured_number_unless_it_trains(name: str, tmp_path: Path) -> None:
    reference.write(tmp_path, name, "base")
    model: Any = glassformer.AutoModel.from_pretrained(tmp_path)
    seen: list[int] = []
    for module in model.children():
        module.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    ids = {"input_ids": torch.tensor([[1, 2, 3]])} | ({"decoder_input_ids": torch.tensor([[1]])} if name == "t5" else {})
    model.eval()(**ids)
    model.train()(**ids)
    half = len(seen) // 2
    assert (set(seen[:half]), set(seen[half:])) == ({1}, {2})
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", torch_threads.SAID_BY)
def test_what_the_environment_says_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with fastest_threads():
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_what_the_user_has_set_holds() -> None:
    torch.set_num_threads(3)
    with fastest_threads():
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 3


def test_the_default_stays_unless_another_is_clearly_faster() -> None:
    assert chosen_threads({1: 1.0, 2: 1.1, 4: 1.2}, 4) == 4
    assert chosen_threads({1: 1.0, 2: 0.7, 4: 1.2}, 4) == 2
    assert chosen_threads({1: 1.0}, 1) == 1


def test_measuring_leaves_the_number_as_it_was() -> None:
    before = torch.get_num_threads()
    assert measured_threads(2) in (1, 2)
    torch.set_num_threads(before)
    assert 1 <= measured_threads.__wrapped__(before) <= before
    assert torch.get_num_threads() == before
