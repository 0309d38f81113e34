"""The real sentence embedder, all-MiniLM-L6-v2, against the reference: ids, every state, and vectors that mean something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

import glassformer

TEXTS = (
    "A man is playing a guitar.",
    "Someone performs music on a string instrument in front of a large and rather noisy crowd.",
    "The stock market fell sharply on Monday.",
    "  Ünïcode,  odd   spacing\tand 12,345.67 numbers — 東京 😊 antidisestablishmentarianism",
    "",
)
PAIRS = (("How many people live in Berlin?", "Berlin has 3.5 million inhabitants."), ("Why?", "Because."))


class Both(NamedTuple):
    ours: Any
    theirs: Any
    tokenizer: Any
    their_tokenizer: Any


@pytest.fixture(scope="module")
def both(minilm: Path) -> Both:
    return Both(
        glassformer.AutoModel.from_pretrained(minilm).requires_grad_(False),
        transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval().requires_grad_(False),
        glassformer.AutoTokenizer.from_pretrained(minilm),
        transformers.AutoTokenizer.from_pretrained(minilm),
    )


def test_every_stored_tensor_is_used(minilm: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = glassformer.AutoModel.from_pretrained("minilm")
    assert not caplog.messages  # its position_ids are an old buffer
    assert (type(model).__name__, model.dtype) == ("BertModel", torch.float32)
    assert model.config.hidden_size == json.loads((minilm / "config.json").read_text())["hidden_size"] == 384


@pytest.mark.parametrize("options", [{}, {"truncation": True, "max_length": 12}])
def test_token_ids_equal_the_reference(both: Both, options: dict[str, Any]) -> None:
    for texts in ((list(TEXTS),), tuple(map(list, zip(*PAIRS, strict=True)))):
        result = both.tokenizer(*texts, padding=True, **options)
        expected = both.their_tokenizer(*texts, padding=True, **options)
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            assert result[name] == expected[name], name
    assert any(1 in row for row in result["token_type_ids"])


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_states_equal_the_reference(both: Both, texts: tuple[Any, ...]) -> None:
    """Of a padded batch, at the real tokens."""
    columns = tuple(map(list, zip(*texts, strict=True))) if texts is PAIRS else (list(texts),)
    tokens = both.tokenizer(*columns, padding=True, return_tensors="pt")
    real = tokens["attention_mask"].bool()
    assert not bool(real.all())
    expected = both.theirs(**tokens, output_hidden_states=True, output_attentions=True)
    result = both.ours(**tokens, output_hidden_states=True, output_attentions=True)
    assert len(result.hidden_states) == len(expected.hidden_states) == 7
    for one, other in zip(result.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(one[real], other[real], rtol=0, atol=1e-5)
    for one, other in zip(result.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(one.mT[real_pairs(real)], other.mT[real_pairs(real)], rtol=0, atol=1e-5)
    torch.testing.assert_close(result.last_hidden_state[real], expected.last_hidden_state[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(result.pooler_output, expected.pooler_output, rtol=0, atol=1e-5)


def real_pairs(real: Tensor) -> Tensor:
    """Keys and queries that are both there, for each of the 12 heads."""
    return (real[:, None, :, None] & real[:, None, None, :]).expand(-1, 12, -1, -1)


def embed(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    """The mean of each text's states, to unit length: what the model was trained for."""
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    there = tokens["attention_mask"][..., None]
    mean = (model(**tokens).last_hidden_state * there).sum(1) / there.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def test_similar_sentences_are_near(both: Both) -> None:
    groups = (
        ("A man is playing a guitar.", "Someone is making music on a string instrument."),
        ("The stock market fell sharply on Monday.", "Shares dropped a lot at the start of the week."),
        ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    )
    texts = [text for group in groups for text in group]
    vectors = embed(both.ours, both.tokenizer, texts)
    torch.testing.assert_close(vectors, embed(both.theirs, both.their_tokenizer, texts), rtol=0, atol=1e-5)
    near = vectors @ vectors.T
    for number in range(len(texts)):
        others = near[number].clone()
        others[number] = -1
        assert int(others.argmax()) == number ^ 1  # its partner
        others[number ^ 1] = -1
        assert float(near[number, number ^ 1]) > 0.4 > float(others.max())


def test_a_text_alone_is_as_in_a_batch(both: Both) -> None:
    together = embed(both.ours, both.tokenizer, list(TEXTS))
    for text, vector in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(embed(both.ours, both.tokenizer, [text])[0], vector, rtol=0, atol=1e-5)
