"""Global tokens, which all others see and which see all: ours against the reference, and executors against each other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import glassformer
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Source, Want
from glassformer.ground.changes import Change
from glassformer.ground.errors import SettingError
from glassformer.ground.sites import Watch
from glassformer.model_files import open_model
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, pair, ragged, same_fields
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = {"output_hidden_states": True, "output_attentions": True}
TEXT = "how are you today, my friend?"
LENGTHS = (21, 6, 13, 1)
SEEDS = [*range(3), *swept(range(3, 23))]
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "use_cache": False, "max_new_tokens": 12}


@pytest.fixture(scope="module", params=SEEDS, ids=str)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    changes = reference.random_changes("led", request.param)
    return pair(tmp_path_factory.mktemp("led"), "led", "seq2seq", **changes)


def chosen_in(there: Tensor) -> Tensor:
    """Global tokens: two of the first row, none of the second, one of the others; and one that is padding."""
    chosen = torch.zeros_like(there)
    chosen[0, 0] = chosen[0, 11] = chosen[2, 12] = chosen[3, 0] = chosen[2, 15] = 1
    return chosen


def batch(models: Pair) -> dict[str, Tensor]:
    _, source, there = ragged(models.theirs, LENGTHS)
    return {"input_ids": source, "attention_mask": there, "global_attention_mask": chosen_in(there)}


@torch.no_grad()
def test_every_output_of_padded_sources(models: Pair) -> None:
    inputs, target = batch(models), ids_for(models.theirs, len(LENGTHS), 5)
    given = models.theirs(**inputs, decoder_input_ids=target, **ALL)
    expected = {name: value for name, value in given.items() if name != "encoder_global_attentions"}  # rows of our patterns
    result = models.ours(**inputs, decoder_input_ids=target, **ALL)
    there = inputs["attention_mask"]
    same_fields(result, expected, encoder_last_hidden_state=there, encoder_hidden_states=there, encoder_attentions=there)
    local = models.ours(**{**inputs, "global_attention_mask": None}, decoder_input_ids=target).logits
    assert not torch.allclose(local[0], result.logits[0], atol=1e-3)
    close(result.logits[1], local[1])


@torch.no_grad()
def test_generation(models: Pair) -> None:
    """Greedy and by beams; by vectors and from an encoder's output; with attentions, which PyTorch gives."""
    inputs = batch(models)
    expected = models.theirs.generate(**inputs, **GREEDY).tolist()
    assert models.ours.generate(**inputs, do_sample=False, max_new_tokens=12).tolist() == expected
    vectors = {**inputs, "input_ids": None, "inputs_embeds": models.ours.get_input_embeddings()(inputs["input_ids"])}
    assert models.ours.generate(**vectors, do_sample=False, max_new_tokens=12).tolist() == expected
    encoded = models.ours.base_model.run_encoder(**inputs)
    given = {"encoder_outputs": encoded, "attention_mask": inputs["attention_mask"]}
    assert models.ours.generate(**given, do_sample=False, max_new_tokens=12).tolist() == expected
    beams = models.theirs.generate(**inputs, **{**GREEDY, "num_beams": 3}).tolist()
    assert models.ours.generate(**inputs, do_sample=False, max_new_tokens=12, num_beams=3).tolist() == beams
    told = {"return_dict_in_generate": True, "output_attentions": True}
    full = models.ours.generate(**inputs, do_sample=False, max_new_tokens=12, **told)
    assert full.sequences.tolist() == expected
    wanted = models.ours.base_model.run_encoder(**inputs, output_attentions=True).attentions
    there = inputs["attention_mask"].bool()
    for one, other in zip(full.encoder_attentions, wanted, strict=True):
        close(one.transpose(1, 2)[there], other.transpose(1, 2)[there])


def test_gradients(models: Pair) -> None:
    inputs, labels = batch(models), ids_for(models.theirs, len(LENGTHS), 5)
    for model in (models.theirs, models.ours):
        model.zero_grad()
        model(**inputs, labels=labels).loss.backward()
    expected = {name: value.grad for name, value in models.theirs.named_parameters() if value.grad is not None}
    result = {name: value.grad for name, value in models.ours.named_parameters() if value.grad is not None}
    assert any("query_global" in name for name in expected)
    assert result.keys() == expected.keys()
    for name, gradient in expected.items():
        if not name.endswith(("k_proj.bias", "key.bias", "key_global.bias")):  # that change nothing
            close(result[name], gradient, 1e-3)


def rows_of(executor: Any, sources: list[Source], watch: Watch | None) -> list[Any]:
    return list(executor.run([Feed(executor.open(source), (2, 9, 5), Want.ALL, watch=watch) for source in sources]))


