"""Circuits and composition of heads, against full matrices that are built by hand from the reference's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassformer.ground.errors import InputError, SiteError
from glassformer.see import circuits
from glassformer.see.head_weights import AttentionWeights, embeddings, reads_linearly
from tests.parity.configs import DECODERS, SEVERAL_STREAMS
from tests.see.models import EXECUTORS, TEXT, WRITERS, both
from tests.see.test_reading import fits, valid


def arrays(model: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in model.state_dict().items()}


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def gpt2_head(model: Any, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """The attention scores of all pairs of tokens, and what reading each adds to all logits: (vocabulary, vocabulary)."""
    w, size = arrays(model), model.config.n_embd // model.config.n_head
    name = f"transformer.h.{layer}"
    x = layer_norm(w["transformer.wte.weight"], w[f"{name}.ln_1.weight"], w[f"{name}.ln_1.bias"])
    q, k, v = np.split(x @ w[f"{name}.attn.c_attn.weight"] + w[f"{name}.attn.c_attn.bias"], 3, -1)
    own = slice(head * size, (head + 1) * size)
    written = v[:, own] @ w[f"{name}.attn.c_proj.weight"][own]
    written = (written - written.mean(-1, keepdims=True)) * w["transformer.ln_f.weight"]
    return q[:, own] @ k[:, own].T / np.sqrt(size), written @ w["lm_head.weight"].T


def llama_head(model: Any, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """A Llama's circuit, whose heads share keys and values."""
    w, c = arrays(model), model.config
    size, name = c.head_dim, f"model.layers.{layer}.self_attn"
    group = head // (c.num_attention_heads // c.num_key_value_heads)
    x = rms_norm(w["model.embed_tokens.weight"], w[f"model.layers.{layer}.input_layernorm.weight"], c.rms_norm_eps)
    own, shared = slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)
    q = x @ w[f"{name}.q_proj.weight"][own].T
    k, v = (x @ w[f"{name}.{part}_proj.weight"][shared].T for part in "kv")
    written = v @ w[f"{name}.o_proj.weight"][:, own].T * w["model.norm.weight"]
    return q @ k.T / np.sqrt(size), written @ w["lm_head.weight"].T


HEADS = {"gpt2": gpt2_head, "llama": llama_head}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("family", HEADS)
def test_circuits_are_rows_of_the_full_ones(family: str, executor: str) -> None:
    pair = both(family, executor)
    scores, logits = HEADS[family](pair.reference, 1, 3)
    view = pair.model.circuits.head(1, 3, ["a", 5], best=4)
    assert [token.id for token in view.tokens][1] == 5
    for token in view.tokens:
        for found, row in ((token.looks_for, scores[token.id]), (token.writes, logits[token.id])):
            assert [one.score for one in found] == pytest.approx(np.sort(row)[::-1][:4].tolist(), abs=1e-4)
            assert [row[one.id] for one in found] == pytest.approx([one.score for one in found], abs=1e-4)
        assert token.own_score == pytest.approx(logits[token.id, token.id], abs=1e-4)
        assert token.own_rank == int((logits[token.id] > logits[token.id, token.id]).sum()) + 1


@pytest.mark.parametrize("family", HEADS)
def test_copying_is_of_the_full_circuits_eigenvalues(family: str) -> None:
    pair = both(family)
    _, logits = HEADS[family](pair.reference, 1, 3)
    if family == "gpt2":  # without what biases add to all tokens alike
        w = arrays(pair.reference)
        logits = logits - without_tokens(w)
    eigenvalues = np.linalg.eigvals(logits)
    view = pair.model.circuits.head(1, 3)
    assert view.copying == pytest.approx(float(eigenvalues.sum().real / np.abs(eigenvalues).sum()), abs=1e-3)
    own = np.diag(logits)
    assert [own[token.id] for token in view.tokens] == pytest.approx(
        np.sort(own)[::-1][: len(view.tokens)].tolist(), abs=1e-4
    )


def without_tokens(w: dict[str, np.ndarray]) -> np.ndarray:
    """What head 3 of GPT-2's block 1 adds to all logits by its biases."""
    name, size = "transformer.h.1", 8
    size = w[f"{name}.attn.c_proj.weight"].shape[0] // 4
    own = slice(3 * size, 4 * size)
    _, _, v = np.split(w[f"{name}.ln_1.bias"] @ w[f"{name}.attn.c_attn.weight"] + w[f"{name}.attn.c_attn.bias"], 3)
    written = v[own] @ w[f"{name}.attn.c_proj.weight"][own]
    return ((written - written.mean()) * w["transformer.ln_f.weight"]) @ w["lm_head.weight"].T


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_attention_scores_at_a_distance_are_the_models(family: str) -> None:
    """In the first block the stream is the embedding, so a pattern's weights are the softmax of these scores."""
    model = both(family).model
    reading = model.read(TEXT)
    pattern = reading.at("blocks.0.attention.pattern")
    weights = AttentionWeights(model, 0)
    x = embeddings(model, list(reading.ids))
    at = len(reading) - 1
    for head in range(weights.heads):
        scale = weights.op.options["scale"]
        scores = np.array(
            [float(weights.queries(x[at:], head, at - k)[0] @ weights.keys(x[k : k + 1], head)[0]) for k in range(at + 1)]
        )
        shares = np.exp(scores * scale - (scores * scale).max())
        np.testing.assert_allclose(shares / shares.sum(), pattern[head, at], atol=1e-4)
    near, far = (model.circuits.head(0, 0, [3], distance=distance).tokens[0].looks_for for distance in (0, 3))
    assert near != far


