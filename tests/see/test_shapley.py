"""Shapley values: against all orders of small games, their sum on every family, and what is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see import shapley
from glassformer.see.saliency import Saliency, spearman
from glassformer.see.schema import schema
from glassformer.see.shapley import shapley_values, student_quantile
from tests.parity.configs import DECODERS, PAIRS
from tests.see.models import both, encoder, folder
from tests.see.test_saliency import logits_of

pytestmark = pytest.mark.usefixtures("one_thread")
SENTENCE = "the cat sat on the mat"


def game_of(players: int, seed: int = 0) -> Any:
    """A game whose coalitions are worth anything."""
    worths = np.random.default_rng(seed).normal(size=2**players)
    return lambda coalitions: [float(worths[coalition]) for coalition in coalitions]


def by_all_orders(players: int, worth: Any) -> list[float]:
    """What each player adds where it joins, order by order."""
    sums, orders = [0.0] * players, list(permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            (before,), (after,) = worth([coalition]), worth([coalition | 1 << player])
            sums[player] += after - before
            coalition |= 1 << player
    return [total / len(orders) for total in sums]


@pytest.mark.parametrize("players", [1, 2, 3, 5, 6])
def test_few_players_are_exact(players: int) -> None:
    worth = game_of(players)
    found = shapley_values(players, worth, 32, 0, precise=True)
    np.testing.assert_allclose(found.values, by_all_orders(players, worth), atol=1e-12)
    assert (found.errors, found.half_widths, found.permutations, found.coalitions) == (None, None, 0, 2**players)
    assert found.values.sum() == pytest.approx(found.whole - found.empty)


def test_drawn_values_are_near_within_their_intervals_and_their_sum_is_exact() -> None:
    worth = game_of(7)
    expected = np.array(by_all_orders(7, worth))
    inside = []
    for seed in range(20):
        found = shapley_values(7, worth, 8, seed, precise=False)
        assert found.errors is not None
        assert found.half_widths is not None
        assert found.permutations == 16
        assert found.values.sum() == pytest.approx(found.whole - found.empty, abs=1e-12)
        np.testing.assert_allclose(found.half_widths, student_quantile(7) * found.errors)
        inside += list(abs(found.values - expected) <= found.half_widths)
    assert 0.9 < np.mean(inside) <= 1


def test_the_same_seed_draws_the_same_and_more_orders_begin_with_fewer() -> None:
    orders: list[list[int]] = []

    def noted(coalitions: Sequence[int]) -> list[float]:
        orders.append(list(coalitions))
        return game_of(12)(coalitions)

    first = shapley_values(12, noted, 4, 5, precise=False)
    few, orders[:] = list(orders), []
    again = shapley_values(12, noted, 6, 5, precise=False)
    assert orders[:4] == few[:4]
    assert not np.array_equal(first.values, again.values)
    np.testing.assert_array_equal(shapley_values(12, noted, 4, 5, precise=False).values, first.values)
    assert not np.array_equal(shapley_values(12, noted, 4, 6, precise=False).values, first.values)


def test_an_order_and_its_reverse_are_exact_where_players_act_in_twos() -> None:
    """A game of single players and pairs: so antithetic pairs are worth more than orders by themselves."""
    generator = np.random.default_rng(3)
    weights, pairs = generator.normal(size=10), generator.normal(size=(10, 10))

    def worth(coalitions: Sequence[int]) -> list[float]:
        members = [np.array([coalition >> player & 1 for player in range(10)]) for coalition in coalitions]
        return [float(member @ weights + member @ pairs @ member) for member in members]

    found = shapley_values(10, worth, 32, 0, precise=True)
    assert found.permutations == 2 * shapley.MIN_PAIRS  # which is precise enough at once
    assert found.errors is not None
    assert found.errors.max() < 1e-12
    np.testing.assert_allclose(
        found.values, weights + np.diag(pairs) + (pairs + pairs.T - 2 * np.diag(np.diag(pairs))).sum(0) / 2
    )


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (31, 2.040), (10**6, 1.960)]
)
def test_students_quantile(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=6e-3)


def test_ranks_that_are_shared_and_lists_without_order() -> None:
    assert spearman([1, 2, 3], [10, 20, 21]) == pytest.approx(1)
    assert spearman([1, 2, 3], [5, 4, -9]) == pytest.approx(-1)
    ranks = np.corrcoef([1, 2.5, 2.5, 4], [3.5, 1, 3.5, 2])[0, 1]
    assert spearman([0, 7, 7, 9], [8, 1, 8, 2]) == pytest.approx(ranks)
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([1], [2]) is None


# Of texts -------------------------------------------------------------------------------------------------------------
@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
def test_in_every_family_the_values_sum_to_the_difference(family: str) -> None:
    reading = both(family, "cpu").reading(SENTENCE, "a dog")
    for asked in ({"by": "words"}, {"permutations": 4}):
        view = reading.saliency(3, 5, method="shapley", **asked)
        assert view.sampling is not None
        assert view.value == pytest.approx(reading.saliency(3, 5).value, abs=1e-5)
        total = sum(token.value for token in view.tokens)
        assert total == pytest.approx(view.value - view.sampling.empty, abs=1e-6)
        assert (view.sampling.permutations == 4) == (asked != {"by": "words"})
        assert all((token.interval is None) == (view.sampling.permutations == 0) for token in view.tokens)


@pytest.mark.parametrize("executor", ["plain", "cpu"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "t5"])
def test_words_of_a_text_are_the_references_order_by_order(family: str, executor: str) -> None:
    pair = both(family, executor)
    reading = pair.reading("a dog sat on the cat", None)
    view = reading.saliency(3, 5, method="shapley", by="words")
    read = reading.source if pair.sourced else reading.ids
    players = [token.positions for token in view.tokens if token.in_source == pair.sourced]
    assert [token.text for token in view.tokens][:4] == ["a", "dog", "sat", "on"]
    assert len(players) == len(view.tokens)  # the target is the start token alone, which stays

    def worth(coalitions: Sequence[int]) -> list[float]:
        leads = []
        for coalition in coalitions:
            gone = {at for index, places in enumerate(players) if not coalition >> index & 1 for at in places}
            rest = [token for at, token in enumerate(read) if at not in gone]
            logits = logits_of(pair, reading.ids, rest) if pair.sourced else logits_of(pair, rest, None)
            leads.append(float(logits[3] - logits[5]))
        return leads

    known = worth(range(2 ** len(players)))
    expected = by_all_orders(len(players), lambda coalitions: [known[coalition] for coalition in coalitions])
    np.testing.assert_allclose(np.asarray(view), expected, atol=4e-3)


def test_a_word_is_left_out_with_all_of_its_places() -> None:
    reading = both("gpt2").reading()
    view = reading.saliency(3, 5, by="words")
    assert [token.text for token in view.tokens] == ["the", "cat", "sat", "on", "mat"]
    assert view.tokens[0].positions == (0, 1, 2, 15, 16, 17)
    rest = [token for at, token in enumerate(reading.ids) if at not in view.tokens[0].positions]
    shorter = reading.model.read_ids(rest).saliency(3, 5)
    assert view.tokens[0].value == pytest.approx(view.value - shorter.value, abs=1e-5)
    assert "how much each word matters" in str(view)


@pytest.mark.parametrize("head", ["masked", "sequence", "token", "question"])
def test_encoders_keep_what_their_tokenizer_adds(head: str) -> None:
    reading = encoder("bert", head).model.read("the [MASK] sat on")
    position = {"masked": None, "sequence": None}.get(head, 2)
    view = reading.saliency(1, position=position, method="shapley")
    special = {token.position for token in reading.tokens if token.special}
    kept = special if view.position is None else {*special, view.position}
    assert [token.position for token in view.tokens] == [at for at in range(len(reading.ids)) if at not in kept]
    assert view.sampling is not None
    assert sum(token.value for token in view.tokens) == pytest.approx(view.value - view.sampling.empty, abs=1e-5)


def test_interrupted_it_leaves_the_model_as_it_was() -> None:
    model = both("llama", "cpu").model
    reading = model.read(SENTENCE)
    before = reading.saliency(3, 5, method="shapley", permutations=4, seed=1)

    def interrupt(done: int, total: int) -> None:
        assert (done, total) == (1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reading.saliency(3, 5, method="shapley", permutations=4, progress=interrupt)
    assert reading.saliency(3, 5, method="shapley", permutations=4, seed=1) == before


def test_its_page_and_json_say_how_it_was_found() -> None:
    reading = both("gpt2").reading()
    exact, drawn = (
        reading.saliency(3, 5, method="shapley", by="words"),
        reading.saliency(3, 5, method="shapley", permutations=4),
    )
    for view in (exact, drawn):
        jsonschema.validate(json.loads(json.dumps(view.to_dict(), allow_nan=False)), schema(Saliency))
    assert "they are exact, from 16 texts" in str(exact)
    shown = plain_text(TerminalPage(drawn.page()), 80)
    assert "4 orders were drawn with the seed 0" in shown.replace("\n", " ")
    token = drawn.strongest[0]
    assert token.interval is not None
    assert f"{token.value:+.4f} ±{token.interval[1] - token.value:.4f}" in shown
    place, _ = folder("gpt2", "causal")
    arguments = ["saliency", "-m", str(place), "--raw", SENTENCE, "--of", "#3", "--against", "#5", "--json"]
    answer = CliRunner().invoke(app, [*arguments, "--method", "shapley", "--by", "words", "--executor", "plain"])
    assert answer.exit_code == 0, answer.output
    assert [token["value"] for token in json.loads(answer.stdout)["tokens"]] == pytest.approx(np.asarray(exact).tolist())
