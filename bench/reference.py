"""Another library's run of the same checkpoint: `transformers`, where it is installed, over the same tokens.

It gives scores and hidden states, which are the sites `embedding`, `blocks.N.residual` and `final` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import Any

from glassformer.errors import InputError
from glassformer.observe.activations import Activations, Chunk
from glassformer.observe.protocols import ModelLike
from glassformer.progress import Progress

NEEDED = "to compare with transformers, it must be installed: pip install transformers."


@dataclass
class Foreign:
    """A checkpoint, as `transformers` loads it; in float32, so that what differs is not its rounding."""

    model: ModelLike

    @cached_property
    def module(self) -> Any:
        try:
            import transformers
        except ImportError as error:
            raise InputError(NEEDED) from error
        path = getattr(self.model.opened, "path", None)
        if self.model.head != "causal" or path is None:
            raise InputError(f"{self.model.name} cannot be compared with transformers: it must be a decoder, from a file.")
        library: Any = transformers
        library.utils.logging.set_verbosity_error()
        how: dict[str, Any] = {"dtype": "float32", "attn_implementation": "eager", "trust_remote_code": False}
        if path.suffix == ".gguf":
            path, how["gguf_file"] = path.parent, path.name
        with redirect_stderr(StringIO()):  # its bars have no other switch
            return library.AutoModelForCausalLM.from_pretrained(path, local_files_only=True, **how).eval()

    def over(self, ids: Sequence[int]) -> Activations:
        return ForeignActivations(self.model, tuple(ids), None, len(ids), self)


@dataclass(frozen=True)
class ForeignActivations(Activations):
    foreign: Foreign | None = None

    def chunks(
        self, *patterns: str, scored: bool = False, size: int | None = None, progress: Progress | None = None
    ) -> Iterator[Chunk]:
        """One pass over the whole text, cut as the other side is."""
        import torch

        assert self.foreign is not None
        with torch.inference_mode():
            found = self.foreign.module(torch.tensor([list(self.ids)]), output_hidden_states=bool(patterns))
        states = [state[0].float().numpy() for state in found.hidden_states] if patterns else []
        names = ["embedding", *(f"blocks.{number}.residual" for number in range(len(states) - 2)), "final"]
        seen = dict(zip(names, states, strict=True)) if states else {}
        step = size or len(self.ids)
        for start in range(0, len(self.ids), step):
            own = slice(start, start + step)
            scores = found.logits[0, own].float().numpy() if scored else None
            count = len(self.ids[own])
            yield Chunk(start, count, scores, {site: seen[site][own] for site in self.sites(*patterns)})
