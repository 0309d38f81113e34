"""Attention, lens, attribution and trace, of every family on every executor, against the reference."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import glassformer
from glassformer.ground.changes import Change
from glassformer.ground.errors import GlassError, InputError, NotNumbers, SiteError, TemplateError, WriteError
from glassformer.page.document import Grid
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see import activations
from glassformer.see.attention import AttentionMap
from glassformer.see.attribution import Attribution
from glassformer.see.schema import schema
from glassformer.see.view import View
from tests.see.models import EXECUTORS, TEXT, WRITERS, Both, both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = {"plain": 1e-4, "cpu": 3e-4}


@pytest.fixture(params=[(family, executor) for family in WRITERS for executor in EXECUTORS], ids="-".join)
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def valid(view: View) -> dict[str, Any]:
    """A view's JSON, as it comes out of a file, held against its schema."""
    found: dict[str, Any] = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    jsonschema.validate(found, schema(type(view)))
    return found


def fits(view: View) -> str:
    for width in (80, 120):
        shown = plain_text(TerminalPage(view.page()), width)
        assert max(map(len, shown.splitlines())) <= width
    return shown


def same(ours: Any, theirs: Any, bound: float = 3e-4) -> None:
    assert np.abs(np.asarray(ours) - np.asarray(theirs)).max() <= bound


