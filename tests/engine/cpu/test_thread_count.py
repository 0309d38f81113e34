"""How many threads models run on: what is asked for, what is kept, what is measured; and the measurement itself."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu import library, thread_bench, thread_count
from glassformer.engine.cpu.cores import Core, Processors
from glassformer.engine.cpu.library import Engine
from glassformer.engine.cpu.thread_bench import DecodeSpeeds, Timing, best_times, decode_speeds, model_speeds
from glassformer.engine.cpu.thread_count import chosen_threads, fewest_of_fastest, kept_path
from glassformer.ground.errors import ExecutorError
from glassformer.runtime.executors import ExecutorOptions, Executors
from tests.engine.executors import Subject, write_checkpoint
from tests.patience import patience

Tiny = Callable[..., Subject]
SMALL: Mapping[str, Any] = {
    **thread_bench.SHAPES, "num_hidden_layers": 2, "hidden_size": 288, "intermediate_size": 96, "vocab_size": 64
}  # fmt: skip


def processors(logical: int, quota: float | None = None, root: str = "/no/such/folder") -> Processors:
    """A machine whose cores have no hyper-threads."""
    return Processors("a processor", tuple(range(logical)), quota, Path(root))


class FakeMachine:
    """A machine with some cores, whose speeds are known; counts how often it is measured."""

    def __init__(self) -> None:
        self.processors = processors(4)
        self.tokens_per_second = {1: 50.0, 2: 90.0, 4: 120.0}
        self.disturbed = False
        self.measured = 0

    def measure(self, counts: list[int]) -> DecodeSpeeds:
        self.measured += 1
        return DecodeSpeeds({count: self.tokens_per_second[count] for count in counts}, 100, self.disturbed)


@pytest.fixture
def machine(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    fake = FakeMachine()
    for name in ("GLASS_LEVEL", "GLASS_THREADS", "OMP_NUM_THREADS", "GLASS_PIN_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLASS_LIBRARY", library.library()._name)  # the home is empty
    monkeypatch.setattr(thread_count, "available", lambda: fake.processors)
    monkeypatch.setattr(thread_count, "decode_speeds", fake.measure)
    return fake


class TestChoice:
    @pytest.mark.parametrize(
        ("speeds", "threads"),
        [
            ({1: 50, 2: 90, 4: 120}, 4),
            ({1: 50, 2: 117, 4: 120}, 2),
            ({1: 50, 2: 116, 4: 120}, 4),
            ({8: 500, 16: 400}, 8),
            ({1: 10}, 1),
        ],
    )
    def test_the_fewest_that_are_almost_fastest(self, speeds: dict[int, float], threads: int) -> None:
        assert fewest_of_fastest(speeds) == threads

    @pytest.mark.parametrize("variable", ["GLASS_THREADS", "OMP_NUM_THREADS"])
    def test_a_requested_number_is_not_measured(
        self, variable: str, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "3")
        choice = chosen_threads()
        assert (choice.threads, choice.reason, machine.measured) == (3, f"{variable} is set", 0)

    @pytest.mark.parametrize("what", [processors(1), processors(8, quota=1.9)])
    def test_one_processor_is_not_measured(self, what: Processors, machine: FakeMachine) -> None:
        machine.processors = what
        assert (chosen_threads().threads, machine.measured) == (1, 0)

    def test_one_core_with_hyper_threads_is_not_measured(
        self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Processors, "cores", (Core((0, 1)),))
        machine.processors = processors(2)
        assert (chosen_threads().threads, machine.measured) == (1, 0)

    def test_measured_once_and_kept(self, machine: FakeMachine, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "glassformer"):
            first, second = chosen_threads(), chosen_threads()
        assert first == second
        assert (first.threads, first.reason) == (4, "measured: the fewest within 3% of the fastest")
        assert machine.measured == 1
        assert caplog.messages == ["measuring how many threads are fastest here, once: about 1 s"]
        kept = json.loads(kept_path(machine.processors).read_text("utf-8"))
        assert (kept["threads"], kept["tokens_per_second"]) == (4, {"1": 50.0, "2": 90.0, "4": 120.0})

    def test_models_run_on_so_many(self, machine: FakeMachine, tiny: Tiny) -> None:
        machine.tokens_per_second = {1: 50.0, 2: 119.0, 4: 120.0}
        assert Executors(tiny("Q8_0").opened, ExecutorOptions("cpu")).executor.describe().threads == 2

    def test_disturbed_measurement_counts_for_a_day(self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
        machine.disturbed, machine.tokens_per_second = True, {1: 50.0, 2: 20.0, 4: 10.0}
        expected = "one per core, because other programs disturbed the measurement"
        assert [chosen_threads() for _ in range(2)] == [thread_count.ThreadCount(4, expected)] * 2
        assert machine.measured == 1
        machine.disturbed, tomorrow = False, time.time() + 90_000
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        assert (chosen_threads().threads, machine.measured) == (1, 2)


class TestKept:
    def test_another_machine_is_measured_anew(self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = {kept_path(machine.processors)}
        for other in (
            Processors("another", machine.processors.allowed), processors(8), processors(4, quota=3.0), processors(4, 2.0)
        ):  # fmt: skip
            paths.add(kept_path(other))
        for variable, value in (("GLASS_LEVEL", "portable"), ("GLASS_PIN_THREADS", "1")):
            monkeypatch.setenv(variable, value)
            paths.add(kept_path(machine.processors))
        pinning = library.pinning_requested()
        assert len(paths) == (7 if pinning else 6) - (library.levels() == ("portable",))

    @pytest.mark.parametrize(
        "text",
        [
            "", "{", "[]", "null", "4", '{"threads": 2}', "[" * 100_000, "\0" * 99,
            '{"threads": 2, "reason": 3, "expires": null}',
            *(f'{{"threads": {count}, "reason": "", "expires": null}}' for count in ("0", "-1", "5", "2.0", '"2"', "true")),
            *(f'{{"threads": 2, "reason": "", "expires": {when}}}' for when in ("0", "1e99", '"soon"', "[]")),
        ],
    )  # fmt: skip
    def test_damaged_file_is_written_anew(self, text: str, machine: FakeMachine) -> None:
        path = kept_path(machine.processors)
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")
        assert [chosen_threads().threads for _ in range(2)] == [4, 4]
        assert machine.measured == 1

    def test_file_that_is_no_text(self, machine: FakeMachine) -> None:
        path = kept_path(machine.processors)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\xff\xfe")
        assert (chosen_threads().threads, machine.measured) == (4, 1)

    def test_home_that_cannot_be_written_is_not_measured(self, machine: FakeMachine, empty_home: Path) -> None:
        empty_home.write_text("a file where the folder should be", "utf-8")
        choice = chosen_threads()
        assert (choice.threads, choice.reason, machine.measured) == (4, "one per core, not measured", 0)

    def test_result_that_cannot_be_kept_is_used(self, machine: FakeMachine) -> None:
        kept_path(machine.processors).mkdir(parents=True)  # a folder where the file should be
        machine.tokens_per_second = {1: 50.0, 2: 119.0, 4: 120.0}
        assert (chosen_threads().threads, machine.measured) == (2, 1)

    def test_old_files_are_removed(self, machine: FakeMachine, empty_home: Path) -> None:
        empty_home.mkdir(parents=True)
        old, recent = (empty_home / f"threads-{name}.json" for name in ("old", "recent"))
        old.touch()
        recent.touch()
        os.utime(old, (0, 0))
        chosen_threads()
        assert (old.exists(), recent.exists()) == (False, True)

    def test_several_at_once_measure_once(self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
        def slowly(counts: list[int]) -> DecodeSpeeds:
            time.sleep(0.1)
            return machine.measure(counts)

        monkeypatch.setattr(thread_count, "decode_speeds", slowly)
        choices: list[int] = []
        workers = [threading.Thread(target=lambda: choices.append(chosen_threads().threads)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(patience(60))
        assert (choices, machine.measured) == ([4] * 4, 1)

    def test_nobody_waits_for_ever(self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
        """For a process that holds the lock and stands still."""
        monkeypatch.setattr(thread_count, "MAX_WAIT", 0.1)
        monkeypatch.setattr(thread_count, "try_lock", lambda file: False)
        assert (chosen_threads().threads, machine.measured) == (4, 0)


class TestMeasurement:
    def test_every_number_of_threads_gets_a_speed(self) -> None:
        speeds = decode_speeds([1, 2, 3], seconds=0, shapes=SMALL)
        assert list(speeds.tokens_per_second) == [1, 2, 3]
        assert all(speed > 0 for speed in speeds.tokens_per_second.values())
        packed = 2 * (2 * 288 * 288 + 2 * 96 * 288 + 3 * 288 * 96) * 20 // 32  # Q4_1: 20 bytes for 32 numbers
        assert speeds.weight_bytes == packed + 64 * 288 * 34 // 32

    def test_synthetic_weights_compute_numbers(self) -> None:
        """Not infinity or nothing, which some processors compute at another speed."""
        decoder = thread_bench.SyntheticDecoder(SMALL)
        decoder.run(Engine(threads=1))
        logits = decoder._pass.results()[0].values
        assert logits.shape == (1, 64)
        assert np.isfinite(logits).all()
        assert (np.abs(logits) > 1e-3).all()

    def test_real_shapes_are_about_as_large_as_the_default_model(self) -> None:
        assert 90e6 < thread_bench.SyntheticDecoder().weight_bytes < 100e6

    def test_rounds_alternate_and_slow_ones_are_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock, turns = [0.0], []
        monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
        monkeypatch.setattr(time, "sleep", lambda seconds: None)

        def run(count: int, seconds: float) -> None:
            turns.append(count)
            clock[0] += seconds

        runs = {1: lambda: run(1, 1.0), 2: lambda: run(2, 0.5), 4: lambda: run(4, 0.6)}
        timings = best_times(runs, seconds=0, min_rounds=2, passes=1)
        assert turns == [1, 1, 2, 2, 4, 4, 2, 2, 4, 4]
        assert {count: round(timing.seconds, 6) for count, timing in timings.items()} == {1: 1.0, 2: 0.5, 4: 0.6}

    def test_other_programs_are_noticed(self) -> None:
        timings = best_times({1: lambda: time.sleep(0.01)}, seconds=0)
        assert timings[1].disturbed  # it had no processor while it waited
        assert not Timing(1.0, 0.95).disturbed

    def test_numbers_of_threads_that_cannot_start_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def engine(threads: int) -> str:
            if threads > 2:
                raise ExecutorError("the CPU engine cannot start 4 threads")
            return f"{threads} threads"

        monkeypatch.setattr(thread_bench, "Engine", engine)
        assert thread_bench.start_engines([1, 2, 4]) == {1: "1 threads", 2: "2 threads"}
        with pytest.raises(ExecutorError, match="cannot start 4 threads"):
            thread_bench.start_engines([4])

    @pytest.mark.parametrize("family", ["llama", "t5"])
    def test_speed_of_a_model(self, family: str, tmp_path: Path) -> None:
        subject = write_checkpoint(tmp_path, family)
        speeds = model_speeds(subject.config, subject.blueprint, subject.opened.tensors, [1, 2], seconds=0)
        assert list(speeds) == [1, 2]
        assert all(speed.decode > 0 and speed.prefill > 0 for speed in speeds.values())
