"""`generate` that goes on from something: a cache of an earlier call, vectors in place of ids, an encoder's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import glassformer
from glassformer import DynamicCache, EncoderDecoderCache, StaticCache
from tests.parity import reference

IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [8, 8, 30, 41, 2, 19]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
FREE: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": None, "forced_eos_token_id": None}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 4, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "rules": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "drafts": {"prompt_lookup_num_tokens": 3},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: DynamicCache(),
    "static": lambda config: StaticCache(config, max_cache_len=16),
}


def load(tmp_path_factory: pytest.TempPathFactory, family: str) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp(family)
    is_pair = family in ("t5", "bart")
    layers = {"num_layers": 2, "num_decoder_layers": 2} if family == "t5" else {}
    theirs = reference.write(folder, family, "seq2seq" if is_pair else "causal", **layers)
    auto = glassformer.AutoModelForSeq2SeqLM if is_pair else glassformer.AutoModelForCausalLM
    return auto.from_pretrained(folder).requires_grad_(False), theirs


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma3_text"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory, request.param)


@pytest.fixture(scope="module", params=["t5", "bart"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory, request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory, "llama")[0]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory, "bart")[0]


def fed_lengths(model: Any) -> tuple[list[int], Any]:
    """How many tokens each pass of the base model reads, from now on; and how to stop counting."""
    lengths: list[int] = []

    def count(module: Any, args: Any, named: Any) -> None:
        tokens = next(value for value in (*args, *named.values()) if isinstance(value, torch.Tensor))
        lengths.append(tokens.shape[1])

    return lengths, model.base_model.register_forward_pre_hook(count, with_kwargs=True)


class TestPastKeyValues:
    @pytest.mark.parametrize("way", [way for way in WAYS if way != "contrastive"])
    @pytest.mark.parametrize("kind", MAKERS)
    def test_ids_equal_those_without(self, decoder: tuple[Any, Any], kind: str, way: str) -> None:
        ours = decoder[0]
        settings = {**FREE, **WAYS[way]}
        cache = MAKERS[kind](ours.config)
        ours(IDS[:, :4], attention_mask=MASK[:, :4], past_key_values=cache)
        expected = ours.generate(IDS, attention_mask=MASK, **settings)
        assert ours.generate(IDS, attention_mask=MASK, past_key_values=cache, **settings).tolist() == expected.tolist()

    def test_only_the_rest_is_read(self, llama: Any) -> None:
        cache = llama(IDS[:, :4]).past_key_values
        lengths, hook = fed_lengths(llama)
        llama.generate(IDS, past_key_values=cache, **FREE)
        hook.remove()
        assert lengths == [2, 1, 1, 1, 1]

    def test_a_cache_that_holds_the_whole_prompt(self, llama: Any) -> None:
        cache = llama(IDS).past_key_values
        assert llama.generate(IDS, past_key_values=cache, **FREE).tolist() == llama.generate(IDS, **FREE).tolist()
        assert cache.get_seq_length() == 10

    @pytest.mark.parametrize("kind", MAKERS)
    def test_it_holds_the_text_afterwards(self, decoder: tuple[Any, Any], kind: str) -> None:
        """All but the last token, so that a conversation goes on from there."""
        ours = decoder[0]
        cache = MAKERS[kind](ours.config)
        output = ours.generate(IDS, past_key_values=cache, return_dict_in_generate=True, **FREE)
        assert output.past_key_values is cache
        whole = ours(output.sequences[:, :-1]).past_key_values
        assert cache.get_seq_length() == whole.get_seq_length() == 10
        for layer in range(len(whole)):
            for ours_part, expected in zip(cache.filled(layer), whole.filled(layer), strict=True):
                assert torch.allclose(ours_part, expected, atol=1e-4)
        more = torch.cat((output.sequences, IDS[:, :2]), dim=1)
        cache = output.past_key_values
        expected = ours.generate(more, max_new_tokens=3, eos_token_id=None)
        assert ours.generate(more, past_key_values=cache, max_new_tokens=3, eos_token_id=None).tolist() == expected.tolist()

    def test_a_cache_comes_back_though_none_was_passed(self, decoder: tuple[Any, Any]) -> None:
        ours, theirs = decoder
        output = ours.generate(IDS, return_dict_in_generate=True, **FREE)
        expected = theirs.generate(IDS, return_dict_in_generate=True, pad_token_id=0, **FREE).past_key_values
        assert isinstance(output.past_key_values, DynamicCache)
        key, value = output.past_key_values[0]
        kept = expected.layers[0].keys.shape[2]  # of a layer with a window, the reference keeps its last tokens
        assert torch.allclose(key[:, :, -kept:], expected.layers[0].keys, atol=1e-4)
        assert torch.allclose(value[:, :, -kept:], expected.layers[0].values, atol=1e-4)
        assert ours.generate(IDS, return_dict_in_generate=True, use_cache=False, **FREE).past_key_values is None

    def test_states_are_those_of_what_was_read(self, llama: Any) -> None:
        cache = llama(IDS[:, :4]).past_key_values
        settings = {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True, **FREE}
        output = llama.generate(IDS, past_key_values=cache, **settings)
        whole = llama.generate(IDS, **settings)
        assert torch.allclose(output.hidden_states[0][-1], whole.hidden_states[0][-1][:, 4:], atol=1e-4)
        assert torch.allclose(output.attentions[0][-1], whole.attentions[0][-1][:, :, 4:], atol=1e-4)

    def test_an_encoder_decoders_cache(self, pair: tuple[Any, Any]) -> None:
        ours, mask = pair[0], MASK.flip(1)
        start = torch.full((2, 1), ours.config.decoder_start_token_id)
        target = torch.cat((start, IDS[:, :3]), dim=1)
        settings = {"decoder_input_ids": target, "attention_mask": mask, **FREE}
        expected = ours.generate(IDS, **settings)
        for wrap in (EncoderDecoderCache, lambda: DynamicCache()):
            cache = ours(IDS, attention_mask=mask, decoder_input_ids=target[:, :3], past_key_values=wrap()).past_key_values
            output = ours.generate(IDS, past_key_values=cache, return_dict_in_generate=True, **settings)
            assert output.sequences.tolist() == expected.tolist()
            assert output.past_key_values is cache
            assert cache.get_seq_length() == 8
            again = ours.generate(IDS, past_key_values=cache, **{**settings, "decoder_input_ids": output.sequences})
            assert again.tolist() == ours.generate(IDS, **{**settings, "decoder_input_ids": output.sequences}).tolist()

    def test_an_encoder_decoders_states_come_with_a_cache_too(self, pair: tuple[Any, Any]) -> None:
        ours = pair[0]
        settings = {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True, **FREE}
        expected = ours.generate(IDS, **settings)
        for cache in (EncoderDecoderCache(), expected.past_key_values):
            cache.crop(0)
            output = ours.generate(IDS, past_key_values=cache, **settings)
            for name in ("encoder_hidden_states", "encoder_attentions"):
                for layer, other in zip(getattr(output, name), getattr(expected, name), strict=True):
                    assert torch.allclose(layer, other, atol=1e-4)
            assert torch.allclose(output.cross_attentions[2][1], expected.cross_attentions[2][1], atol=1e-4)

    def test_the_encoder_does_not_run_again(self, bart: Any) -> None:
        cache = bart(IDS, decoder_input_ids=IDS[:, :2]).past_key_values
        runs: list[int] = []
        hook = bart.base_model.encoder.register_forward_pre_hook(lambda *_: runs.append(1))
        bart.generate(IDS, decoder_input_ids=IDS[:, :3], past_key_values=cache, **FREE)
        hook.remove()
        assert not runs


class TestInputsEmbeds:
    @pytest.mark.parametrize("way", ["greedy", "sampled", "beams", "rules", "contrastive"])
    def test_a_decoder_reads_vectors(self, decoder: tuple[Any, Any], way: str) -> None:
        ours = decoder[0]
        settings = {**FREE, **WAYS[way]}
        vectors = ours.get_input_embeddings()(IDS)
        expected = ours.generate(IDS, attention_mask=MASK, **settings)
        both = ours.generate(IDS, inputs_embeds=vectors, attention_mask=MASK, **settings)
        assert both.tolist() == expected.tolist()
        if way != "rules":  # which look at the prompt's ids
            alone = ours.generate(inputs_embeds=vectors, attention_mask=MASK, **settings)
            assert alone.tolist() == expected[:, 6:].tolist()

    def test_lengths_count_vectors_as_the_reference_does(self, decoder: tuple[Any, Any]) -> None:
        ours, theirs = decoder
        vectors = ours.get_input_embeddings()(IDS)
        for settings in ({"max_length": 9}, {"max_length": 12, "min_length": 10}):
            settings = {**settings, "eos_token_id": [*range(100)], "pad_token_id": 0}
            expected = theirs.generate(inputs_embeds=vectors, attention_mask=torch.ones_like(IDS), **settings)
            assert ours.generate(inputs_embeds=vectors, **settings).tolist() == expected.tolist()

    def test_vectors_that_no_token_has(self, decoder: tuple[Any, Any]) -> None:
        ours, theirs = decoder
        vectors = torch.randn(2, 5, ours.config.hidden_size, generator=torch.Generator().manual_seed(1))
        output = ours.generate(inputs_embeds=vectors, return_dict_in_generate=True, output_logits=True, **FREE)
        expected = theirs.generate(
            inputs_embeds=vectors, attention_mask=torch.ones(2, 5), return_dict_in_generate=True, output_logits=True,
            pad_token_id=0, **FREE,
        )  # fmt: skip
        assert output.sequences.tolist() == expected.sequences.tolist()
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(output.logits, expected.logits, strict=True))
        assert output.past_key_values.get_seq_length() == 9

    def test_an_encoder_decoder_reads_vectors(self, pair: tuple[Any, Any]) -> None:
        ours, mask = pair[0], MASK.flip(1)
        vectors = ours.base_model.embed_source(IDS)
        settings = {
            "attention_mask": mask, "return_dict_in_generate": True, "output_hidden_states": True, "watch": "encoder.final",
            **FREE,
        }  # fmt: skip
        expected = ours.generate(IDS, **settings)
        encoded = ours.base_model.run_encoder(IDS, mask, output_hidden_states=True)
        for inputs in ({"inputs_embeds": vectors}, {"encoder_outputs": encoded}):
            output = ours.generate(**inputs, **settings)
            assert output.sequences.tolist() == expected.sequences.tolist()
            real = mask[..., None]
            for layer, other in zip(output.encoder_hidden_states, expected.encoder_hidden_states, strict=True):
                assert torch.allclose(layer * real, other * real, atol=1e-4)
        assert torch.allclose(
            ours.generate(inputs_embeds=vectors, **settings).sites[0]["encoder.final"] * real,
            expected.sites[0]["encoder.final"] * real,
            atol=1e-4,
        )
        beams = {"attention_mask": mask, "num_beams": 3, **FREE}
        assert ours.generate(encoder_outputs=encoded, **beams).tolist() == ours.generate(IDS, **beams).tolist()
        assert ours.generate(encoder_outputs=(encoded[0],), **beams).tolist() == ours.generate(IDS, **beams).tolist()
