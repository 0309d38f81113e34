"""Anthropic's Messages API."""

from glassformer.serving.http.anthropic import batches, messages
from glassformer.serving.http.anthropic.errors import error_body, error_event

ROUTERS = (messages.router, batches.router)

__all__ = ["ROUTERS", "error_body", "error_event"]
