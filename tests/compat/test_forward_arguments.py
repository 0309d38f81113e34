"""What scripts pass to a model's own call beside ids: tuples, masks of four axes, places in the cache, counted labels."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer import DynamicCache
from glassformer.ground.errors import InputError, InputTypeError
from tests.parity import reference
from tests.parity.compare import Pair, ids_for, pair

LENGTH = 7
DECODERS = ("llama", "mistral", "gemma3_text", "gpt2")
GENERATING = (*DECODERS, "t5")
HEADS = {
    "causal": "llama", "masked": "bert", "seq2seq": "t5", "sequence": "roberta", "token": "distilbert", "question": "bert",
    "base": "gpt2",
}  # fmt: skip


@pytest.fixture(scope="module", params=HEADS.items(), ids=lambda item: f"{item[1]}-{item[0]}")
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    head, family = request.param
    return pair(tmp_path_factory.mktemp("forward"), family, head)


@pytest.fixture(scope="module", params=[*GENERATING, "bert"])
def masked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    head = {"bert": "masked", "t5": "seq2seq"}.get(request.param, "causal")
    layers = {"num_layers": 2, "num_decoder_layers": 2} if request.param == "t5" else {}
    return pair(tmp_path_factory.mktemp("masks"), request.param, head, **layers)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("llama")
    reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder)


def inputs(models: Pair) -> dict[str, Tensor]:
    ids = ids_for(models.theirs, 2, LENGTH)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(1)} if models.family == "t5" else {"input_ids": ids}


def labels(models: Pair) -> dict[str, Tensor]:
    if models.head == "base":
        return {}
    if models.head == "sequence":
        return {"labels": torch.tensor([1, 0])}
    if models.head == "question":
        return {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    numbers = ids_for(models.theirs, 2, LENGTH) % 2
    numbers[0, :3] = -100
    return {"labels": numbers}


def flat(values: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order; caches left out."""
    if isinstance(values, Tensor):
        return [values]
    return [tensor for value in values for tensor in flat(value)] if isinstance(values, (tuple, list)) else []


def test_return_dict_false_gives_the_references_tuple(models: Pair) -> None:
    arguments = {**inputs(models), **labels(models), "return_dict": False, "output_hidden_states": True}
    ours, theirs = models.ours(**arguments), models.theirs(**arguments)
    assert isinstance(ours, tuple)
    assert len(ours) == len(theirs)
    for left, right in zip(flat(ours), flat(theirs), strict=True):
        assert torch.allclose(left, right, atol=1e-4)
    assert not isinstance(models.ours(**inputs(models), return_dict=True), tuple)
    assert isinstance(models.ours.base_model(**inputs(models), return_dict=False), tuple)


def test_the_encoder_alone_gives_a_tuple_too(tmp_path: Path) -> None:
    reference.write(tmp_path, "t5", "seq2seq")
    encoder = glassformer.AutoModelForTextEncoding.from_pretrained(tmp_path)
    (states,) = encoder(torch.tensor([[3, 4]]), return_dict=False)
    assert torch.equal(states, encoder(torch.tensor([[3, 4]])).last_hidden_state)


def test_the_signature_lists_the_references_arguments_in_its_order(models: Pair) -> None:
    """`Trainer` drops every column of a dataset that the signature does not name."""
    ours, theirs = (list(inspect.signature(model.forward).parameters) for model in (models.ours, models.theirs))
    shared = [name for name in theirs if name in ours]
    known = {"token_type_ids", "position_ids", "inputs_embeds", "labels", "start_positions", "end_positions"}
    assert known.intersection(theirs) - set(shared) <= ({"token_type_ids"} if models.family == "gpt2" else set())
    if models.family not in ("distilbert", "gpt2"):  # which have an order of their own
        names = [name for name in ours[: ours.index("use_cache")] if name in theirs]
        assert names == [name for name in shared if name in names]


def test_arguments_by_position(llama: Any) -> None:
    ids, mask = torch.tensor([[5, 9, 14]]), torch.tensor([[0, 1, 1]])
    assert torch.equal(llama(ids, mask).logits, llama(input_ids=ids, attention_mask=mask).logits)


def test_help_says_what_each_argument_means(models: Pair) -> None:
    forward = type(models.ours).forward
    assert forward.__name__ == "forward"
    for name in list(inspect.signature(models.ours.forward).parameters):
        assert f"\n    {name}: " in str(forward.__doc__)


