"""What people are told when they ask for what cannot be had: each sentence once, beside a call that is answered with it.

`tests/test_messages.py` runs them. Elsewhere a test asks for the error's type, and for the argument or the value that it
names: so a sentence is changed in one test and where it is raised. `…` stands for what is long, or differs by machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import glassformer
from glassformer import AutoTokenizer, Change, GenerationConfig, TextStreamer, Watch, compare
from glassformer.compat.auto import AutoModelForCausalLM
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import (
    ConfigError,
    ContextExceeded,
    ExecutorError,
    InputError,
    InputTypeError,
    ModelNotFound,
    SettingError,
    SiteError,
    TemplateError,
    UnknownArgument,
    WriteError,
)
from glassformer.jobs import run_job
from glassformer.training.corpus import read_corpus
from tests.jobs.models import chat_model, write_rows
from tests.see.models import TEXT, both, encoder, folder

IDS = torch.tensor([[5, 6, 7]])
Entry = tuple[type[Exception], Callable[[], object], str]


@cache
def decoder() -> Any:
    """A small model that writes, with a context of 256 tokens."""
    return both("qwen3").model


@cache
def run() -> Any:
    return decoder().watch(TEXT, max_new_tokens=2, eos_token_id=None)


@cache
def pair() -> Any:
    """An encoder-decoder."""
    return both("t5").model


@cache
def module() -> Any:
    """As transformers would load it."""
    return AutoModelForCausalLM.from_pretrained(folder("llama", "causal")[0])


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(folder("gpt2", "causal")[0])


def guided(**settings: Any) -> Any:
    """By a model without tokens that begin or end a text."""
    blank = {"bos_token_id": None, "eos_token_id": None, "tokenizer": tokenizer()}
    return module().generate(IDS, guidance_scale=2.0, **blank, **settings)


def row() -> Any:
    return decoder().executor.open()


def feed(*ids: int, **options: Any) -> Any:
    opened = row()
    try:
        return decoder().executor.run([Feed(opened, list(ids), **options)])
    finally:
        decoder().executor.close(opened)


def closed_row() -> Any:
    opened = row()
    decoder().executor.close(opened)
    return opened


@cache
def place() -> Path:
    """An empty folder, in which calls may write."""
    return Path(tempfile.mkdtemp())


def write(name: str, text: str) -> Path:
    path = place() / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def job(output: str = "out.jsonl", model: Any = None, **settings: Any) -> Any:
    rows = write_rows(place() / "in.jsonl", [{"id": "a", "prompt": "the cat"}])
    return run_job(model or chat_model(), rows, place() / output, **settings)


MESSAGES: dict[str, list[Entry]] = {
    "arguments": [
        (UnknownArgument, lambda: decoder().parameters(onyl="x"),
         "parameters() has no argument 'onyl'. Did you mean 'only'? It takes: only, stats, histogram, progress."),
        (UnknownArgument, lambda: decoder().tokens(TEXT, specail=True),
         "tokens() has no argument 'specail'. Did you mean 'special'? It takes: …."),
        (UnknownArgument, lambda: run().attention(laier=1),
         "attention() has no argument 'laier'. Did you mean 'layer'? It takes: …."),
        (UnknownArgument, lambda: run().lens(position=[1]),
         "lens() has no argument 'position'. Did you mean 'positions'? It takes: …."),
        (UnknownArgument, lambda: glassformer.plan(decoder(), lenght=1),
         "plan() has no argument 'lenght'. Did you mean 'length'? It takes: …."),
        (UnknownArgument, lambda: Change(scal=0),
         "Change() has no argument 'scal'. Did you mean 'scale'? It takes: …."),
        (UnknownArgument, lambda: glassformer.load(executer="cpu"),
         "load() has no argument 'executer'. Did you mean 'executor'? It takes: …."),
        (UnknownArgument, lambda: module()(IDS, atention_mask=None),
         "forward() has no argument 'atention_mask'. Did you mean 'attention_mask'? It takes: …."),
        (UnknownArgument, lambda: tokenizer()("Hi!", return_tensor="pt"),
         "tokenizer() has no argument 'return_tensor'. Did you mean 'return_tensors'? It takes: …."),
        (UnknownArgument, lambda: job(batchsize=1),
         "run_job() has no argument 'batchsize'. Did you mean 'batch_size'?"),
        (InputTypeError, lambda: decoder().tree(TEXT, at=3),
         "tree(): at is 3; it must be a list of whole numbers or None."),
        (InputTypeError, lambda: run().lens(0.5),
         "lens(): positions is 0.5; it must be a list of whole numbers or texts or None."),
        (InputTypeError, lambda: run().attribution("a"),
         "attribution(): number is 'a'; it must be a whole number."),
        (InputTypeError, lambda: decoder().batch("ab c"),
         "batch(): texts is 'ab c'; it must be a list of texts."),
        (InputTypeError, lambda: decoder().tokens(),
         "tokens() needs text. It takes: text, pair, special."),
        (InputTypeError, lambda: decoder().tokens("a", "b", "c"),
         "tokens() takes 2 arguments without a name at most, not 3. It takes: text, pair, special."),
        (InputTypeError, lambda: decoder().tokens("a", text="b"),
         "tokens() has an argument twice, once by its place and once by its name. It takes: text, pair, special."),
        (InputError, lambda: run().attention(kind="crss"),
         "attention(): kind is 'crss'; it must be 'self', 'cross' or 'encoder'. Did you mean 'cross'?"),
        (InputTypeError, lambda: run().save(None),
         "save(): path is None; it must be a text or a path."),
        (InputTypeError, lambda: run().save(3),
         "save(): path is 3; it must be a text or a path."),
        (InputTypeError, lambda: decoder().patch("a", "b", part=3),
         "part is 3; it must be one of 'residual', 'attention', 'mlp', 'heads', 'query', 'key', 'value', 'pattern'."),
        (InputTypeError, lambda: glassformer.pipeline("text-generation", decoder(), device=0.5),
         "device is 0.5; it must be a name such as 'cuda', a number, or a torch.device."),
    ],
    "loading": [
        (ModelNotFound, lambda: glassformer.load("smolm2"),
         "there is no model 'smolm2'. Did you mean 'smollm2'? Give a path, a hub id such as 'Qwen/Qwen3-0.6B', or a "
         "catalogue name: …."),
        (ExecutorError, lambda: glassformer.load("smollm2", executor="plane"),
         "there is no executor 'plane'. Did you mean 'plain'? Known: auto, plain, cpu, gpu."),
        (InputError, lambda: glassformer.load(folder("gpt2", "causal")[0], dtype="float33"),
         "there is no dtype 'float33'. Did you mean 'float32'? Known: float32, bfloat16, float16, float64."),
        (InputTypeError, lambda: glassformer.load(None),
         "load(): name is None; it must be a text or a path."),
        (ConfigError, lambda: glassformer.load(write("empty/config.json", "{}").parent),
         "…/empty/config.json: config field 'model_type' is missing, so its family is unknown. Load it with a class of "
         "that family, such as BertForMaskedLM, or add the field: one of …."),
        (InputError, lambda: decoder().weight("model.norm.weigth"),
         "… has no weight 'model.norm.weigth'. Did you mean 'model.norm.weight'? model.parameters() lists all of them."),
        (InputError, lambda: decoder().weight("model.norm.weight", 10**6),
         "there is no row 1000000 in model.norm.weight, whose shape is [48]. They count from 0."),
    ],
    "prompts": [
        (InputError, lambda: decoder().chat(""),
         "the prompt is empty. Say something."),
        (InputTypeError, lambda: decoder().chat(5),
         "a prompt is text, a list of messages or token ids, not int."),
        (InputError, lambda: decoder().chat([10**8]),
         "token id 100000000 is outside the vocabulary of 256."),
        (InputError, lambda: decoder().chat([1], system="x"),
         "a prompt of token ids has no place for a system message. Leave one of the two out."),
        (InputError, lambda: decoder().chat([1], template={"a": 1}),
         "a prompt of token ids has no place for variables of the chat template. Leave one of the two out."),
        (InputError, lambda: decoder().chat(TEXT, raw=True, template={"a": 1}),
         "a raw prompt has no place for variables of the chat template. Leave one of the two out."),
        (ContextExceeded, lambda: decoder().chat("a " * 300),
         "a prompt of at least 600 tokens does not fit into the model's context of 256. Shorten it."),
        (InputError, lambda: chat_model().chat([]),
         "the conversation is empty. Give it a message: [{'role': 'user', 'content': '…'}]."),
        (InputTypeError, lambda: chat_model().chat(["Hi"]),
         "message 0 is 'Hi'; a message is {'role': 'user', 'content': '…'}."),
        (TemplateError, lambda: chat_model().chat("Hi", template={"tokenize": True}),
         "tokenize is no variable of a chat template, but an argument of its own. Pass it as that."),
        (ContextExceeded, lambda: both("bart").model.read("a " * 300, "b"),
         "602 tokens do not fit into the model's context of 64. Shorten the text."),
    ],
    "settings": [
        (UnknownArgument, lambda: GenerationConfig().merged({"max_new_token": 5}),
         "there is no setting 'max_new_token'. Did you mean 'max_new_tokens'?"),
        (SettingError, lambda: GenerationConfig().merged({"dola_layers": "high"}),
         "the setting 'dola_layers' is not supported. Leave it out."),
        (SettingError, lambda: decoder().chat(TEXT, do_sample=True, temperature="0.5"),
         "temperature is '0.5'; it must be a number above 0."),
        (SettingError, lambda: decoder().chat(TEXT, stop_strings="\ud800"),
         "stop_strings holds a lone surrogate, which is no character. Repair its encoding first."),
        (SettingError, lambda: decoder().chat(TEXT, do_sample=False, top_k=4),
         "top_k=4 has no effect without sampling. Pass do_sample=True too."),
        (SettingError, lambda: decoder().watch(TEXT, sites="final", prompt_lookup_num_tokens=2),
         "states, attentions and sites are read where each pass gives a token. Leave penalty_alpha, and what drafts, "
         "out."),
        (SettingError, lambda: guided(negative_prompt=""),
         "negative_prompt is empty, and the model has no token that begins a text. Leave it out."),
        (InputTypeError, lambda: module().generate(IDS, streamer="x"),
         "a streamer has put() and end(), such as TextStreamer(tokenizer); not 'x'."),
        (InputError, lambda: module().generate(IDS, num_beams=2, streamer=TextStreamer(tokenizer())),
         "a streamer follows one text as it grows; give it a batch of one, and no beams."),
        (InputError, lambda: encoder().model.chat(TEXT),
         "… is an encoder (bert): it reads text and writes none. Look at what it makes of a text: glass look."),
        (NotImplementedError, lambda: glassformer.StoppingCriteria()(IDS, None),
         "StoppingCriteria needs a method __call__(self, input_ids, scores)."),
    ],
    "sites": [
        (SiteError, lambda: feed(1, watch=Watch(frozenset({"blocks.99.residual"}))),
         "no site matches 'blocks.99.residual' in a model of 3 blocks. Did you mean 'blocks.2.residual'? Sites: "
         "embedding, …, scores."),
        (SiteError, lambda: module()(IDS, watch="blocks.0.resdual"),
         "no site matches 'blocks.0.resdual' in a model of 3 blocks. Did you mean 'blocks.0.residual'? Sites: embedding, "
         "…, scores."),
        (SiteError, lambda: decoder().changed([TEXT]),
         "changes map sites to a Change or a function each, such as {'blocks.3.residual': Change(scale=0)}; not ['the "
         "cat sat on the mat']."),
        (SiteError, lambda: pair().read(TEXT, "a").record("encoder.blocks.9.residual", folder=place()),
         "no site matches 'encoder.blocks.9.residual' in a model of 3 blocks. Did you mean 'encoder.blocks.1.residual'? "
         "Sites: encoder.embedding, …, scores."),
    ],
    "rows of an executor": [
        (ExecutorError, lambda: decoder().executor.fork(closed_row()),
         "the row is closed, or belongs to another executor."),
        (ExecutorError, lambda: decoder().executor.run([Feed(opened := row(), [1]), Feed(opened, [2])]),
         "a row was fed twice in one pass. Feed it once, with all its tokens."),
        (ExecutorError, lambda: decoder().executor.open([1, 2]),
         "this model has no encoder, so a row takes no source."),
        (ExecutorError, lambda: pair().executor.open(),
         "this model has an encoder, so a row needs a source of at least one token."),
        (ExecutorError, lambda: feed(1, want=Want.NONE)[0].host(),
         "no position of this feed was scored: it was fed with Want.NONE."),
        (InputError, lambda: feed(10**6),
         "token id 1000000 is outside the vocabulary of 256."),
        (ContextExceeded, lambda: feed(*[1] * 257),
         "257 tokens do not fit into the model's context of 256. Shorten the prompt."),
        (InputError, lambda: feed(),
         "a row was fed no tokens. Give at least one."),
    ],
    "looking inside": [
        (InputError, lambda: run().lens([40]),
         "there is no token 40 in a text of 24."),
        (InputError, lambda: run().lens([]),
         "a lens needs at least one position."),
        (InputError, lambda: run().attribution(-1, "ab"),
         "'ab' is 2 tokens, not one. Name one, or give its id, as in #57."),
        (InputError, lambda: run().attribution(-1, 999),
         "token id 999 is outside the vocabulary of 256."),
        (InputError, lambda: encoder("bert", "base").model.read(TEXT).lens(),
         "… scores no tokens (base), so its hidden states have no logits."),
        (InputError, lambda: encoder().model.read(TEXT).attribution(),
         "… does not score the next token, so its parts have no share in one."),
        (InputError, lambda: decoder().read("x", target="y"),
         "… is no encoder-decoder, so it has no target. Put both into one text."),
        (InputError, lambda: decoder().read(TEXT).record(folder=place()),
         "name the sites to record, such as 'blocks.*.attention.pattern'."),
        (InputError, lambda: run().sweep("temperature", []),
         "a sweep needs values to try, such as temperature=0.2,0.7,1.2."),
        (SettingError, lambda: run().sweep("num_beams", [1, 2]),
         "num_beams shapes no scores, so a sweep of it shows nothing. Sweep temperature, …."),
        (SettingError, lambda: decoder().patch("the cat", "the dog", "mpl"),
         "there is no part 'mpl' to patch. Did you mean 'mlp'? Parts: residual, attention, mlp, heads, query, key, "
         "value, pattern."),
        (InputError, lambda: decoder().attribution_patch("the cat", "the cat"),
         "the two texts are the same, so there is nothing to carry over."),
    ],
    "comparing": [
        (InputError, lambda: compare(decoder(), decoder()),
         "two models are compared over a text. Pass text=…."),
        (InputError, lambda: compare(decoder(), pair(), text=TEXT),
         "… and … cut this text into different tokens, so they cannot be compared on it."),
        (InputError, lambda: compare(pair(), pair(), text=TEXT),
         "… does not continue texts, so there is nothing to compare on one."),
        (InputError, lambda: compare(decoder(), decoder(), text="x"),
         "a text needs at least two tokens to compare two models on it. Give a longer one."),
        (InputTypeError, lambda: compare(3, "x"),
         "int and str cannot be compared. Give two runs of watch(…), two texts of read(…), or two models and a text."),
        (InputError, lambda: compare(run(), run(), token=1),
         "token has no use in comparing two runs. Leave it out."),
    ],
    "saving and replaying": [
        (InputError, lambda: run().save(place() / "run.pdf"),
         "'run.pdf' does not say in which form it is to be written. End it in .json, .html, .txt."),
        (WriteError, lambda: run().save(place() / "missing" / "run.json"),
         "…/missing/run.json cannot be written (No such file or directory). Make the folder first, or choose another "
         "place."),
        (InputError, lambda: decoder().replay("missing.json"),
         "missing.json is no receipt that can be read: No such file or directory."),
        (InputError, lambda: decoder().replay({"a": 1}),
         "this is no receipt of a run: it has no schema, not 'glassformer.run/1'. Write one with run.save(…) or --save."),
        (InputTypeError, lambda: decoder().replay(3),
         "a receipt is a file's path, what it holds, or a run, not 3."),
    ],
    "tokenizers": [
        (InputError, lambda: tokenizer().convert_ids_to_tokens(10**6),
         "id 1000000 stands for no token; the vocabulary has 256."),
        (InputError, lambda: tokenizer().decode(-1),
         "-1 is no token id; the vocabulary has 256."),
        (InputError, lambda: tokenizer()(["a", "b c d"], return_tensors="np"),
         "texts of 1 to 5 tokens do not form one tensor. Pass padding=True."),
        (InputError, lambda: tokenizer()("the", padding="max_length"),
         "this tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token."),
        (InputError, lambda: tokenizer()("the cat sat", "a", truncation="only_second", max_length=3),
         "truncation='only_second' cannot bring 12 tokens to 3 by cutting 1. Use truncation=True, which may cut both "
         "texts."),
        (InputError, lambda: AutoTokenizer.from_pretrained(folder("gpt2", "causal")[0], pad_token="<nothing>"),
         "'<nothing>' is not in the vocabulary."),
    ],
    "jobs": [
        (InputError, lambda: job("out.csv"),
         "…/out.csv must end in one of: .jsonl, .ndjson, .parquet."),
        (InputError, lambda: job("in.jsonl"),
         "…/in.jsonl is the input. Choose another output file."),
        (SettingError, lambda: job(batch_size=0),
         "batch_size is 0; it must be at least 1."),
        (UnknownArgument, lambda: job(temprature=1),
         "there is no setting 'temprature'. Did you mean 'temperature'?"),
    ],
    "texts to train on": [
        (InputError, lambda: read_corpus(place() / "nowhere"),
         "…/nowhere: there is no such file or folder. Check the path."),
        (InputError, lambda: read_corpus(write("textless/a.bin", "").parent),
         "…/textless: holds no text files (.txt, .md, .rst, .text). Give another folder."),
        (InputError, lambda: read_corpus(write("empty.txt", "")),
         "…/empty.txt: is empty. Give a file or folder with text."),
    ],
}  # fmt: skip
