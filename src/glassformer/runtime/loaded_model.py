"""A loaded model: an opened checkpoint with its executors, changes and prefix cache; and how it generates.

It needs no torch by itself; the executor may.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Head
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.sentence_pooling import SentenceSettings
from glassformer.decoding import GenerationConfig, Look, Policy, Recipe, Step, generate, policies
from glassformer.decoding.policy import SHOWN_CANDIDATES
from glassformer.decoding.settings import GENERATE_ONLY, LOGPROB_SETTINGS, empty_prompt_token
from glassformer.decoding.stopping import after_tokens, when_cancelled
from glassformer.decoding.text_warnings import remedy
from glassformer.engine.changed_executor import ChangedExecutor
from glassformer.engine.checks import check_ids, residual_states
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import BlockInput, Executor
from glassformer.engine.wrapped_executor import ReportingExecutor
from glassformer.ground.arguments import checked_class
from glassformer.ground.candidates import EntropyStats, entropy_stats
from glassformer.ground.changes import Change, SiteFunction, in_sequence
from glassformer.ground.errors import InputError, SettingError, check_context, did_you_mean
from glassformer.ground.ownership import Shared
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch, expand_changes
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.model_files import (
    AutoTokenizer,
    ModelFiles,
)
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.runtime.in_memory import InMemory
from glassformer.runtime.prompt import Prompt, PromptKeywords, PromptOptions, encode, is_token_ids, render
from glassformer.runtime.run import Run, TextStream
from glassformer.text import Tokenizer

if TYPE_CHECKING:
    from glassformer.steering.library import Library
    from glassformer.steering.steer import Steering
    from glassformer.views.receipt import Receipt, Replay

Floats: TypeAlias = npt.NDArray[np.float32]
PreparedRun: TypeAlias = Annotated[Run, "a run of prepare(…), and a text goes to chat(…)"]
note = logging.getLogger("glassformer").warning


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class LoadedModel(Shared):
    """An opened checkpoint with its executors, changes and prefix cache: what generates."""

    opened: ModelFiles | InMemory
    executors: Executors
    changes: Mapping[str, Change] = field(default_factory=dict)  # by site
    prefix_cache: PrefixCache | None = None
    tokenizer_override: Tokenizer | None = None  # instead of the checkpoint's
    executor_override: Executor | None = None  # instead of its own, around which it stands
    name_override: str | None = None  # instead of the one that it was loaded by
    library: Annotated[Library | None, OWN_CHECK] = None  # where names of steering vectors lead; None: on this machine

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
        """The same model with another tokenizer."""
        return replace(self, tokenizer_override=tokenizer)

    def with_name(self, name: str) -> Self:
        """The same model under another name: that by which others know it, who need not know where it lies."""
        return replace(self, name_override=name)

    def with_prefix_cache(self) -> Self:
        """The same model with a cache of the last texts it read: a common prefix is not read again."""
        return replace(self, prefix_cache=PrefixCache(self.executors.executor))

    def with_executor(self, executor: Annotated[Executor, OWN_CHECK]) -> Self:
        """The same model run by another executor: one around its own, that reports or takes turns."""
        return replace(self, executor_override=executor)

    def with_library(self, library: Annotated[Library, OWN_CHECK]) -> Self:
        """The same model, which knows steering vectors and features by the names of this library alone."""
        return replace(self, library=library)

    def changed(self, changes: Annotated[Mapping[str, Change | SiteFunction], OWN_CHECK]) -> Self:
        """The same model with some of its values zeroed, scaled, replaced, or given to a function of your own.

        Sites may be patterns: `{"blocks.*.attention.heads": Change(scale=0, heads=[3])}`. Weights are shared, not copied.
        A function gets a tensor and where it stands, and returns the tensor to go on with: `{"blocks.3.mlp.hidden": f}`.
        """
        return replace(self, changes={**self.changes, **expand_changes(changes, *self.blueprint.block_counts)})

    def steered(self, steer: Annotated[Steering, OWN_CHECK]) -> Self:
        """The same model steered: by vectors with their strengths, such as `{"formal": 4.0}`, each by name or path.

        A list says more: `[{"name": "formal", "strength": 4.0}, {"feature": "resid-8/123", "clamp": 6.0}, …]`, where a
        feature is held at a value, or its direction is added so many times. Steering comes after the model's changes.
        """
        from glassformer.steering.steer import steering_changes

        changes = steering_changes(steer, self.library, self.blueprint, self.name, lambda: self.weights_digest)
        return replace(
            self, changes={**self.changes, **{s: in_sequence(self.changes.get(s), c) for s, c in changes.items()}}
        )

    @property
    def weights_digest(self) -> str:
        """A SHA-256 of its weights, by which what was made for them knows them again."""
        from glassformer.runtime.weights_digest import weights_digest

        return weights_digest(self.opened)

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
        """The model's own generation settings."""
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
    def start(self) -> int | None:
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
        self._check_writes()
        executor: Executor = self.executor_override or self.prefix_cache or self.executors.executor
        return ChangedExecutor(executor, self.changes) if self.changes else executor

    @property
    def module(self) -> Any:
        """The PyTorch model, an object of the compatible API, under the same changes; `from_module` is the way back.

        Weights are shared with the plain executor; packed ones become float32.
        """
        return self.executors.module.changed(self.changes) if self.changes else self.executors.module

    @property
    def packed_module(self) -> Any:
        """The same for passes and gradients of activations alone, not of weights: packed ones stay packed where they can."""
        return self.executors.packed_module.changed(self.changes) if self.changes else self.executors.packed_module

    @property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        return None if self.changes else self.executors.reader

    def cached_prefix(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt are in the prefix cache."""
        return 0 if self.prefix_cache is None or self.changes else self.prefix_cache.cached_length(ids)

    def weight(self, name: str, row: int | range | None = None) -> Floats | None:
        """A weight in float32, or some rows of it; None where the family has it and the checkpoint leaves it out."""
        weights: Any = self.opened.module.state_dict() if isinstance(self.opened, InMemory) else self.opened.tensors
        weight = weights[name] if name in weights else resolve_names(weights, [name]).get(name)
        if weight is None:
            named = (weight.name for op in self.blueprint.ops for weight in op.weights)
            known = {*weights, *named, *self.blueprint.optional_weights}
            if name not in known:
                raise InputError(
                    f"{self.name} has no weight {name!r}.{did_you_mean(name, known)} model.parameters() lists all of them."
                )
            return None
        rows = row if isinstance(row, range) or row is None else range(row, row + 1)
        if rows is not None and not (weight.shape and 0 <= rows.start < rows.stop <= weight.shape[0] and rows.step == 1):
            raise InputError(f"there is no row {row} in {name}, whose shape is {[*weight.shape]}. They count from 0.")
        values: Floats
        if isinstance(self.opened, InMemory):
            values = (weight if rows is None else weight[rows.start : rows.stop]).float().cpu().numpy()
        elif rows is None or weight.layout is not None:
            values = weight.to_float32() if rows is None else weight.to_float32()[rows.start : rows.stop]
        else:
            values = weight.rows(rows).to_float32()
        return values[0] if isinstance(row, int) else values

    def unembed(self, states: Floats) -> Floats:
        """Logits (rows, vocabulary) of hidden states (rows, hidden) as they leave a block, through the final norm."""
        states = residual_states(states, self.config.hidden_size)
        if self.writes:
            return self.executor.unembed(states)
        if self.head != "masked":
            raise InputError(f"{self.name} scores no tokens ({self.head}), so its hidden states have no logits.")
        import torch

        with torch.inference_mode():
            final = self.module.base_model.final_states(torch.from_numpy(states))
            scores: Floats = self.module.head_module(final).float().numpy()
        return scores

    @property
    def entropy_stats(self) -> Callable[[Floats], EntropyStats]:
        """The fastest `entropy_stats` there is for this model's scores."""
        return self.executors.entropy_stats if self.writes else entropy_stats

    def encoder_pass(
        self, ids: Sequence[int], watch: Watch, begin: BlockInput | None = None
    ) -> tuple[Floats | None, dict[str, Floats]]:
        """One pass of a model that only reads: its logits for each token or for the text, and what the watch read.

        `begin`: the first block that is computed, and what enters it.
        """
        import torch

        watch, tokens = Watch(watch.reads, {**self.changes, **watch.changes}), torch.tensor([list(ids)])
        with torch.inference_mode():
            ready = None
            if begin is not None:
                ready = self.module.base_model.prepare(tokens, None, None, None, None, watch)
                states = torch.from_numpy(begin.states)[None].to(self.module.dtype)
                ready = replace(ready, begin=(begin.block, states))
            output = self.module(tokens, watch=watch, p=ready)
        logits: Any = getattr(output, "logits", None)
        sites = {site: value[0].float().numpy() for site, value in (output.sites or {}).items()}
        return None if logits is None else logits[0].float().numpy(), sites

    def _check_writes(self) -> None:
        if not self.writes:
            what = "an encoder" if self.config.default_head == "masked" else f"a model with a {self.head} head"
            raise InputError(
                f"{self.name} is {what} ({self.config.model_type}): it reads text and writes none. "
                "Look at what it makes of a text: glass look."
            )

    # Prompts ----------------------------------------------------------------------------------------------------

    def render(self, prompt: Prompt, **prompt_options: Unpack[PromptKeywords]) -> str:
        """The text that the model reads: through the chat template if it has one, unless `raw`."""
        return render(self.tokenizer, prompt, PromptOptions.of(prompt_options, self.render), self.name)

    def encode(self, prompt: Prompt, **prompt_options: Unpack[PromptKeywords]) -> tuple[str, tuple[int, ...]]:
        """The rendered prompt and its ids."""
        return self._encode(prompt, PromptOptions.of(prompt_options, self.encode), fits=False)

    def _encode(self, prompt: Prompt, options: PromptOptions, fits: bool = True) -> tuple[str, tuple[int, ...]]:
        """`fits`: refuse a text that is too long for the context, whatever its tokens are, before it is encoded."""
        if is_token_ids(prompt):
            check_ids(prompt, self.config.vocab_size)
        return encode(self.tokenizer, prompt, options, self.name, self.config.context if fits else None)

    # Generating -------------------------------------------------------------------------------------------------

    def chat(self, prompt: Prompt, **keywords: Any) -> str:
        """The answer to a text or a conversation; or what follows token ids.

        `raw`, `system` and `template` say how the text becomes a prompt; all other keywords are settings, those of
        GenerationConfig.
        """
        return "".join(self._stream(prompt, keywords, self.chat))

    def stream(self, prompt: Prompt, **keywords: Any) -> Iterator[str]:
        """The answer piece by piece, as soon as each piece is whole text; keywords as for `chat`."""
        return self._stream(prompt, keywords, self.stream)

    def _stream(self, prompt: Prompt, keywords: Mapping[str, Any], call: Callable[..., Any]) -> Iterator[str]:
        if unused := [name for name in LOGPROB_SETTINGS if keywords.get(name) is not None]:
            raise SettingError(f"{unused[0]} has no place in a text. Here watch(…) keeps all there is: run.steps.")
        run = self._prepare_one(prompt, keywords, call)

        def pieces() -> Iterator[str]:
            yield from self.generate(run)
            _warn([run])

        return pieces()

    def watch(
        self,
        prompt: Prompt,
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
        run = model._prepare_one(prompt, keywords, self.watch)
        for _ in model.generate(run, look=look, sites=sites):
            pass
        _warn([run])
        return run

    def watch_many(self, prompt: Prompt, *, look: int | Literal["all"] = 0, **keywords: Any) -> list[Run]:
        """As `watch`, but several texts for one prompt: `num_return_sequences` samples, or the best beams."""
        run = self._prepare(prompt, *PromptOptions.split(keywords, self.watch_many))
        runs = [run, *(replace(run, steps=[], prompt_steps=[]) for _ in range(run.settings.num_return_sequences - 1))]
        for _ in self._generate(runs, look):
            pass
        _warn(runs)
        return runs

    def prepare(self, prompt: Prompt, **keywords: Any) -> Run:
        """A run with its prompt and settings, and nothing generated yet: pass it to `generate`."""
        return self._prepare_one(prompt, keywords, self.prepare)

    def prepare_ids(self, ids: Sequence[int], **settings: Any) -> Run:
        """A run whose prompt is token ids already, and nothing generated yet."""
        merged = self._merge_settings({"num_return_sequences": 1, **settings})
        if not ids:
            raise InputError("the prompt has no tokens. Say something.")
        check_ids(ids, self.config.vocab_size)
        negative = self._negative_ids(merged, PromptOptions(raw=True))
        return self._run(self.tokenizer.decode(ids), ids, merged, negative)

    def prepare_continuation(self, run: Run, **settings: Any) -> Run:
        """A run that goes on where another one ended, token by token, and nothing generated yet."""
        if self.start is not None:
            raise InputError(f"{self.name} is an encoder-decoder: it reads one text and answers it, and cannot go on.")
        merged = self.settings.merged({"num_return_sequences": 1, **settings})
        merged.draw_seed()
        return self._run(run.prompt + run.text, [*run.prompt_ids, *run.ids], merged, run.negative)

    def generate(
        self,
        run: PreparedRun,
        look: int | Literal["all"] = 0,
        progress: Progress | None = None,
        sites: Annotated[str | Sequence[str] | None, OWN_CHECK] = None,
    ) -> Iterator[str]:
        """Generate the text of a prepared run, which grows with it; yields the text's pieces.

        `progress` is told how much of a long prompt has been read; `look` and `sites` as for `watch`.
        """
        if run.settings.num_return_sequences > 1:
            count = run.settings.num_return_sequences
            raise SettingError(f"num_return_sequences={count} gives several texts. Leave it out, or call watch_many(…).")
        return (piece for piece in self._generate([run], look, progress, sites) if piece)

    def replay(self, receipt: str | os.PathLike[str] | Mapping[str, Any] | Receipt | Run) -> Replay:
        """Generate a saved run again, from its ids, settings and draws; says whether every token is the same.

        `receipt`: a file that `run.save("run.json")` wrote, its contents, or the run itself. Other weights are refused.
        Where the run was broken off, by somebody or by max_time, the replay ends there too.
        """
        from glassformer.observe.receipt import (
            broken_off,
            check_receipt,
            check_weights,
            compare_with_receipt,
            read_receipt,
            receipt_changes,
            receipt_settings,
        )
        from glassformer.views.receipt import Receipt

        self._check_writes()
        receipt = receipt.receipt if isinstance(receipt, Run) else receipt
        receipt = receipt.to_dict() if isinstance(receipt, Receipt) else receipt
        saved = check_receipt(receipt, "this") if isinstance(receipt, Mapping) else read_receipt(receipt)
        check_weights(saved, self)
        changes = receipt_changes(saved)
        model = self.changed(changes) if changes else self
        settings = GenerationConfig().merged(receipt_settings(saved))
        run = model._run(saved["prompt"], saved["prompt_ids"], settings)
        if (reason := broken_off(saved)) is not None:
            run.recipe = replace(run.recipe, stops=(*run.recipe.stops, after_tokens(len(saved["steps"]), reason)))
        for _ in model.generate(run, look=1):
            pass
        return compare_with_receipt(saved, run)

    def recipe(self, settings: GenerationConfig) -> Recipe:
        """Settings compiled for this model's vocabulary."""
        return Recipe.of(settings, self.tokenizer, self.config.vocab_size)

    def policies(
        self,
        recipe: Recipe,
        ids: Sequence[int],
        *,
        seed: int | None = None,
        look: Look | None = None,
        negative: Sequence[int] | None = None,
    ) -> list[Policy]:
        """The policies that choose the tokens after these ids; an encoder-decoder's encoder reads the ids."""
        source, prompt = (None, ids) if self.start is None else (ids, (self.start,))
        return policies(
            recipe, prompt, look=look or Look(), entropy_stats=self.entropy_stats, context=self.config.context,
            seed=seed, source=source, negative=negative,
        )  # fmt: skip

    def generate_steps(
        self, policies: Sequence[Policy], sites: Annotated[str | Sequence[str] | None, OWN_CHECK] = None
    ) -> Iterator[tuple[int, Step]]:
        """Run policies of one recipe to their ends; yields (number of the policy, step). `sites` as for `watch`."""
        return generate(self.executor, policies, self._assistant(policies[0].settings.assistant_model), self._reading(sites))

    def check_room(self, settings: GenerationConfig, ids: Sequence[int]) -> None:
        """Refuse a prompt that leaves no room in the context; an encoder-decoder's prompt goes to its encoder."""
        context = self.config.context
        settings.room(len(ids) if self.start is None else 1, context)
        check_context(len(ids), context)

    def _prepare_one(self, prompt: Prompt, keywords: Mapping[str, Any], call: Callable[..., Any]) -> Run:
        options, settings = PromptOptions.split(keywords, call)
        return self._prepare(prompt, options, {"num_return_sequences": 1, **settings})  # whatever the model's settings say

    def _prepare(self, prompt: Prompt, options: PromptOptions, settings: Mapping[str, Any]) -> Run:
        merged = self._merge_settings(settings)
        text, ids = self._encode(prompt, options)
        return self._run(text, ids, merged, self._negative_ids(merged, options))

    def _merge_settings(self, settings: Mapping[str, Any]) -> GenerationConfig:
        """The model's settings with a call's own on top, and a seed where texts are drawn."""
        self._check_writes()
        if unused := [name for name in GENERATE_ONLY if settings.get(name)]:
            raise SettingError(f"{unused[0]} is for generate(). Here watch(…) keeps all there is: run.steps.")
        merged = self.settings.merged(settings)
        merged.draw_seed()
        return merged

    def _negative_ids(self, settings: GenerationConfig, options: PromptOptions) -> tuple[int, ...] | None:
        """The ids of a negative prompt that is text."""
        if settings.negative_prompt is None:
            return None
        if settings.negative_prompt == "":
            return (empty_prompt_token(settings),)
        return encode(self.tokenizer, settings.negative_prompt, options, self.name)[1]

    def _run(self, text: str, ids: Sequence[int], settings: GenerationConfig, negative: Sequence[int] | None = None) -> Run:
        """A run of an encoded prompt under complete settings."""
        recipe = self.recipe(settings)
        self.check_room(settings, ids)  # before anything is loaded
        if settings.negative_prompt_ids is not None:
            negative = _flat_ids(settings.negative_prompt_ids)
        check_ids((*ids, *(negative or ())), self.config.vocab_size)
        seed = settings.seed if settings.do_sample else None
        run = Run(self, text, tuple(ids), recipe, seed, None if negative is None else tuple(negative))
        run.recipe = replace(recipe, stops=(*recipe.stops, when_cancelled(run.cancelling)))
        return run

    def _reading(self, sites: str | Sequence[str] | None) -> Watch | None:
        """A watch that reads these sites."""
        return None if sites is None else Watch.parse(sites, *self.blueprint.block_counts)

    def _generate(
        self,
        runs: Sequence[Run],
        look: int | Literal["all"],
        progress: Progress | None = None,
        sites: str | Sequence[str] | None = None,
    ) -> Iterator[str]:
        """Generate the texts of one prompt; yields their pieces."""
        first = runs[0]
        policies = self.policies(
            first.recipe, first.prompt_ids, seed=first.seed, look=Look.of(look), negative=first.negative
        )
        streams = [TextStream(run, self.tokenizer) for run in runs]
        executor = self.executor
        if progress is not None:
            executor = ReportingExecutor(executor, progress)
        assistant = self._assistant(policies[0].settings.assistant_model)
        steps = generate(executor, policies, assistant, self._reading(sites))
        started = time.perf_counter()
        for number, step in steps:
            yield streams[number].add(step, time.perf_counter() - started)
            if step.outcome is not None:
                runs[number].remedy = remedy(step.outcome.policy)

    def _assistant(self, assistant: Any) -> Executor | None:
        """The executor of an assistant model: a loaded one, or one of an Auto class."""
        if assistant is None:
            return None
        assistant = assistant if isinstance(assistant, LoadedModel) else type(self).from_module(assistant, self.tokenizer)
        if assistant.head != self.head or assistant.config.vocab_size != self.config.vocab_size:
            raise SettingError(
                f"assistant_model must have the same vocabulary and kind as {self.name}: {assistant.name} is "
                f"{assistant.config.model_type} of {assistant.config.vocab_size} tokens, not {self.config.vocab_size}."
            )
        executor: Executor = assistant.executor
        return executor


def _flat_ids(ids: Any) -> tuple[int, ...]:
    """Token ids of any shape as a flat tuple."""
    array = np.asarray(ids)
    if array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(f"negative_prompt_ids are token ids, at least one, not {ids!r}.")
    return tuple(array.reshape(-1).tolist())


def _warn(runs: Sequence[Run]) -> None:
    """Note what may be wrong with a text, and what to try."""
    if (remedy := next((run.remedy for run in runs if run.remedy is not None), None)) is not None:
        note(remedy)
