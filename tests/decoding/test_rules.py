"""Every rule beside the reference's processor; where there is none, beside the published definition in plain Python.

Rounding decides what lies on the very edge of a cut. So what a rule keeps must lie between what its setting keeps when it is
nudged a little either way. Nearly always the two are one, and then the rule's is the same.

No rule may write to what it gets, and none may make NaN: all arrays here are read-only, and numpy's warnings are errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from glassformer.decoding.rules import Rule, constraints, penalties, sampling
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import XTC, TokenHistory

NUDGE = 5e-5
LESS, MORE = 1 - NUDGE, 1 + NUDGE


def property_of(*strategies: st.SearchStrategy[Any], examples: int = 100) -> Callable[[Callable[..., None]], Any]:
    """A test over so many examples, and over ten times as many in the sweep."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("count", [examples, pytest.param(10 * examples, marks=pytest.mark.sweep)])
        def test(count: int) -> None:
            settings(max_examples=count, deadline=None)(given(*strategies)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def vector(seed: int, size: int, scale: float, decimals: int | None, out: float) -> Any:
    """Scores. Few decimals make many of them equal; a share of them is out, but never all."""
    draw = np.random.default_rng(seed)
    scores = draw.standard_normal(size) * scale
    scores = scores if decimals is None else scores.round(decimals)
    scores[draw.random(size) < out] = -np.inf
    scores[draw.integers(size)] = round(scale, 1)
    return scores.astype(np.float32)


def vectors(smallest: int = 1) -> st.SearchStrategy[Any]:
    return st.builds(
        vector,
        st.integers(0, 2**32 - 1),
        st.integers(smallest, 40) | st.integers(41, 2000),
        st.sampled_from([0.3, 2.5, 8.0, 20.0]),
        st.sampled_from([None, 1, 0]),
        st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    )


words = st.integers(0, 7)  # few, so that texts repeat themselves
texts = st.lists(words, max_size=40)
shares = st.floats(0.001, 0.999)
leasts = st.integers(1, 3)


def field(scores: Any, ids: Any = None) -> Shortlist:
    """A list that cannot be written to."""
    made = Shortlist(np.array(scores, np.float32), None if ids is None else np.array(ids, np.int64))
    for array in made:
        if array is not None:
            array.flags.writeable = False
    return made


def history_of(chosen: Sequence[int] = (), prompt: Sequence[int] = (1,), room: int = 100, **more: Any) -> TokenHistory:
    history = TokenHistory(prompt, room, **more)
    for token in chosen:
        history.add(token)
    history._buffer.flags.writeable = False
    return history


def split(text: Sequence[int]) -> TokenHistory:
    """A text of which the second half was chosen."""
    return history_of(text[len(text) // 2 :], text[: len(text) // 2])


def after(rule: Rule, scores: Any, history: TokenHistory | None = None) -> Any:
    """What a rule makes of a whole vocabulary. Of a list without those that are out it must make the same."""
    history = history or history_of()
    some = np.flatnonzero(scores > -np.inf)
    with np.errstate(all="raise", under="ignore"):
        found, shorter = rule(field(scores), history), rule(field(scores[some], some), history)
    for each in (found, shorter):
        assert each.scores.dtype == np.float32
        assert each.ids is None or (each.ids.dtype == np.int64 and (np.diff(each.ids) > 0).all())
    np.testing.assert_array_equal(found.full_scores(scores.size), shorter.full_scores(scores.size))
    return found.full_scores(scores.size)


def reference(processor: Any, scores: Any, ids: Sequence[int] = (1,)) -> Any:
    """What the reference makes of the same scores, in double precision."""
    return processor(torch.tensor([list(ids)], dtype=torch.long), torch.tensor(scores, dtype=torch.float64)[None])[0].numpy()


def kept(scores: Any) -> set[int]:
    return set(np.flatnonzero(scores > -np.inf).tolist())


def lies_between(found: Any, scores: Any, fewer: Collection[int], more: Collection[int]) -> None:
    """It keeps all of the fewer, none but the more, at least one, and their scores."""
    assert set(fewer) <= kept(found) <= set(more)
    assert kept(found)
    np.testing.assert_array_equal(found[list(kept(found))], scores[list(kept(found))])


def softmax(scores: Any) -> list[float]:
    """In plain Python."""
    best = max(scores.tolist())
    weights = [math.exp(score - best) for score in scores.tolist()]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


# ---- shaping, as the reference has it


@property_of(vectors(), st.floats(0.05, 5))
def test_temperature_is_the_references(scores: Any, value: float) -> None:
    expected = reference(theirs.TemperatureLogitsWarper(value), scores)
    np.testing.assert_allclose(after(sampling.temperature(value), scores), expected, rtol=1e-6)


@property_of(vectors(), st.integers(1, 60) | st.integers(1, 2500), leasts, examples=200)
def test_top_k_is_the_references(scores: Any, count: int, least: int) -> None:
    expected = reference(theirs.TopKLogitsWarper(count, min_tokens_to_keep=least), scores)
    np.testing.assert_array_equal(after(sampling.top_k(count, least), scores), expected)


@property_of(vectors(), shares, leasts, examples=200)
def test_top_p_is_the_references(scores: Any, share: float, least: int) -> None:
    """But for which of equal scores stay at the edge: how many is the same."""
    found = after(sampling.top_p(share, least), scores)
    fewer, more = (
        kept(reference(theirs.TopPLogitsWarper(min(share * by, 1), min_tokens_to_keep=least), scores)) for by in (LESS, MORE)
    )
    assert len(fewer) <= len(kept(found)) <= len(more)
    lies_between(found, scores, (), range(scores.size))
    out = np.delete(scores, list(kept(found)))
    assert out.max(initial=-np.inf) <= found[found > -np.inf].min()


@property_of(vectors(), st.floats(0, 1), leasts)
def test_min_p_is_the_references(scores: Any, share: float, least: int) -> None:
    """But that ties with the last of the least stay."""
    found = after(sampling.min_p(share, least), scores)
    fewer, more = (
        reference(theirs.MinPLogitsWarper(min(share * by, 1), min_tokens_to_keep=least), scores) for by in (MORE, LESS)
    )
    tied = np.flatnonzero((scores >= more[list(kept(more))].min()) & (scores > -np.inf))
    lies_between(found, scores, kept(fewer), tied.tolist())


@property_of(vectors(), shares, leasts)
def test_typical_is_the_references(scores: Any, mass: float, least: int) -> None:
    found = after(sampling.typical_p(mass, least), scores)
    chances = softmax(scores)
    entropy = -math.fsum(chance * math.log(chance) for chance in chances if chance)
    distances = [abs(-math.log(chance) - entropy) if chance else math.inf for chance in chances]
    near, far = (
        max(
            distances[token]
            for token in kept(reference(theirs.TypicalLogitsWarper(nudged, min_tokens_to_keep=least), scores))
        )
        for nudged in (mass * LESS, 1 - (1 - mass) * LESS)
    )
    fewer = [token for token, distance in enumerate(distances) if distance < near - 1e-4]
    lies_between(found, scores, fewer, [token for token, distance in enumerate(distances) if distance < far + 1e-4])


@property_of(vectors(), st.floats(1e-5, 0.9), leasts)
def test_epsilon_cutoff_is_the_references(scores: Any, value: float, least: int) -> None:
    found = after(sampling.epsilon_cutoff(value, least), scores)
    fewer, more = (
        kept(reference(theirs.EpsilonLogitsWarper(value * by, min_tokens_to_keep=least), scores)) for by in (MORE, LESS)
    )
    lies_between(found, scores, fewer, more)


@property_of(vectors(), st.floats(1e-5, 0.9), leasts)
def test_eta_cutoff_is_the_references(scores: Any, value: float, least: int) -> None:
    found = after(sampling.eta_cutoff(value, least), scores)
    fewer, more = (
        kept(reference(theirs.EtaLogitsWarper(value * by, min_tokens_to_keep=least), scores)) for by in (MORE, LESS)
    )
    lies_between(found, scores, fewer, more)


SIZE = 151_936
AT_FULL_SIZE: Mapping[str, tuple[Rule, Any]] = {
    "temperature": (sampling.temperature(0.7), theirs.TemperatureLogitsWarper(0.7)),
    "top_k": (sampling.top_k(50), theirs.TopKLogitsWarper(50)),
    "a large top_k": (sampling.top_k(50_000), theirs.TopKLogitsWarper(50_000)),
    "top_p": (sampling.top_p(0.95), theirs.TopPLogitsWarper(0.95)),
    "min_p": (sampling.min_p(0.05), theirs.MinPLogitsWarper(0.05)),
    "typical": (sampling.typical_p(0.9), theirs.TypicalLogitsWarper(0.9)),
    "epsilon_cutoff": (sampling.epsilon_cutoff(3e-4), theirs.EpsilonLogitsWarper(3e-4)),
    "eta_cutoff": (sampling.eta_cutoff(2e-3), theirs.EtaLogitsWarper(2e-3)),
}


@pytest.mark.parametrize("name", AT_FULL_SIZE)
@pytest.mark.parametrize("peak", [0.0, 12.0])
def test_shaping_rules_equal_the_reference_at_full_vocabulary_size(name: str, peak: float) -> None:
    draw = np.random.default_rng(7)
    scores = (draw.standard_normal(SIZE) * 2.5).astype(np.float32)
    scores[draw.integers(0, SIZE, 20)] += np.float32(peak)
    ours, other = AT_FULL_SIZE[name]
    found = ours(field(scores), history_of()).full_scores(SIZE)
    np.testing.assert_allclose(found, reference(other, scores), rtol=1e-6)


# ---- shaping, in plain Python


@property_of(vectors(), st.floats(0.01, 6))
def test_top_n_sigma_keeps_what_is_near_the_best(scores: Any, n: float) -> None:
    finite = [score for score in scores.tolist() if score > -math.inf]
    mean = math.fsum(finite) / len(finite)
    sigma = math.sqrt(math.fsum((score - mean) ** 2 for score in finite) / len(finite))
    fewer, more = (
        [token for token, score in enumerate(scores.tolist()) if max(finite) - n * sigma * by <= score > -math.inf]
        for by in (LESS, MORE)
    )
    lies_between(after(sampling.top_n_sigma(n), scores), scores, fewer, more)


@property_of(vectors(), st.floats(0, 1), st.floats(0.001, 0.7), st.integers(0, 1000))
def test_xtc_leaves_the_least_likely_of_the_likely(scores: Any, probability: float, threshold: float, seed: int) -> None:
    history = history_of(seed=seed)
    chances = softmax(scores)
    assume(all(abs(chance / threshold - 1) > NUDGE for chance in chances))
    likely = [token for token, chance in enumerate(chances) if chance >= threshold]
    expected = scores.copy()
    if history.draw(XTC) < probability and len(likely) > 1:
        likely.remove(min(likely, key=lambda token: float(scores[token])))
        expected[likely] = -np.inf
    np.testing.assert_array_equal(after(sampling.xtc(probability, threshold), scores, history), expected)


def test_xtc_is_drawn_as_often_as_it_should() -> None:
    scores = field([2, 2, 1])
    rule = sampling.xtc(0.3, 0.1)
    times = sum(rule(scores, history_of(index=index, seed=3)) is not scores for index in range(4000))
    assert abs(times - 1200) < 4 * math.sqrt(4000 * 0.3 * 0.7)


def test_xtc_never_leaves_nothing() -> None:
    found = sampling.xtc(1, 0)(field([1, -np.inf, 3]), history_of())
    assert found.scores.tolist() == [1, -np.inf, -np.inf]


surprisals = st.lists(st.floats(0, 20) | st.just(math.nan), max_size=30)


@property_of(vectors(), st.floats(0.1, 10), st.floats(0, 1), surprisals)
def test_mirostat_steers_by_the_surprisals(scores: Any, tau: float, eta: float, seen: list[float]) -> None:
    history = history_of()
    history.surprisals = seen
    mu = 2 * tau
    for surprise in seen:
        if surprise == surprise:
            mu -= eta * (surprise - tau)
    chances = softmax(scores)
    found = after(sampling.mirostat(tau, eta), scores, history)
    fewer, more = (
        {token for token, chance in enumerate(chances) if chance and -math.log2(chance) <= mu + by}
        | {token for token, score in enumerate(scores.tolist()) if score == scores.max()}
        for by in (-1e-4, 1e-4)
    )
    lies_between(found, scores, fewer, more)


# ---- penalties


@property_of(vectors(), texts, st.floats(0.5, 3))
def test_the_repetition_penalty_is_the_references(scores: Any, text: list[int], penalty: float) -> None:
    expected = reference(theirs.RepetitionPenaltyLogitsProcessor(penalty), scores, text)
    np.testing.assert_allclose(after(penalties.repetition(penalty), scores, split(text)), expected, rtol=1e-6)


@property_of(vectors(), texts, st.integers(1, 6))
def test_no_repeated_ngram_is_the_references(scores: Any, text: list[int], size: int) -> None:
    expected = reference(theirs.NoRepeatNGramLogitsProcessor(size), scores, text)
    np.testing.assert_array_equal(after(penalties.no_repeat_ngram(size), scores, split(text)), expected)


@property_of(vectors(), texts, texts, st.floats(-2, 2))
def test_presence_and_frequency_count_what_was_chosen(scores: Any, prompt: Any, chosen: Any, penalty: float) -> None:
    history = history_of(chosen, prompt)
    for rule, times in (
        (penalties.presence(penalty), dict.fromkeys(chosen, 1)),
        (penalties.frequency(penalty), {token: chosen.count(token) for token in chosen}),
    ):
        expected = [score - penalty * times.get(token, 0) for token, score in enumerate(scores.tolist())]
        np.testing.assert_allclose(after(rule, scores, history), expected, rtol=1e-5, atol=1e-5)


def slow_dry(
    text: Sequence[int], multiplier: float, base: float, allowed: int, reach: int, breakers: Collection[int]
) -> dict[int, float]:
    """The definition: what each token is lowered by."""
    text = text[-reach:] if reach else text
    found: dict[int, float] = {}
    for end in range(len(text) - 1):
        length = 0
        while length <= end and text[end - length] == text[-1 - length] and text[end - length] not in breakers:
            length += 1
        if length >= max(allowed, 1) and text[end + 1] not in breakers:
            penalty = min(multiplier * base ** (length - allowed), penalties.MOST)
            found[text[end + 1]] = max(penalty, found.get(text[end + 1], 0))
    return found


@property_of(
    vectors(), texts | st.lists(st.integers(0, 1), max_size=60), st.floats(0.1, 3), st.sampled_from([1.0, 1.02, 1.75, 4.0]),
    st.integers(0, 4), st.integers(0, 45), st.sets(words, max_size=2), examples=200,
)  # fmt: skip
def test_dry_is_its_definition(
    scores: Any, text: Any, multiplier: float, base: float, allowed: int, reach: int, breakers: set[int]
) -> None:
    found = after(penalties.dry(multiplier, base, allowed, reach, breakers), scores, split(text))
    lowered = slow_dry(text, multiplier, base, allowed, reach, breakers)
    expected = [score - lowered.get(token, 0) for token, score in enumerate(scores.tolist())]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["words", "a loop", "one token"])
def test_dry_of_a_long_text_is_its_definition(kind: str) -> None:
    draw = np.random.default_rng(5)
    text = draw.integers(0, 40, 8000)
    if kind == "a loop":
        text = np.tile(text[:50], 160)
    text[-300:] = text[1000:1300]
    if kind == "one token":
        text = np.full(900, 3)
    rule = penalties.dry(0.8, 1.75, 2, 0, {7})
    found = after(rule, np.zeros(50, np.float32), history_of([], text.tolist()))
    lowered = slow_dry(text.tolist(), 0.8, 1.75, 2, 0, {7})
    assert lowered
    np.testing.assert_allclose(found, [-lowered.get(token, 0) for token in range(50)], rtol=1e-5)


def test_dry_never_makes_infinity() -> None:
    found = after(penalties.dry(1e13, 9.0, 1), np.zeros(5, np.float32), history_of([3] * 60))
    assert found.tolist() == [0, 0, 0, -np.float32(penalties.MOST), 0]


def test_a_text_of_nothing_has_nothing_to_repeat() -> None:
    scores = field([1, 2, 3])
    for rule in (penalties.dry(1, 2, 0), penalties.no_repeat_ngram(1), penalties.repetition(2), penalties.frequency(1)):
        assert rule(scores, history_of(prompt=())) is scores


# ---- named tokens

sequences = st.lists(words, min_size=1, max_size=4)


@property_of(vectors(8), texts, st.dictionaries(sequences.map(tuple), st.floats(-9, 9), min_size=1, max_size=12))
def test_sequence_bias_is_the_references(scores: Any, text: list[int], biases: Any) -> None:
    expected = reference(theirs.SequenceBiasLogitsProcessor(biases), scores, text)
    np.testing.assert_allclose(after(constraints.sequence_bias(biases), scores, split(text)), expected, rtol=1e-5, atol=1e-5)


@property_of(vectors(8), texts, st.lists(sequences, min_size=1, max_size=8), st.lists(words, max_size=3))
def test_bad_words_are_the_references(scores: Any, text: list[int], bad: list[list[int]], eos: list[int]) -> None:
    found = after(constraints.bad_words(bad, eos), scores, split(text))
    if all(len(one) == 1 and one[0] in eos for one in bad):  # which the reference refuses
        expected = scores
    else:
        expected = reference(theirs.NoBadWordsLogitsProcessor(bad, eos), scores, text)
    np.testing.assert_array_equal(found, expected)


some_ids = st.lists(st.integers(0, 50), max_size=9)


@property_of(vectors(), st.dictionaries(st.integers(-3, 50), st.floats(-9, 9) | st.just(-math.inf), max_size=9))
def test_a_logit_bias_is_added(scores: Any, biases: dict[int, float]) -> None:
    expected = [score + biases.get(token, 0) for token, score in enumerate(scores.tolist())]
    np.testing.assert_allclose(after(constraints.logit_bias(biases), scores), expected, rtol=1e-5, atol=1e-5)


@property_of(vectors(), some_ids)
def test_only_the_allowed_stay_and_the_suppressed_go(scores: Any, ids: list[int]) -> None:
    expected = [score if token in ids else -math.inf for token, score in enumerate(scores.tolist())]
    np.testing.assert_array_equal(after(constraints.allowed(ids), scores), expected)
    expected = reference(theirs.SuppressTokensLogitsProcessor(ids), scores)
    np.testing.assert_array_equal(after(constraints.suppressed(ids), scores), expected)


@property_of(vectors(), some_ids, st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_the_suppressed_at_first_are_the_references(
    scores: Any, ids: list[int], prompt: int, chosen: int, forced: bool
) -> None:
    begin = prompt if prompt > 1 or not forced else prompt + 1
    expected = reference(theirs.SuppressTokensAtBeginLogitsProcessor(ids, begin), scores, [2] * (prompt + chosen))
    history = history_of([2] * chosen, [2] * prompt)
    np.testing.assert_array_equal(after(constraints.suppressed_first(ids, forced), scores, history), expected)


@property_of(vectors(8), words, st.lists(words, min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 3))
def test_forced_tokens_are_the_references(scores: Any, first: int, last: list[int], prompt: int, chosen: int) -> None:
    history, text = history_of([2] * chosen, [2] * prompt, room=4), [2] * (prompt + chosen)
    expected = reference(theirs.ForcedBOSTokenLogitsProcessor(first), scores, text)
    np.testing.assert_array_equal(after(constraints.forced_first(first), scores, history), expected)
    expected = reference(theirs.ForcedEOSTokenLogitsProcessor(prompt + 4, last), scores, text)
    np.testing.assert_array_equal(after(constraints.forced_last(last), scores, history), expected)


@property_of(vectors(), some_ids, st.integers(0, 8), st.integers(1, 4), st.integers(0, 4))
def test_min_length_and_min_new_tokens_are_the_references(
    scores: Any, eos: list[int], count: int, prompt: int, chosen: int
) -> None:
    history, text = history_of([2] * chosen, [2] * prompt), [2] * (prompt + chosen)
    expected = reference(theirs.MinLengthLogitsProcessor(count, eos), scores, text)
    np.testing.assert_array_equal(after(constraints.min_length(count, eos), scores, history), expected)
    expected = reference(theirs.MinNewTokensLengthLogitsProcessor(prompt, count, eos), scores, text)
    np.testing.assert_array_equal(after(constraints.min_new_tokens(count, eos), scores, history), expected)


# ---- what holds for all of them

SHAPING: Mapping[str, Rule] = {
    "temperature": sampling.temperature(0.5),
    "top_k": sampling.top_k(3),
    "top_p": sampling.top_p(0.8),
    "min_p": sampling.min_p(0.2),
    "typical": sampling.typical_p(0.8),
    "epsilon_cutoff": sampling.epsilon_cutoff(0.05),
    "eta_cutoff": sampling.eta_cutoff(0.05),
    "top_n_sigma": sampling.top_n_sigma(1.0),
    "xtc": sampling.xtc(1.0, 0.1),
    "mirostat": sampling.mirostat(2.0, 0.1),
}
LOWERING: Mapping[str, Rule] = {
    "repetition": penalties.repetition(1.3),
    "presence": penalties.presence(0.5),
    "frequency": penalties.frequency(0.5),
    "dry": penalties.dry(0.8, 1.75, 1),
    "logit_bias": constraints.logit_bias({1: 2.0, 4000: 1.0}),
    "sequence_bias": constraints.sequence_bias({(2,): 1.0, (1, 2): 3.0}),
}
BANNING: Mapping[str, Rule] = {
    "no_repeat_ngram": penalties.no_repeat_ngram(1),
    "bad_words": constraints.bad_words([[3], [1, 2]]),
    "allowed": constraints.allowed([0, 1, 2, 5]),
    "suppressed": constraints.suppressed([0, 1]),
    "suppressed_first": constraints.suppressed_first([2]),
    "min_length": constraints.min_length(10, [6]),
    "min_new": constraints.min_new_tokens(10, [6]),
}
EVERY = {**SHAPING, **LOWERING, **BANNING}


@property_of(vectors(), texts, st.lists(st.sampled_from(sorted(EVERY)), max_size=6))
def test_rules_work_in_any_order(scores: Any, text: list[int], names: list[str]) -> None:
    """Each leaves a part of what it got, in order; and none but a ban empties a list."""
    history, now = split(text), field(scores)
    for name in names:
        with np.errstate(all="raise", under="ignore"):
            found = EVERY[name](now, history)
        ids = np.arange(found.scores.size) if found.ids is None else found.ids
        assert (np.diff(ids) > 0).all()
        assert not np.isnan(found.scores).any()
        assert kept(found.full_scores(scores.size)) <= kept(now.full_scores(scores.size))
        assert name in BANNING or not kept(now.scores) or kept(found.scores)
        now = field(*found)


@pytest.mark.parametrize("name", EVERY)
def test_a_list_with_nothing_in_play_passes_through(name: str) -> None:
    for nothing in (field([]), field([], []), field([-np.inf] * 9), field([-np.inf] * 3, [2, 5, 6])):
        with np.errstate(all="raise"):
            found = EVERY[name](nothing, history_of([1, 2, 1]))
        assert not kept(found.scores)


@pytest.mark.parametrize("name", EVERY)
def test_one_candidate_alone_survives_all_but_a_ban(name: str) -> None:
    only = field([-3], [7])
    found = EVERY[name](only, history_of([1, 2, 1]))
    assert (name == "allowed") == (not kept(found.scores))


@pytest.mark.parametrize(
    "rule",
    [
sampling.temperature(1), sampling.top_k(9), sampling.top_k(1, min_keep=9), sampling.top_p(1),
        sampling.top_p(1 - 1e-12), sampling.min_p(0), sampling.typical_p(1 - 1e-12),
        sampling.typical_p(0.1, min_keep=9), sampling.epsilon_cutoff(1e-9), sampling.eta_cutoff(1e-9),
        sampling.top_n_sigma(99), sampling.xtc(0, 0.01), sampling.xtc(1, 0.6), sampling.mirostat(99, 0.1),
        penalties.repetition(1), penalties.presence(0), penalties.frequency(0), penalties.dry(0, 2, 1),
        penalties.dry(1, 2, 9), penalties.dry(1, 2, 1, dry_breakers=[1]), penalties.no_repeat_ngram(4),
        constraints.logit_bias({}), constraints.logit_bias({1: 0.0}), constraints.logit_bias({99: 1.0, -1: 1.0}),
        constraints.sequence_bias({(2, 2): 1.0}), constraints.bad_words([[1]], [1]), constraints.bad_words([]),
        constraints.allowed(range(99)), constraints.suppressed([99, -1]), constraints.suppressed([]),
        constraints.suppressed_first([1]), constraints.forced_first(1), constraints.forced_last([1]),
        constraints.min_length(4, [1]), constraints.min_new_tokens(3, [1]),
    ],
)  # fmt: skip
def test_a_rule_that_changes_nothing_gives_the_same_list(rule: Rule) -> None:
    scores = field([1, 2, 0.5, 0, -1])
    assert rule(scores, history_of([2, 1, 2, 1][1:])) is scores


def test_a_ban_of_what_is_out_already_changes_nothing() -> None:
    scores = field([1, -np.inf, 2])
    assert constraints.suppressed([1])(scores, history_of()) is scores


@pytest.mark.parametrize("ids", [None, [4, 6, 9]])
def test_ids_that_are_not_there_are_ignored(ids: Any) -> None:
    scores, history = field([1, 2, 3], ids), history_of([-5, 1000], [1000])
    for rule in (
        penalties.repetition(2), penalties.presence(1), penalties.frequency(1), penalties.dry(1, 2, 1),
        penalties.no_repeat_ngram(1), constraints.logit_bias({1000: 1, -1: 1}), constraints.sequence_bias({(1000, 1000): 1}),
        constraints.bad_words([[1000], [-1]]), constraints.suppressed([1000, -1]), constraints.min_new_tokens(9, [1000]),
    ):  # fmt: skip
        assert rule(scores, history) is scores


def test_what_is_forced_need_not_be_in_play() -> None:
    for scores in (field([1, -np.inf, 3]), field([1, 3], [0, 2])):
        found = constraints.forced_first(1)(scores, history_of())
        assert (found.scores.tolist(), found.ids.tolist()) == ([0], [1])  # type: ignore[union-attr]
        found = constraints.forced_last([2, 1, 2])(scores, history_of(room=1))
        assert (found.scores.tolist(), found.ids.tolist()) == ([0, 0], [1, 2])  # type: ignore[union-attr]


def test_what_is_forced_must_be_in_the_vocabulary() -> None:
    scores = field([1, 2, 3])
    assert constraints.forced_first(3)(scores, history_of()) is scores
    found = constraints.forced_last([2, 3])(scores, history_of(room=1))
    assert found.ids is not None
    assert found.ids.tolist() == [2]


def test_ties_with_the_kth_stay() -> None:
    found = sampling.top_k(2)(field([1, 3, 2, 2, 0]), history_of())
    assert found.ids is not None
    assert found.ids.tolist() == [1, 2, 3]


def test_of_equals_at_the_edge_of_top_p_the_first_stay() -> None:
    found = sampling.top_p(0.5)(field([0] * 4), history_of())
    assert found.ids is not None
    assert found.ids.tolist() == [0, 1]
