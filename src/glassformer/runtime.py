"""The short face: `load` a model by name, then `chat`, `stream` or `watch`.

A `Model` here is tokenizer, executor and settings in one object. It needs no torch by itself; the executor may.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glassformer.checkpoint.locate import Progress
from glassformer.decoding import GenerationConfig, Look, Policy, Recipe, Step, policies, write
from glassformer.decoding.policy import TOLD
from glassformer.decoding.remedies import remedy
from glassformer.decoding.settings import FAMILIAR, LIKELIHOODS, empty_prompt
from glassformer.decoding.stopping import cancelled
from glassformer.engine.protocol import Executor
from glassformer.errors import InputError, InputTypeError, SettingError, refuse
from glassformer.executing import Choice
from glassformer.loaded import Prompt
from glassformer.looking import Looking
from glassformer.opening import open_model
from glassformer.running import Growing, Run
from glassformer.sites import Change

if TYPE_CHECKING:
    from glassformer.observe.receipt import Replay
    from glassformer.observe.sweep import Strategies

note = logging.getLogger("glassformer").warning


def load(
    name: str | os.PathLike[str] = "smollm2",
    *,
    executor: Literal["auto", "plain", "cpu"] = "auto",
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    activations: str | None = None,
    progress: Progress | None = None,
    **unknown: Any,
) -> Model:
    """A model by path, hub id or catalogue name, ready to talk.

    Args:
        name: 'smollm2', 'Qwen/Qwen3-0.6B', './folder', './file.gguf'.
        executor: how it runs: 'cpu' is native code, 'plain' is PyTorch; 'auto' takes the best that this machine has.
        dtype: 'float32', 'bfloat16', …, which PyTorch is to compute in; by default as stored.
        weights: a kind to pack the weights of a folder in: 'q8_0', 'q4_1', 'q4_k', …; packed once, and kept in the cache.
        cache: what the CPU engine keeps keys and values in: 'f32', 'f16', 'bf16' or 'q8'; by default as fits the weights.
        activations: what it rounds the inputs of packed matrices to: 'q14', or 'q8', which is faster and coarser.
        progress: called as (what, bytes so far, bytes in all) while something is fetched or packed.
    """
    refuse(unknown, load)
    if not isinstance(name, (str, os.PathLike)):
        raise InputTypeError(f"a model's name is text or a path, not {type(name).__name__}.")
    dtype = dtype if dtype is None else str(dtype).removeprefix("torch.")  # torch.bfloat16 is as good as its name
    choice = Choice(executor, dtype, cache, activations)
    opened = open_model(name, progress=progress)
    if weights is not None:
        from glassformer.quantising import requantised

        opened = replace(opened, given=requantised(opened, weights, progress))
    _ = opened.config, opened.tensors  # what is broken is said now, not at the first word
    return Model(opened, choice)


def _flat(ids: Any) -> tuple[int, ...]:
    """Token ids, of whatever shape they were given in."""
    found = np.asarray(ids)
    if found.size == 0 or found.dtype.kind not in "iu":
        raise InputError(f"negative_prompt_ids are token ids, at least one, not {ids!r}.")
    return tuple(found.reshape(-1).tolist())


class Model(Looking):
    """A loaded model: tokenizer, executor, settings. Made by `load`."""

    def chat(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> str:
        """The answer to a text or a conversation. Settings are those of GenerationConfig."""
        return "".join(self.stream(prompt, raw=raw, system=system, template=template, **settings))

    def stream(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """The answer piece by piece, as soon as each piece is whole text."""
        if vain := [name for name in LIKELIHOODS if settings.get(name) is not None]:
            raise SettingError(f"{vain[0]} has no place in a text. Here watch(…) keeps all there is: run.steps.")
        run = self.begin(prompt, raw=raw, system=system, template=template, **settings)
        return self._streamed(run)

    def watch(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        look: int | Literal["all"] = TOLD,
        change: Mapping[str, Change] | None = None,
        **settings: Any,
    ) -> Run:
        """The same text as `chat` gives, and everything that made it: steps, candidates, the journey.

        `look`: for how many candidates of each step it is kept what the rules did to them; 'all' keeps the vocabulary.
        `change`: what to change inside the model, by site: `{"blocks.3.attention.heads": Change(scale=0, heads=[1])}`.
        """
        if change is not None:
            changed = self.changed(change)
            return changed.watch(prompt, raw=raw, system=system, template=template, look=look, **settings)
        run = self.begin(prompt, raw=raw, system=system, template=template, **settings)
        for _ in self.follow(run, look=look):
            pass
        self._say([run])
        return run

    def strategies(self, prompt: Prompt, ways: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any) -> Strategies:
        """One prompt under several strategies side by side: the customary ones, or `ways`, by name."""
        from glassformer.observe.sweep import STRATEGIES, strategies

        return strategies(partial(self.watch, prompt), STRATEGIES if ways is None else ways, {"seed": 0, **settings})

    def runs(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        look: int | Literal["all"] = 0,
        **settings: Any,
    ) -> list[Run]:
        """Several texts for one prompt: `num_return_sequences` of them, drawn, or the best of as many beams."""
        run = self._begun(prompt, settings, raw=raw, system=system, template=template)
        runs = [run, *(replace(run, steps=[], prompt_steps=[]) for _ in range(run.settings.num_return_sequences - 1))]
        for _ in self._written(runs, look):
            pass
        self._say(runs)
        return runs

    def _streamed(self, run: Run) -> Generator[str, None, None]:
        yield from self.follow(run)
        self._say([run])

    @staticmethod
    def _say(runs: Sequence[Run]) -> None:
        """Say in one line what may be wrong with a text, and what to try."""
        if (word := next((run.remedy for run in runs if run.remedy is not None), None)) is not None:
            note(word)

    def begin(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Run:
        """A run that has its prompt and settings, and nothing generated yet; `follow` it."""
        one = {"num_return_sequences": 1, **settings}  # whatever the model's file says
        return self._begun(prompt, one, raw=raw, system=system, template=template)

    def _begun(
        self,
        prompt: Prompt,
        settings: Mapping[str, Any],
        *,
        raw: bool,
        system: str | None,
        template: Mapping[str, Any] | None,
    ) -> Run:
        self._check_writes()
        variables = self.variables(template)
        if vain := [name for name in FAMILIAR if settings.get(name)]:
            raise SettingError(f"{vain[0]} is for generate(). Here watch(…) keeps all there is: run.steps.")
        merged = self.settings.merged(settings)
        merged.draw_seed()
        text, ids = self.encode(prompt, raw=raw, system=system, **variables)
        negative: tuple[int, ...] | None = None
        if merged.negative_prompt == "":
            negative = (empty_prompt(merged),)
        elif merged.negative_prompt is not None:
            _, negative = self.encode(merged.negative_prompt, raw=raw, system=system, **variables)
        return self._run(text, ids, merged, negative)

    def _run(self, text: str, ids: Sequence[int], settings: GenerationConfig, negative: Sequence[int] | None = None) -> Run:
        """A run of an encoded prompt under settings that are complete."""
        recipe = self.recipe(settings)
        self.room(settings, ids)  # said now, before anything is loaded
        if settings.negative_prompt_ids is not None:
            negative = _flat(settings.negative_prompt_ids)
        seed = settings.seed if settings.do_sample else None
        run = Run(self, text, tuple(ids), recipe, seed, None if negative is None else tuple(negative))
        run.recipe = replace(recipe, stops=(*recipe.stops, cancelled(run.ending)))
        return run

    def replay(self, receipt: str | os.PathLike[str] | Mapping[str, Any] | Run) -> Replay:
        """Write a saved run's text again, from its ids, settings and draws; says whether every token is the same.

        `receipt`: a file that `run.save("run.json")` wrote, what it holds, or the run itself. Other weights are refused.
        """
        from glassformer.observe.receipt import changes_of, check_weights, compared, read_receipt, settings_of

        self._check_writes()
        given = receipt.receipt.to_dict() if isinstance(receipt, Run) else receipt
        found = given if isinstance(given, Mapping) else read_receipt(given)
        check_weights(found, self)
        changes = changes_of(found)
        model = self.changed(changes) if changes else self
        run = model._run(found["prompt"], found["prompt_ids"], GenerationConfig().merged(settings_of(found)))
        for _ in model.follow(run, look=1):
            pass
        return compared(found, run)

    def recipe(self, settings: GenerationConfig) -> Recipe:
        """Settings made ready for choosing among this model's tokens."""
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
        """How texts are written after these ids; an encoder-decoder reads them, and its texts begin with the start."""
        source, prompt = (None, ids) if self.start is None else (ids, (self.start,))
        more = {"context": self.config.context, "seed": seed, "source": source, "negative": negative}
        return policies(recipe, prompt, look=look or Look(), **more)

    def write(self, written: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
        """Run policies of one recipe to their ends; (which, step) as tokens come."""
        return write(self.executor, written, self._helper(written[0].settings.assistant_model))

    def _helper(self, given: Any) -> Executor | None:
        """The executor of a model that drafts: one of these, one of an Auto class, or a name."""
        if given is None:
            return None
        helper = load(given) if isinstance(given, (str, os.PathLike)) else given
        helper = helper if isinstance(helper, Model) else Model.around(helper, self.tokenizer)
        if helper.head != self.head or helper.config.vocab_size != self.config.vocab_size:
            raise SettingError(
                f"assistant_model must have the same vocabulary and kind as {self.name}: {helper.name} is "
                f"{helper.config.model_type} of {helper.config.vocab_size} tokens, not {self.config.vocab_size}."
            )
        return helper.executor

    def follow(self, run: Run, look: int | Literal["all"] = 0) -> Iterator[str]:
        """Generate a run's text, filling it in as it grows."""
        if run.settings.num_return_sequences > 1:
            count = run.settings.num_return_sequences
            raise SettingError(f"num_return_sequences={count} gives several texts. Leave it out, or call runs(…) in Python.")
        return (piece for _, piece in self._written([run], look) if piece)

    def _written(self, runs: Sequence[Run], look: int | Literal["all"]) -> Iterator[tuple[int, str]]:
        """Write the texts of one prompt; (which, piece) as they grow."""
        first = runs[0]
        written = self.policies(first.recipe, first.ids, seed=first.seed, look=Look.of(look), negative=first.negative)
        texts = [Growing(run, self.tokenizer) for run in runs]
        steps = self.write(written)
        started = time.perf_counter()
        for number, step in steps:
            yield number, texts[number].add(step, time.perf_counter() - started)
            if step.finish:
                run, policy = runs[number], written[number]
                run.remedy, run.score, run.prompt_steps = remedy(policy), policy.score, policy.behind

    def room(self, settings: GenerationConfig, ids: Sequence[int]) -> None:
        """Refuse a prompt that leaves no room; an encoder-decoder's has the encoder to itself."""
        context = self.config.context
        settings.room(len(ids) if self.start is None else 1, context)
        if len(ids) > context:
            raise InputError(f"a text of {len(ids)} tokens does not fit into the model's context of {context}. Shorten it.")
