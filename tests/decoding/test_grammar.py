"""Grammars: whatever the scores are, the finished text fits; and every text that fits can be written."""

from __future__ import annotations

import ast
import copy
import gc
import json
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import glassformer
from glassformer import AutoTokenizer
from glassformer.decoding.grammar import Grammar, Guide, library
from glassformer.decoding.grammar.library import vocabulary_of
from glassformer.decoding.rules.constraints import by_grammar
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import TokenHistory
from glassformer.ground.errors import MissingExtra, SettingError
from glassformer.text import Tokenizer
from tests.decoding.schemas import ROOM, SCHEMAS
from tests.sweeps import examples
from tests.text.models import GEMMA, LLAMA, T5, trained
from tests.text.test_gguf_tokenizers import pieces, t5
from tests.text.test_legacy_vocabulary import config_files, write

some = settings(max_examples=examples(7, 30), deadline=None)
seeds = st.integers(0, 2**32 - 1)


# Tokenizers of every kind -------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Callable[[str], Any], Path], Tokenizer]] = {
    "smollm2 GGUF": lambda want, folder: AutoTokenizer.from_pretrained(want("smollm2")),
    "qwen3": lambda want, folder: AutoTokenizer.from_pretrained(want("qwen3_tokenizer")),
    "gpt2": lambda want, folder: AutoTokenizer.from_pretrained(want("gpt2_tokenizer")),
    "tiktoken": lambda want, folder: Tokenizer.from_tiktoken(want("cl100k")),
    "llama pieces": lambda want, folder: AutoTokenizer.from_pretrained(
        write(folder, {"tokenizer.model": trained(**LLAMA), **config_files("LlamaTokenizer", add_bos_token=True)})
    ),
    "gemma pieces": lambda want, folder: AutoTokenizer.from_pretrained(
        write(folder, {"tokenizer.model": trained(**GEMMA), **config_files("GemmaTokenizer", add_bos_token=True)})
    ),
    "t5 pieces": lambda want, folder: AutoTokenizer.from_pretrained(
        write(folder, {"spiece.model": trained(**T5), **config_files("T5Tokenizer")})
    ),
    "GGUF llama pieces": lambda want, folder: Tokenizer.from_gguf(pieces()),
    "GGUF gemma pieces": lambda want, folder: Tokenizer.from_gguf(pieces(add_space_prefix=False)),
    "GGUF t5 pieces": lambda want, folder: Tokenizer.from_gguf(t5()),
}
STRIPPING = ("llama pieces", "t5 pieces", "GGUF llama pieces", "GGUF t5 pieces")  # drop the space that a text begins with


@pytest.fixture(scope="module")
def tokenizers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    held: dict[str, Tokenizer] = {}

    def get(kind: str) -> Tokenizer:
        if kind not in held:
            held[kind] = KINDS[kind](request.getfixturevalue, tmp_path_factory.mktemp("kind"))
        return held[kind]

    return get


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def tokenizer(kind: str, tokenizers: Callable[[str], Tokenizer]) -> Tokenizer:
    return tokenizers(kind)


@pytest.fixture(scope="module")
def smol(tokenizers: Callable[[str], Tokenizer]) -> Tokenizer:
    return tokenizers("smollm2 GGUF")


@pytest.fixture(scope="module")
def gpt2(tokenizers: Callable[[str], Tokenizer]) -> Tokenizer:
    """It has a token for each byte."""
    return tokenizers("gpt2")


def compiled(setting: str, value: Any, tokenizer: Tokenizer) -> Grammar:
    return Grammar.compile(setting, value, tokenizer, eos=[tokenizer.eos_token_id])


def walk(made: Grammar, tokenizer: Tokenizer, seed: int, lean: float = 0.0, most: int = ROOM) -> str:
    """The text of a random walk, which must end in time; `lean` is how much longer tokens are liked."""
    draws, guide, ids = np.random.default_rng(seed), made.guide(), []
    while not guide.done:
        scores = draws.random(len(tokenizer), np.float32) + np.float32(lean) * lengths(tokenizer)
        field = guide.shape(Shortlist(scores))
        token = field.id_at(int(field.scores.argmax()))
        if token == tokenizer.eos_token_id:
            break
        guide.accept(token)
        ids.append(token)
        assert len(ids) <= most, f"no end: {read(tokenizer, ids)}"
    text: str = read(tokenizer, ids)
    return text


@cache
def lengths(tokenizer: Tokenizer) -> Any:
    """Of each token, in bytes, up to six."""
    return np.array([min(6, len(tokenizer.token_bytes(number))) for number in range(len(tokenizer))], np.float32)


