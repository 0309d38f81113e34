"""Ollama's error bodies."""

from __future__ import annotations

from typing import Any

from glassformer.serving.http.errors import Problem, to_json


def error_body(problem: Problem) -> dict[str, Any]:
    return {"error": problem.message}


def error_line(problem: Problem) -> bytes:
    """The last line of a stream that failed."""
    return to_json(error_body(problem)) + b"\n"
