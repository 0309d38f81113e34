"""`glass models recommend`: sizes that are the published ones, speeds that follow from a calibration, what is best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from glassformer.blueprints import blueprint, read_config
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.cli.app import app
from glassformer.engine.cpu import calibration
from glassformer.engine.cpu.calibration import Calibration, DecodeRate, solve
from glassformer.quantize.tensor_kinds import weight_bytes
from glassformer.runtime.recommend import recommend

PUBLISHED = {  # parameters, as the models' pages have them
    "smollm2": 134_515_008, "smollm2-360m": 361_821_120, "qwen2.5-0.5b": 494_032_768, "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976, "llama3.2-1b": 1_235_814_400, "gemma3-270m-it": 268_098_176, "gemma3-1b-it": 999_885_952,
}  # fmt: skip
RATES = Calibration(2, {kind: DecodeRate(1e-4, 5e9) for kind in calibration.KINDS}, disturbed=False)


@pytest.fixture(autouse=True)
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "calibration", lambda progress=None: RATES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_catalogues_numbers_are_those_of_the_models(name: str) -> None:
    config = read_config(dict(CATALOGUE[name].config or {}))
    assert blueprint(config).parameters == PUBLISHED[name]
    assert weight_bytes(blueprint(config), "BF16") == 2 * PUBLISHED[name]


def test_a_packed_size_is_that_of_the_file(smollm2: Path) -> None:
    model = blueprint(read_config(dict(CATALOGUE["smollm2"].config or {})))
    assert weight_bytes(model, "Q4_1") == pytest.approx(smollm2.stat().st_size, rel=0.03)  # beside them a tokenizer


def test_what_fits_and_what_is_best() -> None:
    found = recommend(device="cpu", free=1_300_000_000)
    for one in found.candidates:
        assert one.fits == (one.memory <= 1_300_000_000)
        assert one.memory > one.weight_bytes + one.cache_bytes
        assert one.tokens_per_second is not None
        blocks = blueprint(read_config(dict(CATALOGUE[one.name].config or {}))).blocks
        assert one.tokens_per_second == pytest.approx(1 / (blocks * 1e-4 + one.weight_bytes / 5e9))
        assert one.speed == pytest.approx((0.75 * one.tokens_per_second, 1.25 * one.tokens_per_second))
    assert [one.fits for one in found.candidates] == sorted(
        (one.fits for one in found.candidates), key=lambda fits: not fits
    )
    assert found.best is not None
    assert not found.best.gated  # as long as it is not here
    assert found.best.command == "glass run -m qwen2.5-0.5b --weights q4_1"
    assert recommend(device="cpu", free=1_300_000_000, context=1).best != found.best  # a shorter conversation takes less


def test_nothing_fits() -> None:
    found = recommend(device="cpu", free=1_000_000)
    assert found.best is None
    assert "Nothing fits: the smallest is smollm2, which takes" in found.conclusion
    assert "leave room for fewer tokens with --context" in found.conclusion


def test_a_gpu_and_models_that_write_nothing_have_no_speed() -> None:
    for found in (recommend(device="cuda", free=10**11), recommend("embed", device="cpu", free=10**9)):
        assert all(one.speed is None for one in found.candidates)
        assert found.threads is None
        assert found.best is not None
    assert found.best.command == "glass task similarity -m minilm"


def test_the_verb() -> None:
    answer = CliRunner().invoke(app, ["models", "recommend", "--json"])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert {row["name"] for row in data["candidates"]} == set(PUBLISHED)
    shown = Console(width=80, record=True)
    shown.print(recommend(device="cpu", free=10**10))
    assert max(map(len, shown.export_text().splitlines())) <= 80


def test_the_two_times_explain_both_measurements() -> None:
    rate = solve((30, 97_000_000, 30 * 1e-4 + 97e6 / 4e9), (3, 160_000_000, 3 * 1e-4 + 160e6 / 4e9))
    assert (rate.seconds_per_block, rate.bytes_per_second) == pytest.approx((1e-4, 4e9))
    noisy = solve((30, 97_000_000, 0.02), (3, 160_000_000, 0.04))  # blocks would take less than nothing
    assert (noisy.seconds_per_block, noisy.bytes_per_second) == pytest.approx((0.0, 257e6 / 0.06))


def test_a_calibration_is_kept_and_a_damaged_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    calibration._keep(path, RATES)
    assert calibration._read(path, 2) == RATES
    for damaged in ("", "{}", path.read_text().replace("5000000000.0", "-1")):
        path.write_text(damaged)
        assert calibration._read(path, 2) is None


def test_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {**calibration.SHAPES, "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
            "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    monkeypatch.setattr(calibration, "SHAPES", tiny)
    monkeypatch.setattr(calibration, "WIDE", {**tiny, "num_hidden_layers": 1, "intermediate_size": 512})
    monkeypatch.setattr(calibration, "SECONDS", 0.0)
    told: list[tuple[int, int]] = []
    found = calibration.measure(1, lambda *said: told.append(said))
    assert told == [(done, 6) for done in range(1, 7)]
    assert set(found.rates) == set(calibration.KINDS)
    assert all(rate.bytes_per_second > 0 <= rate.seconds_per_block for rate in found.rates.values())
