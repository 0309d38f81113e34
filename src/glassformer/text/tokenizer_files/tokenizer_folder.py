"""The files of a tokenizer's folder: tokenizer.json or an older vocabulary, and what the small files beside it add.

tokenizer_config.json     special tokens, limits, and in older checkpoints the chat template
config.json               the model's type, which says the rest where tokenizer_config.json names no class
special_tokens_map.json   special tokens, in older checkpoints still
added_tokens.json         tokens put in after training, and their ids, in older checkpoints still
chat_template.jinja/.json the chat template, in newer ones
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular
from glassformer.text.languages import LanguageTokens
from glassformer.text.tokenizer_files import legacy_vocabulary, sentencepiece, tiktoken
from glassformer.text.tokenizer_files.class_pipelines import set_class_pipeline
from glassformer.text.tokenizer_files.config_fields import (
    CLEAN_UP_BPE,
    NAMED_TOKEN_FIELDS,
    NO_LIMIT,
    SPECIAL_TOKEN_NAMES,
    TokenizerConfig,
    read_object,
)
from glassformer.text.tokenizer_files.legacy_vocabulary import class_for_files
from glassformer.text.tokenizer_files.tokenizer_classes import TokenizerClass, class_for_config
from glassformer.text.tokenizers_errors import LibraryErrors, unknown_merge

CHECKED_SIZE = 1 << 20  # bytes of a tokenizer.json whose merges are checked; of a larger one, only where a prefix is set
MAY_HAVE_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]|\\u00[4-7]')  # or a letter escaped so as to hide it


def read_tokenizer_folder(folder: Path) -> dict[str, Any]:
    """Everything that a `Tokenizer` is made of."""
    path = folder / "tokenizer_config.json"
    config, model = TokenizerConfig.read(path), _json(folder / "config.json")
    ready = _read_tokenizer_json(folder / "tokenizer.json") if (folder / "tokenizer.json").exists() else None
    kind = class_for_files(folder, config, model) if ready is None else class_for_config(config, model)
    if ready is not None:
        set_class_pipeline(ready, kind, config)
    # older checkpoints name their special tokens in a file of their own, which then has the last word
    token_map = (
        TokenizerConfig.read(folder / "special_tokens_map.json") if config.get("added_tokens_decoder") is None else {}
    )
    pieces = None
    if ready is None and kind.files in ("pieces", "source.spm", "vocab.json and pieces"):
        unknown = config.get("unk_token", kind.special.get("unk_token"))
        pieces = legacy_vocabulary.read_pieces(folder, kind, unknown if isinstance(unknown, str) else None)
    added = _read_added_tokens_decoder(config, path)
    ranked = _read_ranked(folder, model, added) if ready is None and kind.files == "ranks" else None
    defaults = {**(pieces.special if pieces and not kind.special else {}), **_default_special_tokens(kind, ready or ranked)}
    tokens: dict[str, Any] = {**defaults, **config, **token_map}
    tokens = {name: tokens[name] for name in SPECIAL_TOKEN_NAMES if tokens.get(name) is not None}
    tokens.update(_named_tokens(config, token_map))
    special = {name: _special_token(token, name, path) for name, token in tokens.items()}
    additional = [_special_token(token, "additional_special_tokens", path) for token in _additional(config, token_map)]
    contents = {name: token.content for name, token in special.items()}
    piece_tokens: list[tokenizers.AddedToken] = []
    if pieces:
        backend, piece_tokens = sentencepiece.build(pieces, kind, config, contents)
    else:
        backend = ready or ranked or legacy_vocabulary.build(folder, kind, config, contents.get("unk_token"))
    if config.get("added_tokens_decoder") is None:
        special_contents = {*contents.values(), *(token.content for token in additional)}
        added |= _read_added_tokens_json(folder / "added_tokens.json", special_contents)
    with LibraryErrors(f"{folder}: its added tokens do not fit ({{}}). Fetch them again."):
        known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *added.values())}
        new = [
            token for token in (*special.values(), *additional) if token.content not in known
        ]  # the others stay as they are
        backend.add_tokens([*added.values(), *new, *piece_tokens])
        _set_special(backend, contents.values())
        if ready is None:
            legacy_vocabulary.set_post_processor(backend, kind, config, contents)
    limit = config.get("model_max_length", config.get("max_len")) or NO_LIMIT
    if not limit > 0:
        raise CheckpointError(f"{path}: 'model_max_length' is {limit!r}, which is no length. Fetch it again.")
    backend.encode_special_tokens = config.get("split_special_tokens", False)
    direction = (backend.padding or {}).get("direction", _default_padding_side(kind, backend))
    languages = _languages(backend, kind, config, contents.get("eos_token"), path)
    return {
        "backend": backend,
        "languages": languages,
        "special": contents,
        "additional": [token.content for token in additional or piece_tokens],
        "template": _read_chat_template(folder, config),
        "padding_side": config.get("padding_side", direction),
        "truncation_side": config.get("truncation_side", (backend.truncation or {}).get("direction", "right")),
        "token_types": "token_type_ids" in config.get("model_input_names", ["token_type_ids"] if kind.token_types else []),
        "model_max_length": int(limit) if limit < NO_LIMIT else NO_LIMIT,
        "clean_up": config.get("clean_up_tokenization_spaces", False),
        "clean_up_bpe": config.get(CLEAN_UP_BPE, False),
        "control_tokens": config.get("chat_control_tokens"),
        "source": config,
    }


def _languages(
    backend: tokenizers.Tokenizer, kind: TokenizerClass, config: TokenizerConfig, end: str | None, path: Path
) -> LanguageTokens | None:
    """The tokens of languages, where the class has such; the source's are put around texts."""
    if kind.languages is None or end is None:
        return None
    added = (token.content for _, token in sorted(backend.get_added_tokens_decoder().items()))
    tokens = {found[1]: token for token in added if (found := re.fullmatch(kind.languages.token, token))}
    source, target = config.get("src_lang"), config.get("tgt_lang")
    for name, code in (("src_lang", source), ("tgt_lang", target)):
        if code is not None and code not in tokens:
            raise CheckpointError(f"{path}: {name!r} is {code!r}, a language without a token. Fetch it again.")
    if not tokens:
        return None
    source = source or (kind.languages.default if kind.languages.default in tokens else next(iter(tokens)))
    before = kind.languages.before and not config.get("legacy_behaviour", False)
    languages = LanguageTokens(tokens, before, end, source, target)
    languages.set_around(backend, source)
    return languages


