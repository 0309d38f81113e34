"""Path patching against the same by hand, with hooks on the reference's own modules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see.patching.view import PathPatching
from glassformer.see.schema import schema
from tests.see.models import EXECUTORS, Both, both, encoder, folder

FIRST, SECOND = "the cat sat", "the bat sat"
TOKENS = {"answer": 4, "against": 5}
START = 4  # the first position that differs


@pytest.fixture(params=["gpt2", "llama"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=EXECUTORS)
def pair(family: str, request: pytest.FixtureRequest) -> Both:
    return both(family, request.param)


class ByHand:
    """The two passes of a path, on the reference."""

    def __init__(self, pair: Both) -> None:
        self.pair, self.config = pair, pair.reference.config
        self.gpt2 = pair.family == "gpt2"
        self.blocks = pair.reference.transformer.h if self.gpt2 else pair.reference.model.layers
        self.heads = self.config.num_attention_heads
        self.size = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
        self.first, self.second = (pair.model.read(text) for text in (FIRST, SECOND))
        self.cached = [self.cache(text) for text in (self.first, self.second)]

    def mixer(self, block: int) -> Any:
        """The module that mixes a block's heads: what it reads are their outputs."""
        return self.blocks[block].attn.c_proj if self.gpt2 else self.blocks[block].self_attn.o_proj

    @contextmanager
    def inputs(self, module: Any, edit: Any) -> Iterator[None]:
        handle = module.register_forward_pre_hook(lambda _, args: (edit(args[0]), *args[1:]))
        yield
        handle.remove()

    @contextmanager
    def outputs(self, module: Any, edit: Any) -> Iterator[None]:
        handle = module.register_forward_hook(lambda _, __, output: edit(output))
        yield
        handle.remove()

    def scores(self, text: Any) -> Any:
        return self.pair.run(text).logits[0, -1]

    def lead(self, scores: Any) -> float:
        return float(scores[4] - scores[5])

    def cache(self, text: Any) -> dict[str, Any]:
        """What each block's mixer reads, and what each MLP returns."""
        kept: dict[str, Any] = {}
        with ExitStack() as hooks:
            for number, block in enumerate(self.blocks):
                hooks.enter_context(self.inputs(self.mixer(number), self.keep(kept, f"heads{number}")))
                hooks.enter_context(self.outputs(block.mlp, self.keep(kept, f"mlp{number}")))
            self.scores(text)
        return kept

    @staticmethod
    def keep(kept: dict[str, Any], name: str) -> Any:
        def edit(value: Any) -> Any:
            kept[name] = value.clone()
            return value

        return edit

    def span(self, head: int, size: int | None = None) -> slice:
        return slice(head * (size or self.size), (head + 1) * (size or self.size))

    def projection(self, block: int, what: str, head: int) -> tuple[Any, slice]:
        """The module that makes a head's query, key or value, and its columns."""
        if not self.gpt2:
            return getattr(self.blocks[block].self_attn, f"{what[0]}_proj"), self.span(head)
        offset = ("query", "key", "value").index(what) * self.config.hidden_size
        return self.blocks[block].attn.c_attn, slice(offset + head * self.size, offset + (head + 1) * self.size)

    def sent(self, sender: str, freeze_mlps: bool, hooks: ExitStack) -> None:
        """Hooks of the first pass: the sender is the first text's, what comes after it is frozen."""
        clean, corrupted = self.cached
        _, number, what, *more = sender.split(".")
        for block in range(len(self.blocks)):

            def heads(value: Any, block: int = block) -> Any:
                value = corrupted[f"heads{block}"].clone()
                if what == "attention" and block == int(number):
                    columns = self.span(int(more[-1]))
                    value[0, START:, columns] = clean[f"heads{block}"][0, START:, columns]
                return value

            hooks.enter_context(self.inputs(self.mixer(block), heads))
            if what == "mlp" and block == int(number):

                def own(value: Any, block: int = block) -> Any:
                    value = corrupted[f"mlp{block}"].clone()
                    value[0, START:] = clean[f"mlp{block}"][0, START:]
                    return value

                hooks.enter_context(self.outputs(self.blocks[block].mlp, own))
            elif freeze_mlps:
                hooks.enter_context(self.outputs(self.blocks[block].mlp, lambda _, b=block: corrupted[f"mlp{b}"]))

    def path(self, sender: str, receivers: list[str], freeze_mlps: bool = False) -> float:
        arrived: dict[str, Any] = {}
        with ExitStack() as hooks:
            self.sent(sender, freeze_mlps, hooks)
            for receiver in receivers:
                self.receive(receiver, hooks, lambda value, name=receiver: self.keep(arrived, name)(value))
            scores = self.scores(self.second)
        if receivers != ["final"]:
            with ExitStack() as hooks:
                for receiver in receivers:
                    self.receive(
                        receiver, hooks, lambda value, name=receiver: self.put(receiver=name, value=value, arrived=arrived)
                    )
                scores = self.scores(self.second)
        clean, corrupted = self.lead(self.scores(self.first)), self.lead(self.scores(self.second))
        return (self.lead(scores) - corrupted) / (clean - corrupted)

    def receive(self, receiver: str, hooks: ExitStack, edit: Any) -> None:
        if receiver == "final":
            return
        _, block, what, which, *head = receiver.split(".")
        if what == "mlp":
            hooks.enter_context(self.inputs(self.blocks[int(block)].mlp, edit))
        else:
            module, _ = self.projection(int(block), which, int(head[0]))
            hooks.enter_context(self.outputs(module, edit))

    def put(self, receiver: str, value: Any, arrived: dict[str, Any]) -> Any:
        _, block, what, which, *head = receiver.split(".")
        if what == "mlp":
            return arrived[receiver]
        _, columns = self.projection(int(block), which, int(head[0]))
        value = value.clone()
        value[..., columns] = arrived[receiver][..., columns]
        return value


