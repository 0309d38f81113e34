"""Circuits, patches, paths and graphs: what is carried over, and followed, inside a model."""

from __future__ import annotations

from typing import Any

from glassformer import Change, compare
from glassformer.ground.errors import InputError, InputTypeError, SettingError, SiteError
from glassformer.see.patching.compute import PairError, PartPlaces, run_patches
from glassformer.see.patching.pair import TextPair
from tests.messages.calls import Entry, decoder, limited, pair
from tests.see.models import TEXT, both, encoder

CAT, DOG = TEXT, "the dog sat on the cat"
UNEQUAL = ("the cat sat", "the bigcat sat", 4, 5)
HEAD = "blocks.0.attention.heads.1"


def gpt2() -> Any:
    return both("gpt2").model


def silent() -> Any:
    """A model that says the same of every text."""
    return gpt2().changed({"final": Change(scale=0)})


def patch(**asked: Any) -> Any:
    return decoder().patch(CAT, DOG, **asked)


def patch_pairs(*pairs: Any, **asked: Any) -> Any:
    return gpt2().patch_pairs([*pairs] or [("the cat sat", "the bat sat", 4, 5)], **asked)


def patch_path(*ends: Any, **asked: Any) -> Any:
    return gpt2().patch_path(CAT, DOG, *ends, **{"answer": 4, "against": 5, **asked})


def targets_differ() -> Any:
    texts = TextPair(pair().read(CAT, "a"), pair().read(DOG, "b"), None)
    return run_patches([texts], PartPlaces("residual"))


def broken(*_: object) -> float:
    """A metric with a mistake."""
    return 1 / 0


