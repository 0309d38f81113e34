"""The familiar face: the classes and calls of `transformers`, and the course's own model, over the same families."""
