"""The tokenizer's methods for its vocabulary: tokens and their ids, tokens with a role, and adding new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import AddedToken

from glassformer.ground.errors import InputError, InputTypeError, did_you_mean
from glassformer.text.inputs import refuse_lone_surrogates
from glassformer.text.tokenizer_files.config_fields import SPECIAL_TOKEN_NAMES
from glassformer.text.tokenizers_errors import LibraryErrors

ADDITIONAL = ("additional_special_tokens", "extra_special_tokens")  # the older name and the newer one


class VocabularyMixin:
    """What `Tokenizer` inherits; it needs the library's tokenizer and the special tokens."""

    backend: tokenizers.Tokenizer
    _special: dict[str, str]
    _additional: tuple[str, ...]
    _trained: int | None

    @property
    def vocab_size(self) -> int:
        """The trained vocabulary, without added tokens; `len(tokenizer)` counts those too."""
        return self._trained or self.backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens added to the trained vocabulary, special ones among them."""
        return {t.content: i for i, t in sorted(self.backend.get_added_tokens_decoder().items())}

    @property
    def special_added_tokens(self) -> dict[str, int]:
        """The tokens that decoding leaves out with `skip_special_tokens`."""
        return {t.content: i for i, t in sorted(self.backend.get_added_tokens_decoder().items()) if t.special}

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        extra = {"additional_special_tokens": list(self._additional)} if self._additional else {}
        return {**self._special, **extra}

    @property
    def additional_special_tokens(self) -> list[str]:
        return list(self._additional)

    @property
    def extra_special_tokens(self) -> list[str]:
        """The newer name of `additional_special_tokens`."""
        return list(self._additional)

    @property
    def all_special_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self._special.values(), *self._additional]))

    @property
    def all_special_ids(self) -> list[int]:
        return [self._id(token) for token in self.all_special_tokens]

    def get_special_tokens_mask(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for each special token of encoded ids, 0 for the others, as data collators ask."""
        if not already_has_special_tokens or token_ids_1 is not None:
            raise InputError(
                "the mask is that of one text with its special tokens: pass already_has_special_tokens=True, or encode with "
                "return_special_tokens_mask=True."
            )
        special = set(self.all_special_ids)
        return [int(token_id in special) for token_id in token_ids_0]

    def _find_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary; a lone surrogate is in none."""
        try:
            return self.backend.token_to_id(token)
        except UnicodeEncodeError:
            return None

    def _id(self, token: str) -> int:
        token_id = self._find_id(token) if isinstance(token, str) else None
        if token_id is None:
            raise InputError(f"{token!r} is not in the vocabulary.")
        return token_id

    def _token(self, token_id: int) -> str:
        token = self.backend.id_to_token(token_id) if isinstance(token_id, int) and 0 <= token_id < 2**32 else None
        if token is None:
            raise InputError(f"id {token_id} stands for no token; the vocabulary has {len(self)}.")
        return token

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    def __getattr__(self, name: str) -> Any:
        """`eos_token`, `image_token_id` and the like; None when the tokenizer has no token in one of the usual roles."""
        stem = name.removesuffix("_id")
        special: dict[str, str] = self.__dict__.get("_special", {})  # there is none yet while it is being made
        if stem in SPECIAL_TOKEN_NAMES or stem in special:
            token = special.get(stem)
            return token if name == stem or token is None else self._id(token)
        raise AttributeError(f"the tokenizer has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """`pad_token`, `pad_token_id` and the like can be set to any token of the vocabulary, or to None."""
        stem = name.removesuffix("_id")
        is_role = stem in SPECIAL_TOKEN_NAMES or stem in self.__dict__.get("_special", {})
        if not is_role or name in self.__dict__ or hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        token = value if name == stem or value is None else self._token(value)
        if token is not None:
            self._id(token)
        self._special = in_role_order({**self._special, stem: token})

    def add_tokens(self, new_tokens: str | AddedToken | Sequence[str | AddedToken], special_tokens: bool = False) -> int:
        """Add tokens that are matched whole in every text, and return how many were new.

        A model needs a row for each: `model.resize_token_embeddings(len(tokenizer))`. Special ones are left out by
        `decode(…, skip_special_tokens=True)`.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens or [])
        for token in tokens:
            if not isinstance(token, (str, AddedToken)):
                raise InputTypeError(f"a token is a text or an AddedToken, not {type(token).__name__}.")
            refuse_lone_surrogates(token, f"the token {token!r}")
        with LibraryErrors("the tokens cannot be added ({}). Give others."):
            count = (self.backend.add_special_tokens if special_tokens else self.backend.add_tokens)(tokens)
        self.__dict__.pop("_added_ids", None)
        return count

    def add_special_tokens(self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True) -> int:
        """Give tokens a role, adding those that the vocabulary lacks, and say how many those were.

        Args:
            special_tokens_dict: `{"pad_token": "<pad>"}` and the like; `extra_special_tokens` takes a list of tokens
                without a role.
            replace_extra_special_tokens: False keeps those without a role that there were.
        """
        roles = {name: value for name, value in special_tokens_dict.items() if name not in ADDITIONAL}
        additional: Any = next(
            (special_tokens_dict[name] for name in reversed(ADDITIONAL) if special_tokens_dict.get(name)), []
        )
        known_roles = dict.fromkeys((*SPECIAL_TOKEN_NAMES, *self._special))
        for name in roles:
            if name not in known_roles:
                hint, known = did_you_mean(name, known_roles), ", ".join(known_roles)
                raise InputError(f"{name!r} is no role of a token.{hint} Use one of: {known}.")
        if not isinstance(additional, (list, tuple)):
            raise InputTypeError(f"extra_special_tokens is a list of tokens, not {type(additional).__name__}.")
        kept = () if replace_extra_special_tokens else self._additional
        new = [token for token in additional if str(_content(token)) not in kept]
        count = self.add_tokens([*roles.values(), *new], special_tokens=True)
        for name, token in roles.items():
            setattr(self, name, _content(token))
        if new:
            self._additional = (*kept, *(_content(token) for token in new))
        return count


def _content(token: str | AddedToken) -> str:
    return token.content if isinstance(token, AddedToken) else token


def in_role_order(special: Mapping[str, str | None]) -> dict[str, str]:
    """The special tokens that there are: the usual roles in the field's order, then those that this model alone has."""
    names = dict.fromkeys((*SPECIAL_TOKEN_NAMES, *special))
    return {name: token for name in names if (token := special.get(name)) is not None}
