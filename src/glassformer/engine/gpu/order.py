"""The order in which the GPU engine's kernels add up, as data that they are compiled with.

Tensor cores give the same bits by every way to them (mma.sync, wgmma, Triton's dot with any tile, tokens or rows as either
operand), as long as columns are walked in order, sixteen at a time, into one float32 accumulator; within sixteen their order
does not matter. So what has to be fixed is where accumulators begin and how they are joined:

- A product is a sum over segments of `SEGMENT` columns, the last of which may be shorter. Each segment is one chain from
  zero; segments are added in order, in float32. Inputs are rounded to the weights' type once. Where an RMS norm stands
  before, the inputs are the stream's numbers times the norm's weights, and the product is multiplied with the norm's factor.
- The squares of a norm are added in a binary tree: four neighbours, then the eight sixteens of a segment, then the four
  fours of a sixteen, then the segments. Those of a head: the two numbers that RoPE turns, then neighbours.
- Attention goes by blocks of `KEY_BLOCK` keys: their scores are chains over a head's numbers; the weights are relative to
  the block's own maximum, and rounded to the cache's type; their sum is a chain over the keys with ones, the values one with
  the values. The blocks of a chunk of `KEY_CHUNK` keys are merged in order, and then the chunks: each side is multiplied
  with two to the power of its maximum less the greater one, and both are added.

No multiplication is contracted with an addition. `persistent/decode.cu` follows this order; the other kernels are to.
"""

from __future__ import annotations

SEGMENT = 128  # columns of one chain: one of eight warps has them of a row of 2 KB; a prompt's tiles pay 3 to 7 % for it
KEY_BLOCK = 64  # keys: a page
KEY_CHUNK = 256
