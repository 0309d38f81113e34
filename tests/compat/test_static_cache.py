"""StaticCache: the semantics of transformers', by hand and under `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from glassformer import EncoderDecoderCache, StaticCache
from glassformer.ground.errors import InputError
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [2, 8, 3, 61, 30, 6]])


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    reference.write(path, request.param)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


def test_piece_by_piece_it_is_transformers(model: Any, folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    caches = StaticCache(model.config, max_cache_len=9), transformers.StaticCache(theirs.config, max_cache_len=9)
    assert len(caches[0]) == len(caches[1])
    for part in (IDS[:, :4], IDS[:, 4:5], IDS[:, 5:]):
        with torch.no_grad():
            ours, reference_output = (
                each(part, past_key_values=cache).logits for each, cache in zip((model, theirs), caches, strict=True)
            )
        assert torch.allclose(ours, reference_output, atol=2e-4)
        assert caches[0].get_seq_length() == int(caches[1].get_seq_length())
    assert caches[0].get_max_length() == caches[0].get_max_cache_shape() == caches[1].get_max_length() == 9
    for own, other in zip(*(cache.layers for cache in caches), strict=True):
        assert other.is_sliding or own.keys.shape == other.keys.shape  # ours keeps all that a window hides


def test_memory_stays_where_it_is(model: Any) -> None:
    cache = StaticCache(model.config, max_cache_len=8)
    with torch.inference_mode():
        first = model(IDS[:, :5], past_key_values=cache)
    assert first.past_key_values is cache
    places = [tensor.data_ptr() for layer in cache for tensor in layer]
    model(IDS[:, 5:], past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.reset()
    again = model(IDS[:, :5], past_key_values=cache)
    assert [tensor.data_ptr() for layer in cache for tensor in layer] == places
    assert torch.equal(again.logits, first.logits)


def test_reset_and_crop_forget(model: Any) -> None:
    cache = StaticCache(model.config, max_cache_len=8)
    whole = model(IDS, past_key_values=cache).logits
    cache.crop(-2)
    assert cache.get_seq_length() == 4
    assert torch.allclose(model(IDS[:, 4:], past_key_values=cache).logits, whole[:, 4:], atol=1e-4)
    cache.crop(3)
    assert cache.get_seq_length() == 3
    assert not cache[0][0][:, :, 3:].any()
    cache.reset()
    assert cache.get_seq_length() == 0
    assert not cache[0][1].any()


def test_rows_are_reordered(model: Any) -> None:
    cache = StaticCache(model.config, max_cache_len=8)
    model(IDS, past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 1]))
    scores = model(torch.tensor([[7], [7]]), past_key_values=cache).logits
    assert torch.equal(scores[0], scores[1])


def test_what_does_not_fit_is_refused_and_changes_nothing(model: Any) -> None:
    cache = StaticCache(model.config, max_cache_len=7)
    model(IDS, past_key_values=cache)
    message = "7 tokens: 6 are in it"
    with pytest.raises(InputError, match=message):
        model(IDS[:, :2], past_key_values=cache)
    assert cache.get_seq_length() == 6
    with pytest.raises(InputError, match="batch of 2"):
        model(IDS[:1, :1], past_key_values=cache)
    model(IDS[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == 7


@pytest.mark.parametrize("size", [0, -3, 2.5, True, None])
def test_a_size_must_be_a_number_of_tokens(model: Any, size: Any) -> None:
    with pytest.raises(InputError, match="max_cache_len"):
        StaticCache(model.config, max_cache_len=size)


def test_gradients_flow_to_the_pass_itself(folder: Path) -> None:
    model = glassformer.AutoModelForCausalLM.from_pretrained(folder)
    cache = StaticCache(model.config, max_cache_len=8)
    parameter = next(model.parameters())
    expected = torch.autograd.grad(model(IDS, use_cache=False).logits.sum(), parameter)[0]
    assert torch.allclose(torch.autograd.grad(model(IDS, past_key_values=cache).logits.sum(), parameter)[0], expected)
    assert not cache[0][0].requires_grad
    model(IDS[:, :1], past_key_values=cache).logits.sum().backward()


def test_generate_accepts_the_name(model: Any) -> None:
    expected = model.generate(IDS, max_new_tokens=4, eos_token_id=None)
    assert torch.equal(model.generate(IDS, max_new_tokens=4, eos_token_id=None, cache_implementation="static"), expected)


def test_older_arguments_and_its_looks(model: Any) -> None:
    cache = StaticCache(model.config, 8, max_batch_size=2, device="cpu", dtype=torch.float32)
    assert repr(cache).startswith("StaticCache(layers=[StaticLayer, StaticLayer")
    assert cache[0] == (None, None)
    assert cache.get_seq_length(99) == 0


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_decoder_beside_an_encoder(family: str, tmp_path: Path) -> None:
    reference.write(tmp_path, family, "seq2seq")
    model = glassformer.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).requires_grad_(False)
    whole = model(IDS, decoder_input_ids=IDS).logits
    source = StaticCache(model.config, max_cache_len=IDS.shape[1] + 3)
    for cache in (
        StaticCache(model.config, max_cache_len=8),
        EncoderDecoderCache(StaticCache(model.config, max_cache_len=8), source),
    ):
        first = model(IDS, decoder_input_ids=IDS[:, :4], past_key_values=cache)
        rest = model(IDS, decoder_input_ids=IDS[:, 4:], past_key_values=first.past_key_values)
        assert torch.allclose(torch.cat((first.logits, rest.logits), 1), whole, atol=1e-4)
        assert first.past_key_values.get_seq_length() == 6
