"""Configs: small dataclasses, one per family, read from `config.json` with every value checked, and checked again when it is
changed.

A value that changes behavior and is not supported raises. Keys that nothing here reads are kept in `extra_fields`, so
that they can be listed and are written back on saving.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_origin, get_type_hints

from glassformer.blueprints.bounds import BOUNDS, Bounds, check_held, check_numbers
from glassformer.blueprints.other_fields import check_other_fields
from glassformer.ground.errors import ConfigError, UnknownArgument, did_you_mean
from glassformer.ground.files import write_text_in
from glassformer.ground.typecheck import brief, matches_type
from glassformer.ops.activate import ACTIVATIONS
from glassformer.ops.rope import Rope

Head: TypeAlias = Literal["base", "causal", "seq2seq", "masked", "sequence", "token", "question", "discriminator"]
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
RENAMED = {"torch_dtype": "dtype"}
ROPE_FIELDS: Mapping[str, Callable[[Rope], Any]] = {  # by which older and newer files know RoPE's settings
    "rope_theta": lambda rope: rope.theta, "rope_parameters": lambda rope: rope.raw(),
}  # fmt: skip


@dataclass(kw_only=True)
class Config:
    """What every family's config has."""

    model_type: ClassVar[str]
    title: ClassVar[str]  # what people call the family
    default_head: ClassVar[Head] = "causal"  # the head that the family was trained with
    pretraining_head: ClassVar[Head] = "masked"  # what an encoder's "ForPreTraining" means, or the part of it that is here
    aliases: ClassVar[Mapping[str, str]] = {}  # a family's own names of fields: {"n_embd": "hidden_size"}
    fixed_fields: ClassVar[Mapping[str, Any]] = {}  # fields that may only have this value
    default_fields: ClassVar[Mapping[str, Any]] = {}  # of a config that is made by hand: `LlamaConfig()`
    default_label_count: ClassVar[int] = 2
    starts_with_last: ClassVar[bool] = False  # a decoder's input begins with the target's last token: its language
    bounds: ClassVar[Mapping[str, Bounds]] = BOUNDS  # of its numbers
    is_draft: ClassVar[bool] = False  # whether it is that of a head for a further token (`drafts.py`), as a model
    draft_names_apart: ClassVar[bool] = False  # whether heads are called `mtp.*`, not layers behind the last one
    _attn_implementation: ClassVar[str] = "eager"  # for trainers, which load a second model of transformers like it
    open_by_name: ClassVar[Callable[..., Config]]  # set by `opened`, which can find checkpoints

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    use_cache: bool = True
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    dtype: str | None = None
    architectures: list[str] | None = None
    num_labels: int | None = None
    id2label: dict[int, str] | None = None
    problem_type: str | None = None
    extra_fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """From the object in `config.json`."""
        raw = {RENAMED.get(key, key): value for key, value in raw.items()}
        renamed = {cls.aliases[key]: value for key, value in raw.items() if key in cls.aliases}  # these win
        values = {key: value for key, value in raw.items() if key not in cls.aliases} | renamed
        check_other_fields(values, cls.fixed_fields, frozenset(f.name for f in fields(cls)), cls.model_type)
        check_numbers(values, cls.bounds, cls.own_name)
        values = cls.prepare(values)
        names = {f.name for f in fields(cls)} - {"extra_fields"}
        cls.check_types({name: values[name] for name in names & values.keys()})
        needed = (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
        missing = [name for name in needed if name not in values]
        if missing:
            raise ConfigError(f"config field {cls.own_name(missing[0])!r} is missing.")
        extra_fields = {key: value for key, value in values.items() if key not in names and key != "model_type"}
        return cls(**{name: values[name] for name in names & values.keys()}, extra_fields=extra_fields)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **changes: Any) -> Self:
        """The config of a checkpoint of this family, by its path, its catalogue name or its hub id."""
        config = cls.open_by_name(name, **changes)
        if type(config) is not cls:
            raise ConfigError(f"{name}: holds a {config.model_type} model, no {cls.model_type} model. Use AutoConfig.")
        return config

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """`read`, by its familiar name."""
        return cls.read(values)

    @classmethod
    def check_types(cls, values: Mapping[str, Any]) -> None:
        """Refuse values that their fields cannot have."""
        hints = _type_hints(cls)  # type: ignore[arg-type]  # a class is hashable
        for name, value in values.items():
            if not matches_type(value, hints[name]):
                raise ConfigError(
                    f"config field {cls.own_name(name)!r} is {brief(value)}; it must be {_type_name(hints[name])}."
                )

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Bring a raw config to this class's fields. Families extend it."""
        labels = raw.get("id2label")
        if isinstance(labels, Mapping):
            if not all(str(index).isdecimal() and len(str(index)) < 10 for index in labels):
                raise ConfigError(f"config field 'id2label' is {brief(labels)}; its keys must be numbers.")
            raw = {**raw, "id2label": {int(index): label for index, label in labels.items()}}
            raw.setdefault("num_labels", len(labels))
            if raw["num_labels"] and raw["num_labels"] != len(labels):  # a list that was left over: the number counts
                raw["id2label"] = None
        raw.pop("label2id", None)
        return raw

    def __post_init__(self) -> None:
        check_numbers(self._values, self.bounds, self.own_name)
        if self.problem_type not in (None, *PROBLEMS):
            raise ConfigError(
                f"config field 'problem_type' is {self.problem_type!r}, which is not known."
                f"{did_you_mean(str(self.problem_type), PROBLEMS)} Known: {', '.join(PROBLEMS)}."
            )
        if self.id2label is None:
            self.id2label = {index: f"LABEL_{index}" for index in range(self.label_count)}
        self.num_labels = len(self.id2label)
        self.__dict__["_complete"] = True  # from now on, changes are checked

    def __setattr__(self, name: str, value: Any) -> None:
        """`config.use_cache = False`: checked as in a file. A name that no field has becomes one of the extra fields."""
        if "_complete" not in self.__dict__:
            object.__setattr__(self, name, value)
            return
        name = RENAMED.get(name, name)
        if name in ("name_or_path", "_name_or_path"):
            self.__dict__["_name_or_path"] = value
        elif name == "_attn_implementation":
            return
        elif name == "label2id" or self.aliases.get(name, name) in self._field_names:
            self.__dict__.update(self.with_changes({name: value}).__dict__)
        elif name == "rope_theta" and "rope" in self._field_names:
            self.__dict__.update(self.with_changes({"rope": replace(self.rope, theta=float(value))}).__dict__)
        else:
            check_other_fields({name: value}, self.fixed_fields, frozenset(self._field_names), self.model_type)
            self.__dict__["extra_fields"] = {**self.extra_fields, name: value}

    @property
    def _field_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self) if f.name != "extra_fields")

    @property
    def _values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check_sizes(self, shapes: Iterable[tuple[int, ...]]) -> None:
        """Refuse sizes that weights of these shapes cannot have."""
        check_held(self._values, self.bounds, self.own_name, shapes)

    def check_equations(self, what: str) -> None:
        """Refuse what reads the equations of a model, where there are none; `what`: in the words of a message."""

    def check_activation(self, name: str) -> None:
        value = getattr(self, name)
        if value not in ACTIVATIONS:
            raise ConfigError(
                f"config field {self.own_name(name)!r} is {value!r}, which is not a known activation."
                f"{did_you_mean(value, ACTIVATIONS)} Known: {', '.join(ACTIVATIONS)}."
            )

    def check_heads_divide(self, heads: str = "num_attention_heads") -> None:
        if self.hidden_size % (count := getattr(self, heads)):
            raise ConfigError(
                f"config field {self.own_name(heads)!r} is {count}, which does not divide the hidden size "
                f"{self.hidden_size}."
            )

    @classmethod
    def own_name(cls, name: str) -> str:
        """A field's name in the family's own files."""
        return next((theirs for theirs, field in cls.aliases.items() if field == name), name)

    def __getattr__(self, name: str) -> Any:
        """The family's own names work too, `config.n_embd` is `config.hidden_size`, and what only the file has."""
        if name in type(self).aliases or name in RENAMED:
            return getattr(self, type(self).aliases.get(name) or RENAMED[name])
        rope = self.__dict__.get("rope")
        if rope is not None and name in ROPE_FIELDS:
            return ROPE_FIELDS[name](rope)
        if name in (extra_fields := self.__dict__.get("extra_fields", {})):
            return extra_fields[name]
        raise AttributeError(f"the {type(self).model_type} config has no field {name!r}")

    @property
    def name_or_path(self) -> str:
        """Of the checkpoint that it was read from."""
        return str(self.__dict__.get("_name_or_path", ""))

    @name_or_path.setter
    def name_or_path(self, value: str) -> None:
        self._name_or_path = value

    @property
    def is_encoder_decoder(self) -> bool:
        return self.default_head == "seq2seq"

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """The part of the config that is about text: all of it."""
        return self

    @property
    def encoder_layers(self) -> int:
        """Blocks of the encoder, in an encoder-decoder."""
        return 0

    @property
    def head_dropout(self) -> float:
        """Of what the head that scores tokens reads."""
        rates = (getattr(self, name, None) for name in ("classifier_dropout", "hidden_dropout"))
        return next((rate for rate in rates if rate is not None), 0.1)

    @property
    def ropes(self) -> Mapping[str, Rope]:
        """The kinds of RoPE, by the names that their tables have in PyTorch."""
        return {}

    def rotary_head_size(self, name: str) -> int:
        """The size of the heads that a kind of RoPE turns."""
        size: int = self.head_dim
        return size

    @property
    def draft_fields(self) -> Mapping[str, Any] | None:
        """What the block of a head for further tokens has otherwise than the model's; None: the family has no such heads."""
        return None

    @property
    def routed_layers(self) -> tuple[int, ...]:
        """The numbers of the blocks whose MLP is a mixture of experts."""
        return ()

    @property
    def label_count(self) -> int:
        """How many labels a classifier has."""
        return self.num_labels or self.default_label_count

    @property
    def context(self) -> int:
        """How many tokens the model has room for."""
        return self.max_position_embeddings

    @property
    def source_context(self) -> int:
        """How many tokens it has room for in what it is given to read: of an encoder-decoder the source."""
        return self.context

    def initial_std(self, name: str, inputs: int) -> float | None:
        """The standard deviation of a layer's untrained weights, by its name and input size; None: torch's own default."""
        return self.initializer_range

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some fields changed, as `from_pretrained(name, num_labels=3)` does."""
        changes = self.consistent_labels({self.aliases.get(name, name): value for name, value in changes.items()})
        for name in changes:
            if name not in self._field_names:
                raise UnknownArgument(
                    f"{name!r} is no argument of from_pretrained() and no field of the {self.model_type} config."
                    f"{did_you_mean(name, self._field_names)}"
                )
        self.check_types(changes)
        return replace(self, **changes)

    def consistent_labels(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes in which the labels' names and their number agree."""
        label_ids = changes.pop("label2id", None)  # the inverse of id2label
        names, count = changes.get("id2label"), changes.get("num_labels")
        if names is None and label_ids is not None:
            names = {index: label for label, index in label_ids.items()}
        if names is None:
            stale = "id2label" in changes or (count is not None and count != len(self.id2label or {}))
            return changes | ({"id2label": None} if stale else {})
        if count not in (None, len(names)):
            raise ConfigError(f"num_labels is {count}, but id2label names {len(names)} labels. Give one of them.")
        return changes | {"id2label": {int(index): label for index, label in names.items()}, "num_labels": len(names)}

    @property
    def label2id(self) -> dict[str, int]:
        return {label: index for index, label in (self.id2label or {}).items()}

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` holds it: without what is null, except where that is not what a reader would take by default."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("extra_fields", "num_labels")}
        unsaid = {f.name for f in fields(self) if f.default is None and values.get(f.name) is None}
        values = {name: value for name, value in values.items() if name not in unsaid}
        values = {name: value.raw() if isinstance(value, Rope) else value for name, value in values.items()}
        if "rope" in values:
            values["rope_parameters"] = values.pop("rope")
        values = {self.own_name(name): value for name, value in values.items()}
        if values.get("id2label") == {index: f"LABEL_{index}" for index in range(self.default_label_count)}:
            del values["id2label"]
        else:
            values["label2id"] = self.label2id
        return {"model_type": self.model_type, **self.extra_fields, **values}

    def to_json_string(self) -> str:
        """As the text of `config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json` into a folder, which is made if need be."""
        write_text_in(Path(folder), "config.json", self.to_json_string())

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change several fields."""
        for name, value in changes.items():
            setattr(self, name, value)


def with_rope(raw: dict[str, Any], default_theta: float) -> dict[str, Any]:
    """A raw config's fields about RoPE as one, `rope`."""
    spellings = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
    return {name: value for name, value in raw.items() if name not in spellings} | {"rope": Rope.read(raw, default_theta)}


@dataclass(kw_only=True)
class RotaryConfig(Config):
    """What configs of families with RoPE have in common."""

    default_theta: ClassVar[float] = 10_000.0  # RoPE's base, where a file has none
    default_rope: ClassVar[Mapping[str, Any]] = {}  # its settings, where a file has none
    default_share: ClassVar[float] = 1.0  # of a head that is rotated, where a file does not say it
    interleaved_rope: ClassVar[bool] = False  # whether the numbers of a pair are neighbors in the family's own files

    intermediate_size: int
    num_attention_heads: int
    hidden_act: str
    attention_dropout: float = 0.0
    rope: Rope = field(default_factory=Rope)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        if not (raw.get("rope_scaling") or raw.get("rope_parameters")):
            raw["rope_parameters"] = cls.default_rope
        share = {} if cls.default_share == 1 else {"partial_rotary_factor": cls.default_share}
        raw = with_rope({**share, **raw}, cls.default_theta)
        return raw | {"rope": replace(raw["rope"], interleaved=cls.interleaved_rope)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rope}

    def to_dict(self) -> dict[str, Any]:
        """With the share of a head that is rotated, even if it is all of it, where a reader would take less."""
        raw = super().to_dict()
        if self.default_share == 1:
            return raw
        return raw | {"rope_parameters": raw["rope_parameters"] | {"partial_rotary_factor": self.rope.partial_rotary_factor}}

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer looks; None: to the beginning."""
        return None


@dataclass(kw_only=True)
class GPTConfig(Config):
    """What configs of GPT-2, GPT-Neo and GPT-J have in common."""

    aliases = {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "activation_function": "hidden_act", "n_inner": "intermediate_size",
    }  # fmt: skip

    num_attention_heads: int
    intermediate_size: int | None = None  # None: four times the hidden size
    hidden_act: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_heads_divide()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def inner(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size


@cache
def _type_hints(cls: type[Config]) -> dict[str, Any]:
    return get_type_hints(cls)


def _type_name(hint: Any) -> str:
    return str(hint).replace("NoneType", "null") if get_origin(hint) else {"None": "null"}.get(hint.__name__, hint.__name__)
