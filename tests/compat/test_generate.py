"""`generate`: padding, streaming, seeds, dtypes of ids, and everything that people hand it by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer import DynamicCache, GenerationConfig, TextStreamer
from glassformer.ground.errors import InputError, InputTypeError, UnknownArgument
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("generating")
    reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder)


def test_rows_end_at_different_times(model: Any) -> None:
    ids = torch.stack([IDS[0], IDS[0].flip(0), IDS[0].roll(2)])
    free = model.generate(ids, max_new_tokens=12, eos_token_id=None)
    end = int(free[1, 8])
    found = model.generate(ids, max_new_tokens=12, eos_token_id=end, pad_token_id=0)
    for row, output in zip(found[:, 6:].tolist(), free[:, 6:].tolist(), strict=True):
        stop = output.index(end) + 1 if end in output else 12
        assert row[:stop] == output[:stop]
        assert set(row[stop:]) <= {0}


def test_padding_defaults_to_the_eos_token(model: Any) -> None:
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    free = model.generate(ids, max_new_tokens=8, eos_token_id=None)
    ends = [int(free[0, 7]), 159]
    found = model.generate(ids, max_new_tokens=8, eos_token_id=ends, pad_token_id=None)
    assert int(found[0, -1]) == min(ends) or found.shape[1] < 14


def test_sampling_is_seeded(model: Any) -> None:
    def sample(**settings: Any) -> list[int]:
        found: list[int] = model.generate(IDS, max_new_tokens=10, do_sample=True, eos_token_id=None, **settings)[0].tolist()
        return found

    assert sample(seed=1) == sample(seed=1)
    assert sample(seed=1) != sample(seed=2)
    torch.manual_seed(5)
    first = sample()
    assert sample() != first
    torch.manual_seed(5)
    assert sample() == first


def test_a_sampled_row_is_the_same_in_a_batch(model: Any) -> None:
    settings = {"max_new_tokens": 10, "do_sample": True, "eos_token_id": None, "seed": 3}
    alone = model.generate(IDS, **settings)
    together = model.generate(torch.cat((IDS.flip(1), IDS, IDS)), **settings)
    assert together[1].tolist() == together[2].tolist() == alone[0].tolist()


def test_steps_yields_each_row_and_step(model: Any) -> None:
    steps = list(model.steps(IDS, max_new_tokens=5, eos_token_id=None, look=3))
    assert [row for row, _ in steps] == [0] * 5
    assert [step.id for _, step in steps] == model.generate(IDS, max_new_tokens=5, eos_token_id=None)[0, 6:].tolist()
    assert all(step.candidates.ids[0] == step.id for _, step in steps)


def test_text_streamer_prints_the_text(model: Any, capsys: pytest.CaptureFixture[str], qwen3_tokenizer: Path) -> None:
    tokenizer = glassformer.AutoTokenizer.from_pretrained(qwen3_tokenizer)
    result = model.generate(IDS, max_new_tokens=6, eos_token_id=None, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == tokenizer.decode(result[0]) + "\n"
    model.generate(IDS, max_new_tokens=6, eos_token_id=None, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(result[0, 6:]) + "\n"
    with pytest.raises(InputError, match="a streamer follows"):
        model.generate(torch.cat((IDS, IDS)), streamer=TextStreamer(tokenizer))


def test_a_kv_cache_by_hand_gives_the_same_ids(model: Any) -> None:
    cache = DynamicCache()
    assert cache
    assert len(cache) == 0
    out = model(IDS, past_key_values=cache)
    assert out.past_key_values is cache
    assert cache.get_seq_length() == 6
    assert len(cache) == 3
    assert cache[0][0].shape == (1, 2, 6, 12)
    assert len(list(cache)) == 3
    cache.crop(4)
    again = model(IDS[:, 4:], past_key_values=cache)
    assert torch.allclose(again.logits, out.logits[:, 4:], atol=1e-4)
    cache.crop(-1)
    assert cache.get_seq_length() == 5
    wide = model(torch.cat((IDS, IDS.flip(1))))
    wide.past_key_values.reorder_cache(torch.tensor([1, 1]))
    next_scores = model(torch.tensor([[7], [7]]), past_key_values=wide.past_key_values).logits
    assert torch.equal(next_scores[0], next_scores[1])
    assert model(IDS, use_cache=False).past_key_values is None


def test_gradients_through_the_cache(model: Any) -> None:
    """In pieces with gradients, the loss's gradient equals the whole's: nothing needed is overwritten."""
    weight = model.model.layers[0].self_attn.k_proj.weight
    output = torch.autograd.grad(model(IDS).logits[:, -1].sum(), weight)[0]
    first = model(IDS[:, :4])
    parts = model(IDS[:, 4:], past_key_values=first.past_key_values).logits[:, -1].sum()
    assert torch.allclose(torch.autograd.grad(parts, weight)[0], output, atol=1e-4)
    with torch.no_grad():
        after = model(IDS[:, :1], past_key_values=first.past_key_values)
    assert after.past_key_values.get_seq_length() == 7


def test_training_goes_on_after_generating(model: Any) -> None:
    model.generate(IDS, max_new_tokens=2)
    model(IDS, labels=IDS).loss.backward()
    assert model.lm_head.weight.grad is not None
    model.zero_grad()


def test_generate_leaves_the_mode_as_it_was(model: Any) -> None:
    model.train()
    model.generate(IDS, max_new_tokens=1)
    assert model.training
    model.eval()
    model.generate(IDS, max_new_tokens=1)
    assert not model.training


def test_a_generation_config_for_one_call(model: Any) -> None:
    assert model.generate(IDS, generation_config=GenerationConfig(max_new_tokens=2)).shape == (1, 8)
    assert model.generate(IDS, max_length=9, eos_token_id=None).shape == (1, 9)


def test_padding_without_a_mask_is_logged(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    padded = torch.cat((IDS, torch.zeros(1, 6, dtype=torch.long)))
    model.generate(padded, max_new_tokens=1)
    assert caplog.messages == ["the batch holds the padding id 0 and no attention_mask was given; pass **tokens."]
    model.generate(padded[:1], max_new_tokens=1)
    assert len(caplog.messages) == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("ids", "error", "message"),
        [
            ("text", InputTypeError, "not str"),
            ([[1, 2]], InputTypeError, "not list"),
            (torch.tensor([[1.0, 2.0]]), InputTypeError, "torch.float32"),
            (torch.tensor([[True]]), InputTypeError, "not torch.bool"),
            (torch.tensor([1, 2]), InputError, r"not \(2,\)"),
            (torch.zeros(1, 0, dtype=torch.long), InputError, "prompt"),
            (torch.tensor([[1, 160]]), InputError, "token id 160"),
            (torch.tensor([[1, -2]]), InputError, "token id -2"),
        ],
    )
    def test_bad_ids_are_refused(self, model: Any, ids: Any, error: type[Exception], message: str) -> None:
        for call in (model, model.model, model.generate):
            with pytest.raises(error, match=message):
                call(ids)

    def test_generation_stops_at_the_end_of_the_context(self, model: Any) -> None:
        found = model.generate(torch.ones(1, 250, dtype=torch.long), max_new_tokens=50, eos_token_id=None)
        assert found.shape == (1, 256)

    def test_bad_arguments_are_refused(self, model: Any) -> None:
        for way in (model.generate, model.steps):
            with pytest.raises(InputError, match="give the prompt once"):
                way(IDS, input_ids=IDS)

    def test_inputs_embeds_stand_for_ids(self, model: Any) -> None:
        vectors = model.model.embed_tokens(IDS)
        assert torch.equal(model(inputs_embeds=vectors).logits, model(IDS).logits)

    def test_a_classifier_does_not_generate(self, tmp_path: Path) -> None:
        reference.write(tmp_path, "llama", pad_token_id=None)
        model = glassformer.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
        with pytest.raises(InputError, match="label 3"):
            model(IDS, labels=torch.tensor([3]))
        with pytest.raises(UnknownArgument, match="'label'"):
            model(IDS, label=1)


@pytest.mark.parametrize("settings", [{"min_new_tokens": 50}, {"min_new_tokens": 2**31 - 1}, {"min_length": 50}])
@pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"max_new_tokens": 2**31 - 1}])
def test_a_least_length_beyond_the_context_ends_at_the_context(
    settings: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    """As with the reference, which ends at its largest length."""
    reference.write(tmp_path, "llama", max_position_embeddings=16)
    ours = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert ours.generate(IDS[:, :3], **settings, **more).shape == (len(IDS), 16)
