"""The fields of tokenizer_config.json and special_tokens_map.json: what each holds, and what becomes of it here.

The loader asks for a field only through `TokenizerConfig`, which knows this table alone; docs/tokenizer-files.md is checked
against it. So no field is read that is not named here, and none is promised that is not read.

honoured     it counts, whatever else is in the folder
superseded   it counts where there is no tokenizer.json, which says the same itself, as with the reference
harmless     it changes no id and no text
refused      it asks for something that would change ids, and that there is not
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import read_regular

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NAMED_TOKEN_FIELDS = ("extra_special_tokens", "model_specific_special_tokens")  # names to tokens, as Gemma 3 has them
NO_LIMIT = 10**30  # what the field writes for "no limit"


def read_object(path: Path) -> dict[str, Any]:
    r"""The file's content. JSON can spell half a character, `"\ud800"`, which no text and no token can hold."""
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{path}: holds a lone surrogate, {error.object[error.start]!r}, which is no character. Fetch it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__} where an object belongs. Fetch it again.")
    return value


Use = Literal["honoured", "superseded", "harmless", "refused"]
CLEAN_UP_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"

IS_RIGHT: Mapping[
    str, Callable[[Any], bool]
] = {  # what a value is called, and whether it is one; null is as no field at all
    "token": lambda value: isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str)),
    "list": lambda value: isinstance(value, list),
    "list of texts": lambda value: isinstance(value, list) and all(isinstance(entry, str) for entry in value),
    "list or object": lambda value: isinstance(value, (list, dict)),
    "object": lambda value: isinstance(value, dict),
    "flag": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "count": lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100_000,
    "side": lambda value: value in ("left", "right"),
    "text": lambda value: isinstance(value, str),
    "anything": lambda value: True,
}
VALUE_WORDS = {"side": "neither 'left' nor 'right'", "flag": "neither true nor false", "count": "no number of tokens"}


@dataclass(frozen=True)
class ConfigField:
    value: str  # a key of IS_RIGHT
    use: Use
    meaning: str


def _fields(use: Use, value: str, names: str, meaning: str) -> dict[str, ConfigField]:
    return {name: ConfigField(value, use, meaning) for name in names.split()}


