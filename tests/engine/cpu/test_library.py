"""The native library's face: what it is asked for, what it says of itself, and processes that part."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu import library
from glassformer.engine.cpu.cores import Processors, available
from glassformer.engine.cpu.library import Engine, NativePass
from glassformer.engine.protocol import Feed
from glassformer.ground.candidates import entropy_stats
from glassformer.ground.errors import ExecutorError, SettingError
from glassformer.runtime.executors import ExecutorOptions, Executors
from tests.engine.executors import Subject
from tests.patience import patience, wait_until

Tiny = Callable[..., Subject]


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLASS_LEVEL", "GLASS_THREADS", "OMP_NUM_THREADS", "GLASS_PIN_THREADS"):
        monkeypatch.delenv(name, raising=False)


class TestLevels:
    def test_the_best_comes_first_and_portable_last(self) -> None:
        known = library.levels()
        assert known[-1] == "portable"
        assert library.chosen_level() == known[0]
        assert library.describe()["levels"] == list(known)

    @pytest.mark.parametrize("level", library.levels())
    def test_GLASS_LEVEL_chooses_a_level(self, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_LEVEL", level)
        assert Engine().level == level == library.describe()["level"]

    @pytest.mark.parametrize(("value", "message"), [("portible", "Did you mean 'portable'?"), ("sse", "Here can run: ")])
    def test_unknown_GLASS_LEVEL_is_refused(self, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_LEVEL", value)
        with pytest.raises(SettingError, match=f"GLASS_LEVEL is {value!r}, which cannot run here") as caught:
            Engine()
        assert message in str(caught.value)

    def test_level_that_this_processor_lacks_is_refused(self) -> None:
        with pytest.raises(ExecutorError, match="'warp'"):
            Engine("warp", 2)


class TestThreads:
    def test_default_is_the_number_of_fast_cores(self) -> None:
        assert library.requested_threads() is None
        assert library.default_threads() == Engine().threads == available().default_threads

    def test_GLASS_THREADS_comes_before_OMP_NUM_THREADS(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert library.requested_threads() == (3, "OMP_NUM_THREADS")
        monkeypatch.setenv("GLASS_THREADS", "2")
        assert library.requested_threads() == (2, "GLASS_THREADS")
        assert Engine().threads == 2

    @pytest.mark.parametrize(("value", "found"), [("4,2", 4), (" 3 ", 3), ("1000", 256)])
    def test_OMP_NUM_THREADS_is_bounded_and_lenient(self, value: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """OpenMP's variable lists a number for each level of nesting, and has no limit; what is none says nothing."""
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert library.default_threads() == found
        for nothing in ("", "many", "0", "-2"):
            monkeypatch.setenv("OMP_NUM_THREADS", nothing)
            assert library.requested_threads() is None

    @pytest.mark.parametrize("value", ["0", "-1", "257", "many", "1.5", "4,2"])
    def test_invalid_GLASS_THREADS_is_refused(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_THREADS", value)
        with pytest.raises(SettingError, match=f"GLASS_THREADS is {value!r}; it must be a number from 1 to 256"):
            Engine()

    def test_invalid_GLASS_THREADS_is_refused_even_with_auto(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not even where another executor could run the model."""
        monkeypatch.setenv("GLASS_THREADS", "to")
        with pytest.raises(SettingError, match="GLASS_THREADS is 'to'"):
            _ = Executors(tiny("Q8_0").opened, ExecutorOptions()).executor

    def test_empty_variables_are_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_THREADS", "")
        monkeypatch.setenv("GLASS_LEVEL", "")
        assert (library.chosen_level(), library.requested_threads()) == (library.levels()[0], None)

    @pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
    def test_more_threads_than_the_system_allows_is_an_error(self) -> None:
        """Those that were started already end."""
        code = """
import resource, threading
from glassformer.engine.cpu.library import Engine
from glassformer.ground.errors import ExecutorError
Engine(threads=2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, used + 200_000_000))  # some stacks of threads
try:
    Engine(threads=256)
except ExecutorError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("the CPU engine cannot start 256 threads on level ")

    def test_idle_threads_sleep(self, tiny: Tiny) -> None:
        """After a pass they wait for the next one for some milliseconds, and then use no time of any processor."""
        executor = tiny("Q8_0").cpu(threads=4)
        executor.run([Feed(executor.open(), [4, 8, 15])])

        def used() -> float:
            before = time.process_time()
            time.sleep(0.1)
            return time.process_time() - before

        wait_until(lambda: used() < 0.01)  # three threads that spin would use 0.3 s of idle cores, or 0.1 s of one


def affinities() -> list[set[int]]:
    """The processors that each of this process's threads may run on."""
    return [os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins threads")
class TestPinning:
    @pytest.fixture(autouse=True)
    def _pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_PIN_THREADS", "1")

    def test_workers_are_pinned_and_the_caller_is_not(self) -> None:
        caller = os.sched_getaffinity(0)
        before = affinities()
        threads = len(available().allowed) + 1  # more than there are, so that each has a turn even on one processor
        engine = Engine(threads=threads)
        placement = available().placement(threads)
        assert engine.pinned
        assert os.sched_getaffinity(0) == caller
        pinned = sorted(min(mask) for mask in affinities() if len(mask) == 1)
        others = sorted(min(mask) for mask in before if len(mask) == 1)
        assert pinned == sorted(others + placement[1:])

    def test_executor_says_so(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        level = library.levels()[0]
        assert tiny("Q8_0").cpu(threads=2).describe().notes[0] == f"{level}, 2 threads, pinned"
        monkeypatch.setenv("GLASS_PIN_THREADS", "0")
        assert tiny("Q8_0").cpu(threads=2).describe().notes[0] == f"{level}, 2 threads"

    def test_results_are_the_same(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        def scores() -> Any:
            executor = tiny("Q8_0").cpu(threads=3)
            return executor.run([Feed(executor.open(), [4, 8, 15])])[0].host().copy()

        pinned = scores()
        monkeypatch.delenv("GLASS_PIN_THREADS")
        assert np.array_equal(pinned, scores())

    def test_processor_that_is_not_there_leaves_the_thread_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Processors, "placement", lambda self, threads: [0, -1, 10**6, 1023][:threads])
        assert Engine(threads=4).threads == 4

    @pytest.mark.parametrize("value", ["yes", "2", "-1"])
    def test_invalid_value_is_refused(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_PIN_THREADS", value)
        with pytest.raises(
            SettingError, match=f"GLASS_PIN_THREADS is {value!r}; it must be 1, to pin threads to cores, or 0"
        ):
            Engine()

    def test_other_systems_do_not_pin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        assert not library.pinning_requested()


class TestTheLibrary:
    @pytest.fixture
    def loading(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """The library, loaded afresh from a path."""

        def load(path: Path) -> Any:
            monkeypatch.setenv("GLASS_LIBRARY", str(path))
            return library.library.__wrapped__()

        return load

    def test_structures_have_their_sizes_on_both_sides(self) -> None:
        found = library.library()
        for number, structure in enumerate(library.STRUCTURES):
            assert found.glass_size(number) == ctypes.sizeof(structure), structure.__name__
        assert found.glass_size(len(library.STRUCTURES)) == -1

    @pytest.mark.parametrize("structure", library.NativeStructure.__subclasses__())
    @pytest.mark.parametrize("number", [2**31, 2**32 + 1, -(2**31) - 1, 10**30])
    def test_numbers_that_do_not_fit_are_refused(self, structure: Any, number: int) -> None:
        """ctypes would cut them off."""
        message = f"={number}, which does not fit 32 bits. Use executor='plain'"
        for name, at in structure.numbers.items():
            with pytest.raises(ExecutorError, match=name + message):
                structure(**{name: number})
            with pytest.raises(ExecutorError, match=name + message):
                structure(*[0] * at, number)
            assert getattr(structure(**{name: 2**31 - 1}), name) == 2**31 - 1

    def test_packing_refuses_rows_that_do_not_fit(self) -> None:
        with pytest.raises(ExecutorError, match="rows=2147483648"):
            library.packed_size(library.FileKind.Q8_0, 2**31, 32)

    @pytest.mark.parametrize("size", [1, 7, 50, 4097])
    def test_entropy_stats_equal_those_of_numpy(self, size: int) -> None:
        scores = (np.random.default_rng(size).standard_normal(2 * size) * 4).astype(np.float32)
        out = np.where(np.arange(2 * size) % 5, scores, -np.inf).astype(np.float32)
        engine = Engine()
        for row in (scores, scores[::2], out, scores / np.float32(0.01), np.zeros(size, np.float32)):
            expected, stats = entropy_stats(row), engine.entropy_stats(row)
            assert stats.in_play == expected.in_play
            assert stats == pytest.approx(expected, rel=2e-7, abs=2e-7)
        assert engine.entropy_stats(np.full(size, -np.inf, np.float32)) == (0, 0.0, 0.0)
        assert entropy_stats(np.full(size, -np.inf, np.float32)) == (0, 0.0, 0.0)

    def test_policies_compute_entropies_where_the_model_runs(self, tiny: Tiny) -> None:
        opened = tiny("Q8_0").opened
        native, plain = (Executors(opened, ExecutorOptions(executor)) for executor in ("cpu", "plain"))
        assert native.entropy_stats == native.executor.entropy_stats  # type: ignore[attr-defined]
        assert plain.entropy_stats is entropy_stats

    def test_library_of_another_version_is_refused(
        self, loading: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = Path(library.library()._name)
        monkeypatch.setattr(library, "STRUCTURES", (*library.STRUCTURES[:-1], library.NativeNorm))
        with pytest.raises(ExecutorError, match="another version"):
            loading(path)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs the name of a library that is always there")
    def test_library_without_a_function_is_refused(self, loading: Callable[..., Any]) -> None:
        with pytest.raises(ExecutorError, match="another version"):
            loading(Path("libc.so.6"))

    def test_file_that_is_no_library_is_refused(self, loading: Callable[..., Any], tmp_path: Path) -> None:
        (tmp_path / "engine.so").write_bytes(b"not a library")
        with pytest.raises(ExecutorError, match="the CPU engine's library cannot be loaded: .*GLASS_REBUILD=1"):
            loading(tmp_path / "engine.so")

    def test_pass_without_memory_is_an_error(self, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
        class Empty:
            glass_run = staticmethod(lambda handle, given: 1)
            glass_close = staticmethod(lambda handle: None)

        executor = tiny("llama").cpu()
        row = executor.open()
        with monkeypatch.context() as patch:
            patch.setattr(library, "library", lambda: Empty)
            with pytest.raises(ExecutorError, match="lacks memory for this pass. Shorten the prompt, or feed fewer rows"):
                executor.run([Feed(row, [4, 8])])
            with pytest.raises(ExecutorError, match="lacks memory"):
                executor._engine.run(NativePass())
        assert row.length == 0
        executor.run([Feed(row, [4, 8])])
        assert row.length == 2


def _answer(executor: Any, row: Any, pipe: Any) -> None:
    fresh = executor.run([Feed(executor.open(), [4, 8, 15])])[0].host()
    pipe.send((fresh.copy(), executor.run([Feed(row, [23])])[0].host().copy()))
    pipe.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_forked_process_gets_its_own_threads(threads: int, tiny: Tiny) -> None:
    """Threads do not come along, so it starts a team of its own; memory does, so rows go on."""
    executor = tiny("Q4_K").cpu(threads=threads)
    row = executor.open()
    executor.run([Feed(row, [4, 8, 15])])
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(executor, row, there))
    child.start()
    assert here.poll(60), "the child does not answer"
    fresh, grown = here.recv()
    child.join(patience(60))
    assert child.exitcode == 0
    assert np.array_equal(fresh, executor.run([Feed(executor.open(), [4, 8, 15])])[0].host())
    assert np.array_equal(grown, executor.run([Feed(row, [23])])[0].host())


def test_two_engines_at_once(tiny: Tiny) -> None:
    """Each with a team of its own, driven by Python threads of their own."""
    subject = tiny("Q8_0")
    wanted = subject.cpu(threads=1).run([Feed(subject.cpu().open(), [4, 8, 15])])[0].host().copy()
    found: list[Any] = []

    def work() -> None:
        executor = subject.cpu(threads=2)
        for _ in range(20):
            row = executor.open()
            found.append(executor.run([Feed(row, [4, 8, 15])])[0].host().copy())
            executor.close(row)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(patience(60))
    assert len(found) == 60
    assert all(np.array_equal(one, wanted) for one in found)


def test_any_thread_may_ask_for_the_levels() -> None:
    """ctypes lets go of Python's lock during a call, so threads are in the library at the same time."""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: {library.levels() for _ in range(5000)}, range(4)))
    assert answers == [{library.levels()}] * 4


def test_cpu_executor_imports_no_torch() -> None:
    code = "import sys, glassformer.engine.cpu.executor; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
