"""A blueprint to a program: which ops are fused, in which buffer each result lies, and where sites are.

Ops are fused where nobody watches in between: norm and matmuls of one input; head norms, RoPE and the store to the KV cache;
a matmul and the activation, gate or sum that follows it. A site that is read or changed is simply not fused away, so that
every site can be had from an engine itself, and the numbers stay the same bit for bit.

Results lie in buffers, (tokens, width) each, which are reused when nothing needs them any more; those of watched sites are
not. A program is made once for each set of sites, and kept. It is for every engine: needs neither torch nor ctypes.
"""

from glassformer.engine.lowering.lowering import Lowering
from glassformer.engine.lowering.weight_refs import required_matrices

__all__ = ["Lowering", "required_matrices"]
