"""Where chat templates run: Jinja's immutable sandbox, set up as the field's templates expect, and with a budget.

Filters, calls and operators pay through the environment's own hooks. For the rest a template's tree is rewritten before it
is compiled: each loop and macro pays for every round, and whatever prints, joins, compares or looks up for the size of what
it handles. `template_budget.py` says how much.
"""
# ruff: noqa: N802, N815 - Jinja's visitors are named after its nodes

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, Never

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from glassformer.text.chat.template_budget import CHARACTERS_PER_UNIT, MAX_CALLS, MAX_CHARACTERS, Budget, BudgetExceeded
from glassformer.text.chat.template_errors import TrackedUndefined, WrongOperand

WEIGH, WALK, TICK, RESULT = "(weigh)", "(walk)", "(tick)", "(made)"


class MeteringTransformer(jinja2.visitor.NodeTransformer):
    """Rewrites a template's tree so that it pays as it runs: values pass through filters whose names no template can
    spell."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        tests = 0 if node.test is None else 1 + sum(1 for _ in node.test.find_all(nodes.Node))
        self._body(node)
        node.iter = _filtered(WALK, node.iter, 1 + tests)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._body(node)

    def _body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        inside = [inner for part in node.body for inner in (part, *part.find_all(nodes.Node))]
        lengths = [len(child.data) for child in inside if isinstance(child, nodes.TemplateData)]
        cost = 1 + len(inside) + sum(length // CHARACTERS_PER_UNIT for length in lengths)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(TICK, nodes.Const(cost)), lineno=node.lineno))
        return node

    def visit_Output(self, node: nodes.Output | nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(WEIGH, part) for part in node.nodes]
        return node

    visit_Concat = visit_Output

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(WEIGH, node.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _filtered(WEIGH, node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(RESULT, node)
        node.arg = _filtered(WEIGH, node.arg)
        return node


def _filtered(name: str, node: Any, *args: Any) -> nodes.Expr:
    """The node's value, passed through a filter of that name; what is written in the template itself needs none."""
    if isinstance(node, (nodes.TemplateData, nodes.Const)) and name == WEIGH:
        return node
    return nodes.Filter(node, name, [nodes.Const(arg) for arg in args], [], None, None, lineno=node.lineno)


# Tests that compare, and so pay for what they are given.
WORD_TESTS = {"eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in", "lower", "upper"}
COMPARING_TESTS = {*WORD_TESTS, "==", "!=", "<", "<=", ">", ">=", "divisibleby", "odd", "even"}
DICT_ATTRIBUTES = frozenset(dir(dict))
LOOP_ATTRIBUTES = {"first", "last", "index", "index0", "length", "previtem", "nextitem"}


class RaisedByTemplate(jinja2.TemplateError):
    """Raised by the template itself, through `raise_exception`."""


class RenderContext(jinja2.runtime.Context):
    """One rendering: its variables, its budget, how much is written, and which of it the assistant says."""

    budget: Budget
    written: int
    spans: list[tuple[int, int]]

    def derived(self, locals: dict[str, Any] | None = None) -> RenderContext:  # noqa: A002 - Jinja's name
        inner = super().derived(locals)
        assert isinstance(inner, RenderContext)
        inner.budget, inner.written, inner.spans = self.budget, self.written, self.spans
        return inner


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _mark(self, context: RenderContext, caller: Callable[[], str]) -> str:
        text = caller()
        context.spans.append((context.written, context.written + len(text)))
        return text


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscored names, so that none of Python's own can be planted."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *rest = args
        jinja2.utils.Namespace.__init__(self, {})
        for name, value in dict(*rest, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"a namespace takes no name that begins with an underscore, such as {name!r}"
            )
        jinja2.utils.Namespace.__setitem__(self, name, value)


