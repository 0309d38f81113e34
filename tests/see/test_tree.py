"""The decision tree, against plain uncached passes, on every shape that writes and on both executors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from rich.cells import cell_len

import glassformer
from glassformer.ground.errors import InputError, NotNumbers
from glassformer.page.html import html_document
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see import tree as growing
from glassformer.see.schema import schema
from glassformer.see.tree import SHOWN_LEVELS, SHOWN_NODES, Node, Tree, format_probability, node_count, walk
from glassformer.text.streaming import ends_inside_character
from tests.see.test_page import parsed
from tests.see.test_views import SHAPES, make

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the cat sat"
FAMILIES = ("qwen3", "gpt2", "t5")
EXECUTORS = ("plain", "cpu")
CASES = [  # each family on the fast executor, the slow one with one; the rest with the sweeps
    pytest.param(family, executor, marks=[pytest.mark.sweep] if executor == "plain" and family != "qwen3" else [])
    for family in FAMILIES
    for executor in EXECUTORS
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A tiny model of some family on some executor, made when first asked for."""
    folders: dict[str, Path] = {}
    made: dict[tuple[str, str], Any] = {}

    def get(family: str, executor: str = "plain") -> Any:
        if family not in folders:
            if family == "qwen3":
                folders[family] = request.getfixturevalue("tiny_qwen3")
            else:
                own, head, changes = SHAPES[family]
                folders[family] = make(tmp_path_factory.mktemp(family), own, head, **changes)
        if (family, executor) not in made:
            made[family, executor] = glassformer.load(folders[family], executor=executor)
        return made[family, executor]

    return get


@torch.no_grad()
def uncached(model: Any, ids: Sequence[int], path: Sequence[int]) -> torch.Tensor:
    """The scores of what follows a prompt and a path, by one pass over all of it."""
    if model.decoder_start_token is None:
        logits = model.module(torch.tensor([[*ids, *path]])).logits
    else:
        logits = model.module(
            torch.tensor([list(ids)]), decoder_input_ids=torch.tensor([[model.decoder_start_token, *path]])
        ).logits
    return logits[0, -1].double()


def held_against(model: Any, tree: Tree) -> int:
    """Check every node; how many there were."""
    seen = 0
    scores_after = cache(lambda path: uncached(model, tree.prompt_ids, path))
    for at, parent in walk(tree.root):
        if not parent.children:
            continue
        path = tree.path(at).ids
        scores = scores_after(path)
        shares = scores.softmax(-1)
        grown = [child.id for child in parent.children if not child.forced]
        assert grown == shares.topk(len(grown)).indices.tolist() or any(child.forced for child in parent.children)
        for child in parent.children:
            assert child.probability == pytest.approx(float(shares[child.id]), rel=2e-4)
            assert child.score == pytest.approx(float(scores[child.id]), abs=2e-4)
            assert child.greedy == (parent.greedy and child.id == int(scores.argmax()))
            wanted = math.prod(
                float(scores_after((*path, child.id)[:n]).softmax(-1)[(*path, child.id)[n]]) for n in range(len(path) + 1)
            )
            assert child.path_probability == pytest.approx(wanted, rel=1e-3)
            assert math.exp(child.path_logprob) == pytest.approx(child.path_probability)
            seen += 1
        order = [child.probability for child in parent.children]
        assert order == sorted(order, reverse=True)
    return seen


def left_open(model: Any) -> int:
    """Rows of a plain executor that nobody closed."""
    return len(model.executor._cache.rows)