def read(tokenizer: Tokenizer, ids: Any) -> Any:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def feed(guide: Guide, tokenizer: Tokenizer, text: str) -> bool:
    """Lead a guide along a text; whether it could end there."""
    for token in tokenizer.encode(text, add_special_tokens=False):
        guide.accept(token)
    return bool(guide.allowed()[tokenizer.eos_token_id])


def first_of(tokenizer: Tokenizer, text: str) -> int:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids[0]


def test_every_token_has_the_bytes_that_it_decodes_to(tokenizer: Tokenizer) -> None:
    words = vocabulary_of(tokenizer, None, frozenset([tokenizer.eos_token_id]))
    spelt = {number: raw for number in range(words.size) if (raw := tokenizer.token_bytes(number))}
    every = [number for number, raw in spelt.items() if number not in words.special and raw != b"\xff"]  # no text has it
    texts = every[:2000] + every[2000 :: examples(9, 1)]  # of a long list, the sweeps read all
    letter = next(number for number in texts if spelt[number].isalpha())
    before, *decoded = read(tokenizer, [[letter], *([letter, number] for number in texts)])
    for number, text in zip(texts, decoded, strict=True):
        raw = words.ll_tokenizer.decode_bytes([number])
        assert raw == spelt[number]
        assert text == before + raw.decode(errors="replace") or not raw.decode(errors="ignore")


def test_ids_beyond_holes_in_the_vocabulary_are_known(tokenizers: Callable[[str], Tokenizer]) -> None:
    ours = tokenizers("tiktoken")
    last = ours.convert_tokens_to_ids("<|endofprompt|>")
    assert last > len(ours)
    allowed = Grammar.compile("grammar", "start: <|endofprompt|>", ours).guide().allowed()
    assert np.flatnonzero(allowed).tolist() == [last] == [allowed.size - 1]


def test_special_tokens_are_no_text(kind: str, tokenizer: Tokenizer) -> None:
    everything = compiled("regex", "(?s:.*)", tokenizer)
    allowed = np.flatnonzero(everything.guide().allowed())
    added = tokenizer.backend.get_added_tokens_decoder()
    signs = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
    assert signs & {*allowed.tolist()} == {tokenizer.eos_token_id}
    assert len(allowed) > 0.5 * (len(tokenizer) - len(signs))


@some
@given(seed=seeds, lean=st.sampled_from([-1.0, 0.0, 1.0]))
def test_walks_fit_with_every_tokenizer(tokenizer: Tokenizer, seed: int, lean: float) -> None:
    pattern = "(the|a) [a-z]{2,6}(,  ?fox| dog)?"
    assert re.fullmatch(pattern, walk(compiled("regex", pattern, tokenizer), tokenizer, seed, lean, most=40))


def test_texts_are_taken_as_they_are_encoded(tokenizer: Tokenizer) -> None:
    for text in ("the fox", "don't panic", "a lazy  dog", " the"):
        if read(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text:
            assert feed(compiled("choices", [text], tokenizer).guide(), tokenizer, text)


def test_the_space_before_a_text_is_none_where_decoding_drops_it(kind: str, tokenizer: Tokenizer) -> None:
    words = vocabulary_of(tokenizer, None, frozenset([tokenizer.eos_token_id]))
    assert (words.opening is not None) == (kind in STRIPPING)
    by_bytes = {tokenizer.token_bytes(number): number for number in reversed(range(len(tokenizer)))}
    the = by_bytes[b" the"]
    fitting, spaced = (compiled("regex", pattern, tokenizer).guide() for pattern in ("the( the)*", " the"))
    assert fitting.allowed()[the] == (kind in STRIPPING)
    if kind in STRIPPING:
        assert fitting.allowed()[by_bytes[b" "]]  # it adds nothing
        fitting.accept(by_bytes[b" "])
        assert not fitting.allowed()[the]
        spaced.accept(by_bytes[b" "])
    spaced.accept(the)
    assert spaced.done


def test_all_spellings_of_a_text_are_allowed(tokenizers: Callable[[str], Tokenizer]) -> None:
    llama = tokenizers("GGUF llama pieces")
    spelt = [number for number in range(len(llama)) if llama.token_bytes(number) in (b"a", b" a")]
    assert llama.convert_ids_to_tokens(spelt) == ["<0x61>", "▁a", "a"]
    assert compiled("regex", "a", llama).guide().allowed()[spelt].all()


def test_a_tokenizer_that_joins_words_by_itself(minilm: Path) -> None:
    words = AutoTokenizer.from_pretrained(minilm)
    with pytest.raises(SettingError, match=r"it decodes token \d+ to '.', where b' .' was expected. Use a model with"):
        Grammar.compile("regex", "a", words)


class Plain:
    """A tokenizer made of bytes."""

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = tokens
        self.all_special_ids: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def token_bytes(self, number: int) -> bytes:
        return self.tokens[number] if number < len(self) else b""

    def decode(self, ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None) -> Any:
        if ids and isinstance(ids[0], list):
            return [self.decode(row) for row in ids]
        return b"".join(self.tokens[number] for number in ids).decode(errors="replace")


def test_a_tokenizer_that_llguidance_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException): ...

    def refuse(*given: Any) -> None:
        raise Panic("assertion failed")

    monkeypatch.setattr(llguidance, "LLTokenizer", refuse)
    with pytest.raises(SettingError, match="no grammar can guide this tokenizer: assertion failed. Use a model"):
        Grammar.compile("regex", "a", Plain(b"a"))


