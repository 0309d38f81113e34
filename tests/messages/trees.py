"""Trees of continuations, sweeps and strategies."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer import Change
from glassformer.ground.errors import InputError, InputTypeError, NotNumbers, SettingError, UnknownArgument
from glassformer.see.caching import caching
from glassformer.see.sweep import strategies
from tests.messages.calls import Entry, decoder, limited, pair, run
from tests.see.models import TEXT, both


def tree(**asked: Any) -> Any:
    return both("gpt2").model.tree(TEXT, **asked)


def ended() -> Any:
    """A tree whose first path has ended."""
    return pair().tree(TEXT, width=1, depth=1).forced([], "dog</s>")


MESSAGES: dict[str, list[Entry]] = {
    "trees": [
        (InputError, lambda: decoder().tree(TEXT, width=1, depth=256),
         "22 tokens and 256 levels do not fit into the model's context of 256. Shorten the prompt, or grow fewer levels."),
        (InputTypeError, lambda: pair().tree(TEXT).forced([], 3),
         "forced(): text is 3; it must be a text."),
        (InputError, lambda: tree(width=0),
         "width is 0; it must be from 1 to the 256 tokens that … scores."),
        (InputError, lambda: tree(depth=0),
         "depth is 0; it must be 1 or more levels."),
        (InputError, lambda: tree(width=1, depth=101),
         "a tree of 101 levels is too tall; 100 is the most. Grow fewer levels."),
        (InputError, lambda: tree(width=10, depth=6),
         "with width 10 and depth 6 the tree has 1,111,110 nodes; 100,000 is the most. Take a smaller width or depth."),
        (InputError, lambda: tree(width=256, depth=99),
         "with width 256 and depth 99 the tree has about 10^238 nodes; 100,000 is the most. Take a smaller width or "
         "depth."),
        (InputError, lambda: tree(at=[3]),
         "there is no node 3: the root has 3 children (0 to 2)."),
        (InputError, lambda: tree(at=[0, -1]),
         "there is no node 0.-1: node 0 has 3 children (0 to 2)."),
        (InputError, lambda: tree(width=1, at=[0, 1]),
         "there is no node 0.1: node 0 has 1 child (0)."),
        (InputError, lambda: tree(at=[0, 1, 2, 0]),
         "there is no node 0.1.2.0: node 0.1.2 has no children."),
        (InputError, lambda: pair().tree(TEXT).forced([], ""),
         "the text to force has no tokens. Give at least one character."),
        (InputError, lambda: pair().tree(TEXT).forced([], "dog</s>cat"),
         "the text to force goes on after </s>, which ends it. Leave out what follows."),
        (InputError, lambda: pair().tree(TEXT).forced([], "cat " * 101),
         "a tree of 102 levels is too tall; 100 is the most. Grow fewer levels."),
        (InputError, lambda: (tree := ended()).grown(tree.focus),
         "the text ends at node 1.0 (</s>), so nothing follows it. Take another one."),
        (InputError, limited("see.tree.MAX_NODES", 15, lambda: tree(width=3, depth=2).grown([0, 0])),
         "with width 3 and depth 2 the tree has 24 nodes; 15 is the most. Take a smaller width or depth."),
        (InputError, lambda: (tree := ended()).forced(tree.focus, "dog"),
         "the text ends at node 1.0 (</s>), so nothing follows it. Take another one."),
        (NotNumbers, lambda: decoder().changed({"blocks.0.residual": Change(shift=float("inf"))}).tree(TEXT),
         "the model's scores are not numbers (NaN or infinite). To see where that begins: glass run."),
    ],
    "sweeps and strategies": [
        (InputError, lambda: run().sweep("temperature", []),
         "a sweep needs values to try, such as temperature=0.2,0.7,1.2."),
        (SettingError, lambda: run().sweep("num_beams", [1, 2]),
         "num_beams shapes no scores, so a sweep of it shows nothing. Sweep temperature, …."),
        (InputError, lambda: run().sweep("temperature", [1.0], step=9),
         "there is no token 9 in a text of 2."),
        (SettingError, lambda: run().sweep("temperature", [-1.0]),
         "temperature is -1.0; it must be above 0."),
        (UnknownArgument, lambda: run().sweep("temprature", [1.0]),
         "there is no setting 'temprature'. Did you mean 'temperature'?"),
        (InputError, lambda: strategies(partial(decoder().watch, TEXT), {}, {}),
         "there is no strategy to try. Name one."),
        (SettingError, lambda: caching(decoder().watch(TEXT, max_new_tokens=2, num_beams=2)),
         "the cache is compared on one text at a time. Leave out beams, guidance and a model that drafts."),
    ],
}  # fmt: skip
