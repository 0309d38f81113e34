"""How GGUF's pre-tokenizers split a text, each held against a slow application of the rule that llama.cpp has for it.

The rules stand here as llama.cpp spells them, for another regex engine than the tokenizers library's. Two of its adaptations
give up what its own engine cannot say: capitals and marks outside ASCII. Those rules are compared on texts without them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.gguf.pre_tokenizer_types import PRE_TOKENIZER_TYPES
from tests.sweeps import examples
from tests.text.test_gguf_byte_level import CONTROL, NORMAL, USER, gguf_fields
from tests.text.texts import SALT, moderate

BYTE, UNKNOWN = 6, 2
Split = Callable[[str], list[str]]

APOSTROPHES = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+APOSTROPHES"
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*APOSTROPHES"
    r"|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = CAPITALS.replace("APOSTROPHES", APOSTROPHES + "?").replace("DIGITS", "{1,3}")
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
HAN = r"\p{Han}"  # as the model's own tokenizer has it; llama.cpp's ranges lack the radicals


def by(*patterns: str) -> Split:
    """Cut by each pattern in turn: what matches is a part, and so is what lies between."""
    compiled = [regex.compile(pattern, regex.V1) for pattern in patterns]

    def split(text: str) -> list[str]:
        parts = [text]
        for pattern in compiled:
            parts = [piece for part in parts for piece in pieces(pattern, part)]
        return parts

    return split


def pieces(pattern: regex.Pattern[str], part: str) -> list[str]:
    cuts = sorted({0, len(part), *(place for match in pattern.finditer(part) for place in match.span())})
    return [part[start:end] for start, end in pairwise(cuts)]


def grouped_digits(kind: Callable[[str], bool], rest: Split) -> Split:
    """Runs of digits in threes from the right, then the rest by its own rule."""

    def split(text: str) -> list[str]:
        parts: list[str] = []
        at = 0
        while at < len(text):
            end = at
            while end < len(text) and kind(text[end]) == kind(text[at]):
                end += 1
            run, at = text[at:end], end
            if not kind(run[0]):
                parts += rest(run)
            else:
                first = len(run) % 3
                parts += [run[:first]] * bool(first) + [run[n : n + 3] for n in range(first, len(run), 3)]
        return parts

    return split


def number(character: str) -> bool:
    return unicodedata.category(character).startswith("N")


RULES: dict[str, Split] = {  # names that share a rule stand together
    "gpt-2 gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 mpt olmo jais "
    "trillion granite-docling jina-v1-en jina-v2-code roberta-bpe": by(GPT2),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": by(r"\p{N}", GPT2),
    "stablelm2 qwen2 hunyuan solar-open deepseek-r1-qwen kormo f2llmv2 megrez grok-2": by(QWEN2),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 "
    "chatglm-bpe": by(LLAMA3),
    "qwen35": by(
        APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "jais-2": by(
        LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
        r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ),
    "deepseek-llm": by(
        r"[\r\n]", r"\s?[[\p{Lu}\p{Ll}\p{Lt}]--[\U0001d400-\U0001d7ff]]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}+",
    ),
    "deepseek-coder": by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "deepseek-v3 hunyuan-dense joyai-llm": by(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3),
    "afmoe": grouped_digits(
        number,
        by(
            "[一-\u9fff㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
            DEEPSEEK3,
        ),
    ),
    "falcon": by(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "default": by(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "poro-chat bloom gpt3-finnish": by(BLOOM),
    "viking": by(BLOOM, r"\p{N}"),
    "tekken": by(CAPITALS.replace("APOSTROPHES", "").replace("DIGITS", "")),
    "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m": by(GPT4O),
    "tiny_aya cohere2moe": by(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O),
    "youtu": by(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
        CAPITALS.replace("APOSTROPHES", APOSTROPHES + "?").replace("DIGITS", ""),
    ),
    "kimi-k2": by(f"[{HAN}]+|" + GPT4O.replace(r"[\p{L}])", rf"[\p{{L}}&&[^{HAN}]])").replace("[\\r\\n/]*", "[\\r\\n]*")),
    "chameleon": by(
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]", GPT2,
    ),
    "superbpe": by(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "bailingmoe bailingmoe2 llada-moe": by(
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+"
    ),
    "seed-coder": by(APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "exaone-moe": by(
        APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        r"|\s+(?!\S)|\s+"
    ),
    "laguna": by(r"[^\n]+|[\n]+", QWEN2),
    "minicpm5": by(r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")),
}  # fmt: skip
ADAPTED = ("tekken", "gpt-4o", "tiny_aya", "youtu", "kimi-k2")  # whose rules here know capitals and marks in ASCII only
MORE = [
    "12345678", " 99", "'S", "n'T", "ABCdefGHi", "a/b\n", "<sentinel:3>", "IMGIMGABZ", "     ", "…", "，", "。", "$", "`",
    "^", "\r", " \r\n", "漢字 かな", "한글", "!!", "(x)", "₂", "Ǆ", "ß", "ª",
]  # fmt: skip


def settled(character: str) -> bool:
    """Whether every version of Unicode has said the same of it for twenty years, so that every engine does."""
    return unicodedata.category(character) == unicodedata.ucd_3_2_0.category(character) != "Cn"


any_text = st.lists(
    st.sampled_from([*SALT, *MORE]) | st.text(st.characters(exclude_categories=["Cs", "Cc"]).filter(settled), max_size=5),
    max_size=8,
).map("".join)


def without_marks_and_capitals(text: str) -> str:
    kinds = {"Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Me"}
    return "".join(c for c in text if c < "\x80" or unicodedata.category(c) not in kinds)


def test_every_pre_tokenizer_has_a_rule() -> None:
    names = [name for group in RULES for name in group.split()]
    assert sorted(names) == sorted(name for name, split in PRE_TOKENIZER_TYPES.items() if split.byte_level)


def assert_split_by_rule(names: str, text: str) -> None:
    name, *others = names.split()
    split = PRE_TOKENIZER_TYPES[name]
    assert {PRE_TOKENIZER_TYPES[other].patterns for other in others} <= {split.patterns}
    if name in ADAPTED:
        text = without_marks_and_capitals(text)
    if name == "tiny_aya":  # engines differ on which signs are word characters, for \b
        text = "".join(c for c in text if c < "\x80" or unicodedata.category(c) in ("Lo", "Nd", "Po", "Ps", "Pe", "Zs"))
    parts = split.pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in parts] == RULES[names](text)


@pytest.mark.parametrize("names", RULES)
@settings(max_examples=examples(12, 50), deadline=None)
@given(text=any_text)
def test_each_pre_tokenizer_splits_text_by_its_rule(names: str, text: str) -> None:
    assert_split_by_rule(names, text)


@pytest.mark.sweep
@pytest.mark.parametrize("names", RULES)
@settings(max_examples=2000, deadline=None)
@given(text=any_text)
def test_each_pre_tokenizer_splits_very_many_texts_by_its_rule(names: str, text: str) -> None:
    assert_split_by_rule(names, text)


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("gpt-2", ["Call", " 1234567", " now"]),
        ("smollm", ["Call", " ", "1", "2", "3", "4", "5", "6", "7", " now"]),
        ("llama-bpe", ["Call", " ", "123", "456", "7", " now"]),
        ("falcon", ["Call", " ", "123", "456", "7", " now"]),
        ("afmoe", ["Call", " ", "1", "234", "567", " now"]),
        ("superbpe", ["Call ", "1", "234", "567", " now"]),
        ("deepseek-llm", ["Call", " ", "1234567", " now"]),
    ],
)
def test_pre_tokenizers_split_digits(pre: str, parts: list[str]) -> None:
    text = "Call 1234567 now"
    assert [text[start:end] for _, (start, end) in PRE_TOKENIZER_TYPES[pre].pre_tokenizer().pre_tokenize_str(text)] == parts


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("tekken", ["école", "École", "'s", " деловой", "Час"]),
        ("gpt-4o", ["école", "École's", " деловой", "Час'S"]),
        ("kimi-k2", ["école", "École's", "漢字", "е\u0301ж", "Ж"]),
    ],
)
def test_capitals_outside_ascii_split_words(pre: str, parts: list[str]) -> None:
    """As the models' own tokenizers do, and as llama.cpp's engine cannot."""
    text = "".join(parts)
    assert [text[start:end] for _, (start, end) in PRE_TOKENIZER_TYPES[pre].pre_tokenizer().pre_tokenize_str(text)] == parts


# BPE over plain characters -------------------------------------------------------------------------------------------

MERGES = ["t h", "th e", "▁ the", "▁ ▁", "▁▁ ▁▁", "\n \n", "a b", "ab c"]


def plain(**changes: object) -> dict[str, object]:
    """Gemma 4's way: spaces are pieces, bytes stand in for what has no piece."""
    spelt = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "t", "h", "e", "a", "b", "c", "\n", "th", "the", "▁the", "▁▁", "▁▁▁▁", "\n\n", "\n\n\n", "ab", "abc"]
    fields = {
        "model": "gemma4",
        "tokens": ["<unk>", "<bos>", "<eos>", *spelt, *words, "<turn>", "      "],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words), CONTROL, USER],
        "merges": MERGES,
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **changes,
    }  # fmt: skip
    return gguf_fields({name: value for name, value in fields.items() if value is not None})


