"""How byte-pair vocabularies split a text before anything is merged, by the names that GGUF files give to it.

`tokenizer.ggml.pre` names the tokenizer that a model was trained with; llama.cpp's loader has the list. A type is a row of
patterns: each cuts the parts that the one before it left into what matches and what lies between. Where llama.cpp bends a
pattern to fit its regex engine, and its source names the original, the original stands here: so the ids are those of the
model's own tokenizer.json. The same holds for NFC, which that file applies and llama.cpp leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN35 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
JAIS2 = LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + (
    "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4)) + r"\s{1,2}(?!\S)|\s{1}"
)
# a word in capitals ends where one in small letters begins
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
YOUTU = TEKKEN.replace(f"{LOWER}+|", f"{LOWER}+{CONTRACTIONS}?|").replace(f"{LOWER}*|", f"{LOWER}*{CONTRACTIONS}?|")
GPT4O = YOUTU.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
KIMI_K2 = r"\p{Han}+|" + GPT4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED_CODER = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
DEEPSEEK_LETTERS = (  # those of the scripts that have capitals
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
AFMOE_CJK = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
YOUTU_CJK = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
DIGIT, DIGITS, UP_TO_3_DIGITS = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
THOUSANDS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # groups of three, counted from the right
LINES = r"[^\n]+|\n+"


@dataclass(frozen=True)
class PreTokenizerType:
    patterns: tuple[str, ...]
    nfc: bool = False  # the text is normalised to NFC first
    ignore_merges: bool = False  # a part that is a token needs no merges
    add_bos: bool = False  # each text begins with the begin-of-text token, unless the file says otherwise
    add_sep: bool = False  # and the separator stands before the second of two texts
    byte_level: bool = True  # bytes are spelt as printable characters; otherwise the text stays as it is

    def pre_tokenizer(self) -> Any:
        """The library's own, for byte-level vocabularies."""
        *first, last = self.patterns
        steps = [_split(pattern) for pattern in (first if last == GPT2 else self.patterns)]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=last == GPT2))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def _split(pattern: str) -> Any:
    if pattern == DIGIT:
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _named(names: str, *patterns: str, **flags: bool) -> dict[str, PreTokenizerType]:
    return dict.fromkeys(names.split(), PreTokenizerType(patterns, **flags))


PRE_TOKENIZER_TYPES: Mapping[str, PreTokenizerType] = {
    **_named(
        "gpt-2 gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 jais trillion "
        "granite-docling",
        GPT2,
    ),
    **_named("mpt olmo", GPT2, nfc=True),
    **_named("roberta-bpe jina-v1-en jina-v2-code", GPT2, add_sep=True),
    **_named("smollm starcoder refact codeshell exaone minerva-7b mellum2", DIGIT, GPT2),
    **_named("command-r", DIGIT, GPT2, nfc=True),
    **_named("qwen2 deepseek-r1-qwen megrez f2llmv2", QWEN2, nfc=True),
    **_named("stablelm2 kormo hunyuan solar-open grok-2", QWEN2),
    **_named("qwen35", QWEN35, nfc=True),
    **_named(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        LLAMA3, ignore_merges=True, add_bos=True,
    ),
    **_named("smaug-bpe dbrx glm4 chatglm-bpe", LLAMA3),
    **_named("jais-2", JAIS2),
    **_named("tekken", TEKKEN, ignore_merges=True, add_bos=True),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", GPT4O),
    **_named("granite-embed-multi-97m", GPT4O, ignore_merges=True),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O, nfc=True),
    **_named("youtu", YOUTU_CJK, YOUTU, ignore_merges=True),
    **_named("kimi-k2", KIMI_K2),
    **_named(
        "deepseek-llm", r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", rf"\s?[{DEEPSEEK_SIGNS}]+", r"\s+$", DEEPSEEK_CJK, DIGITS
    ),
    **_named("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT),
    **_named("deepseek-v3 hunyuan-dense joyai-llm", UP_TO_3_DIGITS, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3),
    **_named("afmoe", THOUSANDS, AFMOE_CJK, DEEPSEEK3),
    **_named("falcon", r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    **_named("default", r"[\p{P}\$\+<=>\^~\|]+", GPT2, DIGITS, "[0-9][0-9][0-9]"),
    **_named("poro-chat bloom gpt3-finnish", BLOOM),
    **_named("viking", BLOOM, DIGIT),
    **_named(
        "chameleon", "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", DIGIT, r"[\p{P}!-/:-@\[-`{-~]", GPT2,
        add_bos=True,
    ),
    **_named("superbpe", DIGITS, r"(?=(\d{3})+(?!\d))"),
    **_named("bailingmoe bailingmoe2 llada-moe", BAILING),
    **_named("seed-coder", SEED_CODER),
    **_named("exaone-moe", EXAONE_MOE),
    **_named("laguna", LINES, QWEN2),
    **_named("minicpm5", UP_TO_3_DIGITS, QWEN2.replace(r"|\p{N}|", r"|\p{N}+|"), ignore_merges=True),
    **_named("gemma4 granite-embed-multi-311m", LINES, add_bos=True, byte_level=False),
    **_named("sarvam-moe", LINES, byte_level=False),
    **_named("whitespace", r"\S+", byte_level=False),
}  # fmt: skip
