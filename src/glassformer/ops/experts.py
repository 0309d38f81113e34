"""route, expert_gate, expert_linear: a mixture of experts. The weights of its two halves are those of all experts, in turn.

route           router scores → each expert's share, 0 for those not chosen. Options: chosen, normalized, how, groups,
                kept_groups, group_best, scale, floor
expert_gate     a gate of each chosen expert, side by side. Options: how, experts, chosen, limit, offset, shares_inputs
expert_linear   a linear of each chosen expert with its neurons, times its share, summed. Options: experts, chosen,
                shares_inputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import Epilogue, MatrixRef, StepKind
from glassformer.ops.activate import activation, explain_activation, native_activation
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, TokenContext, Weight
from glassformer.ops.products import explain_product, matrix_ref, product, stored_weight, weight_row
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights


class Route(Op):
    """Its weight, if it has one, corrects what is compared when experts are chosen, and is no part of their shares."""

    __slots__ = ()
    kind = "route"

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def sigmoid(self) -> bool:
        return bool(self.options["how"] == "sigmoid")

    @property
    def divided(self) -> bool:
        """Whether a token's experts all come from some of several groups."""
        return bool(self.options["kept_groups"] < self.options["groups"])

    def probabilities(self, scores: Array) -> Array:
        if self.sigmoid:
            return np.asarray(0.5 * (1 + np.tanh(scores / 2)), scores.dtype)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True))

    def preferences(self, probabilities: Array, token: TokenContext) -> Array:
        """What is compared when experts are chosen; minus infinity in groups that are not."""
        correction = stored_weight(token.weights, self.weights[0]).reshape(-1) if self.weights else np.float32(0)
        preferences = probabilities + correction
        if not self.divided:
            return np.asarray(preferences)
        groups = preferences.reshape(*preferences.shape[:-1], self.options["groups"], -1)
        worth = self.group_scores(groups)
        kept = np.argsort(-worth, -1, "stable")[..., : self.options["kept_groups"]]
        dropped = np.full(worth.shape, -np.inf, worth.dtype)
        np.put_along_axis(dropped, kept, 0, -1)
        return np.asarray((groups + dropped[..., None]).reshape(preferences.shape))

    def group_scores(self, groups: Array) -> Array:
        """What each group (…, groups, experts) is worth: the sum of its best."""
        return np.asarray(np.sort(groups, -1)[..., -self.options["group_best"] :].sum(-1))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        probabilities = self.probabilities(inputs[0])
        chosen = np.argsort(-self.preferences(probabilities, token), -1, "stable")[..., : self.options["chosen"]]
        shares = np.zeros_like(probabilities)
        np.put_along_axis(shares, chosen, np.take_along_axis(probabilities, chosen, -1), -1)
        if self.options["normalized"]:
            shares = shares / (shares.sum(-1, keepdims=True) + shares.dtype.type(self.options["floor"]))
        return np.asarray(shares * shares.dtype.type(self.options["scale"]))

    def torch_value(self, scores: Any, correction: Any = None) -> Any:
        """The same in PyTorch; of two experts that are equally good, the first is better."""
        import torch

        o = self.options
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        probabilities = wide.sigmoid() if self.sigmoid else wide.softmax(-1)
        preferences = probabilities.detach()
        if correction is not None:
            preferences = preferences + correction.reshape(-1)
        if self.divided:
            groups = preferences.unflatten(-1, (o["groups"], -1))
            worth = groups.topk(o["group_best"], -1).values.sum(-1)
            dropped = worth.sort(dim=-1, descending=True, stable=True).indices[..., o["kept_groups"] :]
            groups = groups.masked_fill(torch.zeros_like(worth).scatter(-1, dropped, 1).bool()[..., None], -torch.inf)
            preferences = groups.flatten(-2)
        chosen = preferences.sort(dim=-1, descending=True, stable=True).indices[..., : o["chosen"]]
        best = probabilities.gather(-1, chosen)
        if o["normalized"]:
            best = best / (best.sum(-1, keepdim=True) + o["floor"])
        return torch.zeros_like(probabilities).scatter(-1, chosen, best * o["scale"]).to(scores.dtype)

    def formula(self) -> str:
        o = self.options
        by = f" by {o['how']} + correction" if self.weights else ""
        groups = f" in the best {o['kept_groups']} of {o['groups']} groups" if self.divided else ""
        best = f"best {o['chosen']}{groups}{by}"
        norm = ", made to add up to 1" if o["normalized"] else ""
        scale = "" if o["scale"] == 1 else f", × {o['scale']:g}"
        return f"{o['how']}(scores) of the {best}{norm}{scale}; 0 for all others"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        scores, o = e.value(self.inputs[0]), self.options
        e.step("score", f"the router's, of expert {index}", scores[index])
        probabilities, token = self.probabilities(scores), e.token(self)
        preferences = self.preferences(probabilities, token)
        over = "of the score" if self.sigmoid else f"over {len(scores)} experts"
        share = e.step(o["how"], over, probabilities[index])
        if self.weights:
            correction = float(stored_weight(token.weights, self.weights[0]).reshape(-1)[index])
            e.step("corrected", f"{o['how']} + {correction:.4f}: what is compared", share + correction)
        chosen = np.argsort(-preferences, kind="stable")[: o["chosen"]]
        if index not in chosen:
            group = self.divided and preferences[index] == -np.inf
            reason = "its group is not among the best" if group else f"{o['chosen']} others have higher scores"
            e.step("share", f"none: {reason}", 0.0)
            return
        scaled = "" if o["scale"] == 1 else f" × {o['scale']:g}"
        if o["normalized"]:
            total = e.step("all chosen", f"the sum of {len(chosen)}", probabilities[chosen].sum() + o["floor"])
            e.step("share", f"{o['how']} ÷ all chosen{scaled}", share / total * o["scale"])
        else:
            e.step("share", f"one of the chosen{scaled}", share * o["scale"])

    def write_modules(self, derivation: Any, index: int) -> None:
        correction = None
        for weight in self.weights:
            derivation.zeros(weight)
            correction = At(path_of(weight.name))
        derivation.add(index, path_of(self.module)[:-1], step(route, self, correction))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        options = {name: self.options[name] for name in ("chosen", "normalized", "scale", "floor")}
        groups = {name: self.options[name] for name in ("groups", "kept_groups", "group_best")} if self.divided else {}
        correction = self.weights[0].name if self.weights else None
        writer.emit(
            StepKind.ROUTE, input=source, output=buffer, expert_count=self.width, sigmoid=self.sigmoid,
            correction=correction, **options, **groups,
        )  # fmt: skip
        writer.set_result(index, buffer)

    def split(self, splitter: Any, index: int) -> None:
        raise splitter.cannot_split(self, "it has experts")