def slow_plain(text: str, vocabulary: dict[str, int]) -> list[str]:
    """llama.cpp's way: lines apart, a run of line breaks whole, the best-ranked pair joined first, bytes for the rest."""
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(MERGES)}
    tokens: list[str] = []
    for line in regex.findall(r"[^\n]+|\n+", text.replace(" ", "▁")):
        parts = [line] if not line.strip("\n") and line in vocabulary else list(line)
        while True:
            joined = [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]
            if not joined:
                break
            _, at = min(joined)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        for part in parts:
            tokens += [part] if part in vocabulary else [f"<0x{byte:02X}>" for byte in part.encode()]
    return tokens


@moderate
@given(
    text=st.lists(st.sampled_from(["the", " ", "  ", "\n", "\n\n\n", "abc", "é", "漢", "<0x41>", "t"]), max_size=9).map(
        "".join
    )
)
def test_gemma4_merges_lines_of_plain_characters(text: str) -> None:
    text = regex.sub(" {6,}", " ", text)  # which is a token that a user defined
    text = regex.sub("\n{4,}", "\n\n\n", text)
    ours = Tokenizer.from_gguf(plain())
    assert ours.tokenize(text) == slow_plain(text, ours.vocab)
    assert ours.decode(ours.encode(text), skip_special_tokens=True) == text


