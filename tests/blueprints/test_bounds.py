"""Numbers out of files: every number of every family's config, with values that no honest file has.

They are tried in a process of their own, which has little memory (where Linux can say so) and little time: a number that
something loops over or allocates by, before it is compared with what the file holds, ends it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from glassformer.blueprints import module_for, read_config
from glassformer.blueprints.config import Config
from glassformer.compat.auto import model_class_for_head
from glassformer.compat.pretrained import load
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.protocol import Feed
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import matches_type
from glassformer.model_files import ModelFiles, open_model
from tests.checkpoint.files import write_gguf
from tests.checkpoint.test_gguf import sizes
from tests.parity import reference
from tests.strange_numbers import STRANGE, failures, limited

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = (*reference.FAMILIES, "scratch")
SCRATCH = {
    "model_type": "scratch", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16,
}  # fmt: skip


def config_class(family: str) -> type[Config]:
    result: type[Config] = module_for(family).Config
    return result


def number_fields(family: str) -> list[str]:
    """The fields of a family's config that are numbers, or lists of them, under the names that its files have."""
    cls = config_class(family)
    hints = get_type_hints(cls)
    typed = (f.name for f in fields(cls) if hints[f.name] is not Any)  # the others have configs of their own
    names = [name for name in typed if any(matches_type(value, hints[name]) for value in (5, 0.5))]
    return [cls.own_name(name) for name in names]


def open_all(folder: Path) -> ModelFiles:
    """Open a checkpoint, and read all that is known of it without running it."""
    opened = open_model(folder)
    opened.check_sizes()
    assert opened.blueprint().ops
    assert opened.settings is not None
    return opened


def run_everywhere(folder: Path) -> None:
    """And run it with both executors, if that is possible."""
    opened = open_all(folder)
    model = load(model_class_for_head(opened.config.model_type, opened.head), opened)
    model(torch.tensor([[3, 5, 7]]), **({"labels": torch.tensor([[3, 5, 7]])} if opened.config.encoder_layers else {}))
    if opened.head in ("causal", "seq2seq"):
        executor = CpuExecutor(opened.config, opened.blueprint(), opened.tensors)
        executor.run([Feed(executor.open([3, 5, 7] if opened.config.encoder_layers else None), [3, 5, 7])])


Use = Callable[[Path], object]
every_use = pytest.mark.parametrize("use", [open_all, pytest.param(run_everywhere, marks=pytest.mark.sweep)])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """A tiny checkpoint of a family in `tmp_path`, and its raw config."""

    def write(family: str) -> dict[str, Any]:
        if family == "scratch":
            config = read_config(SCRATCH)
            model_class_for_head("scratch", "causal")(config).save_pretrained(tmp_path)
        else:
            reference.write(tmp_path, family, reference.HEADS[family][1])
        raw: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
        return raw

    return write


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_a_config_has_bounds(family: str) -> None:
    cls = config_class(family)
    names = {cls.aliases.get(name, name) for name in number_fields(family)} - {"id2label"}
    assert names <= cls.bounds.keys()


