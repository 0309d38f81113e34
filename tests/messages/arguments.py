"""Calls with arguments that a function has not, or of a wrong type, and names of models that there are not."""

from __future__ import annotations

import glassformer
from glassformer import Change
from glassformer.ground.errors import ConfigError, ExecutorError, InputError, InputTypeError, ModelNotFound, UnknownArgument
from tests.messages.calls import IDS, Entry, decoder, job, module, path, run, tokenizer, write
from tests.see.models import TEXT

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
        (InputError, lambda: glassformer.load(path("gpt2"), dtype="float33"),
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
}  # fmt: skip
