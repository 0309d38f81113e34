"""The kernels of the GPU engine, in Triton, and the functions that launch them.

A launcher writes into tensors that it is given, never synchronises, and allocates only what a CUDA graph can replay. Buffers
are (tokens, width) in float32 with contiguous rows; products are computed in the dtype of their weights and summed in
float32.

A token's results do not depend on the other tokens of a pass, bit for bit: every sum runs in an order that is fixed by the
shapes of the model, and where tiles differ with the number of tokens, what they sum does not. Step passes and prompt passes
(`prompt=True`: large tiles) may differ from each other in rounding.

`rows` arguments are int32 tensors of token numbers: `input_rows` says which rows of the input are read, `output_rows` where
their results are written; None: all, in order. A step for scored tokens only has both; gathered scores have `input_rows`
only.
"""

from glassformer.engine.gpu.kernels.attention import attention, attention_pattern, weighted_values
from glassformer.engine.gpu.kernels.candidates import top_scores
from glassformer.engine.gpu.kernels.choosing import advance, choose, choose_best
from glassformer.engine.gpu.kernels.elementwise import activate, add, copy, embed, gate, norm
from glassformer.engine.gpu.kernels.matmul import matmul
from glassformer.engine.gpu.kernels.recurrence import (
    causal_conv,
    decay,
    recur,
    recur_pattern,
    recur_values,
    time_step,
)  # fmt: skip
from glassformer.engine.gpu.kernels.rope import rope_kv_store

__all__ = [
    "activate",
    "add",
    "advance",
    "attention",
    "attention_pattern",
    "causal_conv",
    "choose",
    "choose_best",
    "copy",
    "decay",
    "embed",
    "gate",
    "matmul",
    "norm",
    "recur",
    "recur_pattern",
    "recur_values",
    "rope_kv_store",
    "time_step",
    "top_scores",
    "weighted_values",
]