SENDERS = ("blocks.0.attention.heads.1", "blocks.0.mlp.update")
RECEIVERS = (
    ["final"], ["blocks.1.attention.query.0"], ["blocks.1.attention.key.1"], ["blocks.1.attention.value.0"],
    ["blocks.1.mlp.input"], ["blocks.1.attention.query.0", "blocks.1.attention.query.2", "blocks.1.mlp.input"],
)  # fmt: skip


@pytest.mark.parametrize("freeze_mlps", [False, True])
@pytest.mark.parametrize("sender", SENDERS)
def test_paths_by_hand_on_the_reference(pair: Both, sender: str, freeze_mlps: bool) -> None:
    by_hand, moved = ByHand(pair), 0.0
    for receivers in RECEIVERS:
        view = pair.model.patch_path(FIRST, SECOND, sender, receivers, freeze_mlps=freeze_mlps, **TOKENS)
        assert view.positions[0] == START
        (path,) = view.paths
        assert path.sender == sender
        with torch.no_grad():
            expected = by_hand.path(sender, receivers, freeze_mlps)
        assert path.value == pytest.approx(expected, abs=1e-3)
        moved = max(moved, abs(expected))
    assert moved > 0.01


def test_all_heads_by_themselves(pair: Both) -> None:
    view = pair.model.patch_path(FIRST, SECOND, receivers="blocks.1.attention.query", **TOKENS)
    heads = pair.model.config.num_attention_heads
    assert [path.sender for path in view.paths] == [f"blocks.0.attention.heads.{head}" for head in range(heads)]
    for path in view.paths:
        alone = pair.model.patch_path(FIRST, SECOND, path.sender, ["blocks.1.attention.query"], **TOKENS)
        assert alone.paths[0].value == pytest.approx(path.value, abs=1e-5)
    direct = pair.model.patch_path(FIRST, SECOND, **TOKENS)
    assert len(direct.paths) == heads * pair.model.blueprint.blocks
    assert direct.receivers == ("final",)
    last = pair.model.blueprint.blocks - 1
    whole = pair.model.patch(FIRST, SECOND, "heads", **TOKENS)  # nothing comes after the last block's heads but its MLP
    for head in range(heads):
        (path,) = (path for path in direct.paths if (path.block, path.head) == (last, head))
        assert path.value == pytest.approx(whole.at(last, head), abs=1e-4)