class TestAttention:
    def test_every_map_is_the_references(self, pair: Both) -> None:
        reading = pair.reading()
        found = pair.run(reading)
        sides = {"self": found.decoder_attentions if pair.sourced else found.attentions}
        if pair.sourced:
            sides |= {"cross": found.cross_attentions, "encoder": found.encoder_attentions}
        for kind, layers in sides.items():
            for layer, weights in enumerate(layers):
                for head in range(weights.shape[1]):
                    same(reading.attention(layer, head, kind=kind), weights[0, head])
                same(reading.attention(layer, kind=kind), weights[0].mean(0))
            same(reading.attention(kind=kind), torch.stack(layers)[:, 0].mean((0, 1)))

    def test_rollout_by_the_plain_formula(self, pair: Both) -> None:
        reading = pair.reading()
        found = pair.run(reading)
        layers = found.decoder_attentions if pair.sourced else found.attentions
        ways = torch.eye(len(reading))
        for weights in layers:
            ways = (0.5 * weights[0].mean(0) + 0.5 * torch.eye(len(reading))) @ ways
        rolled = reading.attention(rollout=True)
        same(rolled, ways)
        assert np.allclose(rolled.weights.sum(1), 1, atol=1e-4)

    def test_habits_of_all_heads(self, pair: Both) -> None:
        reading = pair.reading()
        found = pair.run(reading)
        layers = found.decoder_attentions if pair.sourced else found.attentions
        heads = reading.heads()
        assert len(heads.summaries) == len(layers) * layers[0].shape[1]
        for habit in heads.summaries:
            weights = layers[habit.layer][0, habit.head].numpy()
            count = len(weights) - 1  # all but the first
            assert habit.first == pytest.approx(weights[1:, 0].mean(), abs=1e-3)
            assert habit.itself == pytest.approx(np.trace(weights[1:, 1:]) / count, abs=1e-3)
            assert habit.previous == pytest.approx(np.trace(weights, -1) / count, abs=1e-3)
            entropy = -(weights[1:] * np.log2(np.maximum(weights[1:], 1e-12))).sum(1).mean()
            assert habit.entropy == pytest.approx(entropy, abs=5e-3)
            copies, followers = [], []
            for at, token in enumerate(reading.ids):
                earlier = [before for before in range(at) if reading.ids[before] == token]
                after = [before + 1 for before in earlier if before + 1 < at]
                copies += [sum(weights[at, there] for there in earlier)] if earlier else []
                followers += [sum(weights[at, there] for there in after)] if after else []
            for told, shares in ((habit.duplicate, copies), (habit.induction, followers)):
                assert told == (pytest.approx(np.mean(shares), abs=1e-3) if shares else None)

    def test_habits_without_repeated_tokens(self) -> None:
        heads = both("gpt2").reading("abc").heads()
        assert {(habit.duplicate, habit.induction) for habit in heads.summaries} == {(None, None)}
        assert "the token before" in str(heads)
        assert "the same token earlier" not in str(heads)
        assert "no token comes twice" in str(heads)
        valid(heads)

    def test_habits_of_a_single_token(self) -> None:
        heads = both("gpt2").reading("a").heads()
        habit = heads.summaries[0]
        assert (habit.entropy, habit.first, habit.previous, habit.itself, habit.duplicate) == (0, None, None, None, None)
        assert str(heads).splitlines()[1:] == ["a single token can attend to itself only, so all heads do the same"]
        valid(heads)

    @pytest.mark.parametrize("kind", ["self", "cross", "encoder"])
    @pytest.mark.every_combination
    def test_maps_of_all_heads_are_each_heads_map_in_bytes(self, pair: Both, kind: Any) -> None:
        if kind != "self" and not pair.sourced:
            return
        reading = pair.reading()
        view = reading.attention_maps(kind=kind)
        layers, heads, *_ = view.maps.shape
        assert (view.first, layers, heads) == (0, view.layers, view.heads)
        for layer, head in np.ndindex(layers, heads):
            weights = np.asarray(reading.attention(layer, head, kind=kind))
            assert np.abs(view.maps[layer, head] / 255 - weights).max() <= 0.5 / 255 + 1e-6
            if not view.causal:
                continue
            query, key = np.indices(weights.shape)
            masked = (key > query) | (key <= query - (view.windows[layer] or len(weights)))
            assert not weights[masked].any()
            assert weights[~masked].all()
        assert view.causal == (kind == "self")
        assert kind in view.kinds
        assert (len(view.kinds) == 3) == pair.sourced
        assert np.array_equal(reading.attention_maps(layers - 1, kind=kind).maps, view.maps[-1:])
        valid(view)

    def test_maps_of_an_encoder_have_no_mask(self) -> None:
        view = encoder().model.read(TEXT).attention_maps()
        assert not view.causal
        assert view.maps[:, :, 0, -1].any()

    def test_maps_of_a_long_text_are_those_of_some_layers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reading = both("gpt2").reading()
        whole = reading.attention_maps()
        monkeypatch.setattr("glassformer.see.attention.MAX_MAPS_BYTES", whole.maps[:1].size)
        assert len(reading.attention_maps().windows) == 1
        assert np.array_equal(reading.attention_maps(1).maps, whole.maps[1:2])
        monkeypatch.setattr("glassformer.see.attention.MAX_MAPS_BYTES", 10)
        with pytest.raises(InputError, match="22 tokens"):
            reading.attention_maps()

    def test_a_map_of_a_long_text_keeps_its_measure(self) -> None:
        """A shade is a share of the strongest of all that a token looks at, also of what is not shown."""
        weights = np.zeros((60, 60), np.float32)
        weights[np.arange(60), np.arange(60)] = 0.2
        weights[:, 3] += 0.8  # which is not among those that are shown
        map_ = AttentionMap("tiny", "self", 0, 0, False, ("x",) * 60, ("x",) * 60, weights)
        page = map_.page()
        (grid,) = (part for part in page.parts if isinstance(part, Grid))
        assert grid.values[-1][-1] == pytest.approx(0.5)
        assert "48 of 60 tokens (--all); 80.4% of their weight is not shown" in str(map_)

    def test_one_token_twice_in_a_row_is_followed_by_itself(self) -> None:
        """Which is no induction: the copy's follower is the token that looks."""
        habit = both("gpt2").reading("xaa").heads().summaries[0]
        assert habit.duplicate is not None
        assert habit.induction is None

    def test_attention_of_one_token(self, pair: Both) -> None:
        reading = pair.reading()
        last = reading.attention(0, 0).of(-1)
        assert [one.weight for one in last.attended] == pytest.approx(reading.attention(0, 0)[-1].tolist())
        assert sum(one.weight for one in last.best) == pytest.approx(1, abs=1e-4)
        first = reading.attention(0, 0).of(0)
        assert [one.position for one in first.attended] == [0]
        assert last.best[0].weight == max(one.weight for one in last.attended)
        assert "no reason" not in fits(last)
        valid(last)

    def test_an_encoder(self) -> None:
        pair = encoder()
        reading = pair.model.read(TEXT)
        found = pair.run(reading)
        for layer, weights in enumerate(found.attentions):
            same(reading.attention(layer, 1), weights[0, 1])
        assert len(reading.attention(0, 0).of(0).attended) == len(reading)
        assert reading.heads().layers == len(found.attentions)

    def test_json_and_pictures(self) -> None:
        reading = both("qwen3").reading()
        for view in (reading.attention(0, 1), reading.attention(), reading.attention(rollout=True), reading.heads()):
            told = valid(view)
            assert "not why" in told["note"]
            assert "not why" in fits(view).replace("\n", " ")
        assert np.asarray(reading.attention(0, 1)).shape == reading.attention(0, 1).shape == (len(reading), len(reading))

    def test_a_token_that_is_not_there(self) -> None:
        found = both("qwen3").reading().attention(0, 0)
        with pytest.raises(InputError, match="token 99"):
            found.of(99)
        with pytest.raises(InputError, match="'xyz'"):
            found.of("xyz")
        assert found.of("-1").position == len(found.queries) - 1


