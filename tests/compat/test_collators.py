"""Data collators, beside transformers': the same rows and seeds give the same batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import glassformer
from tests.ecosystem.models import TEXTS, Pair, load_tokenizers, write_tokenizer

TENSORS = ("pt", "np")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_tokenizers(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def assert_same_batches(ours: Any, theirs: Any) -> None:
    assert list(ours.keys()) == list(theirs.keys())
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
        if value is not None:
            assert ours[name].dtype == value.dtype, name
            assert np.array_equal(ours[name], value), name


def collate(name: str, tokenizers: Pair, rows: Any, **options: Any) -> tuple[Any, Any]:
    """Two batches in a row of each collator, from rows that each tokenizer has encoded."""
    both = []
    for library, tokenizer in ((glassformer, tokenizers.ours), (transformers, tokenizers.theirs)):
        torch.manual_seed(1)
        np.random.seed(1)
        collator = getattr(library, name)(tokenizer, **options)
        both.append([collator(rows(tokenizer)), collator(rows(tokenizer))])
    for ours, theirs in zip(*both, strict=True):
        assert_same_batches(ours, theirs)
    return both[0][0], both[0][1]


def encoded(tokenizer: Any, texts: Any = TEXTS, **options: Any) -> list[dict[str, Any]]:
    return [dict(tokenizer(text, **options)) for text in texts]


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("label", ["label", "label_ids", None])
@pytest.mark.parametrize("options", [{}, {"padding": "max_length", "max_length": 20}, {"pad_to_multiple_of": 8}])
def test_rows_are_padded(tokenizers: Pair, kind: str, label: str | None, options: dict[str, Any]) -> None:
    def rows(tokenizer: Any) -> Any:
        return [{**row, **({label: at} if label else {})} for at, row in enumerate(encoded(tokenizer))]

    batch, _ = collate("DataCollatorWithPadding", tokenizers, rows, return_tensors=kind, **options)
    assert ("labels" in batch) == (label is not None)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("label", ["label", "labels", None])
def test_labels_of_tokens_are_padded_along(
    tokenizers: Pair, kind: str, side: str, label: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tokenizer in tokenizers:
        monkeypatch.setattr(tokenizer, "padding_side", side)

    def rows(tokenizer: Any) -> Any:
        return [{**row, **({label: row["input_ids"]} if label else {})} for row in encoded(tokenizer)]

    collate("DataCollatorForTokenClassification", tokenizers, rows, return_tensors=kind)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 4}, {"padding": "max_length", "max_length": 16}])
def test_targets_have_a_length_of_their_own(
    tokenizers: Pair, kind: str, side: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tokenizer in tokenizers:
        monkeypatch.setattr(tokenizer, "padding_side", side)

    def rows(tokenizer: Any) -> Any:
        return [dict(tokenizer(text, text_target=text[: 5 * at])) for at, text in enumerate(TEXTS, 1)]

    collate("DataCollatorForSeq2Seq", tokenizers, rows, return_tensors=kind, **options)


def test_the_decoder_s_input_comes_from_the_model(tokenizers: Pair) -> None:
    sizes = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = {**sizes, "decoder_start_token_id": 0, "pad_token_id": 0}
    batches = []
    for library, tokenizer in ((glassformer, tokenizers.ours), (transformers, tokenizers.theirs)):
        model = library.T5ForConditionalGeneration(library.T5Config(**config))
        rows = [dict(tokenizer(text, text_target=text[:9])) for text in TEXTS]
        batches.append(library.DataCollatorForSeq2Seq(tokenizer, model=model)(rows))
    assert_same_batches(*batches)
    assert "decoder_input_ids" in batches[0]
    without = glassformer.DataCollatorForSeq2Seq(tokenizers.ours)(encoded(tokenizers.ours))
    assert without["labels"] is None


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"mlm_probability": 0.5}, {"mlm_probability": 0.6, "mask_replace_prob": 0.5, "random_replace_prob": 0.4},
        {"mask_replace_prob": 1.0, "random_replace_prob": 0.0, "mlm_probability": 0.4}, {"mlm": False},
        {"pad_to_multiple_of": 8, "mlm_probability": 0.9},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", [None, 5])
def test_tokens_are_masked_by_the_same_draws(tokenizers: Pair, kind: str, options: dict[str, Any], seed: int | None) -> None:
    collate("DataCollatorForLanguageModeling", tokenizers, encoded, return_tensors=kind, seed=seed, **options)

    def with_masks(tokenizer: Any) -> Any:
        return encoded(tokenizer, return_special_tokens_mask=True)

    collate("DataCollatorForLanguageModeling", tokenizers, with_masks, return_tensors=kind, seed=seed, **options)


@pytest.mark.parametrize("kind", TENSORS)
def test_whole_words_are_masked_together(tokenizers: Pair, kind: str) -> None:
    text = "the cats walked, talking and playing under the trees"

    def rows(tokenizer: Any) -> Any:
        return encoded(tokenizer, [text] * 3, return_offsets_mapping=True, return_special_tokens_mask=True)

    with pytest.warns(UserWarning, match="Random token replacement"):  # transformers' word for it
        collate(
            "DataCollatorForLanguageModeling", tokenizers, rows, whole_word_mask=True, mlm_probability=0.5,
            return_tensors=kind, seed=2,
        )  # fmt: skip
    tokenizer = tokenizers.ours
    collator = glassformer.DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, mlm_probability=0.4, seed=0)
    texts = [text, "a dog ran"]
    batch = collator(encoded(tokenizer, texts, return_offsets_mapping=True, return_special_tokens_mask=True))
    masked = batch["input_ids"] == tokenizer.mask_token_id
    assert masked.any()
    assert torch.equal(masked, batch["labels"] != -100)
    for row, shown in enumerate(texts):
        words = tokenizer(shown).word_ids()
        by_word: dict[int, set[bool]] = {}
        for word, hidden in zip(words, masked[row].tolist(), strict=False):
            if word is not None:
                by_word.setdefault(word, set()).add(hidden)
        assert all(len(states) == 1 for states in by_word.values())


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("mlm", [True, False])
def test_rows_may_be_ids_alone(tokenizers: Pair, kind: str, mlm: bool) -> None:
    def rows(tokenizer: Any) -> Any:
        return [tokenizer(text)["input_ids"] for text in TEXTS]

    collate("DataCollatorForLanguageModeling", tokenizers, rows, mlm=mlm, return_tensors=kind, seed=1)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize(
    "rows",
    [
        [{"input_ids": [1, 2], "label": 1}, {"input_ids": [3, 4], "label": 0}],
        [{"x": [0.5, 1.0], "label": 0.5, "text": "left out"}, {"x": [1.5, 2.0], "label": 1.5, "text": "too"}],
        [{"x": torch.tensor([1, 2]), "label_ids": [1, 2]}, {"x": torch.tensor([3, 4]), "label_ids": [2, 1]}],
        [{"x": np.array([1.0, 2.0]), "label": None}, {"x": np.array([3.0, 4.0]), "label": None}],
    ],
)
def test_rows_of_one_length_are_stacked(rows: list[dict[str, Any]], kind: str) -> None:
    if kind == "np" and isinstance(rows[0].get("x"), torch.Tensor):
        rows = [{name: np.asarray(value) for name, value in row.items()} for row in rows]
    ours = glassformer.default_data_collator(rows, kind)
    assert_same_batches(ours, transformers.default_data_collator(rows, kind))
    objects = [SimpleNamespace(**row) for row in rows]
    assert_same_batches(glassformer.DefaultDataCollator(kind)(objects), ours)


def test_workers_draw_differently(tokenizers: Pair) -> None:
    collator = glassformer.DataCollatorForLanguageModeling(tokenizers.ours, mlm_probability=0.5, seed=3)
    rows = encoded(tokenizers.ours, [TEXTS[2]] * 8)
    first, second = DataLoader(rows, batch_size=4, num_workers=2, collate_fn=collator)
    assert not torch.equal(first["labels"], second["labels"])
    assert torch.equal(first["labels"], collator(rows[:4])["labels"])


def test_which_tokens_are_special(tmp_path: Path) -> None:
    tokenizer = load_tokenizers(write_tokenizer(tmp_path)).ours
    assert tokenizer.get_special_tokens_mask([2, 5, 3], already_has_special_tokens=True) == [1, 0, 1]
