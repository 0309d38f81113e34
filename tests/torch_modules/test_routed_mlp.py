"""A mixture of experts beside the slow statement of it: each token alone, each expert by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.blueprints import read_config
from glassformer.ground.changes import Change
from glassformer.ground.sites import Observer, Tap, Watch
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.mask import Mask
from glassformer.torch.routed_mlp import load_balancing_loss
from tests.parity import reference
from tests.parity.compare import close, ids_for, pair

pytestmark = pytest.mark.usefixtures("one_thread")

EXPERTS, CHOSEN, HIDDEN, INNER = 6, 3, 12, 8


def routed_mlp(normalized: bool = True) -> Any:
    torch.manual_seed(3)
    config = read_config({
        "model_type": "qwen3_moe", "vocab_size": 9, "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 12, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": INNER, "norm_topk_prob": normalized,
    })  # fmt: skip
    layer = glassformer.AutoModel.from_config(config).layers[0].mlp
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def forward_pass(x: Tensor, watch: Watch | None = None) -> ForwardPass:
    columns = torch.arange(x.shape[1])[None]
    tap = None if watch is None else Tap([Observer(watch)])
    return ForwardPass(Mask(columns, x.shape[1]), columns, tap=tap)


def slowly(layer: Any, x: Tensor, scores: Tensor | None = None, normalized: bool = True) -> Tensor:
    """Token by token: the best experts, each times its probability."""
    update = torch.zeros_like(x)
    for batch in range(x.shape[0]):
        for token in range(x.shape[1]):
            own = x[batch, token]
            logits = layer.gate(own) if scores is None else scores[batch, token]
            probabilities = logits.softmax(-1)
            best = sorted(range(EXPERTS), key=lambda expert: -float(probabilities[expert]))[:CHOSEN]
            total = sum(probabilities[expert] for expert in best) if normalized else 1.0
            for expert in best:
                module: Any = layer.experts[expert]
                update[batch, token] += probabilities[expert] / total * module.down(module.neurons(own))
    return update


@pytest.mark.parametrize("normalized", [True, False])
@torch.no_grad()
def test_each_token_gets_what_its_experts_make_of_it(normalized: bool) -> None:
    layer, x = routed_mlp(normalized), torch.randn(2, 9, HIDDEN)
    close(layer(x, forward_pass(x)), slowly(layer, x, normalized=normalized), 1e-6)


@torch.no_grad()
def test_only_the_chosen_experts_compute() -> None:
    layer, x = routed_mlp(), torch.randn(1, 2, HIDDEN)
    chosen = set(layer.gate(x).topk(CHOSEN).indices.flatten().tolist())
    computed: list[int] = []
    for number, expert in enumerate(layer.experts):
        down: Any = expert.down_proj
        down.register_forward_hook(lambda *_, number=number: computed.append(number))
    layer(x, forward_pass(x))
    assert set(computed) == chosen
    assert len(computed) == len(chosen) < EXPERTS


@torch.no_grad()
def test_changed_scores_redirect_and_changed_shares_switch_off() -> None:
    layer, x = routed_mlp(), torch.randn(1, 5, HIDDEN)
    favour = torch.zeros(EXPERTS)
    favour[4] = 100.0
    sites = frozenset(f"blocks.0.mlp.{name}" for name in ("router", "experts", "hidden", "update"))
    p = forward_pass(x, Watch(sites, {"blocks.0.mlp.router": Change(shift=favour)}))
    update = layer(x, p)
    assert p.tap is not None
    record = p.tap.observers[0].record
    close(update, slowly(layer, x, layer.gate(x) + favour), 1e-6)
    assert torch.allclose(record["blocks.0.mlp.experts"][..., 4], torch.ones(1, 5))
    assert record["blocks.0.mlp.hidden"].shape == (1, 5, CHOSEN * INNER)
    assert torch.allclose(record["blocks.0.mlp.experts"].sum(-1), torch.ones(1, 5))
    off = Watch(changes={"blocks.0.mlp.experts": Change(scale=0.0)})
    assert not layer(x, forward_pass(x, off)).any()


@torch.no_grad()
def test_watching_changes_nothing() -> None:
    layer, x = routed_mlp(), torch.randn(2, 4, HIDDEN)
    watch = Watch(frozenset({"blocks.0.mlp.hidden", "blocks.0.mlp.experts"}))
    assert torch.equal(layer(x, forward_pass(x, watch)), layer(x, forward_pass(x)))


def test_gradients_reach_the_router_and_the_chosen_experts() -> None:
    layer, x = routed_mlp().double(), torch.randn(1, 1, HIDDEN, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: layer(x, forward_pass(x)), x.requires_grad_())
    layer(x, forward_pass(x)).square().sum().backward()
    chosen = set(layer.gate(x).topk(CHOSEN).indices.flatten().tolist())
    assert layer.gate.weight.grad.any()
    assert {n for n, expert in enumerate(layer.experts) if expert.up_proj.weight.grad is not None} == chosen


def test_evenly_spread_tokens_have_the_least_loss() -> None:
    logits = torch.eye(4) * 5
    even, uneven = load_balancing_loss([logits], 1), load_balancing_loss([logits[:1].expand(4, 4)], 1)
    assert float(even) == pytest.approx(1.0)
    assert float(uneven) > 3.5


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
@pytest.mark.every_family
@torch.no_grad()
def test_the_loss_of_uneven_loads_equals_the_references(family: str, tmp_path: Path) -> None:
    models = pair(tmp_path, family, "causal")
    ids, mask = ids_for(models.theirs, 2, 11), torch.ones(2, 11, dtype=torch.long)
    mask[0, 7:] = 0
    for options in ({}, {"attention_mask": mask}):
        labels = ids.masked_fill(mask == 0, -100)
        expected = models.theirs(ids, labels=labels, output_router_logits=True, **options)
        result = models.ours(ids, labels=labels, output_router_logits=True, **options)
        assert float(result.aux_loss) == pytest.approx(float(expected.aux_loss), rel=1e-5)
        assert float(result.loss) == pytest.approx(float(expected.loss), rel=1e-5)
        assert len(result.router_logits) == len(expected.router_logits)
        for mine, yours in zip(result.router_logits, expected.router_logits, strict=True):
            close(mine.view(2, 11, -1)[0, :7], yours.view(2, 11, -1)[0, :7])
        assert result.sites is None
    watched = models.ours(ids, output_router_logits=True, watch="blocks.0.residual")
    assert set(watched.sites) == {"blocks.0.residual"}
    assert models.ours(ids, labels=ids).aux_loss is None


@torch.no_grad()
def test_the_loss_of_uneven_loads_is_that_of_the_tokens_of_a_call(tmp_path: Path) -> None:
    """A mask of all remembered tokens, or of what each token sees, says nothing else about them."""
    reference.write(tmp_path, "mixtral")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    for options in ({"attention_mask": torch.ones(1, 5, dtype=torch.long)}, {"attention_mask": causal[:, :, 3:]}):
        past = model(ids[:, :3]).past_key_values
        output = model(ids[:, 3:], past_key_values=past, output_router_logits=True, **options)
        assert float(output.aux_loss) == pytest.approx(float(load_balancing_loss(output.router_logits, 2)))


@torch.no_grad()
def test_router_logits_by_the_config(tmp_path: Path) -> None:
    reference.write(tmp_path, "mixtral", output_router_logits=True)
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model(torch.tensor([[5, 6, 7]])).router_logits is not None
    assert model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2, eos_token_id=None).shape == (1, 5)
