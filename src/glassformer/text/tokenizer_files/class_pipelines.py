"""What a tokenizer's class does to a text before and after its model, whatever file the vocabulary comes from.

The field's classes set this up themselves, even where a tokenizer.json says otherwise: that file may be older than the class
(Llama 2's puts a space before every text, its class only where there is none) or contradict a flag of tokenizer_config.json
(`add_prefix_space`, `do_lower_case`). So a folder is read alike with and without its tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece

from glassformer.text.token_bytes import SPACE_MARKER
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from glassformer.text.tokenizer_files.tokenizer_classes import CODE_LLAMA, GEMMA, LLAMA, MBART, TokenizerClass


def set_class_pipeline(backend: Tokenizer, kind: TokenizerClass, config: Mapping[str, Any]) -> None:
    """Let the class have its way with a backend; one whose model is of another kind stays as it is."""
    byte_level = isinstance(backend.decoder, decoders.ByteLevel)
    if isinstance(backend.model, BPE) and not byte_level and kind in (LLAMA, CODE_LLAMA):
        set_llama_pipeline(backend, kind, config)
    elif isinstance(backend.model, BPE) and not byte_level and kind is GEMMA:
        set_gemma_pipeline(backend)
    elif isinstance(backend.model, Unigram) and kind is MBART:  # whose class knows no table
        backend.normalizer = None
    elif isinstance(backend.model, WordPiece) and kind.files == "vocab.txt":
        set_bert_pipeline(backend, config)
    elif isinstance(backend.model, BPE) and byte_level and kind.files == "vocab.json":
        set_gpt2_pipeline(backend, config)
    elif isinstance(backend.model, BPE) and byte_level and kind.split_type:
        set_split_pipeline(backend, kind.split_type, flag(config, "add_prefix_space", False))
    elif byte_level and kind.sets_prefix_space:
        _set_prefix_space(backend, flag(config, "add_prefix_space", False))


def set_llama_pipeline(backend: Tokenizer, kind: TokenizerClass, config: Mapping[str, Any]) -> None:
    """A space before a text that begins with none; with `legacy`, also after each special token."""
    add_prefix_space = flag(config, "add_prefix_space", True)
    legacy = kind is LLAMA and flag(config, "legacy", False)
    scheme = ("always" if legacy else "first") if add_prefix_space else "never"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARKER, prepend_scheme=scheme, split=False)
    backend.decoder = piece_decoder(strip_prefix_space=add_prefix_space or kind is CODE_LLAMA)


def set_gemma_pipeline(backend: Tokenizer) -> None:
    """Spaces are pieces, and none is added."""
    backend.normalizer = normalizers.Replace(" ", SPACE_MARKER)
    backend.pre_tokenizer = None
    backend.decoder = piece_decoder(strip_prefix_space=False)


def set_split_pipeline(backend: Tokenizer, split_type: str, add_prefix_space: bool) -> None:
    """Qwen's way: accents composed, one pattern, bytes."""
    split = PRE_TOKENIZER_TYPES[split_type]
    backend.normalizer = normalizers.NFC() if split.nfc else None
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()


def piece_decoder(strip_prefix_space: bool) -> Any:
    """Spaces for `▁`, characters for bytes, and away with the space in front where it is none of the text's own."""
    steps = [decoders.Replace(SPACE_MARKER, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip_prefix_space else steps)


def set_bert_pipeline(backend: Tokenizer, config: Mapping[str, Any]) -> None:
    accents = config.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(config, "tokenize_chinese_chars", True),
        strip_accents=accents if accents is None else bool(accents),
        lowercase=flag(config, "do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")


def albert_normalizers(config: Mapping[str, Any]) -> list[Any]:
    """What ALBERT's class does to letters before its table's turn: straight quotes, no accents, lower case."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not flag(config, "keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if flag(config, "do_lower_case", True) else steps


def set_deberta_pipeline(backend: Tokenizer, config: Mapping[str, Any]) -> None:
    """White space becomes single spaces, which begin words; the file's own table is not used."""
    steps: list[Any] = [normalizers.Lowercase()] if flag(config, "do_lower_case", False) else []
    steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(False, True)]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if flag(config, "add_prefix_space", True) else "first"
    metaspace = pre_tokenizers.Metaspace(SPACE_MARKER, prepend_scheme=scheme)
    punctuation = [pre_tokenizers.Punctuation("isolated")] if flag(config, "split_by_punct", False) else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*punctuation, metaspace])
    backend.decoder = decoders.Metaspace(SPACE_MARKER, prepend_scheme=scheme)


def set_gpt2_pipeline(backend: Tokenizer, config: Mapping[str, Any]) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=flag(config, "add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()


def _set_prefix_space(backend: Tokenizer, add_prefix_space: bool) -> None:
    """Change nothing of how a text is split but whether a space is put before it."""
    before = backend.pre_tokenizer
    state = {} if before is None else json.loads(before.__getstate__())
    for step in [state, *state.get("pretokenizers", [])]:
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = add_prefix_space
    if before is not None:
        before.__setstate__(json.dumps(state).encode())
        backend.pre_tokenizer = before


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    return default if value is None else bool(value)
