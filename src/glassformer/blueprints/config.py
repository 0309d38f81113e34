"""Configs: small frozen dataclasses, one per family, read from `config.json` with every value checked.

A value that changes behaviour and cannot be honoured raises. Keys that nobody here reads are kept in `stray`, so
that they can be listed and are written back on saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_origin, get_type_hints

from glassformer.blueprints.rope import Rope
from glassformer.errors import ConfigError, UnknownArgument, nearest
from glassformer.typecheck import fits

Head: TypeAlias = Literal["base", "causal", "seq2seq", "masked", "sequence", "token", "question"]
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "tanh")
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
RENAMED = {"torch_dtype": "dtype", "swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every family's config has."""

    model_type: ClassVar[str]
    natural: ClassVar[Head] = "causal"  # the head that the family was made for
    spelt: ClassVar[Mapping[str, str]] = {}  # a family's own words for the fields here: {"n_embd": "hidden_size"}
    fixed: ClassVar[Mapping[str, Any]] = {}  # fields that a family leaves no choice in
    default_labels: ClassVar[int] = 2

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
    stray: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """From the object in `config.json`."""
        raw = {RENAMED.get(key, key): value for key, value in raw.items()}
        own = {cls.spelt[key]: value for key, value in raw.items() if key in cls.spelt}  # these have the last word
        given = {key: value for key, value in raw.items() if key not in cls.spelt} | own
        for name, value in cls.fixed.items():
            if given.get(name, value) not in (value, None):
                raise ConfigError(f"config field {name!r} is {given[name]!r}; in a {cls.model_type} model it is {value!r}.")
        given = cls.prepare(given)
        hints = get_type_hints(cls)
        known = {f.name for f in fields(cls)} - {"stray"}
        for name in known & given.keys():
            if not fits(given[name], hints[name]):
                raise ConfigError(f"config field {cls.word(name)!r} is {given[name]!r}; it must be {_words(hints[name])}.")
        needed = (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
        missing = [name for name in needed if name not in given]
        if missing:
            raise ConfigError(f"config field {cls.word(missing[0])!r} is missing.")
        stray = {key: value for key, value in given.items() if key not in known and key != "model_type"}
        return cls(**{name: given[name] for name in known & given.keys()}, stray=stray)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Bring a raw config to this class's fields. Families extend it."""
        labels = raw.get("id2label")
        if isinstance(labels, Mapping):
            if not all(str(number).isdecimal() for number in labels):
                raise ConfigError(f"config field 'id2label' is {labels!r}; its keys must be numbers.")
            raw = {**raw, "id2label": {int(number): label for number, label in labels.items()}}
            raw.setdefault("num_labels", len(labels))
        raw.pop("label2id", None)
        return raw

    def __post_init__(self) -> None:
        self.positive("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
        for name in (f.name for f in fields(self) if "drop" in f.name):
            if (rate := getattr(self, name)) is not None and not 0 <= rate <= 1:
                raise ConfigError(f"config field {self.word(name)!r} is {rate!r}; a share to drop lies between 0 and 1.")
        if self.problem_type not in (None, *PROBLEMS):
            raise ConfigError(
                f"config field 'problem_type' is {self.problem_type!r}, which is not known."
                f"{nearest(str(self.problem_type), PROBLEMS)} Known: {', '.join(PROBLEMS)}."
            )

    def positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"config field {self.word(name)!r} is {getattr(self, name)}; it must be at least 1.")

    def known_activation(self, name: str) -> None:
        value = getattr(self, name)
        if value not in ACTIVATIONS:
            raise ConfigError(
                f"config field {self.word(name)!r} is {value!r}, which is not a known activation."
                f"{nearest(value, ACTIVATIONS)} Known: {', '.join(ACTIVATIONS)}."
            )

    def whole_heads(self, heads: str = "num_attention_heads") -> None:
        if self.hidden_size % (count := getattr(self, heads)):
            raise ConfigError(
                f"config field {self.word(heads)!r} is {count}, which does not divide the hidden size {self.hidden_size}."
            )

    @classmethod
    def word(cls, name: str) -> str:
        """What the family itself calls a field."""
        return next((theirs for theirs, ours in cls.spelt.items() if ours == name), name)

    def __getattr__(self, name: str) -> Any:
        """The family's own words work too: `config.n_embd` is `config.hidden_size`."""
        if name in type(self).spelt:
            return getattr(self, type(self).spelt[name])
        raise AttributeError(f"the {type(self).model_type} config has no field {name!r}")

    @property
    def encoder_layers(self) -> int:
        """Blocks of the encoder, in an encoder-decoder."""
        return 0

    @property
    def labels(self) -> int:
        """How many labels a classifier has."""
        return self.num_labels or self.default_labels

    @property
    def context(self) -> int:
        """How many tokens the model has room for."""
        return self.max_position_embeddings

    def spread(self, name: str, inputs: int) -> float | None:
        """How far a layer's untrained weights lie from zero, by its name and its inputs; None leaves it to torch."""
        return self.initializer_range

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some fields changed, as `from_pretrained(name, num_labels=3)` asks for."""
        changes = self.labelled({self.spelt.get(name, name): value for name, value in changes.items()})
        known = [f.name for f in fields(self) if f.name != "stray"]
        for name in changes:
            if name not in known:
                raise UnknownArgument(
                    f"{name!r} is no argument of from_pretrained() and no field of the {self.model_type} config."
                    f"{nearest(name, known)}"
                )
        return replace(self, **changes)

    def labelled(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes with labels' names and number made to fit each other."""
        numbers = changes.pop("label2id", None)  # says the same the other way round
        names, count = changes.get("id2label"), changes.get("num_labels")
        if names is None and numbers is not None:
            names = {number: label for label, number in numbers.items()}
        if names is None:
            other = count is not None and count != len(self.id2label or {})
            return changes | ({"id2label": None} if other else {})
        if count not in (None, len(names)):
            raise ConfigError(f"num_labels is {count}, but id2label names {len(names)} labels. Give one of them.")
        return changes | {"id2label": {int(number): label for number, label in names.items()}, "num_labels": len(names)}

    @property
    def label2id(self) -> dict[str, int]:
        return {label: number for number, label in (self.id2label or {}).items()}

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` holds it."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("stray", "num_labels")}
        named = {name: value.raw() if isinstance(value, Rope) else value for name, value in named.items()}
        if "rope" in named:
            named["rope_parameters"] = named.pop("rope")
        named = {self.word(name): value for name, value in named.items()}
        if self.id2label or self.num_labels:
            labels = self.id2label or {number: f"LABEL_{number}" for number in range(self.num_labels or 0)}
            named |= {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
        return {"model_type": self.model_type, **self.stray, **{k: v for k, v in named.items() if v is not None}}


def _words(hint: Any) -> str:
    return str(hint).replace("NoneType", "null") if get_origin(hint) else {"None": "null"}.get(hint.__name__, hint.__name__)
