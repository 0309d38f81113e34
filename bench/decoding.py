"""What choosing a token costs at a vocabulary of 151,936, beside transformers' processors on the same scores.

    python bench/decoding.py [--rounds 40] [--only choices|loop|rules|long|strategies]

The two take turns, on one thread but for whole texts. A ratio above 1 means that ours is faster; where there is none, the
reference has no such thing. The loop is measured over an executor that costs nothing: what is left beside the policy is its
overhead.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers.generation import logits_process as theirs

from common import race, report
from glassformer.decoding import GenerationConfig, Policy, Recipe, StepDetail
from glassformer.decoding.loop import loop
from glassformer.decoding.policy import NOTHING
from glassformer.decoding.rules import Rule, penalties
from glassformer.decoding.rules import constraints as tokens
from glassformer.decoding.rules import sampling as shaping
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import TokenHistory

SIZE = 151_936
EOS = 151_645


def scores(seed: int = 0) -> Any:
    """As a model gives them: most tokens around zero, a few far above."""
    draw = np.random.default_rng(seed)
    found = (draw.standard_normal(SIZE) * 2.5).astype(np.float32)
    found[draw.integers(0, SIZE, 20)] += 12
    return found


def history(length: int = 512, seed: int = 0) -> TokenHistory:
    """A text that repeats itself here and there, the second half of it chosen."""
    draw = np.random.default_rng(seed)
    ids = (draw.zipf(1.3, length) % 5000).tolist()
    found = TokenHistory(ids[: length // 2], room=4096, seed=seed)
    for token in ids[length // 2 : -8] + ids[8:16]:
        found.add(token)
        found.surprisals.append(float(draw.gamma(2)))
    return found


def cases() -> Iterator[tuple[str, Rule, Any]]:
    """Each rule's name, the rule, and the reference's processor, if there is one."""
    t = theirs
    few, many = list(range(1000, 1010)), list(range(0, SIZE, 3))
    bad = [[n, n + 1, n + 2][: 1 + n % 3] for n in range(100)]
    yield "temperature 0.7", shaping.temperature(0.7), t.TemperatureLogitsWarper(0.7)
    yield "top_k 50", shaping.top_k(50), t.TopKLogitsWarper(50)
    yield "top_p 0.95", shaping.top_p(0.95), t.TopPLogitsWarper(0.95)
    yield "min_p 0.05", shaping.min_p(0.05), t.MinPLogitsWarper(0.05)
    yield "typical 0.9", shaping.typical_p(0.9), t.TypicalLogitsWarper(0.9)
    yield "epsilon_cutoff 3e-4", shaping.epsilon_cutoff(3e-4), t.EpsilonLogitsWarper(3e-4)
    yield "eta_cutoff 2e-3", shaping.eta_cutoff(2e-3), t.EtaLogitsWarper(2e-3)
    yield "top_n_sigma 1", shaping.top_n_sigma(1), None
    yield "xtc, always", shaping.xtc(1, 0.05), None
    yield "mirostat", shaping.mirostat(5, 0.1), None
    yield "repetition 1.1", penalties.repetition(1.1), t.RepetitionPenaltyLogitsProcessor(1.1)
    yield "presence 0.5", penalties.presence(0.5), None
    yield "frequency 0.5", penalties.frequency(0.5), None
    yield "dry", penalties.dry(0.8, 1.75, 2, 0, frozenset(range(4))), None
    yield "no_repeat_ngram 3", penalties.no_repeat_ngram(3), t.NoRepeatNGramLogitsProcessor(3)
    yield "logit_bias of 10", tokens.logit_bias(dict.fromkeys(few, 1.0)), None
    yield (
        "sequence_bias of 100",
        tokens.sequence_bias({tuple(one): 1.0 for one in bad}),
        t.SequenceBiasLogitsProcessor({tuple(one): 1.0 for one in bad}),
    )
    yield "bad_words of 100", tokens.bad_words(bad), t.NoBadWordsLogitsProcessor(bad)
    yield "allowed, a third", tokens.allowed(many), None
    yield "suppressed of 10", tokens.suppressed(few), t.SuppressTokensLogitsProcessor(few)
    yield "min_new", tokens.min_new_tokens(1000, [EOS]), t.MinNewTokensLengthLogitsProcessor(256, 1000, [EOS])
    usual = [shaping.temperature(0.7), shaping.top_k(50), shaping.top_p(0.95)]
    beside = t.LogitsProcessorList([t.TemperatureLogitsWarper(0.7), t.TopKLogitsWarper(50), t.TopPLogitsWarper(0.95)])
    yield "temperature, top_k and top_p", chain(*usual), beside


def chain(*rules: Rule) -> Rule:
    def rule(field: Shortlist, history: TokenHistory) -> Shortlist:
        for one in rules:
            field = one(field, history)
        return field

    return rule


def rules(rounds: int) -> list[dict[str, Any]]:
    """Each rule alone, on the whole vocabulary, after a text of 512 tokens."""
    given, before = Shortlist(scores()), history()
    whole, ids = torch.from_numpy(given.scores)[None], torch.from_numpy(before.ids)[None]
    rows = []
    for name, rule, processor in cases():
        ours = lambda rule=rule: rule(given, before)  # noqa: E731
        other = (lambda processor=processor: processor(ids, whole)) if processor else (lambda: None)
        rows.append(row(name, race(ours, other, rounds), bool(processor)))
    return rows


def lengths(rounds: int) -> list[dict[str, Any]]:
    """The rules that read the text, after longer ones."""
    given, rows = Shortlist(scores()), []
    makers: dict[str, Rule] = {
        "repetition": penalties.repetition(1.1),
        "frequency": penalties.frequency(0.5),
        "dry": penalties.dry(0.8, 1.75, 2),
        "no_repeat_ngram 3": penalties.no_repeat_ngram(3),
        "mirostat": shaping.mirostat(5, 0.1),
    }
    loop = TokenHistory(list(range(100, 120)) * 400, room=99)
    texts = {"2,048 tokens": history(2048), "8,192 tokens": history(8192), "8,000 tokens in a loop of 20": loop}
    for (name, rule), (text, before) in itertools.product(makers.items(), texts.items()):
        ours = lambda rule=rule, before=before: rule(given, before)  # noqa: E731
        rows.append(row(f"{name}, {text}", race(ours, lambda: None, rounds), False))
    return rows


CHOICES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, repetition 1.1": {"repetition_penalty": 1.1},
    "sampled, as it comes (top_k 50)": {"do_sample": True},
    "sampled, temperature 0.7, top_k 50, top_p 0.95": {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
    "sampled, temperature 0.7, min_p 0.05": {"do_sample": True, "temperature": 0.7, "top_k": 0, "min_p": 0.05},
    "sampled, the whole vocabulary": {"do_sample": True, "top_k": 0},
}


def policy(detail: StepDetail = NOTHING, **changes: Any) -> Policy:
    settings = GenerationConfig().merged({"max_new_tokens": 2**20, **changes})
    return Policy(Recipe.of(settings), history().ids.tolist(), context=2**21, seed=1, detail=detail)


def choices(rounds: int) -> list[dict[str, Any]]:
    """A whole step: rules, choice, and what it is asked to tell; beside the reference's processors and its choice."""
    given = scores()
    rows = [row("the best score alone, nothing else", race(lambda: int(given.argmax()), lambda: None, rounds), False)]
    whole, ids = torch.from_numpy(given)[None], torch.from_numpy(history().ids)[None]
    for name, changes in CHOICES.items():
        one = policy(**changes)
        processors = reference(changes)

        def other(processors: Any = processors, draws: bool = "do_sample" in changes) -> Any:
            found = processors(ids, whole.to(copy=True, dtype=torch.float32))
            if draws:
                return torch.multinomial(found.softmax(-1), 1).item()
            return found.argmax(-1).item()

        rows.append(row(name, race(lambda one=one: one.feed(given), other, rounds), True))
        telling = policy(StepDetail(10, waterfall=True), **changes)
        rows.append(row(f"{name}, told in full", race(lambda one=telling: one.feed(given), lambda: None, rounds), False))
    return rows