def test_a_keyboard_interrupt_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llguidance, "LLTokenizer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Grammar.compile("regex", "a", Plain(b"a"))


def test_enormous_tokens_are_left_out() -> None:
    made = Grammar.compile("regex", "a+", Plain(b"a", b"a" * 1000, b"a" * 1001, b"a" * 5000))
    assert made.guide().allowed().tolist() == [True, True, False, False]


def test_llguidance_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for setting, value in (("regex", "a"), ("json_schema", True), ("choices", ["a"]), ("grammar", 'start: "a"')):
        with pytest.raises(MissingExtra, match="llguidance"):
            Grammar.compile(setting, value, Plain(b"a"))


def test_the_vocabulary_is_read_once() -> None:
    tokenizer = Plain(b"a", b"b")
    first, second = (Grammar.compile("regex", pattern, tokenizer, eos=[1]) for pattern in ("a", "aa"))
    assert first.vocabulary is second.vocabulary
    assert Grammar.compile("regex", "a", tokenizer).vocabulary is not first.vocabulary  # other ends
    tokenizer.tokens = (*tokenizer.tokens, b"aa")
    assert Grammar.compile("regex", "aa", tokenizer, eos=[1]).guide().allowed().tolist() == [True, False, True]


def test_the_vocabulary_goes_with_its_tokenizer() -> None:
    tokenizer = Plain(b"a")
    made = Grammar.compile("regex", "a", tokenizer)
    assert tokenizer in library._CACHE
    known = len(library._CACHE)
    del tokenizer
    gc.collect()
    assert len(library._CACHE) < known
    assert made.guide().allowed().tolist() == [True]


def test_tokens_that_are_added_later_are_known(smol: Tokenizer) -> None:
    ours = copy.deepcopy(smol)
    assert Grammar.compile("choices", ["<new>"], ours).guide().allowed().size == len(smol)
    ours.add_tokens(["<new>", "<newer>"])
    ours.add_tokens("<newest>", special_tokens=True)
    allowed = Grammar.compile("choices", ["<new>", "<newest>"], ours).guide().allowed()
    assert allowed[-3:].tolist() == [True, False, False]


# Guides -------------------------------------------------------------------------------------------------------------


def test_an_end_is_allowed_exactly_when_the_text_is_whole(smol: Tokenizer) -> None:
    ends = [0, 2, 7]
    guide = Grammar.compile("regex", "(ab)+", smol, eos=ends).guide()
    a, b = (first_of(smol, letter) for letter in "ab")
    for token, whole in ((a, False), (b, True), (a, False), (b, True)):
        guide.accept(token)
        assert guide.allowed()[ends].tolist() == [whole] * 3
        assert guide.allowed()[[1, 3, 4, 5, 6]].tolist() == [False] * 5
        assert not guide.done
    other = guide.fork()
    for end, walked in ((0, guide), (7, other)):
        walked.accept(end)
        assert walked.done


def test_a_token_that_ends_texts_is_no_text(smol: Tokenizer) -> None:
    line = first_of(smol, "\n")
    guide = Grammar.compile("regex", "a\n?b?", smol, eos=[line]).guide()
    assert not guide.allowed()[line]
    guide.accept(first_of(smol, "a"))
    assert guide.allowed()[line]
    guide.accept(line)
    assert guide.done


def test_done_comes_with_the_last_token(smol: Tokenizer) -> None:
    guide = compiled("regex", "[a-c]{2}", smol).guide()
    for letter, done in (("a", False), ("b", True)):
        guide.accept(first_of(smol, letter))
        assert guide.done is done
    assert np.flatnonzero(guide.allowed()).tolist() == [smol.eos_token_id]
    guide.accept(smol.eos_token_id)
    assert guide.done


def test_without_an_end_nothing_follows_a_whole_text(smol: Tokenizer) -> None:
    guide = Grammar.compile("regex", "a", smol).guide()
    guide.accept(first_of(smol, "a"))
    assert guide.done
    assert not guide.allowed().any()
    assert guide.shape(Shortlist(np.zeros(len(smol), np.float32))).scores.size == 0


