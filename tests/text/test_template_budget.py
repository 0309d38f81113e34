"""Templates that would run or grow without end: each is stopped by one error, and ordinary ones never are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from glassformer.ground.errors import TemplateError
from glassformer.text import ChatTemplate, Tokenizer
from glassformer.text.chat.template_budget import Budget
from tests.text.test_template import WEATHER, assistant, user


def repeated(inner: str, times: int = 100, start: str = "'x'") -> str:
    """A template that grows a value, each time out of itself."""
    body = f"{{% for i in range({times}) %}}{{% set ns.x = {inner} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{body}"


def nested(inner: str) -> str:
    return "{% for i in range(100000) %}{% for j in range(100000) %}" + inner + "{% endfor %}{% endfor %}"


PAIRS = repeated("(ns.x, ns.x)", start="(1,)")  # two of two of two …: small to hold, endless to print or compare
BIG = "{% set big = 'x' * 1000000 %}"
STEPS = "it takes too many steps or too much memory"
TEXT = "it makes a text of more than 33,554,432 characters"
CALLS = "its macros or loops call each other more than 40 levels deep"
BITS = "it makes a number of more than 65,536 bits"
PLACES = "it formats a value to more than 10,000 places"
ENDLESS = {
    "loops in loops": (nested(""), STEPS),
    "loops that write": (nested("some words that are written again and again"), TEXT),
    "loops that test": (nested("{% for k in range(9) if k is odd %}{% endfor %}"), STEPS),
    "loops over filters": (nested("{{ range(100000) | map('string') | select | list | length }}"), STEPS),
    "a loop that calls itself": (
        "{% for x in [1] recursive %}{% if loop.depth < 99 %}{{ loop(range(100000)) }}{% endif %}{% endfor %}",
        STEPS,
    ),
    "macros": ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}", STEPS),
    "macros within macros": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", CALLS),
    "loops within recursive loops": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", CALLS),
    "callers": (
        "{% macro f() %}{% for i in range(100000) %}{{ caller() }}{% endfor %}{% endmacro %}"
        "{% call f() %}{% call f() %}x{% endcall %}{% endcall %}",
        STEPS,
    ),
    "a long text in a set block": (nested("{% set x %}" + "y" * 100000 + "{% endset %}"), STEPS),
    "a text times a number": ("{{ 'x' * 10 ** 10 }}", TEXT),
    "a number times a text": ("{{ 10 ** 10 * 'x' }}", TEXT),
    "a list times a number": ("{{ ([1] * 10 ** 10) | length }}", STEPS),
    "bytes times a number": ("{{ 'x'.encode() * 10 ** 10 }}", TEXT),
    "marked text times a number": ("{{ ('x' | safe) * 10 ** 10 }}", TEXT),
    "doubling with +": (repeated("ns.x + ns.x"), STEPS),
    "doubling with ~": (repeated("ns.x ~ ns.x"), STEPS),
    "doubling a list": (repeated("ns.x + ns.x", start="[1]"), STEPS),
    "doubling in a set block": (
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
        STEPS,
    ),
    "squaring": (repeated("ns.x * ns.x", start="10"), BITS),
    "a power": ("{{ (10 ** 1000) ** 100000 }}", BITS),
    "a rounding": ("{{ 1.5 | round(10 ** 9, 'ceil') }}", STEPS),
    "printing pairs": (PAIRS + "{{ ns.x }}", STEPS),
    "joining pairs": (PAIRS + "{{ 'a' ~ ns.x }}", STEPS),
    "pairs as JSON": (PAIRS + "{{ ns.x | tojson }}", STEPS),
    "comparing pairs": (PAIRS + "{{ [1] == ns.x }}", STEPS),
    "looking up pairs": (PAIRS + "{{ {}[ns.x] }}", STEPS),
    "pairs as a key": (PAIRS + "{{ {ns.x: 1} }}", STEPS),
    "testing pairs": (PAIRS + "{{ ns.x is eq([1]) }}", STEPS),
    "formatting pairs": (PAIRS + "{{ '{}'.format(ns.x) }}", STEPS),
    "pairs in a namespace": (repeated("namespace(a=ns.x, b=ns.x)") + "{{ ns.x }}", STEPS),
    "subtracting pairs": (PAIRS + "{{ {1: ns.x}.items() - {1: 2}.items() }}", STEPS),
    "center": ("{{ 'x'.center(10 ** 10) }}", STEPS),
    "the center filter": ("{{ 'x' | center(width=10 ** 10) }}", STEPS),
    "zfill": ("{{ '1'.zfill(10 ** 10) }}", STEPS),
    "expandtabs": ("{{ '\t'.expandtabs(10 ** 10) }}", STEPS),
    "to_bytes": ("{{ (1).to_bytes(10 ** 10, 'big') }}", STEPS),
    "a format's width": ("{{ '%1000000000d' % 1 }}", PLACES),
    "a format's precision": ("{{ '%.1000000000f' % 1.5 }}", PLACES),
    "a format's starred width": ("{{ '%*d' % (10 ** 9, 1) }}", PLACES),
    "a format of bytes": ("{{ '%1000000000d'.encode() % 1 }}", PLACES),
    "the format filter": ("{{ '%1000000000d' | format(1) }}", PLACES),
    "str.format's width": ("{{ '{:1000000000}'.format(1) }}", PLACES),
    "str.format's width among the values": ("{{ '{:{}}'.format(1, '1000000000') }}", PLACES),
    "str.format_map": ("{{ '{a:{b[c]}}'.format_map({'a': 1, 'b': {'c': 10 ** 9}}) }}", PLACES),
    "str.format by another way": ("{{ ('{:1000000000}' | attr('format'))(1) }}", PLACES),
    "a format with many places": (BIG + "{{ ('{0}' * 100000).format(big) }}", STEPS),
    "replacing": (BIG + "{{ big.replace('x', big) }}", STEPS),
    "replacing nothing": (BIG + "{{ big | replace('', big) }}", STEPS),
    "joining by a long text": (BIG + "{{ range(100000) | join(big) }}", STEPS),
    "joining long texts": (BIG + "{{ ''.join([big] * 100000) }}", STEPS),
    "joining an iterator": (BIG + "{{ big.join(range(1000) | map('string')) }}", STEPS),
    "joining letters": (BIG + "{{ big.join('y' * 1000) }}", STEPS),
    "joining letters by the filter": (BIG + "{{ ('y' * 1000) | join(big) }}", STEPS),
    "sorting letters": (BIG + "{{ big | sort | length }}", STEPS),
    "translating": (BIG + "{{ big.translate({120: big}) }}", STEPS),
    "indenting": ("{{ 'a\nb' | indent(10 ** 10) }}", STEPS),
    "indented JSON": ("{{ messages | tojson(indent=10 ** 9) }}", STEPS),
    "JSON by long separators": (BIG + "{{ ([1] * 1000) | tojson(separators=(big, ':')) }}", STEPS),
    "batches": ("{{ [1] | batch(10 ** 10, 'x') | list }}", STEPS),
    "slices": ("{{ [1] | slice(10 ** 10) | list }}", STEPS),
    "filler text": ("{{ lipsum(10 ** 8) }}", STEPS),
    "dates": ("{{ strftime_now('%c' * 1000000) }}", STEPS),
    "wrapping": (BIG + "{{ big | wordwrap(1, big) }}", STEPS),
    "summing lists": ("{{ ([[1] * 10] * 10000) | sum(start=[]) | length }}", STEPS),
    "splitting": (BIG + "{% for i in range(99) %}{{ (big * 9).split() | length }}{% endfor %}", STEPS),
    "splitting from the right": (BIG + "{{ (big * 9).rsplit('b' + big) | length }}", STEPS),
    "searching from the right": (BIG + "{{ (big * 9).rfind('b' + big) }}", STEPS),
    "stripping": (BIG + "{{ (big * 9).strip('a' * 1000000 + 'x') }}", STEPS),
    "encoding": (BIG + "{{ big.encode('punycode') }}", STEPS),
    "searching": (BIG + nested("{{ 'y' in big }}"), STEPS),
    "searching a range": (nested("{{ 'y' in range(100000) }}"), STEPS),
    "cutting": (BIG + nested("{{ big[1:] | length }}"), STEPS),
    "keeping": (BIG + repeated("[ns.x, big[1:]]", 100000), STEPS),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_template_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "glassformer.text.chat.template_budget.ALLOWANCE", 300_000
    )  # a seventh of what is usual, for quick tests
    source, why = ENDLESS[name]
    with pytest.raises(TemplateError) as raised:
        ChatTemplate(source).render([user("Hi!")])
    message = str(raised.value)
    assert message.startswith("the chat template was stopped: it")
    assert message.endswith(". Pass another with chat_template=….")
    assert why in message or STEPS in message  # the smaller allowance may end before the text is too long


EARNING = ["'x' * -10 ** 12", "[1] * -10 ** 12", "'x'.center(-10 ** 12)", "'x' | center(-10 ** 12)", "10 ** -1000"]
EARNING += [
    "[1] | batch(-10 ** 12) | list",
    "'\\t'.expandtabs(-10 ** 12)",
    "[1] | tojson(indent=-10 ** 12)",
    "'%s' % -10 ** 12",
]
EARNING += ["'a' | indent(-10 ** 12)", "lipsum(-10 ** 12)", "1 | round(-10)", "strftime_now('')"]


@pytest.mark.parametrize("expression", EARNING)
def test_no_operation_adds_to_the_budget(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative size is no income: the loop that follows is stopped all the same."""
    monkeypatch.setattr("glassformer.text.chat.template_budget.ALLOWANCE", 50_000)
    with pytest.raises(TemplateError, match="was stopped"):
        ChatTemplate("{{ " + expression + " }}" + nested("")).render([user("Hi!")])


