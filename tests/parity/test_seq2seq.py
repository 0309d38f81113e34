"""Ours against the reference, for the encoder-decoders: states of both stacks, caches, ragged sources, generation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer
from glassformer.blueprints import read_config
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import CheckpointError, ConfigError, InputError, SiteError
from glassformer.ground.sites import Watch
from glassformer.model_files import open_model
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, load, pair, ragged, same_fields
from tests.site_names import usual_sites
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = [(family, seed) for family in reference.PAIRS for seed in range(3 if family == "t5" else 2)]
WIDE = swept((family, seed) for family in reference.PAIRS for seed in range(3, 23))
ALL = {"output_hidden_states": True, "output_attentions": True}
GREEDY: dict[str, Any] = {  # the reference's own cache has as many layers as the encoder, so it is asked without
    "do_sample": False, "num_beams": 1, "use_cache": False,
}  # fmt: skip
FORWARDS = ("relu", "gated-gelu", "gated-silu")  # by the seed, so that each is among the quick ones


def changes(family: str, seed: int) -> dict[str, Any]:
    kind = (
        {"feed_forward_proj": FORWARDS[seed % 3], "tie_word_embeddings": seed % 2 == 0}
        if family in ("t5", "mt5", "umt5")
        else {}
    )
    drawn = {**reference.random_changes(family, seed), **kind}
    if family == "t5gemma":  # with windows of one token, the reference's own cache gives another text than no cache
        drawn["decoder"]["sliding_window"] = max(2, drawn["decoder"]["sliding_window"])
    return drawn


@pytest.fixture(scope="module", params=[*QUICK, *WIDE], ids=lambda p: f"{p[0]}-{p[1]}")
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("seq2seq"), request.param[0], "seq2seq", **changes(*request.param))


def target(models: Pair, batch: int, length: int) -> Tensor:
    """A target as a decoder gets it."""
    ids = ids_for(models.theirs, batch, length, seed=8)
    ids[:, 0] = models.theirs.config.decoder_start_token_id
    return ids


@torch.no_grad()
def test_every_output_of_padded_pairs(models: Pair) -> None:
    """Sources and targets of different lengths; long enough for T5's far buckets."""
    _, source, there = ragged(models.theirs, (21, 6, 13))
    _, ids, mask = ragged(models.theirs, (17, 11, 4))
    inputs = {
        "input_ids": source, "attention_mask": there, "decoder_input_ids": ids, "decoder_attention_mask": mask,
    }  # fmt: skip
    expected, result = models.theirs(**inputs, **ALL), models.ours(**inputs, **ALL)
    encoder = ("encoder_last_hidden_state", "encoder_hidden_states", "encoder_attentions")
    decoder = ("logits", "decoder_hidden_states", "decoder_attentions", "cross_attentions")
    same_fields(result, expected, **dict.fromkeys(encoder, there), **dict.fromkeys(decoder, mask))
    assert bool(torch.isfinite(result.logits).all())


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_equals_the_row_alone(models: Pair, side: str) -> None:
    """Positions come from the mask, so padding on either side, of source or target, changes nothing."""
    sources, source, there = ragged(models.theirs, (12, 5, 9), side)
    targets, ids, mask = ragged(models.theirs, (10, 7, 3), side)
    result = models.ours(source, attention_mask=there, decoder_input_ids=ids, decoder_attention_mask=mask)
    for number, (one, other) in enumerate(zip(sources, targets, strict=True)):
        alone = models.ours(one[None], decoder_input_ids=other[None])
        close(result.logits[number][mask[number].bool()], alone.logits[0])
        close(result.encoder_last_hidden_state[number][there[number].bool()], alone.encoder_last_hidden_state[0])


@torch.no_grad()
def test_loss_without_decoder_input_ids(models: Pair) -> None:
    _, source, there = ragged(models.theirs, (9, 5))
    labels = ids_for(models.theirs, 2, 8, seed=6)
    labels[1, 5:] = -100
    by_ids = models.family == "m2m_100"  # the reference counts positions by the ids that are no padding
    labels[0, 3] = 9 if by_ids else -100
    expected, result = (m(source, attention_mask=there, labels=labels) for m in (models.theirs, models.ours))
    read = labels != -100 if by_ids else torch.ones_like(labels, dtype=torch.bool)
    close(result.logits[read], expected.logits[read])
    assert abs(float(result.loss) - float(expected.loss)) <= 1e-5 * float(expected.loss)