@pytest.mark.parametrize("family", WRITERS)
def test_what_a_head_wrote_in_a_text_is_its_share_of_the_logits(family: str) -> None:
    pair = both(family)
    reading = pair.reading()
    layer, head = reading.model.blueprint.blocks - 1, 1
    view = reading.circuit(layer, head, best=3)
    valid(view)
    assert "what it wrote in this text" in fits(view)
    pattern = reading.at(f"blocks.{layer}.attention.pattern")[head]
    place = view.positions[-1]
    assert place.weight == pytest.approx(float(pattern[-1].max()))
    for token in place.writes:
        shares = reading.attribution(-1, token.id, metric="logit").heads
        (share,) = (part.value for part in shares if (part.name, part.block, part.head) == ("attention", layer, head))
        assert token.score == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("family", ["llama", "falcon_h1"])  # the latter adds what a state wrote to the stream first
def test_what_all_heads_write_is_attentions_update(family: str) -> None:
    reading = both(family).reading()
    maps = AttentionWeights(reading.model, 1).output_map  # (heads, hidden, head_size)
    heads, update = (np.asarray(reading.at(f"blocks.1.attention.{part}")) for part in ("heads", "update"))
    np.testing.assert_allclose(np.einsum("hos,hts->to", maps, heads), update, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("family", DECODERS)
def test_circuits_of_each_family(family: str) -> None:
    reading = both(family).reading()
    if family in SEVERAL_STREAMS:
        with pytest.raises(SiteError, match=family):
            reading.circuit(1, 1)
        return
    attending = [block for block in range(reading.model.blueprint.blocks) if reads_linearly(reading.model, block)]
    if not attending:
        with pytest.raises(InputError, match="keeps a state"):
            reading.circuit(1, 1)
        return
    assert -1.001 <= reading.circuit(attending[-1], 1).copying <= 1.001
    if len(reading.model.blueprint.attention_patterns) > 1:  # of layers that keep states, at most one attends
        assert reading.model.circuits.composition().query[0][0] is not None


def full_composition(family: str, model: Any) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """QK and OV of all heads by layer, as (hidden, hidden)."""
    assert family == "llama"
    w, c = arrays(model), model.config
    size, share = c.head_dim, c.num_attention_heads // c.num_key_value_heads
    qk, ov = [], []
    for layer in range(c.num_hidden_layers):
        name, gain = f"model.layers.{layer}", w[f"model.layers.{layer}.input_layernorm.weight"]
        q, k, v = (w[f"{name}.self_attn.{part}_proj.weight"] * gain for part in "qkv")
        o = w[f"{name}.self_attn.o_proj.weight"]
        own = [slice(head * size, (head + 1) * size) for head in range(c.num_attention_heads)]
        shared = [slice(head // share * size, (head // share + 1) * size) for head in range(c.num_attention_heads)]
        qk.append([q[one].T @ k[group] for one, group in zip(own, shared, strict=True)])
        ov.append([o[:, one] @ v[group] for one, group in zip(own, shared, strict=True)])
    return qk, ov


class TestComposition:
    def test_scores_are_those_of_full_matrices(self) -> None:
        pair = both("llama")
        qk, ov = full_composition("llama", pair.reference)
        view = pair.model.circuits.composition()
        norm = np.linalg.norm
        for row, later in enumerate(view.later):
            for column, earlier in enumerate(view.earlier):
                found = [grid[row][column] for grid in (view.query, view.key, view.value)]
                if earlier.layer >= later.layer:
                    assert found == [None] * 3
                    continue
                reads, writes = qk[later.layer][later.head], ov[earlier.layer][earlier.head]
                maps = (reads.T, reads, ov[later.layer][later.head])
                wanted = [float(norm(one @ writes) / norm(one) / norm(writes)) for one in maps]
                assert found == pytest.approx(wanted, abs=1e-5)

    def test_one_layer_and_the_baseline(self) -> None:
        model = both("llama").model
        whole, one = model.circuits.composition(), model.circuits.composition(2, baseline=True)
        assert {head.layer for head in one.later} == {2}
        assert one.baseline == pytest.approx(model.config.hidden_size**-0.5)
        first = whole.later.index(one.later[0])
        assert one.key[0][0] == pytest.approx(whole.key[first][0] - one.baseline, abs=1e-6)
        assert whole.strongest("key", 3)[0][2] == max(share for row in whole.key for share in row if share is not None)

    def test_a_random_rotation_has_the_baseline_in_the_mean_square(self) -> None:
        draw = np.random.default_rng(0)
        reads = circuits._of_norm_1(draw.standard_normal((1, 40, 4, 32)).astype(np.float32))
        writes = circuits._of_norm_1(draw.standard_normal((40, 32, 4)).astype(np.float32))
        shares = circuits._shares(reads, writes)
        assert float((shares**2).mean()) == pytest.approx(1 / 32, rel=0.05)

    def test_json_and_pictures(self) -> None:
        view = both("gpt2").model.circuits.composition(baseline=True)
        valid(view)
        shown = fits(view)
        for text in ("Q-composition", "K-composition", "V-composition", "already subtracted"):
            assert text in shown


def test_json_and_pictures() -> None:
    view = both("gpt2").model.circuits.head(1, 0)
    valid(view)
    assert "the tokens that it copies most" in fits(view)
    assert "for keys 2 tokens back" in fits(both("llama").model.circuits.head(1, 0, [3], distance=2))
