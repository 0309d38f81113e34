"""TransformerLens' own numbers beside ours, on the same random weights: names, lens, attribution, heads, patching.

It asks for much that it does not need here, so the Makefile installs it without what it asks for.
"""

from __future__ import annotations

import importlib
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.ground.sites import axes
from tests.see.models import both, folder

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("transformer_lens") is None, reason="TransformerLens is not installed: make setup"),
]

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
FAMILIES = ("gpt2", "llama", "gemma2", "gemma3_text", "qwen3", "gpt_neox", "mixtral", "olmo2", "granite")
NEAR = {"atol": 2e-4, "rtol": 1e-3}


@cache
def bridge(family: str, centred: bool = False) -> Any:
    """TransformerLens around the reference's model, with the weights as they are, or folded and centred as by default.

    Its biases of values stay with their heads in both: folded into those of the outputs, no head would have them.
    """
    from transformers import PreTrainedTokenizerFast

    place, made = folder(family, "causal")
    lens = importlib.import_module("transformer_lens")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place, pad_token="a", bos_token="a", eos_token="a")
    model = lens.TransformerBridge.boot_transformers(str(place), hf_model=deepcopy(made), tokenizer=tokenizer, device="cpu")
    if centred:
        model.enable_compatibility_mode(disable_warnings=True, fold_value_biases=False)
    return model


@cache
def cached(family: str, text: str, centred: bool = False) -> tuple[Any, Any]:
    ids = torch.tensor([both(family).model.read(text).ids])
    with torch.no_grad():
        logits, activations = bridge(family, centred).run_with_cache(ids)
    return logits[0], activations


def in_our_axes(site: str, value: Any) -> Any:
    """Without the batch; (pos, head_index, d_head) becomes (heads, length, head_size)."""
    value = value[0]
    return value.transpose(0, 1) if axes(site)[-1] == "head_size" else value


@pytest.mark.parametrize("family", FAMILIES)
def test_names_have_its_numbers(family: str) -> None:
    model = both(family).model
    _, activations = cached(family, TEXT)
    names = {name: site for name, site in model.blueprint.synonyms.sites.items() if "hook_" in name}
    values = model.read(TEXT).values(*names)
    compared = 0
    for name, site in names.items():
        if name in activations:  # some families lack a hook or two
            assert np.allclose(values[site], in_our_axes(site, activations[name]), **NEAR), name
            compared += 1
    assert compared > 12 * model.blueprint.blocks


def test_short_names_are_its_own() -> None:
    reading, (_, activations) = both("gpt2").model.read(TEXT), cached("gpt2", TEXT)
    for short in ("resid_pre", "resid_mid", "resid_post", "q", "k", "v", "z", "pattern", "attn_out", "mlp_out", "post"):
        site = reading.sites((short, 1))[0]
        assert np.allclose(reading.at((short, 1)), in_our_axes(site, activations[short, 1]), **NEAR), short


def test_the_logit_lens() -> None:
    reading, (_, activations) = both("gpt2").model.read(TEXT), cached("gpt2", TEXT)
    model = bridge("gpt2")
    with torch.no_grad():
        stream, _ = activations.accumulated_resid(return_labels=True)  # the embedding, and after each block
        probabilities = model.unembed(model.ln_final(stream[:, 0])).softmax(-1)
    view = reading.lens(range(len(reading)))
    assert len(view.layers) == len(probabilities)
    for layer, predictions in enumerate(view.predictions):
        for at, prediction in enumerate(predictions):
            best = probabilities[layer, at].max(-1)
            assert prediction.probability == pytest.approx(float(best.values), abs=1e-5)
            assert prediction.id == int(best.indices)


