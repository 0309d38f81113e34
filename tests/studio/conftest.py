"""The studio's tests ask the same tiny models as the server's."""

from __future__ import annotations

from tests.serving.conftest import sources, tiny_encoder

__all__ = ["sources", "tiny_encoder"]
