"""The short API: `load`, and a `Model` with all that can be seen of it.

Views are imported when they are asked for, so that an answer does not wait for them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.stored_tensors import ComputedFile
from glassformer.engine.protocol import Executor
from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.errors import InputError, check_context, spell
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import NamedProgress, Progress
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.model_files import (
    AdapterNames,
    ModelFiles,
    adapter_weights,
    check_adapter_mode,
    open_base,
    with_adapters,
)
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.runtime.loaded_model import LoadedModel
from glassformer.runtime.prompt import Prompt, PromptKeywords, PromptOptions, is_token_ids
from glassformer.runtime.run import Run

if TYPE_CHECKING:
    from glassformer.features.dictionary import FeatureDictionary
    from glassformer.observe.circuits import Circuits
    from glassformer.observe.feature_training import FeatureKind
    from glassformer.observe.patching import Metric
    from glassformer.observe.probes import TrainedProbes
    from glassformer.observe.reading import Reading
    from glassformer.observe.readings import Readings
    from glassformer.observe.recorded_activations import RecordedActivations
    from glassformer.observe.tuned_lens import TunedLens
    from glassformer.views.batch import Batch
    from glassformer.views.feature_training import FeatureTraining
    from glassformer.views.journey import Journey
    from glassformer.views.parameters import Parameters
    from glassformer.views.patching import AttributionPatching, MetricName, PairPatching, PatchedPart, Patching, PathPatching
    from glassformer.views.site_names import SiteNames
    from glassformer.views.steering import MadeSteeringVector
    from glassformer.views.sweep import Strategies
    from glassformer.views.tokens import TokenizedText
    from glassformer.views.tree import Tree
    from glassformer.views.vocabulary import VocabularySizes

Floats: TypeAlias = npt.NDArray[np.float32]
PreparedRun: TypeAlias = Annotated[Run, "a run of prepare(…), and a text goes to chat(…)"]
note = logging.getLogger("glassformer").warning


@checked
def load(
    name: str | os.PathLike[str] = "smollm2",
    *,
    executor: str = "auto",
    dtype: Annotated[str | None, OWN_CHECK] = None,
    weights: str | None = None,
    cache: str | None = None,
    activations: str | None = None,
    batch_invariant: bool = True,
    tensor_parallel: int = 1,
    adapter: Annotated[AdapterNames | None, OWN_CHECK] = None,
    adapter_mode: str = "merged",
    progress: NamedProgress | None = None,
) -> Model:
    """A model by path, hub id or catalogue name, ready to chat.

    Args:
        name: 'smollm2', 'Qwen/Qwen3-0.6B', './folder', './file.gguf'.
        executor: how it runs: 'gpu' is Triton on an NVIDIA GPU, 'cpu' native code, 'plain' PyTorch; 'auto' takes the best
            that this machine has.
        dtype: 'float32', 'bfloat16', …, which PyTorch computes in; by default as stored.
        weights: quantizes the weights of a folder: 'q8_0', 'q4_1', 'q4_k', …; once, and then from the cache.
        cache: the format of an engine's KV cache: 'f32', 'f16', 'bf16', or 'q8' on the CPU; by default as fits the weights.
        activations: what the CPU engine rounds inputs of quantized matrices to: 'q14', or faster, 'mixed' or 'q8'.
        batch_invariant: whether what a text gets must not depend, bit for bit, on what runs beside it; False lets the GPU
            engine decode a single text faster, with a kernel that sums in another order.
        tensor_parallel: among how many processes PyTorch splits the model, on one machine: each has its part of every large
            matrix, on a GPU of its own if there are as many.
        adapter: a LoRA on top of the model: a folder of peft or a .gguf file; or several, in a list, or in a mapping with a
            weight for each. The folder of an adapter is also a name: it opens on its own base.
        adapter_mode: 'merged' into the weights, in float32; or 'beside' them, as products of their own: weights stay as they
            are stored, packed ones too, and each step costs a little more.
        progress: called as (what, bytes so far, total bytes) while something is fetched or quantized.
    """
    dtype = dtype if dtype is None else str(dtype).removeprefix("torch.")  # torch.bfloat16 works too
    options = ExecutorOptions(executor, dtype, cache, activations, batch_invariant, tensor_parallel)
    opened = _open(name, weights, adapter, adapter_mode, progress)
    _ = opened.config, opened.tensors  # a broken checkpoint raises now, not at the first token
    return Model(opened, Executors(opened, options))


def _open(
    name: str | os.PathLike[str], weights: str | None, adapter: AdapterNames | None, adapter_mode: str,
    progress: NamedProgress | None,
) -> ModelFiles:  # fmt: skip
    """A model with its adapters; it is quantized after they are merged, but before they stand beside it."""
    check_adapter_mode(adapter_mode)
    opened, own = open_base(name, progress=progress)
    if weights is None and (method := opened.packed_by) is not None:
        expanded = [
            tensor for tensor in opened.tensors.values() if isinstance(tensor.file, ComputedFile) and not tensor.packed
        ]
        if expanded:
            size = sum(tensor.size for tensor in expanded) / 1e6
            note(
                f"{opened.name}: {len(expanded)} of its matrices are packed by {method}, and become F32: {size:,.1f} MB. "
                f"{spell('weights', 'q8_0')} packs them again."
            )
    names = {**({} if own is None else {own: 1.0}), **dict(() if adapter is None else adapter_weights(adapter))}
    apply = partial(with_adapters, adapter=names, mode=adapter_mode, progress=progress)
    steps: list[Callable[[ModelFiles], ModelFiles]] = [apply] if names else []
    if weights is not None:
        from glassformer.quantize import requantized

        steps.insert(0 if adapter_mode == "beside" else len(steps), partial(requantized, kind=weights, progress=progress))
    for step in steps:
        opened = step(opened)
    return opened


@checked_class
class Model(LoadedModel):
    """A loaded model: tokenizer, executor, settings, and every view of it. `load` returns one."""

    def read(self, prompt: Prompt, target: str | None = None, **prompt_options: Unpack[PromptKeywords]) -> Reading:
        """A text under the glass, for its trace, attention, lens and more; `target`: an encoder-decoder's output text."""
        from glassformer.observe.reading import Reading

        _, ids = self._encode(prompt, PromptOptions.of(prompt_options, self.read))
        check_context(len(ids), self.config.context)
        if self.start is None:
            if target is not None:
                raise InputError(f"{self.name} is no encoder-decoder, so it has no target. Put both into one text.")
            return Reading(self, ids, None, len(ids))
        after = () if target is None else tuple(self.tokenizer(text_target=target)["input_ids"])
        return Reading(self, (self.start, *after), ids, 1 + len(after))

    def read_ids(self, prompt_ids: Sequence[int], answer_ids: Sequence[int] = ()) -> Reading:
        """A prompt and an answer under the glass, exactly as their ids say: what a run read and wrote."""
        from glassformer.observe.reading import Reading

        if not prompt_ids:
            raise InputError("the prompt has no tokens. Say something.")
        for number in (*prompt_ids, *answer_ids):
            if not 0 <= number < self.config.vocab_size:
                raise InputError(f"{number} is no token id; {self.name} has {self.config.vocab_size}.")
        if self.start is None:
            check_context(len(prompt_ids) + len(answer_ids), self.config.context)
            return Reading(self, (*prompt_ids, *answer_ids), None, len(prompt_ids))
        check_context(len(prompt_ids), self.config.context)
        return Reading(self, (self.start, *answer_ids), tuple(prompt_ids), 1)

    def read_many(self, texts: Annotated[Iterable[str], OWN_CHECK], *, length: int | None = None) -> Readings:
        """Many texts under the glass, each as it is: their activations on disk, statistics, probes and a tuned lens.

        `length`: tokens of a text, at most; the rest of a longer one is not read.
        """
        from glassformer.observe.readings import Readings

        return Readings(self, texts, length)

    def load_lens(self, path: str | os.PathLike[str]) -> TunedLens:
        """A tuned lens of this model that was saved; on a server, by its name in the operator's folder."""
        from glassformer.observe.tuned_lens import load_tuned_lens

        if self.library is None:
            return load_tuned_lens(path, self)
        return self.library.tuned_lens(os.fspath(path), lambda file: load_tuned_lens(file, self))

    def load_probes(self, path: str | os.PathLike[str]) -> TrainedProbes:
        """Linear probes of this model that were saved."""
        from glassformer.observe.probes import load_probes

        return load_probes(path, self)

    @operation(route="look")
    def look(
        self,
        prompt: Prompt,
        *,
        pair: Annotated[
            str | None, about("A second text, for a model that reads pairs, such as question and passage.")
        ] = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> Journey:
        """Show how a text becomes the next token: prompt, ids, every shape, logits, the choice, and the cost."""
        from glassformer.observe.journey import journey
        from glassformer.observe.prompt_warnings import prompt_texts

        options = PromptOptions.of(prompt_options, self.look)
        if pair is not None:
            if options != PromptOptions():
                raise InputError("two texts are read as they are: raw, system and template are for one. Leave them out.")
            return journey(self, *self._encode_pair(prompt, pair), pair, [str(prompt), pair])
        text, ids = self._encode(prompt, options)
        if is_token_ids(prompt):
            return journey(self, text, ids)
        texts = prompt_texts(cast(str | Sequence[Mapping[str, Any]], prompt))
        return journey(self, text, ids, None, [*([] if options.system is None else [options.system]), *texts])

    @operation(route="tree")
    def tree(
        self,
        prompt: Prompt,
        *,
        width: Annotated[int, about("How many tokens follow each token.", served_minimum=1)] = 3,
        depth: Annotated[int, about("How many tokens a path has.", served_minimum=1)] = 3,
        at: Annotated[Sequence[int] | None, about("A node, by child numbers, to grow further.", served=False)] = None,
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> Tree:
        """Show what could follow a text: the likeliest tokens, what could follow each, and how likely each path is.

        `at`: a node, by child numbers, to grow by as many levels again. `progress`: called as (nodes so far, total).
        """
        from glassformer.observe.tree import grow_tree

        self._check_writes()
        options = PromptOptions.of(prompt_options, self.tree)
        tree = grow_tree(self, *self._encode(prompt, options), width, depth, progress)
        return tree if at is None else tree.grown(at, progress=progress)

    def patch(
        self,
        first: Prompt,
        second: Prompt,
        part: PatchedPart = "residual",
        positions: Sequence[int | str] | int | None = None,
        *,
        answer: int | str | None = None,
        against: int | str | None = None,
        target: str | None = None,
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> Patching:
        """Activation patching: which of the first text's activations restore its answer in the second, place by place.

        Both texts have as many tokens.

        Args:
            part: what is patched: 'residual', 'attention', 'mlp'; by head: 'heads', 'query', 'key', 'value', 'pattern'.
            positions: where, by number or token; by default everywhere it could matter.
            answer: the token to restore; by default the first text's best.
            against: the token it is compared with; by default the second text's best.
            target: an encoder-decoder's output so far.
            progress: called as (places so far, total).
        """
        from glassformer.observe.patching import patching

        PromptOptions.of(prompt_options, self.patch)
        source, target_text = (self.read(text, target, **prompt_options) for text in (first, second))
        return patching(source, target_text, part, positions, answer=answer, against=against, progress=progress)

    def attribution_patch(
        self,
        first: Prompt,
        second: Prompt,
        part: PatchedPart = "residual",
        positions: Sequence[int | str] | int | None = None,
        *,
        answer: int | str | None = None,
        against: int | str | None = None,
        target: str | None = None,
        check: bool = False,
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> AttributionPatching:
        """What `patch` would give, estimated for all places at once by one backward pass; arguments as there.

        `check`: patch too, and say how far off the estimate is.
        """
        from glassformer.observe.attribution_patching import attribution_patching

        PromptOptions.of(prompt_options, self.attribution_patch)
        source, target_text = (self.read(text, target, **prompt_options) for text in (first, second))
        return attribution_patching(
            source, target_text, part, positions, answer=answer, against=against, check=check, progress=progress
        )

    def patch_pairs(
        self,
        pairs: Sequence[Sequence[Any] | Mapping[str, Any]],
        part: PatchedPart = "heads",
        positions: Sequence[int | str] | int | None = None,
        *,
        metric: MetricName | Metric = "recovered",
        target: str | None = None,
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> PairPatching:
        """Activation patching over many pairs of texts: what each place restores on average, with its spread.

        Tokens are aligned where a pair's texts have different numbers of them.

        Args:
            pairs: (first, second) or (first, second, answer, against) each, or mappings with these names.
            part, positions: as for `patch`; the default is 'heads'.
            metric: 'recovered', 'logit_difference', 'probability' (of the answer) or 'kl' (from the first text's
                distribution); or a function of the patched scores and a `ScoredPair`, which returns a number.
            target: an encoder-decoder's output so far.
            progress: called as (places so far, total).
        """
        from glassformer.observe.patching import pair_named, parse_pairs, patching_pairs

        PromptOptions.of(prompt_options, self.patch_pairs)
        readings = []
        for number, pair in enumerate(parse_pairs(pairs), 1):
            with pair_named(number):
                first, second = (self.read(text, target, **prompt_options) for text in (pair.first, pair.second))
            readings.append((first, second, pair.answer, pair.against))
        return patching_pairs(readings, part, positions, metric=metric, progress=progress)

    def patch_path(
        self,
        first: Prompt,
        second: Prompt,
        sender: str = "blocks.*.attention.heads",
        receivers: str | Sequence[str] = "final",
        positions: Sequence[int | str] | int | None = None,
        *,
        answer: int | str | None = None,
        against: int | str | None = None,
        freeze_mlps: bool = False,
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> PathPatching:
        """Path patching: how much of the first text's answer goes from each sender to the receivers, past all other heads.

        Args:
            sender: a site, perhaps with a head's number ('blocks.5.attention.heads.1'), or a pattern; each head by itself.
            receivers: 'final', or what some heads or MLPs read, such as 'blocks.9.attention.query.6'.
            positions: where the sender is patched, by number or token; by default everywhere it could matter.
            answer, against: as for `patch`.
            freeze_mlps: whether MLPs on the way keep their values too.
            progress: called as (passes so far, total).
        """
        from glassformer.observe.path_patching import path_patching

        PromptOptions.of(prompt_options, self.patch_path)
        source, target_text = (self.read(text, **prompt_options) for text in (first, second))
        ends = [receivers] if isinstance(receivers, str) else receivers
        tokens = {"answer": answer, "against": against}
        return path_patching(
            source, target_text, sender, ends, positions, **tokens, freeze_mlps=freeze_mlps, progress=progress
        )

    def steering(
        self,
        pairs: Annotated[Sequence[tuple[Prompt, Prompt]], OWN_CHECK],
        site: str,
        *,
        tokens: Literal["last", "all"] = "last",
        method: Literal["mean", "pca"] = "mean",
        progress: Progress | None = None,
        **prompt_options: Unpack[PromptKeywords],
    ) -> MadeSteeringVector:
        """A steering vector from pairs of texts, of which the first has what the second lacks; `.save` writes it.

        Args:
            site: where it is read and will be added: `blocks.12.residual`, or a pattern for several.
            tokens: what is read of each text: its last token, or the mean of all.
            method: the mean of the pairs' differences, or their first principal component, of the same length.
            progress: called as (pairs so far, total).
        """
        from glassformer.observe.steering import make_steering_vector

        PromptOptions.of(prompt_options, self.steering)
        return make_steering_vector(
            self,
            pairs,
            site,
            lambda text: self.read(text, **prompt_options),
            tokens=tokens,
            method=method,
            progress=progress,
        )

    def dictionary(
        self, name: str | os.PathLike[str], site: str | None = None, site_out: str | None = None
    ) -> FeatureDictionary:
        """A sparse autoencoder or a transcoder, by name or path, for `read(…).features`, and to clamp and steer by.

        SAELens' folders, Gemma Scope's .npz and .safetensors files. `site`, `site_out`: where it reads and what it predicts,
        if its files do not say.
        """
        from glassformer.steering.library import local_library
        from glassformer.steering.steer import check_dictionary

        dictionary = (self.library or local_library()).dictionary(os.fspath(name), site, site_out)
        check_dictionary(dictionary, self.blueprint, self.name)
        return dictionary

    def train_features(
        self,
        source: Annotated[str | Iterable[str] | RecordedActivations, OWN_CHECK],
        site: str,
        *,
        features: int | None = None,
        kind: FeatureKind = "topk",
        k: int = 32,
        l1: float = 1.0,
        steps: int = 2000,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        seed: int = 0,
        length: int | None = None,
        name: str = "features",
        progress: NamedProgress | None = None,
    ) -> tuple[FeatureDictionary, FeatureTraining]:
        """A sparse autoencoder of the activations at a site, and how it learned.

        Args:
            source: a text, the pieces of a long one, or what `read_many(…).record(…)` gave. No more is read than is needed.
            site: whose activations, such as 'blocks.8.residual'.
            features: how many; by default 8 for each number at the site.
            kind: 'topk'; 'batchtopk', a JumpReLU in the end; or 'l1'.
            k: active features of a token.
            l1: what activations cost, of the kind 'l1'.
            steps, batch_size, learning_rate, seed: of the training; `batch_size` is in tokens.
            length: tokens of the text that the model reads at once; by default 128.
            name: the dictionary's.
            progress: called as (what, done so far, in all).
        """
        from glassformer.observe.activation_rows import activation_rows
        from glassformer.observe.feature_training import FeatureTrainingSettings, train_features

        rows = activation_rows(self, source, site, length)
        settings = FeatureTrainingSettings(
            features=8 * rows.width if features is None else features, kind=kind, k=k, l1=l1, steps=steps,
            batch_size=batch_size, learning_rate=learning_rate, seed=seed,
        )  # fmt: skip
        return train_features(rows, settings, site=rows.site, model=self.name, name=name, progress=progress)

    def strategies(self, prompt: Prompt, ways: Mapping[str, Mapping[str, Any]] | None = None, **keywords: Any) -> Strategies:
        """One prompt under several strategies side by side: the usual ones, or `ways`: settings by name."""
        from glassformer.observe.sweep import STRATEGIES, strategies

        return strategies(partial(self.watch, prompt), STRATEGIES if ways is None else ways, {"seed": 0, **keywords})

    @property
    @operation(route="sites", is_property=True, passes=False)
    def sites(self) -> SiteNames:
        """Show everything that can be read and changed, with its shape and what other libraries call it."""
        from glassformer.observe.site_names import site_names

        return site_names(self.blueprint, self.name)

    @property
    def circuits(self) -> Circuits:
        """Its heads from weights alone: `head(layer, head)` in tokens, and `composition()` with earlier heads."""
        from glassformer.observe.circuits import Circuits

        return Circuits(self)

    @property
    def vocabulary(self) -> VocabularySizes:
        """How many tokens the tokenizer, the config and the model's head have."""
        from glassformer.observe.vocabulary import vocabulary

        return vocabulary(self.tokenizer, self.blueprint)

    @operation(route="tokens", passes=False)
    def tokens(
        self,
        text: Annotated[str, about("The text.")],
        pair: Annotated[str | None, about("A second text, for models that read pairs.")] = None,
        *,
        special: Annotated[bool, about("Add the special tokens that the model was trained with.")] = True,
    ) -> TokenizedText:
        """Show the tokens of a text: id, piece, bytes and offsets of each."""
        from glassformer.observe.tokens import tokenized

        return tokenized(self.tokenizer, text, pair, special=special, name=self.name, blueprint=self.blueprint)

    def batch(self, texts: Sequence[str], *, side: Literal["left", "right"] | None = None, special: bool = True) -> Batch:
        """Several texts as a padded batch, with its attention mask."""
        from glassformer.observe.tokens import batch

        return batch(self.tokenizer, texts, side=side, special=special, name=self.name, blueprint=self.blueprint)

    @operation(route="parameters", passes=False)
    def parameters(
        self,
        *,
        only: Annotated[
            str | None, about("A name, a module, or a pattern with wildcards such as '*.q_proj.weight'.")
        ] = None,
        stats: Annotated[bool, about("Mean, deviation, extremes, zeros and outliers of each.")] = False,
        histogram: Annotated[bool, about("The same, with counts in 21 bins.")] = False,
        progress: NamedProgress | None = None,
    ) -> Parameters:
        """Show every tensor with its shape, kind and bytes, summed up by module; on request with statistics.

        Only headers are read, unless numbers are asked for. `progress`: called as (tensor, numbers so far, total) then.
        """
        from glassformer.observe.parameters import parameters

        return replace(parameters(self, only=only, stats=stats, histogram=histogram, progress=progress), model=self.name)

    def _encode_pair(self, prompt: Prompt, pair: str) -> tuple[str, tuple[int, ...]]:
        if self.writes:
            raise InputError(f"{self.name} goes on with one text, and reads no second one. Put both into the prompt.")
        if not isinstance(prompt, str) or not prompt or not pair:
            raise InputError("two texts are two strings, neither of them empty.")
        return prompt, tuple(self.tokenizer(prompt, pair)["input_ids"])

    def _assistant(self, assistant: Any) -> Executor | None:
        """An assistant model may also be named."""
        return super()._assistant(load(assistant) if isinstance(assistant, (str, os.PathLike)) else assistant)