FIELDS: Mapping[str, ConfigField] = {
    # tokens
    **_fields("honoured", "token", " ".join(SPECIAL_TOKEN_NAMES), "the tokens with a role"),
    **_fields("honoured", "list or object", "extra_special_tokens", "more special tokens; in an object, with names"),
    **_fields("honoured", "list", "additional_special_tokens", "the older name of that list"),
    **_fields("honoured", "object", "model_specific_special_tokens", "special tokens with names of the model's own"),
    **_fields("honoured", "object", "added_tokens_decoder", "tokens added after training, by id, with their flags"),
    **_fields("honoured", "flag", "split_special_tokens", "read special tokens in a text as plain text"),
    # templates
    **_fields("honoured", "anything", "chat_template", "the chat template, or several with names"),
    **_fields("honoured", "list of texts", "chat_control_tokens", "added tokens that no message may spell"),
    # batches
    **_fields("honoured", "side", "padding_side", "where short rows are filled"),
    **_fields("honoured", "side", "truncation_side", "where long rows are cut"),
    **_fields("honoured", "number", "model_max_length max_len", "the length that truncation leaves"),
    **_fields("honoured", "list of texts", "model_input_names", "which columns a batch has"),
    # how a text is read
    **_fields("honoured", "text", "tokenizer_class", "what the class does by itself"),
    **_fields("honoured", "flag", "add_prefix_space", "put a space before a text (by classes that know it)"),
    **_fields("honoured", "flag", "legacy", "Llama: also put one after special tokens"),
    **_fields("honoured", "flag", "do_lower_case tokenize_chinese_chars strip_accents", "BERT: what happens to letters"),
    **_fields("superseded", "flag", "add_bos_token add_eos_token", "tokens around each text"),
    **_fields("superseded", "flag", "trim_offsets", "RoBERTa: offsets without spaces"),
    **_fields("superseded", "count", "extra_ids", "T5: how many sentinels"),
    **_fields("superseded", "count", "offset", "PEGASUS: how many ids come before the file's, 103"),
    **_fields("superseded", "flag", "keep_accents", "ALBERT: letters with their accents"),
    **_fields("superseded", "flag", "split_by_punct", "DeBERTa: words end at punctuation"),
    **_fields("honoured", "text", "src_lang tgt_lang", "translators: the languages of texts and of targets"),
    **_fields("honoured", "flag", "legacy_behaviour", "NLLB: a text's language after its end token"),
    **_fields("superseded", "text", "language_codes", "M2M-100: which languages there are, m2m100 or wmt21"),
    # how a text is written
    **_fields("honoured", "flag", "clean_up_tokenization_spaces", "repair English spacing where words were joined"),
    **_fields("honoured", "flag", CLEAN_UP_BPE, "even where the vocabulary spells its spaces"),
    # nothing to do
    **_fields(
        "harmless",
        "anything",
        "name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file auto_map processor_class backend "
        "is_local local_files_only files_loaded verbose init_inputs tokenizer_type use_fast from_slow device_map "
        "feature_extractor_type image_processor_type",
        "how the files came about",
    ),
    **_fields(
        "harmless", "anything", "errors sp_model_kwargs unk_id never_split do_basic_tokenize", "for classes in Python"
    ),
    **_fields(
        "harmless",
        "anything",
        "max_length stride truncation_strategy pad_to_multiple_of pad_token_type_id padding truncation",
        "settings of a call, given with the call here",
    ),
    **_fields(
        "harmless",
        "anything",
        "add_dummy_prefix_space remove_space wordpieces_prefix clean_text sp_model_file",
        "in tokenizer.json, without which these classes are refused",
    ),
    **_fields(
        "harmless",
        "anything",
        "use_default_system_prompt grounded_generation_template tool_use_template response_template response_schema",
        "chat of former days, and the reading of answers",
    ),
    **_fields("harmless", "anything", "return_token_type_ids add_eos_to_text image_seq_length spaces_between_special_tokens",
              "for other code"),
    # impossible
    **_fields("refused", "flag", "fix_mistral_regex", "a corrected pattern: fetch the tokenizer.json of a newer revision"),
    **_fields("refused", "text", "word_tokenizer_type", "Japanese words found by another program: use another model"),
}  # fmt: skip
ALLOWED = {"word_tokenizer_type": ("basic", "whitespace")}  # values of refused fields that ask for nothing


class TokenizerConfig(dict[str, Any]):
    """A tokenizer_config.json, every known field of its type; what the loader may ask for is in the table."""

    @classmethod
    def read(cls, path: Path) -> TokenizerConfig:
        """From a file that may be missing."""
        config = cls(read_object(path) if path.exists() else {})
        for name, value in config.items():
            check_field(name, value, path)
        return config

    def get(self, name: str, default: Any = None) -> Any:
        assert FIELDS[name].use in ("honoured", "superseded"), name
        value = super().get(name)
        return default if value is None else value


def check_field(name: str, value: Any, path: Path) -> None:
    """Raise for a value of another type than its field's, and for what cannot be had."""
    field = FIELDS.get(name)
    if field is None or value is None:
        return
    if field.value == "token" and not IS_RIGHT["token"](value):
        raise CheckpointError(f"{path}: {name!r} holds {value!r}, which is no token. Fetch it again.")
    if not IS_RIGHT[field.value](value):
        words = VALUE_WORDS.get(field.value, f"no {field.value}")
        raise CheckpointError(f"{path}: {name!r} is {value!r}, which is {words}. Fetch it again.")
    if field.use == "refused" and value and value not in ALLOWED.get(name, ()):
        what, advice = field.meaning.split(": ")
        raise CheckpointError(f"{path}: {name!r} is {value!r}, which asks for {what}. {advice.capitalize()}.")