class ExpertOp(Op):
    """What both have: an input, the experts' shares, and matrices of each expert."""

    __slots__ = ()
    weight_role = "product"

    @property
    def per_expert(self) -> int:
        """How many matrices each has."""
        return 1

    @property
    def shares_inputs(self) -> bool:
        """Whether an expert gets a token times its share, and what it makes of that counts as it is."""
        return bool(self.options.get("shares_inputs"))

    def expert_weights(self, expert: int) -> list[tuple[Weight, ...]]:
        """The weights of an expert's matrices, with their biases: gate and up, or one alone."""
        size = len(self.weights) // self.experts // self.per_expert
        first = expert * self.per_expert
        return [self.weights[index * size : (index + 1) * size] for index in range(first, first + self.per_expert)]

    def chosen(self, shares: Array) -> list[int]:
        """The experts that a token goes to, in the order of their slots: by index."""
        largest = sorted(np.flatnonzero(shares).tolist(), key=lambda expert: (-abs(shares[expert]), expert))
        return sorted(largest[: self.options["chosen"]])

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [matrix_ref(self, part) for expert in range(self.experts) for part in self.expert_weights(expert)]

    def lower_matmul(self, writer: ProgramWriter, width: int, **fields: Any) -> int:
        """A product of each chosen expert, side by side in one buffer."""
        source, shares = (writer.buffer_of[operand] for operand in self.inputs)
        experts = tuple(
            tuple(matrix_ref(self, part) for part in self.expert_weights(expert)) for expert in range(self.experts)
        )
        counts = {"expert_count": len(experts), "chosen": self.options["chosen"]}
        buffer = writer.allocate(width)
        writer.emit(
            StepKind.EXPERT_MATMUL, input=source, second_input=shares, output=buffer, experts=experts, **counts, **fields
        )
        return buffer


