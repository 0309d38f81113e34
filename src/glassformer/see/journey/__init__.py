"""The journey of a prompt: text, ids, shapes, logits, token, each with the Python that gives it."""
