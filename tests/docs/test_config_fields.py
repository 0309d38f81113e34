"""docs/config-fields.md: its tables are the code's, its messages are provoked, and no field of a real config is on none.

A table that has fallen behind the code is printed as it should be, to be pasted between its two marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import groupby
from typing import Any

import pytest
import transformers

from glassformer.blueprints import model_types, module_for, nomic_bert, read_config
from glassformer.blueprints.bounds import BOUNDS
from glassformer.blueprints.other_fields import HARMLESS, REFUSED
from glassformer.decoding.settings import HARMLESS as HARMLESS_SETTINGS
from glassformer.decoding.settings import SETTINGS, UNSUPPORTED
from glassformer.ground.errors import ConfigError
from tests.compat.test_weight_names import CONFIGS
from tests.parity import reference
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "config-fields.md"
TEXT = PAGE.read_text("utf-8")
FAMILIES = [family for family in model_types() if family != "scratch"]  # whose files are not config.json
ROPE = {"rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor"}
MODERNBERT = {*ROPE, "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"}
PREPARED: Mapping[str, set[str]] = {  # by family: what its config reads and keeps under another name
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "granite", "smollm3", "gemma", "starcoder2", "mixtral"), ROPE
    ),
    **{family: {*ROPE, "sliding_window_pattern"} for family in ("olmo3", "gemma2", "cohere2", "gpt_oss", "exaone4")},
    **{family: {*ROPE, "num_local_experts"} for family in ("qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "ernie4_5_moe")},
    "llama4_text": ROPE,
    "minimax_m2": {*ROPE, "num_local_experts", "rotary_dim"},
    **dict.fromkeys(("seed_oss", "ernie4_5", "hunyuan_v1_dense", "arcee", "helium", "glm4", "cohere"), ROPE),
    **dict.fromkeys(("stablelm", "phi", "nemotron", "olmo", "ministral3", "apertus"), ROPE),
    "qwen3_5_text": {*ROPE, "full_attention_interval"},
    "olmo_hybrid": ROPE,
    **{f: {*ROPE, "full_attention_interval", "num_local_experts"} for f in ("qwen3_5_moe_text", "qwen3_next")},
    "nemotron_h": {"hybrid_override_pattern"},
    **dict.fromkeys(("granitemoe", "granitemoehybrid", "bamba", "falcon_h1"), ROPE),
    **{family: {*ROPE, "tie_embedding", "block_ff_dim", "full_attn_idxs"} for family in ("lfm2", "lfm2_moe")},
    "mpt": {"resid_pdrop", "norm_type"},
    "bloom": {"n_embed", "n_head"},
    "falcon": {*ROPE, "n_embed", "n_layer", "n_head"},
    "gpt_bigcode": {"num_key_value_heads"},
    **{family: {*ROPE, "num_local_experts", "qk_head_dim"} for family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")},
    "gpt_neox": {*ROPE, "rotary_pct", "rotary_emb_base"},
    "switch_transformers": {"num_experts_per_tok"},
    "t5gemma": {*ROPE, "sliding_window_pattern", "decoder"},
    "t5gemma_encoder": {*ROPE, "sliding_window_pattern", "encoder", "decoder"},
    "gemma3_text": {*ROPE, "rope_local_base_freq", "sliding_window_pattern"},
    "embedding_gemma": {*ROPE, "rope_local_base_freq", "sliding_window_pattern"},
    "eurobert": ROPE,
    "gemma3n_text": {*ROPE, "rope_local_base_freq", "sliding_window_pattern"},
    "gemma4_text": {*ROPE, "rope_local_base_freq", "sliding_window_pattern", "per_layer_config"},
    "modernbert": MODERNBERT,
    "modernbert-decoder": {*MODERNBERT, "sliding_window"},
    "nomic_bert": {*ROPE, "head_dim", *nomic_bert.PUBLISHED},
    "gte": ROPE,
    "kimi_linear": {*ROPE, "linear_attn_config", "num_local_experts", "qk_head_dim", "mlp_layer_types"},
    "deberta": {"embedding_size", "pooler_hidden_size", "attention_head_size"},
    "deberta-v2": {"embedding_size", "pooler_hidden_size", "attention_head_size"},
    "bart": {"force_bos_token_to_be_generated"},
    **{
        family: {"force_bos_token_to_be_generated"}
        for family in ("pegasus", "mbart", "m2m_100", "blenderbot", "blenderbot-small", "led")
    },
    "marian": {"force_bos_token_to_be_generated", "decoder_vocab_size"},
}
ALWAYS_PREPARED = {"model_type", "label2id", "torch_dtype"}


def between(mark: str) -> str:
    (text,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", TEXT, re.S)
    return str(text).strip()


def codes(names: Iterable[Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def honoured(family: str) -> set[str]:
    """The fields that a family reads, under the names that its files have."""
    cls = module_for(family).Config
    own = {cls.own_name(f.name) for f in fields(cls)} - {"extra_fields", "rope", "local_rope"}
    return own | cls.fixed_fields.keys() | ALWAYS_PREPARED | PREPARED.get(family, set())


def honoured_table() -> str:
    common = set.intersection(*(honoured(family) for family in FAMILIES))
    lines = ["| family | fields |", "|---|---|", f"| all | {codes(sorted(common))} |"]
    lines += [f"| {family} | {codes(sorted(honoured(family) - common))} |" for family in FAMILIES]
    return "\n".join(lines)


def refused_table() -> str:
    lines = ["| field | changes nothing | otherwise |", "|---|---|---|"]
    for name, refusal in REFUSED.items():
        where = f" ({', '.join(refusal.families)})" if refusal.families else ""
        lines.append(f"| `{name}`{where} | {codes(map(repr, refusal.neutral))} | {refusal.advice} |")
    return "\n".join(lines)


def reasons_table(reasons: Mapping[str, str]) -> str:
    lines = ["| why | fields |", "|---|---|"]
    for why, group in groupby(sorted(reasons, key=lambda name: (reasons[name], name)), key=reasons.__getitem__):
        lines.append(f"| {why} | {codes(group)} |")
    return "\n".join(lines)


@pytest.mark.parametrize(("mark", "table"), [
    ("honoured", honoured_table), ("refused", refused_table), ("harmless", lambda: reasons_table(HARMLESS)),
    ("harmless settings", lambda: reasons_table(HARMLESS_SETTINGS)),
])  # fmt: skip
def test_tables_are_the_codes(mark: str, table: Any) -> None:
    assert between(mark) == table(), f"between the marks {mark!r} the page should have:\n\n{table()}\n"


def known(family: str) -> set[str]:
    settings = {*SETTINGS, *UNSUPPORTED, *HARMLESS_SETTINGS}  # older files have them in the config
    return honoured(family) | HARMLESS.keys() | REFUSED.keys() | settings


@pytest.mark.parametrize("family", reference.FAMILIES)
def test_every_field_of_the_references_config_is_known(family: str) -> None:
    config = reference.config(family)
    assert config.to_dict().keys() - known(family) - config.attribute_map.keys() == set()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_of_a_real_config_is_known(name: str) -> None:
    aliases = {"num_hidden_layers"}  # which BART has beside its own two names
    assert CONFIGS[name].keys() - known(CONFIGS[name]["model_type"]) - aliases == set()


def test_every_setting_of_the_reference_is_known() -> None:
    names = transformers.GenerationConfig().to_dict().keys()
    assert names - SETTINGS.keys() - UNSUPPORTED.keys() == HARMLESS_SETTINGS.keys() - {"return_legacy_cache"}


def test_no_field_is_in_two_tables() -> None:
    assert not REFUSED.keys() & HARMLESS.keys()
    assert not HARMLESS_SETTINGS.keys() & {*SETTINGS, *UNSUPPORTED}


OTHER_VALUES: dict[str, Any] = {"position_embedding_type": "relative_key", "normalize_embedding": False}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_what_changes_nothing(name: str) -> None:
    refusal = REFUSED[name]
    family = (refusal.families or ("llama",))[0]
    raw = {"model_type": family, **reference.TINY[family]}
    for value in refusal.neutral:
        assert read_config({**raw, name: value}).model_type == family
    with pytest.raises(ConfigError, match=re.escape(f"config field {name!r} is ")) as caught:
        read_config({**raw, name: OTHER_VALUES.get(name, {"bits": 4} if "config" in name else True)})
    assert str(caught.value).endswith(refusal.advice)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_kept(name: str) -> None:
    raw = {"model_type": "llama", **reference.TINY["llama"], name: None}
    assert name in {*read_config(raw).extra_fields, *BOUNDS}