def test_everything_at_the_bottom_by_every_way(pair: Both) -> None:
    """The embedding to what the first block's attention and MLP read, and by nothing else, is not the whole text."""
    whole = pair.model.patch(FIRST, SECOND, "residual", [START], **TOKENS).at("embedding", START)
    assert whole == pytest.approx(1.0, abs=1e-3)
    view = pair.model.patch_path(FIRST, SECOND, "embedding", ["blocks.0.attention.input", "blocks.0.mlp.input"], **TOKENS)
    (path,) = view.paths
    assert path.block is path.head is None
    assert path.value != pytest.approx(1.0, abs=1e-3)  # the stream itself does not have it


def test_a_model_that_fills_gaps() -> None:
    model = encoder().model
    texts = ("the cat sat on [MASK]", "a cat sat on [MASK]")
    view = model.patch_path(*texts, "blocks.*.attention.heads", ["final"], answer=7, against=9)
    last = model.blueprint.blocks - 1
    whole = model.patch(*texts, "heads", answer=7, against=9)
    for path in view.paths:
        if path.block == last and path.head is not None:
            assert path.value == pytest.approx(whole.at(last, path.head), abs=1e-4)


def test_json_and_pictures() -> None:
    model = both("llama").model
    told: list[tuple[int, int]] = []
    view = model.patch_path(FIRST, SECOND, receivers="blocks.1.mlp.input", **TOKENS, progress=lambda *now: told.append(now))
    assert told == [(done, 2 * len(view.paths)) for done in range(1, 2 * len(view.paths) + 1)]
    for shown in (view, model.patch_path(FIRST, SECOND, freeze_mlps=True, **TOKENS)):
        jsonschema.validate(json.loads(json.dumps(shown.to_dict(), allow_nan=False)), schema(PathPatching))
        for width in (80, 120):
            text = plain_text(TerminalPage(shown.page(everything=True)), width)
            assert max(map(len, text.splitlines())) <= width
        best = shown.strongest[0]
        assert best.sender in text
        assert f"{best.value:+.1%}" in text
        assert ("layer 1" in text) == (len({path.block for path in shown.paths}) > 1)
        assert f"PathPatching({len(shown.paths)} senders" in repr(shown)
    assert "and the MLPs keep" in " ".join(text.split())


def test_the_command() -> None:
    place, _ = folder("gpt2", "causal")

    def glass(*words: str) -> Any:
        return CliRunner().invoke(app, ["patch", FIRST, SECOND, "-m", str(place), "--executor", "plain", *words])

    ends = ["--from", "blocks.0.mlp.update", "--to", "blocks.1.attention.query.0", "--to", "blocks.1.attention.key.1"]
    result = glass(*ends, "--answer", "#4", "--against", "#5", "--freeze-mlps", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    expected = both("gpt2").model.patch_path(FIRST, SECOND, ends[1], [ends[3], ends[5]], freeze_mlps=True, **TOKENS)
    assert {**json.loads(result.stdout), "model": ""} == {**json.loads(json.dumps(expected.to_dict())), "model": ""}
    for words, message in (
        (["--to", "final", "--part", "mlp"], "--part has no use with --to. Leave one of them out."),
        (["--freeze-mlps"], "--freeze-mlps goes with --from. Give --from too"),
    ):
        failed = glass(*words)
        assert failed.exit_code
        assert message in " ".join((failed.output + str(failed.exception)).split())