class ExpertGate(ExpertOp):
    __slots__ = ()
    kind = "expert_gate"

    @property
    def gated(self) -> bool:
        """Whether each expert has a gate; else an activation of one product."""
        return bool(self.options.get("gated", True))

    @property
    def per_expert(self) -> int:
        return 2 if self.gated else 1

    @property
    def neurons(self) -> int:
        """How many neurons each expert has."""
        return self.width // int(self.options["chosen"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        x, shares = inputs
        made = np.zeros((self.options["chosen"], self.neurons), x.dtype)
        for slot, expert in enumerate(self.chosen(shares)):
            x_of = x * shares[expert] if self.shares_inputs else x
            gate, *ups = (product(self, x_of, token.weights, weights) for weights in self.expert_weights(expert))
            if not ups:
                made[slot] = activation(self)(gate)
                continue
            up = ups[0]
            if (limit := self.options["limit"]) is not None:
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            made[slot] = activation(self)(gate) * (up + np.float32(self.options["offset"]))
        return made.reshape(-1)

    def formula(self) -> str:
        x = "share · x" if self.shares_inputs else "x"
        gate = f"{self.options['how']}(gate weights · {x}) × (up weights · {x})"
        gate = gate if self.gated else f"{self.options['how']}(weights · x)"
        return f"{gate}, of {self.options['chosen']} of {self.experts} experts"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        slot, neuron = divmod(index, self.neurons)
        chosen = self.chosen(e.value(self.inputs[1]))
        if slot >= len(chosen):
            e.step("neuron", "of no expert: fewer are chosen here", 0.0)
            return
        weights = self.expert_weights(chosen[slot])
        if not self.gated:
            made = explain_product(self, e, neuron, "product", weights[0])
            explain_activation(self, e, made, f"{self.options['how']}(product), of expert {chosen[slot]}")
            return
        parts = zip(("gate", "up"), weights, strict=True)
        gate, up = (explain_product(self, e, neuron, name, weights) for name, weights in parts)
        how, limit, offset = (self.options[name] for name in ("how", "limit", "offset"))
        if self.shares_inputs:
            share = float(e.value(self.inputs[1])[chosen[slot]])
            gate, up = (
                e.step(f"{name}, by the share", f"× {share:.4f}", x * share) for name, x in (("gate", gate), ("up", up))
            )
        if limit is not None:
            gate = e.step("gate, cut", f"at most {limit:g}", min(gate, limit))
            up = e.step("up, cut", f"from −{limit:g} to {limit:g}", max(-limit, min(up, limit)))
        opened = explain_activation(self, e, gate, f"{how}(gate)")
        added = f"(up + {offset:g})" if offset else "up"
        e.step("neuron", f"{how}(gate) × {added}, of expert {chosen[slot]}", opened * (up + offset))

    def number_label(self, index: int, inputs: Callable[[int], Floats]) -> str:
        slot, neuron = divmod(index, self.neurons)
        experts = self.chosen(inputs(self.inputs[1]))
        return f"expert {experts[slot]}, neuron {neuron}" if slot < len(experts) else f"no expert, number {index}"

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        derivation.experts(self, path)
        derivation.add(index, path[:-1], step(expert_neurons, At(path)))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        gate = {"epilogue": Epilogue.GATE if self.gated else Epilogue.ACTIVATE, "activation": native_activation(self)}
        limits = {"gate_limit": self.options["limit"] or 0.0, "gate_offset": self.options["offset"]}
        limits |= {"shares_inputs": self.shares_inputs}
        writer.set_result(index, self.lower_matmul(writer, self.width, **gate, **limits))


class ExpertLinear(ExpertOp):
    __slots__ = ()
    kind = "expert_linear"

    @property
    def is_plain(self) -> bool:
        return not self.options.get("scaled")

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        neurons, shares = inputs
        slots = neurons.reshape(self.options["chosen"], -1)
        made = np.zeros(self.width, neurons.dtype)
        for x, expert in zip(slots, self.chosen(shares), strict=False):
            share = x.dtype.type(1) if self.shares_inputs else shares[expert]
            made += share * product(self, x, token.weights, self.expert_weights(expert)[0])
        return made

    def formula(self) -> str:
        made = "weights · neurons" if self.shares_inputs else "share × (weights · neurons)"
        return f"the sum of {made}, over the chosen experts"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        neurons, shares = (e.value(source) for source in self.inputs)
        total = 0.0
        for slot, expert in enumerate(self.chosen(shares)):
            name, row, bias = weight_row(self, e.token(self).weights, index, self.expert_weights(expert)[0])
            values = neurons[slot * len(row) : (slot + 1) * len(row)]
            made = e.dot_product(f"expert {expert}", (name, row), ("neurons", values))
            share = 1.0 if self.shares_inputs else float(shares[expert])
            total += share * (made + bias)
            with_bias = f" + {bias:.4f}" if bias else ""
            e.step(f"expert {expert}", f"{share:.4f} × ({made:.4f}{with_bias})", share * (made + bias))
        e.step("sum", "over the chosen experts", total)

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        derivation.experts(self, path)
        derivation.add(index, path[:-1], step(expert_update, At(path)))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Each chosen expert's product, and their sum; the residual sum that follows is done with it."""
        shares, products = writer.buffer_of[self.inputs[1]], self.lower_matmul(writer, self.options["chosen"] * self.width)
        consumers = writer.consumers.get(index, [])
        fused: dict[str, Any] = {}
        if len(consumers) == 1 and self.site not in writer.watched:
            following = writer.ops[consumers[0]].epilogue(writer, consumers[0], index) or {}
            if following.get("epilogue") is Epilogue.ADD:
                fused = {"epilogue": Epilogue.ADD, "third_input": following["second_input"]}
        buffer = writer.allocate(self.width)
        counts = {"expert_count": self.experts, "chosen": self.options["chosen"], "shares_inputs": self.shares_inputs}
        writer.emit(StepKind.EXPERT_SUM, input=products, second_input=shares, output=buffer, **counts, **fused)
        writer.free(products)
        writer.set_result(consumers[0] if fused else index, buffer)


