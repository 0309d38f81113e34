"""Scores to ids: settings, rules, choice and stopping as a pure per-sequence policy; drivers that call it."""

from glassformer.decoding.loop import loop
from glassformer.decoding.policy import Finish, Policy, Step
from glassformer.decoding.settings import GenerationConfig

__all__ = ["Finish", "GenerationConfig", "Policy", "Step", "loop"]
