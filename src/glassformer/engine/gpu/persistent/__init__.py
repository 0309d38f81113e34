"""Decoding at batch 1 with one persistent kernel: weights as a stream, activations as tagged words (see kernel.cu)."""
