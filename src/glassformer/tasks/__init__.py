"""From a text to an answer: each task is the work before and after a model with the right head.

    pipeline("embed")(["How old are you?", "What is your age?"])      # vectors
    pipeline("fill-mask", "bert-base-uncased")("Paris is the [MASK] of France.")

A task encodes its inputs, runs the model over batches of similar length, and turns scores into plain data. Results have
the names and shapes of the pipelines in `transformers`.
"""

from __future__ import annotations

from glassformer.tasks.registry import TASKS, pipeline
from glassformer.tasks.task import Task

__all__ = ["TASKS", "Task", "pipeline"]
