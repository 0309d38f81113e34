"""A program's steps as launches of kernels: names of weights become tensors on the device, once for each program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from glassformer.engine.gpu.joined_matmuls import joined_matmuls, joined_step, neighbours, outputs
from glassformer.engine.gpu.kernels.matmul import product_dtype
from glassformer.engine.gpu.kernels.recurrence import StateHeads
from glassformer.engine.gpu.kernels.tensors import AttentionRule, CachedHeads
from glassformer.engine.gpu.passes import DevicePass, DeviceRope
from glassformer.engine.gpu.weights import DeviceWeights
from glassformer.engine.program import Activation, Epilogue, Program, ProgramStep, StepKind, TokenScope
from glassformer.engine.program_pass import stops

Launch: TypeAlias = Callable[[DevicePass], None]
NO_ROPE = DeviceRope(None)
RECURRENT = (StepKind.RECUR, StepKind.RECUR_PATTERN, StepKind.RECUR_VALUES)


class PromptDtypes(NamedTuple):
    """What a step reads and writes in a prompt pass."""

    input: torch.dtype = torch.float32
    output: torch.dtype = torch.float32


class DeviceProgram:
    """A program bound to weights on the device."""

    def __init__(self, program: Program, weights: DeviceWeights) -> None:
        self.program = program
        joined = joined_matmuls(program)
        self.neighbours = neighbours(program, joined)
        self.launches = bind_steps(program, weights, joined)
        self.stops = frozenset(stops(program))
        self.scoped = [step.scope is not TokenScope.ALL for step in program.steps]
        self.ropes = [
            DeviceRope(torch.from_numpy(rope.frequencies(size)).to(weights.device), rope.scale, rope.interleaved)
            for rope, size in program.ropes
        ]
        self._frequency_lengths = program.frequency_lengths(0)  # whose frequencies these are

    def set_length(self, length: int) -> None:
        """Take the frequencies of texts of `length` tokens: some kinds of RoPE depend on it."""
        lengths = self.program.frequency_lengths(length)
        if lengths == self._frequency_lengths:
            return
        for (rope, size), on_device, least in zip(self.program.ropes, self.ropes, lengths, strict=True):
            assert on_device.frequencies is not None
            on_device.frequencies.copy_(torch.from_numpy(rope.frequencies(size, least)))
        self._frequency_lengths = lengths

    def run(self, device_pass: DevicePass, begin: int = 0, end: int | None = None) -> None:
        """The steps from one to another, and the changes before each of them."""
        unscored = device_pass.scored is not None and not len(device_pass.scored)
        for index in range(begin, len(self.launches) if end is None else end):
            if index in self.stops and index > begin:
                device_pass.apply_changes_before(index)
            launch = self.launches[index]
            if launch is not None and not (unscored and self.scoped[index]):
                launch(device_pass)
        if len(self.launches) in self.stops:
            device_pass.apply_changes_before(len(self.launches))


def bind_steps(program: Program, weights: DeviceWeights, joined: Sequence[Sequence[int]]) -> list[Launch | None]:
    """What launches each step of a program; None: an earlier step's launch does it.

    After the last keys and values are stored, a step runs for scored tokens only, unless a later site is watched. There
    prompts are computed as single tokens are, so that nobody can tell from the numbers who watches.
    """
    steps: list[ProgramStep | None] = list(program.steps)
    larger = neighbours(program, joined)
    for group in joined:
        step = joined_step(program, group, len(program.buffers) + larger.index(outputs(program, group)))
        weights.matrices(step.matrices)  # before any of them is asked for alone
        for index in group:
            steps[index] = None
        steps[min(group)] = step
    dtypes = prompt_dtypes(program, weights, [index for group in joined for index in group])
    return [None if step is None else BINDERS[step.kind](step, weights, dtypes[index]) for index, step in enumerate(steps)]


def prompt_dtypes(program: Program, weights: DeviceWeights, joined: Sequence[int] = ()) -> list[PromptDtypes]:
    """The dtypes of each step's input and output in prompt passes; `joined`: steps whose results lie side by side.

    What only matmuls read, and nobody else, is written in the dtype that they would round it to: the numbers are the same,
    and fewer bytes go to memory and back.
    """
    dtypes = [PromptDtypes() for _ in program.steps]
    kept = {program.scores, *(location.buffer for location in program.sites.values())}
    for changes in program.pattern_changes.values():
        kept |= {buffer for change in changes for buffer in (change.changed_heads, change.heads)}
    for index, step in enumerate(program.steps):
        if step.output in kept or step.after_cache or index in joined or not _can_round_output(step, weights):
            continue
        readers = list(_readers(program, index))
        rounded = {_input_dtype(program.steps[reader], step.output, weights) for reader in readers}
        if len(rounded) == 1:
            (dtype,) = rounded
            dtypes[index] = dtypes[index]._replace(output=dtype)
            for reader in readers:
                dtypes[reader] = dtypes[reader]._replace(input=dtype)
    return dtypes


def _can_round_output(step: ProgramStep, weights: DeviceWeights) -> bool:
    """Whether a kernel writes all of a step's output once, and reads none of it back."""
    if step.kind is StepKind.MATMUL:
        gated = step.epilogue is Epilogue.GATE
        return not gated or len(weights.matrices(step.matrices, gated=True)) == 1
    return step.kind is StepKind.ATTENTION