@every_use
@pytest.mark.parametrize("family", FAMILIES)
def test_strange_numbers_in_a_config_are_refused_or_harmless(
    family: str, use: Use, checkpoint: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    raw = checkpoint(family)

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in number_fields(family):
            for value in STRANGE:
                (tmp_path / "config.json").write_text(json.dumps({**raw, name: value}))
                yield f"{name}={value!r}"[:60], lambda: use(tmp_path)

    assert limited(lambda: failures(cases())) == []


ROPE_FIELDS = (
    "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor", "partial_rotary_factor",
)  # fmt: skip
ROPES: tuple[dict[str, Any], ...] = (
    *reference.ROPES,
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "longrope", "original_max_position_embeddings": 8, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
)


@every_use
@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_strange_numbers_of_rope_are_refused_or_harmless(
    rope: dict[str, Any], use: Use, checkpoint: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    raw = checkpoint("llama")

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in ROPE_FIELDS:
            for value in STRANGE:
                (tmp_path / "config.json").write_text(json.dumps({**raw, "rope_parameters": {**rope, name: value}}))
                yield f"{name}={value!r}"[:60], lambda: use(tmp_path)

    assert limited(lambda: failures(cases())) == []


def test_strange_numbers_in_a_gguf_file_are_refused_or_harmless(tmp_path: Path) -> None:
    metadata = sizes("llama")
    names = [name for name, typed in metadata.items() if isinstance(typed[0], int | float)]
    values = [0, 1, 2**31, 2**32 + 1, 2**63]

    def changed(name: str, value: int) -> Mapping[str, Any]:
        from gguf import GGUFValueType as Value

        return {**metadata, name: (value, Value.UINT64)}

    def work(name: str, value: int) -> object:
        opened = open_model(write_gguf(tmp_path / "x.gguf", metadata=changed(name, value)))
        return load(model_class_for_head("llama", "causal"), opened)

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in names:
            for value in values:
                yield f"{name}={value}", lambda name=name, value=value: work(name, value)  # type: ignore[misc]

    assert len(names) > 4
    assert limited(lambda: failures(cases())) == []


@pytest.mark.parametrize(("change", "message"), [
    ({"num_hidden_layers": 2**31}, "'num_hidden_layers' is 2147483648"),
    ({"num_hidden_layers": 4000}, r"'num_hidden_layers' is 4000, but the weights are \d+ tensors. Is this the config"),
    ({"vocab_size": 10**9}, "'vocab_size' is 1000000000, but no dimension of the weights is above 160"),
    ({"num_attention_heads": 10**30}, "'num_attention_heads' is 10{30}"),
    ({"num_attention_heads": 10**400}, r"'num_attention_heads' is 10+\.\.\.0+"),
    ({"rms_norm_eps": math.nan}, "'rms_norm_eps' is nan"),
    ({"rms_norm_eps": -1e-5}, "'rms_norm_eps' is -1e-05"),
    ({"initializer_range": -math.inf}, "'initializer_range' is -inf"),
    ({"attention_dropout": 1.5}, "'attention_dropout' is 1.5"),
    ({"eos_token_id": [2, 2**40]}, "'eos_token_id' is 1099511627776"),
    ({"id2label": {"9" * 5000: "x"}}, r"'id2label' is .*\.\.\..*"),
])  # fmt: skip
def test_what_is_said_of_a_strange_number(
    change: dict[str, Any], message: str, checkpoint: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    raw = checkpoint("llama")
    (tmp_path / "config.json").write_text(json.dumps({**raw, **change}))
    with pytest.raises(ConfigError, match=message):
        load(model_class_for_head("llama", "causal"), open_model(tmp_path))


@pytest.mark.parametrize(("family", "change", "message"), [
    ("gemma3_text", {"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' is 0"),
    ("mistral", {"sliding_window": 2**32 + 1}, "'sliding_window' is 4294967297"),
    ("mistral", {"sliding_window": 0}, "'sliding_window' is 0"),
    ("t5", {"relative_attention_max_distance": 10**9}, "'relative_attention_max_distance' is 1000000000"),
    ("roberta", {"pad_token_id": 500}, "'pad_token_id' is 500, which leaves no positions of 66"),
])  # fmt: skip
def test_what_is_said_of_a_familys_own_number(family: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"model_type": family, **reference.config(family).to_dict(), **change})


def test_gguf_layers_beyond_its_tensors_are_refused(tmp_path: Path) -> None:
    from gguf import GGUFValueType as Value

    path = write_gguf(tmp_path / "x.gguf", metadata={**sizes("llama"), "llama.block_count": (2**31, Value.UINT32)})
    with pytest.raises(ConfigError, match="'num_hidden_layers' is 2147483648"):
        assert open_model(path).config
