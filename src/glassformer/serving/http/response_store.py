"""Answers that are kept, so that a request can go on from one: in memory, the oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from glassformer.serving.http.errors import HttpError, to_json
from glassformer.serving.limits import Limits


@dataclass(frozen=True)
class StoredResponse:
    body: dict[str, Any]  # as it was answered
    items: list[dict[str, Any]]  # of its input
    messages: list[dict[str, Any]]  # the conversation up to its end, without the instructions


class ResponseStore:
    """To be called on the event loop. Who knows an id, which nobody can guess, may read the response."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._responses: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()  # each with its bytes
        self._bytes = 0

    def add(self, response: StoredResponse) -> None:
        size = len(to_json([response.body, response.items, response.messages]))
        self._responses[response.body["id"]] = response, size
        self._bytes += size
        while len(self._responses) > self._limits.stored_responses or self._bytes > self._limits.stored_bytes:
            self._bytes -= self._responses.popitem(last=False)[1][1]

    def get(self, response_id: str) -> StoredResponse:
        if response_id not in self._responses:
            raise HttpError(
                404, f"there is no response {response_id!r} here: it was not stored, or is the oldest and forgotten.",
                code="not_found", param="previous_response_id",
            )  # fmt: skip
        return self._responses[response_id][0]

    def delete(self, response_id: str) -> None:
        self.get(response_id)
        self._bytes -= self._responses.pop(response_id)[1]