def test_longest_text_of_a_template() -> None:
    for source in ("{{ 'x' * 10 ** 8 }}", "{% macro f() %}" + "{{ 'x' * 10 ** 7 }}" * 4 + "{% endmacro %}{{ f() }}"):
        with pytest.raises(TemplateError, match=TEXT):
            ChatTemplate(source).render([user("x" * 100000)])


@pytest.mark.parametrize("value", ["ns.x", "{}[ns.x]", "{ns.x: 1}", "ns.x == ns.x", "ns.x | tojson"])
def test_template_values_nested_too_deeply(value: str) -> None:
    with pytest.raises(TemplateError, match="nested"):
        ChatTemplate(repeated("(ns.x,)", 20000, "(1,)") + "{{ " + value + " }}").render([user("Hi!")])


LAZY = "its lazy filters, such as map, read from each other more than 40 levels deep"
CHAINS = {
    **{
        f"ns.x | {name}": LAZY
        for name in (
            "map('upper')", "select", "reject('none')", "selectattr('a')", "rejectattr('a')", "batch(2)", "slice(2)",
        )
    },
    "ns.x | unique": None,  # reads one by one, and keeps what it has seen
    "dict(a=ns.x) | items": None,  # holds the others, and never reads them
    "[ns.x] | map('first')": LAZY,
    "[ns.x] | reverse": None,
    "(ns.x, ns.x) | select": None,
    "[ns.x | list] | select": None,
}  # fmt: skip


