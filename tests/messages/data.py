"""Files of rows and of texts, trainings, servers, and the command."""

from __future__ import annotations

from typing import Any

import glassformer
from glassformer.checkpoint import local_cache
from glassformer.cli.chat.conversation import Conversation
from glassformer.ground.errors import InputError, ModelNotFound, SettingError, UnknownArgument
from glassformer.jobs import run_job
from glassformer.jobs.job import open_input
from glassformer.jobs.ledger import Ledger
from glassformer.scale.cluster import check_address
from glassformer.see.learning import learning
from glassformer.see.training_curves import read_training
from glassformer.serving.http.dialects.ollama import ChatRequest
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.security import Security
from glassformer.serving.registry import ModelSource, Registry
from glassformer.training.corpus import read_corpus
from glassformer.training.fine_tuning import ChatTraining
from glassformer.training.lora import target_modules
from glassformer.training.settings import TrainingSettings
from glassformer.training.text_training import TextTraining
from glassformer.training.training_folder import TrainingFolder
from tests.jobs.models import chat_model
from tests.messages.calls import USER, Entry, decoder, job, module, place, write
from tests.see.models import TEXT, encoder
from tests.training.folders import training_folder


def snapshots_of(*readings: Any) -> Any:
    """What a training's snapshots make of a text, each its own."""
    folder = training_folder(place() / f"learned-{len(readings)}", [], ("gpt2",) * len(readings))
    left = iter(readings)
    return learning(folder, lambda path: next(left))


