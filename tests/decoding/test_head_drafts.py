"""Drafts by a model's own head: the reference's guesses, and the text that comes without them."""

from __future__ import annotations

import copy
import json
import pickle
import queue
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.cli.app import app
from glassformer.cli.serve import model_sources
from glassformer.decoding import GenerationConfig, Policy, Recipe, Step, policies
from glassformer.decoding.head_drafts import HeadDrafter, PairsRow
from glassformer.decoding.loop import loop
from glassformer.decoding.speculative import speculate
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Executor, Feed
from glassformer.ground.errors import CheckpointError, SettingError
from glassformer.ground.sites import Watch
from glassformer.model_files import ModelFiles, open_model
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.runtime.model import Model
from glassformer.serving.scheduler import Generation, Scheduler, SchedulerLimits
from tests.engine.gpu import torch_kernels
from tests.parity import draft_heads, reference
from tests.patience import patience
from tests.see.models import TEXT
from tests.see.test_views import TOKENIZERS
from tests.sweeps import mostly_swept, swept

QUICK = ("qwen3_5_text", "qwen3_next", "deepseek_v3", "glm4_moe")  # states, latent attention and experts
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "top_k": 0, "num_return_sequences": 2, "seed": 5},
    {"do_sample": True, "temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "seed": 1},
    {"stop_when": lambda ids: ids.size > 20, "suppress_tokens": [1, 2, 3], "min_new_tokens": 6},
]


class Recorder:
    """A drafter whose drafts are kept, with the texts that they were made for."""

    def __init__(self, executor: Executor) -> None:
        self.drafter = HeadDrafter(executor)
        self.reads = self.drafter.reads
        self.observe, self.follow, self.close = self.drafter.observe, self.drafter.follow, self.drafter.close
        self.made: list[tuple[list[int], list[int]]] = []

    def draft(self, room: Mapping[Policy, int]) -> Mapping[Policy, Sequence[int]]:
        drafts = self.drafter.draft(room)
        self.made += [(policy.history.ids.tolist(), list(draft)) for policy, draft in drafts.items()]
        return drafts


def texts(prompts: Sequence[Sequence[int]], size: int, count: int = 22, **settings: Any) -> list[Policy]:
    recipe = Recipe.of(GenerationConfig(max_new_tokens=count, **settings), None, size)
    return [policy for prompt in prompts for policy in policies(recipe, prompt, context=500, seed=settings.get("seed", 0))]


def written(executor: Executor, rows: Sequence[Policy], drafter: Any = None) -> list[Step]:
    steps = loop(executor, rows) if drafter is None else speculate(executor, rows, drafter)
    return [step for _, step in steps]


def opened(folder: Path, which: str) -> Executors:
    return Executors(open_model(folder), ExecutorOptions(executor=which))


def on_gpu(opened: ModelFiles) -> GpuExecutor:
    """The GPU engine, with kernels written in PyTorch."""
    device = torch.device("cpu")
    return GpuExecutor(opened.config, opened.blueprint(), opened.tensors, cache="f32", device=device, kernels=torch_kernels)


PROMPTS = ([5, 9, 4, 40], [2, 7, 7, 2, 31, 8, 50], [5, 9, 4, 40], [3])


@pytest.mark.every_family
@pytest.mark.parametrize(
    "family", mostly_swept(draft_heads.FAMILIES, "qwen3_5_text", "qwen3_next", "deepseek_v3", "glm4_moe")
)
@pytest.mark.parametrize("which", ["plain", "cpu"])
@pytest.mark.parametrize("seed", [None, *swept(range(6))])
def test_the_text_is_the_same_and_the_drafts_are_the_references(
    family: str, which: str, seed: int | None, tmp_path: Path
) -> None:
    """Greedy and drawn, in a batch whose texts share a prompt, with rows that are rewound after nearly every draft."""
    changes = {} if seed is None else reference.random_changes(family, seed)
    theirs = draft_heads.write(tmp_path, family, **changes)
    executors, size = opened(tmp_path, which), theirs.model.config.vocab_size
    for settings in SETTINGS:
        alone, helped = texts(PROMPTS, size, **settings), texts(PROMPTS, size, **settings)
        written(executors.executor, alone)
        recorder = Recorder(executors.draft_head)
        written(executors.executor, helped, recorder)
        assert [policy.chosen for policy in helped] == [policy.chosen for policy in alone]
        assert recorder.made
        if not settings:
            for ids, draft in recorder.made[::9]:
                assert draft == theirs.draft(torch.tensor([ids]), len(draft))


