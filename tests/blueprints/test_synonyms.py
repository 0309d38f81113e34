"""Names of other libraries: each means the site whose numbers it has with them, in every family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import glassformer
from glassformer import Change
from glassformer.blueprints import blueprint, read_config
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import Synonyms, Watch, axes
from tests.parity import reference
from tests.see.models import EXECUTORS, TEXT, both
from tests.site_names import usual_sites

IDS = torch.tensor([[5, 9, 14, 3, 77, 21]])


def described(family: str, head: str | None = None) -> Any:
    return blueprint(read_config(reference.config(family).to_dict()), head)  # type: ignore[arg-type]


def names_of(family: str) -> Synonyms:
    found: Synonyms = described(family).synonyms
    return found


def joined(site: str, value: Any) -> Any:
    """A site's value as modules have it, the heads side by side."""
    return value.transpose(1, 2).flatten(2) if axes(site)[-1] == "head_size" else value


def first_tensor(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else value[0]


@pytest.mark.parametrize("family", reference.FAMILIES)
def test_module_paths_have_the_numbers_of_the_references_modules(family: str, tmp_path: Any) -> None:
    """Every path is a module of the reference, and what goes in or comes out of it is what our site has."""
    head = reference.MAIN[family]
    made = reference.write(tmp_path, family, head, **({"attention_window": 6} if family == "led" else {}))
    model = getattr(glassformer, reference.auto(head).__name__).from_pretrained(tmp_path).eval()
    modules = dict(made.named_modules())
    paths = {name: site for name, site in names_of(family).sites.items() if name.endswith((".input", ".output"))}
    record: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(_: Any, inputs: Any, keywords: Any, output: Any) -> None:
            record[f"{name}.output"] = first_tensor(output).clone()  # some references add to it in place
            record[f"{name}.input"] = inputs[0] if inputs else keywords.get("hidden_states")

        return hook

    for name in {name.rpartition(".")[0] for name in paths}:
        modules[reference.module_name(made, name)].register_forward_hook(keep(name), with_kwargs=True)
    inputs = {"decoder_input_ids": IDS[:, :4]} if head == "seq2seq" else {}
    with torch.no_grad():
        made(IDS, **inputs)
        values = model(IDS, **inputs, watch=sorted(set(paths.values()))).sites
    assert len(paths) > 8
    for name, site in paths.items():
        there, length = record[name], values[site].shape[2 if axes(site)[-1] == "head_size" else 1]
        there = there if there.shape[1] == length else there.transpose(*((1, 2) if there.ndim == 4 else (0, 1)))
        there = there.flatten(2) if there.ndim == 4 else there  # heads, which are normed apart
        assert torch.allclose(there, joined(site, values[site]), atol=2e-4, rtol=1e-3), name


def test_transformer_lens_names_and_patterns() -> None:
    names = described("gpt2").site_names
    assert names.expand(["blocks.1.hook_resid_pre", ("resid_pre", 0)]) == ("embedding", "blocks.0.residual")
    assert names.expand(["blocks.*.hook_resid_pre"]) == ("embedding", "blocks.0.residual", "blocks.1.residual")
    assert names.expand(["blocks.*.attn.hook_z", "z.1"]) == tuple(f"blocks.{n}.attention.heads" for n in range(3))
    assert names.expand(["transformer.h.2.mlp.output"]) == names.expand([("mlp_out", 2)]) == ("blocks.2.mlp.update",)
    assert names.expand(["q.0", "k.0"]) == ("blocks.0.attention.query", "blocks.0.attention.key")
    assert names.expand(["*"]) == usual_sites(3).names  # our own names come first


def test_our_names_ask_for_no_synonyms() -> None:
    def fail() -> Synonyms:
        raise AssertionError

    names = replace(usual_sites(1), synonyms=fail)
    assert names.expand(["blocks.0.residual", "blocks.*.middle"]) == (
        "blocks.0.middle",
        "blocks.0.residual",
    )


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("gpt2", "blocks.1.attn.hook_attn_scores", "has no counterpart: scores before the softmax are no site"),
        ("gpt2", "blocks.*.mlp.hook_pre", "has no counterpart: neurons before the activation are no site"),
        ("gpt2", "hook_embed", "in this family it is another value: the nearest site is 'embedding'"),
        ("llama", ("q", 1), "queries before RoPE are no site: 'attention.query' comes after it, as hook_rot_q does"),
        ("bert", "blocks.0.hook_attn_out", "in this family it is another value"),
        ("mixtral", "post.0", "in this family it is another value: the nearest site is 'blocks.0.mlp.hidden'"),
        ("gemma2", "hook_unembed", "in this family it is another value: the nearest site is 'scores'"),
        ("gpt2", "blocks.1.hook_resid_prae", r"Did you mean 'blocks\.1\.hook_resid_pre'"),
        ("gpt2", "blocks.*.hook_resid_prae", r"Did you mean 'blocks\.\*\.hook_resid_pre'"),
        ("gpt2", "transformer.h.9.mlp.output", r"Did you mean 'transformer\.h\.\d\.mlp\.output'"),
        ("gemma2", "model.layers.1.mlp.output", "no site matches"),  # a norm comes between it and the stream
        ("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.output", "no site matches"),  # runs several times
    ],
)
def test_names_without_a_counterpart(family: str, name: Any, message: str) -> None:
    with pytest.raises(SiteError, match=message):
        Watch.parse([name], described(family).site_names)


@pytest.mark.parametrize("watch", [[("resid_pre",)], [("resid_pre", True)], {("z", 1, 2): Change()}])
def test_pairs_that_name_no_site(watch: Any) -> None:
    with pytest.raises(SiteError, match="a watch names"):
        Watch.parse(watch, described("gpt2").site_names)


class TestEverywhere:
    """Wherever a site is named, on every executor."""

    @pytest.mark.parametrize("executor", EXECUTORS)
    def test_in_the_short_face(self, executor: str) -> None:
        model = both("gpt2", executor).model
        reading = model.read(TEXT)
        site = "blocks.1.attention.heads"
        for name in ("blocks.1.attn.hook_z", "z.1", ("z", 1), "transformer.h.1.attn.c_proj.input"):
            assert (reading.at(name) == reading.at(site)).all()
        assert reading.values("blocks.*.hook_resid_pre").keys() == {"embedding", "blocks.0.residual", "blocks.1.residual"}
        changed = model.changed({("z", 1): Change(scale=0, heads=[0])})
        same = model.changed({site: Change(scale=0, heads=[0])})
        assert (changed.read(TEXT).at("unembed.hook_out") == same.read(TEXT).at("scores")).all()
        run = model.watch(TEXT, raw=True, max_new_tokens=2, sites="pattern.1")
        assert set(run.steps[0].sites) == {"blocks.1.attention.pattern"}

    def test_in_the_familiar_face(self) -> None:
        module = both("gpt2").model.module
        output = module(IDS, watch=["transformer.h.0.output", ("resid_mid", 2)])
        assert set(output.sites) == {"blocks.0.residual", "blocks.2.middle"}
        zero = {"blocks.1.hook_mlp_out": Change(scale=0)}
        assert torch.equal(
            module(IDS, watch=zero).logits, module(IDS, watch={"blocks.1.mlp.update": Change(scale=0)}).logits
        )
        ids = module.generate(IDS, max_new_tokens=2, watch=zero)
        assert ids.shape == (1, 8)