@torch.no_grad()
def test_no_target_at_all(models: Pair) -> None:
    """BART is given its source, one place later, mBART its language before it; T5 must be told."""
    source = ids_for(models.theirs, 2, 8)
    if models.family in ("bart", "mbart", "led"):
        same_fields(models.ours(source, **ALL), models.theirs(source, **ALL))
    else:
        with pytest.raises(InputError, match="decoder_input_ids"):
            models.ours(source)


@torch.no_grad()
def test_inputs_embeds_instead_of_ids(models: Pair) -> None:
    table = models.theirs.get_input_embeddings()
    own = models.theirs.get_decoder().embed_tokens if models.family == "t5gemma" else table  # the decoder's
    source, ids = ids_for(models.theirs, 2, 8), target(models, 2, 6)
    inputs = {"inputs_embeds": table(source), "decoder_inputs_embeds": own(ids)}
    expected, result = models.theirs(**inputs, **ALL), models.ours(**inputs, **ALL)
    same_fields(result, expected)
    if models.family not in ("marian", "pegasus", "blenderbot-small"):  # which scale a target's vectors, and not a source's
        close(result.logits, models.ours(source, decoder_input_ids=ids).logits, 1e-6)


@torch.no_grad()
def test_cached_equals_uncached(models: Pair) -> None:
    """By hand with past_key_values, in uneven chunks, the source encoded once."""
    _, source, there = ragged(models.theirs, (11, 6))
    ids = target(models, 2, 14)
    output = models.theirs(source, attention_mask=there, decoder_input_ids=ids).logits
    read = models.ours.base_model.run_encoder(source, attention_mask=there)
    cache, parts, at = None, [], 0
    for size in (5, 1, 4, 1, 1, 2):
        out = models.ours(
            encoder_outputs=read, attention_mask=there, decoder_input_ids=ids[:, at : at + size], past_key_values=cache
        )
        cache, at = out.past_key_values, at + size
        parts.append(out.logits)
    close(torch.cat(parts, 1), output)
    assert cache.get_seq_length() == 14
    assert cache.cross_attention_cache.get_seq_length() == 11


@torch.no_grad()
def test_encoder_outputs_of_an_earlier_call(models: Pair) -> None:
    """Ours, a tuple, or the reference's: what was encoded earlier is not encoded again."""
    _, source, there = ragged(models.theirs, (10, 6))
    ids = target(models, 2, 5)
    expected = models.theirs(source, attention_mask=there, decoder_input_ids=ids)
    theirs = models.theirs.get_encoder()(source, attention_mask=there)
    mine = models.ours.base_model.run_encoder(source, attention_mask=there, **ALL)
    close(mine.last_hidden_state[there.bool()], theirs.last_hidden_state[there.bool()])
    assert len(mine.hidden_states) == models.ours.config.encoder_layers + 1
    for given in (mine, (mine.last_hidden_state,), theirs):
        result = models.ours(encoder_outputs=given, attention_mask=there, decoder_input_ids=ids)
        close(result.logits, expected.logits)