class TestMasksOfFourAxes:
    """Block-diagonal: the last three tokens do not see the first four, as where texts are packed into one row."""

    def visible(self, models: Pair) -> Tensor:
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        visible = visible if models.family == "bert" else visible.tril()
        visible[4:, :4] = False
        return visible.expand(2, 1, -1, -1)

    def run(self, model: Any, models: Pair, mask: Tensor) -> Tensor:
        name = "decoder_attention_mask" if models.family == "t5" else "attention_mask"
        logits: Tensor = model(**inputs(models), **{name: mask}).logits
        return logits

    def test_additive_floats_equal_the_reference(self, masked: Pair) -> None:
        for low in (torch.finfo(torch.float32).min, -torch.inf):
            mask = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~self.visible(masked), low)
            ours, theirs = (self.run(model, masked, mask) for model in (masked.ours, masked.theirs))
            assert torch.allclose(ours, theirs, atol=1e-4)

    def test_truth_values_are_the_same_mask(self, masked: Pair) -> None:
        visible = self.visible(masked)
        added = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~visible, -torch.inf)
        assert torch.allclose(self.run(masked.ours, masked, visible), self.run(masked.ours, masked, added), atol=1e-4)
        masked.theirs.set_attn_implementation("sdpa")  # its other implementation adds truth values as if they were numbers
        expected = self.run(masked.theirs, masked, visible)
        masked.theirs.set_attn_implementation("eager")
        assert torch.allclose(self.run(masked.ours, masked, visible), expected, atol=1e-4)

    def test_a_causal_one_changes_nothing(self, llama: Any) -> None:
        ids = torch.tensor([[5, 9, 14, 3, 77]])
        expected = llama(ids).logits
        triangle = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
        assert torch.allclose(llama(ids, attention_mask=triangle).logits, expected, atol=1e-5)
        per_head = triangle.expand(1, llama.config.num_attention_heads, 5, 5)
        assert torch.allclose(llama(ids, attention_mask=per_head).logits, expected, atol=1e-5)
        first = llama(ids[:, :3])
        rest = llama(ids[:, 3:], attention_mask=triangle[:, :, 3:], past_key_values=first.past_key_values)
        assert torch.allclose(rest.logits, expected[:, 3:], atol=1e-4)

    @pytest.mark.parametrize("masked", DECODERS, indirect=True)
    def test_patterns_show_it(self, masked: Pair) -> None:
        output = masked.ours(**inputs(masked), attention_mask=self.visible(masked), output_attentions=True)
        for weights in output.attentions:
            assert not weights.masked_select(~self.visible(masked)).any()
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)

    def test_a_token_that_sees_nothing_is_no_nan(self, llama: Any) -> None:
        for mask in (torch.zeros(1, 1, 3, 3, dtype=torch.bool), torch.full((1, 1, 3, 3), -torch.inf)):
            assert llama(torch.tensor([[5, 9, 14]]), attention_mask=mask).logits.isfinite().all()

    def test_misuse_is_refused(self, llama: Any) -> None:
        ids = torch.tensor([[5, 9, 14]])
        for wrong in (torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3, dtype=torch.long)):
            with pytest.raises(InputError, match="attention_mask"):
                llama(ids, attention_mask=wrong)


class TestPlacesInTheCache:
    @pytest.mark.parametrize("masked", GENERATING, indirect=True)
    def test_the_next_ones_are_accepted(self, masked: Pair) -> None:
        arguments = inputs(masked)
        key = next(reversed(arguments))
        expected = masked.ours(**arguments).logits
        cache = DynamicCache()
        start = {**arguments, key: arguments[key][:, :4]}
        first = masked.ours(**start, past_key_values=cache, cache_position=torch.arange(4))
        rest = {**arguments, key: arguments[key][:, 4:]}
        places = torch.arange(4, LENGTH)
        logits = masked.ours(**rest, past_key_values=first.past_key_values, cache_position=places).logits
        assert torch.allclose(logits, expected[:, 4:], atol=1e-4)

    @pytest.mark.parametrize("masked", ["bert"], indirect=True)
    def test_an_encoder_has_no_cache(self, masked: Pair) -> None:
        arguments = inputs(masked)
        for use_cache in (True, False, None):
            assert torch.equal(masked.ours(**arguments, use_cache=use_cache).logits, masked.ours(**arguments).logits)