def route(op: Route, correction: Path | None, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    stored = () if correction is None else (getattr(part(m, correction[:-1]), correction[-1]),)
    values[write] = op.torch_value(values[read], *stored)


def expert_neurons(experts: Path, x: int, shares: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, experts).neurons(values[x], values[shares])


def expert_update(experts: Path, neurons: int, shares: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, experts).update(values[neurons], values[shares])


def _around(module: str) -> str:
    """The module around all experts: `mlp.experts` for `mlp.experts.0.gate_proj`."""
    return module.rsplit(".", 2)[0]


def build_route(
    b: Recorder, scores: Value, module: str, chosen: int, normalized: bool, how: str = "softmax", correction: str = "",
    correction_shape: tuple[int, ...] = (), groups: int = 1, kept_groups: int = 1, group_best: int = 1, scale: float = 1.0,
    floor: float = 0.0,
) -> Value:  # fmt: skip
    """Each expert's share of a token's update: what the router's scores become, and 0 for all but the best.

    `normalized`: the shares of those that are chosen add up to one, before they are scaled; `floor`: added to their sum.
    `how`: the softmax of all scores, or the sigmoid of each. `correction`: a weight that is added to that when experts are
    compared, and only then. `groups`: of experts side by side; those chosen are in the best `kept_groups`, where a group is
    as good as its `group_best` best experts together.
    """
    weights = {correction: correction_shape or (scores.width,)} if correction else {}
    return b.record(
        Route, module, (scores,), scores.shape, "mlp.experts", weights, chosen=chosen, normalized=normalized, how=how,
        groups=groups, kept_groups=kept_groups, group_best=group_best, scale=scale, floor=floor,
    )  # fmt: skip


def build_expert_gate(
    b: Recorder, x: Value, shares: Value, experts: Sequence[tuple[str, ...]], chosen: int, inner: int, how: str,
    bias: bool = False, limit: float | None = None, offset: float = 0.0, shares_inputs: bool = False,
    dropout: float | None = None,
) -> Value:  # fmt: skip
    """The neurons of the chosen experts, in the order of their indices, side by side; `experts`: gate and up of each, or
    what is activated without a gate.

    `limit`: what the gate is cut at above, and the other at both sides; `offset` is added to the latter. `shares_inputs`:
    an expert gets a token times its share, and what it makes of that counts as it is. `dropout`: of neurons, in training.
    """
    modules = [module for pair in experts for module in pair]
    weights = {name: shape for module in modules for name, shape in linear_weights(module, x, inner, bias).items()}
    more: dict[str, Any] = {"gated": False} if len(experts[0]) == 1 else {}
    more |= {} if dropout is None else {"dropout": dropout}
    return b.record(
        ExpertGate, _around(experts[0][0]), (x, shares), (*x.shape[:-1], chosen * inner), "mlp.hidden", weights,
        how=how, chosen=chosen, experts=len(experts), limit=limit, offset=offset, shares_inputs=shares_inputs, **more,
    )  # fmt: skip


def build_expert_linear(
    b: Recorder, x: Value, shares: Value, experts: Sequence[str], chosen: int, out: int, bias: bool = False,
    site: str | None = "mlp.update", shares_inputs: bool = False, scaled: bool = False,
) -> Value:  # fmt: skip
    """The update: what the chosen experts make of their neurons, each times its share; `scaled`: in which there is a factor
    that is none of theirs."""
    neurons = Value(x.op, (*x.shape[:-1], x.width // chosen))  # of each
    weights = {name: shape for module in experts for name, shape in linear_weights(module, neurons, out, bias).items()}
    factor: dict[str, Any] = {"scaled": True} if scaled else {}
    return b.record(
        ExpertLinear, _around(experts[0]), (x, shares), (*x.shape[:-1], out), site, weights, chosen=chosen,
        experts=len(experts), shares_inputs=shares_inputs, **factor,
    )  # fmt: skip