@pytest.mark.parametrize("token", [-1, 0, 2, 5, 10**6])
def test_accepting_a_token_that_is_not_allowed_is_an_error(smol: Tokenizer, token: int) -> None:
    guide = compiled("regex", "aa", smol).guide()
    guide.accept(first_of(smol, "a"))
    with pytest.raises(SettingError, match=f"token {token} after 1"):
        guide.accept(token)
    guide.accept(first_of(smol, "a"))  # it stands where it stood
    assert guide.done


@some
@given(seed=seeds)
def test_forks_of_a_guide_are_independent(smol: Tokenizer, seed: int) -> None:
    draws = np.random.default_rng(seed)
    guide = compiled("regex", "[a-z]{1,4}(-[0-9]{1,4}){0,2}", smol).guide()
    while not guide.done:
        choices = np.flatnonzero(guide.allowed())
        choices = choices[choices != smol.eos_token_id]
        mine, other = draws.choice(choices, 2)
        before = guide.allowed().copy()
        fork = guide.fork()
        assert (fork.allowed() == before).all()
        fork.accept(int(other))
        assert (guide.allowed() == before).all()
        twin = guide.fork()
        guide.accept(int(mine))
        twin.accept(int(mine))
        assert (twin.allowed() == guide.allowed()).all()
        assert twin.done == guide.done


def test_guides_of_one_grammar_are_independent(smol: Tokenizer) -> None:
    made = compiled("regex", "ab|ba", smol)
    one, two = made.guide(), made.guide()
    one.accept(first_of(smol, "a"))
    two.accept(first_of(smol, "b"))
    one.accept(first_of(smol, "b"))
    two.accept(first_of(smol, "a"))
    assert one.done
    assert two.done


@some
@given(seed=seeds, share=st.floats(0, 1), more=st.integers(-40000, 200))
def test_shortlists_of_any_length_are_shaped_the_same(smol: Tokenizer, seed: int, share: float, more: int) -> None:
    draws = np.random.default_rng(seed)
    scores = draws.random(len(smol) + more, np.float32)
    guide = compiled("regex", "[a-z ]+", smol).guide()
    kept = draws.random(scores.size) < share
    whole, short = (guide.shape(field) for field in (Shortlist(scores), Shortlist(scores[kept], np.flatnonzero(kept))))
    allowed = np.flatnonzero(guide.allowed())
    allowed = allowed[allowed < scores.size]
    assert whole.ids is not None
    assert whole.ids.tolist() == allowed.tolist()
    assert (short.ids if short.ids is not None else np.flatnonzero(kept)).tolist() == allowed[kept[allowed]].tolist()
    assert (whole.scores == scores[allowed]).all()


def test_ids_that_the_model_does_not_score_are_left_out(smol: Tokenizer) -> None:
    size = first_of(smol, "b")
    guide = Grammar.compile("regex", "[a-z]", smol, size=size, eos=[2, size + 5, -1]).guide()
    assert guide.allowed().size == size
    assert guide.allowed()[first_of(smol, "a")]
    with pytest.raises(SettingError, match="allow token"):
        guide.accept(size)


def test_the_rule_keeps_what_the_guide_allows(smol: Tokenizer) -> None:
    history = TokenHistory([first_of(smol, "a")], room=5)
    field = Shortlist(np.zeros(len(smol) + 100, np.float32))
    assert by_grammar(field, history) is field
    history.guide = compiled("regex", "b", smol).guide()
    assert by_grammar(field, history).ids == [first_of(smol, "b")]  # the prompt is no part of the text


def test_repr_names_the_kind_of_grammar(smol: Tokenizer) -> None:
    assert repr(compiled("choices", ["a"], smol)) == "Grammar(choices)"


# Regular expressions ------------------------------------------------------------------------------------------------

atoms = st.sampled_from(["a", "B", "7", " ", "-", r"\.", r"\\", "/", r"\n", "\n", "é", "日", "🙂", "[a-f]", "[^a-z]", "."])
patterns = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | inner.flatmap(lambda part: st.sampled_from([f"(?:{part})?", f"({part}){{0,2}}", f"(?:{part}){{2}}"]))
    ),
    max_leaves=6,
)


@some
@given(pattern=patterns, seed=seeds)
def test_walks_match_their_regex(gpt2: Tokenizer, pattern: str, seed: int) -> None:
    assert re.fullmatch(pattern, walk(compiled("regex", pattern, gpt2), gpt2, seed))


@some
@given(data=st.data(), pattern=patterns)
def test_texts_that_match_can_be_written(gpt2: Tokenizer, data: st.DataObject, pattern: str) -> None:
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    assert feed(compiled("regex", pattern, gpt2).guide(), gpt2, text)