class Counting:
    """An executor whose passes are counted."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.passes = executor, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def run(self, feeds: Sequence[Feed]) -> Any:
        self.passes += 1
        return self.executor.run(feeds)


@pytest.mark.every_family
@pytest.mark.parametrize("family", mostly_swept(draft_heads.FAMILIES, "qwen3_5_text", "deepseek_v3"))
@pytest.mark.parametrize("which", ["plain", "cpu"])
def test_a_head_that_agrees_saves_passes(family: str, which: str, tmp_path: Path) -> None:
    draft_heads.write_agreeing(tmp_path, family)
    executors, size = opened(tmp_path, which), reference.config(family).vocab_size
    alone, helped = texts([[5, 9, 4]], size, 40), texts([[5, 9, 4]], size, 40)
    written(executors.executor, alone)
    counting = Counting(executors.executor)
    steps = written(counting, helped, HeadDrafter(executors.draft_head))
    assert [policy.chosen for policy in helped] == [policy.chosen for policy in alone]
    assert len(steps) == 40
    assert counting.passes < 12
    assert sum(step.drafted for step in steps) == 40 - counting.passes


@pytest.mark.parametrize("which", ["plain", "cpu"])
def test_long_prompts_and_those_whose_beginning_is_cached(which: str, tmp_path: Path) -> None:
    """More tokens than a pass has; of what a prefix cache had, the head knows nothing."""
    draft_heads.write_agreeing(tmp_path, "qwen3_5_text", max_position_embeddings=512)
    executors = opened(tmp_path, which)
    prompt = np.random.default_rng(2).integers(3, 150, 300).tolist()
    cache = PrefixCache(executors.executor)
    alone = texts([prompt, [*prompt, 7]], 160, 12)
    written(executors.executor, alone)
    for number, text in enumerate((prompt, [*prompt, 7], [*prompt, 7])):
        (helped,) = texts([text], 160, 12)
        steps = written(cache, [helped], HeadDrafter(executors.draft_head))
        assert helped.chosen == alone[min(number, 1)].chosen
        assert sum(step.drafted for step in steps) >= 6


def test_states_that_nobody_saw_leave_a_gap_and_those_seen_twice_count_once() -> None:
    row, states = PairsRow(None, 3, 20), np.arange(40, dtype=np.float32).reshape(20, 2)  # type: ignore[arg-type]
    row.add(0, states[:5])
    row.add(3, states[3:8])  # after a rewind
    assert np.array_equal(row.take(8)[0], states[:8])
    row.begin, row.states = 8, []
    row.add(6, states[6:10])  # two of them are in the row
    assert np.array_equal(row.take(9)[0], states[8:10])
    row.add(15, states[15:])  # five came from a cache
    assert (row.begin, len(row.states[0])) == (15, 5)
    row.add(15, states[15:16])
    assert np.array_equal(row.take(9)[0], states[15:16])
    assert not row.take(0)


def test_the_gpu_engine_runs_heads_too(tmp_path: Path) -> None:
    draft_heads.write_agreeing(tmp_path, "qwen3_5_text")
    files = open_model(tmp_path)
    assert files.draft_head is not None
    executor, head = on_gpu(files), on_gpu(files.draft_head)
    for settings in SETTINGS[:2]:
        alone, helped = texts(PROMPTS, 160, **settings), texts(PROMPTS, 160, **settings)
        written(executor, alone)
        steps = written(executor, helped, HeadDrafter(head))
        assert [policy.chosen for policy in helped] == [policy.chosen for policy in alone]
        assert sum(step.drafted for step in steps) > len(steps) / 2


def test_generate_takes_it(tmp_path: Path) -> None:
    draft_heads.write_agreeing(tmp_path, "qwen3_5_text")
    model = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 4, 8], [3, 3, 60, 61]])
    settings = {"max_new_tokens": 15, "eos_token_id": None}
    expected = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, assistant_model="mtp", **settings), expected)
    assert torch.equal(model.to(torch.float64).generate(ids, assistant_model="mtp", **settings), expected)
    copied = copy.deepcopy(model)
    assert torch.equal(copied.generate(ids, assistant_model="mtp", **settings), expected)
    with pytest.raises(SettingError, match="has none"):
        pickle.loads(pickle.dumps(model)).generate(ids, assistant_model="mtp", **settings)


def write_with_tokenizer(folder: Path) -> None:
    """A model whose head agrees with it."""
    tokenizer, named = TOKENIZERS["gpt2"]()
    draft_heads.write_agreeing(folder, "qwen3_5_text", vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=512)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


@pytest.mark.parametrize("which", ["plain", "cpu"])
def test_a_loaded_model_takes_it(which: str, tmp_path: Path) -> None:
    """With what ends a text and what it must be like; its steps say which tokens were drafted."""
    write_with_tokenizer(tmp_path)
    model = glassformer.load(tmp_path, executor=which)
    for settings in (
        {}, {"do_sample": True, "seed": 3}, {"num_return_sequences": 2, "do_sample": True, "seed": 4},
        {"stop_strings": model.watch(TEXT, max_new_tokens=9).text[-2:]}, {"regex": "[a-c ]{3,9}x"},
    ):  # fmt: skip
        alone = model.watch_many(TEXT, max_new_tokens=12, **settings)
        helped = model.watch_many(TEXT, max_new_tokens=12, assistant_model="mtp", **settings)
        assert [run.text for run in helped] == [run.text for run in alone]
        assert [run.finish for run in helped] == [run.finish for run in alone]
        assert settings or any(step.drafted for step in helped[0].steps)
    same = Model.from_module(model.module, model.tokenizer)
    run = same.watch(TEXT, max_new_tokens=12, assistant_model="mtp")
    assert run.text == model.chat(TEXT, max_new_tokens=12)
    assert any(step.drafted for step in run.steps)


def test_a_server_drafts_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For texts that join at any time, with prompts read in chunks; one that is watched gets no drafts."""
    monkeypatch.setattr("glassformer.decoding.prompt_lookup.MeasuredCost.marginal_share", lambda cost, texts: 0.01)
    write_with_tokenizer(tmp_path)
    model, events = glassformer.load(tmp_path, executor="cpu"), queue.Queue[Any]()
    prompts = [TEXT, TEXT * 12, "a", TEXT * 12 + "b"]
    settings: list[dict[str, Any]] = [{}, {}, {"do_sample": True, "seed": 3}, {"do_sample": True, "seed": 4}]
    expected = [
        model.watch(prompt, max_new_tokens=20, raw=True, eos_token_id=None, **own).ids
        for prompt, own in zip(prompts, settings, strict=True)
    ]
    scheduler = Scheduler(model, events.put, SchedulerLimits(prompt_chunk=64), own_head=True)
    steps: dict[Generation, list[Step]] = {}
    for prompt, own in zip(prompts, settings, strict=True):
        run = model.start(prompt, max_new_tokens=20, raw=True, eos_token_id=None, **own)
        steps[scheduler.submit([run])] = []
    watched = model.start(TEXT, max_new_tokens=20, raw=True, eos_token_id=None)
    watch = Watch(frozenset({"blocks.0.residual"}))
    steps[seen := scheduler.submit([watched], watch=watch)] = []
    while not all(own and own[-1].finish for own in steps.values()):
        for event in events.get(timeout=patience(60)):
            assert event.error is None
            steps[event.generation].append(event.step)
    scheduler.close()
    written_ids = [[step.id for step in own] for own in steps.values()]
    assert written_ids == [*map(list, expected), list(expected[0])]
    assert not any(step.drafted for step in steps[seen])
    statistics = scheduler.statistics()
    drafted = sum(step.drafted for own in steps.values() for step in own)
    assert 20 < drafted == statistics.accepted_tokens <= statistics.drafted_tokens