def _set_special(backend: tokenizers.Tokenizer, contents: Collection[str]) -> None:
    """A token that has a role is special, whatever a file says of it: so decoding can leave it out."""
    changed = [
        token for token in backend.get_added_tokens_decoder().values() if not token.special and token.content in contents
    ]
    for token in changed:
        token.special = True
    backend.add_special_tokens(changed)


def _named_tokens(config: Mapping[str, Any], token_map: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens that this model alone has, by its own names for them: `image_token` and the like."""
    token_fields = [
        {field: value for field, value in fields.items() if field.endswith("_token") and field not in SPECIAL_TOKEN_NAMES}
        for fields in (config, token_map)
    ]
    # the order decides the ids of those that tokenizer.json lacks: the field adds objects before texts, then the mappings
    named: dict[str, Any] = {}
    for form in (dict, str):
        named.update({field: value for tokens in token_fields for field, value in tokens.items() if isinstance(value, form)})
    for fields in (config, token_map):
        for field in NAMED_TOKEN_FIELDS:
            tokens = fields.get(field)
            if isinstance(tokens, dict):
                named.update(tokens)
    return named


def _additional(config: Mapping[str, Any], token_map: Mapping[str, Any]) -> list[Any]:
    """The special tokens without a name, under the field's newer or older name."""
    tokens = _token_list(config, "extra_special_tokens") or _token_list(config, "additional_special_tokens")
    tokens = tokens + [token for token in _token_list(token_map, "extra_special_tokens") if token not in tokens]
    return tokens or _token_list(token_map, "additional_special_tokens")


def _token_list(fields: Mapping[str, Any], field: str) -> list[Any]:
    tokens = fields.get(field)
    return tokens if isinstance(tokens, list) else []


def _read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    raw = read_regular(path)
    with LibraryErrors(f"{path}: not a tokenizer file ({{}}). Fetch it again."):
        if len(raw) < CHECKED_SIZE or MAY_HAVE_PREFIX.search(raw):
            _check_merges(json.loads(raw), path)
        backend = tokenizers.Tokenizer.from_buffer(raw)
        if backend.post_processor is not None:
            _check_post_processor(json.loads(backend.post_processor.__getstate__()), path)
        return backend


def _check_post_processor(content: dict[str, Any], path: Path) -> None:
    """Refuse a template that names what there is not: the library notices at the first text, and dies of it."""
    for inner in content.get("processors") or ():
        _check_post_processor(inner, path)
    special = content.get("special_tokens") if content["type"] == "TemplateProcessing" else None
    if special is None:
        return
    for name, sequences in (("single", "A"), ("pair", "AB")):
        for piece in content[name]:
            sequence, token = piece.get("Sequence"), piece.get("SpecialToken")
            if (sequence and sequence["id"] not in sequences) or (token and token["id"] not in special):
                what = f"sequence {sequence['id']}" if sequence else f"the token {token['id']!r}"
                raise CheckpointError(
                    f"{path}: its template for {name} texts names {what}, which is not there. Fetch it again."
                )


def _check_merges(content: Any, path: Path) -> None:
    """Refuse merges that do not fit their own prefix or vocabulary: the library may die of them, with a trace on stderr."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(merges := model.get("merges"), list):
        return
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    prefix, vocabulary = model.get("continuing_subword_prefix") or "", model.get("vocab")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            return  # which the library notices
        if isinstance(prefix, str) and not pair[1].startswith(prefix):
            raise CheckpointError(f"{path}: its merge {pair!r} lacks the prefix {prefix!r}. Fetch it again.")
    if isinstance(prefix, str) and isinstance(vocabulary, dict):
        joined = ((left, right.removeprefix(prefix)) for left, right in pairs)
        if (missing := unknown_merge(joined, vocabulary)) is not None:
            raise CheckpointError(f"{path}: its merges make {missing!r}, which its vocabulary lacks. Fetch it again.")


def _default_padding_side(kind: TokenizerClass, backend: tokenizers.Tokenizer) -> str:
    """Where a batch is padded if no file says; a byte-level vocabulary is not SentencePiece's, whatever its class."""
    is_another_kind = kind.files == "pieces" and isinstance(backend.decoder, decoders.ByteLevel)
    return "right" if is_another_kind else kind.padding_side


def _default_special_tokens(kind: TokenizerClass, ready: tokenizers.Tokenizer | None) -> dict[str, str]:
    """The special tokens where no file names them: those of the tokenizer's kind, if a tokenizer.json has them."""
    if ready is None:
        return dict(kind.special)
    padding = {"pad_token": ready.padding["pad_token"]} if ready.padding else {}
    return {name: token for name, token in {**padding, **kind.special}.items() if ready.token_to_id(token) is not None}


def _json(path: Path) -> dict[str, Any]:
    """A small file that may be missing."""
    return read_object(path) if path.exists() else {}


def _read_token(entry: Any, field: str, path: Path) -> tokenizers.AddedToken:
    """A token is written as a string, or as an object with its content and flags."""
    entry = {"content": entry, "special": True} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise CheckpointError(f"{path}: {field!r} holds {entry!r}, which is no token. Fetch it again.")
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(entry["content"], **{flag: bool(entry[flag]) for flag in flags if flag in entry})


def _special_token(entry: Any, field: str, path: Path) -> tokenizers.AddedToken:
    """A token with a role is special, whether or not its entry says so."""
    return _read_token({**entry, "special": True} if isinstance(entry, dict) else entry, field, path)


def _read_added_tokens_decoder(config: Mapping[str, Any], path: Path) -> dict[int, tokenizers.AddedToken]:
    """The tokens that the config adds to tokenizer.json, in the order of their ids."""
    tokens = config.get("added_tokens_decoder", {})
    if not all(token_id.isdecimal() for token_id in tokens):
        raise CheckpointError(f"{path}: 'added_tokens_decoder' does not map ids to tokens. Fetch it again.")
    return {
        int(token_id): _read_token(tokens[token_id], "added_tokens_decoder", path) for token_id in sorted(tokens, key=int)
    }


def _read_added_tokens_json(path: Path, special: Set[str]) -> dict[int, tokenizers.AddedToken]:
    """The tokens of an added_tokens.json, in the order of their ids."""
    ids = _json(path)
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in ids.values()):
        raise CheckpointError(f"{path}: does not map tokens to ids. Fetch it again.")
    return {
        ids[token]: tokenizers.AddedToken(token, normalized=token not in special, special=token in special)
        for token in sorted(ids, key=ids.__getitem__)
    }


def _read_ranked(folder: Path, model: Mapping[str, Any], added: Mapping[int, tokenizers.AddedToken]) -> tokenizers.Tokenizer:
    """The tokenizer of a folder with tiktoken's ranks."""
    path = tiktoken.ranks_file(folder)
    assert path is not None
    ranks = tiktoken.read_ranks(path)
    contents = {token_id: token.content for token_id, token in added.items()}
    return tiktoken.build_llama3(path, ranks, tiktoken.special_tokens_beside(path, ranks, contents, model))


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template: a file of its own in newer checkpoints, an entry of the config in older ones."""
    if (path := folder / "chat_template.jinja").exists():
        try:
            return read_regular(path).decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: not UTF-8 text ({error}). Fetch it again.") from error
    template = _json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    try:
        templates = {str(entry["name"]): entry["template"] for entry in template} if isinstance(template, list) else template
    except (TypeError, KeyError):
        templates = template
    sources = templates.values() if isinstance(templates, dict) else [templates]
    if templates is not None and not all(isinstance(source, str) for source in sources):
        raise CheckpointError(f"{folder}: its chat template is neither a text nor a list of named ones. Fetch it again.")
    return templates
