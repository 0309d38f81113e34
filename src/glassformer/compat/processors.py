"""The classes that scripts derive their own rules and stops from; `generate` takes plain functions too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.decoding.settings import GenerationConfig, as_texts
from glassformer.decoding.settings_table import SETTINGS
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.stopping import stop_string_tail
from glassformer.decoding.token_history import TokenHistory
from glassformer.ground.errors import InputError, SettingError, UnknownArgument, did_you_mean


class LogitsProcessor:
    """A rule: what `__call__(input_ids, scores)` returns takes the scores' place."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, input_ids, scores).")


class LogitsProcessorList(list[Callable[..., Tensor]]):
    """Rules that are applied one after the other."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        for processor in self:
            scores = processor(input_ids, scores, **kwargs)
        return scores


class StoppingCriteria:
    """A stop: `__call__(input_ids, scores)` says whether the text ends here, for each row or for all."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor | bool:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, input_ids, scores).")


class StoppingCriteriaList(list[Callable[..., Any]]):
    """Stops of which any one suffices."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor:
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            done |= torch.as_tensor(criterion(input_ids, scores, **kwargs), device=input_ids.device)
        return done


class MaxLengthCriteria(StoppingCriteria):
    """Stops at a length in tokens, prompt included."""

    def __init__(self, max_length: int, max_position_embeddings: int | None = None) -> None:
        self.max_length, self.max_position_embeddings = max_length, max_position_embeddings

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        return _for_each(input_ids, input_ids.shape[-1] >= self.max_length)


class MaxTimeCriteria(StoppingCriteria):
    """Stops after a time in seconds, from now or from the time that is given."""

    def __init__(self, max_time: float, initial_timestamp: float | None = None) -> None:
        self.max_time = max_time
        self.initial_timestamp = time.time() if initial_timestamp is None else initial_timestamp

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        return _for_each(input_ids, time.time() - self.initial_timestamp > self.max_time)


class EosTokenCriteria(StoppingCriteria):
    """A token that ends the text."""

    def __init__(self, eos_token_id: int | Sequence[int] | Tensor) -> None:
        self.eos_token_id = torch.as_tensor(eos_token_id).reshape(-1)

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        return torch.isin(input_ids[:, -1], self.eos_token_id.to(input_ids.device))


class StopStringCriteria(StoppingCriteria):
    """A text that the last token completes; it may begin and end inside tokens."""

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop_strings = tuple(as_texts(stop_strings))
        if not self.stop_strings or not all(self.stop_strings):
            raise SettingError("stop_strings is empty; it must be a text or a list of texts.")
        self._tail = stop_string_tail(self.stop_strings)

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        tails = [[row[-self._tail :], row[-self._tail : -1]] for row in input_ids.tolist()]
        return torch.tensor([self._count(now) > self._count(before) for now, before in tails], device=input_ids.device)

    def _count(self, ids: list[int]) -> int:
        text = self.tokenizer.decode(ids)
        return sum(text.count(stop) for stop in self.stop_strings)


def _for_each(input_ids: Tensor, done: bool) -> Tensor:
    return torch.full((len(input_ids),), done, dtype=torch.bool, device=input_ids.device)


# Rules by the names of the reference's classes ----------------------------------------------------------------------------


class RuleClass(NamedTuple):
    """What a class of the reference is here: a setting's rule, of arguments under its names for them."""

    setting: str
    arguments: tuple[str, ...]  # in order
    defaults: Mapping[str, Any] = {}

    def bind(self, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        if len(values) > len(self.arguments):
            raise UnknownArgument(f"{name}() takes {len(self.arguments)} arguments: {', '.join(self.arguments)}.")
        given = dict(zip(self.arguments, values, strict=False)) | dict(named)
        for argument in given:
            if argument not in self.arguments:
                raise UnknownArgument(f"{name}() has no argument {argument!r}.{did_you_mean(argument, self.arguments)}")
        missing = [argument for argument in self.arguments if argument not in {*given, *OPTIONAL, *self.defaults}]
        if missing:
            raise InputError(f"{name}() needs {missing[0]!r}.")
        return {**OPTIONAL, **self.defaults, **given}


OPTIONAL = {"filter_value": -float("inf"), "min_tokens_to_keep": 1, "device": "cpu", "eos_token_id": None}
CUT = ("filter_value", "min_tokens_to_keep")
END = ("eos_token_id", "device")
RULE_CLASSES = {
    "TemperatureLogitsWarper": RuleClass("temperature", ("temperature",)),
    "TopKLogitsWarper": RuleClass("top_k", ("top_k", *CUT)),
    "TopPLogitsWarper": RuleClass("top_p", ("top_p", *CUT)),
    "MinPLogitsWarper": RuleClass("min_p", ("min_p", *CUT)),
    "TypicalLogitsWarper": RuleClass("typical_p", ("mass", *CUT), {"mass": 0.9}),
    "EpsilonLogitsWarper": RuleClass("epsilon_cutoff", ("epsilon", *CUT)),
    "EtaLogitsWarper": RuleClass("eta_cutoff", ("epsilon", *CUT, "device")),
    "RepetitionPenaltyLogitsProcessor": RuleClass(
        "repetition_penalty", ("penalty", "prompt_ignore_length"), {"prompt_ignore_length": 0}
    ),
    "NoRepeatNGramLogitsProcessor": RuleClass("no_repeat_ngram_size", ("ngram_size",)),
    "SequenceBiasLogitsProcessor": RuleClass("sequence_bias", ("sequence_bias",)),
    "NoBadWordsLogitsProcessor": RuleClass("bad_words_ids", ("bad_words_ids", "eos_token_id")),
    "PrefixConstrainedLogitsProcessor": RuleClass("prefix_allowed_tokens_fn", ("prefix_allowed_tokens_fn", "num_beams")),
    "MinLengthLogitsProcessor": RuleClass("min_length", ("min_length", *END)),
    "MinNewTokensLengthLogitsProcessor": RuleClass("min_new_tokens", ("prompt_length_to_skip", "min_new_tokens", *END)),
    "ForcedBOSTokenLogitsProcessor": RuleClass("forced_bos_token_id", ("bos_token_id",)),
    "ForcedEOSTokenLogitsProcessor": RuleClass("forced_eos_token_id", ("max_length", *END)),
    "ExponentialDecayLengthPenalty": RuleClass(
        "exponential_decay_length_penalty", ("exponential_decay_length_penalty", "eos_token_id", "input_ids_seq_length")
    ),
    "SuppressTokensLogitsProcessor": RuleClass("suppress_tokens", ("suppress_tokens", "device")),
    "SuppressTokensAtBeginLogitsProcessor": RuleClass(
        "begin_suppress_tokens", ("begin_suppress_tokens", "begin_index", "device")
    ),
}
VALUES = {  # which argument is the setting's value, where it has another name
    "typical_p": "mass", "epsilon_cutoff": "epsilon", "eta_cutoff": "epsilon", "repetition_penalty": "penalty",
    "no_repeat_ngram_size": "ngram_size", "forced_bos_token_id": "bos_token_id", "forced_eos_token_id": "eos_token_id",
}  # fmt: skip


class RuleProcessor(LogitsProcessor):
    """A rule of the settings' table, as a function of a batch."""

    rule_class: ClassVar[RuleClass]

    def __init__(self, *values: Any, **named: Any) -> None:
        setting = self.rule_class.setting
        self.arguments = self.rule_class.bind(type(self).__name__, values, named)
        value = _as_list(self.arguments[VALUES.get(setting, setting)])
        ends = _as_list(self.arguments["eos_token_id"])
        config = GenerationConfig(**{setting: value, "eos_token_id": ends, "do_sample": True})
        config.check()
        settings = {name: getattr(config, name) for name in SETTINGS}
        settings |= {"eos": config.eos, "min_keep": self.arguments["min_tokens_to_keep"]}
        self._rule: Any = SETTINGS[setting].make_rule(settings.__getitem__)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = [
            self._rule(Shortlist(row), self._history(ids, index, row.size)).full_scores(row.size)
            for index, (ids, row) in enumerate(zip(input_ids.tolist(), scores.detach().float().cpu().numpy(), strict=True))
        ]
        result = torch.from_numpy(np.stack(rows)).to(scores)
        fill = self.arguments["filter_value"]
        return result if fill == -float("inf") else result.masked_fill(result == -float("inf"), fill)

    def _history(self, ids: list[int], row: int, size: int) -> TokenHistory:
        """What stands before the token: how much of it is the prompt, the classes say in different ways."""
        given = self.arguments
        ignored = given.get("prompt_ignore_length") or 0
        read: Any = len(ids)  # tokens of the prompt
        if "prompt_length_to_skip" in given or "input_ids_seq_length" in given:
            read = given.get("prompt_length_to_skip", given.get("input_ids_seq_length"))
        elif "begin_index" in given:
            read = given["begin_index"] if given["begin_index"] <= len(ids) else 0
        elif "bos_token_id" in given:
            read = 1
        elif "max_length" in given:
            read = 0
        history = TokenHistory(ids[ignored:read], room=given.get("max_length", len(ids) + 1))
        for token in ids[max(read, ignored) :]:
            history.add(token)
        history.size, history.prompt_index = size, row // given.get("num_beams", 1)
        return history


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def __getattr__(name: str) -> Any:
    if name not in RULE_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = RULE_CLASSES[name]
    text = f"The setting `{kind.setting}`: {SETTINGS[kind.setting].summary}."
    cls = type(name, (RuleProcessor,), {"rule_class": kind, "__doc__": text, "__module__": __name__})
    globals()[name] = cls
    return cls


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the generators of `random`, numpy and torch; `generate` draws its seed from torch's.

    `deterministic`: also have torch use deterministic algorithms where it has them.
    """
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