MESSAGES: dict[str, list[Entry]] = {
    "patching": [
        (InputError, lambda: encoder().model.patch("the cat sat", "a cat sat"),
         "… fills gaps: put one [MASK] into both texts, at the same place."),
        (InputError, lambda: compare(decoder().read("abc"), decoder().read("axc"), token="b"),
         "the second text has no token 'b'. Name one that both have."),
        (InputTypeError, lambda: compare(decoder(), "transformers", text=TEXT),
         "Model and str cannot be compared. Give two runs of watch(…), two texts of read(…), or two models and a text."),
        (SettingError, lambda: decoder().patch("the cat", "the dog", "mpl"),
         "there is no part 'mpl' to patch. Did you mean 'mlp'? Parts: residual, attention, recurrent, mlp, heads, "
         "recurrent_heads, query, key, "
         "value, pattern."),
        (InputError, lambda: decoder().attribution_patch("the cat", "the cat"),
         "the two texts are the same, so there is nothing to carry over."),
        (InputError, lambda: decoder().patch(TEXT, TEXT + " x"),
         "the texts have 22 and 24 tokens. Patching goes place by place: replace a word by one of as many tokens "
         "(model.tokens shows them), or use model.patch_pairs, which aligns them."),
        (InputError, lambda: patch(answer=5, against=5),
         "the texts are both to lead to …. Name two tokens to tell them apart, such as those that differ "
         "most: answer=… and against=…."),
        (InputError, lambda: patch(answer=99_999),
         "token id 99999 is outside the vocabulary of 256."),
        (InputError, lambda: both("deepseek_v2").model.patch(CAT, DOG, "key"),
         "… makes each head's key again of what it remembers, so that none can be patched. Patch 'query', 'heads' "
         "or 'pattern'."),
        (InputError, lambda: decoder().patch(CAT, DOG, "recurrent"),
         "… has no 'recurrent' to patch. Its layers have: residual, attention, mlp, heads, query, key, value, pattern."),
        (InputError, lambda: patch(positions=[99]),
         "there is no token 99 in a text of 22."),
        (InputError, lambda: patch(positions=0, answer=4, against=5),
         "the texts are the same up to position 4, so nothing before it can carry a difference."),
        (InputError, lambda: patch(positions=[], answer=4, against=5),
         "name at least one position to patch, or leave positions out for all."),
        (InputError, lambda: patch(answer=4, against=5).at(9, 1),
         "there is no cell of layer 9 and position 1."),
        (InputError, lambda: silent().patch(CAT, DOG, answer=4, against=5),
         "… has the same lead over … after both texts, so no patch can change it."),
        (InputError, limited("see.patching.pair.MAX_TOKENS", 10, lambda: patch(answer=4, against=5)),
         "patching 18 × 4 places of this text reads 684 tokens. Name a few positions."),
        (InputError, lambda: targets_differ(),
         "the two targets differ. Patch two texts that an encoder reads, before the same target."),
        (InputError, lambda: encoder("bert", "base").model.patch("the cat sat", "a cat sat"),
         "… scores no tokens, so there is no answer that a patch could restore."),
        (InputError, limited("see.patching.estimate.MAX_BYTES", 1000, lambda: gpt2().attribution_patch(CAT, DOG)),
         "the values and gradients of these places take 0.0 GB. Take shorter texts."),
        (InputError, lambda: patch(answer="#5", against=5),
         "the texts are both to lead to …. Name two tokens to tell them apart, such as those that differ "
         "most: answer=… and against=…."),
        (InputError, lambda: patch(answer="ab", against=5),
         "'ab' is 2 tokens, not one. Name one, or give its id, as in #57."),
        (InputError, lambda: decoder().patch(TEXT, "the cat sat on the cat"),
         "the texts both lead to …. Name two tokens to tell them apart, such as those that differ "
         "most: answer=… and against=…."),
        (InputError, lambda: encoder("bert", "sequence").model.attribution_patch("the cat", "a cat"),
         "… scores no tokens, so there is no answer that a patch could restore."),
        (SettingError, lambda: gpt2().attribution_patch(CAT, DOG, "head"),
         "there is no part 'head' to patch. Did you mean 'heads'? Parts: residual, attention, recurrent, mlp, heads, "
         "recurrent_heads, query, key, "
         "value, pattern."),
    ],
    "pairs of texts to patch": [
        (InputError, lambda: gpt2().patch_pairs([]),
         "there are no pairs of texts to patch. Give at least one."),
        (InputTypeError, lambda: gpt2().patch_pairs("a"),
         "patch_pairs(): pairs is 'a'; it must be a list of lists or dictionaries."),
        (PairError, lambda: patch_pairs(("a cat", "a hat", 4, 5), ("a",)),
         "pair 2 is ('a',); it must have a first and a second text, and perhaps two answers."),
        (PairError, lambda: patch_pairs({"first": "a", "third": "b"}),
         "pair 1 has a field 'third'; those of a pair are first, second, answer, against."),
        (PairError, lambda: patch_pairs(("a cat", "a hat", 4, 5), ("a cat", "a cat")),
         "pair 2: the two texts are the same, so there is nothing to carry over."),
        (PairError, lambda: patch_pairs(("a cat", "a hat", 5, 5)),
         "pair 1: the texts are both to lead to …. Name two tokens to tell them apart, such as those that differ "
         "most: answer=… and against=…."),
        (PairError, lambda: patch_pairs(("a cat", "a cat sat", 4, 5)),
         "pair 1: one text is the beginning of the other, so no position after it has a counterpart to patch."),
        (PairError, lambda: patch_pairs(UNEQUAL, part="pattern"),
         "pair 1: patterns of texts with different numbers of tokens have different shapes. Patch query or key."),
        (PairError, lambda: patch_pairs(UNEQUAL, positions=5),
         "pair 1: 5 has no counterpart in the other text, so it cannot be patched."),
        (SettingError, lambda: patch_pairs(metric="kld"),
         "there is no metric 'kld'. Did you mean 'kl'? Metrics: recovered, logit_difference, probability, kl; or a "
         "function of scores and a pair."),
        (PairError, lambda: patch_pairs(metric=broken),
         "pair 1: the metric 'broken' failed with ZeroDivisionError: division by zero"),
        (PairError, lambda: patch_pairs(metric=lambda *_: float("nan")),
         "pair 1: the metric '<lambda>' returned nan; it must return a finite number."),
        (PairError, lambda: patch_pairs(metric=lambda *_: "much"),
         "pair 1: the metric '<lambda>' returned 'much'; it must return a finite number."),
        (PairError, lambda: silent().patch_pairs([("the cat sat", "the bat sat", 4, 5)]),
         "pair 1: … has the same lead over … after both texts, so no patch can change it."),
        (InputTypeError, lambda: gpt2().patch_pairs(["ab"]),
         "patch_pairs(): pairs is ['ab']; it must be a list of lists or dictionaries."),
        (PairError, lambda: patch_pairs(("a", "b", 1, 2, 3)),
         "pair 1 is ('a', 'b', 1, 2, 3); it must have a first and a second text, and perhaps two answers."),
        (SettingError, lambda: patch_pairs(part="head"),
         "there is no part 'head' to patch. Did you mean 'heads'? Parts: residual, attention, recurrent, mlp, heads, "
         "recurrent_heads, query, key, "
         "value, pattern."),
        (InputError, limited("see.patching.pair.MAX_TOKENS", 10, lambda: patch_pairs()),
         "patching 4 × 3 places of this text reads 84 tokens. Name a few positions."),
    ],
    "paths": [
        (InputError, lambda: pair().patch_path("the cat sat", "the dog sat"),
         "… has two stacks. Path patching is for models of one."),
        (InputError, lambda: patch_path(HEAD, []),
         "name at least one receiver, such as 'final' or 'blocks.3.attention.query.1'."),
        (InputError, lambda: patch_path(HEAD, ["final", "blocks.1.mlp.input"]),
         "'final' is the end of the model, and hides what other receivers do. Name it alone."),
        (InputError, lambda: patch_path("blocks.1.mlp.update", ["blocks.1.attention.query"]),
         "no receiver comes after blocks.1.mlp.update, so there is no path from it."),
        (SiteError, lambda: patch_path("blocks.0.mlp.input"),
         "a path cannot begin at 'blocks.0.mlp.input'. Did you mean 'mlp.update'? It can at: embedding, "
         "attention.heads, attention.update, mlp.update, residual."),
        (SiteError, lambda: patch_path(HEAD, ["blocks.1.residual"]),
         "a path cannot end at 'blocks.1.residual'. It can at: attention.input, attention.query, attention.key, "
         "attention.value, mlp.input, final."),
        (SiteError, lambda: patch_path(HEAD, ["blocks.1.attention.query.99"]),
         "there is no head 99 at 'blocks.1.attention.query', which has 4."),
        (SiteError, lambda: patch_path("blocks.0.mlp.update.1"),
         "there is no head 1 at 'blocks.0.mlp.update', which has 0."),
        (SiteError, lambda: patch_path("nowhere"),
         "no site matches 'nowhere' in a model of 3 blocks. Sites: …."),
        (InputError, lambda: patch_path(answer=5),
         "the texts are both to lead to …. Name two tokens to tell them apart, such as those that differ "
         "most: answer=… and against=…."),
        (InputError, limited("see.patching.pair.MAX_TOKENS", 3, lambda: patch_path()),
         "patching 12 × 1 places of this text reads 216 tokens. Name a few positions."),
    ],
    "circuits and graphs": [
        (InputError, lambda: decoder().read(TEXT).graph(threshold=2),
         "threshold is 2; it is a share of the score, from 0 to 1."),
        (InputError, limited("see.attribution_graph.MAX_FOLLOWED", 3, lambda: decoder().read(TEXT).graph(threshold=0)),
         "the graph has more than 3 heads to follow. Raise the threshold."),
        (InputError, limited("see.attribution_graph.MAX_BYTES", 1000, lambda: decoder().read(TEXT).graph()),
         "a graph over 22 tokens needs 0.0 GB of values; 0 GB is the most. Shorten the text."),
        (InputError, lambda: gpt2().circuits.head(9, 0),
         "there is no layer 9; … has 3, from 0 on."),
        (InputError, lambda: gpt2().circuits.head(0, 9),
         "there is no head 9 in layer 0, which has 4, from 0 on."),
        (InputError, lambda: gpt2().circuits.head(0, 0, [3], best=0),
         "best is 0; from 1 to 256 tokens can be shown."),
        (InputError, lambda: gpt2().circuits.head(0, 0, [3], distance=10**6),
         "distance is 1000000; keys stand from 0 to 255 tokens back."),
        (InputError, lambda: gpt2().circuits.head(0, 0, []),
         "a circuit is shown for 1 to 256 different tokens, not 0."),
        (InputError, lambda: gpt2().circuits.composition(0),
         "no head comes before layer 0 of …, so none composes with one."),
        (InputError, lambda: encoder().model.circuits.head(0, 0),
         "… does not score the next token, so what its heads write has no names."),
        (InputError, limited("see.circuits.MAX_PRODUCTS", 10, lambda: gpt2().circuits.composition()),
         "all heads of … are 0.0 trillion products to compare, which is too many here. Name a layer that reads."),
        (InputError, limited("see.circuits.MAX_BYTES", 10, lambda: gpt2().read(TEXT).circuit(0, 0)),
         "the attention of 22 tokens is 0.0 GB of values. Shorten the text."),
        (InputError, lambda: encoder().model.read(TEXT).graph(),
         "… does not score the next token, so its parts have no share in one."),
    ],
}  # fmt: skip
