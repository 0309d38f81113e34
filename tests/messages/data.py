"""Files of rows and of texts, trainings, servers, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import glassformer
from glassformer.checkpoint import local_cache
from glassformer.cli.chat import handle
from glassformer.cli.chat.conversation import Conversation
from glassformer.cli.chat.session import Session
from glassformer.ground.errors import InputError, ModelNotFound, SettingError, TemplateError, UnknownArgument, WriteError
from glassformer.jobs import run_job
from glassformer.jobs.job import open_input
from glassformer.jobs.ledger import Ledger, encode_line
from glassformer.scale.cluster import check_address
from glassformer.see.learning import learning
from glassformer.see.tensor_files import model_fingerprint
from glassformer.see.training_curves import read_training
from glassformer.serving.http.dialects.anthropic import MessagesRequest
from glassformer.serving.http.dialects.ollama import ChatRequest
from glassformer.serving.http.dialects.openai_responses import ResponsesRequest
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from glassformer.training.chat_rows import ChatTokenizer, read_conversation, read_preference
from glassformer.training.corpus import read_corpus
from glassformer.training.fine_tuning import ChatTraining
from glassformer.training.lora import LoraSettings, target_modules
from glassformer.training.rows import TEXT as TEXT_FIELD
from glassformer.training.rows import DataRow, read_rows
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks
from glassformer.training.text_training import TextTraining
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.jobs.models import chat_model
from tests.messages.calls import USER, Entry, decoder, job, module, place, tokenizer, write
from tests.see.models import TEXT, encoder
from tests.training.folders import training_folder
from tests.training.models import SETTINGS, language_model, tiny_model


def snapshots_of(*readings: Any) -> Any:
    """What a training's snapshots make of a text, each its own."""
    folder = training_folder(Path(mkdtemp(dir=place())), [], ("gpt2",) * len(readings))
    left = iter(readings)
    return learning(folder, lambda path: next(left))


class Silent:
    """A model that only reads."""

    name, writes = "silent", False


def conversation(**fields: Any) -> Any:
    return read_conversation(DataRow(fields, "chats.jsonl, row 3"))


def response_to(item: dict[str, Any]) -> Any:
    return ResponsesRequest.model_validate({"model": "tiny", "input": [item]}).messages()


def message_of(block: dict[str, Any]) -> Any:
    messages = [{"role": "user", "content": [block]}]
    return MessagesRequest.model_validate({"model": "tiny", "max_tokens": 1, "messages": messages}).conversation()


def preference(**fields: Any) -> Any:
    return read_preference(DataRow(fields, "chats.jsonl, row 3"))


def input_that_grows() -> None:
    source = open_input(write("grows.jsonl", '"a"\n'))
    write("grows.jsonl", '"a"\n"b"\n')
    source.check_unchanged()


def two_writers() -> None:
    with Ledger(place() / "shared"), Ledger(place() / "shared"):
        pass


def talk(model: Any) -> Session:
    return Session(model.with_prefix_cache(), Conversation("tiny", {"max_new_tokens": 2}), terminal=False)


def said(*lines: str) -> None:
    """What a person types into a chat, one line after the other."""
    session = talk(chat_model())
    for line in lines:
        handle(session, line) if line.startswith("/") else session.send(line)


def conversation_of(text: str = "", **fields: Any) -> Any:
    whole = {"schema": "glassformer.chat/1", "model": "m", "messages": []}
    return Conversation.load(write("talk.json", text or json.dumps({**whole, **fields})))