def direct_attribution(token: int, against: int | None) -> tuple[Any, Any]:
    """What each head, and each layer's parts, wrote along a direction, as TransformerLens computes it."""
    _, activations = cached("gpt2", TEXT)
    model = bridge("gpt2")
    with torch.no_grad():
        weights = model.W_U[:, token] - (0 if against is None else model.W_U[:, against])
        direction = weights * model.ln_final.weight
        final = activations["resid_post", 2][0, -1]
        scale = ((final - final.mean()).pow(2).mean() + model.cfg.eps).sqrt()
        heads = torch.stack([
            torch.einsum("hd,hdm->hm", activations["z", layer][0, -1], model.W_O[layer]) for layer in range(3)
        ])  # fmt: skip
        parts = torch.stack([activations[name, layer][0, -1] for layer in range(3) for name in ("attn_out", "mlp_out")])
        project = lambda vectors: ((vectors - vectors.mean(-1, keepdim=True)) / scale) @ direction  # noqa: E731
        return project(heads), project(parts)


def centred_attribution(token: int, against: int | None) -> tuple[Any, Any]:
    """Its own functions, of its centred weights."""
    logits, activations = cached("gpt2", TEXT, centred=True)
    assert torch.allclose(logits.mean(-1), torch.zeros(()), atol=1e-5)
    with torch.no_grad():
        heads = activations.stack_head_results(layer=-1, pos_slice=-1)
        parts, labels = activations.decompose_resid(layer=-1, pos_slice=-1, return_labels=True)
        assert labels[:2] == ["embed", "pos_embed"]
        how = {"tokens": token, "incorrect_tokens": against, "pos_slice": -1}
        return activations.logit_attrs(heads, **how)[:, 0].reshape(3, -1), activations.logit_attrs(parts[2:], **how)[:, 0]


@pytest.mark.parametrize("against", [None, 9])
@pytest.mark.parametrize("centred", [False, True])
def test_direct_logit_attribution(centred: bool, against: int | None) -> None:
    metric = "logit" if against is None else "lead"
    view = both("gpt2").model.read(TEXT).attribution(-1, 5, against, metric=metric, centred=centred)
    heads, parts = (centred_attribution if centred else direct_attribution)(5, against)
    ours = np.zeros(heads.shape)
    for head in view.heads:
        if head.head is not None:  # a bias is no head's
            ours[head.block, head.head] = head.value
    assert np.allclose(ours, heads, **NEAR)
    ours = [part.value for part in view.contributions if part.name in ("attention", "mlp")]
    assert np.allclose(ours, parts, **NEAR)
    assert sum(part.value for part in view.contributions) == pytest.approx(view.score, abs=1e-4)
    logits = cached("gpt2", TEXT, centred)[0][-1]
    assert view.score == pytest.approx(float(logits[5] - (0 if against is None else logits[against])), abs=1e-4)


def test_induction_scores() -> None:
    """Tokens twice over, as its demo has them: the attention to what followed a token the first time."""
    ids = [5, 9, 14, 3, 77, 21, 40]
    model = both("gpt2").model
    with torch.no_grad():
        _, activations = bridge("gpt2").run_with_cache(torch.tensor([ids + ids]))
    for summary in model.read_ids(ids + ids).heads().summaries:
        pattern = activations["pattern", summary.layer][0, summary.head]
        assert summary.induction == pytest.approx(float(pattern.diagonal(1 - len(ids))[1:].mean()), abs=1e-5)


def test_patching_heads() -> None:
    """Every head of one text put into another's pass, at all positions, by hooks."""
    model, lens = both("gpt2").model, bridge("gpt2")
    view = model.patch(TEXT, OTHER, "heads", answer=5, against=9)
    answer, against = (token.id for token in view.answers)
    clean, activations = cached("gpt2", TEXT)
    ids = torch.tensor([model.read(OTHER).ids])

    def lead(logits: Any) -> float:
        return float(logits[-1, answer] - logits[-1, against])

    with torch.no_grad():
        corrupted = lead(lens(ids)[0])
        for layer in range(3):
            for head in range(4):

                def put(value: Any, hook: Any, layer: int = layer, head: int = head) -> Any:
                    value[:, :, head] = activations["z", layer][:, :, head]
                    return value

                patched = lead(lens.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", put)])[0])
                recovered = (patched - corrupted) / (lead(clean) - corrupted)
                assert view.values[layer][head] == pytest.approx(recovered, abs=1e-3)