def test_gemma4_special_tokens() -> None:
    ours = Tokenizer.from_gguf(plain(add_bos_token=False))  # which llama.cpp does not believe
    assert ours.convert_ids_to_tokens(ours.encode("the<turn>the      the")) == [
        "<bos>", "the", "<turn>", "the", "▁▁▁▁▁▁", "the",
    ]  # fmt: skip
    assert ours.decode(ours.encode(" the  é")) == "<bos> the  é"


def test_plain_characters_under_the_usual_model() -> None:
    ours = Tokenizer.from_gguf(plain(model="gpt2", pre="sarvam-moe"))
    assert ours.convert_ids_to_tokens(ours.encode("the the")) == ["the", "▁the"]


@pytest.mark.parametrize("lowercase", [None, False, True])
def test_whitespace_merges_inside_words(lowercase: bool | None) -> None:
    fields = {
        "model": "whitespace", "pre": "whitespace", "merges": ["t h", "th e"], "token_type": [CONTROL, *[NORMAL] * 6],
        "tokens": ["<s>", "t", "h", "e", "th", "the", "T"], "bos_token_id": 0, "add_bos_token": True,
    }  # fmt: skip
    if lowercase is not None:
        fields["normalizer.lowercase"] = lowercase
    ours = Tokenizer.from_gguf(gguf_fields(fields))
    first = ["the"] if lowercase else ["T", "h", "e"]
    assert ours.convert_ids_to_tokens(ours.encode(" The\u3000the ?")) == ["<s>", *first, "the"]


def test_separator_before_the_second_text() -> None:
    """RoBERTa's pair: <s> first </s></s> second </s>."""
    fields = {
        "model": "gpt2", "pre": "roberta-bpe", "merges": [], "tokens": ["a", "b", "<s>", "</s>"],
        "token_type": [NORMAL, NORMAL, CONTROL, CONTROL], "bos_token_id": 2, "eos_token_id": 3, "seperator_token_id": 3,
        "add_bos_token": True, "add_eos_token": True,
    }  # fmt: skip
    assert Tokenizer.from_gguf(gguf_fields(fields)).encode("a", "b") == [2, 0, 3, 3, 1, 3]
    assert Tokenizer.from_gguf(gguf_fields({**fields, "add_sep_token": False})).encode("a", "b") == [2, 0, 3, 2, 1, 3]


def test_a_merge_is_parted_at_its_first_space_but_one() -> None:
    merges = ["t h", "\N{NO-BREAK SPACE} t"]
    fields = {"model": "gpt2", "pre": "gpt-2", "merges": merges, "tokens": ["t", "h", "th", "\xa0", "\xa0t"],
              "token_type": [NORMAL] * 5}  # fmt: skip
    assert Tokenizer.from_gguf(gguf_fields(fields)).encode("th") == [2]