class TestGreedyGeneration:
    LENGTHS = (9, 3, 12, 6)

    def both(self, models: Pair, **settings: Any) -> tuple[list[list[int]], list[list[int]]]:
        """What the reference and ours write for ragged sources."""
        _, source, there = ragged(models.theirs, self.LENGTHS)
        cached = {"use_cache": models.family == "t5gemma"}  # without, the reference does not look at padding that it wrote
        expected = models.theirs.generate(source, attention_mask=there, **{**GREEDY, **cached}, **settings)
        result = models.ours.generate(source, attention_mask=there, do_sample=False, **settings)
        return expected.tolist(), result.tolist()

    @torch.no_grad()
    def test_with_the_models_own_settings(self, models: Pair) -> None:
        expected, result = self.both(models, max_new_tokens=14)
        assert result == expected

    @torch.no_grad()
    def test_endless_and_row_by_row(self, models: Pair) -> None:
        settings: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": None, "forced_eos_token_id": None}
        expected, result = self.both(models, **settings)
        assert result == expected
        assert {len(row) for row in result} == {17}
        rows, _, _ = ragged(models.theirs, self.LENGTHS)
        for row, together in zip(rows, result, strict=True):
            assert models.ours.generate(row[None], do_sample=False, **settings).tolist() == [together]

    @torch.no_grad()
    def test_rows_end_at_eos(self, models: Pair) -> None:
        """An end that one row reaches early: it is filled up, and the others go on."""
        endless = {"max_new_tokens": 12, "forced_eos_token_id": None}
        _, free = self.both(models, eos_token_id=None, **endless)
        end = free[1][3]
        expected, result = self.both(models, eos_token_id=end, **endless)
        assert result == expected
        assert result[1][free[1].index(end, 1)] == end
        several = sorted({end, free[0][5]})
        expected, result = self.both(models, eos_token_id=several, **endless)
        assert result == expected

    @torch.no_grad()
    @pytest.mark.parametrize("length", [1, 2, 7])
    def test_forced_tokens(self, models: Pair, length: int) -> None:
        settings = {"max_new_tokens": length, "forced_eos_token_id": 2, "eos_token_id": 2, "forced_bos_token_id": 5}
        expected, result = self.both(models, **settings)
        assert result == expected
        if length > 1:
            assert all(row[1] == 5 for row in result)

    @torch.no_grad()
    def test_decoder_input_ids_as_a_prefix(self, models: Pair) -> None:
        begun = target(models, len(self.LENGTHS), 4)
        expected, result = self.both(models, decoder_input_ids=begun, max_new_tokens=8, eos_token_id=None)
        assert result == expected
        assert [row[:4] for row in result] == begun.tolist()

    @torch.no_grad()
    def test_max_length(self, models: Pair) -> None:
        expected, result = self.both(models, max_length=9, eos_token_id=None)
        assert result == expected
        assert {len(row) for row in result} == {9}


@torch.no_grad()
def test_sampling_is_repeatable_and_batch_invariant(models: Pair) -> None:
    rows, source, there = ragged(models.theirs, (9, 3, 12))
    settings: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 10, "eos_token_id": None}
    together = models.ours.generate(source, attention_mask=there, seed=11, **settings)
    assert torch.equal(models.ours.generate(source, attention_mask=there, seed=11, **settings), together)
    assert not torch.equal(models.ours.generate(source, attention_mask=there, seed=12, **settings), together)
    for number, row in enumerate(rows):
        alone = models.ours.generate(row[None], seed=11, **settings)
        assert alone[0].tolist() == together[number].tolist()


@torch.no_grad()
def test_executor_rows_are_watched_one_by_one(models: Pair) -> None:
    """A watched row among others of different lengths: scores stay the same, and its sites are its own, without padding."""
    sources, starts = ([5, 9, 14, 3], [8, 8, 30, 42, 6, 7, 31], [33, 4]), ([2, 11, 7], [2], [2, 9, 9, 10])
    config = models.ours.config
    routed = models.family == "switch_transformers"
    names = models.ours.base_model.site_names if routed else usual_sites(config.num_hidden_layers, config.encoder_layers)
    watch = Watch.of("*", names=names)

    def run(watched: int | None) -> list[Any]:
        executor = PlainExecutor(models.ours)
        return executor.run([
            Feed(executor.open(source), ids, Want.ALL, watch=watch if number == watched else None)
            for number, (source, ids) in enumerate(zip(sources, starts, strict=True))
        ])  # fmt: skip

    plain = run(None)
    for watched in (0, 2):
        result = run(watched)
        for one, other, ids in zip(plain, result, starts, strict=True):
            assert all((one.host(at) == other.host(at)).all() for at in range(len(ids)))
        alone = models.ours(
            torch.tensor([sources[watched]]), decoder_input_ids=torch.tensor([starts[watched]]), watch="*"
        ).sites
        assert result[watched].sites.keys() == alone.keys()
        for site, value in alone.items():
            close(result[watched].sites[site], value)
        assert not result[1].sites


