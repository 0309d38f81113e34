"""Ours against the reference, for the decoders: it builds and saves, ours loads, and everything agrees.

Tolerances are relative to the range of the reference's own values; float32 throughout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from tests.parity import reference
from tests.parity.compare import close, ids_for
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = reference.DECODERS
ROUNDING = 1e-6  # of a gradient that is zero in exact numbers
SEEDS = {"gpt2": (2, 22), "gemma3_text": (2, 22)}  # how many are quick, and how many there are
QUICK = [(family, seed) for family in FAMILIES for seed in range(SEEDS.get(family, (3, 33))[0])]
WIDE = swept((family, seed) for family in FAMILIES for seed in range(*SEEDS.get(family, (3, 33))))


@pytest.fixture(scope="module", params=[*QUICK, *WIDE], ids=lambda p: f"{p[0]}-{p[1]}")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """(reference, ours, folder) of one randomised configuration."""
    family, seed = request.param
    folder = tmp_path_factory.mktemp(f"{family}-{seed}")
    theirs = reference.write(folder, family, **reference.random_changes(family, seed))
    return theirs, glassformer.AutoModelForCausalLM.from_pretrained(folder), folder


@torch.no_grad()
def test_logits_states_and_attention_equal_the_reference(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    ids = ids_for(theirs, 2, 21)
    expected = reference.as_usual(theirs, ids, theirs(ids, output_hidden_states=True, output_attentions=True))
    result = ours(ids, output_hidden_states=True, output_attentions=True)
    close(result.logits, expected.logits)
    for one, other in zip(result.hidden_states, expected.hidden_states, strict=True):
        close(one, other)
    for one, other in zip(result.attentions, expected.attentions or (), strict=True):
        close(one, other)


def test_loss_and_gradients_equal_the_reference(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    ids = ids_for(theirs, 2, 17)
    labels = ids.masked_fill(ids % 5 == 0, -100)
    expected, result = theirs(ids, labels=labels).loss, ours(ids, labels=labels).loss
    close(result, expected)
    learned = {name: value for name, value in theirs.named_parameters() if value.requires_grad}
    right = torch.autograd.grad(expected, list(learned.values()))
    gradients = reference.in_checkpoint(theirs, dict(zip(learned, right, strict=True)))
    own = torch.autograd.grad(result, list(ours.parameters()), allow_unused=True)
    for name, gradient in zip(_names(ours), own, strict=True):
        if gradient is None:  # of an expert that no token goes to
            assert ".experts." in name
            assert not gradients[name].any()
        elif _may_vanish(name, theirs.config.model_type) and float(gradients[name].abs().max()) < ROUNDING:
            assert float(gradient.abs().max()) < ROUNDING, name
        else:
            close(gradient, gradients[name], 1e-3)


def _may_vanish(name: str, model_type: str) -> bool:
    """Of keys in a layer without positions; of a router that chooses one expert, or all of them."""
    return name.endswith("k_proj.bias") or model_type in reference.EXPERTS or ".router." in name


def _names(model: Any) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@torch.no_grad()
def test_greedy_ids_equal_the_reference(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    ids = ids_for(theirs, 1, 9)
    expected = theirs.generate(ids, max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)
    result = ours.generate(ids, max_new_tokens=32, do_sample=False, eos_token_id=None)
    assert result.tolist() == expected.tolist()


@torch.no_grad()
def test_cached_equals_uncached(pair: tuple[Any, Any, Path]) -> None:
    """By hand with past_key_values: in uneven chunks, then token by token."""
    theirs, ours, _ = pair
    ids = ids_for(theirs, 2, 19)
    output = theirs(ids).logits
    cache, parts, at = None, [], 0
    for size in (7, 1, 5, 1, 1, 4):
        out = ours(ids[:, at : at + size], past_key_values=cache)
        cache, at = out.past_key_values, at + size
        parts.append(out.logits)
    close(torch.cat(parts, 1), output)
    assert cache.get_seq_length() == 19


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_equals_unpadded(pair: tuple[Any, Any, Path], side: str) -> None:
    """Positions come from the mask, so padding on either side changes nothing."""
    theirs, ours, _ = pair
    rows = [ids_for(theirs, 1, n)[0] for n in (13, 5, 9)]
    padded = torch.zeros(3, 13, dtype=torch.long)
    mask = torch.zeros_like(padded)
    for number, row in enumerate(rows):
        at = slice(13 - len(row), 13) if side == "left" else slice(0, len(row))
        padded[number, at], mask[number, at] = row, 1
    result = ours(padded, attention_mask=mask).logits
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(padded, attention_mask=mask, position_ids=positions).logits
    real = mask.bool()
    if not any(name.endswith("in_proj.bias") for name in theirs.state_dict()):  # where the reference's texts begin with
        # what this makes of padding
        close(result[real], expected[real])
    for number, row in enumerate(rows):
        close(result[number][real[number]], ours(row[None]).logits[0])
    assert bool(torch.isfinite(result).all())


@torch.no_grad()
def test_a_batch_generates_as_its_rows_alone(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    rows = [ids_for(theirs, 1, n)[0] for n in (11, 4, 7)]
    padded = torch.zeros(3, 11, dtype=torch.long)
    mask = torch.zeros_like(padded)
    for number, row in enumerate(rows):
        padded[number, 11 - len(row) :], mask[number, 11 - len(row) :] = row, 1
    together = ours.generate(padded, attention_mask=mask, max_new_tokens=12, eos_token_id=None)
    for number, row in enumerate(rows):
        alone = ours.generate(row[None], max_new_tokens=12, eos_token_id=None)
        assert together[number, 11:].tolist() == alone[0, len(row) :].tolist()


@torch.no_grad()
def test_position_ids(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    ids = ids_for(theirs, 1, 8)
    positions = torch.tensor([[0, 2, 4, 6, 9, 11, 40, 41]])
    close(ours(ids, position_ids=positions).logits, theirs(ids, position_ids=positions).logits)


@torch.no_grad()
def test_saved_is_read_back_by_the_reference(pair: tuple[Any, Any, Path], tmp_path: Path) -> None:
    theirs, ours, _ = pair
    ours.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    expected, result = theirs.state_dict(), again.state_dict()
    assert expected.keys() == result.keys()
    assert all(torch.equal(expected[name], result[name]) for name in expected)
    ids = ids_for(theirs, 1, 9)
    assert torch.equal(again(ids).logits, transformers.AutoModelForCausalLM.from_pretrained(pair[2]).eval()(ids).logits)
    mine = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(mine(ids).logits, ours(ids).logits)
    assert mine.config.to_dict().items() >= {"model_type": ours.config.model_type}.items()


@torch.no_grad()
@pytest.mark.parametrize("family", [family for family in FAMILIES if "sequence" in reference.HEADS[family]])
@pytest.mark.parametrize("labels", [2, 5])
def test_sequence_classification(family: str, labels: int, tmp_path: Path) -> None:
    theirs = reference.write(tmp_path, family, "SequenceClassification", num_labels=labels)
    ours = glassformer.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    ids = ids_for(theirs, 3, 10)
    ids[1, 6:] = 0
    mask = (ids != 0).long()
    expected = theirs(ids, attention_mask=mask)
    result = ours(ids, attention_mask=mask)
    close(result.logits, expected.logits)
    close(ours(ids).logits, expected.logits)  # by the padding id alone
    target = torch.tensor([0, labels - 1, 1])
    close(ours(ids, attention_mask=mask, labels=target).loss, theirs(ids, attention_mask=mask, labels=target).loss)
    ours.save_pretrained(tmp_path / "again")
    eager = {"attn_implementation": "eager"}  # as before: another kernel rounds otherwise
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again", **eager).eval()
    close(again(ids, attention_mask=mask).logits, expected.logits, 1e-6)
    assert again.config.num_labels == labels


@torch.no_grad()
def test_dynamic_rope(tmp_path: Path) -> None:
    """Past the trained length the whole ladder changes with each pass, so only uncached passes can be compared."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    theirs = reference.write(tmp_path, "llama", max_position_embeddings=16, rope_parameters=rope)
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    for length in (9, 16, 40):
        ids = ids_for(theirs, 2, length)
        close(ours(ids).logits, theirs(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_longrope_beyond_the_trained_length(family: str, tmp_path: Path) -> None:
    """A text that grows beyond it is read anew with the long factors: as Phi-3's own `generate`, and every uncached one."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
    }  # fmt: skip
    trained = {"original_max_position_embeddings": 24} if family == "phi3" else {}
    theirs = reference.write(tmp_path, family, rope_parameters=rope, **trained)
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    for length in (24, 25, 60):
        ids = ids_for(ours, 1, length)
        close(ours(ids).logits, theirs(ids).logits)
    prompt = ids_for(ours, 1, 18)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = theirs.generate(prompt, use_cache=family == "phi3", **options)
    assert torch.equal(ours.generate(prompt, **options), expected)
    cache = ours(prompt[:, :-1]).past_key_values
    assert torch.equal(ours.generate(prompt, past_key_values=cache, **options), expected)
    embeds = ours.get_input_embeddings()(prompt)
    assert torch.equal(ours.generate(inputs_embeds=embeds, **options), expected[:, 18:])


@torch.no_grad()
def test_rows_of_a_padded_batch_have_their_own_longrope_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
    }  # fmt: skip
    reference.write(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=24)
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = ids_for(ours, 2, 30)
    for side in (slice(12, None), slice(None, 18)):  # padding at the left, at the right
        mask = torch.zeros_like(ids)
        mask[0], mask[1, side] = 1, 1
        both = ours(ids, attention_mask=mask).logits
        close(both[1, side], ours(ids[1:, side]).logits[0])
        close(both[0], ours(ids[:1]).logits[0])


@torch.no_grad()
def test_sliding_windows(tmp_path: Path) -> None:
    theirs = reference.write(tmp_path, "qwen3", use_sliding_window=True, sliding_window=5, max_window_layers=1)
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = ids_for(theirs, 2, 23)
    close(ours(ids).logits, theirs(ids).logits)
    result = ours.generate(ids, max_new_tokens=9, eos_token_id=None)
    assert result.tolist() == theirs.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None).tolist()