@pytest.mark.parametrize(
    ("pattern", "text"), [("^abc$", "abc"), ("(?i)yes", "YES"), ("a*?", "aa"), ("(?P<day>mon|tue)", "tue"), (r"\d{2}", "42")]
)
def test_regex_syntax_beyond_the_basics(smol: Tokenizer, pattern: str, text: str) -> None:
    assert feed(compiled("regex", pattern, smol).guide(), smol, text)


def refused(setting: str, value: Any, tokenizer: Any) -> str:
    with pytest.raises(SettingError) as caught:
        Grammar.compile(setting, value, tokenizer)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "said"),
    {
        "a(?=x)": "look-around, including look-ahead and look-behind, is not supported, at '(?=x)'",
        "ab[c": "unclosed character class, at '[c'",
        "a\nb{3": "unclosed counted repetition, at '{3'",
        r"(a)\1": r"backreferences are not supported, at '\\1'",
        "(?P<a>x)(?P<a>y)": "duplicate capture group name, at 'a>x)(?P<a>y)'",
        r"\bfoo": r"lookarounds not supported yet; WordUnicode in regex /\bfoo/",
        "(" * 5000 + ")" * 5000: "exceed the maximum number of nested parentheses/brackets (250), at '" + "(" * 40 + "'",
    }.items(),
    ids=lambda value: value[:20],
)
def test_a_regex_that_is_broken(smol: Tokenizer, pattern: str, said: str) -> None:
    fix = "Write it as https://docs.rs/regex/latest/regex/#syntax has it, without boundaries such as \\b."
    assert refused("regex", pattern, smol) == f"regex cannot be followed: {said}. {fix}"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a\\", "regex ends with a lone backslash. Write two for one that is meant, or none."),
        ("\ud800", "regex holds a lone surrogate, which is no character. Repair it first."),
        (5, "regex has 5, which is no text. Give text."),
        ("a?" * 2000, f"regex cannot be followed: lexer precomputation failed. {library.SMALLER}"),
        ("a" * 1_000_000, f"regex takes 1,000,083 characters; 1,000,000 is the most. {library.SMALLER}"),
    ],
    ids=["backslash", "surrogate", "number", "intricate", "long"],
)
def test_a_regex_that_is_refused(smol: Tokenizer, pattern: Any, said: str) -> None:
    assert refused("regex", pattern, smol) == said


# Choices ------------------------------------------------------------------------------------------------------------

lists = st.lists(
    st.text(min_size=1, max_size=8) | st.sampled_from(["a", "ab", '"', "\\", "\\n", "\n", "🙂", "/a/"]), min_size=1
)


@some
@given(choices=lists, seed=seeds)
def test_a_walk_ends_at_one_of_the_choices(gpt2: Tokenizer, choices: list[str], seed: int) -> None:
    assert walk(compiled("choices", choices, gpt2), gpt2, seed) in choices


@some
@given(choices=lists)
def test_every_choice_can_be_chosen(gpt2: Tokenizer, choices: list[str]) -> None:
    made = compiled("choices", choices, gpt2)
    for choice in choices:
        assert feed(made.guide(), gpt2, choice)


def test_very_many_choices(smol: Tokenizer) -> None:
    choices = [f"the choice {number * 7919}" for number in range(20_000)]
    assert walk(compiled("choices", tuple(choices), smol), smol, seed=1) in choices


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([], "choices is []; it must be a list of at least one text."),
        ("yes", "choices is 'yes'; it must be a list of at least one text."),
        (7, "choices is 7; it must be a list of at least one text."),
        (["yes", ""], "choices has an empty text, which no model can choose. Leave it out."),
        (["yes", 1], "choices has 1, which is no text. Give text."),
        (["\udfff"], "choices holds a lone surrogate, which is no character. Repair it first."),
    ],
)
def test_choices_that_are_refused(smol: Tokenizer, choices: Any, said: str) -> None:
    assert refused("choices", choices, smol) == said


# Lark grammars ------------------------------------------------------------------------------------------------------

SUMS = """
start: term (" + " term){0,3}   // a sum of at most four
term: NUMBER | "(" NUMBER " - " NUMBER ")"
NUMBER: /[1-9][0-9]{0,2}/
"""


@some
@given(seed=seeds)
def test_walks_are_sentences_of_their_grammar(smol: Tokenizer, seed: int) -> None:
    text = walk(compiled("grammar", SUMS, smol), smol, seed)
    ast.parse(text, mode="eval")
    term = r"([1-9]\d{0,2}|\([1-9]\d{0,2} - [1-9]\d{0,2}\))"
    assert re.fullmatch(rf"{term}( \+ {term}){{0,3}}", text)


