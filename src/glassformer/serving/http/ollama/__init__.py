"""Ollama's API, as far as its clients need it."""

from glassformer.serving.http.ollama import generation, management, models
from glassformer.serving.http.ollama.errors import error_body, error_line

ROUTERS = (generation.router, models.router, management.router)

__all__ = ["ROUTERS", "error_body", "error_line"]
