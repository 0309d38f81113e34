"""Metering: a chat template's tree is rewritten before it is compiled, so that each loop and macro pays for every round, and
whatever prints, joins, compares or looks up for the size of what it handles.

Values are passed through filters whose names no template can spell; `sandbox.py` defines them.
"""
# ruff: noqa: N802 - Jinja's visitors are named after its nodes

from __future__ import annotations

from typing import Any

import jinja2.nodes as nodes
import jinja2.visitor

from glassformer.text.chat.template_budget import CHARACTERS_PER_UNIT

WEIGH, WALK, TICK, RESULT = "(weigh)", "(walk)", "(tick)", "(made)"


class MeteringTransformer(jinja2.visitor.NodeTransformer):
    """Rewrites a template's tree so that it pays as it runs."""

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

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(WEIGH, part) for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(WEIGH, part) for part in node.nodes]
        return node

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
