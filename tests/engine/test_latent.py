"""Latent attention: what is remembered, and that queries meet latents as they would meet keys, however a text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.protocol import CACHES, Feed, Want
from glassformer.ground.changes import Change
from glassformer.ground.sites import Watch
from glassformer.see.verification import difference
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for

pytestmark = pytest.mark.usefixtures("one_thread")

LONG = 300  # tokens: more than a chunk of keys
LATENT, SHARED, LAYERS = 24, 6, 2


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("latent")
    reference.write(folder, "deepseek_v3", max_position_embeddings=512, num_hidden_layers=LAYERS)
    return Subject(folder)


def prompt(subject: Subject, length: int = LONG) -> list[int]:
    found: list[int] = ids_for(subject.model, length).tolist()
    return found


def fed(executor: Any, *parts: list[int]) -> np.ndarray:
    """The scores of the last part's tokens, after the others."""
    row = executor.open()
    for part in parts[:-1]:
        executor.run([Feed(row, part, Want.NONE)])
    (logits,) = executor.run([Feed(row, parts[-1], Want.ALL)])
    return np.stack([logits.host(index) for index in range(len(parts[-1]))])


def test_a_token_takes_its_latent_and_the_shared_part_of_its_key(subject: Subject) -> None:
    for cache, size in (("f32", 4), ("f16", 2)):
        assert subject.cpu(cache=cache).describe().cache_bytes_per_token == LAYERS * (LATENT + SHARED) * size
    plain = subject.plain()
    plain.run([Feed(plain.open(), prompt(subject, 9))])
    assert plain.describe().cache_bytes_per_token == LAYERS * (LATENT + SHARED) * 4


@pytest.mark.parametrize("cache", CACHES)
def test_token_by_token_is_the_whole_text_bit_for_bit(subject: Subject, cache: str) -> None:
    ids, executor = prompt(subject), subject.cpu(cache=cache, threads=2)
    whole = fed(executor, ids[:-3], ids[-3:])
    assert np.array_equal(fed(executor, ids[:-1], ids[-1:])[0], whole[2])
    assert np.array_equal(fed(executor, ids[:70], ids[70:-2], ids[-2:-1], ids[-1:])[0], whole[2])


@pytest.mark.parametrize(("cache", "share"), [("f32", 1e-5), ("f16", 1e-2), ("bf16", 5e-2), ("q8", 5e-2)])
def test_long_texts_match_plain(subject: Subject, cache: str, share: float) -> None:
    ids = prompt(subject)
    expected, found = (torch.from_numpy(fed(one, ids[:-5], ids[-5:])) for one in (subject.plain(), subject.cpu(cache=cache)))
    close(found, expected, share)


def test_a_changed_pattern_of_a_long_text_matches_plain(subject: Subject) -> None:
    site, ids = "blocks.0.attention.pattern", prompt(subject)
    watch = Watch(frozenset({"final", "blocks.0.attention.heads"}), {site: Change(scale=0.7, heads=[1, 2])})
    values = []
    for executor in (subject.plain(), subject.cpu()):
        (logits,) = executor.run([Feed(executor.open(), ids, watch=watch)])
        values.append({name: np.asarray(value) for name, value in logits.sites.items()})
    for name in values[0]:
        assert difference(name, *({name: value[name]} for value in values)).error < 1e-5


def test_changed_latents_are_remembered(subject: Subject) -> None:
    """What follows from them is the same whether later tokens are read with them, or afterwards."""
    ids, changes = prompt(subject, 20), {"blocks.0.attention.latent": Change(scale=0.5)}
    for executor in (subject.plain(), subject.cpu()):
        row, whole = executor.open(), executor.open()
        executor.run([Feed(row, ids[:15], Want.NONE, watch=Watch(changes=changes))])
        (after,) = executor.run([Feed(row, ids[15:], watch=Watch(changes=changes))])
        (at_once,) = executor.run([Feed(whole, ids, watch=Watch(changes=changes))])
        close(torch.from_numpy(np.array(after.host())), torch.from_numpy(np.array(at_once.host())), 1e-5)


@torch.no_grad()
def test_a_hooked_projection_sees_all_that_is_remembered(subject: Subject, tmp_path: Path) -> None:
    """Without hooks, keys and values of earlier tokens are never made; with one they are, and give the same."""
    model, ids = subject.model, torch.tensor([prompt(subject, 12)])
    seen: list[int] = []

    def last_scores() -> torch.Tensor:
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        scores: torch.Tensor = model(ids[:, -1:], past_key_values=cache).logits
        return scores

    plain = last_scores()
    layer = model.model.layers[1].self_attn.kv_b_proj
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[1]))
    try:
        close(last_scores(), plain, 1e-5)
    finally:
        handle.remove()
    assert seen == [11, 1, 12]
    close(plain[:, 0], model(ids).logits[:, -1], 1e-5)
