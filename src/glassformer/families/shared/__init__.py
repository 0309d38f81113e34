"""What families share: the base model, the three shapes of transformers, heads and outputs."""