def _readers(program: Program, writer: int) -> Iterator[int]:
    """The steps that read what a step has written."""
    buffer = program.steps[writer].output
    for index, step in enumerate(program.steps[writer + 1 :], writer + 1):
        if (
            step.input == buffer
            or (_has_second_input(step) and step.second_input == buffer)
            or (_has_third_input(step) and step.third_input == buffer)
        ):
            yield index
        if step.output == buffer and not (step.kind.rotates or step.kind.stores_kv):  # which have no output
            return


def _has_second_input(step: ProgramStep) -> bool:
    return step.epilogue is Epilogue.ADD or step.kind in (StepKind.ADD, StepKind.WEIGHTED_VALUES, StepKind.GATE, *RECURRENT)


def _has_third_input(step: ProgramStep) -> bool:
    return step.kind in RECURRENT


def _input_dtype(step: ProgramStep, buffer: int, weights: DeviceWeights) -> torch.dtype:
    """What a step rounds a buffer to before it does anything else with it; float32 where it does not."""
    adds = _has_second_input(step) and step.second_input == buffer
    if step.kind is not StepKind.MATMUL or step.norm is not None or step.after_cache or adds:
        return torch.float32
    matrices = weights.matrices(step.matrices, gated=step.epilogue is Epilogue.GATE)
    dtypes = {product_dtype(matrix) for matrix in matrices}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _buffer(run: DevicePass, index: int, prompt_dtype: torch.dtype) -> Tensor:
    """A buffer as it is in this pass; numbers of fewer bytes lie in the first part of each row."""
    buffer = run.buffers[index]
    if not run.prompt or prompt_dtype == buffer.dtype:
        return buffer
    return buffer.view(prompt_dtype)[:, : buffer.shape[1]]


def _input_rows(run: DevicePass, step: ProgramStep) -> Tensor | None:
    """Which rows of the input a step reads; None: all, in order."""
    return None if step.scope is TokenScope.ALL else run.scored


def _output_rows(run: DevicePass, step: ProgramStep) -> Tensor | None:
    """Where a step writes its results; None: all in order, or without gaps."""
    return run.scored if step.scope is TokenScope.SCORED else None


def _pool(run: DevicePass, step: ProgramStep) -> Tensor:
    return run.source_pool if step.cross_attention else run.pool


def _heads(step: ProgramStep) -> CachedHeads:
    return CachedHeads(step.layer, step.heads, step.kv_heads, step.head_size, step.cross_attention)


def _rule(step: ProgramStep, weights: DeviceWeights) -> AttentionRule:
    return AttentionRule(step.scale, step.causal, step.window, weights.distance_bias(step.distance_bias))


# Each of these says what a step launches, with its weights on the device.


