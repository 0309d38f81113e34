"""Every op computes in numpy what the model computed, from what its inputs were; and ops are plain data."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from glassformer.ops.attend import Attend
from glassformer.see.inside.compute import OpValues
from tests.see.models import WRITERS, both, encoder
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = (*WRITERS, "bert", "phi3", "olmo2", "granite", "gemma2", "gpt_neox", "mixtral", "gpt_oss", "qwen3_moe", "marian")
POSITION = 2


@pytest.mark.parametrize("family", mostly_swept(FAMILIES, "gpt2", "gemma3_text", "t5", "bert", "gpt_oss"))
def test_each_value_is_what_the_model_computed(family: str) -> None:
    reading: Any = encoder(family).model.read("the cat sat on") if family == "bert" else both(family).reading()
    values, kinds = OpValues(reading, POSITION), set()
    for number, op in enumerate(reading.model.blueprint.ops):
        from_source = op.stack or any("source" in values.ops[source].shape for source in op.inputs)
        if op.site is None or isinstance(op, Attend) or from_source:
            continue  # attention reads other tokens too: see `Attend.scores`
        inputs = [values.value(source) for source in op.inputs]
        computed = op.value(inputs, values.token(op))
        assert np.allclose(computed, values.value(number), atol=1e-4), (number, op)
        kinds.add(op.kind)
    assert {"norm", "scores"} <= kinds


def test_ops_are_plain_data() -> None:
    ops = both("llama").model.blueprint.ops
    assert pickle.loads(pickle.dumps(ops)) == ops
    for op in ops:
        assert type(replace(op, block=7)) is type(op)
        assert replace(op, block=7) != op
        assert replace(op) == op
        with pytest.raises(FrozenInstanceError):
            op.block = 7  # type: ignore[misc]
