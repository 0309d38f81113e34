"""A program's steps as launches of kernels: names of weights become tensors on the device, once for each program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from glassformer.engine.gpu.passes import DevicePass
from glassformer.engine.gpu.weights import DeviceWeights
from glassformer.engine.program import Epilogue, Program, Step, StepKind, TokenScope

Launch: TypeAlias = Callable[[DevicePass], None]


def bind_steps(program: Program, weights: DeviceWeights) -> list[Launch]:
    """What launches each step of a program.

    After the last keys and values are stored, a step runs for scored tokens only, unless a later site is watched. There
    prompts are computed as single tokens are, so that nobody can tell from the numbers who watches.
    """
    return [BINDERS[step.kind](step, weights, not step.after_cache) for step in program.steps]


def _rows(run: DevicePass, scope: TokenScope) -> tuple[Tensor | None, Tensor | None]:
    """Which rows of the input a step reads, and where it writes their results; None: all, in order."""
    if scope is TokenScope.ALL:
        return None, None
    return run.scored, run.scored if scope is TokenScope.SCORED else None


def _bind_embed(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    tables = [weights.table(table) for table in step.matrices]

    def launch(run: DevicePass) -> None:
        out = run.buffers[step.output]
        run.kernels.embed(run.tensors, tables, out, position_offset=step.position_offset, scale=step.scale)

    return launch


def _bind_norm(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    norm = weights.norm(step.norm)
    assert norm is not None

    def launch(run: DevicePass) -> None:
        run.kernels.norm(run.buffers[step.input], norm, run.buffers[step.output], rows=_rows(run, step.scope)[0])

    return launch


def _bind_matmul(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    matrices = weights.matrices(step.matrices, gated=step.epilogue is Epilogue.GATE)
    norm = weights.norm(step.norm)
    epilogue, activation = step.epilogue.name.lower(), step.activation.name.lower()
    adds = step.epilogue is Epilogue.ADD

    def launch(run: DevicePass) -> None:
        input_rows, output_rows = _rows(run, step.scope)
        run.kernels.matmul(
            run.buffers[step.input], matrices, run.buffers[step.output], norm=norm, epilogue=epilogue, activation=activation,
            residual=run.buffers[step.second_input] if adds else None, scale=step.scale, input_rows=input_rows,
            output_rows=output_rows, prompt=prompt and run.prompt,
        )  # fmt: skip

    return launch


def _bind_rope_kv_store(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    query_norm, key_norm = weights.norm(step.query_norm), weights.norm(step.key_norm)

    def launch(run: DevicePass) -> None:
        frequencies, scale = (None, 1.0) if step.rope is None else run.ropes[step.rope]
        run.kernels.rope_kv_store(
            run.tensors, run.buffers[step.input], run.source_pool if step.cross_attention else run.pool, layer=step.layer,
            heads=step.heads, kv_heads=step.kv_heads, head_size=step.head_size, query_offset=step.query_offset,
            key_offset=step.key_offset, value_offset=step.value_offset, query_norm=query_norm, key_norm=key_norm,
            frequencies=frequencies, rope_scale=scale, rotate=step.kind is not StepKind.KV_STORE,
            store=step.kind is not StepKind.ROPE, cross=step.cross_attention,
        )  # fmt: skip

    return launch


def _bind_attention(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    bias = weights.distance_bias(step.distance_bias)
    max_distance = 0 if step.distance_bias is None else step.distance_bias.max_distance

    def launch(run: DevicePass) -> None:
        prompt_pass = prompt and run.prompt
        run.kernels.attention(
            run.tensors, run.buffers[step.input], run.source_pool if step.cross_attention else run.pool,
            run.buffers[step.output], layer=step.layer, heads=step.heads, kv_heads=step.kv_heads, head_size=step.head_size,
            scale=step.scale, causal=step.causal, window=step.window, distance_bias=bias, max_distance=max_distance,
            cross=step.cross_attention, max_keys=run.max_source if step.cross_attention else run.max_keys,
            rows=_rows(run, step.scope)[0], prompt=prompt_pass,
            max_tokens=run.max_tokens if prompt_pass else 0,
        )  # fmt: skip

    return launch


def _bind_attention_pattern(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    bias = weights.distance_bias(step.distance_bias)
    max_distance = 0 if step.distance_bias is None else step.distance_bias.max_distance

    def launch(run: DevicePass) -> None:
        run.kernels.attention_pattern(
            run.tensors, run.buffers[step.input], run.source_pool if step.cross_attention else run.pool,
            run.buffers[step.output], layer=step.layer, heads=step.heads, kv_heads=step.kv_heads, head_size=step.head_size,
            scale=step.scale, causal=step.causal, window=step.window, distance_bias=bias, max_distance=max_distance,
            cross=step.cross_attention, keys=run.pattern_keys,
        )  # fmt: skip

    return launch


def _bind_weighted_values(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    def launch(run: DevicePass) -> None:
        run.kernels.weighted_values(
            run.tensors, run.buffers[step.second_input], run.source_pool if step.cross_attention else run.pool,
            run.buffers[step.output], layer=step.layer, heads=step.heads, kv_heads=step.kv_heads, head_size=step.head_size,
            keys=run.pattern_keys, cross=step.cross_attention,
        )  # fmt: skip

    return launch


def _bind_add(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    def launch(run: DevicePass) -> None:
        first, second = run.buffers[step.input], run.buffers[step.second_input]
        run.kernels.add(first, second, run.buffers[step.output], rows=_rows(run, step.scope)[0])

    return launch


def _bind_activate(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    activation = step.activation.name.lower()

    def launch(run: DevicePass) -> None:
        rows = _rows(run, step.scope)[0]
        run.kernels.activate(run.buffers[step.input], activation, run.buffers[step.output], rows=rows)

    return launch


def _bind_copy(step: Step, weights: DeviceWeights, prompt: bool) -> Launch:
    def launch(run: DevicePass) -> None:
        run.kernels.copy(run.buffers[step.input], run.buffers[step.output], rows=_rows(run, step.scope)[0])

    return launch


BINDERS: dict[StepKind, Callable[[Step, DeviceWeights, bool], Launch]] = {
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
}
