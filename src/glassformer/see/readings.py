"""Many texts that a model reads: what is kept of them on disk, and what they have in common.

Nothing is read beforehand: each call is one pass over all texts, several of them at a time (`text_batches.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.operations import about, described, operation
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import OWN_CHECK, brief
from glassformer.see.activation_files import write_activations
from glassformer.see.activation_statistics import TextStatistics, text_statistics
from glassformer.see.lens import TunedLens
from glassformer.see.probes import Pooling, TrainedProbes, train_probes
from glassformer.see.protocols import ModelLike
from glassformer.see.recorded_activations import Kept, RecordedActivations, StoredDtype

LengthArgument = Annotated[
    int | None,
    about("Tokens of a text that are read, at most.", minimum=1, served=int, served_maximum=256, served_default=256),
]
OR_STREAM = "Where: names or patterns; by default the residual stream after each block."


@checked_class
@dataclass(frozen=True, repr=False)
class Readings:
    """Many texts that a model reads, as they are, each from its beginning."""

    model: ModelLike
    texts: Annotated[Iterable[str], OWN_CHECK]  # read once by each call, so a list, or whatever can be read again
    length: int | None = None  # tokens of a text, at most; None: as many as the context has

    def __post_init__(self) -> None:
        if isinstance(self.texts, (str, bytes)) or not isinstance(self.texts, Iterable):
            raise InputTypeError(f"texts is {brief(self.texts)}; it must be a list of strings, or another iterable of them.")
        if self.length is not None and self.length < 1:
            raise InputError(f"length is {self.length}; a text has at least one token.")

    def __repr__(self) -> str:
        count = f"{len(self.texts):,} texts" if isinstance(self.texts, Sized) else "texts"
        return f"Readings({self.model.name}, {count})"

    @described
    def record(
        self,
        *sites: str,
        folder: str | os.PathLike[str],
        dtype: Annotated[StoredDtype, about("float32, or float16 for half of the room.", "--stored-dtype")] = "float32",
        positions: Annotated[Kept, about("All, or of each text the last token alone.")] = "all",
        resume: Annotated[
            bool, about("Go on after the last whole shard of a recording that was stopped, with the same model and texts.")
        ] = False,
        progress: Progress | None = None,
    ) -> RecordedActivations:
        """Write what every token has at some sites, such as 'blocks.*.residual', to a folder of safetensors shards.

        Returns what reads them. The folder is made if it is not there.
        """
        target = Path(folder).expanduser()
        write_activations(
            self.model, self.texts, sites, target, length=self.length, dtype=dtype, positions=positions, resume=resume,
            progress=progress,
        )  # fmt: skip
        return RecordedActivations(target)

    @operation(owner="model.read_many")
    @described
    def statistics(
        self,
        *sites: Annotated[str, about("Where: names or patterns, such as blocks.*.residual.", served="sites", typed=False)],
        examples: Annotated[int, about("Strongest examples of a neuron.", minimum=1, maximum=100, served_maximum=20)] = 5,
        covariance: Annotated[
            bool, about("Accumulate whole covariance matrices, not variances alone.", served=False)
        ] = False,
        progress: Progress | None = None,
    ) -> TextStatistics:
        """Means, deviations and each neuron's strongest examples at some sites, in one pass; nothing else is kept."""
        return text_statistics(
            self.model, self.texts, sites, length=self.length, examples=examples, covariance=covariance, progress=progress
        )

    @operation(owner="model.read_many")
    @described
    def probe(
        self,
        labels: Annotated[Sequence[str], OWN_CHECK, about("One for each text.", served="labels", typed=False)],
        *sites: Annotated[str, about(OR_STREAM, served="optional sites", served_default=(), typed=False)],
        position: Annotated[Pooling, about("A text's vector: its last token's, or the mean of all.")] = "last",
        held_out: Annotated[float, about("The share of the texts that is measured on.", served=False)] = 0.25,
        penalty: Annotated[float, about("On the squares of the weights.", served=False)] = 1.0,
        seed: Annotated[int, about("Which texts are held out, and the control's labels.", minimum=0, served=False)] = 0,
        progress: Progress | None = None,
    ) -> TrainedProbes:
        """A linear probe at each of some sites, trained on the texts' labels, one for each, and measured on held-out ones.

        Without sites: the residual stream after each block, which for an encoder-decoder is its encoder's.
        """
        default = "encoder.blocks.*.residual" if self.model.decoder_start_token is not None else "blocks.*.residual"
        return train_probes(
            self.model, self.texts, labels, sites or (default,), length=self.length, position=position,
            held_out=held_out, penalty=penalty, seed=seed, progress=progress,
        )  # fmt: skip

    @described
    def train_lens(
        self,
        *,
        steps: Annotated[int, about("More of them lower the divergence further.", minimum=0, maximum=100_000)] = 150,
        seed: Annotated[int, about("Of which tokens each step sees.", minimum=0)] = 0,
        rank: Annotated[
            int | None,
            about("The rank of each layer's map, by default the full one: a low one is a smaller file.", minimum=1),
        ] = None,
        tokens: Annotated[int | None, about("Tokens that are read, at most; by default 10,000.", minimum=1)] = None,
        progress: Progress | None = None,
    ) -> TunedLens:
        """A tuned lens of the model, trained on these texts: pass it to `reading.lens(tuned=…)`, or save it."""
        from glassformer.see.fit_lens import TOKENS, train_lens

        return train_lens(
            self.model, self.texts, length=self.length, steps=steps, seed=seed, rank=rank,
            tokens=TOKENS if tokens is None else tokens, progress=progress,
        )  # fmt: skip


@operation()
def read_many(
    model: ModelLike,
    texts: Annotated[Iterable[str], OWN_CHECK, about("The texts, each as it is.", served="texts")],
    *,
    length: LengthArgument = None,
) -> Readings:
    """Many texts under the glass, each as it is: their activations on disk, statistics, probes and a tuned lens."""
    return Readings(model, texts, length)
