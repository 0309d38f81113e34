"""`glass serve`, as people run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from glassformer.cli.serve import greeting, parse_limits, split_alias
from glassformer.ground.errors import SettingError
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource
from tests.cli.test_cli import failed, glass
from tests.patience import patience

COMMAND = [sys.executable, "-c", "from glassformer.cli import main; main()", "serve", "--port", "0"]


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its address."""
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = None
        for line in process.stderr:
            address = re.search(r"^at (http://\S+) for", line) or address
            if line.startswith("Ctrl-C"):
                break
        assert address is not None
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals between processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_told_to_stop(tiny_qwen3: Path, number: int) -> None:
    with served("-m", f"gpt-4o={tiny_qwen3}", "--limit", "new_tokens=5") as (process, address):
        models = [model["id"] for model in httpx.get(f"{address}/v1/models", timeout=patience(5)).json()["data"]]
        assert models == [tiny_qwen3.name, "gpt-4o"]
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "ignore_eos": True}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=patience(60)).json()
        assert answer["usage"]["completion_tokens"] == 5
        process.send_signal(number)
        out, err = process.communicate(timeout=patience(30))
        assert process.returncode == 0, err
        assert err == "stopped.\n"
        assert out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--host", "0.0.0.0"), "0.0.0.0 can be reached from other machines, so a key is needed."),
        (("--host", "0.0.0.0", "--api-key", "short"), "the API key has 5 characters; 16 are the least that is safe."),
        (("--limit", "queue=3"), "there is no limit 'queue'. Did you mean 'queued'?"),
        (("--assistant", "smollm2"), "--assistant is 'smollm2'; a server's models draft with their own heads, mtp,"),
        (("--limit", "queued"), "--limit 'queued' is not NAME=VALUE, such as queued=64."),
        (("--limit", "queued=many"), "the limit queued is 'many'; it must be a whole number."),
        (("--limit", "running=0"), "the limit running is 0; it must be at least 1."),
        (("--allow-origin", "example.com"), "'example.com' is no origin."),
        (("-m", "no/such/thing/here"), "no/such/thing/here"),
        (("-m", "=smollm2"), "--model '=smollm2' is not [ALIAS=]NAME, such as gpt-4o=smollm2."),
    ],
)
def test_what_cannot_be_served_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    assert message in failed(glass("serve", "--port", "0", *words))


def test_models_without_a_head_cannot_draft_with_one(tiny_qwen3: Path) -> None:
    message = failed(glass("serve", "--port", "0", "-m", str(tiny_qwen3), "--assistant", "mtp"))
    assert f"--assistant mtp means a model's own head for further tokens, and {tiny_qwen3.name} has none" in message


def test_a_name_twice_is_refused(tiny_qwen3: Path) -> None:
    message = failed(glass("serve", "--port", "0", "-m", f"a={tiny_qwen3}", "-m", f"b={tiny_qwen3}"))
    assert f"two models are called {tiny_qwen3.name!r}" in message


def test_aliases_are_split_at_the_first_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.gguf").write_bytes(b"")
    assert split_alias("gpt-4o=Qwen/Qwen3-0.6B") == ("gpt-4o", "Qwen/Qwen3-0.6B")
    assert split_alias("a=b.gguf") == (None, "a=b.gguf")
    assert split_alias("./c=d") == (None, "./c=d")
    assert split_alias("smollm2") == (None, "smollm2")
    with pytest.raises(SettingError, match="is not .ALIAS=.NAME"):
        split_alias("gpt-4o=")


def test_limits_are_numbers() -> None:
    assert parse_limits(["queued=3", "seconds=1.5"]).queued == 3
    assert parse_limits(None).seconds == 600


def test_the_greeting_shows_no_key() -> None:
    sources = [ModelSource("tiny", lambda: None, ("gpt-4o",))]  # type: ignore[arg-type, return-value]
    text = greeting("http://127.0.0.1:8000", sources, Limits(), keyed=True)
    assert text.startswith("serving tiny = gpt-4o\nat http://127.0.0.1:8000 for whoever has the key; ")
    assert 'curl http://127.0.0.1:8000/v1/chat/completions -H "Authorization: Bearer $GLASS_API_KEY"' in text
    assert "Authorization" not in greeting("http://127.0.0.1:8000", sources, Limits(), keyed=False)


@pytest.mark.parametrize(
    ("limits", "size"),
    [(Limits(), "a third of the memory that is free then"), (Limits(cached_tokens=50_000), "50,000 tokens\n")],
)
def test_the_greeting_says_how_large_caches_are(limits: Limits, size: str) -> None:
    sources = [ModelSource("tiny", lambda: None)]  # type: ignore[arg-type, return-value]
    assert f"KV cache of each model, when it is first asked: {size}" in greeting("http://a", sources, limits, keyed=False)