class TestLens:
    def test_every_layer_is_the_references(self, pair: Both) -> None:
        reading = pair.reading()
        found = pair.run(reading)
        states = found.decoder_hidden_states if pair.sourced else found.hidden_states
        lens = reading.lens(range(len(reading)))
        end = found.logits[0].log_softmax(-1)
        for number, layer in enumerate(states[:-1]):
            logs = pair.unembedded(layer)[0].log_softmax(-1)
            for said, here, last in zip(lens.predictions[number], logs, end, strict=True):
                best = int(last.argmax())
                assert said.probability == pytest.approx(float(here.max().exp()), abs=2e-3)
                assert said.final == pytest.approx(float(here[best].exp()), abs=2e-3)
                divergence = float((last.exp() * (last - here)).sum()) / math.log(2)
                assert said.divergence == pytest.approx(divergence, abs=1e-2)
                assert said.entropy == pytest.approx(-float((here.exp() * here).sum()) / math.log(2), abs=1e-2)
        for said, last in zip(lens.final, end, strict=True):
            assert said.id == int(last.argmax())
            assert said.rank == 1
            assert said.divergence == pytest.approx(0, abs=1e-6)

    def test_json_and_pictures(self, pair: Both) -> None:
        lens = pair.reading().lens()
        assert lens.layers == ("embedding", "0", "1", "2")[: len(lens.layers)]
        assert lens.settled() in lens.layers
        valid(lens)
        shown = fits(lens)
        assert "KL to last" in shown

    def test_a_model_that_fills_gaps(self) -> None:
        pair = encoder()
        reading = pair.model.read("the [MASK] sat")
        lens = reading.lens(["[MASK]"])
        found = pair.run(reading)
        (at,) = lens.positions
        assert lens.final[0].id == int(found.logits[0, at].argmax())
        assert lens.final[0].probability == pytest.approx(float(found.logits[0, at].softmax(-1).max()), abs=1e-4)


def test_scores_are_a_site_like_others(pair: Both, tmp_path: Path) -> None:
    reading = pair.reading()
    wanted = pair.run(reading).logits[0]
    same(reading.at("scores"), wanted, 1e-3)
    (file,) = reading.record("scores", folder=tmp_path)
    same(np.load(file), wanted, 1e-3)


