"""What a server allows: one place for every limit on requests, connections and models."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from glassformer.decoding.prompt_lookup import LONGEST_DRAFT
from glassformer.ground.errors import SettingError
from glassformer.serving.scheduler import SchedulerLimits

ZERO_ALLOWED = ("top_logprobs", "queued", "drafted_tokens", "stop_seconds")


@dataclass(frozen=True)
class Limits:
    """Each is a bound on what one client can take from the others."""

    # Of one request
    new_tokens: int = 4096  # of one text; a request that asks for more gets this many
    texts: int = 16  # n, for one prompt
    prompts: int = 64  # of one request for completions
    inputs: int = 2048  # texts of one request for embeddings or ranking
    messages: int = 4096  # of a conversation
    tools: int = 128  # that an answer may call
    top_logprobs: int = 20  # also of candidates in the field `glass`
    sites: int = 16  # read for each token, patterns expanded
    stop_strings: int = 16
    words: int = 4096  # texts or sequences in a setting such as bad_words
    parameter_values: int = 2**28  # of a model's weights that are read for one histogram
    body_bytes: int = 8 * 2**20
    json_values: int = 2**17  # in its body, lists and objects among them; texts may be long
    seconds: float = 600.0  # from its last byte to the answer's, waiting included

    # Of all requests
    running: int = 64  # texts written at once, for each model
    queued: int = 256  # requests that wait for it
    prompt_chunk: int | None = None  # tokens of prompts read in one pass, so that a long one does not stall the others
    cached_tokens: int | None = None  # in each model's KV cache, of running texts and kept prefixes
    drafted_tokens: int = LONGEST_DRAFT  # of a text in one pass, where that pays; 0: none

    # Of what is kept for clients until the server stops
    stored_bytes: int = 256 * 2**20  # of files and batches' answers on disk, and as many of responses in memory
    stored_responses: int = 1000
    batches: int = 16  # that have not ended

    # Of connections
    connections: int = 2048
    connections_per_address: int = 512  # but for those of a trusted proxy
    header_bytes: int = 32 * 2**10
    header_seconds: float = 10.0  # for a request's headers to arrive, and how long a connection may stay idle
    body_seconds: float = 30.0  # and for its body

    # Of models
    loaded_models: int = 4
    idle_seconds: float = 900.0  # after which a model that nobody uses is unloaded

    stop_seconds: float = 30.0  # how long running texts may go on when the server stops

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ZERO_ALLOWED else 1
            whole = str(field.type).startswith("int")
            if value is None and str(field.type).endswith("None"):
                continue
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise SettingError(f"the limit {field.name} is {value!r}; it must be a {'whole ' if whole else ''}number.")
            if not least <= value or math.isnan(value):
                raise SettingError(f"the limit {field.name} is {value!r}; it must be at least {least}.")

    @property
    def scheduler(self) -> SchedulerLimits:
        """Those of each model's scheduler."""
        return SchedulerLimits(self.running, self.queued, self.prompt_chunk, self.cached_tokens, self.drafted_tokens)
