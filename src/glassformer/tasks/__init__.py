"""From a text to an answer: each task is what stands before and behind a model with the right head.

    pipeline("embed")(["How old are you?", "What is your age?"])      # vectors
    pipeline("fill-mask", "bert-base-uncased")("Paris is the [MASK] of France.")

A task encodes what it is given, runs the model over batches of like length, and turns scores into plain data. The
results have the names and shapes that the field's own pipelines give them.
"""

from __future__ import annotations

from glassformer.tasks.choosing import TASKS, pipeline
from glassformer.tasks.task import Task

__all__ = ["TASKS", "Task", "pipeline"]