class TestAttribution:
    def test_it_sums_to_the_score(self, pair: Both) -> None:
        reading = pair.reading()
        scores = pair.run(reading).logits[0]
        for position in (0, len(reading) - 1):
            for token in (None, 3):
                found = reading.attribution(position, token, metric="logit")
                wanted = int(scores[position].argmax()) if token is None else token
                assert found.id == wanted
                assert found.score == pytest.approx(float(scores[position, wanted]), abs=2e-3)
                assert sum(part.value for part in found.contributions) == pytest.approx(found.score, abs=1e-5)
                assert abs(rounding(found)) < 2e-3

    def test_a_lead_is_the_difference_of_two_scores(self, pair: Both) -> None:
        reading = pair.reading()
        one, other, lead = (reading.attribution(-1, *tokens) for tokens in ((3,), (4,), (3, 4)))
        assert lead.score == pytest.approx(one.score - other.score, abs=1e-4)
        assert lead.against == other.text
        for found in ("contributions", "heads"):
            values = ([part.value for part in getattr(view, found)] for view in (lead, one, other))
            for both_ways, mine, theirs in zip(*values, strict=True):
                assert both_ways == pytest.approx(mine - theirs, abs=2e-3)
        assert "lead over" in fits(lead)

    def test_by_default_it_is_the_lead_over_the_runner_up(self, pair: Both) -> None:
        reading = pair.reading()
        scores = pair.run(reading).logits[0, -1]
        first, second, third = scores.topk(3).indices.tolist()
        for token, rival in ((None, second), (first, second), (third, first)):
            found = reading.attribution(-1, token)
            assert found == reading.attribution(-1, token, rival)
            assert found.score == pytest.approx(float(scores[found.id] - scores[rival]), abs=2e-3)
            graph = reading.graph(-1, token)
            assert (graph.against, graph.score) == (found.against, pytest.approx(found.score, abs=1e-4))

    def test_heads_sum_to_their_blocks_attention(self, pair: Both) -> None:
        """But for the bias of the product that mixes them."""
        found = pair.reading().attribution()
        model = pair.reference
        biased = any(name.endswith(("o_proj.bias", "out_proj.bias", "c_proj.bias")) for name, _ in model.named_parameters())
        for part in found.contributions:
            if part.name in ("attention", "cross"):
                heads = [one.value for one in found.heads if (one.name, one.block) == (part.name, part.block)]
                assert heads
                if not biased:
                    assert sum(heads) == pytest.approx(part.value, abs=2e-3)

    def test_parts_by_hand(self) -> None:
        """Of a Llama: each addition, through the last norm held at what it did, times the token's row of the head."""
        pair = both("llama")
        reading = pair.reading()
        found = reading.attribution(-1, 5, metric="logit")
        seen = pair.run(reading)
        model = pair.reference
        last = reading.at("blocks.2.residual")[-1]
        scale = 1 / math.sqrt(float((last**2).mean()) + model.config.rms_norm_eps)
        worth = (model.lm_head.weight[5] * model.model.norm.weight).detach().numpy() * scale
        expected = {("embedding", None): reading.at("embedding")[-1]}
        for block in range(3):
            expected["attention", block] = reading.at(f"blocks.{block}.attention.update")[-1]
            expected["mlp", block] = reading.at(f"blocks.{block}.mlp.update")[-1]
        for part in found.contributions:
            if part.name not in ("biases", "rounding"):
                assert part.value == pytest.approx(float(worth @ expected[part.name, part.block]), abs=1e-4)
        assert found.score == pytest.approx(float(seen.logits[0, -1, 5]), abs=1e-4)

    def test_centred_parts_are_held_against_the_mean_over_the_vocabulary(self, pair: Both) -> None:
        reading = pair.reading()
        logits = pair.run(reading).logits[0, -1]
        found = reading.attribution(-1, 3, centred=True)
        assert found.score == pytest.approx(float(logits[3] - logits.mean()), abs=2e-3)
        assert sum(part.value for part in found.contributions) == pytest.approx(found.score, abs=1e-5)
        assert abs(rounding(found)) < 2e-3
        assert "mean over the vocabulary is subtracted" in fits(found)
        assert reading.attribution(-1, 3, 4, centred=True).contributions == reading.attribution(-1, 3, 4).contributions

    def test_centred_heads_by_hand(self) -> None:
        """Of a Llama: with the mean row taken off the head, as TransformerLens does when it centres the unembedding."""
        pair = both("llama")
        reading = pair.reading()
        model = pair.reference
        last = reading.at("blocks.2.residual")[-1]
        scale = 1 / math.sqrt(float((last**2).mean()) + model.config.rms_norm_eps)
        row = model.lm_head.weight[5] - model.lm_head.weight.mean(0)
        worth = (row * model.model.norm.weight).detach().numpy() * scale
        heads = reading.at("blocks.1.attention.heads")[:, -1]
        mixing = model.model.layers[1].self_attn.o_proj.weight.detach().numpy().reshape(-1, *heads.shape)
        expected = np.einsum("o,ohs,hs->h", worth, mixing, heads)
        found = [head.value for head in reading.attribution(-1, 5, centred=True).heads if head.block == 1]
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_json_pictures_and_token_names(self) -> None:
        pair = both("gpt2")
        found = pair.reading().attribution(-1, "a")
        assert found.text == "a"
        assert pair.reading().attribution(-1, str(found.id + 100)).id == found.id + 100
        logs = pair.run(pair.reading()).logits[0, -1].log_softmax(-1)
        assert found.probability == pytest.approx(float(logs[found.id].exp()), abs=1e-5)
        assert found.rank == int((logs > logs[found.id]).sum()) + 1
        assert "which parts wrote a's lead over" in fits(found)
        assert "which parts wrote the score of a" in fits(pair.reading().attribution(-1, "a", metric="logit"))
        valid(found)