@pytest.mark.parametrize("step", CHAINS)
def test_a_chain_of_lazy_filters_ends_no_process(step: str) -> None:
    source = repeated(step, 30_000, "['a', 'b']") + "{{ ns.x | first }}"
    if CHAINS[step] is not None:
        with pytest.raises(TemplateError, match=CHAINS[step]):
            ChatTemplate(source).render([user("Hi!")])
    else:
        with suppress(TemplateError):
            ChatTemplate(source).render([user("Hi!")])


def test_lazy_filters_are_as_lazy_as_ever() -> None:
    chain = "['a', 'b', 'c']" + " | map('upper') | select" * 15
    assert ChatTemplate("{{ " + chain + " | join }}").render([user("Hi!")]) == "ABC"
    assert ChatTemplate("{{ 'yes' if [] | select }}").render([user("Hi!")]) == "yes"  # nobody has looked whether it is empty
    assert (
        ChatTemplate("{% set x = 'abc' | map('upper') %}{{ x | first }}{{ x | list }}").render([user("Hi!")])
        == "A['B', 'C']"
    )


FORBIDDEN = "it reaches for what no template may use in its line 1: "
HIDDEN = {
    "a planted name": ("{% set n = namespace(__class__=1) %}", FORBIDDEN + "a namespace takes no name"),
    "a planted name by assignment": ("{% set n = namespace() %}{% set n._x = 1 %}", FORBIDDEN + "a namespace takes no name"),
    "a planted name by mapping": ("{% set n = namespace({'__init__': 1}) %}", FORBIDDEN + "a namespace takes no name"),
    "the class of dicts": ("{{ dict.mro() }}", "_Dict has no 'mro'"),
    "what the environment holds": ("{{ self._TemplateReference__context.environment }}", FORBIDDEN),
    "a filter's insides": ("{{ (messages | map('upper'))._items.gi_frame }}", FORBIDDEN),
    "a filter's budget": ("{{ (messages | map('upper'))._budget.left }}", FORBIDDEN),
    "a macro's insides": ("{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}", FORBIDDEN),
    "a loop's insides": ("{% for m in messages %}{{ loop._recurse.x }}{{ loop._iterable.x }}{% endfor %}", FORBIDDEN),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_templates_cannot_reach_python_internals(name: str) -> None:
    source, why = HIDDEN[name]
    with pytest.raises(TemplateError, match=why):
        ChatTemplate(source).render([user("Hi!")])


def test_template_namespaces_and_dicts(reference: Any) -> None:
    source = (
        "{% set n = namespace({'a': 1}, self=2) %}{% set n.b = 3 %}{{ n.a }}{{ n.self }}{{ n.b }}"
        "{{ dict([('a', 1)], b=2) }}{{ dict.fromkeys('ab', 0) }}"
    )
    theirs = reference.apply_chat_template([user("Hi!")], chat_template=source, tokenize=False)
    assert ChatTemplate(source).render([user("Hi!")]) == theirs == "123{'a': 1, 'b': 2}{'a': 0, 'b': 0}"


def test_a_long_conversation_stays_within_its_budget(qwen: Tokenizer) -> None:
    """Thousands of turns, looked back at from every turn; and a text put together piece by piece."""
    turns = [user("why? " * 20), assistant("<think>\nhm\n</think>\n\n" + "because " * 40)] * 1000
    text = qwen.apply_chat_template(turns, tools=[WEATHER] * 20, tokenize=False, add_generation_prompt=True)
    assert text.count("<|im_start|>") == 2002
    looking_back = (
        "{% for m in messages %}{% for n in messages %}{% if n.role == 'user' %}{% endif %}{% endfor %}{% endfor %}"
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}"
    )
    chat = turns[:600]
    assert ChatTemplate(looking_back).render(chat) == "".join(turn["content"] for turn in chat)


def test_budget_grows_with_the_conversation() -> None:
    assert Budget("x" * 16000).left - Budget("").left == 1000 * 1000
    assert Budget([user("Hi!")] * 1000).left > 3 * Budget([user("Hi!")]).left