@pytest.mark.parametrize("change", [None, "pattern", "query"])
def test_executors_have_the_same_sites(models: Pair, change: str | None) -> None:
    opened = open_model(models.folder)
    described = opened.blueprint()
    changed = {} if change is None else {f"encoder.blocks.0.attention.{change}": Change(scale=0.5)}
    watch = Watch(frozenset(described.site_names.expand(["encoder.*"])), changed)
    rows, *_ = ragged(models.theirs, LENGTHS)
    sources = [Source(row.tolist(), places) for row, places in zip(rows, ([0, 11], [], [12], [0]), strict=True)]
    cpu = CpuExecutor(opened.config, described, opened.tensors)
    plain = PlainExecutor(models.ours)
    together, expected = rows_of(cpu, sources, watch), rows_of(plain, sources, watch)
    for one, other, source in zip(together, expected, sources, strict=True):
        close(torch.from_numpy(one.host()), torch.from_numpy(other.host()))
        assert one.sites.keys() == other.sites.keys()
        for site, value in one.sites.items():
            close(torch.from_numpy(np.array(value)), torch.as_tensor(other.sites[site]), 1e-3)
        (alone,) = rows_of(cpu, [source], watch)
        assert (alone.host() == one.host()).all()
        pattern = np.asarray(one.sites["encoder.blocks.0.attention.pattern"])
        assert change == "pattern" or np.allclose(pattern.sum(-1), 1, atol=1e-5)


@torch.no_grad()
def test_a_text_of_many_windows(tmp_path: Path) -> None:
    """More than the CPU engine reads at once, with global tokens far from each other, and keys between that none sees."""
    models = pair(tmp_path, "led", "seq2seq", max_encoder_position_embeddings=1800, attention_window=[4, 12])
    opened = open_model(tmp_path)
    ids, places = ids_for(models.theirs, 1, 1733), [0, 600, 1732]
    chosen = torch.zeros_like(ids)
    chosen[0, places] = 1
    target = torch.tensor([[2, 9, 5]])
    executor = CpuExecutor(opened.config, opened.blueprint(), opened.tensors)
    for mask, source in ((chosen, Source(ids[0].tolist(), places)), (None, Source(ids[0].tolist()))):
        expected = models.theirs(ids, decoder_input_ids=target, global_attention_mask=mask).logits
        close(models.ours(ids, decoder_input_ids=target, global_attention_mask=mask).logits, expected)
        (result,) = executor.run([Feed(executor.open(source), (2, 9, 5), Want.ALL)])
        close(torch.from_numpy(np.stack([result.host(at) for at in range(3)])), expected[0])


class TestTheShortFace:
    """One setting says it for texts, views and tasks; unset, the first token is global."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
        folder = tmp_path_factory.mktemp("short")
        reference.write(folder, "led", "seq2seq", vocab_size=30522)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(minilm / name, folder)
        return folder

    @pytest.mark.parametrize("executor", ["cpu", "plain"])
    @pytest.mark.parametrize("places", [None, (0,), (), (0, 3)], ids=str)
    @pytest.mark.every_combination
    def test_the_same_on_every_face(self, folder: Path, executor: Any, places: tuple[int, ...] | None) -> None:
        model = glassformer.load(folder, executor=executor)
        given: dict[str, Any] = {} if places is None else {"global_tokens": places}
        run = model.watch(TEXT, max_new_tokens=5, **given)
        ids = torch.tensor([run.prompt_ids])
        mask = torch.isin(torch.arange(ids.shape[1]), torch.tensor((0,) if places is None else places)).long()[None]
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
        with torch.no_grad():
            source = theirs.get_encoder()(ids, global_attention_mask=mask).last_hidden_state[0]
        close(torch.as_tensor(run.reading.at("encoder.final")), source)
        module = glassformer.AutoModelForSeq2SeqLM.from_pretrained(folder)
        expected = module.generate(ids, max_new_tokens=5, global_attention_mask=mask)
        assert [module.config.decoder_start_token_id, *run.ids] == expected[0].tolist()
        again = module.generate(ids, max_new_tokens=5, global_tokens=(0,) if places is None else places)
        assert torch.equal(again, expected)
        task = glassformer.pipeline("summarization", model, max_new_tokens=5)
        assert task(TEXT, **given)[0]["summary_text"] == run.text

    def test_places_are_those_of_the_text_in_a_padded_batch(self, folder: Path) -> None:
        module = glassformer.AutoModelForSeq2SeqLM.from_pretrained(folder)
        ids, mask = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
        written = module.generate(ids, attention_mask=mask, max_new_tokens=4, global_tokens=[1])
        for row, real in zip(written, mask, strict=True):
            alone = ids[(mask == real).all(1)][:, real.bool()]
            chosen = (torch.arange(alone.shape[1]) == 1).long()[None]
            assert torch.equal(row[None], module.generate(alone, max_new_tokens=4, global_attention_mask=chosen))

    def test_gradients_are_of_what_was_read(self, folder: Path) -> None:
        model, site = glassformer.load(folder), "encoder.blocks.0.residual"
        chosen: list[dict[str, Any]] = [{}, {"global_tokens": [0]}, {"global_tokens": [0, 3]}, {"global_tokens": []}]
        runs = [model.watch(TEXT, max_new_tokens=1, min_new_tokens=1, **given) for given in chosen]
        first, same, *others = (run.reading.gradients(site, metric="logit")[site] for run in runs)
        assert np.array_equal(first, same)
        assert all(not np.allclose(first, other, atol=1e-4) for other in others)

    def test_models_without_them_refuse(self, tmp_path: Path, folder: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, tmp_path)
        reference.write(tmp_path, "bart", "seq2seq", vocab_size=30522)
        with pytest.raises(SettingError, match="bart has none"):
            glassformer.load(tmp_path).watch(TEXT, global_tokens=[0])
