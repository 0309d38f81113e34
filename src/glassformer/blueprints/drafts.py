"""Multi-token prediction: a head that guesses the token after the next one (https://arxiv.org/abs/2412.19437).

    input = fc(norm(vector of token t + 1), norm(the model's last states at t)) → one of the family's blocks → norm → logits
    for token t + 2

So a head is a model of one block, of its family, in which a token's vector is put together with a state: this is how
everybody knows it, as a config and a blueprint of its own. It shares the table of tokens and the matrix of the logits with
the model, unless a file has others for it. Its own last states take the place of the model's where it goes on from its own
guess.

Files call its parts otherwise: `mtp.*` (Qwen), or a layer behind the last one (DeepSeek, GLM). Of several heads the first
one is used; all of them are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from glassformer.blueprints.blueprint import Builder, Value
from glassformer.blueprints.config import Config
from glassformer.ground.errors import spell
from glassformer.ground.sites import HEAD_INPUT

SHARED = ("model.embed_tokens.weight", "lm_head.weight")  # with the model
PARTS: Mapping[str, str] = {  # how names begin in files, and in the head; N: how many layers the model has
    "mtp.layers.0.": "model.layers.0.",
    "mtp.layers.": "",  # of further heads
    "mtp.": "model.",
    "model.layers.N.eh_proj.": "model.fc.",
    "model.layers.N.enorm.": "model.pre_fc_norm_embedding.",
    "model.layers.N.hnorm.": "model.pre_fc_norm_hidden.",
    "model.layers.N.shared_head.norm.": "model.norm.",
    "model.layers.N.shared_head.head.": "lm_head.",
    "model.layers.N.embed_tokens.": "model.embed_tokens.",
    "model.layers.N.": "model.layers.0.",
}  # fmt: skip
COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")  # by which configs say how many there are


def head_config(config: Config) -> Config | None:
    """The config of a family's head, as a model of one block; None where the family has none."""
    if config.draft_fields is None:
        return None
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return _config_class(type(config))(  # type: ignore[arg-type]  # a class is hashable
        **values | {"num_hidden_layers": 1} | dict(config.draft_fields)
    )


@cache
def _config_class(kind: type[Config]) -> type[Config]:
    return type(kind.__name__, (kind,), {"is_draft": True, "__module__": kind.__module__})


def no_head(name: str, config: Any) -> str:
    """Why a model cannot draft for itself."""
    reason = "none"
    if any(getattr(config, count, 0) for count in COUNTS):  # its config speaks of one
        computed = getattr(config, "draft_fields", None) is not None
        reason += (
            ", though its config speaks of one: its files leave it out"
            if computed
            else (f" that can be used: how those of {config.model_type} models compute is not known here")
        )
    return (
        f"{spell('assistant_model', 'mtp')} means a model's own head for further tokens, and {name} has {reason}. "
        "Leave it out, or name a smaller model of the same vocabulary."
    )


def part_name(config: Config, name: str) -> str | None:
    """What a head's tensor is called in the head; "" for those of a further one, None for the model's own."""
    if config.draft_fields is None:
        return None
    layers = config.num_hidden_layers
    for stored, own in PARTS.items():
        beginning = stored.replace(".N.", f".{layers}.")
        if name.startswith(beginning):
            return own and own + name.removeprefix(beginning)
    block = name.removeprefix("model.layers.").partition(".")[0] if name.startswith("model.layers.") else ""
    return "" if block.isdecimal() and int(block) > layers else None


def name_behind(config: Config, part: str) -> str:
    """The inverse of `part_name` in files whose heads are layers behind the last one."""
    layers = [(stored, own) for stored, own in PARTS.items() if ".N." in stored]
    stored, own = next((stored, own) for stored, own in layers if part.startswith(own))
    return stored.replace(".N.", f".{config.num_hidden_layers}.") + part.removeprefix(own)


def file_name(config: Config, part: str) -> str:
    """What the family's own files call a part of a head."""
    return name_in_family(config, name_behind(config, part))


def name_in_family(config: Config, name: str) -> str:
    """What the family's own files call a head's tensor; GGUF has all heads behind the last layer."""
    part = part_name(config, name)
    if not part or not config.draft_names_apart or name.startswith("mtp."):
        return name
    apart = [(stored, own) for stored, own in PARTS.items() if ".N." not in stored and own]
    return next((stored + part.removeprefix(own) for stored, own in apart if part.startswith(own)), name)


def head_tensors(config: Config, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The first head's tensors under its own names, with those that it shares; empty where there are none."""
    own = {part: tensor for name, tensor in tensors.items() if (part := part_name(config, name))}
    if not own:
        return {}
    return {**{name: tensors[name] for name in SHARED if name in tensors}, **own}


def kept_names(config: Config, names: Iterable[str]) -> list[str]:
    """Those tensors that belong to heads, and not to the model itself."""
    return [name for name in names if part_name(config, name) is not None]


def embedded(b: Builder, c: Any, base: str, norm: Mapping[str, Any], **options: Any) -> Value:
    """What enters the first block: vectors of tokens, or, in a head, these together with the states that it goes on from."""
    if not c.is_draft:
        return b.embed(f"{base}embed_tokens", **options)
    tokens = b.embed(f"{base}embed_tokens", site=None, **options)
    states = b.identity(tokens, HEAD_INPUT)  # whoever runs it puts the states here
    tokens = b.norm(tokens, f"{base}pre_fc_norm_embedding", c.rms_norm_eps, **norm)
    states = b.norm(states, f"{base}pre_fc_norm_hidden", c.rms_norm_eps, **norm)
    return b.linear(b.join((tokens, states), base.rstrip(".")), f"{base}fc", c.hidden_size)