class Spy:
    """Counts what an executor is asked for."""

    def __init__(self, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[list[tuple[int, ...]]] = []
        self.open: list[Any] = []
        self.most = self.forks = 0
        own = {name: getattr(executor, name) for name in ("open", "fork", "close", "run")}
        self._run = own["run"]

        def opened(row: Any) -> Any:
            self.open.append(row)
            self.most = max(self.most, len(self.open))
            return row

        def forked(row: Any, length: int | None = None) -> Any:
            self.forks += 1
            return opened(own["fork"](row, length))

        def closed(row: Any) -> None:
            self.open = [one for one in self.open if one is not row]
            own["close"](row)

        monkeypatch.setattr(executor, "open", lambda source=None: opened(own["open"](source)))
        monkeypatch.setattr(executor, "fork", forked)
        monkeypatch.setattr(executor, "close", closed)
        monkeypatch.setattr(executor, "run", self.run)

    def run(self, feeds: Sequence[Any]) -> Any:
        self.passes.append([tuple(feed.ids) for feed in feeds])
        return self._run(feeds)


class TestProbabilities:
    @pytest.mark.parametrize(("family", "executor"), CASES)
    def test_against_uncached_passes(self, loaded: Any, family: str, executor: str) -> None:
        model = loaded(family, executor)
        tree = model.tree(TEXT, width=3, depth=3, raw=True)
        assert held_against(model, tree) == tree.nodes
        assert tree.nodes <= 39
        assert tree.prompt_ids == model.encode(TEXT, raw=True)[1]
        assert (tree.width, tree.depth, tree.focus) == (3, 3, ())
        assert tree.root.id == (tree.prompt_ids[-1] if model.decoder_start_token is None else model.decoder_start_token)
        assert (tree.root.probability, tree.root.path_logprob, tree.root.score) == (1.0, 0.0, None)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_both_executors_grow_the_same(self, loaded: Any, family: str) -> None:
        one, other = (loaded(family, executor).tree(TEXT, width=4, depth=3, raw=True) for executor in EXECUTORS)
        for (at, node), (place, twin) in zip(walk(one.root), walk(other.root), strict=True):
            assert (at, node.id, node.greedy, node.finish) == (place, twin.id, twin.greedy, twin.finish)
            assert node.path_logprob == pytest.approx(twin.path_logprob, abs=1e-3)

    @pytest.mark.parametrize(("family", "executor"), CASES)
    def test_the_greedy_path_is_what_the_model_writes(self, loaded: Any, family: str, executor: str) -> None:
        model = loaded(family, executor)
        tree = model.tree(TEXT, width=2, depth=5, raw=True)
        run = model.watch(TEXT, raw=True, max_new_tokens=5, do_sample=False)
        assert tree.greedy.ids == tuple(step.id for step in run.steps)
        assert tree.greedy.at == (0,) * len(run.steps)
        assert tree.greedy.text == model.tokenizer.decode(list(tree.greedy.ids))
        assert tree.greedy.logprob == pytest.approx(sum(step.logprob for step in run.steps), abs=1e-4)

    def test_leaves_cover_a_part_of_all(self, loaded: Any) -> None:
        model = loaded("t5")
        tree = model.tree(TEXT, width=3, depth=2)
        leaves = [node for at, node in walk(tree.root) if at and not node.children]
        assert tree.leaves == len(leaves)
        assert tree.covered == pytest.approx(sum(leaf.path_probability for leaf in leaves))
        whole = model.tree(TEXT, width=model.config.vocab_size, depth=2)
        assert whole.covered == pytest.approx(1.0, abs=1e-5)
        assert tree.covered < whole.covered

    def test_the_likeliest_path(self, loaded: Any) -> None:
        """Of all that are long enough or have ended, whatever else has grown since."""
        tree = loaded("t5").tree(TEXT, width=12, depth=2)
        ended = {at: node for at, node in walk(tree.root) if len(at) == 2 or node.finish}
        assert tree.likeliest.at == max(ended, key=lambda at: ended[at].path_logprob)
        more = tree.grown(next(at for at, node in ended.items() if not node.finish), width=1, depth=1)
        assert more.likeliest == tree.likeliest

    def test_a_conversation(self, loaded: Any) -> None:
        model = loaded("qwen3")
        messages = [{"role": "user", "content": "hi"}]
        tree = model.tree(messages, width=2, depth=1, system="Be kind.", template={"enable_thinking": True})
        assert (tree.prompt, tree.prompt_ids) == model.encode(
            messages, system="Be kind.", template={"enable_thinking": True}
        )
        assert "Be kind." in tree.prompt

    def test_far_paths_do_not_vanish(self, loaded: Any) -> None:
        model = loaded("gpt2")
        tree = model.tree(TEXT, width=1, depth=1)
        worst = model.tree(TEXT, width=256, depth=1).root.children[-1].text
        tree = tree.forced([], worst * 90)
        node = tree.at(*tree.focus)
        assert len(tree.focus) == 90
        assert node.path_logprob < -500
        assert node.path_probability == pytest.approx(math.exp(node.path_logprob))
        assert tree.forced([], worst * 90) == tree


class TestOpenRows:
    @pytest.mark.parametrize(("family", "executor"), CASES)
    def test_a_level_is_one_batch(self, loaded: Any, family: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded(family, executor)
        spy = Spy(model.executor, monkeypatch)
        tree = model.tree(TEXT, width=3, depth=3, raw=True)
        prompt = tree.prompt_ids if model.decoder_start_token is None else (model.decoder_start_token,)
        inner = [[node for at, node in walk(tree.root) if len(at) == level and not node.finish] for level in (1, 2)]
        assert spy.passes[:3] == [[prompt], *([(node.id,) for node in level] for level in inner)]
        parts = [
            node
            for at, node in walk(tree.root)
            if len(at) == 3 and ends_inside_character(model.tokenizer.token_bytes(node.id))
        ]
        assert spy.passes[3:] == ([[(node.id,) for node in parts]] if parts else [])  # of characters that go on
        assert spy.open == []
        # the last of its kin takes its parent's row over
        parents = [1, len([node for node in inner[0] if any(not child.finish for child in node.children)])]
        assert spy.forks == sum(map(len, inner)) - sum(parents)

    def test_growth_closes_all_rows(self, loaded: Any) -> None:
        for family in FAMILIES:
            model = loaded(family)
            tree = model.tree(TEXT, raw=True).forced([0], "a")
            tree.grown(tree.focus, depth=2)
            assert left_open(model) == 0

    @pytest.mark.parametrize("executor", EXECUTORS)
    def test_large_levels_go_through_in_parts(self, loaded: Any, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("gpt2", executor)
        whole = model.tree(TEXT, width=4, depth=4)
        monkeypatch.setattr(growing, "BATCH_ROWS", 5)
        spy = Spy(model.executor, monkeypatch)
        parts = model.tree(TEXT, width=4, depth=4)
        assert max(map(len, spy.passes)) == 5
        assert spy.most <= 5 * 4
        assert spy.open == []
        assert [(at, node.id) for at, node in walk(parts.root)] == [(at, node.id) for at, node in walk(whole.root)]
        for (_, one), (_, other) in zip(walk(parts.root), walk(whole.root), strict=True):
            assert one.path_logprob == pytest.approx(other.path_logprob, abs=1e-5)

    def test_long_rows_go_through_one_by_one(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("gpt2")
        monkeypatch.setattr(growing, "BATCH_TOKENS", 1)
        spy = Spy(model.executor, monkeypatch)
        model.tree(TEXT, width=3, depth=3)
        assert max(map(len, spy.passes)) == 1

    def test_a_single_path_forks_nothing(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("gpt2")
        spy = Spy(model.executor, monkeypatch)
        tree = model.tree(TEXT, width=1, depth=4)
        assert spy.forks == 0
        assert [len(at) for at, _ in walk(tree.root)] == list(range(len(tree.greedy.at) + 1))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_interrupted_growth_closes_all_rows(
        self, loaded: Any, at: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = loaded("gpt2")
        passes = 0
        run = model.executor.run

        def broken(feeds: Any) -> Any:
            nonlocal passes
            passes += 1
            if passes == at:
                raise error
            return run(feeds)

        monkeypatch.setattr(model.executor, "run", broken)
        with pytest.raises(error):
            model.tree(TEXT, width=3, depth=4)
        assert left_open(model) == 0

    def test_progress_may_interrupt_growth(self, loaded: Any) -> None:
        model = loaded("gpt2")

        def stop(done: int, total: int) -> None:
            if done > 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.tree(TEXT, width=3, depth=4, progress=stop)
        assert left_open(model) == 0

    def test_interrupted_forcing_closes_all_rows(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("gpt2")
        tree = model.tree(TEXT)
        run = model.executor.run
        monkeypatch.setattr(model.executor, "run", lambda feeds: run(feeds) if len(feeds[0].ids) > 1 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tree.forced([], "abc")
        assert left_open(model) == 0

    @pytest.mark.parametrize("family", ["gpt2", "t5"])
    def test_it_is_told_how_far_it_is(self, loaded: Any, family: str) -> None:
        told: list[tuple[int, int]] = []
        loaded(family).tree(TEXT, width=4, depth=3, progress=lambda *said: told.append(said))
        assert told == sorted(told)
        assert told[0][0] >= 4
        assert told[-1] == (4 + 16 + 64, 4 + 16 + 64)


class TestGrowingFurther:
    @pytest.mark.parametrize(("family", "executor"), CASES)
    def test_growing_further_equals_growing_at_once(self, loaded: Any, family: str, executor: str) -> None:
        model = loaded(family, executor)
        tree = model.tree(TEXT, width=3, depth=2, raw=True)
        tall = model.tree(TEXT, width=3, depth=4, raw=True)
        place = next(at for at, node in walk(tree.root) if len(at) == 2 and not node.finish and at != (0, 0))
        more = tree.grown(place)
        assert more.focus == place
        assert held_against(model, more) == more.nodes > tree.nodes

        def same(one: Node, other: Node) -> None:
            assert (one.id, one.greedy, one.finish) == (other.id, other.greedy, other.finish)
            assert one.path_logprob == pytest.approx(other.path_logprob, abs=1e-3)
            for child, twin in zip(one.children, other.children, strict=True):
                same(child, twin)

        same(more.at(*place), tall.at(*place))
        assert tree.at(*place).children == ()  # as it was
        again = model.tree(TEXT, width=3, depth=2, raw=True, at=place)
        assert again == more

    def test_an_inner_node(self, loaded: Any) -> None:
        """What is there stays; what is new comes to it, in its place."""
        model = loaded("gpt2")
        tree = model.tree(TEXT, width=2, depth=3)
        more = tree.grown([0], width=4, depth=1)
        assert [child.id for child in more.at(0).children[:2]] == [child.id for child in tree.at(0).children]
        assert more.at(0, 0).children[0].id == tree.at(0, 0, 0).id
        assert len(more.at(0).children) == 4
        assert more.nodes == tree.nodes + 2
        assert held_against(model, more) == more.nodes

    def test_from_the_root(self, loaded: Any) -> None:
        model = loaded("gpt2")
        small, large = model.tree(TEXT, width=2, depth=1), model.tree(TEXT, width=2, depth=3)
        assert [(at, node.id) for at, node in walk(small.grown(depth=3).root)] == [
            (at, node.id) for at, node in walk(large.root)
        ]

    def test_the_greedy_path_goes_on(self, loaded: Any) -> None:
        model = loaded("gpt2")
        tree = model.tree(TEXT, width=2, depth=2).grown([0, 0], depth=3)
        run = model.watch(TEXT, max_new_tokens=5, do_sample=False)
        assert tree.greedy.ids == tuple(step.id for step in run.steps)

    def test_finding_nodes(self, loaded: Any) -> None:
        tree = loaded("gpt2").tree(TEXT, width=3, depth=2)
        assert tree.at() is tree.root
        assert tree.at(0, 2) is tree.root.children[0].children[2]
        assert tree.path((0, 2)).ids == (tree.at(0).id, tree.at(0, 2).id)


class TestForcing:
    @pytest.mark.parametrize(("family", "executor"), CASES)
    def test_true_probabilities(self, loaded: Any, family: str, executor: str) -> None:
        model = loaded(family, executor)
        tree = model.tree(TEXT, width=2, depth=2, raw=True)
        place = next(at for at, node in walk(tree.root) if at and not node.finish)
        forced = tree.forced(place, " dogs sat")
        ids = tuple(model.tokenizer(" dogs sat", add_special_tokens=False)["input_ids"])
        assert len(ids) > 1
        path = forced.path(forced.focus)
        assert path.ids == (*tree.path(place).ids, *ids)
        assert [forced.at(*forced.focus[:n]).forced for n in range(len(place) + 1, len(path.ids) + 1)] == [True] * len(ids)
        assert not forced.at(*place).forced
        assert held_against(model, forced) == forced.nodes
        more = forced.grown(forced.focus, width=2, depth=2)
        assert held_against(model, more) == more.nodes == forced.nodes + node_count(2, 2)
        assert tree.nodes == len(list(walk(tree.root))) - 1  # as it was

    def test_what_is_there_already(self, loaded: Any) -> None:
        """It is marked, and keeps what has grown on it."""
        tree = loaded("gpt2").tree(TEXT, width=30, depth=2)
        text = next(child.text for child in tree.root.children if len(child.text) == 1 and not child.finish)
        forced = tree.forced([], text)
        assert forced.nodes == tree.nodes
        node = forced.at(*forced.focus)
        assert (node.forced, node.text, len(node.children)) == (True, text, 30)
        assert not tree.at(*forced.focus).forced

    def test_the_likeliest_one(self, loaded: Any) -> None:
        """Is on the greedy path, though it was forced; and growing finds it there."""
        model = loaded("qwen3")
        tree = model.tree(TEXT, width=1, depth=1, raw=True)
        wide = model.tree(TEXT, width=400, depth=1, raw=True)
        tokenizer = model.tokenizer
        whole = (child for child in wide.root.children if child.text)
        node = next(one for one in whole if tokenizer(one.text, add_special_tokens=False)["input_ids"] == [one.id])
        one = tree.forced([], node.text)
        assert one.at(*one.focus).greedy == (node.id == tree.at(0).id)
        assert one.at(*one.focus).probability == pytest.approx(node.probability, rel=1e-5)
        grown = one.grown(width=400, depth=1)
        assert [child.id for child in grown.root.children] == [child.id for child in wide.root.children]
        assert [child.forced for child in grown.root.children].count(True) == 1

    def test_nothing_grows_after_a_forced_end(self, loaded: Any) -> None:
        model = loaded("t5")
        tree = model.tree(TEXT, width=1, depth=1).forced([], "dog</s>")
        node = tree.at(*tree.focus)
        assert (node.text, node.finish) == ("</s>", "eos")


class TestEndTokens:
    @pytest.mark.parametrize("executor", EXECUTORS)
    def test_an_end_has_no_children(self, loaded: Any, executor: str) -> None:
        model = loaded("t5", executor)
        tree = model.tree(TEXT, width=12, depth=3)
        ends = [node for at, node in walk(tree.root) if at and node.id == 1]
        assert len(ends) == 1 + 11 + 121
        assert {(node.finish, node.children) for node in ends} == {("eos", ())}
        assert all(len(node.children) == 12 for at, node in walk(tree.root) if len(at) < 3 and node.id != 1)
        assert {node.finish for at, node in walk(tree.root) if node.id != 1} == {None}
        assert held_against(model, model.tree(TEXT, width=12, depth=2)) == 12 + 11 * 12

    def test_where_everything_ends(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("t5")
        monkeypatch.setattr(model.settings, "eos_token_id", list(range(12)))
        told: list[tuple[int, int]] = []
        tree = model.tree(TEXT, width=2, depth=3, progress=lambda *said: told.append(said))
        assert (tree.nodes, tree.leaves, told) == (2, 2, [(14, 14)])
        assert tree.likeliest.at == tree.greedy.at == (0,)
        assert left_open(model) == 0


class TestLimits:
    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"width": 0}, r"width is 0"),
            ({"width": 257}, r"width is 257"),
            ({"depth": 0}, r"depth is 0"),
            (
                {"width": 1, "depth": 246},
                r"11 tokens and 246 levels",
            ),
            ({"width": 1, "depth": 101}, r"101 levels"),
            (
                {"width": 10, "depth": 6},
                r"1,111,110 nodes",
            ),
            ({"width": 256, "depth": 99}, r"10\^238 nodes"),
            ({"at": [3]}, r"node 3: the root"),
            ({"at": [0, -1]}, r"node 0.-1"),
            ({"width": 1, "at": [0, 1]}, r"node 0.1"),
            ({"at": [0, 1, 2, 0]}, r"node 0.1.2.0"),
        ],
    )
    def test_growth_that_is_refused(self, loaded: Any, asked: dict[str, Any], said: str) -> None:
        model = loaded("gpt2")
        with pytest.raises(InputError, match=said):
            model.tree(TEXT, **asked)
        assert left_open(model) == 0

    def test_nothing_runs_before(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model = loaded("gpt2")
        spy = Spy(model.executor, monkeypatch)
        with pytest.raises(InputError, match="not fit into"):
            model.tree("a" * 254, depth=3)
        with pytest.raises(InputError, match="257 tokens"):
            model.tree("a" * 257)
        assert (spy.passes, spy.open) == ([], [])
        assert model.tree("a" * 253, depth=3, width=2).nodes == node_count(2, 3)  # to the last place

    def test_a_long_source(self, tmp_path: Path) -> None:
        """Has the encoder to itself; the target begins anew."""
        model = glassformer.load(make(tmp_path, "bart", "seq2seq", **SHAPES["bart"][2]))
        assert model.tree("the" + " the" * 62, width=1, depth=2).prompt_ids[-1] == 1
        with pytest.raises(InputError, match="65 tokens"):
            model.tree("the" + " the" * 63)
        with pytest.raises(InputError, match="1 token and 64 levels"):
            model.tree(TEXT, width=1, depth=64)

    def test_what_has_grown_counts(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = loaded("gpt2").tree(TEXT, width=3, depth=2)
        monkeypatch.setattr(growing, "MAX_NODES", 15)
        with pytest.raises(InputError, match="24 nodes"):
            tree.grown([0, 0])
        assert tree.grown([0, 0], width=3, depth=1).nodes == 15

    def test_an_encoder_writes_nothing(self, tmp_path: Path) -> None:
        model = glassformer.load(make(tmp_path, "bert", "masked"))
        with pytest.raises(InputError, match=r"encoder \(bert\)"):
            model.tree(TEXT)

    def test_scores_that_are_no_numbers(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken:
            def host(self, index: int = -1) -> Any:
                return np.full(256, np.nan, np.float32)

        model = loaded("gpt2")
        tree = model.tree(TEXT)
        monkeypatch.setattr(model.executor, "run", lambda feeds: [Broken() for _ in feeds])
        for ask in (lambda: model.tree(TEXT), lambda: tree.forced([0], "a")):
            with pytest.raises(NotNumbers):
                ask()
        assert left_open(model) == 0


def lines(tree: Tree, width: int = 80, everything: bool = False) -> list[str]:
    return plain_text(TerminalPage(tree.page(everything)), width).splitlines()


class TestPicture:
    def test_at_80_columns(self, loaded: Any) -> None:
        model = loaded("t5", "cpu")
        tree = model.tree(TEXT, width=2, depth=2)
        shown = lines(tree)
        assert max(map(cell_len, shown)) <= 80
        assert f"{tree.nodes} nodes after" in shown[0]
        assert shown[1] == "the 2 likeliest tokens at each of 2 levels"
        assert shown[2] == f"The {tree.leaves} leaves cover {format_probability(tree.covered)} of all that could follow."
        first = tree.at(0)
        assert (
            f"├─ ● {first.text.replace(' ', '␣')}  score {first.score:.1f} · {format_probability(first.probability)} · at 0"
            in shown
        )
        second = tree.at(0, 1)
        score = f"score {second.score:.1f} · {format_probability(second.probability)}"
        begin = f"│  └─ ○ {second.text.replace(' ', '␣') or '∅'}  {score} · path "
        (line,) = [line for line in shown if line.startswith(begin)]
        assert line.endswith("ends" if second.finish else "at 0.1")
        assert sum("●" in line for line in shown if "─" in line) == len(tree.greedy.at)
        assert f"{TEXT} ▶ <pad>" in shown
        assert shown[-1] == "to grow it from a node: --at 0.0, or tree.grown([0, 0]) in Python"
        assert str(tree) == plain_text(TerminalPage(tree.page()))
        assert repr(tree).startswith(f"Tree({tree.nodes} nodes, covering ")
        assert repr(first) == f"Node({first.text!r}, {first.probability:.1%}, {len(first.children)} children)"

    def test_the_likeliest_is_shown_where_it_is_another(self, loaded: Any) -> None:
        seen = set()
        for text in ("the", "cat", "a mat", "sat on"):
            tree = loaded("t5").tree(text, width=4, depth=3)
            other = tree.likeliest.at != tree.greedy.at
            assert any(line.startswith("○  likeliest") for line in lines(tree)) == other
            assert any(line.startswith("●  greedy") for line in lines(tree))
            assert tree.likeliest.logprob >= tree.greedy.logprob
            seen.add(other)
        assert seen == {True, False}

    def test_forced_and_grown(self, loaded: Any) -> None:
        tree = loaded("gpt2").tree(TEXT, width=2, depth=2).forced([0], "z")
        assert any("◆ z" in line for line in lines(tree))
        assert any("◆ forced" in line for line in lines(tree))
        (line,) = [line for line in lines(tree) if "; grown further at " in line]
        assert line.endswith(".".join(map(str, tree.focus)))
        assert not any("forced" in line for line in lines(loaded("gpt2").tree(TEXT)))

    def test_large_trees_are_shortened(self, loaded: Any) -> None:
        tree = loaded("gpt2").tree(TEXT, width=5, depth=3).grown([4, 4, 4])
        short, whole = lines(tree), lines(tree, everything=True)
        assert any("more (--all)" in line for line in short)
        assert any(line.startswith("Shown are the likeliest") and "--all shows all" in line for line in short)
        for line in short:
            if "· at " in line:
                assert line.split("─ ")[1] in "\n".join(whole)
        assert sum("· at " in line for line in short) < 2 * SHOWN_NODES + 20
        assert sum("○ " in line or "● " in line for line in whole if "─ " in line) == tree.nodes
        assert not any("--all" in line for line in whole)
        assert any("at 4.4.4.0.0" in line for line in short)  # what was asked for last
        assert any(f"at {'.'.join('0' * len(tree.greedy.at))}" in line for line in short)

    @pytest.mark.parametrize("everything", [True, False])
    def test_tall_trees_continue_below(self, loaded: Any, everything: bool) -> None:
        model = loaded("qwen3")
        tree = model.tree(TEXT, width=1, depth=40, raw=True)
        count = len(tree.greedy.at)
        assert count > 3 * SHOWN_LEVELS
        shown = lines(tree, everything=everything)
        assert max(map(cell_len, shown)) <= 80
        assert sum("─ ●" in line for line in shown) == count
        assert sum("more below" in line for line in shown) == (count - 1) // SHOWN_LEVELS
        assert f"continued from {'.'.join('0' * SHOWN_LEVELS)}:" in shown
        assert "the likeliest token at each of 40 levels" in shown
        assert shown[2].startswith("The leaf covers ")

    @pytest.mark.parametrize(("width", "depth"), [(3, 3), (2, 8), (256, 1), (12, 2)])
    def test_pictures_fit_80_columns(self, loaded: Any, width: int, depth: int) -> None:
        tree = loaded("gpt2").tree("x" * 100, width=width, depth=depth)
        for everything in (True, False):
            shown = lines(tree, everything=everything)
            assert max(map(cell_len, shown)) <= 80
            assert not any(ord(letter) < 32 for line in shown for letter in line)

    def test_html(self, loaded: Any) -> None:
        """Every byte is among the tokens, so all that HTML could stumble over."""
        tree = loaded("gpt2").tree('<script>alert("x")</script>&', width=256, depth=1)
        found = parsed(html_document(tree.page(everything=True)))
        assert "script" not in found.tags
        assert {"○ <", "○ >", "○ &", '○ "'} - {f"● {tree.at(0).text}".replace("●", "○")} <= {
            line.strip() for line in tag_texts(html_document(tree.page(everything=True)))
        }
        assert 'class="chosen"' in tree._repr_html_()
        assert '<script>alert("x")</script>&' in found.text

    def test_format_probability(self) -> None:
        values = ((0.25,), (0.00012,), (0.00000012,), (0.0, -1000.0), (0.0,), (1.0,))
        assert [format_probability(*value) for value in values] == [
            "25.0%",
            "0.012%",
            "1.2e-07",
            "5.1e-435",
            "0.0e+00",
            "100.0%",
        ]


def tag_texts(html: str) -> list[str]:
    from html.parser import HTMLParser

    found: list[str] = []
    reader = HTMLParser()
    reader.handle_data = found.append  # type: ignore[method-assign]
    reader.feed(html)
    return found


class TestJson:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_json_fits_its_schema(self, loaded: Any, family: str) -> None:
        tree = loaded(family).tree(TEXT, width=2, depth=2, raw=True)
        place = next(at for at, node in walk(tree.root) if at and not node.finish)
        checker = jsonschema.Draft202012Validator(schema(Tree))
        checker.check_schema(checker.schema)
        for one in (tree, tree.forced(place, "dogs"), tree.grown(place)):
            told = json.loads(json.dumps(one.to_dict(), allow_nan=False))
            checker.validate(told)
            assert told["schema"] == "glassformer.tree/1"
            assert told["root"]["children"][0]["id"] == one.at(0).id
            assert told["greedy"]["text"] == one.greedy.text
            assert told["nodes"] == one.nodes
            assert "writer" not in told
        told["root"]["children"][0]["extra"] = 1
        assert not checker.is_valid(told)

    def test_saved_files(self, loaded: Any, tmp_path: Path) -> None:
        tree = loaded("gpt2").tree(TEXT, width=5, depth=3)
        for ending in ("json", "html", "txt"):
            tree.save(tmp_path / f"tree.{ending}")
        assert json.loads((tmp_path / "tree.json").read_text())["nodes"] == tree.nodes
        assert "--all" not in (tmp_path / "tree.txt").read_text()
        assert (tmp_path / "tree.html").read_text().count("<li>") == tree.nodes + 1

    def test_a_tree_of_the_most_levels(self, loaded: Any, tmp_path: Path) -> None:
        tree = loaded("gpt2").tree(TEXT, width=1, depth=1).forced([], "z" * 100)
        for ending in ("json", "html", "txt"):
            assert tree.save(tmp_path / f"tree.{ending}").stat().st_size > 1000


class TestCharacters:
    """Tokens that are parts of a character are one node."""

    def test_a_branch_goes_on_until_the_character_is_whole(self, smollm2: Path) -> None:
        tree = glassformer.load("smollm2").tree("emoji: 👩", width=3, depth=2, raw=True)
        nodes = [node for at, node in walk(tree.root) if at]
        joined = [node for node in nodes if len(node.ids) > 1]
        assert joined
        assert not any("\\x" in node.text for node in nodes)
        assert {len(at) for at, node in walk(tree.root) if not node.children} == {2}
        for node in joined:
            assert node.score is None
            assert node.id == node.ids[0]
        assert "👩" in {node.text for node in joined}

    def test_forced_parts_of_a_character_are_one_node(self, smollm2: Path) -> None:
        model = glassformer.load("smollm2")
        tree = model.tree("emoji: 👩", width=3, depth=1, raw=True)
        grown = next(child for child in tree.root.children if len(child.ids) > 1)
        forced = tree.forced([], grown.text)
        node = forced.at(*forced.focus)
        assert (node.ids, node.forced) == (grown.ids, True)
        assert node.path_logprob == pytest.approx(grown.path_logprob, abs=1e-3)
        assert forced.path(forced.focus).ids == grown.ids
        assert len(forced.root.children) == len(tree.root.children)
        deeper = forced.grown(forced.focus, depth=1)
        assert len(deeper.at(*forced.focus).children) == 3
