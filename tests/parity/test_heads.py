"""Every family with every head it has: names, outputs, losses, blueprint, sites and saving, on randomised configs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.blueprints import blueprint
from glassformer.ground import sites
from glassformer.ground.changes import Change
from glassformer.ground.errors import SiteError
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, load, pair, same_fields
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

MAIN = reference.MAIN
NEW = tuple(family for family in reference.FAMILIES if family not in ("llama", "mistral", "qwen2", "qwen3"))
QUICK = [
    (family, head, seed)
    for family, heads in reference.HEADS.items()
    for number, head in enumerate(heads)
    for seed in ((0, 1) if head == MAIN[family] and family in NEW else (number % 2,))
]
WIDE = swept(
    (family, head, seed)
    for family, heads in reference.HEADS.items()
    for head in heads
    for seed in range(2, 22 if family in NEW else 6)
)
LENGTH, SOURCE = 9, 7  # tokens


@pytest.fixture(scope="module", params=[*QUICK, *WIDE], ids=lambda p: "-".join(map(str, p)))
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, head, seed = request.param
    return pair(tmp_path_factory.mktemp("heads"), family, head, **reference.random_changes(family, seed))


def inputs(models: Pair) -> dict[str, Tensor]:
    if models.family not in reference.PAIRS:
        return {"input_ids": ids_for(models.theirs, 2, LENGTH)}
    source = ids_for(models.theirs, 2, SOURCE)
    if models.head == "sequence":  # the decoder reads the source itself, and the last end token's state is classified
        source[0, [1, 4]] = source[1, [2, -1]] = models.theirs.config.eos_token_id
        return {"input_ids": source}
    return {"input_ids": source, "decoder_input_ids": ids_for(models.theirs, 2, LENGTH, seed=2)}


def labels(models: Pair) -> dict[str, Tensor]:
    """Something to be lost on, for every head."""
    if models.head == "sequence":
        return {"labels": torch.tensor([1, 0])}
    if models.head == "question":  # one of them lies behind the end
        return {"start_positions": torch.tensor([3, 99]), "end_positions": torch.tensor([5, 2])}
    if models.head == "discriminator":
        return {"labels": ids_for(models.theirs, 2, LENGTH, seed=3) % 2}
    count = models.theirs.num_labels if models.head == "token" else models.theirs.config.vocab_size
    expected = torch.randint(0, count, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    expected[0, 2:5] = expected[1, -1] = -100
    return {"labels": expected}


def paths(shown: str) -> set[str]:
    """The module paths in a printed model; `(0-2): 3 x Layer(` means three."""
    levels, result = [[""]], {""}
    for line in shown.splitlines():
        if named := re.match(r"( *)\(([^)]+)\): ", line):
            depth, name = len(named[1]) // 2, named[2]
            first, _, last = name.partition("-")
            names = [str(n) for n in range(int(first), int(last) + 1)] if last else [name]
            levels[depth:] = [[f"{parent}.{one}".lstrip(".") for parent in levels[depth - 1] for one in names]]
            result.update(levels[depth])
    return result


def test_parameter_and_module_names_equal_the_references(models: Pair) -> None:
    theirs, ours = models.theirs, models.ours
    name = type(ours).__name__
    assert ours.base_model.declared.file_classes.get(name, name) == type(theirs).__name__
    expected, result = reference.in_checkpoint(theirs, theirs.state_dict()), ours.state_dict()
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert {name.rpartition(".")[0] for name in expected} <= paths(repr(ours))
    assert ours.num_parameters() == sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad)


@torch.no_grad()
def test_every_output_field_equals_the_reference(models: Pair) -> None:
    options = {"output_hidden_states": True, "output_attentions": True}
    expected = models.theirs(**inputs(models), **options)
    expected = reference.as_usual(models.theirs, inputs(models).get("input_ids"), expected)
    result = models.ours(**inputs(models), **options)
    same_fields(result, expected)


@torch.no_grad()
def test_loss_equals_the_reference(models: Pair) -> None:
    if models.head == "base":
        with pytest.raises(TypeError, match="labels"):
            models.ours(**inputs(models), labels=torch.zeros(2, dtype=torch.long))
        return
    if models.family == "embedding_gemma" and models.head == "masked":  # whose reference has a loss of the next token
        return
    expected = models.theirs(**inputs(models), **labels(models)).loss
    result = models.ours(**inputs(models), **labels(models)).loss
    assert abs(float(result) - float(expected)) <= 1e-5 * abs(float(expected))


@torch.no_grad()
def test_saved_is_read_back_by_the_reference(models: Pair, tmp_path: Path) -> None:
    models.ours.save_pretrained(tmp_path)
    again = reference.auto(models.head, models.family).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert type(again) is type(models.theirs)
    expected, result = models.theirs.state_dict(), again.state_dict()
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    for one, other in zip(again(**inputs(models))[:1], models.theirs(**inputs(models))[:1], strict=True):
        assert torch.equal(one, other)
    mine = load(tmp_path, models.head)
    assert torch.equal(mine(**inputs(models))[0], models.ours(**inputs(models))[0])


def test_the_blueprint_lists_exactly_the_weights(models: Pair) -> None:
    ours = models.ours
    held = {
        name: tuple(value.shape)
        for name, value in (*ours.named_parameters(), *ours.named_buffers())
        if models.family not in reference.SINUSOIDAL or "embed_positions" not in name  # which follow from the config
    }
    described = blueprint(ours.config, models.head)
    always = ("gptj", "phi", "eurobert")  # whose scores have a bias, or none, in either case
    biased = ours.config.tie_word_embeddings or models.family in always
    idle = set() if biased else {"cls.predictions.bias", "lm_head.bias", "predictions.bias"}  # stored, and not read
    assert {weight.name: weight.shape for weight in described.weights} == {n: s for n, s in held.items() if n not in idle}
    assert described.parameters == sum(math.prod(shape) for name, shape in held.items() if name not in idle)


@torch.no_grad()
def test_the_blueprint_has_every_site_and_its_shape(models: Pair) -> None:
    result = models.ours(**inputs(models), watch="*").sites
    described = blueprint(models.ours.config, models.head).sites
    length = LENGTH if "decoder_input_ids" in inputs(models) or models.family not in reference.PAIRS else SOURCE
    sizes = {"batch": 2, "length": length, "keys": length, "source": SOURCE}
    every = set(models.ours.base_model.site_names.names)
    assert described.keys() == result.keys() == every - ({"scores"} if models.head == "base" else set())
    for site, shape in described.items():
        assert tuple(result[site].shape) == tuple(sizes.get(size, size) for size in shape), site
        assert len(shape) == len(sites.axes(site)), site


@torch.no_grad()
def test_watching_changes_no_bit(models: Pair) -> None:
    plain, watched = models.ours(**inputs(models)), models.ours(**inputs(models), watch="*")
    assert plain.sites is None
    for name in set(plain.keys()) - {"past_key_values"}:
        assert torch.equal(plain[name], watched[name]), name


@torch.no_grad()
@pytest.mark.parametrize("family", [family for family, heads in reference.HEADS.items() if "sequence" in heads])
@pytest.mark.parametrize("count", [1, 3])
def test_losses_by_problem_type(family: str, count: int, tmp_path: Path) -> None:
    """The kind is said in the config, or guessed from the labels."""
    models = pair(tmp_path, family, "sequence", num_labels=count)
    numbers = torch.tensor([0.5, -1.0]) if count == 1 else torch.tensor([[0.5, -1.0, 2.0], [0.1, 0.0, 1.0]])
    several = [
        ("multi_label_classification", torch.tensor([[1.0, 0, 1], [0, 0, 1]])),
        ("single_label_classification", torch.tensor([2, 0])),
        (None, torch.tensor([[1.0, 1, 1], [0, 0, 1]])),
        (None, torch.tensor([1, 2])),
    ]
    for kind, target in [("regression", numbers), *(several if count > 1 else [(None, numbers)])]:
        if kind is None and family in ("deberta", "deberta-v2"):  # whose reference guesses otherwise than all others
            continue
        models.theirs.config.problem_type = kind
        ours = load(tmp_path, "sequence", problem_type=kind)
        expected, result = (model(**inputs(models), labels=target) for model in (models.theirs, ours))
        close(result.logits, expected.logits)
        assert abs(float(result.loss) - float(expected.loss)) <= 1e-5 * abs(float(expected.loss)), kind


T5 = {"num_layers": 1, "num_decoder_layers": 2}
BART = {"encoder_layers": 1, "decoder_layers": 2}
GPT2 = {"n_layer": 2}
LISTED: dict[str, int] = {}  # the kind of each layer is
FEW: dict[str, dict[str, int]] = {  # blocks, so that every site of them can be gone through
    **dict.fromkeys(("granitemoehybrid", "gemma3n_text"), LISTED),
    **dict.fromkeys(("gpt2", "gptj", "gpt_bigcode", "openai-gpt", "bloom"), GPT2),
    "mpt": {"n_layers": 2}, "distilbert": {"n_layers": 2},
    **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers"), T5), **dict.fromkeys(reference.BARTS, BART),
    "led": {**BART, "attention_window": 4},
    **dict.fromkeys(
        ("gemma3_text", "olmo3", "cohere2", "gpt_neo", "exaone4", "gemma4_text", "glm4_moe_lite", "embedding_gemma"), LISTED
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe", "olmo_hybrid", "llama4_text", "kimi_linear"), LISTED),
}  # fmt: skip


@pytest.fixture(scope="module", params=[*NEW, "qwen3"])
def small_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family = request.param
    changes = FEW.get(family, {"num_hidden_layers": 2})
    return pair(tmp_path_factory.mktemp("few"), family, MAIN[family], **changes)


class TestChanges:
    @torch.no_grad()
    def test_a_change_at_every_site_shows_in_the_scores(self, small_pair: Pair) -> None:
        """A change shows in the scores; one that changes nothing does not."""
        plain = small_pair.ours(**inputs(small_pair), watch="*")
        generator = torch.Generator().manual_seed(5)
        derived = small_pair.ours.base_model.site_names.derived
        for site in derived:
            with pytest.raises(SiteError, match="not changed"):
                small_pair.ours(**inputs(small_pair), watch={site: Change(scale=0.5)})
        known = plain.sites.items()
        changeable = {s: value for s, value in known if not s.endswith(".state_norm") and s not in derived}
        for site, value in changeable.items():
            if site.endswith(".state"):
                continue  # which the next pass reads
            shift = torch.randn(value.shape[-1], generator=generator)
            if site.endswith("mlp.hidden") and site.replace("hidden", "experts") in plain.sites:
                shift = torch.zeros(())  # its numbers are slots
            changed = small_pair.ours(**inputs(small_pair), watch={site: Change(scale=0.5, shift=shift)})
            assert not torch.allclose(changed.logits, plain.logits, atol=1e-3), site
            close(changed.sites[site], value * 0.5 + shift, 1e-6)
        patterns = {site: Change() for site in changeable if site.endswith("pattern")}
        others = {site: Change() for site in changeable if site not in patterns}
        assert torch.equal(small_pair.ours(**inputs(small_pair), watch=others).logits, plain.logits)
        same = small_pair.ours(
            **inputs(small_pair), watch=patterns
        )  # then the output is the plain product, not the fast kernel's
        close(same.logits, plain.logits, 1e-5)

    @torch.no_grad()
    def test_only_the_named_head_is_zeroed(self, small_pair: Pair) -> None:
        sites = small_pair.ours.base_model.site_names.names
        site = next(site for site in sites if site.endswith("attention.heads"))  # not every block of LFM2 has heads
        changed = small_pair.ours(**inputs(small_pair), watch={site: Change(scale=0.0, heads=[1])})
        zero = changed.sites[site].abs().amax((0, 2, 3)) == 0
        assert zero.tolist() == [number == 1 for number in range(len(zero))]
        assert not torch.allclose(changed.logits, small_pair.ours(**inputs(small_pair)).logits, atol=1e-3)


@pytest.fixture(scope="module", params=reference.PAIRS)
def cross_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("crossing"), request.param, "seq2seq")


class TestCrossAttentionChanges:
    """Where the decoder looks at the encoder."""

    @torch.no_grad()
    def test_a_uniform_pattern_takes_the_mean_of_the_values(self, cross_pair: Pair) -> None:
        site = "blocks.1.cross.pattern"
        flat = {site: Change(scale=0.0, shift=torch.full((SOURCE,), 1 / SOURCE), heads=[2])}
        reads = {"blocks.1.cross.value": Change(), "blocks.1.cross.heads": Change()}
        result = cross_pair.ours(**inputs(cross_pair), watch={**flat, **reads}).sites
        values, heads = result["blocks.1.cross.value"], result["blocks.1.cross.heads"]
        mean = values[:, 2 * values.shape[1] // heads.shape[1]].mean(1, keepdim=True).expand(-1, LENGTH, -1)
        close(heads[:, 2], mean, 1e-5)

    @torch.no_grad()
    def test_positions_of_the_source(self, cross_pair: Pair) -> None:
        site = "encoder.blocks.0.residual"
        result = cross_pair.ours(**inputs(cross_pair), watch={site: Change(scale=0.0, positions=[2, 5])})
        zero = result.sites[site].abs().amax((0, 2)) == 0
        assert zero.nonzero().flatten().tolist() == [2, 5]
        gone = cross_pair.ours(**inputs(cross_pair), watch={site: Change(scale=0.0)})
        assert float(gone.sites[site].abs().max()) == 0.0
        plain = cross_pair.ours(**inputs(cross_pair))
        assert not torch.allclose(gone.logits, plain.logits, atol=1e-3)
        assert not torch.allclose(gone.logits, result.logits, atol=1e-3)

    @torch.no_grad()
    def test_a_zeroed_cross_head_equals_its_cut_weights(self, cross_pair: Pair) -> None:
        changed = cross_pair.ours(**inputs(cross_pair), watch={"blocks.1.cross.heads": Change(scale=0.0, heads=[1])})
        cut: Any = load(cross_pair.folder, "seq2seq")
        *_, output = cut.base_model.cross_attention_modules[1].children()
        weight = output.weight
        size = weight.shape[1] // cut.config.num_attention_heads
        weight[:, size : 2 * size] = 0
        close(changed.logits, cut(**inputs(cross_pair)).logits, 1e-5)
        assert not torch.allclose(changed.logits, cross_pair.ours(**inputs(cross_pair)).logits, atol=1e-3)
