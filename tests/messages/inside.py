"""What is read, changed, compared and saved inside a model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from bench.reference import compare_with_transformers

import glassformer
from glassformer import Change, Watch, compare
from glassformer.engine.cpu.library import Engine, FileKind, packed_size
from glassformer.engine.protocol import Feed, Want
from glassformer.engine.tensor_parallel.split import split_model
from glassformer.ground.errors import (
    ContextExceeded,
    ExecutorError,
    InputError,
    InputTypeError,
    NotNumbers,
    SettingError,
    SiteError,
    WriteError,
)
from glassformer.model_files import open_model
from glassformer.runtime.model import Model
from glassformer.see.evaluation import likelihood
from glassformer.see.explain.operations import explain
from glassformer.see.explain.passages import read_two
from glassformer.see.explain.question import ask
from glassformer.see.explain.texts import ReadWhole
from glassformer.see.parameters import parameters
from glassformer.see.receipt import SCHEMA
from glassformer.see.recorded_activations import RecordedActivations
from glassformer.see.verification import verify
from tests.messages.calls import (
    IDS,
    Entry,
    closed_row,
    decoder,
    feed,
    limited,
    module,
    pair,
    path,
    place,
    recorded,
    row,
    run,
    tokenizer,
    write,
)
from tests.see.models import TEXT, both, encoder
from tests.site_names import usual_sites

SITE = "blocks.0.residual"
HUGE = {SITE: Change(scale=0, shift=np.float32(1e6))}


@cache
def one_label() -> ReadWhole:
    """A text that a classifier of one label read."""
    text = ReadWhole(encoder("bert", "sequence").reading(), None)
    text.kept = [np.zeros(1, np.float32)]
    return text


def receipt() -> dict[str, Any]:
    return dict(run().receipt.to_dict())


def replay(kept: Any) -> Any:
    return decoder().replay(write("kept.json", kept if isinstance(kept, str) else json.dumps(kept)))


def without_weights() -> Any:
    return write("bare/config.json", (path("llama") / "config.json").read_text("utf-8")).parent


def unchanged(value: Any, where: Any) -> Any:
    return value


def again(site: str, model: Any = None, texts: Any = (TEXT,) * 5, **options: Any) -> Any:
    """Into a folder that has a recording, unless another is named."""
    return (
        (model or decoder()).read_many(list(texts)).record(site, **{"folder": recorded().folder, "resume": True, **options})
    )


def unwatched() -> Any:
    """The recording of a run whose first step was not kept."""
    run = decoder().watch(TEXT, max_new_tokens=1)
    run.steps[0] = replace(run.steps[0], waterfall=None)
    return run.recording


MESSAGES: dict[str, list[Entry]] = {
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
        (SiteError,
         lambda: decoder().watch(TEXT, change={"blocks.0.attention.heads": Change(scale=0, heads=[77])}, max_new_tokens=1),
         "there is no head 77 to change: there are 4, 0 to 3."),
        (SiteError, lambda: Watch.parse(3, usual_sites(2)),
         "a watch names sites, as text or a list, or maps them to changes; it is not 3."),
        (SiteError, lambda: Change(scale=float("nan")),
         "a Change's scale is a finite number that float32 has, not nan."),
        (SiteError, lambda: decoder().changed({"blocks.0.residual": 0}),
         "the change at 'blocks.0.residual' is 0; it must be a Change, such as Change(scale=0), or a function of a "
         "value and where it stands."),
        (SiteError, lambda: decoder().changed({"blocks.0.residual": Change(heads=[0])}),
         "there are no heads at 'blocks.0.residual', which has batch, length, hidden."),
        (SiteError, lambda: decoder().watch(TEXT, change={SITE: Change(shift=np.zeros((22, 48)))}, max_new_tokens=3),
         "a Change does not fit what it changes, {'batch': 1, 'length': 1, 'hidden': 48}: …. Say at which positions its "
         "shift stands."),
        (SiteError, lambda: decoder().read(TEXT).at("blocks.*.residual"),
         "'blocks.*.residual' means 3 sites; name one, or get them all with values()."),
        (SiteError, lambda: both("qwen3_moe").model.changed({"blocks.0.mlp.hidden": Change(scale=0, neurons=[17])}),
         "'blocks.0.mlp.hidden' has the neurons of each token's chosen experts side by side, so that a number there is"
         " one expert's neuron at one token and another's at the next. Take 'blocks.0.mlp.update', or "
         "'blocks.0.mlp.experts' for whole experts."),
        (SiteError, lambda: decoder().changed({"blocks.0.residul": Change()}),
         "no site matches 'blocks.0.residul' in a model of 3 blocks. Did you mean 'blocks.0.residual'? Sites: …."),
        (SiteError, lambda: Change(scale="0"),
         "a Change's scale is a number or an array, not '0'."),
        (SiteError, lambda: Change(heads=1),
         "a Change's heads are whole numbers, such as heads=[0, 3], or a slice, not 1."),
        (SiteError, lambda: Change(positions="12"),
         "a Change's positions are whole numbers, such as positions=[0, 3], or a slice, not '12'."),
        (SiteError, lambda: Change(neurons=[True]),
         "a Change's neurons are whole numbers, such as neurons=[0, 3], or a slice, not [True]."),
        (SiteError, lambda: Change(minimum="0"),
         "a Change's minimum is a number, not '0'."),
        (SiteError, lambda: Change(onto=[1.0], away_from=[1.0]),
         "a Change projects onto a direction or away from one, not both."),
        (SiteError, lambda: decoder().changed({SITE: Change(onto=np.zeros(48))}).read(TEXT).at(SITE),
         "a Change does not fit what it changes, {'batch': 1, 'length': 22, 'hidden': 48}: its direction has no "
         "length."),
        (SiteError, lambda: decoder().changed({"blocks.0.mlp.hidden": Change(scale=0, neurons=[999])}).read(TEXT).at(SITE),
         "there is no neuron 999 to change: there are 80, 0 to 79."),
        (SiteError, lambda: module()(IDS, watch={"blocks.0.attention.heads": Change(shift=torch.ones(5))}),
         "a Change does not fit what it changes, {'batch': 1, 'heads': 4, 'length': 3, 'head_size': 12}: The size of "
         "tensor a (12) must match the size of tensor b (5) at non-singleton dimension 3. Say at which positions its "
         "shift stands."),
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
        (InputError, lambda: decoder().read(TEXT).experts(),
         "… (qwen3) has no experts: each token goes through the same MLP. Take a mixture of experts, such as a mixtral, "
         "olmoe or qwen3_moe model."),
        (InputError, lambda: decoder().unembed(np.zeros((2, 3), np.float32)),
         "states of shape (2, 3) were to be read out; they must be (rows, 48)."),
        (InputError, lambda: decoder().read(TEXT).attribution(-1, 3, 3),
         "a token has no lead over itself. Hold '$' against another one."),
        (SettingError, lambda: decoder().read(TEXT).attribution(-1, 3, 4, metric="logit"),
         "a logit has no rival: that is for a lead. Leave out against."),
        (InputError, lambda: decoder().load_probes("\ud800"),
         "'\\ud800': cannot be read as a linear probe file (…)."),
        (InputTypeError, lambda: glassformer.plan("smollm2"),
         "a plan is of a config, a blueprint or a model, not of str."),
        (InputError, lambda: glassformer.plan(decoder(), 0),
         "a prompt of 0 tokens has no shape. Give at least one."),
        (InputError, lambda: decoder().look(TEXT, pair=TEXT, system="Be brief."),
         "two texts are read as they are: raw, system and template are for one. Leave them out."),
        (InputError, lambda: decoder().look(TEXT, pair=TEXT),
         "… goes on with one text, and reads no second one. Put both into the prompt."),
        (InputError, lambda: encoder().model.look([{"role": "user", "content": TEXT}], pair=TEXT),
         "two texts are two strings, neither of them empty."),
        (InputError, lambda: encoder("bert", "base").model.look(TEXT).next,
         "… scores nothing: it ends with the states of its tokens."),
        (InputError, lambda: explain(encoder("bert", "base").reading()),
         "… neither goes on with a text nor fills gaps or labels it. Hold it against another one with pair: then it is "
         "explained why they are similar."),
        (InputError, lambda: explain(encoder("bert", "question").reading()),
         "… finds the answer to a question in a text. Give the question, and the text with pair."),
        (InputError, lambda: encoder("bert", "base").model.explain([2, 5], pair=TEXT),
         "pair goes with a text. Leave it out after token ids or messages."),
        (InputError, lambda: encoder("bert", "base").model.explain(TEXT, pair=TEXT, token="cat"),
         "two texts' similarity has no tokens to choose. Leave out token and against."),
        (InputError, lambda: encoder("bert", "base").model.explain(TEXT, pair=TEXT, system="Be brief."),
         "two texts are read as they are: system and template are for one. Leave them out."),
        (InputError, lambda: encoder("bert", "base").model.explain(TEXT, pair=TEXT, answer_ids=[5]),
         "answer_ids and contents are of an answer that was written, which two texts have not."),
        (InputError, lambda: encoder("bert", "base").model.explain(TEXT, pair="."),
         "the second text has no word that could be left out. Say something."),
        (InputError, lambda: encoder("bert", "base").model.explain("cat " * 99, pair=TEXT),
         "the first text has 101 tokens, and … reads at most 64. Shorten it."),
        (InputError, lambda: both("t5").model.explain(TEXT, pair=TEXT),
         "… writes a text for a text, and makes no vectors. Take an encoder, such as minilm."),
        (InputError, lambda: encoder("bert", "question").model.explain("cat " * 99, pair=TEXT),
         "both texts have 108 tokens together, and … reads at most 64. Shorten them."),
        (InputError, lambda: encoder("bert", "question").model.explain(TEXT, pair=""),
         "the second text has no tokens. Say something."),
        (InputError, lambda: encoder("bert", "question").model.explain(TEXT, pair="cat"),
         "the text has no other passage that could be the answer. Give more of it."),
        (InputError, lambda: encoder("bert", "question").model.explain(TEXT, pair=TEXT, token="dog"),
         "the text has no passage 'dog' of at most 15 tokens.…"),
        (InputError, lambda: read_two(decoder(), TEXT, TEXT),
         "…'s tokenizer puts nothing between two texts, so it cannot read them as a pair."),
        (InputError, lambda: ask(text := one_label(), text.position, None, None),
         "… has one label, so there is no other that it could lead over."),
        (InputError, lambda: run().attention(99),
         "there is no layer 99: this model has 3, 0 to 2."),
        (InputError, lambda: run().attention(0, 64),
         "there is no head 64: this model has 4, 0 to 3."),
        (InputError, lambda: run().attention(head=1),
         "head 1 of which layer? Name one of 0 to 2."),
        (InputError, lambda: run().attention(0, rollout=True),
         "a rollout goes through all layers of one stack. Leave out the layer, the head and cross-attention."),
        (InputError, lambda: run().attention(0, kind="cross"),
         "… is no encoder-decoder: it has self-attention only."),
        (InputError, lambda: run().attention(0, 0).of("xyz"),
         "no token matches 'xyz'."),
        (InputError, limited("see.attention.MAX_BYTES", 1000, lambda: run().attention(rollout=True)),
         "a rollout over 24 tokens would hold 0.0 GB. Shorten the text, or name a layer."),
        (InputError, limited("see.attention.MAX_MAPS_BYTES", 10, lambda: decoder().read(TEXT).attention_maps()),
         "the text is too long for a map of each head: 22 tokens. Shorten it, or look at one head."),
        (InputError, lambda: decoder().watch_many(TEXT, max_new_tokens=2)[0].trace,
         "this run kept no candidates. Get it with watch(…), or watch_many(…, look=10)."),
        (NotNumbers, lambda: decoder().changed({SITE: Change(scale=0, shift=float("inf"))}).read("the cat").lens(),
         "the scores are not numbers (NaN or infinite), so no layer predicts anything. Change less."),
        (InputError, lambda: likelihood(decoder().executor, [1]),
         "a text needs at least two tokens to say how well a model predicts it. Give a longer one."),
        (InputError, lambda: likelihood(decoder().executor, [1] * 9, window=4, stride=9),
         "a window of 4 tokens cannot add 9. Give a stride from 1 to 4."),
        (InputError, lambda: encoder().model.look(TEXT, pair=""),
         "two texts are two strings, neither of them empty."),
        (InputError, lambda: explain(decoder().read(TEXT), -1, 5, 5),
         "a token has no lead over itself. Hold it against another one."),
        (InputError, lambda: encoder("bert", "base").model.read(TEXT).trace(),
         "… scores no tokens (base), so there is nothing to trace. Look at it: glass look."),
        (InputError, lambda: decoder().read_ids([-1]),
         "-1 is no token id; … has 256."),
        (InputError, lambda: compare_with_transformers(Model.from_module(module(), tokenizer()), TEXT),
         "LlamaForCausalLM cannot be compared with transformers: it must be a decoder, from a file."),
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
        (InputError, lambda: compare(decoder().read("abc"), decoder().read("xyz")),
         "the two texts have no token in common, so there is nothing to compare in them."),
        (InputError, lambda: compare(decoder().read("ab"), both("llama").model.read("abc")),
         "the two models cut this text into different tokens, so they cannot be compared on it."),
        (InputError, lambda: compare(*[decoder().watch_many(TEXT, max_new_tokens=2)[0]] * 2),
         "these runs kept no account of their candidates. Get both with watch(…)."),
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
        (WriteError, lambda: run().save(write("taken.json/x", "").parent),
         "…/taken.json cannot be written (it is a folder). Give the name of a file in it."),
        (InputError, lambda: replay("{"),
         "kept.json is no receipt that can be read: it is not JSON (Expecting property name enclosed in double quotes:"
         " line 1 column 2 (char 1))."),
        (InputError, lambda: replay("[]"),
         "kept.json is no receipt of a run: it has no schema, not 'glassformer.run/1'. Write one with run.save(…) or "
         "--save."),
        (InputError, lambda: replay({"schema": "glassformer.lens/1"}),
         "kept.json is no receipt of a run: it is 'glassformer.lens/1', not 'glassformer.run/1'. Write one with "
         "run.save(…) or --save."),
        (InputError, lambda: replay({"schema": SCHEMA}),
         "kept.json is damaged: its model is missing, or of the wrong type. Write it again."),
        (InputError, lambda: replay({**receipt(), "executor": []}),
         "kept.json is damaged: its executor is missing, or of the wrong type. Write it again."),
        (InputError, lambda: replay({**receipt(), "prompt_ids": ["x"]}),
         "kept.json is damaged: its prompt_ids[0] is missing, or of the wrong type. Write it again."),
        (InputError, lambda: replay({**receipt(), "steps": [{**receipt()["steps"][0], "id": "x"}]}),
         "kept.json is damaged: its steps[0].id is missing, or of the wrong type. Write it again."),
        (InputError, lambda: replay({**receipt(), "steps": []}),
         "kept.json holds no tokens, so there is nothing to replay."),
        (InputError, lambda: replay({**receipt(), "finish": "nonsense"}),
         "kept.json is damaged: its finish is 'nonsense'. Write it again."),
        (InputError, lambda: replay({**receipt(), "changes": {"blocks.0.residual": 5}}),
         "the receipt's change at blocks.0.residual is damaged: 5 is none. Write it again."),
        (InputError, lambda: replay({**receipt(), "settings": {"stop_when": {"value": "<function f>", "origin": ""}}}),
         "this receipt cannot be replayed: stop_when was <function f>, which no file can hold."),
        (InputError, lambda: replay(decoder().watch(TEXT, change={SITE: unchanged}, max_new_tokens=1).receipt.to_dict()),
         "this receipt cannot be replayed: unchanged, a function, changed blocks.0.residual, and no file can hold it."),
        (InputError, unwatched,
         "this run was not watched. Get it with watch(…, look=64)."),
        (InputError, lambda: decoder().explain(TEXT, answer_ids=[5]),
         "answer_ids follow a prompt that is token ids. After a text, leave them out."),
    ],
    "texts that are read": [
        (InputTypeError, lambda: decoder().read_many(TEXT),
         "texts is 'the cat sat on the mat'; it must be a list of strings, or another iterable of them."),
        (SiteError, lambda: decoder().read_many([TEXT]).record("blocks.0.attention.pattern", folder=place()),
         "'blocks.0.attention.pattern' has a value for each pair of tokens, not for each token; "
         "model.read(text).record(…) writes those of one text."),
        (InputError, lambda: decoder().read_many([TEXT]).record(folder=place()),
         "name the sites to read, such as 'blocks.*.residual'."),
        (InputError, lambda: decoder().read_many([TEXT]).statistics("blocks.0.mlp.hidden", examples=0),
         "examples is 0; of each neuron at least one is kept."),
        (SiteError, lambda: recorded().batches("embeding"),
         "…/recorded has no 'embeding'. Did you mean 'embedding'? It has: embedding."),
        (SiteError, lambda: recorded()[0].values("embeding"),
         "there is no 'embeding' here. Did you mean 'embedding'?"),
        (InputError, lambda: recorded().batches("embedding", 0),
         "size is 0; a batch has at least one row."),
        (IndexError, lambda: recorded()[5],
         "there is no text 5 among 5."),
        (InputError, lambda: decoder().read_many([]).record("embedding", folder=place() / "none"),
         "there are no texts to read. Give at least one."),
        (InputError, lambda: decoder().read_many([""]).record("embedding", folder=place() / "blank"),
         "text 1 has no tokens. Leave it out."),
        (InputTypeError, lambda: decoder().read_many([3]).record("embedding", folder=place() / "three"),
         "text 1 is 3; each must be a string."),
        (InputError, lambda: decoder().read_many([TEXT], length=0),
         "length is 0; a text has at least one token."),
        (SiteError, lambda: pair().read_many([TEXT]).record("blocks.0.residual", folder=place()),
         "… is an encoder-decoder, whose encoder reads the texts: name its sites, such as 'encoder.blocks.*.residual',"
         " not 'blocks.0.residual'."),
        (InputError, lambda: decoder().read_many([TEXT]).record("embedding", folder="\ud800"),
         "'\\ud800' cannot be made: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not "
         "allowed."),
        (InputError, lambda: again(SITE, model=decoder().changed(HUGE), folder=place() / "huge", dtype="float16"),
         "blocks.0.residual has values up to 1000000, more than float16 holds. Record it in float32."),
        (InputError, lambda: again("embedding", resume=False),
         "…/recorded holds activations already. Go on with resume, or choose another folder."),
        (InputError, lambda: again("final"),
         '…/recorded was begun otherwise: sites was ["embedding"] and is ["final"]. Go on as it was begun, or choose '
         'another folder.'),
        (InputError, lambda: again("embedding", dtype="float16"),
         '…/recorded was begun otherwise: dtype was "float32" and is "float16". Go on as it was begun, or choose '
         'another folder.'),
        (InputError, lambda: again("embedding", model=both("gpt2").model),
         "…/recorded was begun otherwise: the model's weights is another; the model's config is another. Go on as it "
         "was begun, or choose another folder."),
        (InputError, lambda: again("embedding", texts=["a cat"] * 5),
         "…/recorded was begun with other texts than these. Give the same ones, or choose another folder."),
        (InputError, lambda: again("embedding", texts=[TEXT] * 6),
         "…/recorded was recorded from fewer texts. Give the same ones, or choose another folder."),
        (InputError, lambda: RecordedActivations(write("bare/x", "").parent),
         "…/bare holds no activations: index.json cannot be read (No such file or directory)."),
        (InputError, lambda: decoder().read_many([TEXT]).statistics("blocks.0.mlp.hidden").view([999]),
         "there is no neuron 999 at blocks.0.mlp.hidden: there are 80, 0 to 79."),
    ],
    "parameters": [
        (InputError, lambda: parameters(open_model(without_weights()), stats=True),
         "…/bare: its weights are not here, and a config has no numbers to look at. Fetch them."),
    ],
    "executors": [
        (ExecutorError, lambda: split_model(both("qwen3_moe").model.blueprint, 2),
         "a qwen3_moe model cannot be split among ranks: it has experts. Leave tensor_parallel out."),
        (ExecutorError, lambda: split_model(decoder().blueprint, 5),
         "tensor_parallel=5, but the model has 4 attention heads, of which each rank needs one. Take at most 4."),
        (ExecutorError, lambda: split_model(encoder("bert", "base").model.blueprint, 2),
         "tensor_parallel is for models that write text, and this one has a base head. Leave it out."),
        (ExecutorError, lambda: Engine("warp", 2),
         "the CPU engine cannot start 2 threads on level 'warp'."),
        (ExecutorError, lambda: packed_size(FileKind.Q8_0, 2**31, 32),
         "the CPU engine cannot run rows=2147483648, which does not fit 32 bits. Use executor='plain'."),
        (InputError, lambda: verify(decoder().executor, decoder().executor, [[]], usual_sites(3)),
         "there is nothing to compare executors on. Give at least one prompt, each of at least one token."),
    ],
}  # fmt: skip