class _Dict:
    """`dict(…)` and `dict.fromkeys(…)`, without the class itself."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment: trimmed blocks, loop controls, generation blocks, the field's functions, and the budget's hooks."""

    context_class = RenderContext
    intercepted_binops = frozenset(jinja2.sandbox.SandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        extensions = [_Generation, "jinja2.ext.loopcontrols"]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, undefined=TrackedUndefined)
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _tojson, WEIGH: _weigh, WALK: _walk, TICK: _tick, RESULT: _result}
        self.tests |= {name: _metered_test(self.tests[name]) for name in COMPARING_TESTS}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = strftime_now
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(MeteringTransformer().visit(source), *args, **options)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`; the commonest are known to be safe, and skip the sandbox's checks, which take long."""
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in DICT_ATTRIBUTES:
                return obj[attribute]
        elif kind is _Namespace:
            values = object.__getattribute__(obj, "_Namespace__attrs")
            if attribute in values:
                return values[attribute]
        elif kind is jinja2.runtime.LoopContext and attribute in LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What macros and set blocks are put together with."""
        parts = list(parts)
        if sum(map(len, parts)) > MAX_CHARACTERS:
            raise BudgetExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")
        return "".join(parts)

    def call(__self, __context: RenderContext, __obj: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override] # noqa: N805
        budget = __context.budget
        args = budget.charge_call(__obj, args, options)
        budget.calls += 1
        if budget.calls > MAX_CALLS:
            raise BudgetExceeded(f"its macros or loops call each other more than {MAX_CALLS} levels deep")
        result = super().call(__context, __obj, *args, **options)
        budget.calls -= 1  # an error ends the rendering, so that only a return counts
        return budget.charge_result(result, *args, *options.values())

    def call_binop(self, context: RenderContext, operator: str, left: Any, right: Any) -> Any:  # type: ignore[override]
        context.budget.charge_operator(operator, left, right)
        try:
            return self.binop_table[operator](left, right)
        except TypeError as error:
            raise WrongOperand(operator, left, right) from error


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays; it is always handed the context, and hands on what the original wants."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @functools.wraps(function)
    def metered(context: RenderContext, value: Any = None, *args: Any, **options: Any) -> Any:
        value = context.budget.charge_filter(name, value, args, options)
        if wants is None:
            result = function(value, *args, **options)
        else:
            first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[wants]
            result = function(first, value, *args, **options)
        return context.budget.charge_result(result, value, *args, *options.values())

    return jinja2.pass_context(metered)


def _metered_test(function: Any) -> Callable[..., bool]:
    """A test that pays for what it compares."""

    @functools.wraps(function)
    def compared(context: RenderContext, *args: Any) -> bool:
        context.budget.charge_value(args)
        return bool(function(*args))

    return jinja2.pass_context(compared)


@jinja2.pass_context
def _weigh(context: RenderContext, value: Any) -> Any:
    if type(value) is str:
        context.budget.charge_text(len(value))
    else:
        context.budget.charge_value(value)
    return value


@jinja2.pass_context
def _walk(context: RenderContext, value: Any, cost: int) -> Any:
    context.budget.charge_walk(value, cost)
    return value


@jinja2.pass_context
def _tick(context: RenderContext, cost: int) -> None:
    context.budget.spend(cost)


@jinja2.pass_context
def _result(context: RenderContext, value: Any) -> Any:
    return context.budget.charge_result(value)


@jinja2.pass_context
def _tojson(
    context: RenderContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON with characters as they are; Jinja's own escapes what would be markup in a page."""
    units = context.budget.charge_value(value) * (1 + context.budget.charge_value(separators))
    if indent is not None:
        width = len(indent) if isinstance(indent, str) else indent
        context.budget.spend(units * (1 + max(0, width) * _depth(value) // CHARACTERS_PER_UNIT))
    else:
        context.budget.spend(units)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    context.budget.charge_text(len(text))
    return text


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 1


def _raise_exception(message: str) -> Never:
    raise RaisedByTemplate(message)


def strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(form)
