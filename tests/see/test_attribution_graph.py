"""Linear attribution graphs, of every family on both executors: what sums to what, and edges against autograd."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from glassformer.ground.errors import SiteError
from glassformer.page.format import visible
from glassformer.see.attribution_graph import DRAWN_EDGES, AttributionGraph, diagram, strongest_edges
from tests.parity.configs import DECODERS, SEVERAL_STREAMS
from tests.see.models import CAUSAL, EXECUTORS, WRITERS, both
from tests.see.test_reading import TerminalPage, fits, plain_text, valid


def check_sums(graph: AttributionGraph) -> None:
    """Edges into a node add up to those out of it, and where they come from to the score."""
    incoming: dict[int, float] = defaultdict(float)
    outgoing: dict[int, float] = defaultdict(float)
    for edge in graph.edges:
        incoming[edge.target] += edge.value
        outgoing[edge.source] += edge.value
    size = max(1.0, abs(graph.score))
    for number, node in enumerate(graph.nodes):
        if node.followed:
            assert incoming[number] + node.pruned + node.biases == pytest.approx(node.value, abs=1e-4 * size)
        if number:
            assert outgoing[number] == pytest.approx(node.value, abs=1e-9)
    assert graph.sources + graph.pruned + graph.biases + graph.rounding == pytest.approx(graph.score, abs=1e-9)
    assert abs(graph.rounding) < 1e-4 * size


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("threshold", [0.0, 0.03])
def test_a_graph_sums_to_the_score(family: str, executor: str, threshold: float) -> None:
    pair = both(family, executor)
    reading = pair.reading("the cat", "a dog") if pair.sourced else pair.reading("the cat")
    logits = pair.run(reading).logits[0, -1]
    for centred in (False, True):
        graph = reading.graph(-1, 3, metric="logit", centred=centred, threshold=threshold)
        assert graph.score == pytest.approx(float(logits[3] - (logits.mean() if centred else 0)), abs=2e-3)
        check_sums(graph)
        if not threshold:
            assert graph.pruned == 0
    lead = reading.graph(-1, 3, 4, threshold=threshold)
    assert lead.score == pytest.approx(float(logits[3] - logits[4]), abs=2e-3)
    check_sums(lead)


@pytest.mark.sweep
@pytest.mark.parametrize("family", DECODERS)
def test_a_graph_of_each_family_sums_to_the_score(family: str) -> None:
    reading = both(family).reading("the cat", "a dog")
    if family in SEVERAL_STREAMS:
        with pytest.raises(SiteError, match=family):
            reading.graph(-1, 3, threshold=0)
        return
    check_sums(reading.graph(-1, 3, threshold=0))


@pytest.mark.parametrize("family", CAUSAL)
def test_edges_into_the_score_are_direct_attribution(family: str) -> None:
    reading = both(family).reading("the cat")
    graph, direct = reading.graph(-1, 3, threshold=0), reading.attribution(-1, 3)
    edges = {
        (graph.nodes[edge.source].name, graph.nodes[edge.source].block, graph.nodes[edge.source].head): edge.value
        for edge in graph.edges
        if edge.target == 0
    }
    expected = {
        (part.name, part.block, part.head): part.value
        for part in (*direct.contributions, *direct.heads)
        if part.head is not None or part.name in ("embedding", "mlp")
    }
    assert edges == pytest.approx(expected, abs=1e-9)


class Frozen:
    """A reference whose norms and patterns are constants to autograd, and whose MLPs are leaves of its graph."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.leaves: dict[str, torch.Tensor] = {}

    def gradients(self, ids: torch.Tensor, token: int) -> dict[str, np.ndarray]:
        """Of the last token's score, times the values: what each leaf gave, by position."""
        softmax, layer_norm = torch.nn.functional.softmax, torch.nn.functional.layer_norm
        handles = []
        for name, module in self.model.named_modules():
            if name.endswith(("embed_tokens", ".drop", ".mlp")):
                handles.append(module.register_forward_hook(lambda *call, name=name: self._leaf(name, call[-1])))

        def frozen_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
            deviation = (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
            return (x - x.mean(-1, keepdim=True)) / deviation * weight + bias

        def frozen_rms_norm(norm: Any, x: Any) -> Any:
            return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).detach()

        kinds = {type(module) for module in self.model.modules() if type(module).__name__.endswith("RMSNorm")}
        patches = [patch.object(kind, "forward", frozen_rms_norm) for kind in kinds]
        patches += [
            patch("torch.nn.functional.softmax", lambda *given, **named: softmax(*given, **named).detach()),
            patch("torch.nn.functional.layer_norm", frozen_layer_norm),
        ]
        self.model.set_attn_implementation("eager")
        try:
            for one in patches:
                one.start()
            self.model(ids).logits[0, -1, token].backward()
        finally:
            for one in patches:
                one.stop()
            for handle in handles:
                handle.remove()
        assert layer_norm is torch.nn.functional.layer_norm
        zero = torch.zeros(())
        return {
            name: (leaf * (zero if leaf.grad is None else leaf.grad)).sum(-1)[0].detach().numpy()
            for name, leaf in self.leaves.items()
        }

    def _leaf(self, name: str, output: torch.Tensor) -> torch.Tensor:
        self.leaves[name] = output.detach().requires_grad_()
        return self.leaves[name]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_comes_from_each_token_and_mlp_is_what_autograd_gives(family: str) -> None:
    pair = both(family)
    reading = pair.reading("the cat sat")
    expected = Frozen(pair.reference).gradients(torch.tensor([reading.ids]), 3)
    graph = reading.graph(-1, 3, metric="logit", threshold=0)
    found: dict[tuple[int | None, int], float] = {
        (node.block, node.position): node.value for node in graph.nodes if node.name in ("embedding", "mlp")
    }
    blocks = [None, *range(reading.model.blueprint.blocks)]
    assert len(expected) == len(blocks)
    for block, (name, values) in zip(blocks, expected.items(), strict=True):
        for position, value in enumerate(values.tolist()):
            assert found.get((block, position), 0.0) == pytest.approx(value, abs=1e-5), (name, position)


