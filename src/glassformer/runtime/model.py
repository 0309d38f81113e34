"""The short API: `load`, and a `Model`, which generates and shows all that can be seen of it.

A model is what was opened, the executors over it, and what was asked of both: changes, a prefix cache, another tokenizer.
It needs no torch by itself; the executor may. Views are imported on first use, so that an answer does not wait for them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, Unpack

from glassformer.blueprints import Blueprint, Head
from glassformer.checkpoint.sentence_pooling import SentenceSettings
from glassformer.decoding import GenerationConfig, Policy, Recipe, Step, StepDetail, generate, policies
from glassformer.decoding.policy import NOTHING, SHOWN_CANDIDATES
from glassformer.decoding.settings import LOGPROB_SETTINGS
from glassformer.decoding.settings_table import OWN_HEAD
from glassformer.decoding.stopping import after_tokens
from glassformer.decoding.text_warnings import remedy
from glassformer.engine.checks import residual_states
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Executor
from glassformer.engine.wrapped_executor import ChangedExecutor, GlobalTokensExecutor, ReportingExecutor
from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.candidates import EntropyStats, entropy_stats
from glassformer.ground.changes import Change, SiteFunction, in_sequence
from glassformer.ground.errors import InputError, ModelNotFound, SettingError, did_you_mean, spell
from glassformer.ground.ownership import Shared
from glassformer.ground.progress import NamedProgress, Progress
from glassformer.ground.sites import Watch, expand_changes
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.model_files import AdapterNames, AutoTokenizer, ModelFiles
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.runtime.run import Run, TextStream, runs_of_texts
from glassformer.runtime.start import check_writes, ready, start
from glassformer.runtime.weights import Floats, InMemory, open_weights, read_weight, weights_digest
from glassformer.see.model_operations import ModelOperations
from glassformer.text import Tokenizer
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions, encode, render

if TYPE_CHECKING:
    from glassformer.see.receipt import Receipt, Replay
    from glassformer.steering.library import Library
    from glassformer.steering.steer import Steering

StartedRun: TypeAlias = Annotated[Run, "a run of start(…), and a text goes to chat(…)"]
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
    opened = open_weights(name, weights, adapter, adapter_mode, progress, dtype)
    model = Model(opened, Executors(opened, options))  # where the options cannot be, nothing is read
    _ = opened.config, opened.tensors  # a broken checkpoint raises now, not at the first token
    return model


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class Model(Shared, ModelOperations):
    """A loaded model: its tokenizer, executors and settings, what it writes, and every view of it. `load` returns one."""

    opened: ModelFiles | InMemory
    executors: Executors
    changes: Mapping[str, Change] = field(default_factory=dict)  # by site
    prefix_cache: PrefixCache | None = None
    tokenizer_override: Tokenizer | None = None  # instead of the checkpoint's
    executor_override: Executor | None = None  # instead of its own, around which it stands
    name_override: str | None = None  # instead of the one that it was loaded by
    library_override: Annotated[Library | None, OWN_CHECK] = None  # instead of this machine's

    # Which model ------------------------------------------------------------------------------------------------

    @classmethod
    def from_module(cls, module: Any, tokenizer: Tokenizer | None = None) -> Self:
        """A model of an Auto class as a `Model`, over the same weights and under the same changes.

        `tokenizer`: by default that of the checkpoint that it was loaded from.
        """
        if tokenizer is None:
            if not (name := getattr(module, "name_or_path", "")):
                raise InputError("this model was not loaded from a checkpoint, which would have its tokenizer: pass one.")
            tokenizer = AutoTokenizer.from_pretrained(name)
        opened = InMemory(module.eval(), tokenizer)
        return cls(opened, Executors(opened, ExecutorOptions()), getattr(module, "changes", {}))

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """This model with another tokenizer."""
        return replace(self, tokenizer_override=tokenizer)

    def with_name(self, name: str) -> Self:
        """This model, which reports `name` instead of its local path."""
        return replace(self, name_override=name)

    def with_prefix_cache(self) -> Self:
        """This model with a cache of the last texts it read: a common prefix is not read again."""
        check_writes(self)
        return replace(self, prefix_cache=PrefixCache(self.executors.executor))

    def with_executor(self, executor: Annotated[Executor, OWN_CHECK]) -> Self:
        """This model run by another executor: one that reports, or takes turns, around its own."""
        return replace(self, executor_override=executor)

    def with_library(self, library: Annotated[Library, OWN_CHECK]) -> Self:
        """This model, which knows steering vectors and features by the names of this library alone."""
        return replace(self, library_override=library)

    def changed(self, changes: Annotated[Mapping[str, Change | SiteFunction], OWN_CHECK]) -> Self:
        """This model with some of its values zeroed, scaled, replaced, or given to a function of yours.

        Sites may be patterns: `{"blocks.*.attention.heads": Change(scale=0, heads=[3])}`. Weights are shared, not copied.
        A function gets a tensor and where it stands, and returns the tensor to go on with: `{"blocks.3.mlp.hidden": f}`.
        """
        return replace(self, changes={**self.changes, **expand_changes(changes, self.blueprint.site_names)})

    def steered(self, steer: Annotated[Steering, OWN_CHECK]) -> Self:
        """This model steered: by vectors with their strengths, such as `{"formal": 4.0}`, each by name or path.

        A list says more: `[{"name": "formal", "strength": 4.0}, {"feature": "resid-8/123", "clamp": 6.0}, …]`, where a
        feature is held at a value, or a multiple of its direction is added. Steering comes after the model's changes.
        """
        from glassformer.steering.steer import steering_changes

        changes = steering_changes(steer, self.library, self.blueprint, self.name, lambda: self.weights_digest)
        return replace(
            self, changes={**self.changes, **{s: in_sequence(self.changes.get(s), c) for s, c in changes.items()}}
        )

    @property
    def weights_digest(self) -> str:
        """A SHA-256 of its weights, by which a file that was made for them recognises them."""
        return weights_digest(self.opened)

    @property
    def library(self) -> Library:
        """Where names of steering vectors, features and tuned lenses lead; what comes with the package for it is there."""
        from glassformer.steering.library import local_library, shipped_sight

        sizes = self.config.hidden_size, self.blueprint.blocks
        shipped = None if isinstance(self.opened, InMemory) else shipped_sight(sizes, lambda: self.weights_digest)
        return replace(self.library_override or local_library(), shipped=shipped)

    @property
    def name(self) -> str:
        return self.opened.name if self.name_override is None else self.name_override

    @property
    def config(self) -> Any:
        return self.opened.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened.tokenizer if self.tokenizer_override is None else self.tokenizer_override

    @property
    def settings(self) -> GenerationConfig:
        """The generation settings that come with the model."""
        return self.opened.settings

    @property
    def head(self) -> Head:
        """What its last layer is for."""
        return self.opened.head

    @property
    def sentence(self) -> SentenceSettings:
        """How its states become one vector per text."""
        return self.opened.sentence

    @property
    def blueprint(self) -> Blueprint:
        return self.executors.blueprint

    @property
    def writes(self) -> bool:
        """Whether it generates text; an encoder only reads."""
        return self.head in ("causal", "seq2seq")

    @property
    def decoder_start_token(self) -> int | None:
        """What an encoder-decoder's target begins with; None for a model without an encoder."""
        if self.head != "seq2seq":
            return None
        start = self.settings.decoder_start_token_id  # or its config's
        if start is None:
            raise InputError(f"{self.name}: neither its config nor its settings have a decoder_start_token_id.")
        return start

    def label(self, number: int) -> str:
        """The name of a classifier's label."""
        names: Mapping[int, str] = self.config.id2label or {}
        return names.get(number, f"LABEL_{number}")

    def __repr__(self) -> str:
        changed = f", changed at {len(self.changes)} sites" if self.changes else ""
        changed += "".join(f", with {name}" for name in getattr(self.opened, "added_adapters", ()))
        return f"Model({self.name!r}, {self.config.model_type}, {self.blueprint.parameters:,} parameters{changed})"

    # What runs it -----------------------------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        """What runs the model, under its changes if it has any."""
        check_writes(self)
        executor: Executor = self.executor_override or self.prefix_cache or self.executors.executor
        executor = GlobalTokensExecutor(executor) if self.blueprint.has_global_tokens else executor
        return ChangedExecutor(executor, self.changes) if self.changes else executor

    @property
    def module(self) -> Any:
        """The PyTorch model, an object of the compatible API, under the same changes; `from_module` is the way back.

        Weights are shared with the plain executor; packed ones become float32.
        """
        if self.changes and self.executors.bridge is not None:
            raise InputError(
                f"{self.name} is computed by transformers, whose module knows nothing of changes: they are made in each "
                "text that is read or written. Take the module of the unchanged model."
            )
        return self.executors.module.changed(self.changes) if self.changes else self.executors.module

    @property
    def packed_module(self) -> Any:
        """`module` for passes and gradients of activations alone: packed weights stay packed where they can."""
        return self.executors.packed_module.changed(self.changes) if self.changes else self.executors.packed_module

    @property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        return None if self.changes else self.executors.reader

    def cached_prefix(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt are in the prefix cache."""
        return 0 if self.prefix_cache is None or self.changes else self.prefix_cache.cached_length(ids)

    def weight(self, name: str, row: int | Sequence[int] | None = None) -> Floats | None:
        """A weight in float32, or some rows of it; None where the family has it and the checkpoint leaves it out."""
        return read_weight(self.opened, self.blueprint, name, row)

    def unembed(self, states: Floats) -> Floats:
        """Logits (rows, vocabulary) of hidden states (rows, hidden) as they leave a block, through the final norm."""
        self.blueprint.check_one_stream("the logits of a layer's states")
        states = residual_states(states, self.config.hidden_size)
        if self.writes:
            return self.executor.unembed(states)
        if self.head == "masked" and self.executors.bridge is not None:
            return self.executors.bridge.unembed(states)
        if self.head != "masked":
            raise InputError(f"{self.name} scores no tokens ({self.head}), so its hidden states have no logits.")
        module = self.module
        import torch

        with torch.inference_mode():
            final = module.base_model.final_states(torch.from_numpy(states))
            logits: Floats = module.head_module(final).float().numpy()
        return logits

    @property
    def entropy_stats(self) -> Callable[[Floats], EntropyStats]:
        """The fastest `entropy_stats` for this model's logits."""
        return self.executors.entropy_stats if self.writes else entropy_stats

    # Prompts ----------------------------------------------------------------------------------------------------

    def render(self, prompt: Prompt, **prompt_options: Unpack[PromptKeywords]) -> str:
        """The text that the model reads: through the chat template if it has one, unless `raw`."""
        return render(self, prompt, PromptOptions.of(prompt_options, self.render))

    def encode(self, prompt: Prompt, **prompt_options: Unpack[PromptKeywords]) -> tuple[str, tuple[int, ...]]:
        """The rendered prompt and its ids."""
        return encode(self, prompt, PromptOptions.of(prompt_options, self.encode), fits=False)

    # Generating -------------------------------------------------------------------------------------------------

    def chat(self, prompt: Prompt | Run, **keywords: Any) -> str:
        """The answer to a text or a conversation; or what follows token ids, or a run that has ended.

        `raw`, `system` and `template` say how the text becomes a prompt; all other keywords are settings, those of
        GenerationConfig.
        """
        return "".join(self._stream(prompt, keywords, self.chat))

    def stream(self, prompt: Prompt | Run, **keywords: Any) -> Iterator[str]:
        """The answer piece by piece, as soon as each piece is whole text; keywords as for `chat`."""
        return self._stream(prompt, keywords, self.stream)

    def _stream(self, prompt: Prompt | Run, keywords: Mapping[str, Any], call: Callable[..., Any]) -> Iterator[str]:
        if unused := [name for name in LOGPROB_SETTINGS if keywords.get(name) is not None]:
            raise SettingError(f"{unused[0]} has no place in a text. Here watch(…) keeps all there is: run.steps.")
        run = start(self, prompt, keywords, call)

        def pieces() -> Iterator[str]:
            yield from self.generate(run)
            _warn([run])

        return pieces()

    def watch(
        self,
        prompt: Prompt | Run,
        *,
        look: int | Literal["all"] = SHOWN_CANDIDATES,
        change: Annotated[Mapping[str, Change | SiteFunction] | None, OWN_CHECK] = None,
        sites: Annotated[str | Sequence[str] | None, OWN_CHECK] = None,
        **keywords: Any,
    ) -> Run:
        """The text of `chat`, and everything that made it: steps, candidates, the journey.

        `look`: of how many candidates of each step to keep what the rules did to them; 'all' keeps the vocabulary.
        `change`: changes inside the model, by site: `{"blocks.3.attention.heads": Change(scale=0, heads=[1])}`.
        `sites`: what each step keeps of the pass that predicted its token: `sites="blocks.*.residual"`.
        """
        model = self if change is None else self.changed(change)
        return model._finished([start(model, prompt, keywords, self.watch)], look, sites)[0]

    def watch_many(self, prompt: Prompt | Run, *, look: int | Literal["all"] = 0, **keywords: Any) -> list[Run]:
        """As `watch`, but several texts for one prompt: `num_return_sequences` samples, or the best beams."""
        run = start(self, prompt, keywords, self.watch_many, several=True)
        return self._finished(runs_of_texts(run, run.settings.num_return_sequences), look)

    def start(self, prompt: Prompt | Run, **keywords: Any) -> Run:
        """A run with nothing generated yet, for `generate`: after a prompt, or where another run ended."""
        return start(self, prompt, keywords, self.start)

    def prepare(self, prompt: Prompt, **keywords: Any) -> Run:
        """The earlier name of `start`."""
        return start(self, prompt, keywords, self.prepare)

    def prepare_ids(self, ids: Sequence[int], **settings: Any) -> Run:
        """The earlier name of `start`, for token ids."""
        return start(self, ids, {"raw": True, **settings}, self.prepare_ids)

    def prepare_continuation(self, run: Run, **settings: Any) -> Run:
        """The earlier name of `start`, for a run that goes on."""
        return start(self, run, settings, self.prepare_continuation)

    def generate(
        self,
        run: StartedRun,
        look: int | Literal["all"] = 0,
        progress: Progress | None = None,
        sites: Annotated[str | Sequence[str] | None, OWN_CHECK] = None,
    ) -> Iterator[str]:
        """Generate the text of a run of `start`, which grows with it; yields the text's pieces.

        `progress` is told how much of a long prompt has been read; `look` and `sites` as for `watch`.
        """
        if run.settings.num_return_sequences > 1:
            count = run.settings.num_return_sequences
            raise SettingError(f"num_return_sequences={count} gives several texts. Leave it out, or call watch_many(…).")
        return (piece for piece in self._write([run], look, sites, progress) if piece)

    def _write(
        self,
        runs: Sequence[Run],
        look: int | Literal["all"],
        sites: str | Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[str]:
        """Generate the texts of one prompt; yields their pieces."""
        streams = [TextStream(run, self.tokenizer) for run in runs]
        steps = self.generate_steps(runs[0].policies(StepDetail.of(look)), sites, progress)
        started = time.perf_counter()
        for index, step in steps:
            yield streams[index].add(step, time.perf_counter() - started)
            if step.outcome is not None:
                runs[index].remedy = remedy(step.outcome.policy)

    def _finished(
        self, runs: Sequence[Run], look: int | Literal["all"], sites: str | Sequence[str] | None = None
    ) -> list[Run]:
        """The runs of one prompt, once their texts are generated."""
        for _ in self._write(runs, look, sites):
            pass
        _warn(runs)
        return [*runs]

    def replay(self, receipt: str | os.PathLike[str] | Mapping[str, Any] | Receipt | Run) -> Replay:
        """Generate a saved run again, from its ids, settings and draws; says whether every token is the same.

        `receipt`: a file that `run.save("run.json")` wrote, its contents, or the run itself. Other weights are refused.
        Where the run was broken off, by somebody or by max_time, the replay ends there too.
        """
        from glassformer.see.receipt import (
            broken_off,
            check_weights,
            compare_with_receipt,
            read_receipt,
            receipt_changes,
            receipt_settings,
        )

        check_writes(self)
        saved = read_receipt(receipt.receipt if isinstance(receipt, Run) else receipt)
        check_weights(saved, self)
        model = self.changed(receipt_changes(saved))
        run = ready(model, saved["prompt"], saved["prompt_ids"], GenerationConfig().merged(receipt_settings(saved)))
        if (reason := broken_off(saved)) is not None:
            run.recipe = replace(run.recipe, stops=(*run.recipe.stops, after_tokens(len(saved["steps"]), reason)))
        for _ in model.generate(run, look=1):
            pass
        return compare_with_receipt(saved, run)

    # What generation is made of ---------------------------------------------------------------------------------

    def recipe(self, settings: GenerationConfig) -> Recipe:
        """Settings compiled for this model's vocabulary."""
        return Recipe.of(settings, self.tokenizer, self.config.vocab_size)

    def policies(
        self,
        recipe: Recipe,
        ids: Sequence[int],
        *,
        seed: int | None = None,
        detail: StepDetail = NOTHING,
        negative: Sequence[int] | None = None,
    ) -> list[Policy]:
        """The policies that choose the tokens after these ids; an encoder-decoder's encoder reads the ids."""
        if recipe.settings.is_set("global_tokens") and not self.blueprint.has_global_tokens:
            raise SettingError(f"global_tokens are for an encoder that has some, and {self.config.model_type} has none.")
        start = self.decoder_start_token
        source, prompt = (None, ids) if start is None else (recipe.source(tuple(ids)), (start,))
        return policies(
            recipe, prompt, detail=detail, entropy_stats=self.entropy_stats, context=self.config.context,
            seed=seed, source=source, negative=negative,
        )  # fmt: skip

    def generate_steps(
        self,
        policies: Sequence[Policy],
        sites: Annotated[str | Sequence[str] | None, OWN_CHECK] = None,
        progress: Progress | None = None,
    ) -> Iterator[tuple[int, Step]]:
        """Run policies of one recipe to their ends; yields (index of the policy, step). `sites` as for `watch`."""
        executor = self.executor if progress is None else ReportingExecutor(self.executor, progress)
        watch = None if sites is None else Watch.parse(sites, self.blueprint.site_names)
        return generate(executor, policies, self._assistant(policies[0].settings.assistant_model), watch)

    def _assistant(self, assistant: Any) -> Executor | None:
        """The executor of an assistant model: a loaded one, its name, one of an Auto class; or of the model's own head."""
        if assistant is None:
            return None
        if assistant == OWN_HEAD:
            return self.executors.draft_head
        if isinstance(assistant, (str, os.PathLike)):
            assistant = load_assistant(assistant)
        elif not isinstance(assistant, Model):
            assistant = type(self).from_module(assistant, self.tokenizer)
        if assistant.head != self.head or assistant.config.vocab_size != self.config.vocab_size:
            raise SettingError(
                f"assistant_model must have the same vocabulary and kind as {self.name}: {assistant.name} is "
                f"{assistant.config.model_type} of {assistant.config.vocab_size} tokens, not {self.config.vocab_size}."
            )
        executor: Executor = assistant.executor
        return executor


def load_assistant(name: str | os.PathLike[str]) -> Model:
    """A smaller model that drafts, by its name."""
    try:
        return load(name)
    except ModelNotFound as error:
        raise ModelNotFound(f"{spell('assistant_model', name)}: {error}{did_you_mean(str(name), [OWN_HEAD])}") from None


def _warn(runs: Sequence[Run]) -> None:
    """Note what may be wrong with a text, and what to try."""
    if (remedy := next((run.remedy for run in runs if run.remedy is not None), None)) is not None:
        note(remedy)