class TestCountedLabels:
    @pytest.mark.parametrize("models", [item for item in HEADS.items() if item[0] != "base"], indirect=True)
    def test_the_loss_is_divided_by_the_count(self, models: Pair) -> None:
        wanted = labels(models)
        arguments = {**inputs(models), **wanted}
        mean = models.ours(**arguments).loss
        counted = next(iter(wanted.values()))
        shifted = counted[:, 1:] if models.head == "causal" else counted
        number = int((shifted != -100).sum())
        assert torch.allclose(models.ours(**arguments, num_items_in_batch=number).loss, mean, atol=1e-5)
        halved = models.ours(**arguments, num_items_in_batch=torch.tensor(2 * number)).loss
        assert torch.allclose(halved, mean / 2, atol=1e-5)

    @pytest.mark.parametrize("models", [("causal", "llama")], indirect=True)
    def test_a_language_models_equals_the_reference(self, models: Pair) -> None:
        arguments = {**inputs(models), **labels(models), "num_items_in_batch": 5}
        assert torch.allclose(models.ours(**arguments).loss, models.theirs(**arguments).loss, atol=1e-5)

    def test_other_counts_are_refused(self, llama: Any) -> None:
        ids = torch.tensor([[5, 9, 14]])
        for wrong in (0, -3, "3", torch.tensor(0), True):
            with pytest.raises((InputError, InputTypeError), match="num_items_in_batch is .*must be"):
                llama(ids, labels=ids, num_items_in_batch=wrong)


@pytest.mark.parametrize("models", [("causal", "llama")], indirect=True)
def test_logits_to_keep_equals_the_reference(models: Pair) -> None:
    for keep in (1, 3, torch.tensor([0, 2])):
        arguments = {**inputs(models), "logits_to_keep": keep}
        assert torch.allclose(models.ours(**arguments).logits, models.theirs(**arguments).logits, atol=1e-4)


class TestPrepareInputs:
    @pytest.mark.parametrize("masked", GENERATING, indirect=True)
    def test_a_loop_by_hand_writes_what_generate_writes(self, masked: Pair) -> None:
        ours, ids, is_pair = masked.ours, inputs(masked)["input_ids"], masked.family == "t5"
        settings = {"max_new_tokens": 4, "eos_token_id": None}
        expected = ours.generate(ids, **settings)
        text = torch.full((2, 1), ours.config.decoder_start_token_id) if is_pair else ids
        more: dict[str, Any] = {"encoder_outputs": ours.base_model.run_encoder(ids)} if is_pair else {}
        cache: Any = DynamicCache()
        for step in range(4):
            arguments = ours.prepare_inputs_for_generation(text, past_key_values=cache, use_cache=True, **more)
            output = ours(**arguments)
            assert output.logits.shape[1] == (1 if step else text.shape[1])
            text = torch.cat((text, output.logits[:, -1:].argmax(-1)), dim=1)
            cache = output.past_key_values
        assert text.tolist() == expected.tolist()

    @pytest.mark.parametrize("length", [None, 2])
    @pytest.mark.parametrize("masked", GENERATING, indirect=True)
    def test_the_arguments_equal_the_references(self, masked: Pair, length: int | None) -> None:
        ids = inputs(masked)["input_ids"]
        arguments = {"attention_mask": torch.ones_like(ids), "use_cache": True, "labels": ids}
        if masked.family != "t5":
            arguments["position_ids"] = torch.arange(LENGTH)[None]
        ours, theirs = (
            model.prepare_inputs_for_generation(ids, next_sequence_length=length, **arguments)
            for model in (masked.ours, masked.theirs)
        )
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(value))

    def test_vectors_are_read_in_the_first_call(self, llama: Any) -> None:
        ids = torch.tensor([[5, 9, 14]])
        vectors = llama.get_input_embeddings()(ids)
        first = llama.prepare_inputs_for_generation(ids[:, :0], inputs_embeds=vectors, is_first_iteration=True)
        assert torch.equal(llama(**first).logits, llama(ids).logits)
        later = llama.prepare_inputs_for_generation(ids, inputs_embeds=vectors, is_first_iteration=False)
        assert "inputs_embeds" not in later