MESSAGES: dict[str, list[Entry]] = {
    "jobs": [
        (InputError, lambda: job("out.csv"),
         "…/out.csv must end in one of: .jsonl, .ndjson, .parquet."),
        (InputError, lambda: job("in.jsonl"),
         "…/in.jsonl is the input. Choose another output file."),
        (SettingError, lambda: job(batch_size=0),
         "batch_size is 0; it must be at least 1."),
        (UnknownArgument, lambda: job(temprature=1),
         "there is no setting 'temprature'. Did you mean 'temperature'?"),
        (InputError, lambda: open_input(place()),
         "… is a folder, and a file is needed. Give the path of one."),
        (InputError, lambda: open_input(place() / "nowhere.jsonl"),
         "…/nowhere.jsonl: cannot be read: No such file or directory. Check the path and its permissions."),
        (InputError, lambda: Ledger(write("ledger", "x")),
         "…/ledger is no ledger of a job. Remove it, or choose another output file."),
        (InputError, lambda: job(write("taken.jsonl", "x").name),
         "…/taken.jsonl exists already, and is not of this job. Remove it, or choose another."),
        (SettingError, lambda: job(model=glassformer.pipeline("fill-mask", encoder().model), top_k=3),
         "a task has its own options. Make it with them: pipeline(…, top_k=…)."),
        (InputError, lambda: run_job(chat_model(), write("broken.parquet", "x"), place() / "out.jsonl"),
         "…/broken.parquet is no Parquet file that can be read: …."),
    ],
    "texts to train on": [
        (InputError, lambda: read_corpus(place() / "nowhere"),
         "…/nowhere: there is no such file or folder. Check the path."),
        (InputError, lambda: read_corpus(write("textless/a.bin", "").parent),
         "…/textless: holds no text files (.txt, .md, .rst, .text). Give another folder."),
        (InputError, lambda: read_corpus(write("empty.txt", "")),
         "…/empty.txt: is empty. Give a file or folder with text."),
    ],
    "training": [
        (SettingError, lambda: TextTraining(merge=True),
         "merge is for a LoRA, and the whole model is trained: leave it out, or add lora=8."),
        (SettingError, lambda: TextTraining(lora={"rank": 2}),
         "lora trains beside a model that exists: name it with init='MODEL'."),
        (SettingError, lambda: ChatTraining(data="x", init="y", epochs=2, settings={"steps": 3}),
         "epochs and steps both say how long it is trained. Leave one out."),
        (SettingError, lambda: ChatTraining(data="x", init="y", epochs=-1),
         "epochs=-1 is not above 0."),
        (SettingError, lambda: TrainingSettings(steps=1, precision="float8"),
         "precision='float8' is not one of float32, tf32, bfloat16."),
        (SettingError, lambda: TrainingSettings(steps=1, snapshots=-1),
         "snapshots=-1 is not from 0 to 1000."),
        (SettingError, lambda: TrainingFolder(place() / "untrained").read_about(),
         "…/untrained: holds no training to go on with. Leave --resume out to begin one."),
        (SettingError, lambda: target_modules(module(), "v_proj,q_prok"),
         "lora_targets='q_prok': the model has no such projection. Did you mean 'q_proj'? It has: …."),
        (SettingError, lambda: target_modules(module(), " , "),
         "lora_targets=' , ' names no module. Give all-linear, or some of: down_proj, gate_proj, k_proj, o_proj, q_proj, "
         "up_proj, v_proj."),
        (InputError, lambda: read_training(place()),
         "…: holds no training (metrics.jsonl). Name the folder of one, or begin it: glass train --out …"),
        (InputError, lambda: read_training(write("stepless/metrics.jsonl", "").parent),
         "stepless/metrics.jsonl: no step of a training stands in it. Wait for its first, or name another folder."),
        (InputError, lambda: write("speeches/metrics.jsonl", "") and read_training(write("speeches/snapshots/x", "").parent),
         "snapshots: is inside the folder of a training, speeches. Name that one."),
        (InputError, lambda: learning(place(), lambda path: decoder().read(TEXT)),
         "…: holds no snapshots of a training. Train with --snapshots, or name another folder."),
        (InputError, lambda: snapshots_of(decoder().read("the " * 40)),
         "the text has 160 tokens, and 128 can be shown at most. Shorten it."),
        (InputError, lambda: snapshots_of(decoder().read(TEXT), decoder().read("the")),
         "step-00000010: its tokens are not those of the other snapshots. Remove it."),
    ],
    "servers": [
        (SettingError, lambda: Security(host="0.0.0.0"),
         "0.0.0.0 can be reached from other machines, so a key is needed. Pass --api-key, or set GLASS_API_KEY."),
        (SettingError, lambda: Security(host="0.0.0.0", api_key="short"),
         "the API key has 5 characters; 16 are the least that is safe."),
        (SettingError, lambda: Security(api_key="schlüssel"),
         "the API key has characters that a header cannot hold. Use letters, digits and dashes."),
        (HttpError, lambda: Security().check_host("evil.example"),
         "the Host 'evil.example' is not this server's. Start it with --allow-host evil.example."),
        (HttpError, lambda: Security().check_origin("http://evil.example", "localhost"),
         "pages of 'http://evil.example' may not use this server. Start it with --allow-origin http://evil.example."),
        (SettingError, lambda: Security(trusted_proxies=("nowhere",)),
         "--trusted-proxy 'nowhere' is no address: …. Pass one, such as 10.0.0.7 or 10.0.0.0/8."),
        (ModelNotFound, lambda: Registry([]),
         "a server needs a model. Name one."),
        (ModelNotFound, lambda: Registry([ModelSource("a", decoder, aliases=("b",)), ModelSource("b", decoder)]),
         "two models are called 'b'. Give one of them an alias of its own."),
        (InputError,
         lambda: ChatRequest.model_validate({"model": "tiny", "messages": [{**USER, "images": ["a"]}]}).conversation(),
         "message 0 has images, which models here cannot read. Send text alone."),
        (InputError, lambda: ChatRequest.model_validate({"model": "tiny", "tools": [{"type": "function"}]}).functions(),
         "a tool is {'type': 'function', 'function': {'name': …, 'parameters': …}}."),
    ],
    "the command": [
        (InputError, lambda: Conversation.load(place() / "nowhere.json"),
         "'…/nowhere.json' cannot be read: No such file or directory."),
        (InputError, lambda: local_cache.cached_items("g2p"),
         "'g2p' is part of this package, and only what was fetched is removed here."),
        (SettingError, lambda: check_address("nowhere"),
         "'nowhere' is no address of a Ray cluster. Pass HOST:PORT, such as 10.0.0.1:6379, auto or local."),
        (InputError, lambda: decoder().dictionary("nowhere"),
         "there is no dictionary of features 'nowhere'. Give its path."),
    ],
}  # fmt: skip
