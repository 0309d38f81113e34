"""Models that transformers computes."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from safetensors.torch import load_file, save_file

from glassformer import AutoModelForCausalLM, Change, load
from glassformer.ground.errors import CheckpointError, ConfigError, ExecutorError, InputError, SiteError
from tests.engine.bridge import families
from tests.messages.calls import Entry
from tests.see.models import both


@cache
def folder(kind: str) -> Path:
    place = Path(mkdtemp()) / kind
    place.mkdir()
    families.write(place, kind)
    return place


@cache
def model(kind: str = "codegen") -> Any:
    return load(folder(kind))


def changed(kind: str, **fields: Any) -> Path:
    """The same checkpoint with another config."""
    place = Path(mkdtemp()) / kind
    shutil.copytree(folder(kind), place)
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps({**config, **fields}), "utf-8")
    return place


def module(kind: str = "codegen", **fields: Any) -> Any:
    """The modules that transformers makes by that config."""
    return load(changed(kind, **fields)).module


def without_weight() -> Any:
    place = changed("codegen")
    weights = load_file(place / "model.safetensors")
    del weights["transformer.h.1.mlp.fc_in.weight"]
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    return load(place).module


MESSAGES: dict[str, list[Entry]] = {
    "models that transformers computes": [
        (CheckpointError, lambda: load(folder("codegen"), executor="cpu"),
         "…/codegen is computed by transformers, and executor is for Glassformer's own families. Leave it out."),
        (CheckpointError, lambda: load(folder("codegen"), weights="q8_0"),
         "…/codegen is computed by transformers, and weights is for Glassformer's own families. Leave it out."),
        (ConfigError, lambda: load(changed("codegen", architectures=["CodeGenForImages"])),
         "…/config.json: config field 'architectures' is 'CodeGenForImages', which has none of the heads that are known "
         "here. Take one of CodeGenForCausalLM, CodeGenModel."),
        (ConfigError, lambda: load(changed("codegen", architectures="CodeGenForCausalLM")),
         "…/config.json: config field 'architectures' is 'CodeGenForCausalLM'; it must be a list of names."),
        (ConfigError, lambda: load(changed("codegen", model_type="codagen")),
         "…/config.json: config field 'model_type' is 'codagen', which is neither a family of Glassformer's own nor one for "
         "texts of the installed transformers …. Did you mean 'codegen'? docs/models.md lists the families."),
        (ConfigError, lambda: AutoModelForCausalLM.from_pretrained(folder("codegen")),
         "…/config.json: config field 'model_type' is 'codegen', which is not a known family. docs/models.md lists those; "
         "what transformers knows beside them opens with glass.load, or with its own classes."),
        (ConfigError, lambda: module(n_embd="wide"),
         "…/config.json: config field 'n_embd' is 'wide'; it must be a whole number."),
        (ConfigError, lambda: module(eos_token_id="end"),
         "…/config.json: config field 'eos_token_id' is 'end'; it must be a whole number or a list or null."),
        (ConfigError, lambda: module(n_layer=0),
         "…/config.json: config field 'n_layer' is 0; it must be at least 1."),
        (ConfigError, lambda: module(n_head=5),
         "…/config.json: transformers cannot build a CodeGenForCausalLM by config field 'n_head' (5): …."),
        (ConfigError, lambda: module(n_head=0),
         "…/config.json: transformers cannot build a CodeGenForCausalLM by config field 'n_head' (0): …."),
        (ConfigError, lambda: module(activation_function="silo"),
         "…/config.json: transformers cannot build a CodeGenForCausalLM by config field 'activation_function' ('silo'): it "
         "knows no 'silo'."),
        (ConfigError, lambda: module("longformer", attention_window=[8]),
         "…/config.json: transformers cannot build a LongformerForMaskedLM by config fields 'attention_window' ([8]), "
         "'num_hidden_layers' (3): …."),
        (ConfigError, lambda: module(rotary_dim=64),
         "…/config.json: transformers cannot run a CodeGenForCausalLM by this config: …. Fields that are one of these "
         "numbers: n_positions, rotary_dim, n_layer."),
        (ConfigError, lambda: load(changed("codegen", id2label="good")),
         "…/config.json: transformers cannot read this config: …. Is this the config of these weights?"),
        (ConfigError, lambda: module(n_embd=40),
         "…/config.json: by this config the weight 'lm_head.weight' is [120, 40], as 'n_embd' is 40; in the file it is "
         "[120, 32]. 27 more have other shapes than theirs. Is this the config of these weights?"),
        (CheckpointError, without_weight,
         "…/codegen: the weights lack transformer.h.1.mlp.fc_in.weight. Fetch the files again, or look whether config.json "
         "is that of these weights."),
        (SiteError, lambda: model().changed({"blocks.0.attention.pattern": Change(scale=0)}).chat([5]),
         "'blocks.0.attention.pattern' can be read, and not changed: transformers gives its patterns when they have been "
         "used. Change 'blocks.0.attention.update'."),
        (SiteError, lambda: model().read_ids([5, 6]).attribution(),
         "the parts of a score follow from the equations of each layer, and of a codegen model transformers shows what "
         "goes into its modules and what comes out. Its sites: glass look --sites."),
        (SiteError, lambda: model().read_ids([5, 6]).experts(),
         "the shares of experts follow from the equations of each layer, and of a codegen model transformers shows what "
         "goes into its modules and what comes out. Its sites: glass look --sites."),
        (SiteError, lambda: model("mamba").read_ids([5, 6]).attention(),
         "no layer of …/mamba has a site like 'blocks.0.attention.pattern', and this view shows patterns. Its "
         "sites: glass look --sites."),
        (ExecutorError, lambda: model("squeezebert").read_ids([5, 4]).lens(),
         "this squeezebert model's stream was seen to go through no blocks, so no layer has states to read out. Its sites: "
         "glass look --sites."),
        (InputError, lambda: model().changed({"blocks.0.residual": Change(scale=0)}).module,
         "…/codegen is computed by transformers, whose module knows nothing of changes: they are made in each text that is "
         "read or written. Take the module of the unchanged model."),
        (ExecutorError, lambda: model("xlnet").chat([5]),
         "a xlnet model writes by reading more than the text, and transformers alone knows how. Use its own generate()."),
        (SiteError, lambda: both("falcon_h1").reading().at("blocks.0.attention.state"),
         "no site matches 'blocks.0.attention.state' in a model of … blocks. Did you mean 'blocks.0.recurrent.state'? "
         "Sites: …."),
        (SiteError, lambda: both("llama").reading().at("module:model.layers"),
         "'module:model.layers' is not in this pass: it does not call its module. Take the module around it."),
    ],
}  # fmt: skip
