"""What a chat template may measure before it is compiled.

Jinja's compiler and Python's are recursive, and in places quadratic: a hostile template would overflow a thread's stack, or
take minutes, before its first line runs. So its tokens are counted before it is parsed, and its tree is measured, without
recursion, before it is compiled, on a stack of its own. Published templates are far below: 17 kB, 2,500 tokens, 30 levels,
chains of 7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import jinja2
import jinja2.nodes as nodes

MAX_SOURCE = 200_000  # characters
MAX_TOKENS = 30_000  # white space between words included
MAX_LEVELS = 100  # of nodes within nodes; a chain of filters or additions is as deep as it is long
MAX_ELIFS = 100  # in one chain: Python nests them
MAX_NAME_COPIES = 400_000  # the compiler copies all names for each branch and loop
STACK_BYTES = 2**22  # what compiling so many levels needs, many times over

Result = TypeVar("Result")
_stack_size_lock = threading.Lock()


class TemplateRefused(jinja2.TemplateError):
    """The template is too long or nested too deeply to be compiled, or asks for other files."""


def parse_within_limits(environment: jinja2.Environment, source: str) -> nodes.Template:
    """The template's tree, which can be compiled in little time and on a small stack."""
    if len(source) > MAX_SOURCE:
        raise TemplateRefused(f"it is longer than {MAX_SOURCE:,} characters")
    if next(islice(environment.lexer.tokeniter(source, None), MAX_TOKENS, None), None) is not None:
        raise TemplateRefused(f"it has more than {MAX_TOKENS:,} tokens")
    try:
        tree = environment.parse(source)
    except RecursionError:
        raise TemplateRefused(f"it is nested more than {MAX_LEVELS} levels deep") from None
    _check_tree(tree)
    return tree


def _check_tree(tree: nodes.Template) -> None:
    names, branches = set(), 0
    pending: list[tuple[nodes.Node, int]] = [(tree, 1)]
    while pending:
        node, level = pending.pop()
        if level > MAX_LEVELS:
            raise TemplateRefused(f"it is nested more than {MAX_LEVELS} levels deep")
        if isinstance(node, nodes.Name):
            names.add(node.name)
        elif isinstance(node, nodes.If):
            branches += 2 + len(node.elif_)
            if len(node.elif_) > MAX_ELIFS:
                raise TemplateRefused(f"it has a chain of more than {MAX_ELIFS} elif")
        elif isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateRefused("it includes another file, and there are none for it to read")
        elif isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.With, nodes.FilterBlock, nodes.AssignBlock)):
            branches += 1
        pending.extend((child, level + 1) for child in node.iter_child_nodes())
    if len(names) * branches > MAX_NAME_COPIES:
        raise TemplateRefused(f"its {len(names):,} names and {branches:,} branches are too many together")


def on_own_stack(function: Callable[[], Result]) -> Result:
    """What a function returns when it runs on a large stack, however little of the caller's is left."""
    with ThreadPoolExecutor(1, "chat template") as pool:
        with _stack_size_lock:  # the size is the process's, for all threads that start meanwhile
            usual = threading.stack_size(STACK_BYTES)
            try:
                future = pool.submit(function)
            finally:
                threading.stack_size(usual)
        return future.result()
