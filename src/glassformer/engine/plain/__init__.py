"""The plain executor: the families' own PyTorch over ragged rows."""
