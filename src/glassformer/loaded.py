"""A model in memory: tokenizer, executor and settings in one object, and how a prompt becomes its ids.

It needs no torch by itself; the executor may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Head, blueprint
from glassformer.checkpoint.sentence import Sentence
from glassformer.decoding import GenerationConfig
from glassformer.engine.changed import Changed
from glassformer.engine.keeping import Keeping
from glassformer.engine.protocol import Executor
from glassformer.errors import InputError, InputTypeError, SiteError, TemplateError
from glassformer.executing import Choice
from glassformer.observe.vocabulary import Vocabulary
from glassformer.opening import Opened
from glassformer.sites import Change, Watch
from glassformer.text import Tokenizer

RESERVED = (
    "prompt",
    "raw",
    "system",
    "tokenize",
    "conversation",
    "return_tensors",
    "return_dict",
    "self",
)  # not a template's
Floats: TypeAlias = npt.NDArray[np.float32]
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Given:
    """A model that is in memory already, where a checkpoint would be."""

    module: Any
    tokenizer: Tokenizer
    sentence: Sentence = field(default_factory=Sentence)

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def settings(self) -> GenerationConfig:
        found: GenerationConfig = self.module.generation_config
        return found

    @property
    def head(self) -> Head:
        return getattr(self.module, "head", "base")

    @property
    def kind(self) -> str:
        return str(self.module.dtype).removeprefix("torch.")

    @property
    def packed(self) -> bool:
        return False

    def blueprint(self) -> Blueprint:
        return blueprint(self.config, self.head)


class Loaded:
    """What a model is, and what it makes of a prompt before anything runs."""

    def __init__(self, opened: Opened | Given, choice: Choice | None = None) -> None:
        self.opened = opened
        self._choice = choice or Choice()
        self._tokenizer: Tokenizer | None = None  # another than its own
        self.changes: Mapping[str, Change] = {}  # what is changed inside it, by site

    @classmethod
    def around(cls, module: Any, tokenizer: Tokenizer) -> Self:
        """A model of an Auto class, and its tokenizer, as one of these."""
        return cls(Given(module.eval(), tokenizer))

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """The same model, reading with another tokenizer."""
        other = copy(self)  # whatever is loaded is shared
        other._tokenizer = tokenizer
        return other

    def changed(self, changes: Mapping[str, Change]) -> Self:
        """The same model with some of its values zeroed, scaled or replaced, in all that it does from here on.

        Sites may be patterns: `{"blocks.*.attention.heads": Change(scale=0, heads=[3])}`. Weights are shared, not copied.
        """
        if not isinstance(changes, Mapping):
            raise SiteError(
                f"changes map sites to a Change each, such as {{'blocks.3.residual': Change(scale=0)}}; not {changes!r}."
            )
        _ = self._executor if self.writes else self.module  # loaded now, and once
        other = copy(self)
        asked = Watch.asked(changes, self.blueprint.blocks, self.blueprint.encoder).changes
        other.changes = {**self.changes, **asked}
        return other

    def keeping(self) -> Self:
        """The same model, remembering the last texts it read: one that begins alike is read from where they part."""
        other = copy(self)
        vars(other)["_executor"] = Keeping(self._executor)
        return other

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be read again."""
        return self._executor.known(ids) if isinstance(self._executor, Keeping) and not self.changes else 0

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def config(self) -> Any:
        return self.opened.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened.tokenizer if self._tokenizer is None else self._tokenizer

    @property
    def head(self) -> Head:
        """What its last layer is for."""
        return self.opened.head

    @property
    def sentence(self) -> Sentence:
        """How its states become one vector per text."""
        return self.opened.sentence

    def label(self, number: int) -> str:
        """What a classifier's label is called."""
        names: Mapping[int, str] = self.config.id2label or {}
        return names.get(number, f"LABEL_{number}")

    @property
    def settings(self) -> GenerationConfig:
        """The model's own generation settings."""
        return self.opened.settings

    @cached_property
    def blueprint(self) -> Blueprint:
        return self.opened.blueprint()

    @property
    def vocabulary(self) -> Vocabulary:
        """How many tokens were trained, are listed, and are scored."""
        return Vocabulary.of(self.tokenizer, self.blueprint)

    @property
    def writes(self) -> bool:
        """Whether it generates text; an encoder only reads."""
        return self.head in ("causal", "seq2seq")

    @property
    def start(self) -> int | None:
        """What an encoder-decoder's target begins with; None for a model without an encoder."""
        if self.head != "seq2seq":
            return None
        start = self.settings.decoder_start_token_id  # or its config's
        if start is None:
            raise InputError(f"{self.name}: neither its config nor its settings have a decoder_start_token_id.")
        return start

    @cached_property
    def module(self) -> Any:
        """The PyTorch model behind the plain executor, with the familiar face."""
        if isinstance(self.opened, Given):
            return self.opened.module
        from glassformer.auto import made_for
        from glassformer.loading import chosen_dtype, load

        cls = made_for(self.config.model_type, self.head)
        return load(cls, self.opened, chosen_dtype(self._choice.dtype)).requires_grad_(False)

    @property
    def executor(self) -> Executor:
        """What runs the model, under its changes if it has any."""
        return Changed(self._executor, self.changes) if self.changes else self._executor

    @cached_property
    def _executor(self) -> Executor:
        """Made when first needed."""
        self._check_writes()
        native = None if isinstance(self.opened, Given) else self._choice.engine(self.opened, self.blueprint)
        if native is not None:
            return native
        from glassformer.engine.plain import Plain

        return Plain(self.module)

    @cached_property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        known = isinstance(self.opened, Given) or "module" in vars(self) or bool(self.changes)
        return None if known else self._choice.reader(cast(Opened, self.opened))

    def weight(self, name: str, row: int | None = None) -> Floats | None:
        """A weight in float32, or one row of it; None where the checkpoint leaves it out."""
        if isinstance(self.opened, Given):
            found = self.opened.module.state_dict().get(name)
            return None if found is None else (found if row is None else found[row]).float().cpu().numpy()
        stored = self.opened.tensors.get(name)
        return None if stored is None else stored.expand() if row is None else stored.row(row)

    def unembed(self, states: Floats) -> Floats:
        """What the head makes of states (rows, hidden) as they leave a block, after the last norm; (rows, vocabulary)."""
        if self.writes:
            return self.executor.unembed(states)
        if self.head != "masked":
            raise InputError(f"{self.name} scores no tokens ({self.head}), so there is nothing to read its states out as.")
        import torch

        with torch.inference_mode():
            found: Floats = self.module.head_part(self.module.base_model.finish(torch.from_numpy(states))).float().numpy()
        return found

    def encoded(self, ids: Sequence[int], watch: Watch) -> tuple[Floats | None, dict[str, Floats]]:
        """One pass of a model that only reads: what its head says of each token or of the text, and what the watch saw."""
        import torch

        watch = Watch(watch.reads, {**self.changes, **watch.changes})
        with torch.inference_mode():
            found = self.module(torch.tensor([list(ids)]), watch=watch)
        scores: Any = getattr(found, "logits", None)
        seen = {site: value[0].float().numpy() for site, value in (found.sites or {}).items()}
        return None if scores is None else scores[0].float().numpy(), seen

    def _check_writes(self) -> None:
        if not self.writes:
            encoder = self.config.natural == "masked"
            what = "an encoder" if encoder else f"a model with a {self.head} head"
            raise InputError(
                f"{self.name} is {what} ({self.config.model_type}): it reads text and writes none. "
                "Look at what it makes of a text: glass look."
            )

    # Prompts ----------------------------------------------------------------------------------------------------

    def render(self, prompt: Prompt, *, raw: bool = False, system: str | None = None, **variables: Any) -> str:
        """The text that the model will see: through the chat template if it has one, unless `raw`."""
        messages: Sequence[Mapping[str, Any]]
        if isinstance(prompt, str):
            if not prompt:
                raise InputError("the prompt is empty. Say something.")
            if raw and system is not None:
                raise InputError("a raw prompt has no place for a system message. Leave one of the two out.")
            if raw:
                return prompt
            messages = [{"role": "user", "content": prompt}]
        elif isinstance(prompt, Sequence):
            messages = cast(Sequence[Mapping[str, Any]], prompt)
        else:
            raise InputTypeError(f"a prompt is text, or a list of messages, not {type(prompt).__name__}.")
        if raw:
            raise InputTypeError("a raw prompt is text; messages need the chat template.")
        if system is not None and any(message.get("role") == "system" for message in messages):
            raise InputError("the conversation has a system message already. Leave out system=….")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        if self.tokenizer.chat_template is None:
            if isinstance(prompt, str) and system is None:
                return prompt
            raise TemplateError(f"{self.name} has no chat template, so it takes plain text only.")
        if "enable_thinking" in self.tokenizer.template().variables:
            variables.setdefault("enable_thinking", False)
        variables.setdefault("add_generation_prompt", True)
        rendered: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **variables)
        return rendered

    @staticmethod
    def variables(template: Mapping[str, Any] | None) -> dict[str, Any]:
        """A chat template's variables, refused where a name is that of something else."""
        if named := [name for name in RESERVED if name in (template or {})]:
            raise TemplateError(
                f"{named[0]} is no variable of a chat template, but an argument of its own. Give it as that."
            )
        return dict(template or {})

    def encode(
        self, prompt: Prompt, *, raw: bool = False, system: str | None = None, **variables: Any
    ) -> tuple[str, tuple[int, ...]]:
        """The rendered prompt and its ids."""
        text = self.render(prompt, raw=raw, system=system, **variables)
        templated = not raw and self.tokenizer.chat_template is not None
        ids = tuple(self.tokenizer(text, add_special_tokens=not templated)["input_ids"])
        if not ids:
            raise InputError("the prompt has no tokens. Say something.")
        return text, ids

    def __repr__(self) -> str:
        changed = f", changed at {len(self.changes)} sites" if self.changes else ""
        return f"Model({self.name!r}, {self.config.model_type}, {self.blueprint.parameters:,} parameters{changed})"