@pytest.mark.parametrize("which", ["plain", "cpu"])
def test_a_servers_memory_limit_counts_the_heads_rows(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the states that wait for the head; a server whose texts get no drafts needs none of it."""
    monkeypatch.setattr("glassformer.serving.scheduler.free_memory", lambda device: 3 << 30)
    write_with_tokenizer(tmp_path)
    model = glassformer.load(tmp_path, executor=which)
    model.chat(TEXT, max_new_tokens=5, assistant_model="mtp")  # PyTorch knows then how large a token is
    about, head = model.executor.describe(), model.executors.draft_head.describe()
    each = about.cache_bytes_per_token + head.cache_bytes_per_token + 4 * model.config.hidden_size
    assert head.cache_bytes_per_token > 0
    scheduler = Scheduler(model, print, own_head=True)
    assert scheduler._cache_tokens == (1 << 30) // each
    generation = Generation((), (object(),), None, "", 0.0, deque())  # type: ignore[arg-type]  # a row without tokens
    generation.tokens = 100
    assert scheduler._held_tokens(generation) == 100 - (-about.cache_bytes_per_row // each)
    for without in (Scheduler(model, print), Scheduler(model, print, SchedulerLimits(drafted_tokens=0), own_head=True)):
        assert without._cache_tokens == (1 << 30) // about.cache_bytes_per_token


def test_the_command_and_the_servers_option_name_it(tmp_path: Path) -> None:
    write_with_tokenizer(tmp_path / "model")
    words = ["run", TEXT, "-m", str(tmp_path / "model"), "--raw", "-n", "12", "--json"]
    alone, helped = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--assistant", "mtp"]))
    assert alone.exit_code == helped.exit_code == 0
    assert json.loads(helped.stdout)["text"] == json.loads(alone.stdout)["text"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (TEXT, "a", "b")))
    written_rows = []
    for name, more in (("alone.jsonl", []), ("helped.jsonl", ["--assistant", "mtp"])):
        files = ["--file", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / name)]
        done = CliRunner().invoke(app, ["run", "-m", str(tmp_path / "model"), "--raw", "-n", "12", *files, *more])
        assert done.exit_code == 0, done.output
        written_rows.append((tmp_path / name).read_text())
    assert written_rows[0].count("\n") == 3
    assert written_rows[1] == written_rows[0]
    (source,) = model_sources([str(tmp_path / "model")], glassformer.load, own_head=True)
    assert source.own_head


@pytest.mark.parametrize("which", ["plain", "cpu"])
@pytest.mark.parametrize("lacking", ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"])
def test_a_head_that_lacks_weights_cannot_draft(which: str, lacking: str, tmp_path: Path) -> None:
    """A sentence names what is missing as files do; the model writes without it."""
    write_with_tokenizer(tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    del stored[lacking]
    save_file(stored, path, {"format": "pt"})
    model = glassformer.load(tmp_path, executor=which)
    assert model.watch(TEXT, max_new_tokens=3).ids
    for one in (model, Model.from_module(model.module, model.tokenizer)):
        with pytest.raises(CheckpointError, match=re.escape(f"lacks {lacking}, so")):
            one.chat(TEXT, max_new_tokens=3, assistant_model="mtp")
