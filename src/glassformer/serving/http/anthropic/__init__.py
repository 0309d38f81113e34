"""Anthropic's Messages API."""

from glassformer.serving.http.anthropic import messages
from glassformer.serving.http.anthropic.errors import error_body, error_event

ROUTERS = (messages.router,)

__all__ = ["ROUTERS", "error_body", "error_event"]
