"""The API of `transformers` (Auto classes, `from_pretrained`, `generate`), and the course's own model."""