def reference(changes: dict[str, Any]) -> Any:
    """The same rules, with transformers."""
    found = theirs.LogitsProcessorList()
    if "repetition_penalty" in changes:
        found.append(theirs.RepetitionPenaltyLogitsProcessor(changes["repetition_penalty"]))
    if "temperature" in changes:
        found.append(theirs.TemperatureLogitsWarper(changes["temperature"]))
    if "do_sample" in changes and changes.get("top_k", 50):
        found.append(theirs.TopKLogitsWarper(50))
    for name, warper in (("top_p", theirs.TopPLogitsWarper), ("min_p", theirs.MinPLogitsWarper)):
        if name in changes:
            found.append(warper(changes[name]))
    return found


class Free:
    """An executor whose scores are there already."""

    def __init__(self) -> None:
        self.scores = scores()
        self.sites: dict[str, Any] = {}

    def open(self, source: Any = None) -> Any:
        return object()

    def fork(self, row: Any) -> Any:
        return object()

    def run(self, feeds: Any) -> Any:
        return [self] * len(feeds)

    def host(self, index: int = -1) -> Any:
        return self.scores

    def close(self, row: Any) -> None: ...


def overhead(rounds: int, tokens: int = 400) -> list[dict[str, Any]]:
    """The loop's own time for each token: all of it, less the policy's."""
    rows = []
    for texts in (1, 16):
        found = []
        for _ in range(max(3, rounds // 8)):
            every = [policy(max_new_tokens=tokens) for _ in range(texts)]
            spent = 0.0
            for one in every:
                feed = one.feed

                def timed(*given: Any, feed: Any = feed) -> Any:
                    nonlocal spent
                    began = time.perf_counter()
                    step = feed(*given)
                    spent += time.perf_counter() - began
                    return step

                one.feed = timed  # type: ignore[method-assign]
            executor: Any = Free()
            began = time.perf_counter()
            for _ in loop(executor, every):
                pass
            found.append((time.perf_counter() - began - spent) / (tokens * texts))
        rows.append({"loop": f"{texts} at once", "µs a token": round(statistics.median(found) * 1e6, 1)})
    return rows


def row(name: str, seconds: tuple[float, float], both: bool) -> dict[str, Any]:
    ours, other = (round(value * 1e6) for value in seconds)
    if not both:
        return {"rule": name, "µs": f"{ours:,}"}
    return {"rule": name, "µs": f"{ours:,} / {other:,}", "ratio": round(seconds[1] / seconds[0], 1)}


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "4 beams": {"num_beams": 4},
    "4 drawn texts": {"do_sample": True, "num_return_sequences": 4},
    "prompt lookup, a text that quotes": {"prompt_lookup_num_tokens": 6},
}


def strategies(rounds: int, new: int = 24) -> list[dict[str, Any]]:
    """Whole texts of SmolLM2 in float32, all threads, beside transformers' generate."""
    import tempfile

    import transformers

    import glassformer
    from glassformer.checkpoint.locate import locate

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ours = glassformer.AutoModelForCausalLM.from_pretrained(locate("smollm2")).requires_grad_(False)
        ours.save_pretrained(folder)
        other = transformers.AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False).eval()
    tokenizer = glassformer.load("smollm2").tokenizer
    tokens = tokenizer("The quick brown fox jumps over the lazy dog. " * 6, return_tensors="pt")
    settings = {"max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
    for name, more in STRATEGIES.items():
        sides = [lambda model=model, more=more: model.generate(**tokens, **settings, **more) for model in (ours, other)]
        seconds = race(sides[0], sides[1], max(2, rounds // 12))
        rates = " / ".join(f"{new / one:.1f}" for one in seconds)
        rows.append({"strategy": name, "tokens/s": rates, "ratio": round(seconds[1] / seconds[0], 2)})
    return rows


TABLES: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
    "choices": ("one step at 151,936 tokens", choices),
    "loop": ("the loop beside model and policy", overhead),
    "rules": ("each rule at 151,936 tokens", rules),
    "long": ("the same after long texts", lengths),
    "strategies": ("whole texts ÷ transformers", strategies),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", choices=TABLES)
    arguments = parser.parse_args()
    threads = torch.get_num_threads()
    for name, (title, table) in TABLES.items():
        torch.set_num_threads(threads if name == "strategies" else 1)
        if arguments.only in (None, name):
            report(title, table(arguments.rounds))


if __name__ == "__main__":
    main()
