"""Variables of the chat template in rows: as the server's route takes them, and with the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer
from glassformer.jobs import run_job
from glassformer.runtime.model import Model
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.jobs.models import read_rows, write_rows
from tests.jobs.test_openai_batch import CHAT, MESSAGES, body_of, request, run
from tests.patience import patience
from tests.serving.conftest import serving

pytestmark = pytest.mark.usefixtures("one_thread")
WAYS: list[dict[str, Any]] = [
    {},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": True}},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
]
WRONG: list[dict[str, Any]] = [{"chat_template_kwargs": {"no_such_variable": 1}}, {"chat_template_kwargs": {"messages": []}}]


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Model:
    return glassformer.load(tiny_qwen3, executor="cpu")


def plain(tmp_path: Path, model: Model, *rows: Any, **keywords: Any) -> list[dict[str, Any]]:
    run_job(model, write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "answers.jsonl", max_new_tokens=2, **keywords)
    return read_rows(tmp_path / "answers.jsonl")


def test_rows_are_rendered_as_the_server_renders_requests(tmp_path: Path, model: Model) -> None:
    app = create_app(Registry([ModelSource("gpt-4o", lambda: model)], Limits(stop_seconds=1)))
    body = {"model": "gpt-4o", "messages": MESSAGES, "max_tokens": 2}
    with serving(app) as address, httpx.Client(base_url=address, timeout=patience(60)) as client:
        served = [client.post(CHAT, json={**body, **way}).json() for way in [*WAYS, *WRONG]]
    batch = run(tmp_path, *(request(n, max_tokens=2, **way) for n, way in enumerate([*WAYS, *WRONG])), engine=model)
    rows = plain(tmp_path, model, *({"messages": MESSAGES, **way} for way in [*WAYS, *WRONG]))
    lengths = [answer["usage"]["prompt_tokens"] for answer in served[: len(WAYS)]]
    assert len(set(lengths)) == 2
    assert lengths[0] == lengths[2] == lengths[4]
    assert lengths[1] == lengths[3]
    assert [body_of(row)["usage"]["prompt_tokens"] for row in batch[: len(WAYS)]] == lengths
    assert [row["usage"]["prompt_tokens"] for row in rows[: len(WAYS)]] == lengths
    messages = [answer["error"]["message"] for answer in served[len(WAYS) :]]
    assert "no_such_variable" in messages[0]
    assert [row["response"]["body"]["error"]["message"] for row in batch[len(WAYS) :]] == messages
    assert [row["error"] for row in rows[len(WAYS) :]] == messages


def test_a_rows_own_variables_stand_above_those_of_its_effort_and_of_the_job(tmp_path: Path, model: Model) -> None:
    thinking, quiet, job, ids = plain(
        tmp_path, model,
        {"prompt": "hi", "reasoning_effort": "none", "template": {"enable_thinking": True}},
        {"prompt": "hi", "reasoning_effort": "none"},
        {"prompt": "hi"},
        {"ids": [1, 2]},
        template={"enable_thinking": True},
    )  # fmt: skip
    assert thinking["usage"]["prompt_tokens"] == job["usage"]["prompt_tokens"] < quiet["usage"]["prompt_tokens"]
    assert ids["usage"]["prompt_tokens"] == 2


def test_fields_of_other_types_are_refused(tmp_path: Path, model: Model) -> None:
    wrong = {"chat_template_kwargs": [1]}, {"reasoning_effort": 3}
    messages = [
        "chat_template_kwargs is [1]; it must be an object of the chat template's variables.",
        "reasoning_effort is 3; it must be a text, such as 'low'.",
    ]
    batch = run(tmp_path, *(request(number, **fields) for number, fields in enumerate(wrong)), engine=model)
    assert [row["response"]["body"]["error"]["message"] for row in batch] == messages
    assert [row["error"] for row in plain(tmp_path, model, *({"prompt": "hi", **fields} for fields in wrong))] == messages