def test_a_grammar_may_name_special_tokens(smol: Tokenizer) -> None:
    start, end = (smol.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    guide = Grammar.compile("grammar", 'start: <|im_start|> "a" <|im_end|> "b"', smol, eos=[end]).guide()
    for token in (start, first_of(smol, "a"), end, first_of(smol, "b")):
        assert np.flatnonzero(guide.allowed()).tolist() == [token]
        guide.accept(token)
    assert guide.done
    guide.accept(end)


def test_a_named_token_is_no_start_of_the_text(tokenizers: Callable[[str], Tokenizer]) -> None:
    llama = tokenizers("GGUF llama pieces")
    guide = compiled("grammar", 'start: <turn> "the the"', llama).guide()
    turn, the = llama.convert_tokens_to_ids(["<turn>", "▁the"])
    for token in (turn, the, the):
        guide.accept(token)
    assert guide.done
    assert read(llama, [turn, the, the]) == "the the"


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "start: x": ' at line 1, column 8: unknown name: "x"',
        'start: a\na: "b" (': " at line 2, column 9: Expected token ')', found '\\n' (at \"\\n\" ('\\n'))",
        "start: A\nA: /b(?=a)/": " at line 2, column 4: look-around, including look-ahead and look-behind, is not supported",
        "start: <nope>": ' at line 1, column 8: unknown special token: "<nope>"; following special tokens are available: ',
        'start: %json {"type": "int"}': " at line 1, column 8: failed to compile JSON schema: Invalid type: int",
        'begin: "a"': ": no start rule found",
    }.items(),
)
def test_a_grammar_that_is_broken(smol: Tokenizer, text: str, said: str) -> None:
    found = refused("grammar", text, smol)
    assert found.startswith(f"grammar cannot be followed{said}")
    assert found.endswith("Fix it; its syntax is at https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.")


def test_a_grammar_that_is_no_text(smol: Tokenizer) -> None:
    assert refused("grammar", ["start"], smol) == "grammar has ['start'], which is no text. Give text."


def test_a_grammar_without_texts(smol: Tokenizer) -> None:
    said = (
        "grammar leads nowhere after 0 tokens: no text fits, or this tokenizer cannot spell it. Allow more, or use a model"
    )
    assert refused("grammar", "start: a\na: a", smol) == f"{said} with a byte-level tokenizer."


HUGE_GRAMMARS = {
    "deep": ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "at line 1, column 37: lark grammar too deeply nested"),
    "long": ("start: " + '"a" ' * 70_000, "assertion failed: grammar.symbols.len() < u16::MAX"),
    "exponential": (
        "start: A0\n" + "\n".join(f"A{n}: A{n + 1} A{n + 1}" for n in range(60)) + '\nA60: "x"',
        "initial lexer configuration (grammar) too big",
    ),
}


@pytest.mark.parametrize("name", HUGE_GRAMMARS)
def test_an_enormous_grammar_is_refused(smol: Tokenizer, name: str) -> None:
    text, said = HUGE_GRAMMARS[name]
    found = refused("grammar", text, smol)
    assert said in found
    assert found.endswith(library.SMALLER)


# JSON schemas -------------------------------------------------------------------------------------------------------


def valid(text: str, schema: Any) -> bool:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return checker.is_valid(json.loads(text))


@pytest.mark.parametrize("name", SCHEMAS)
def test_walks_are_valid_for_their_json_schema(smol: Tokenizer, name: str) -> None:
    made = compiled("json_schema", SCHEMAS[name], smol)
    for seed in range(3):
        for lean in (-1.0, 0.0, 1.0):
            text = walk(made, smol, seed, lean)
            assert valid(text, SCHEMAS[name]), text
            assert "\n" not in text


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCHEMAS)
def test_very_many_walks_are_valid_for_their_json_schema(smol: Tokenizer, name: str) -> None:
    made = compiled("json_schema", SCHEMAS[name], smol)
    for seed in range(100):
        for lean in (-1.0, -0.1, 0.0, 1.0):
            assert valid(walk(made, smol, seed, lean), SCHEMAS[name])


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    return glassformer.load("smollm2")


def chatted(model: Any, name: str, seed: int) -> None:
    text = model.chat(f"Give {name} as JSON.", json_schema=SCHEMAS[name], do_sample=True, seed=seed, max_new_tokens=ROOM)
    assert valid(str(text), SCHEMAS[name]), text