def batch_rows() -> Path:
    """Rows in OpenAI's batch format."""
    body = {"model": "tiny", "messages": [USER]}
    return write(
        "batch.jsonl", json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    )


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
        (InputError, lambda: run_job(chat_model(), batch_rows(), place() / "out.parquet"),
         "OpenAI's batch format is lines of JSON. Choose an output file that ends in .jsonl."),
        (InputError, input_that_grows,
         "…/grows.jsonl was changed while the job ran. Put it back as it was, and run the job again."),
        (SettingError, lambda: model_fingerprint(chat_model().changed({"blocks.0.mlp.update": lambda value, where: value})),
         "what can be resumed has no function at blocks.0.mlp.update: another one would not be noticed."),
        (InputError, lambda: Ledger(write("newer", encode_line({"ledger": 2, "job": {}}).decode())),
         "…/newer is the ledger of another version of Glassformer. Finish the job with that one, or remove it."),
        (WriteError, two_writers,
         "…/shared is being written by another process. Wait for it, or choose another output file."),
    ],
    "texts to train on": [
        (InputError, lambda: snapshots_of(type(decoder().read(TEXT))(Silent(), [5, 6])),
         "silent writes no text, so it cannot be asked what comes next. Leave the text out to see its curves."),
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
        (SettingError, lambda: ChatTraining(data="x", init="y", held_out=1),
         "held_out=1 is no share from 0 to 1."),
        (SettingError, lambda: LoraSettings(rank=0),
         "lora=0 is no rank: give a whole number from 1, such as 8."),
        (SettingError, lambda: LoraSettings(rank=2, alpha=0.0),
         "lora_alpha=0.0 is not above 0: give twice the rank, or leave it out."),
        (SettingError, lambda: LoraSettings(rank=2, dropout=1.0),
         "lora_dropout=1.0 is no share from 0 to 1."),
        (SettingError, lambda: TrainingSettings(steps=0),
         "steps=0 is not from 1 to 1e+09."),
        (SettingError, lambda: TrainingSettings(steps=1, learning_rate=-1.0),
         "learning_rate=-1.0 is not from 0 to 10."),
        (SettingError, lambda: TrainingSettings(steps=1, beta1=2.0),
         "beta1=2.0 is not from 0 to 1."),
        (SettingError, lambda: TrainingSettings(steps=1, label_smoothing=1.0),
         "label_smoothing=1.0 is not from 0 to 0.99."),
        (SettingError, lambda: Trainer(tiny_model(), language_model(), replace(SETTINGS, shard=True)),
         "shard splits a model among processes, and there is one. Start several with torchrun, or leave it out."),
        (SettingError, lambda: Trainer(tiny_model(), language_model(), replace(SETTINGS, shard=True), ranks=Ranks(count=4)),
         "batch_size=6 is no multiple of 4, the number of processes, which shard needs. Give one."),
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
        (SettingError, lambda: Limits(texts=0),
         "the limit texts is 0; it must be at least 1."),
        (SettingError, lambda: Limits(seconds="x"),
         "the limit seconds is 'x'; it must be a number."),
        (SettingError, lambda: Limits(running=1.5),
         "the limit running is 1.5; it must be a whole number."),
        (SettingError, lambda: Limits(seconds=float("nan")),
         "the limit seconds is nan; it must be at least 1."),
        (ModelNotFound, lambda: Registry([ModelSource("tiny", decoder)]).acquire("tinny"),
         "there is no model 'tinny' here. Did you mean 'tiny'? There are: tiny."),
        (InputError, lambda: response_to({"role": "tool", "content": "a"}),
         "input item 0 has the role 'tool'. Use 'system', 'developer', 'user' or 'assistant'."),
        (InputError, lambda: response_to({"role": "user"}),
         "input item 0 has no content that is a text or a list of parts."),
        (InputError, lambda: response_to({"type": "function_call", "call_id": "A"}),
         "input item 0 has no text as its 'name'. Add one."),
        (InputError, lambda: message_of({"type": "tool_use", "id": "A", "name": "weather", "input": {}}),
         "message 0 has a block of type 'tool_use', which a user's message cannot have here. Leave it out."),
        (InputError, lambda: message_of({"type": "image", "source": {}}),
         "message 0 has a block of type 'image', which a user's message cannot have here. Leave it out."),
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
    "rows to train on": [
        (InputError, lambda: conversation(text="x"),
         "chats.jsonl, row 3: lacks 'messages', or 'prompt' and 'completion'; it has 'text'."),
        (InputError, lambda: conversation(prompt="x"),
         "chats.jsonl, row 3: lacks 'completion' (also: response, answer); it has 'prompt'."),
        (InputError, lambda: conversation(messages=[]),
         "chats.jsonl, row 3: 'messages' is []; it must be a text, or a list of messages."),
        (InputError, lambda: conversation(messages=["x"]),
         "chats.jsonl, row 3: message 1 of 'messages' is 'x'; a message is {'role': 'user', 'content': '…'}."),
        (InputError, lambda: conversation(messages=[USER]),
         "chats.jsonl, row 3: has no assistant's answer to learn. Give it one: {'role': 'assistant', …}."),
        (InputError, lambda: conversation(messages=[{"role": "asistant", "content": "x"}]),
         "chats.jsonl, row 3: message 1 of 'messages' has the role 'asistant'. Did you mean 'assistant'? Known: "
         "system, developer, user, assistant, tool, function."),
        (InputError, lambda: conversation(messages=[USER, {"role": "assistant", "content": ""}]),
         "chats.jsonl, row 3: message 2 of 'messages' is an assistant's without words: give it 'content' or "
         "'tool_calls'."),
        (InputError, lambda: conversation(messages=[{"role": "user", "content": 3}]),
         "chats.jsonl, row 3: message 1 of 'messages' has 3 as its 'content'; it must be a text, or a list of parts."),
        (InputError, lambda: conversation(messages=[USER, {"role": "assistant", "content": "x"}], tools="add"),
         "chats.jsonl, row 3: 'tools' is 'add'; it must be a list of JSON schemas."),
        (InputError, lambda: preference(prompt="x", chosen="a"),
         "chats.jsonl, row 3: lacks 'rejected'; it has 'prompt', 'chosen'."),
        (InputError, lambda: preference(prompt="x", chosen="a", rejected="a"),
         "chats.jsonl, row 3: 'chosen' and 'rejected' are the same, so there is nothing to prefer."),
        (InputError, lambda: preference(chosen="a", rejected="b"),
         "chats.jsonl, row 3: lacks 'prompt', and 'chosen' and 'rejected' do not begin with the same messages."),
        (InputError, lambda: read_rows(write("rows/empty.jsonl", "")),
         "…/rows/empty.jsonl: holds no rows. Give a file with examples."),
        (InputError, lambda: read_rows(write("rows/half.jsonl", '{"text": 1}\n{"text"')),
         "half.jsonl, line 2: not valid JSON (Expecting ':' delimiter: line 1 column 8 (char 7))."),
        (InputError, lambda: read_rows(write("rows/list.jsonl", '["x"]')),
         "list.jsonl, row 1: is ['x']; it must be an object, such as {\"text\": …}."),
        (InputError, lambda: read_rows(write("rows/short.csv", "text,label\na,b,c\n")),
         "short.csv, line 2: has another number of fields than the first line."),
        (InputError, lambda: read_rows(write("rows/rows.txt", "x")),
         "…/rows/rows.txt: rows are read from .jsonl, .ndjson, .csv, .tsv. Name it so, or convert it."),
        (InputError, lambda: DataRow({"words": "x"}, "given.jsonl, row 1").text(TEXT_FIELD),
         "given.jsonl, row 1: lacks 'text' (also: sentence, input, source, content, sentence1, premise); it has "
         "'words'."),
        (InputError, lambda: DataRow({"text": " "}, "given.jsonl, row 2").text(TEXT_FIELD),
         "given.jsonl, row 2: 'text' is ' '; it must be a text that is not empty."),
        (TemplateError, lambda: ChatTokenizer(tokenizer(), "tiny"),
         "tiny: has no chat template, so conversations cannot be written for it. Take a model that chats, or train on "
         "plain text with --text."),
        (InputError, lambda: read_corpus(Path("/dev/null")),
         "/dev/null: is neither a file nor a folder. Give one with text."),
    ],
    "the chat": [
        (UnknownArgument, lambda: said("/set temp 0.7"),
         "there is no setting 'temp'. Did you mean 'temperature'?"),
        (SettingError, lambda: said("/set =3"),
         "/set '=3' is not NAME=VALUE, such as temperature=0.8."),
        (SettingError, lambda: said("/set logprobs=2"),
         "logprobs is printed as JSON only. Start with --json for that."),
        (SettingError, lambda: said("/set use_cache=true"),
         "the setting 'use_cache' changes nothing here. Leave it out."),
        (InputError, lambda: said("/wy"),
         "there is no command '/wy'. Did you mean '/why'? /help lists them; with a space before the slash it is a "
         "message."),
        (InputError, lambda: said("/clear all"),
         "/clear takes no argument."),
        (InputError, lambda: said("/save"),
         "/save needs a file name, such as /save talk.json."),
        (InputError, lambda: said("/load"),
         "/load needs a file name, such as /load talk.json."),
        (InputError, lambda: said("/save talk.json"),
         "there is nothing to save yet. Say something first."),
        (InputError, lambda: said("/continue"),
         "there is no answer to continue. Say something first."),
        (InputError, lambda: said("/retry"),
         "there is no message to answer. Say something first."),
        (InputError, lambda: said("/undo"),
         "there is no message to take back."),
        (InputError, lambda: said("/why"),
         "there is no answer to look at. Say something first."),
        (InputError, lambda: said("/shift maybe"),
         "/shift is on or off, not 'maybe'."),
        (SettingError, lambda: said("/seed seven"),
         "seed is 'seven'; it must be a whole number from 0 to 2**64 - 1."),
        (InputError, lambda: said("Hi", "/save talk.doc"),
         "'talk.doc' has no known suffix. Use one of .json, .md, .txt, .html."),
        (SettingError, lambda: said("Hi", "/retry"),
         "the answer would be the same again: decoding is greedy. /set temperature=0.8 samples instead."),
        (SettingError, lambda: said("/seed 7", "/set temperature=2", "Hi", "/retry"),
         "the answer would be the same again: its seed is fixed. /seed 8 sets another, /seed - none."),
        (InputError, lambda: conversation_of("{"),
         "'…/talk.json' is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        (InputError, lambda: conversation_of('[]'),
         "'…/talk.json' is not a saved conversation: its schema must be 'glassformer.chat/1'."),
        (InputError, lambda: conversation_of(model=3),
         "'…/talk.json': its model must be a text."),
        (InputError, lambda: conversation_of(messages={}),
         "'…/talk.json': its messages must be a list."),
        (InputError, lambda: conversation_of(settings=[]),
         "'…/talk.json': its settings must be an object."),
        (InputError, lambda: conversation_of(messages=[3]),
         "'…/talk.json': message 1 must be an object with a role and a content."),
        (InputError, lambda: conversation_of(messages=[{"role": "user"}]),
         "'…/talk.json': message 1: its content must be a text."),
        (InputError, lambda: conversation_of(messages=[{"role": "user", "content": "", "seed": "x"}]),
         "'…/talk.json': message 1: its seed must be a whole number or null."),
        (InputError, lambda: conversation_of(messages=[{"role": "judge", "content": ""}]),
         "'…/talk.json': message 1 is by 'judge'; it must be by 'user' or 'assistant', or the first by 'system'."),
        (InputError, lambda: conversation_of(messages=[{**USER}, {"role": "system", "content": ""}]),
         "'…/talk.json': message 2 is by 'system'; it must be by 'user' or 'assistant', or the first by 'system'."),
        (InputError, lambda: said("/tokens"),
         "there is no answer to look at. Say something first."),
        (InputError, lambda: said("Hi", "/why London"),
         "no token of the last answer contains 'London'. /tokens lists them."),
        (InputError, lambda: said("Hi", f"/save {place()}/said.json", f"/load {place()}/said.json", "/why"),
         "the last answer was loaded from a file, without its steps. /retry generates another."),
        (InputError, lambda: said("x " * 3000),
         "the conversation has 6,018 tokens, and the model's context holds 256. /undo takes the last exchange back, "
         "/clear all of them; /shift on leaves the oldest out."),
        (TemplateError, lambda: handle(talk(decoder()), "/system Be brief."),
         "… has no chat template, so a system message has no place. Leave it out."),
        (TemplateError, lambda: talk(decoder()).change(template={"mood": "gay"}),
         "… has no chat template, so --template has no place. Leave it out."),
    ],
}  # fmt: skip
