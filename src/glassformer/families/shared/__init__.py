"""What families share: the base model, the three shapes of transformers, the heads, and what a model gives back."""