def rounding(found: Attribution) -> float:
    return next(part.value for part in found.contributions if part.name == "rounding")


class TestTrace:
    def test_a_given_text_is_the_references(self, pair: Both) -> None:
        reading = pair.reading()
        trace = reading.trace(best=3)
        logs = pair.run(reading).logits[0].log_softmax(-1)
        assert [place.position for place in trace.places] == list(range(1, len(reading) + 1))
        for place, here in zip(trace.places, logs, strict=True):
            assert [one.id for one in place.candidates] == here.topk(3).indices.tolist()
            assert place.entropy == pytest.approx(float(-(here.exp() * here).sum() / math.log(2)), abs=1e-3)
            if place.id is not None:
                assert place.surprisal == pytest.approx(float(-here[place.id] / math.log(2)), abs=1e-3)
                assert place.probability == pytest.approx(float(here[place.id].exp()), abs=1e-4)
                assert place.rank == int((here > here[place.id]).sum()) + 1
        assert trace.places[-1].id is None
        given = torch.tensor(reading.ids[1:])
        loss = float(torch.nn.functional.nll_loss(logs[:-1], given))
        assert trace.loss == pytest.approx(loss, abs=1e-4)
        assert trace.perplexity == pytest.approx(math.exp(loss), rel=1e-3)
        valid(trace)
        assert trace.surprisal == pytest.approx(loss / math.log(2), abs=1e-4)
        assert f"mean surprisal {trace.surprisal:.3f} bits" in fits(trace)

    def test_the_trace_of_a_run_is_that_of_its_steps(self, pair: Both) -> None:
        run = pair.model.watch(TEXT, max_new_tokens=5, do_sample=True, seed=3, eos_token_id=None)
        again = run.reading.trace(best=10)
        written = again.places[run.reading.prompt_length - 1 :]
        for place, step, other in zip(run.trace.places, run.steps, written, strict=False):
            assert (place.id, place.draw) == (step.id, step.draw)
            assert place.written
            assert other.id == place.id
            assert place.surprisal == pytest.approx(other.surprisal, abs=1e-3)
            assert place.entropy == pytest.approx(other.entropy, abs=1e-3)
        valid(run.trace)

    def test_a_model_that_fills_gaps_is_asked_at_each_place(self) -> None:
        pair = encoder()
        reading = pair.model.read(TEXT)
        trace = reading.trace()
        mask = pair.model.tokenizer.mask_token_id
        for place in trace.places:
            ids = list(reading.ids)
            assert place.id == ids[place.position]
            ids[place.position] = mask
            with torch.no_grad():
                logs = pair.reference(torch.tensor([ids])).logits[0, place.position].log_softmax(-1)
            assert place.surprisal == pytest.approx(float(-logs[place.id] / math.log(2)), abs=1e-3)
        assert len(trace.places) == len(reading) - 2  # all but [CLS] and [SEP]

    def test_one_token_has_nothing_before_it(self) -> None:
        model = both("gpt2").model
        trace = model.read("a").trace()
        assert (trace.loss, trace.tokens) == (None, 0)
        assert "nothing here was scored" in str(trace)