@pytest.mark.parametrize("name", ["a person", "what must be escaped"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_writes_valid_json(model: Any, name: str, seed: int) -> None:
    chatted(model, name, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(10))
def test_a_model_writes_valid_json_for_every_schema(model: Any, name: str, seed: int) -> None:
    chatted(model, name, seed)


def test_json_is_written_as_json_dumps_writes_it(smol: Tokenizer) -> None:
    for value in ({"name": "Ann", "age": 5, "member": True}, {"name": "x", "age": 0, "member": False}):
        guide = compiled("json_schema", json.dumps(SCHEMAS["a person"]), smol).guide()
        assert feed(guide, smol, json.dumps(value))
        assert guide.done
    for text in ('{"age"', '{"name":"', '{ "', '{"name" :', "\n", " "):  # other orders, other spaces
        with pytest.raises(SettingError, match="json_schema"):
            feed(compiled("json_schema", SCHEMAS["a person"], smol).guide(), smol, text)


def test_a_schema_may_allow_white_space(smol: Tokenizer) -> None:
    schema = {**SCHEMAS["dice"], "x-guidance": {"whitespace_flexible": True, "item_separator": ","}}
    assert feed(compiled("json_schema", schema, smol).guide(), smol, "[\n  1,\n  2,\n  3\n]")
    assert "key_separator" not in schema["x-guidance"]


strings = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)


@some
@given(value=values, schema=st.sampled_from([True, {}, "{}", "true"]))
def test_any_json_can_be_written(gpt2: Tokenizer, value: Any, schema: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assume(len(text) < 200)
    assert feed(compiled("json_schema", schema, gpt2).guide(), gpt2, text)


NESTED = {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, {"properties": {"x/~": {"type": "int"}}}]}}}}
NAMED = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"items": {"not": {}}}}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "thing"}, ": Invalid type: thing"),
        (NESTED, " at #/properties/a/items/anyOf/1/properties/x~1~0: Invalid type: int"),
        (NAMED, ' at #/$defs/x/items: Unimplemented keys: ["not"]'),
        ({"items": {"pattern": "a{3"}}, " at #/items: unclosed counted repetition, at '{3'"),
        ({"additionalProperties": {"format": "rhyme"}}, " at #/additionalProperties: Unknown format: rhyme"),
        ({"$ref": "#/$defs/none"}, ": Pointer '/$defs/none' does not exist"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ": Unsatisfiable schema: minimum (5) is greater than maximum (3)"),
        ({"x-guidance": 5}, ": invalid type: integer `5`, expected struct JsonCompileOptions"),
    ],
)
def test_a_schema_that_is_broken(smol: Tokenizer, schema: Any, said: str) -> None:
    found = refused("json_schema", schema, smol)
    assert found.startswith(f"json_schema cannot be followed{said}. Fix it, or leave out what is not supported: https://")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"enum": [-(2**63)]}, "holds -9223372036854775808, which no grammar can be made of. Use a number nearer to zero."),
        (
            "{bad",
            "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). Give a dictionary",
        ),
        ("[" * 100_000, "is no JSON: maximum recursion depth exceeded"),
        (False, "is False; it must be a dictionary, JSON text of one, or True for any JSON."),
        ("[1]", "is [1]; it must be a dictionary, JSON text of one, or True for any JSON."),
        ({"const": float("nan")}, "cannot be written as JSON: Out of range float values are not JSON compliant"),
        (
            {"enum": {1}},
            "cannot be written as JSON: Object of type set is not JSON serializable. Give what json.dumps takes.",
        ),
        ({"const": "\ud800"}, "holds a lone surrogate, which is no character. Repair it first."),
        ({"$ref": "#"}, "leads nowhere after 0 tokens: no text fits, or this tokenizer cannot spell it. Allow more"),
    ],
    ids=["number", "broken", "deep", "false", "list", "nan", "set", "surrogate", "circle"],
)
def test_a_schema_that_is_refused(smol: Tokenizer, schema: Any, said: str) -> None:
    assert refused("json_schema", schema, smol).startswith(f"json_schema {said}")


def nested(depth: int) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for _ in range(depth):
        held = {"items": held}
    return held