@pytest.mark.parametrize("family", WRITERS)
def test_a_drawing_has_the_strongest_edges_and_leads_to_the_score(family: str) -> None:
    pair = both(family)
    graph = (pair.reading("the cat", "a dog") if pair.sourced else pair.reading("the cat")).graph(-1, 3, threshold=0)
    edges = strongest_edges(graph, 10)
    assert len(edges) == 10
    for at, edge in enumerate(edges):
        assert edge.target in {0, *(earlier.source for earlier in edges[:at])}
    left_out = [edge for edge in graph.edges if edge not in edges]
    reached = {0, *(edge.source for edge in edges)}
    assert max(abs(edge.value) for edge in left_out if edge.target in reached) <= min(abs(edge.value) for edge in edges)
    drawing = diagram(graph, edges)
    most = max(abs(edge.value) for edge in edges)
    assert [line.value for line in drawing.edges] == pytest.approx([edge.value / most for edge in edges])
    for edge, line in zip(edges, drawing.edges, strict=True):
        for end, place in ((edge.source, line.source), (edge.target, line.target)):
            node, box = graph.nodes[end], drawing.nodes[place]
            assert box.note == f"{node.value if end else graph.score:+.2f}"
            assert drawing.columns[box.column] == visible(node.token)
            assert drawing.lanes[box.lane] == ("" if node.block is None else f"block {node.block}")
        assert drawing.nodes[line.source].lane < drawing.nodes[line.target].lane
        assert drawing.nodes[line.source].column <= drawing.nodes[line.target].column
    shown, into = (
        plain_text(TerminalPage(graph.page()), 120),
        sum(edge.value for edge in strongest_edges(graph, DRAWN_EDGES) if edge.target == 0),
    )
    assert f"all others into it come to {graph.score - into:+.2f}" in " ".join(shown.split())


def test_json_and_pictures() -> None:
    graph = both("llama").reading("the cat").graph(-1, 3)
    valid(graph)
    shown = fits(graph)
    assert "where it came from: together the lead over" in shown
    assert "pruned edges" in shown
    assert "--all" not in plain_text(TerminalPage(graph.page(everything=True)), 120)