@torch.no_grad()
@pytest.mark.parametrize("scaled", [True, False])
def test_t5_with_an_untied_head(scaled: bool, tmp_path: Path) -> None:
    """T5 1.1's files hold a head beside the table; whether scores are scaled is another matter."""
    reference.write(tmp_path, "t5", "seq2seq", tie_word_embeddings=scaled)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored["lm_head.weight"] = stored["shared.weight"].flip(0).contiguous()
    save_file(stored, file, {"format": "pt"})
    theirs = reference.auto("seq2seq").from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert not torch.equal(theirs.lm_head.weight, theirs.shared.weight)
    ours = load(tmp_path, "seq2seq")
    source, ids = ids_for(theirs, 2, 7), ids_for(theirs, 2, 5)
    close(ours(source, decoder_input_ids=ids).logits, theirs(source, decoder_input_ids=ids).logits)
    ours.save_pretrained(tmp_path / "again")
    again = reference.auto("seq2seq").from_pretrained(tmp_path / "again", attn_implementation="eager").eval()
    assert torch.equal(again(source, decoder_input_ids=ids).logits, theirs(source, decoder_input_ids=ids).logits)


@torch.no_grad()
def test_bart_with_untied_embeddings(tmp_path: Path) -> None:
    """Untied, its encoder, decoder and head have a table each."""
    models = pair(tmp_path, "bart", "seq2seq", tie_word_embeddings=False)
    stored = load_file(tmp_path / "model.safetensors")
    assert not torch.equal(stored["model.encoder.embed_tokens.weight"], stored["model.decoder.embed_tokens.weight"])
    expected, result = models.theirs.state_dict(), models.ours.state_dict()
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    source, ids = ids_for(models.theirs, 2, 7), target(models, 2, 5)
    close(models.ours(source, decoder_input_ids=ids).logits, models.theirs(source, decoder_input_ids=ids).logits)


@torch.no_grad()
def test_generation_settings_are_saved_and_loaded(models: Pair, tmp_path: Path) -> None:
    """Saved by us, the reference generates the same from it."""
    models.ours.save_pretrained(tmp_path)
    again = reference.auto("seq2seq").from_pretrained(tmp_path, attn_implementation="eager").eval()
    _, source, there = ragged(models.theirs, (5, 8))
    expected = models.theirs.generate(source, attention_mask=there, max_new_tokens=7, **GREEDY)
    result = again.generate(source, attention_mask=there, max_new_tokens=7, **GREEDY)
    assert result.tolist() == expected.tolist()


@torch.no_grad()
@pytest.mark.parametrize("furthest", [17, 20, 31])
def test_a_largest_distance_below_the_number_of_buckets(furthest: int, tmp_path: Path) -> None:
    sizes = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": furthest}
    models = pair(tmp_path, "t5", "seq2seq", **sizes)
    ids, targets = ids_for(models.ours, 1, 40), ids_for(models.ours, 1, 45, seed=3)
    close(models.ours(ids, decoder_input_ids=targets).logits, models.theirs(ids, decoder_input_ids=targets).logits)
    opened = open_model(tmp_path)
    executor = CpuExecutor(opened.config, opened.blueprint(), opened.tensors)
    (scores,) = executor.run([Feed(executor.open(ids[0].tolist()), targets[0].tolist(), Want.ALL)])
    expected = models.theirs(ids, decoder_input_ids=targets).logits[0]
    close(torch.stack([torch.from_numpy(scores.host(at)) for at in range(45)]), expected)