def chained(length: int) -> dict[str, Any]:
    """Definitions that each lead to the next."""
    links = {f"d{n}": {"required": ["x"], "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "null"}}}


HUGE_SCHEMAS: dict[str, tuple[Callable[[], Any], str]] = {
    "deep": (lambda: nested(200), "recursion limit exceeded at line 1 column"),
    "chained": (lambda: chained(12_000), "schema too large"),
    "wide": (lambda: {"properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}, "schema too large"),
    "long": (lambda: {"enum": [f"value number {n}" for n in range(50_000)]}, "characters; 1,000,000 is the most"),
    "multiples": (lambda: {"type": "integer", "multipleOf": 10**9 + 7}, "fuel exhausted"),
    "exponential": (
        lambda: {"allOf": [{"anyOf": [{"items": {"maximum": n}}, {"items": {"minimum": n}}]} for n in range(16)]},
        "schema too large",
    ),
}


@pytest.mark.parametrize("name", HUGE_SCHEMAS)
def test_an_enormous_schema_is_refused(smol: Tokenizer, name: str) -> None:
    make, said = HUGE_SCHEMAS[name]
    found = refused("json_schema", make(), smol)
    assert said in found
    assert found.endswith(library.SMALLER)


def test_a_schema_too_deep_to_be_written(smol: Tokenizer) -> None:
    said = "json_schema cannot be written as JSON: maximum recursion depth exceeded"
    assert refused("json_schema", nested(20_000), smol).startswith(said)


def test_long_chains_of_rules_are_followed(smol: Tokenizer) -> None:
    guide = compiled("json_schema", chained(3000), smol).guide()  # as deep would end the process on a usual stack
    assert feed(guide.fork(), smol, '{"x": {"x"') is False
    rules = "\n".join(f"r{n}: r{n + 1}" for n in range(30_000))
    guide = compiled("grammar", f'start: r0\n{rules}\nr30000: "x"', smol).guide()
    assert feed(guide, smol, "x")
    assert guide.done


def test_a_grammar_that_takes_too_long_to_compile_is_refused(smol: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled("regex", "a", smol)
    monkeypatch.setattr(library, "PATIENCE", 0.001)
    said = refused("regex", "a?" * 4000, smol)
    assert said == "regex was not ready after 0.001 seconds. Make it smaller, or its repetitions shorter."


def test_too_little_memory_for_a_deep_stack_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = threading.stack_size()
    monkeypatch.setattr(library, "STACK", 1 << 50)
    said = refused("regex", "a", Plain(b"a"))
    assert said == "there is no memory left to make regex ready (can't start new thread). Free some."
    assert threading.stack_size() == usual


def test_a_failure_inside_llguidance_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException): ...

    def fail(*given: Any, **more: Any) -> None:
        raise Panic("index out of bounds\nnote: more")

    monkeypatch.setattr(llguidance, "LLMatcher", fail)
    said = refused("regex", "a", Plain(b"a"))
    assert (
        said
        == "regex cannot be followed: index out of bounds. Write it as https://docs.rs/regex/latest/regex/#syntax has it, "
        "without boundaries such as \\b."
    )


# On the way ---------------------------------------------------------------------------------------------------------


def test_a_lexer_that_grows_too_large_on_the_way(smol: Tokenizer) -> None:
    guide = compiled("regex", "((a b ){1,1000}){1,1000}", smol).guide()
    with pytest.raises(SettingError, match=r"regex cannot be followed after \d+ tokens: lexer error: too many expressions"):
        feed(guide, smol, "a b " * 500)


def test_a_parser_that_grows_too_large_on_the_way(smol: Tokenizer) -> None:
    guide = compiled("grammar", "start: " + " | ".join(f'"w{number}"' for number in range(3000)), smol).guide()
    with pytest.raises(SettingError, match="grammar cannot be followed after 0 tokens: Parser Error: Current row has 3001"):
        guide.accept(first_of(smol, "w"))


def test_text_that_a_tokenizer_cannot_spell(tokenizers: Callable[[str], Tokenizer]) -> None:
    pieces = tokenizers("t5 pieces")
    nowhere = "leads nowhere after {} tokens: no text fits, or this tokenizer cannot spell it. Allow more, or use a model"
    with pytest.raises(SettingError, match="json_schema " + nowhere.format(0)):
        compiled("json_schema", {"type": "object"}, pieces)
    guide = compiled("regex", "the 日", pieces).guide()
    guide.accept(first_of(pieces, "the"))
    space = next(number for number in range(len(pieces)) if pieces.token_bytes(number) == b" ")
    guide.accept(space)
    with pytest.raises(SettingError, match="regex " + nowhere.format(2)):
        guide.allowed()
    with pytest.raises(SettingError, match="regex " + nowhere.format(2)):  # and it stays so
        guide.shape(Shortlist(np.zeros(len(pieces), np.float32)))


def test_gbnf_is_taken_for_lark_too(smol: Tokenizer) -> None:
    guide = compiled("grammar", 'root ::= item+\nitem ::= "- " [a-c] "\\n"', smol).guide()
    for token in smol.encode("- a\n- b\n"):
        guide.accept(token)
    with pytest.raises(SettingError, match="GBNF"):
        compiled("grammar", 'root ::= "a', smol)


def test_a_pydantic_model_is_a_json_schema(smol: Tokenizer) -> None:
    class Answer:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"type": "integer", "minimum": 3, "maximum": 3}

    allowed = compiled("json_schema", Answer, smol).guide().allowed()
    assert [smol.decode([token]) for token in np.flatnonzero(allowed).tolist()] == ["3"]


def test_backslash_d_is_the_ten_ascii_digits(smol: Tokenizer) -> None:
    allowed = compiled("regex", r"\d", smol).guide().allowed()
    assert sorted(smol.decode([token]) for token in np.flatnonzero(allowed).tolist()) == list("0123456789")
