"""Tasks under the names that scripts have for them: `TextGenerationPipeline`, `FillMaskPipeline`, ….

A call makes the task as `pipeline` does; `isinstance` asks for the task's class.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from glassformer.tasks.registry import TASKS, pipeline
from glassformer.tasks.task import Task


class NamedPipeline(type):
    """The class of such names."""

    task: str

    def __call__(cls, model: Any = None, tokenizer: Any = None, **options: Any) -> Task:
        return pipeline(cls.task, model, tokenizer, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TASKS[cls.task])


@cache
def find_pipeline(name: str) -> NamedPipeline | None:
    """`TextGenerationPipeline` and the like, or None for a name that no task has."""
    for task in TASKS:
        if name == "".join(word.capitalize() for word in task.split("-")) + "Pipeline":
            return NamedPipeline(name, (), {"task": task, "__doc__": f"The task {task!r}."})
    return None
