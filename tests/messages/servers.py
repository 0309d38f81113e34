"""Servers: their models, queues and files; and clusters."""

from __future__ import annotations

import threading
from typing import Any

import glassformer
from glassformer.ground.errors import (
    CheckpointError,
    InputError,
    MissingExtra,
    ModelNotFound,
    QueueFull,
    SettingError,
    Unavailable,
)
from glassformer.scale.cluster import import_ray
from glassformer.serving.followed_training import FollowedTraining
from glassformer.serving.http.app import create_app
from glassformer.serving.http.clients import network, real_client
from glassformer.serving.http.dialects.ollama_models import fetched_name
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.server import GlassServer
from glassformer.serving.job_threads import JobThreads
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.jobs.models import chat_model
from tests.messages.calls import Entry, path, place, run, without, write
from tests.training.folders import training_folder


def registry(*names: str, **limits: int) -> Registry:
    return Registry([ModelSource(name, lambda: glassformer.load(path("qwen3"))) for name in names], Limits(**limits))


def gone() -> Registry:
    return Registry([ModelSource("gone", lambda: glassformer.load(place() / "nowhere"))])


def in_use(remove: str) -> None:
    models = registry("a", "b")
    with models.use("a"):
        models.remove(remove)


def all_in_use() -> None:
    models = registry("a", "b", "c", loaded_models=2)
    with models.use("a"), models.use("b"):
        models.acquire("c")


def copied(times: int) -> None:
    models = registry("a")
    for index in range(times):
        models.copy("a", f"a{index}")


def full_queue() -> None:
    threads, let_go = JobThreads("the tests", most=2), threading.Event()
    began = threading.Event()

    def hold() -> None:
        began.set()
        let_go.wait()

    threads.submit(hold, "a")
    began.wait()
    try:
        for _ in range(3):
            threads.submit(lambda: None, "a")
    finally:
        let_go.set()
        threads.close(Unavailable("over"), 0)


def followed(stopped: bool) -> Any:
    folder = place() / f"followed-{stopped}"
    if not folder.exists():
        training_folder(folder, [], ("gpt2",))
    stop = threading.Event()
    if stopped:
        stop.set()
    else:
        (folder / "snapshots" / "step-00000020").mkdir(exist_ok=True)
    return FollowedTraining(folder).learning("the cat", None, stop)


def forwarded(**headers: str) -> Any:
    pairs = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return real_client({"type": "http", "client": ("10.0.0.7", 5000), "headers": pairs}, [network("10.0.0.0/8")])


def asked_to_rank() -> object:
    from glassformer.serving.http.dialects.rerank import relevance

    return relevance(chat_model().with_name("chat"), "How old?", ["Seven."])


MESSAGES: dict[str, list[Entry]] = {
    "the models of a server": [
        (InputError, asked_to_rank,
         "the files of chat do not say that it is a reranker, so its scores would be worth little. Take one that is, such "
         "as 'cross-encoder/ms-marco-MiniLM-L6-v2', or say in instruction what this one is to judge by."),
        (InputError, lambda: registry("a").remove("a"),
         "a is the last model here, and a server needs one. Pull another first."),
        (InputError, lambda: in_use("a"),
         "a is in use. Try again later."),
        (QueueFull, all_in_use,
         "2 models are loaded and in use, and no more may be. Try again later."),
        (CheckpointError, lambda: gone().acquire("gone"),
         "gone cannot be loaded; the server's log says why."),
        (InputError, lambda: copied(257),
         "models have 256 further names already, and no more may be. Delete one."),
        (ModelNotFound, lambda: fetched_name("./model"),
         "there is no model './model' to pull. Give a hub id, or one of: smollm2, smollm2-360m, qwen2.5-0.5b, "
         "qwen3-0.6b, qwen3-1.7b, llama3.2-1b, gemma3-270m-it, gemma3-1b-it, gemma3-270m, minilm, g2p, gpt2, "
         "bert-base-uncased, distilbert-base-uncased, distilbert-sst2, distilbert-squad, bert-ner, roberta-base, "
         "t5-small, bart-base."),
        (QueueFull, full_queue,
         "2 jobs are waiting for the tests already. Try again later."),
    ],
    "starting a server": [
        (SettingError, lambda: GlassServer(
            create_app(registry("a")), port=0, tls_cert=write("cert.pem", "none"), tls_key=write("cert.pem", "none")),
         "TLS cannot be set up with …/cert.pem and …/cert.pem: …."),
        (HttpError, lambda: forwarded(X_Forwarded_For="unknown"),
         "the proxy does not name one address as the client's. It must set X-Forwarded-For, or Forwarded."),
        (MissingExtra, without("ray", import_ray),
         "a cluster needs Ray: pip install 'glassformer[ray]'."),
        (MissingExtra, without("anywidget", lambda: run().widget()),
         "a widget needs anywidget: pip install 'glassformer[notebooks]'."),
        (CheckpointError, lambda: followed(stopped=False),
         "the snapshot step-00000020 cannot be read; the server's log says why."),
        (Unavailable, lambda: followed(stopped=True),
         "the snapshots were not read in the time that this server gives to an answer."),
    ],
}  # fmt: skip