class TestActivations:
    def test_small_chunks_give_the_same(self, pair: Both, monkeypatch: pytest.MonkeyPatch) -> None:
        reading = pair.reading()
        whole = reading.at("blocks.1.attention.pattern"), reading.trace(), reading.heads()
        monkeypatch.setattr(activations, "CHUNK_BYTES", 2000)
        assert max(chunk.count for chunk in reading.chunks("blocks.*.residual", scored=True)) < len(reading)
        same(reading.at("blocks.1.attention.pattern"), whole[0], 1e-5)
        for one, other in zip(reading.trace().places, whole[1].places, strict=True):
            assert one.entropy == pytest.approx(other.entropy, abs=1e-4)
        for one, other in zip(reading.heads().summaries, whole[2].summaries, strict=True):
            assert one.first == pytest.approx(other.first, abs=1e-4)
            assert one.induction == pytest.approx(other.induction, abs=1e-4)

    def test_what_is_held_does_not_grow_with_the_layers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(activations, "CHUNK_BYTES", 20_000)
        reading = both("gpt2").reading("x" * 60)
        for pattern in ("blocks.0.attention.pattern", "blocks.*.attention.pattern", "*"):
            sizes = [sum(value.nbytes for value in chunk.sites.values()) for chunk in reading.chunks(pattern)]
            assert max(sizes) <= max(20_000, reading.cost(pattern).bytes // len(reading) + 1)

    def test_all_values_of_a_pattern_take_one_pass(self, pair: Both, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, runs = pair.reading(), []
        one_by_one = {site: reading.at(site) for site in reading.sites("blocks.*.residual", "blocks.0.*")}
        executor = type(reading.model.executor)
        run = executor.run
        monkeypatch.setattr(executor, "run", lambda self, feeds: runs.append(len(feeds)) or run(self, feeds))
        values = reading.values("blocks.*.residual", "blocks.0.*")
        assert runs == [1]
        assert values.keys() == one_by_one.keys()
        for site, value in values.items():
            assert np.array_equal(value, one_by_one[site]), site

    def test_an_encoder_goes_through_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reading = encoder().model.read(TEXT)
        whole = {site: value for chunk in reading.chunks("blocks.*.residual") for site, value in chunk.sites.items()}
        monkeypatch.setattr(activations, "CHUNK_BYTES", 1000)
        parts = list(reading.chunks("blocks.*.residual"))
        assert len(parts) > 1
        for part in parts:
            assert len(part.sites) == 1
            for site, value in part.sites.items():
                assert np.array_equal(value, whole[site])

    def test_recording(self, pair: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reading = pair.reading()
        told: list[tuple[int, int]] = []
        monkeypatch.setattr(activations, "CHUNK_BYTES", 4000)
        cost = reading.cost("*blocks.*.pattern", "embedding")
        files = reading.record("*blocks.*.pattern", "embedding", folder=tmp_path, progress=lambda *one: told.append(one))
        assert [file.stem for file in files] == list(cost.sites)
        assert sum(np.load(file).nbytes for file in files) == cost.bytes
        for file in files:
            same(np.load(file), reading.at(file.stem), 1e-5)
        assert told[-1] == (len(reading), len(reading))
        said: list[str] = []
        monkeypatch.setattr(activations, "warn", said.append)
        reading.record("*blocks.*.pattern", "embedding", folder=tmp_path)
        assert said == [f"recording {len(files)} sites of {len(reading)} tokens: 0.0 MB in {tmp_path}"]

    def test_recording_refusals(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        reading = both("gpt2").reading()
        with pytest.raises(SiteError, match="'blocks.0.residul'"):
            reading.at("blocks.0.residul")
        (tmp_path / "file").write_text("")
        with pytest.raises(WriteError, match="cannot be written"):
            reading.record("embedding", folder=tmp_path / "file" / "inside")
        monkeypatch.setattr(type(reading), "cost", lambda self, *patterns: activations.Cost(("embedding",), 10**18))
        with pytest.raises(InputError, match="recording takes 1000000000.0 GB, and .* has .* GB free"):
            reading.record("embedding", folder=tmp_path)

    def test_recording_every_site(self, tmp_path: Path) -> None:
        reading = encoder("bert", "base").model.read(TEXT)
        assert "scores" not in reading.sites("*")
        assert len(reading.record("*", folder=tmp_path)) == len(reading.model.blueprint.sites)

    def test_texts_longer_than_the_context_are_refused(self) -> None:
        model = both("gpt2").model
        with pytest.raises(InputError, match="not fit into"):
            model.read("x" * (model.config.context + 1))

    def test_reading_sites_changes_no_score(self, pair: Both) -> None:
        """Scores with every site read are those with none, bit for bit."""
        reading = pair.reading()
        plain, watched = (
            np.concatenate([chunk.scores for chunk in reading.chunks(*sites, scored=True, size=64)])  # type: ignore[misc]
            for sites in ((), ("*",))
        )
        assert np.array_equal(plain, watched)

    def test_no_row_stays_open(self) -> None:
        model = both("gpt2").model
        reading = model.read(TEXT)
        before = len(model.executor._cache.rows)
        next(iter(reading.chunks("embedding"))).sites  # noqa: B018
        chunks = reading.chunks("embedding")
        next(chunks)
        chunks.close()
        with pytest.raises(GlassError):
            reading.attention(50)
        assert len(model.executor._cache.rows) == before


def test_views_by_one_call_of_a_model_or_run() -> None:
    """Each is the long way's, by a call of the model or the run."""
    model = both("gpt2").model
    assert [token.id for token in model.tokens("the cat").tokens] == model.tokenizer("the cat")["input_ids"]
    several = both("t5").model.batch(["the", "the cat sat"], side="left")
    assert [list(row) for row in several.attention_mask] == [[0, 0, 1, 1], [1, 1, 1, 1]]
    found = model.strategies(TEXT, {"greedy": {}, "two": {"num_beams": 2}}, max_new_tokens=2, eos_token_id=None)
    assert [one.name for one in found.tried] == ["greedy", "two"]
    assert found.tried[0].text == model.chat(TEXT, max_new_tokens=2, eos_token_id=None)
    assert model.watch(TEXT, max_new_tokens=2, eos_token_id=None).caching().same
    assert repr(model.changed({"blocks.*.residual": Change()})).endswith("parameters, changed at 3 sites)")


@pytest.mark.parametrize("name", ["raw", "system", "tokenize", "prompt"])
def test_arguments_that_are_no_template_variables_are_refused(name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        both("gpt2").model.watch(TEXT, template={name: True})


def test_a_prompt_without_the_generation_prompt(tiny_qwen3: Path) -> None:
    model = glassformer.load(tiny_qwen3)
    whole, cut = (model.look("Hi", template={"add_generation_prompt": added}).prompt for added in (True, False))
    assert whole.startswith(cut)
    assert len(cut) < len(whole)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_lens_of_scores_that_are_not_numbers_is_refused(value: float) -> None:
    model = both("llama").model.changed({"blocks.0.residual": Change(scale=0, shift=value)})
    with pytest.raises(NotNumbers):
        model.read("the cat").lens()
