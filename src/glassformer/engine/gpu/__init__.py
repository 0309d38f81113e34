"""The GPU engine: a blueprint's fused steps as Triton kernels over a paged KV cache on the device."""