class TestEncoderAlone:
    """T5EncoderModel: the encoder of a T5, from a checkpoint of the whole model or of its own."""

    @pytest.fixture(params=["T5EncoderModel", "T5ForConditionalGeneration"])
    def encoders(self, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
        whole = reference.build("t5", "seq2seq", feed_forward_proj="gated-gelu")
        theirs = transformers.T5EncoderModel(copy.deepcopy(whole.config)).eval()
        theirs.load_state_dict(whole.state_dict(), strict=False)
        (theirs if request.param == "T5EncoderModel" else whole).save_pretrained(tmp_path)
        return theirs, glassformer.T5EncoderModel.from_pretrained(tmp_path)  # type: ignore[attr-defined]

    @torch.no_grad()
    def test_every_output_equals_the_reference(self, encoders: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
        theirs, ours = encoders
        _, padded, mask = ragged(theirs, (13, 5, 9))
        inputs = {"input_ids": padded, "attention_mask": mask, "output_hidden_states": True}
        same_fields(ours(**inputs), theirs(**inputs), last_hidden_state=mask, hidden_states=mask)
        assert not caplog.text

    @torch.no_grad()
    def test_saved_is_read_back_by_the_reference(self, encoders: tuple[Any, Any], tmp_path: Path) -> None:
        theirs, ours = encoders
        ours.save_pretrained(tmp_path / "saved")
        ids = ids_for(ours, 2, 7)
        again = transformers.T5EncoderModel.from_pretrained(tmp_path / "saved").eval()
        close(ours(ids).last_hidden_state, again(ids).last_hidden_state)
        assert set(again.state_dict()) == set(theirs.state_dict())

    @torch.no_grad()
    def test_sites_are_the_encoders(self, encoders: tuple[Any, Any]) -> None:
        _, ours = encoders
        sites = ours(ids_for(ours, 1, 5), watch="encoder.blocks.*.residual").sites
        assert list(sites) == [f"encoder.blocks.{number}.residual" for number in range(ours.config.encoder_layers)]
        with pytest.raises(SiteError, match="no site matches 'blocks.0.residual'"):
            ours(ids_for(ours, 1, 5), watch="blocks.0.residual")

    def test_an_encoder_is_not_loaded_as_the_whole_model(self, tmp_path: Path) -> None:
        transformers.T5EncoderModel(reference.config("t5")).save_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match="It is an encoder alone: use T5EncoderModel, or AutoModelForTextEnc"):
            load(tmp_path, "seq2seq")

    @pytest.mark.parametrize("family", ["t5", *(name for name in reference.ENCODERS if name != "modernbert")])  # it lacks it
    def test_auto_model_for_text_encoding(self, family: str, tmp_path: Path) -> None:
        theirs = reference.write(tmp_path, family, "TextEncoding")
        ours = glassformer.AutoModelForTextEncoding.from_pretrained(tmp_path)
        assert type(ours).__name__ == type(theirs).__name__
        ids = ids_for(ours, 1, 6)
        close(ours(ids).last_hidden_state, theirs(ids).last_hidden_state)

    def test_auto_model_for_text_encoding_of_a_decoder(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "llama")
        with pytest.raises(ConfigError, match="llama model .* AutoModelForTextEncoding"):
            glassformer.AutoModelForTextEncoding.from_pretrained(tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("m2m_100", {"pad_token_id": None}, "'pad_token_id' is null, but positions begin after it: set it to a number"),
    ("m2m_100", {"normalize_before": False}, "'normalize_before' is False; this variant is not supported"),
    ("mbart", {"static_position_embeddings": True}, "'static_position_embeddings' is True; this variant is not supported"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_configs_that_cannot_be_honoured_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"model_type": family, **reference.TINY[family], **changes})


@torch.no_grad()
def test_mbarts_targets_begin_with_their_last_token(tmp_path: Path) -> None:
    """Rows whose languages differ, each after its end token, one of them padded."""
    models = pair(tmp_path, "mbart", "seq2seq")
    labels = torch.tensor([[5, 6, 7, 2, 30], [9, 2, 31, -100, -100]])
    begun = models.ours.prepare_decoder_input_ids_from_labels(labels)
    assert begun.tolist() == [[30, 5, 6, 7, 2], [31, 9, 2, 31, 1]]
    source = ids_for(models.theirs, 2, 6)
    result, expected = (model(source, labels=labels) for model in (models.ours, models.theirs))
    close(result.logits, expected.logits)
    close(result.loss, expected.loss)
