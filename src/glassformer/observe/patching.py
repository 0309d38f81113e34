"""Activation patching: which place inside the model makes one text lead elsewhere than another.

Two texts of equal length lead to two answers. The second one is read again and again, each time with one value inside (one
block's at one position, or one head's) taken from the first. Where that restores the first text's answer, the difference was
carried through that place. A cell says how much of the answer's lead is restored: 0, none; 1, all of it.

Shapes: values (rows, columns): a row for each layer, a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.attribution import resolve_token_id
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.text_pair import BY_HEAD, TextPair, check_part, check_size, read_pairs
from glassformer.observe.tokens import token_text
from glassformer.views.patching import AnswerToken, PatchedPart, Patching

LIKELY = 10  # tokens of each text among which a better pair is looked for


def patching(
    first: Activations,
    second: Activations,
    part: PatchedPart = "residual",
    positions: Sequence[int | str] | int | None = None,
    *,
    answer: int | str | None = None,
    against: int | str | None = None,
    progress: Progress | None = None,
) -> Patching:
    """Put the first text's values into the second one's pass, place by place, and see what restores its answer.

    `part`: 'residual' (the stream after each block), 'attention' or 'mlp' (what each adds to it); or, head by head and at
    all positions, 'heads' (each one's output), its 'query', 'key' or 'value', or its 'pattern' (where it looks).
    `positions`: by number or by a token of either text; by default all where a patch could matter. `answer` and `against`:
    the two tokens to tell apart, instead of what each text leads to.
    """
    check_part(part)
    pair = TextPair(first, second, positions, aligning="model.patch_pairs")
    check_size(pair.cost(part))
    model = first.model
    with read_pairs([pair], pair.sites(part).values()) as (read,):
        unpatched = read.scores
        answers = answer_tokens(model, unpatched, answer, against)
        target, rival = (token.id for token in answers)
        clean, corrupted = lead_of_answer(answers, unpatched)
        patches = pair.patches(part, read.values)
        columns = len({patch.column for patch in patches})
        layers = tuple(dict.fromkeys(patch.layer for patch in patches))
        values = np.zeros((len(layers), columns))
        for done, (patch, scores, _) in enumerate(read.patched(patches), 1):
            lead = float(scores[target] - scores[rival])
            values[layers.index(patch.layer), patch.column] = (lead - corrupted) / (clean - corrupted)
            if progress is not None:
                progress(done, len(patches))
    return Patching(
        model.name,
        part,
        (pair.text(first), pair.text(second)),
        (pair.token_texts(first), pair.token_texts(second)),
        answers,
        (clean, corrupted),
        layers,
        tuple(pair.positions),
        columns if part in BY_HEAD else 0,
        pair.heads // columns if part in ("key", "value") else 1,
        tuple(tuple(map(float, row)) for row in values),
        (int(unpatched[0].argmax()), int(unpatched[1].argmax())),
        tuple(model.changes),
    )


def answer_tokens(
    model: ModelLike, unpatched: Sequence[Floats], answer: int | str | None, against: int | str | None
) -> tuple[AnswerToken, AnswerToken]:
    """The two tokens that are told apart: those named, or what each text leads to by its scores."""
    target, rival = resolve_token_id(model, answer, unpatched[0]), resolve_token_id(model, against, unpatched[1])
    first, second = (AnswerToken(token, token_text(model.tokenizer, token)) for token in (target, rival))
    if target == rival:
        both = "are both to lead" if answer is not None and against is not None else "both lead"
        better = " and ".join(repr(token_text(model.tokenizer, token)) for token in _most_different(*unpatched))
        raise InputError(f"the texts {both} to {first.text!r}. Name two tokens to tell them apart: {better} differ most.")
    return first, second


def lead_of_answer(answers: tuple[AnswerToken, AnswerToken], unpatched: Sequence[Floats]) -> tuple[float, float]:
    """The answer's lead over the other token after each text; refused where they are the same."""
    first, second = answers
    clean, corrupted = (float(scores[first.id] - scores[second.id]) for scores in unpatched)
    if clean == corrupted:
        raise InputError(
            f"{first.text!r} has the same lead over {second.text!r} after both texts, so no patch can change it."
        )
    return clean, corrupted


def _most_different(first: Floats, second: Floats) -> tuple[int, int]:
    """Of the tokens that either text makes likely, the one that gains most by the first, and the one that loses most."""
    logs, other = log_softmax(first), log_softmax(second)
    likely = np.union1d(np.argsort(logs)[-LIKELY:], np.argsort(other)[-LIKELY:])
    gap = (logs - other)[likely]
    return int(likely[gap.argmax()]), int(likely[gap.argmin()])
