"""The sizes of a vocabulary, read off a tokenizer and the model that it belongs to."""

from __future__ import annotations

from glassformer.blueprints import Blueprint
from glassformer.ops.embed import Embed
from glassformer.text import Tokenizer
from glassformer.views.vocabulary import VocabularySizes

SCORING = ("causal", "seq2seq", "masked")  # heads that score tokens


def vocabulary(tokenizer: Tokenizer, blueprint: Blueprint | None = None) -> VocabularySizes:
    """Of a tokenizer, and of the model that it belongs to."""
    trained, listed = tokenizer.vocab_size, len(tokenizer)
    if blueprint is None:
        return VocabularySizes(trained, listed)
    rows = next(blueprint.ops_of(Embed)).weights[0].shape[0]
    scored = blueprint.ops[-1].shape[-1] if blueprint.head in SCORING else None
    assert scored is None or isinstance(scored, int)
    added = sum(number >= max(rows, trained) for number in tokenizer.get_added_vocab().values())
    return VocabularySizes(trained, listed, rows, scored, max(0, trained - rows) + added)
