"""What is derived from four blueprints, beside the same models written out by hand, without anything of ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.blueprints import read_config
from glassformer.compat import auto
from tests.oracles import bert, gpt2, llama, t5
from tests.parity import reference
from tests.parity.compare import close

pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(family: str, head: Any) -> Any:
    torch.manual_seed(1)
    model = auto.model_class_for_head(family, head)(read_config(reference.config(family).to_dict())).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
@pytest.mark.parametrize(("oracle", "family", "head"), [
    (llama, "llama", "causal"), (gpt2, "gpt2", "causal"), (bert, "bert", "masked"),
])  # fmt: skip
def test_derived_modules_compute_what_is_written_out(oracle: Any, family: str, head: str) -> None:
    model = model_of(family, head)
    ids = torch.tensor([5, 9, 3, 7, 30, 4, 11])
    close(model(ids[None]).logits[0], oracle.scores(model.state_dict(), model.config, ids))


@torch.no_grad()
def test_a_derived_encoder_decoder_computes_what_is_written_out() -> None:
    model = model_of("t5", "seq2seq")
    source, target = torch.tensor([5, 9, 3, 7, 30, 4, 11]), torch.tensor([0, 8, 6, 21])
    result = model(source[None], decoder_input_ids=target[None]).logits[0]
    close(result, t5.scores(model.state_dict(), model.config, source, target))
