"""Grammars: which texts a model may write, as a JSON schema, a regular expression, a list of choices or a Lark grammar.

A `Grammar` is made ready once and shared; a `Guide` is one text's walk through it. Before each token the guide says which
candidates can stand next, so that the finished text fits whatever the scores were. A candidate is allowed exactly when the
text so far and its bytes begin some text of the grammar: how words are cut into tokens stays the model's affair. An end is
allowed exactly when the text is whole. Tokens that are no text, such as `<|im_start|>`, are never allowed, unless a Lark
grammar names them.

The walk itself is llguidance's (https://github.com/guidance-ai/llguidance): a lexer of derivatives of regular expressions
and an Earley parser of its lexemes, led along the tree of all tokens' bytes. It counts what it spends, and gives up on a
grammar that would take too long.

JSON is written on one line, as `json.dumps` writes it: `{"name": "Ann", "ages": [1, 2]}`. Free white space would let a
small model write nothing else. Properties come in the schema's order. A schema may say otherwise under `x-guidance`, such
as `{"x-guidance": {"whitespace_flexible": true}}`.
"""

from glassformer.decoding.grammar.guide import Grammar, Guide

__all__ = ["Grammar", "Guide"]
