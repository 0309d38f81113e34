"""The native engine at every level of this processor under the compiler's sanitizers, over mutated models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.engine.cpu import build, library
from tests.conftest import unavailable
from tests.fuzz.test_fuzz import outcome

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")
CASES = 3_000

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's library is loaded before Python by LD_PRELOAD"),
]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The surroundings in which Python runs the engine under its sanitizers."""
    compiler = build.find_compiler()
    runtime = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        unavailable("the compiler's address sanitizer is not installed")
    report = tmp_path_factory.mktemp("reports") / "report"
    return {
        "GLASS_LIBRARY": str(build.library(extra=FLAGS)),
        "LD_PRELOAD": str(Path(runtime).resolve()),
        # GCC 13 aligns the stack of vectors wrongly where it looks for uses after a return (its bug 110027)
        "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=0:log_path={report}",
        "FUZZ_MEMORY": "0",  # the sanitizer reserves terabytes of addresses
        "FUZZ_SECONDS": "120",
    }


@pytest.mark.parametrize("name", ["model", "gguf_model", "settings"])
def test_mutated_models_under_sanitizers(
    name: str, sanitized: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for level in library.levels():
        for variable, value in {**sanitized, "GLASS_LEVEL": level}.items():
            monkeypatch.setenv(variable, value)
        try:
            result = outcome(name, 0, CASES, tmp_path)
        finally:
            monkeypatch.undo()
            reports = Path(sanitized["ASAN_OPTIONS"].partition("log_path=")[2]).parent.iterdir()
            assert not [report.read_text()[:4000] for report in reports], level
        assert not result["failures"], (level, result["failures"])
        assert result["accepted"] > CASES // 100
