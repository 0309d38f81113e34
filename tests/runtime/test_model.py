"""The short API: load, chat, stream, watch, look; and the journey, whose every Python line is run."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.decoding import Finish
from glassformer.engine.protocol import ACTIVATIONS, CACHES, Feed
from glassformer.ground.errors import (
    CheckpointError,
    ExecutorError,
    InputError,
    InputTypeError,
    ModelNotFound,
    SettingError,
    TemplateError,
)
from glassformer.ground.sites import Watch
from glassformer.runtime.executors import EXECUTORS
from glassformer.see.compare import compare
from tests.parity import reference


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    return glassformer.load(tiny_qwen3)


@pytest.fixture(scope="module")
def without_template(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Any:
    """A model whose tokenizer has no chat template."""
    folder = Path(shutil.copytree(tiny_qwen3, tmp_path_factory.mktemp("bare") / "model"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}))
    return glassformer.load(folder)


def test_chat_stream_and_watch_give_the_same_text(model: Any) -> None:
    settings = {"max_new_tokens": 12}
    text = model.chat("how are you?", **settings)
    assert "".join(model.stream("how are you?", **settings)) == text
    run = model.watch("how are you?", **settings)
    assert run.text == text
    assert run.prompt.endswith("</think>\n\n")
    assert len(run.prompt_ids) == 16
    assert len(run.steps) == 12
    assert run.steps[-1].finish is Finish.LENGTH
    assert run.steps[0].candidates.ids.size == 10
    assert run.tokens_per_second > 0
    assert "16 tokens in, 12 out" in repr(run)
    assert run.journey.next.id == run.steps[0].id


def test_chat_gives_the_text_of_generate(model: Any) -> None:
    tokens = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, enable_thinking=False, return_tensors="pt"
    )
    ids = model.module.generate(**tokens, max_new_tokens=8)[0, tokens["input_ids"].shape[1] :]
    assert model.chat("Hi", max_new_tokens=8) == model.tokenizer.decode(ids, skip_special_tokens=True)


def test_watched_sites_come_with_each_step(model: Any) -> None:
    sites = ("blocks.*.residual", "blocks.1.attention.heads")
    run = model.watch("how are you?", sites=sites, max_new_tokens=3)
    reading = model.executor.open()
    (scores,) = model.executor.run([Feed(reading, run.prompt_ids, watch=Watch(frozenset(run.steps[0].sites)))])
    for site, value in run.steps[0].sites.items():
        whole = scores.sites[site][0]
        assert (value == (whole[-1] if site.endswith("residual") else whole[:, -1])).all()
    assert run.steps[2].sites.keys() == {*(f"blocks.{n}.residual" for n in range(3)), "blocks.1.attention.heads"}
    assert run.ids == model.watch("how are you?", max_new_tokens=3).ids
    policies = model.policies(model.recipe(model.settings.merged({"max_new_tokens": 2})), [5, 6])
    assert all(step.sites.keys() == {"final"} for _, step in model.generate_steps(policies, sites="final"))


def test_sites_of_beams_are_those_of_the_text_that_won(model: Any) -> None:
    run = model.watch("how are you?", sites="final", num_beams=3, max_new_tokens=4)
    row, watch = model.executor.open(), Watch(frozenset(("final",)))
    (scores,) = model.executor.run([Feed(row, (*run.prompt_ids, *run.ids[:-1]), watch=watch)])
    states = scores.sites["final"][0][-len(run.ids) :]
    for step, state in zip(run.steps, states, strict=True):
        assert step.sites["final"] == pytest.approx(np.asarray(state), abs=1e-3)
    model.executor.close(row)


def test_watch_many_gives_several_texts(model: Any) -> None:
    settings = {"do_sample": True, "max_new_tokens": 6, "seed": 3}
    runs = model.watch_many("Hi", num_return_sequences=3, look=2, **settings)
    assert len({run.text for run in runs}) == 3
    assert runs[0].text == model.chat("Hi", **settings)
    assert all(len(run.steps) == 6 and run.steps[0].waterfall is not None for run in runs)
    best, second = model.watch_many("Hi", num_beams=3, num_return_sequences=2, max_new_tokens=6)
    assert best.score is not None
    assert second.score is not None
    assert best.score >= second.score
    assert (
        best.text
        == model.chat("Hi", num_beams=3, max_new_tokens=6)
        == "".join(model.stream("Hi", num_beams=3, max_new_tokens=6))
    )
    assert best.tokens_per_second > 0


def test_a_stream_can_be_closed_early(model: Any) -> None:
    pieces = model.stream("Hi", max_new_tokens=50)
    next(pieces)
    pieces.close()
    assert list(pieces) == []
    assert model.chat("Hi", max_new_tokens=1)


def test_chat_ignores_num_return_sequences_of_the_models_settings(tiny_qwen3: Path) -> None:
    asking = glassformer.load(tiny_qwen3)
    asking.settings.num_beams, asking.settings.num_return_sequences = 3, 2
    assert asking.chat("Hi", max_new_tokens=2)
    assert len(asking.watch_many("Hi", max_new_tokens=2)) == 2


def test_drafts_by_name_by_model_and_by_module(model: Any, tiny_qwen3: Path, tmp_path: Path) -> None:
    expected = model.chat("Hi", max_new_tokens=8)
    for helper in (tiny_qwen3, glassformer.load(tiny_qwen3), model.module):
        run = model.watch("Hi", assistant_model=helper, max_new_tokens=8)
        assert run.text == expected
        assert any(step.drafted for step in run.steps)
    reference.write(tmp_path, "llama")
    with pytest.raises(SettingError, match="assistant_model"):
        model.chat("Hi", assistant_model=glassformer.AutoModelForCausalLM.from_pretrained(tmp_path))


def test_guidance_with_a_negative_prompt(model: Any) -> None:
    plain = model.chat("Hi", max_new_tokens=8)
    guided = model.watch("Hi", guidance_scale=4.0, negative_prompt="Bye", max_new_tokens=8, look=3)
    assert guided.text != plain
    assert guided.steps[0].waterfall.stages == ("model", "guidance_scale")
    _, ids = model.encode("Bye")
    for given in (list(ids), torch.tensor([ids])):
        assert model.chat("Hi", guidance_scale=4.0, negative_prompt_ids=given, max_new_tokens=8) == guided.text
    for bad in ([], "text", [0.5]):
        with pytest.raises(InputError, match="negative_prompt_ids"):
            model.chat("Hi", guidance_scale=4.0, negative_prompt_ids=bad)


def test_logprobs_and_prompt_logprobs(model: Any) -> None:
    run = model.watch("Hi", max_new_tokens=3, logprobs=20, prompt_logprobs=2)
    assert [step.id for step in run.prompt_steps] == list(run.prompt_ids)
    assert len(run.steps[0].candidates) == 20
    assert run.steps[0].logprob == pytest.approx(float(run.steps[0].candidates.logprobs[0]), abs=1e-5)


def test_run_settings_have_an_origin(model: Any) -> None:
    run = model.watch("Hi", max_new_tokens=2)
    assert run.settings.in_force["max_new_tokens"] == (2, "this call")
    assert "this call" in str(run.settings)


def test_a_seed_repeats_the_text(model: Any) -> None:
    settings = {"max_new_tokens": 6, "do_sample": True}
    assert model.chat("Hi", seed=4, **settings) == model.chat("Hi", seed=4, **settings)
    run = model.watch("Hi", **settings)
    assert model.chat("Hi", seed=run.seed, **settings) == run.text
    assert model.watch("Hi", max_new_tokens=1).seed is None


def test_render_raw_system_and_messages(model: Any, without_template: Any) -> None:
    assert model.render("Hi", raw=True) == "Hi"
    assert model.render("Hi", system="Be brief.").startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert model.render([{"role": "user", "content": "Hi"}]) == model.render("Hi")
    assert model.render("Hi", template={"enable_thinking": True}).endswith("assistant\n")
    assert without_template.render("Hi") == "Hi"
    assert without_template.chat("Hi", max_new_tokens=1) == model.chat("Hi", raw=True, max_new_tokens=1)
    with pytest.raises(InputTypeError, match="message 1 is 'Hi'"):
        model.render(["Hi"], system="x")
    with pytest.raises(TemplateError, match="Did you mean 'enable_thinking'"):
        model.chat("Hi", template={"enable_thinkng": True})


def test_token_ids_are_a_prompt(model: Any) -> None:
    text, ids = model.encode("how are you?", raw=True)
    assert model.encode(ids) == model.encode([*ids], raw=True) == (text, ids)
    assert model.chat(ids, max_new_tokens=3) == model.chat(text, raw=True, max_new_tokens=3)
    assert model.look(ids).candidates == model.look(text, raw=True).candidates
    assert model.read(ids).ids == ids
    with pytest.raises(InputTypeError, match="message 0 is True"):
        model.chat([True, False])


def test_a_run_goes_on_where_it_ended(model: Any) -> None:
    whole, first = (model.watch("how are you?", max_new_tokens=count) for count in (6, 2))
    rest = model.start(first, max_new_tokens=4)
    assert "".join(model.generate(rest)) == rest.text == model.chat(first, max_new_tokens=4)
    assert (*first.ids, *rest.ids) == whole.ids
    assert model.prepare_continuation(first).prompt_ids == rest.prompt_ids
    assert model.prepare_ids(first.prompt_ids).prompt == model.prepare("how are you?").prompt


def test_a_prompt_without_tokens_is_refused(model: Any) -> None:
    original, model.opened.__dict__["tokenizer"] = model.tokenizer, _Silent()
    try:
        with pytest.raises(InputError, match="has no tokens"):
            model.encode("x", raw=True)
    finally:
        model.opened.__dict__["tokenizer"] = original


class _Silent:
    """A tokenizer that finds nothing in any text."""

    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": []}


def test_a_prompt_longer_than_the_context_is_refused(tmp_path: Path, qwen3_tokenizer: Path) -> None:

    reference.write(tmp_path, "llama", vocab_size=151936, max_position_embeddings=20)
    for file in qwen3_tokenizer.iterdir():
        shutil.copy(file, tmp_path)
    with pytest.raises(InputError, match="context of 20"):
        glassformer.load(tmp_path).chat("one two three four five six seven eight nine ten eleven twelve thirteen")


def test_loading_takes_torchs_dtypes(tiny_qwen3: Path) -> None:
    assert glassformer.load(tiny_qwen3, dtype=torch.bfloat16).executor.describe().dtype == "bfloat16"  # type: ignore[arg-type]
    with pytest.raises(ModelNotFound, match="'smollm2'"):
        glassformer.load("SmolLM2")


class TestExecutors:
    def test_executor_chosen_by_name(self, tiny_qwen3: Path) -> None:
        names = {asked: glassformer.load(tiny_qwen3, executor=asked).executor.describe().name for asked in EXECUTORS[:3]}
        assert names == {"auto": "cpu", "plain": "plain", "cpu": "cpu"}  # tests/runtime/test_gpu_executor.py: "gpu"
        assert glassformer.load(tiny_qwen3, dtype="float32").executor.describe().name == "plain"

    def test_plain_and_cpu_write_the_same_text(self, tiny_qwen3: Path) -> None:
        texts = {
            glassformer.load(tiny_qwen3, executor=executor).chat("Hi", max_new_tokens=10) for executor in ("plain", "cpu")
        }
        assert len(texts) == 1

    @pytest.mark.parametrize(("cache", "kept"), [(None, "f32"), *((cache, cache) for cache in CACHES)])
    def test_kv_cache_formats(self, cache: str | None, kept: str, tiny_qwen3: Path) -> None:
        model = glassformer.load(tiny_qwen3, cache=cache)
        assert f"keys and values in {kept}" in model.executor.describe().notes
        assert model.chat("Hi", max_new_tokens=2)

    def test_packed_weights_keep_half_floats(self, smollm2: Path) -> None:
        assert "keys and values in f16" in glassformer.load(smollm2).executor.describe().notes

    def test_mixed_activations_are_coarser_than_q14_and_finer_than_q8(self, smollm2: Path) -> None:
        fine, mixed, coarse = (glassformer.load(smollm2, activations=activations) for activations in ACTIVATIONS)
        options = [model.executor.describe().options for model in (fine, mixed, coarse)]
        assert options == [{}, {"activations": "mixed"}, {"activations": "q8"}]
        text = "The capital of France is Paris."
        near: Any = compare(fine, mixed, text=text)
        far: Any = compare(fine, coarse, text=text)
        assert 1e-5 < near.divergence < far.divergence / 2 < 0.036
        assert far.names == (f"{fine.name} (cpu, Q4_1)", f"{fine.name} (cpu, Q4_1, activations in q8)")

    @pytest.fixture
    def _no_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine on which the native library cannot be had."""
        from glassformer.engine.cpu import build, library

        def refuses() -> Path:
            raise ExecutorError("no C++ compiler was found. Install one.")

        gc.collect()  # engines that are gone already close their own
        monkeypatch.delenv("GLASS_LIBRARY", raising=False)
        monkeypatch.setattr(build, "library", refuses)
        monkeypatch.setattr(library, "library", library.library.__wrapped__)

    @pytest.mark.usefixtures("_no_engine")
    def test_auto_falls_back_and_says_so_once(self, tiny_qwen3: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = glassformer.load(tiny_qwen3)
        text = model.chat("Hi", max_new_tokens=3)
        assert model.executor.describe().name == "plain"
        assert text == model.chat("Hi", max_new_tokens=3)
        assert [one.message for one in caplog.records] == [
            f"{tiny_qwen3} runs on PyTorch: no C++ compiler was found. Install one."
        ]

    @pytest.mark.parametrize("executor", ["auto", "cpu"])
    def test_weights_that_no_executor_can_run_are_said_once(
        self, executor: str, tiny_qwen3: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = tmp_path / "lacking"
        shutil.copytree(tiny_qwen3, folder)
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=r"lacking: .*model\.layers\.1\.mlp\.up_proj"):
            glassformer.load(folder, executor=executor).chat("Hi")
        assert caplog.messages == []

    @pytest.mark.usefixtures("_no_engine")
    def test_an_executor_asked_for_by_name_raises(self, tiny_qwen3: Path) -> None:
        model = glassformer.load(tiny_qwen3, executor="cpu")
        with pytest.raises(ExecutorError, match="compiler"):
            model.chat("Hi")


def test_repr_names_family_and_parameters(model: Any) -> None:
    assert "qwen3" in repr(model)
    assert f"{model.blueprint.parameters:,} parameters" in repr(model)


class TestJourney:
    def test_every_python_line_gives_the_shape_it_stands_beside(self, model: Any) -> None:
        journey = model.look("how are you?")
        names: dict[str, Any] = {"tokenizer": model.tokenizer, "model": model.module, "text": journey.prompt}
        for stage in journey.stages:
            target, equals, _ = stage.python.partition(" = ")
            if equals and "(" not in target:
                exec(stage.python, names)
                value = names[target]
            else:
                value = eval(stage.python, names)
            if stage.name == "ids":
                value = value["input_ids"]
            if stage.name == "text":
                assert value == journey.prompt
            shape = tuple(value.shape) if hasattr(value, "shape") else (len(value),)
            assert shape == stage.shape, stage
        assert names["best"].tolist() == [[journey.next.id]]

    def test_journey_tokens_stages_and_next_token(self, model: Any) -> None:
        journey = model.look("how are you?")
        assert [token.id for token in journey.tokens][:4] == [151644, 872, 198, 5158]
        assert journey.tokens[0].special
        assert journey.tokens[4].token == "Ġare"
        assert journey.tokens[4].text == " are"
        each = {stage.name: stage.parameters for stage in journey.stages}
        assert each["blocks.0.attention.query"] == 32 * 32 + 8  # its projection and its norm
        assert each["blocks.0.attention.key"] == 16 * 32 + 8
        assert sum(s.parameters * (3 if s.blocks else 1) for s in journey.stages) == model.module.num_parameters()
        assert str(journey).splitlines()[0].startswith("1 · the prompt")
        blocks = {stage.blocks for stage in journey.stages if stage.blocks}
        assert blocks == {(0, 2)}
        scores = model.module(torch.tensor([[t.id for t in journey.tokens]])).logits[0, -1]
        assert journey.next.id == int(scores.argmax())
        assert journey.next.probability == pytest.approx(float(scores.softmax(-1).max()), rel=1e-4)
        assert json.loads(json.dumps(journey.to_dict()))["tokens"][4]["text"] == " are"
        assert "16 tokens →" in repr(journey)

    def test_half_a_character_is_shown_as_its_bytes(self, model: Any) -> None:
        journey = model.look(" 😊", raw=True)
        assert [token.text for token in journey.tokens] == [r" \xf0\x9f\x98", r"\x8a"]

    def test_blocks_that_differ_are_not_folded(self, tmp_path: Path) -> None:
        from glassformer.blueprints import blueprint
        from glassformer.see.journey.stages import stages

        reference.write(tmp_path, "qwen3", use_sliding_window=True, sliding_window=5, max_window_layers=2)
        found = stages(blueprint(glassformer.AutoConfig.from_pretrained(tmp_path)), 7)
        assert [b for b in dict.fromkeys(stage.blocks for stage in found) if b] == [(0, 1), (2, 2)]

    @pytest.mark.parametrize("width", [80, 120])
    def test_journey_fits_the_width(self, model: Any, width: int) -> None:
        import io

        from rich.console import Console

        console = Console(width=width, file=io.StringIO())
        console.print(model.look("how are you? 😊 " * 20))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(len(line) for line in text.splitlines()) <= width
        for words in (
            "1 · the prompt",
            "<|im_start|>user",
            "more",
            "blocks 0–2, each",
            'at["blocks.0.residual"]',
            "5 · the next",
        ):
            assert words in text
