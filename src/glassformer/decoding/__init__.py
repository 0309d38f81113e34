"""Logits to ids: settings, rules, choice and stopping as a pure per-sequence policy; drivers that call it.

settings → recipe (rules in order, stops, grammar) → policy (one text) → step
drivers: loop · beams · contrastive · speculate, behind `generate`
"""

from glassformer.decoding.policy import Outcome, Policy, Step, StepDetail
from glassformer.decoding.recipe import Recipe
from glassformer.decoding.settings import GenerationConfig
from glassformer.decoding.stopping import Finish
from glassformer.decoding.strategies import generate, policies

__all__ = ["Finish", "GenerationConfig", "Outcome", "Policy", "Recipe", "Step", "StepDetail", "generate", "policies"]
