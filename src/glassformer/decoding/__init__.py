"""Logits to ids: settings, rules, choice and stopping as a pure per-sequence policy; drivers that call it.

settings → recipe (rules in order, stops, grammar) → policy (one text) → step
drivers: loop · beams · contrastive · speculate, behind `generate`, which imports the one that settings ask for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from glassformer.decoding.policy import NOTHING, Outcome, Policy, Step, StepDetail
from glassformer.decoding.recipe import Recipe
from glassformer.decoding.settings import GenerationConfig
from glassformer.decoding.settings_table import MATCHED_NGRAM, OWN_HEAD
from glassformer.decoding.stopping import Finish
from glassformer.engine.protocol import Executor
from glassformer.ground.errors import SettingError
from glassformer.ground.sites import Watch

__all__ = ["Finish", "GenerationConfig", "Outcome", "Policy", "Recipe", "Step", "StepDetail", "generate", "policies"]


def policies(recipe: Recipe, prompt: Sequence[int], *, detail: StepDetail = NOTHING, **more: Any) -> list[Policy]:
    """As many policies for one prompt as its settings ask for texts; the rest is as for Policy."""
    settings = recipe.settings
    if settings.logprobs is not None:
        detail = replace(detail, candidates=max(detail.candidates, settings.logprobs, 1))
    count = settings.num_return_sequences
    return [Policy(recipe, prompt, index=index, detail=detail, **more) for index in range(count)]


def runs_in_loop(settings: GenerationConfig) -> bool:
    """Whether texts of these settings can be written in a `Loop`, together with any others."""
    others = ("num_beams", "assistant_model", "prompt_lookup_num_tokens", "penalty_alpha")
    return not any(settings.is_active(name) for name in others)


def generate(
    executor: Executor, policies: Sequence[Policy], assistant: Executor | None = None, watch: Watch | None = None
) -> Iterator[tuple[int, Step]]:
    """Run policies of one recipe to their ends; yields (which, step). `assistant` runs the model or the head that drafts.

    `watch`: what is read and changed in every pass; each step has what was read for it.

    Where several texts follow one prompt, their policies stand side by side.
    """
    settings = policies[0].settings
    if runs_in_loop(settings):
        from glassformer.decoding.loop import loop

        return loop(executor, policies, watch)
    if settings.num_beams > 1:
        from glassformer.decoding.beams import beams

        return beams(executor, policies, watch)
    if watch is not None:
        raise SettingError(
            "states, attentions and sites are read where each pass gives a token. Leave penalty_alpha, and what drafts, out."
        )
    if settings.is_active("penalty_alpha"):
        from glassformer.decoding.contrastive import contrastive

        return contrastive(executor, policies)
    from glassformer.decoding.head_drafts import HeadDrafter
    from glassformer.decoding.speculative import LookupDrafter, ModelDrafter, speculate

    if assistant is None:
        return speculate(executor, policies, LookupDrafter(settings.max_matching_ngram_size or MATCHED_NGRAM))
    own = settings.assistant_model == OWN_HEAD
    return speculate(executor, policies, HeadDrafter(assistant) if own else ModelDrafter(assistant))
