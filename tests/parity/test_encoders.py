"""Ours against the reference, for the encoders: padding, batches, token types, positions, vectors; every head.

The reference takes no positions from the mask (RoBERTa's takes them from the ids), so it is asked for right padding only.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer.blueprints import module_for
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, load, pair, ragged, same_fields
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = ("base", "masked", "sequence", "token", "question")
QUICK = [(family, seed) for family in reference.ENCODERS for seed in range(2)]
WIDE = swept((family, seed) for family in reference.ENCODERS for seed in range(2, 22))
COUNTED_BY_IDS = tuple(  # whose reference counts positions by ids, and not by the mask
    family for family in reference.ENCODERS if module_for(family).FAMILY.padding_position
)
YOUNG = ("modernbert", "nomic_bert", "gte", "eurobert", "embedding_gemma")  # whose norms never had other names
OLD = tuple(family for family in reference.ENCODERS if family not in YOUNG)
BLIND_PADDING = ("deberta", "deberta-v2", "embedding_gemma")  # whose reference lets padding see all tokens alike
SHIFTED = ("embedding_gemma",)  # whose reference takes the labels of what comes next
ALL = {"output_hidden_states": True, "output_attentions": True}


@pytest.fixture(scope="module", params=[*QUICK, *WIDE], ids=lambda p: f"{p[0]}-{p[1]}")
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """One randomised configuration with each head."""
    family, seed = request.param
    changes, labels = reference.random_changes(family, seed), {"sequence": 4, "token": 4}
    return {
        head: pair(tmp_path_factory.mktemp(f"{family}-{head}"), family, head, **changes, num_labels=labels.get(head, 2))
        for head in HEADS
        if head in reference.HEADS[family]
    }


def types_for(models: Pair, ids: Tensor) -> dict[str, Tensor]:
    """Token types, in families that have them."""
    kinds = getattr(models.theirs.config, "type_vocab_size", 0)
    return {"token_type_ids": (ids * 7 % 5) % kinds} if kinds else {}


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
def test_every_output_of_a_padded_batch(heads: dict[str, Pair], head: str) -> None:
    """With token types; what comes of real tokens is compared."""
    if (models := heads.get(head)) is None:
        pytest.skip("the family has no such head")
    _, padded, mask = ragged(models.theirs, (13, 5, 9))
    inputs = {"input_ids": padded, "attention_mask": mask, **types_for(models, padded)}
    expected, result = models.theirs(**inputs, **ALL), models.ours(**inputs, **ALL)
    names = ["last_hidden_state", "hidden_states", "attentions", "start_logits", "end_logits"]
    names += ["logits"] if head in ("masked", "token") else []
    same_fields(result, expected, **dict.fromkeys(names, mask))
    for pattern in result.attentions:
        unseen = (mask[:, None, :, None] == 1) & (mask[:, None, None] == 0)  # what real tokens must not look at
        assert float(pattern.masked_select(unseen).abs().max()) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("head", HEADS)
def test_a_batch_gives_what_each_row_gives_alone(heads: dict[str, Pair], head: str, side: str) -> None:
    """Positions come from the mask, so padding on either side changes nothing."""
    if (models := heads.get(head)) is None:
        pytest.skip("the family has no such head")
    rows, padded, mask = ragged(models.theirs, (11, 4, 8), side)
    together = models.ours(padded, attention_mask=mask, **types_for(models, padded))
    assert not any(isinstance(value, Tensor) and bool(value.isnan().any()) for value in together.values())
    for number, row in enumerate(rows):
        alone = models.ours(row[None], **types_for(models, row[None]))
        for name in alone.keys():
            one = together[name][number]
            close(one[mask[number].bool()] if len(one) == 11 else one, alone[name][0])


@torch.no_grad()
@pytest.mark.parametrize("head", ["base", "masked"])
def test_vectors_instead_of_ids(heads: dict[str, Pair], head: str) -> None:
    if (models := heads.get(head)) is None:
        pytest.skip("the family has no such head")
    vectors = models.theirs.get_input_embeddings()(ids_for(models.theirs, 2, 8))
    same_fields(models.ours(inputs_embeds=vectors, **ALL), models.theirs(inputs_embeds=vectors, **ALL))
    close(models.ours(inputs_embeds=vectors)[0], models.ours(ids_for(models.theirs, 2, 8))[0], 1e-6)


@torch.no_grad()
def test_token_types_count(heads: dict[str, Pair]) -> None:
    models = heads["base"]
    ids = ids_for(models.theirs, 2, 8)
    types = types_for(models, ids)
    if not types:
        assert models.family in ("distilbert", "modernbert", "deberta", "deberta-v2", "mpnet", "eurobert", "embedding_gemma")
        close(models.ours(ids, token_type_ids=torch.ones_like(ids))[0], models.ours(ids)[0])  # it has none to count
        return
    close(models.ours(ids, **types)[0], models.theirs(ids, **types)[0])
    close(models.ours(ids)[0], models.theirs(ids, token_type_ids=torch.zeros_like(ids))[0])
    if models.theirs.config.type_vocab_size > 1:
        assert not torch.allclose(models.ours(ids, **types)[0], models.ours(ids)[0], atol=1e-5)


@torch.no_grad()
def test_position_ids(heads: dict[str, Pair]) -> None:
    """They count rows of the table: RoBERTa's first token has the one behind the padding id's."""
    models = heads["masked"]
    if "position_ids" not in inspect.signature(models.theirs.forward).parameters:  # whose reference takes none
        return
    first = models.theirs.config.pad_token_id + 1 if models.family in COUNTED_BY_IDS else 0
    ids, positions = ids_for(models.theirs, 1, 6), torch.tensor([[0, 2, 4, 9, 30, 31]]) + first
    close(models.ours(ids, position_ids=positions)[0], models.theirs(ids, position_ids=positions)[0])
    if getattr(models.theirs.config, "position_biased_input", True):  # without, only distances count
        assert not torch.allclose(models.ours(ids, position_ids=positions)[0], models.ours(ids)[0], atol=1e-5)


@torch.no_grad()
def test_padding_itself_is_as_the_reference_has_it(heads: dict[str, Pair]) -> None:
    """Whoever averages over all states, or loses over all scores, meets padding; and masks may have holes."""
    models = heads["masked"]
    if models.family in BLIND_PADDING:
        return
    _, padded, mask = ragged(models.theirs, (13, 5, 9))
    padded = padded.masked_fill(mask == 0, models.theirs.config.pad_token_id)
    ours, theirs = (model(padded, attention_mask=mask, output_attentions=True) for model in (models.ours, models.theirs))
    close(ours.logits, theirs.logits)
    for one, other in zip(ours.attentions, theirs.attentions, strict=True):
        close(one, other)
    if models.family not in COUNTED_BY_IDS:
        holes = torch.tensor([[1, 0, 1, 1, 0, 0, 0, 0]])
        ids = ids_for(models.theirs, 1, 8)
        close(models.ours(ids, attention_mask=holes).logits, models.theirs(ids, attention_mask=holes).logits)


@torch.no_grad()
@pytest.mark.parametrize("head", ["masked", "token", "question"])
def test_losses(heads: dict[str, Pair], head: str) -> None:
    if (models := heads.get(head)) is None:
        pytest.skip("the family has no such head")
    _, padded, mask = ragged(models.theirs, (13, 13, 13) if models.family in BLIND_PADDING else (13, 5, 9))
    if head == "question":  # scores of padding count in its loss; two of the positions lie behind the end
        targets = {"start_positions": torch.tensor([3, 77, 0]), "end_positions": torch.tensor([12, 4, 13])}
    else:
        count = 4 if head == "token" else models.theirs.config.vocab_size
        targets = {"labels": (padded * 3 % count).masked_fill((mask == 0) | (padded % 3 == 0), -100)}
    ours = models.ours(padded, attention_mask=mask, **targets).loss
    if models.family in SHIFTED:
        targets["labels"][:, -1] = -100
        ours = models.ours(padded, attention_mask=mask, **targets).loss
        targets["labels"] = targets["labels"].roll(1, -1)
    theirs = models.theirs(padded, attention_mask=mask, **targets).loss
    assert abs(float(ours) - float(theirs)) <= 1e-5 * float(theirs)


@torch.no_grad()
@pytest.mark.parametrize("family", OLD)
def test_old_names_of_norms(family: str, tmp_path: Path) -> None:
    """Files from before 2020 say gamma and beta, and store what nobody reads."""
    models = pair(tmp_path / "new", family, "masked")
    old = tmp_path / "old"
    old.mkdir()
    stored: dict[str, Any] = load_file(tmp_path / "new" / "model.safetensors")
    renamed = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
               for n, v in stored.items()}  # fmt: skip
    assert renamed.keys() != stored.keys()
    renamed[f"{module_for(family).FAMILY.base}.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(renamed, old / "model.safetensors", {"format": "pt"})
    (old / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
    ids = ids_for(models.theirs, 1, 7)
    assert torch.equal(load(old, "masked")(ids).logits, models.ours(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", reference.ENCODERS)
def test_a_head_takes_the_base_of_another(family: str, tmp_path: Path) -> None:
    """A masked model's file opened as a base, and a base's as a classifier: the same states."""
    models = pair(tmp_path, family, "masked")
    ids = ids_for(models.theirs, 2, 7)
    expected = models.theirs.base_model(ids).last_hidden_state
    close(load(tmp_path, "base")(ids).last_hidden_state, expected)
    head = "token" if "token" in reference.HEADS[family] else "sequence"
    tagger = load(tmp_path, head, num_labels=7)
    assert tagger(ids).logits.shape == ((2, 7, 7) if head == "token" else (2, 7))
    close(tagger(ids, output_hidden_states=True).hidden_states[-1], expected)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [type(models.theirs).__name__]