def _bind_embed(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    tables = [weights.table(table) for table in step.matrices]
    options = {"position_offset": step.position_offset, "scale": step.scale}
    return lambda run: run.kernels.embed(run.tensors, tables, run.buffers[step.output], **options)


def _bind_norm(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    norm, columns = weights.norm(step.norm), slice(step.column, step.column + step.width if step.width else None)
    return lambda run: run.kernels.norm(
        run.buffers[step.input][:, columns], norm, run.buffers[step.output][:, columns], rows=_input_rows(run, step)
    )


def _bind_matmul(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    matrices = weights.matrices(step.matrices, gated=step.epilogue is Epilogue.GATE)
    adds = step.epilogue is Epilogue.ADD
    options = {
        "norm": weights.norm(step.norm), "epilogue": step.epilogue.name.lower(), "activation": step.activation.name.lower(),
        "activated_from": step.activated_from, "scale": step.scale,
    }  # fmt: skip
    return lambda run: run.kernels.matmul(
        _buffer(run, step.input, dtypes.input), matrices, _buffer(run, step.output, dtypes.output), **options,
        residual=run.buffers[step.second_input] if adds else None, input_rows=_input_rows(run, step),
        output_rows=_output_rows(run, step), prompt=run.prompt and not step.after_cache,
    )  # fmt: skip


def _bind_rope_kv_store(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads = _heads(step)
    options = {
        "query_offset": step.query_offset, "key_offset": step.key_offset, "value_offset": step.value_offset,
        "query_norm": weights.norm(step.query_norm), "key_norm": weights.norm(step.key_norm),
        "rotate": step.kind.rotates, "store": step.kind.stores_kv,
    }  # fmt: skip

    def launch(run: DevicePass) -> None:
        rope = NO_ROPE if step.rope is None else run.ropes[step.rope]
        run.kernels.rope_kv_store(
            run.tensors, run.buffers[step.input], _pool(run, step), heads, **options, frequencies=rope.frequencies,
            rope_scale=rope.scale, interleaved=rope.interleaved,
        )  # fmt: skip

    return launch


def _bind_attention(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads, rule = _heads(step), _rule(step, weights)

    def launch(run: DevicePass) -> None:
        prompt = run.prompt and not step.after_cache
        run.kernels.attention(
            run.tensors, run.buffers[step.input], _pool(run, step), _buffer(run, step.output, dtypes.output), heads, rule,
            max_keys=run.max_source if step.cross_attention else run.max_keys, rows=_input_rows(run, step), prompt=prompt,
            max_tokens=run.max_tokens if prompt else 0,
        )  # fmt: skip

    return launch


def _bind_attention_pattern(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads, rule = _heads(step), _rule(step, weights)
    return lambda run: run.kernels.attention_pattern(
        run.tensors, run.buffers[step.input], _pool(run, step), run.buffers[step.output], heads, rule, keys=run.pattern_keys
    )


def _bind_weighted_values(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads = _heads(step)
    return lambda run: run.kernels.weighted_values(
        run.tensors, run.buffers[step.second_input], _pool(run, step), run.buffers[step.output], heads, keys=run.pattern_keys
    )


def _bind_add(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    return lambda run: run.kernels.add(
        run.buffers[step.input], run.buffers[step.second_input], run.buffers[step.output], rows=_input_rows(run, step)
    )


def _bind_activate(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    if step.activation is Activation.SCALE:
        return _bind_scale(step, weights)
    if step.activation is Activation.CLIP:
        return _bind_clip(step)
    activation = step.activation.name.lower()
    return lambda run: run.kernels.activate(
        run.buffers[step.input], activation, run.buffers[step.output], rows=_input_rows(run, step)
    )


def _bind_clip(step: ProgramStep) -> Launch:
    def launch(run: DevicePass) -> None:
        run.buffers[step.output].copy_(run.buffers[step.input].clamp(step.least, step.most))

    return launch


def _bind_scale(step: ProgramStep, weights: DeviceWeights) -> Launch:
    """One gate for all of a token's numbers, and the same for all tokens."""
    assert step.activation_numbers is not None
    number = weights.numbers(step.activation_numbers)[None]

    def launch(run: DevicePass) -> None:
        x = run.buffers[step.input]
        gates = number.expand(len(x), 1)
        run.kernels.gate(gates, "no_activation", x, run.buffers[step.output], rows=_input_rows(run, step))

    return launch


def _bind_copy(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    first = step.output_offset
    return lambda run: run.kernels.copy(
        run.buffers[step.input], run.buffers[step.output][:, first:], rows=_input_rows(run, step)
    )


def _bind_gate(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    activation = step.activation.name.lower()

    def launch(run: DevicePass) -> None:
        out = run.buffers[step.output]
        gated = run.buffers[step.second_input][:, step.column : step.column + out.shape[1]]
        run.kernels.gate(run.buffers[step.input], activation, gated, out, rows=_input_rows(run, step))

    return launch


def _bind_causal_conv(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    assert step.kernel is not None
    kernel, bias = weights.conv_kernel(step.kernel, step.width), step.kernel_bias and weights.vector(step.kernel_bias)
    activation = None if step.activation is Activation.NO_ACTIVATION else step.activation.name.lower()
    options = {"state_offset": step.state_offset, "activation": activation}
    return lambda run: run.kernels.causal_conv(
        run.tensors, run.buffers[step.input], run.states, kernel, bias, run.buffers[step.output], **options
    )


def _bind_time_step(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    assert step.vector is not None
    bias, limits = weights.vector(step.vector), {"least": step.least, "most": step.most}
    return lambda run: run.kernels.time_step(run.buffers[step.input], bias, run.buffers[step.output], **limits)


def _bind_decay(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    assert step.vector is not None
    rate = weights.vector(step.vector).repeat_interleave(step.vector_repeats)
    return lambda run: run.kernels.decay(run.buffers[step.input], rate, run.buffers[step.output])


def _state_heads(step: ProgramStep) -> StateHeads:
    return StateHeads(
        step.heads, step.kv_heads, step.key_size, step.head_size, step.query_offset, step.key_offset, step.value_offset,
        step.state_offset, step.scale, step.delta,
    )  # fmt: skip


def _bind_recur(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads, skip = _state_heads(step), _skip(step, weights)

    def launch(run: DevicePass) -> None:
        inputs, decays, writes = (run.buffers[index] for index in (step.input, step.second_input, step.third_input))
        norms = None if step.state_norms is None else run.buffers[step.state_norms]
        more = {"norms": norms, "skip": skip}
        run.kernels.recur(run.tensors, inputs, run.states, decays, writes, run.buffers[step.output], heads, **more)

    return launch


def _skip(step: ProgramStep, weights: DeviceWeights) -> Any:
    """How much of its own value a token's output has, for each head; None: nothing."""
    return None if step.vector is None else weights.vector(step.vector)


def _bind_recur_pattern(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads, skip = _state_heads(step), _skip(step, weights)

    def launch(run: DevicePass) -> None:
        inputs, decays, writes = (run.buffers[index] for index in (step.input, step.second_input, step.third_input))
        out = run.buffers[step.output]
        run.kernels.recur_pattern(run.tensors, inputs, decays, writes, out, heads, keys=run.pattern_keys, skip=skip)

    return launch


def _bind_recur_values(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    heads = _state_heads(step)
    return lambda run: run.kernels.recur_values(
        run.tensors, run.buffers[step.input], run.buffers[step.second_input], run.buffers[step.output], heads,
        keys=run.pattern_keys,
    )  # fmt: skip


def _bind_sum_over_ranks(step: ProgramStep, weights: DeviceWeights, dtypes: PromptDtypes) -> Launch:
    return lambda run: run.kernels.sum_over_ranks(run.buffers[step.output])


BINDERS: dict[StepKind, Callable[[ProgramStep, DeviceWeights, PromptDtypes], Launch]] = {
    StepKind.EMBED: _bind_embed,
    StepKind.NORM: _bind_norm,
    StepKind.MATMUL: _bind_matmul,
    StepKind.ROPE: _bind_rope_kv_store,
    StepKind.KV_STORE: _bind_rope_kv_store,
    StepKind.ROPE_KV_STORE: _bind_rope_kv_store,
    StepKind.ATTENTION: _bind_attention,
    StepKind.ATTENTION_PATTERN: _bind_attention_pattern,
    StepKind.WEIGHTED_VALUES: _bind_weighted_values,
    StepKind.ADD: _bind_add,
    StepKind.ACTIVATE: _bind_activate,
    StepKind.COPY: _bind_copy,
    StepKind.SUM_OVER_RANKS: _bind_sum_over_ranks,
    StepKind.GATE: _bind_gate,
    StepKind.CAUSAL_CONV: _bind_causal_conv,
    StepKind.TIME_STEP: _bind_time_step,
    StepKind.DECAY: _bind_decay,
    StepKind.RECUR: _bind_recur,
    StepKind.RECUR_PATTERN: _bind_recur_pattern,
    StepKind.RECUR_VALUES: _bind_recur_values,
}
