"""The classes and functions of transformers' names."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer import AutoConfig, Change, DynamicCache, EncoderDecoderCache, StaticCache, blueprints
from glassformer.compat.auto import AutoModelForCausalLM, AutoModelForSequenceClassification
from glassformer.compat.scratch import Model as Scratch
from glassformer.compat.scratch import generate_with_trace
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Source
from glassformer.ground.errors import (
    CheckpointError,
    ConfigError,
    ContextExceeded,
    ExecutorError,
    InputError,
    InputTypeError,
    ModelNotFound,
    SettingError,
    SiteError,
    UnknownArgument,
    WriteError,
)
from glassformer.model_files import open_model
from glassformer.quantize.gguf_metadata import architecture_of
from glassformer.runtime.model import Model
from tests.compat.test_scratch import H_PARAMS
from tests.messages.calls import (
    IDS,
    VECTORS,
    Entry,
    altered,
    classifier,
    decoder,
    module,
    other_module,
    pair_module,
    path,
    place,
    scratch,
    tokenizer,
    used_for_two,
    write,
)
from tests.parity import reference
from tests.parity.reference import LLAMA3_ROPE, TINY
from tests.see.models import encoder


def full() -> StaticCache:
    """A cache without room."""
    cache = StaticCache(module().config, max_cache_len=3)
    module()(IDS, past_key_values=cache)
    return cache


def llama(**fields: Any) -> Any:
    return blueprints.read_config({**module().config.to_dict(), **fields})


def qwen3_5(**fields: Any) -> Any:
    return blueprints.read_config({**TINY["qwen3_5_text"], "model_type": "qwen3_5_text", **fields})


def qwen3(**fields: Any) -> Any:
    return blueprints.read_config({**decoder().opened.config.to_dict(), **fields})


def tiny(family: str, **fields: Any) -> Any:
    return blueprints.read_config({"model_type": family, **TINY[family], **fields})


def torn_convolution() -> Any:
    """OLMo Hybrid's, of which a part is not there."""
    folder = Path(mkdtemp())
    reference.write(folder, "olmo_hybrid")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.linear_attn.k_conv1d.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return open_model(folder).tensors


def llama4(**changes: Any) -> Any:
    return blueprints.read_config({"model_type": "llama4_text", **TINY["llama4_text"], **changes})


def glm4_moe(**fields: Any) -> Any:
    return blueprints.read_config({"model_type": "glm4_moe", **TINY["glm4_moe"], **fields})


def deepseek(**fields: Any) -> Any:
    return blueprints.read_config({"model_type": "deepseek_v2", **TINY["deepseek_v2"], **fields})


def led_module() -> Any:
    return glassformer.AutoModelForSeq2SeqLM.from_config(tiny("led"))


def collator(tokenizer: Any = None, **options: Any) -> Any:
    return glassformer.DataCollatorForLanguageModeling(tokenizer or encoder().model.tokenizer, **options)


def of_another_source() -> dict[str, Any]:
    cache = pair_module()(IDS, decoder_input_ids=IDS[:, :2]).past_key_values
    return {"decoder_input_ids": IDS, "past_key_values": cache}


MESSAGES: dict[str, list[Entry]] = {
    "inputs of a module": [
        (InputError, lambda: AutoModelForSequenceClassification.from_pretrained(
            altered("llama", pad_token_id=None), num_labels=3)(torch.cat((IDS, IDS))),
         "a batch needs an attention_mask (or a pad_token_id), to know where each text ends."),
        (InputError, lambda: module()(IDS, attention_mask=torch.zeros(1, 1, 3, 4)),
         "attention_mask has shape (1, 1, 3, 4); one of four axes must be (batch or 1, heads or 1, length, keys), here of "
         "(1, 4, 3, 3)."),
        (InputError, lambda: module()(IDS, attention_mask=torch.full((1, 1, 3, 3), 2)),
         "attention_mask has four axes and holds torch.int64 of 0 and 1; pass it as attention_mask.bool(), True where a "
         "token is seen, or as what is added to the scores: 0 where it is, and minus infinity where it is not."),
        (InputError, lambda: pair_module()(IDS, attention_mask=torch.zeros(1, 1, 3, 3), decoder_input_ids=IDS),
         "attention_mask has shape (1, 1, 3, 3); an encoder-decoder's is (batch, source), since both of its stacks look "
         "at the source."),
        (InputError, lambda: led_module()(IDS, decoder_input_ids=IDS, global_attention_mask=torch.ones(1, 2)),
         "global_attention_mask has shape (1, 2); it must be a tensor of (1, 3), as the source's tokens are."),
        (InputError, lambda: led_module()(IDS, decoder_input_ids=IDS, global_attention_mask=torch.full((1, 3), 2)),
         "global_attention_mask must hold 1 for global tokens and 0 for all others."),
        (ExecutorError, lambda: PlainExecutor(pair_module()).open(Source([5, 6], [0])),
         "this model's encoder has no global tokens: leave them out."),
        (InputError, lambda: Source([5, 6], [2]), "a source of 2 tokens has global tokens at [2]."),
        (InputError, lambda: module()(IDS, cache_position=torch.arange(4, 7)),
         "cache_position is [4, 5, 6]; with 0 remembered tokens, 3 new ones stand at 0 to 2. Leave it out, or crop the "
         "cache first."),
        (InputTypeError, lambda: module()(IDS, cache_position=torch.zeros(3)),
         "cache_position is of torch.float32; it must be whole numbers."),
        (InputTypeError, lambda: module()(IDS, return_dict="no"),
         "return_dict is 'no'; it must be True or False."),
        (InputError, lambda: module()(IDS, attention_mask=torch.ones(1, 5)),
         "attention_mask has shape (1, 5); with 0 remembered tokens and 3 new ones it must be (1, 3)."),
        (InputError, lambda: module()(),
         "give either input_ids or inputs_embeds."),
        (InputError, lambda: classifier()(IDS, labels=torch.tensor([3])),
         "label 3 is outside the 2 labels (counted from 0)."),
        (InputTypeError, lambda: module()("this is a test input"),
         "the model takes token ids as a tensor, not str. Turn text into ids first: tokens = tokenizer(text, "
         "return_tensors='pt'), then pass **tokens; or let glassformer.load(name).chat(text) do both."),
        (KeyError, lambda: module()(IDS)["logit"],
         "\"CausalLMOutputWithPast has no 'logit'; it has logits, past_key_values. Did you mean 'logits'?\""),
        (InputError, lambda: scratch()(IDS, torch.tensor([[1, 2]])),
         "labels have shape (1, 2); the scores are for (1, 3)."),
        (InputError, lambda: scratch()(IDS, torch.tensor([[3, 5, 10**6]])),
         "label 1000000 is outside the 60 tokens of the vocabulary (counted from 0)."),
        (InputError, lambda: module().gradient_checkpointing_enable(every_n_layers=0),
         "every_n_layers is 0; it must be at least 1."),
        (InputError, lambda: StaticCache(module().config, max_cache_len=0),
         "max_cache_len is 0; it must be a number of tokens, from 1 on."),
        (InputError, lambda: module()(IDS, past_key_values=used_for_two()),
         "the static cache was first used for a batch of 2, and cannot hold one of 1. Make another."),
        (InputTypeError, lambda: module()(IDS, input_ids=IDS),
         "forward() has an argument twice, once by its place and once by its name. It takes: …."),
        (InputTypeError, lambda: module()(IDS, *[None] * 14),
         "forward() takes 14 arguments without a name at most, not 15. It takes: …."),
        (InputTypeError, lambda: module()([[1, 2]]),
         "the model takes token ids as a tensor, not list. Turn text into ids first: tokens = tokenizer(text, "
         "return_tensors='pt'), then pass **tokens; or let glassformer.load(name).chat(text) do both."),
        (InputTypeError, lambda: module()(torch.ones(1, 2)),
         "the model takes whole token ids, not torch.float32. Use torch.long."),
        (InputError, lambda: module()(IDS[0]),
         "the model takes ids of shape (batch, length), not (3,). Add a batch axis: ids[None]."),
        (InputError, lambda: module()(IDS[:, :0]),
         "the model was given an empty prompt: ids of shape (1, 0). Give at least one token."),
        (InputError, lambda: module()(IDS + 999),
         "the model was given token id 1006, outside the vocabulary of 256. Is this the model's own tokenizer?"),
        (InputError, lambda: module()(IDS, labels=IDS[:, :2]),
         "labels have shape (1, 2); the scores are for (1, 3)."),
        (UnknownArgument, lambda: classifier()(IDS, label=1),
         "forward() has no argument 'label'. Did you mean 'labels'? It takes: …."),
        (SiteError, lambda: module().changed({"blocks.99.residual": Change()}),
         "no site matches 'blocks.99.residual' in a model of 3 blocks. Did you mean 'blocks.2.residual'? Sites: …."),
        (InputError, lambda: module()(IDS, past_key_values=full()),
         "the static cache has room for 3 tokens: 3 are in it, and 3 more do not fit. Take a larger max_cache_len, or "
         "reset() it."),
        (InputError, lambda: generate_with_trace(scratch(), torch.cat((IDS, IDS))),
         "a trace follows one text; give it a batch of one."),
        (SettingError, lambda: scratch().generate(IDS, temperature=0),
         "temperature is 0; it must be above 0."),
        (SettingError, lambda: scratch().generate(IDS, top_k=0),
         "top_k is 0; it must be at least 1, or None."),
    ],
    "generate()": [
        (ContextExceeded, lambda: module().generate(torch.ones(1, 256, dtype=torch.long)),
         "a prompt of 256 tokens leaves no room in the model's context of 256. Shorten it."),
        (InputError, lambda: module().generate(IDS, attention_mask=torch.ones(1, 5)),
         "attention_mask has shape (1, 5), the ids (1, 3)."),
        (InputError, lambda: module().generate(IDS, attention_mask=torch.zeros(1, 3)),
         "row 0 of the batch is all padding. Give it at least one token."),
        (SettingError, lambda: module().generate(IDS, eos_token_id="end"),
         "eos_token_id is 'end'; it must be a token id, or a list of them."),
        (InputTypeError, lambda: module().generate({"input_ids": IDS}),
         "generate() takes the tokens unpacked: put two stars before them, as in generate(**tokens)."),
        (InputTypeError, lambda: module().generate(IDS, past_key_values=()),
         "past_key_values is a tuple; it must be a DynamicCache or a StaticCache of glassformer, as an output has it."),
        (InputError, lambda: module().generate(IDS[:, :2], past_key_values=module()(IDS).past_key_values),
         "past_key_values hold 3 tokens, and the prompt has 2. Give the whole prompt: what the cache holds of it, and "
         "what follows."),
        (InputError, lambda: module().generate(torch.cat((IDS, IDS)), past_key_values=module()(IDS[:, :2]).past_key_values),
         "past_key_values are of a batch of 1, and there are 2 prompts. Give as many of both."),
        (InputError, lambda: module().generate(IDS, past_key_values=other_module()(IDS[:, :2]).past_key_values),
         "past_key_values are of another model: they have 3 layers of 4 heads of size 12, this one 3 of 2 of size 12."),
        (InputError,
         lambda: module().generate(IDS, past_key_values=StaticCache(module().config, max_cache_len=4), max_new_tokens=4),
         "the static cache has room for 4 tokens, and prompt and answer may have 6. Take a larger max_cache_len, or pass "
         "max_new_tokens."),
        (SettingError,
         lambda: module().generate(IDS, past_key_values=module()(IDS[:, :2]).past_key_values, penalty_alpha=0.6),
         "penalty_alpha compares with the states of the whole prompt, which no cache holds. Leave one out."),
        (SettingError,
         lambda: module().generate(IDS, past_key_values=DynamicCache(), prompt_logprobs=1, return_dict_in_generate=True),
         "prompt_logprobs read the whole prompt as ids, which does not go with past_key_values."),
        (InputError, lambda: module().generate(inputs_embeds=torch.zeros(1, 3, 5)),
         "inputs_embeds are of shape (1, 3, 5); they must be a tensor of (batch, length, 48)."),
        (InputError, lambda: module().generate(inputs_embeds=[1.0]),
         "inputs_embeds are a list; they must be a tensor of (batch, length, 48)."),
        (InputTypeError, lambda: module().generate(inputs_embeds=VECTORS.long()),
         "inputs_embeds are of torch.int64; vectors are floats, such as those of an embedding."),
        (InputError, lambda: module().generate(IDS[:, :2], inputs_embeds=VECTORS),
         "inputs_embeds have shape (1, 3, 48) and input_ids (1, 2); a token has one of each, or leave input_ids out."),
        (SettingError, lambda: module().generate(inputs_embeds=VECTORS, prompt_lookup_num_tokens=3),
         "prompt_lookup_num_tokens drafts from ids, and the prompt has none. Give input_ids alone."),
        (SettingError, lambda: module().generate(inputs_embeds=VECTORS, guidance_scale=2.0),
         "a prompt without ids leaves guidance_scale nothing to lead away from. Pass negative_prompt_ids too."),
        (InputError, lambda: module().generate(IDS, encoder_outputs=(VECTORS,)),
         "encoder_outputs are for encoder-decoders; this model has no encoder."),
        (InputError, lambda: pair_module().generate(IDS, inputs_embeds=torch.zeros(1, 3, pair_module().config.hidden_size)),
         "give an encoder-decoder's source once: either as input_ids or as inputs_embeds."),
        (InputError, lambda: pair_module().generate(IDS, global_attention_mask=torch.ones_like(IDS)),
         "global_attention_mask is for encoders with global tokens; bart has none."),
        (InputError, lambda: module().generate(IDS, global_tokens=[0]),
         "global_tokens are for an encoder that has some, and llama has none."),
        (InputError, lambda: pair_module().generate(encoder_outputs=[IDS]),
         "encoder_outputs must hold the encoder's states, (batch, source, hidden), first."),
        (SettingError, lambda: module().generate(IDS, logprobs=3),
         "logprobs are only part of the full output. Pass return_dict_in_generate=True too."),
        (SettingError, lambda: module().generate(IDS, output_scores=True),
         "output_scores=True has no effect without a place for them. Pass return_dict_in_generate=True too."),
        (SettingError, lambda: module().generate(IDS, assistant_model="small"),
         "assistant_model is str; it must be a model of glassformer that generates."),
        (SettingError, lambda: module().generate(IDS, guidance_scale=2.0, negative_prompt="no"),
         "negative_prompt is a text, so a tokenizer is needed. Pass tokenizer=tokenizer too."),
        (InputError, lambda: module().generate(IDS, guidance_scale=2.0, negative_prompt_ids=[]),
         "negative_prompt_ids are token ids, for all 1 rows or one for each, and at least one id."),
        (SettingError, lambda: module().generate(IDS, watch="final"),
         "what a watch reads is part of the full output. Pass return_dict_in_generate=True too."),
        (SettingError, lambda: module().generate(IDS, output_hidden_states=True),
         "output_hidden_states=True has no effect without a place for them. Pass return_dict_in_generate=True too."),
        (SettingError,
         lambda: module().generate(IDS, prompt_logprobs=1, output_hidden_states=True, return_dict_in_generate=True),
         "prompt_logprobs read the whole prompt as ids, which does not go with what is read inside the model."),
        (SettingError, lambda: module().generate(IDS, penalty_alpha=1.5),
         "penalty_alpha is 1.5; it must be above 0 and at most 1."),
        (SettingError, lambda: module().generate(IDS, penalty_alpha=0.6, num_beams=2),
         "penalty_alpha and num_beams do not go together. Leave out one of them."),
        (SettingError, lambda: module().generate(IDS, prefix_allowed_tokens_fn=3),
         "prefix_allowed_tokens_fn is 3; it must be a function."),
        (SettingError, lambda: module().generate(IDS, prefix_allowed_tokens_fn=lambda row, ids: []),
         "prefix_allowed_tokens_fn gave [] at step 0; it must give at least one token id, each below 256."),
        (InputTypeError, lambda: module().generate(IDS, past_key_values=EncoderDecoderCache()),
         "past_key_values is a EncoderDecoderCache; it must be a DynamicCache or a StaticCache of glassformer, as an "
         "output has it."),
        (SettingError, lambda: module().generate(IDS, assistant_model=pair_module()),
         "assistant_model must have the same vocabulary and kind as the model: it is bart of 12 tokens, the model "
         "llama of 256."),
        (InputError, lambda: glassformer.AsyncTextIteratorStreamer(tokenizer()),
         "an AsyncTextIteratorStreamer is made inside a running event loop."),
        (InputError, lambda: pair_module().generate(IDS[:, :2], **of_another_source()),
         "past_key_values hold a source of 3 tokens, and this one has 2. Give the same source again."),
    ],
    "configs and classes": [
        (ConfigError, lambda: setattr(AutoConfig.from_pretrained(path("gpt2")), "n_embd", "x"),
         "config field 'n_embd' is 'x'; it must be int."),
        (ConfigError, lambda: glassformer.Qwen3Config.from_pretrained(path("gpt2")),
         "…: holds a gpt2 model, no qwen3 model. Use AutoConfig."),
        (ConfigError, lambda: glassformer.Qwen3ForCausalLM.from_pretrained(path("llama")),
         "…: holds a llama model, which Qwen3ForCausalLM cannot be. Use LlamaForCausalLM, or the Auto class, which finds "
         "the right one."),
        (InputError, lambda: AutoModelForCausalLM.from_pretrained(path("llama"), dtype=torch.int8),
         "dtype torch.int8 is not one that a model can have. Use one of: float32, bfloat16, float16, float64."),
        (UnknownArgument, lambda: AutoModelForCausalLM.from_pretrained(path("llama"), num_label=3),
         "'num_label' is no argument of from_pretrained() and no field of the llama config. Did you mean 'num_labels'?"),
        (ConfigError,
         lambda: AutoModelForCausalLM.from_pretrained(write("plain/config.json", "{}").parent, trust_remote_code=True),
         "…/plain/config.json: config field 'model_type' is missing, so its family is unknown. Load it with a class of "
         "that family, such as BertForMaskedLM, or add the field: one of …. No code from a checkpoint is ever run, so "
         "trust_remote_code=True cannot help."),
        (ConfigError, lambda: AutoConfig.from_pretrained(write("sizeless/config.json", '{"model_type": "llama"}').parent),
         "…/sizeless/config.json: config field 'vocab_size' is missing."),
        (ConfigError,
         lambda: AutoConfig.from_pretrained(
             write("nested/config.json", '{"model_type": "gemma3", "text_config": "llama"}').parent),
         "…/nested/config.json: config field 'text_config' is 'llama'; it must be an object."),
        (ConfigError, lambda: glassformer.AutoModelForTextEncoding.from_pretrained(path("t5gemma", "seq2seq")),
         "a t5gemma model cannot be loaded as AutoModelForTextEncoding. Use AutoModel. With is_encoder_decoder=False it is "
         "opened as one."),
        (ConfigError, lambda: glassformer.T5GemmaEncoderModel.from_pretrained(path("t5gemma", "seq2seq")),
         "…: holds a t5gemma model, which T5GemmaEncoderModel cannot be. Use T5GemmaModel, or the Auto class, which finds "
         "the right one. With is_encoder_decoder=False it is opened as one."),
        (ConfigError, lambda: glassformer.AutoModelForTextEncoding.from_pretrained(path("llama")),
         "a llama model cannot be loaded as AutoModelForTextEncoding. Use AutoModel."),
        (ConfigError, lambda: glassformer.AutoModelForPreTraining.from_pretrained(path("albert", "masked")),
         "a albert model cannot be loaded as AutoModelForPreTraining. Use AutoModel, or …."),
        (ImportError, lambda: glassformer.Trainer,
         "glassformer has no Trainer. Instead: take transformers' own: it trains these models, with this tokenizer and "
         "these collators."),
        (WriteError, lambda: module().save_pretrained(write("file", "")),
         "…/file cannot be written (it is a file, and a folder is needed). Choose another place."),
        (ConfigError, lambda: blueprints.module_for("xlm_roberta"),
         "config field 'model_type' is 'xlm_roberta', which is not a known family. Did you mean 'xlm-roberta'? "
         "docs/models.md lists those; what transformers knows beside them opens with glass.load, or with its own classes."),
        (InputError, lambda: Model.from_module(type(module())(module().config)),
         "this model was not loaded from a checkpoint, which would have its tokenizer: pass one."),
        (ModelNotFound, lambda: glassformer.load(path("llama"), adapter=place() / "no-adapter"),
         "there is no file or folder '…/no-adapter'. Check the path."),
    ],
    "fields of a config": [
        (ConfigError, lambda: llama(model_type="lama"),
         "config field 'model_type' is 'lama', which is not a known family. Did you mean 'llama'? "
         "docs/models.md lists those; what transformers knows beside them opens with glass.load, or with its own classes."),
        (ConfigError, lambda: llama(model_type="mamba"),
         "config field 'model_type' is 'mamba', which is not a known family. docs/models.md lists those; "
         "what transformers knows beside them opens with glass.load, or with its own classes."),
        (ConfigError, lambda: llama(hidden_act="silo"),
         "config field 'hidden_act' is 'silo', which is not a known activation. Did you mean 'silu'? Known: …."),
        (ConfigError, lambda: llama(hidden_size="wide"),
         "config field 'hidden_size' is 'wide'; it must be int."),
        (ConfigError, lambda: llama(num_hidden_layers=0),
         "config field 'num_hidden_layers' is 0; it must be at least 1."),
        (ConfigError, lambda: llama(num_key_value_heads=3),
         "config field 'num_key_value_heads' is 3; it must divide the 4 attention heads."),
        (ConfigError, lambda: qwen3_5(linear_num_key_heads=3),
         "config field 'linear_num_key_heads' is 3; it must divide the 4 heads of values."),
        (ConfigError, lambda: tiny("mamba2", n_groups=3),
         "config field 'n_groups' is 3; it must divide the 4 heads that keep a state ('num_heads')."),
        (ConfigError, lambda: tiny("mamba2", head_dim=8),
         "config field 'head_dim' is 8, but 4 heads ('num_heads') together must have 64 numbers."),
        (ConfigError, lambda: tiny("mamba2", time_step_limit=[0.5, 0.1]),
         "config field 'time_step_limit' is [0.5, 0.1]; it must be the least and the most that a time step may be, such "
         "as [0.0, Infinity]."),
        (ConfigError, lambda: tiny("nemotron_h", layers_block_type=["mamba", "rnn"]),
         "config field 'layers_block_type' must name one of linear_attention, full_attention, moe, mlp for each block, "
         "not ['linear_attention', 'rnn']."),
        (ConfigError, lambda: tiny("granitemoehybrid", layer_types=["mamba", "rnn"]),
         "config field 'layer_types' must name one of linear_attention, full_attention for each of the 3 layers, not "
         "['linear_attention', 'rnn']."),
        (ConfigError, lambda: tiny("granitemoehybrid", num_experts_per_tok=0),
         "config field 'num_experts_per_tok' is 0, but there are 5 experts ('num_local_experts')."),
        (ConfigError, lambda: tiny("granitemoehybrid", position_embedding_type="alibi"),
         "config field 'position_embedding_type' is 'alibi'; it must be 'rope', or 'nope' for attention without positions."),
        (ConfigError, lambda: tiny("bamba", attn_layer_indices=[7]),
         "config field 'attn_layer_indices' has 7, but the model has 3 layers."),
        (ConfigError, lambda: tiny("bamba", mamba_d_head="wide"),
         "config field 'mamba_d_head' is 'wide'; it must be int, or 'auto'."),
        (ConfigError, lambda: tiny("falcon_h1", ssm_multipliers=[1.0, 2.0]),
         "config field 'ssm_multipliers' is [1.0, 2.0]; it must be 5 finite numbers."),
        (ConfigError, lambda: tiny("nemotron_h", num_key_value_heads=3),
         "config field 'num_key_value_heads' is 3; it must divide the 4 attention heads."),
        (ConfigError, lambda: tiny("nemotron_h", tie_word_embeddings=True),
         "config field 'tie_word_embeddings' is True; in a nemotron_h model it is False."),
        (ConfigError, lambda: llama(head_dim=7),
         "config field 'head_dim' is 7; RoPE rotates pairs, so it must be even."),
        (ConfigError, lambda: llama(rope_parameters={"rope_type": "lama3"}),
         "config field 'rope_type' is 'lama3', which is not known. Did you mean 'llama3'? Known: default, linear, "
         "dynamic, yarn, llama3, longrope, proportional."),
        (ConfigError, lambda: llama(rope_parameters={"rope_type": "llama3"}),
         "config field 'factor' is None; RoPE needs a positive number there."),
        (ConfigError, lambda: llama(rope_parameters=[1]),
         "config field 'rope_parameters' is [1]; it must be an object."),
        (ConfigError, lambda: llama(rope_parameters={"rope_theta": 0.5}),
         "config field 'rope_theta' is 0.5; it must be above 1."),
        (ConfigError, lambda: llama(rope_parameters={"rope_type": "divisors"}),
         "config field 'divisors' is None; it must be a list of numbers."),
        (ConfigError, lambda: llama(rope_parameters={**LLAMA3_ROPE, "low_freq_factor": 8.0}),
         "config field 'low_freq_factor' must not be above 'high_freq_factor'."),
        (ConfigError, lambda: llama(id2label={"a": "x"}),
         "config field 'id2label' is {'a': 'x'}; its keys must be numbers."),
        (ConfigError, lambda: llama(eos_token_id="two"),
         "config field 'eos_token_id' is 'two'; it must be int | list[int] | None."),
        (ConfigError, lambda: qwen3(layer_types=["full_attention", "odd", "full_attention"]),
         "config field 'layer_types' has 'odd' for layer 1; known: full_attention, sliding_attention."),
        (ConfigError, lambda: qwen3(layer_types=["full_attention"]),
         "config field 'layer_types' lists 1 layers of 3."),
        (ConfigError, lambda: qwen3(mlp_bias=True),
         "config field 'mlp_bias' is True; in a qwen3 model it is False."),
        (ConfigError, lambda: blueprints.read_config({"model_type": "helium", **TINY["helium"], "head_dim": 16}),
         "config field 'head_dim' is 16, but all 4 heads together must be as wide as the stream, which is 48."),
        (ConfigError, lambda: tiny("olmo2", clip_qkv=8.0),
         "config field 'clip_qkv' is 8.0; in an olmo2 model it is None."),
        (ConfigError, lambda: tiny("mpt", attn_config={"qk_ln": True}),
         "config field 'attn_config' has qk_ln=True; in an mpt model it is False here."),
        (InputError, lambda: architecture_of(tiny("olmoe", clip_qkv=8.0), "x"),
         "x: GGUF has no place for the limit of queries, keys and values of an olmoe model. Keep the checkpoint as it is; "
         "load(…, weights=…) packs its weights all the same."),
        (ConfigError, lambda: tiny("olmo", clip_qkv=0),
         "config field 'clip_qkv' is 0; it must be above 0."),
        (ConfigError, lambda: tiny("kimi_linear", layer_types=None, linear_attn_config={"full_attn_layers": [1],
                                                                                         "kda_layers": [1]}),
         "config field 'linear_attn_config' must have each of the … layers once, counted from 1, in 'full_attn_layers' or "
         "in 'kda_layers'."),
        (ConfigError, lambda: tiny("mpt", attn_config={"alibi_bias_max": "8"}),
         "config field 'attn_config' has alibi_bias_max='8'; it must be a number from 0 to 10000."),
        (ConfigError, lambda: tiny("falcon", num_kv_heads=3),
         "config field 'num_kv_heads' is 3; it must divide the 4 attention heads."),
        (ConfigError, lambda: tiny("falcon", parallel_attn=False),
         "config field 'parallel_attn' is False; in a falcon model of the new architecture attention and MLP stand side by "
         "side."),
        (ConfigError, lambda: tiny("falcon", num_ln_in_parallel_attn=3),
         "config field 'num_ln_in_parallel_attn' is 3; a block has one norm for both, or two in the new architecture."),
        (ConfigError, lambda: tiny("eurobert", classifier_pooling="cls"),
         "config field 'classifier_pooling' is 'cls'; it must be one of bos, mean, late."),
        (ConfigError, lambda: tiny("embedding_gemma", use_bidirectional_attention=False),
         "config field 'use_bidirectional_attention' is False; in an embedding_gemma model it is True."),
        (ConfigError, lambda: tiny("gemma3n_text", altup_active_idx=3),
         "config field 'altup_active_idx' is 3; it must be one of the 3 streams, from 0 on."),
        (ConfigError, lambda: tiny("gemma3n_text", activation_sparsity_pattern=[0.5]),
         "config field 'activation_sparsity_pattern' is [0.5]; it must have a number for each of the 5 layers."),
        (SiteError, lambda: glassformer.load(path("gemma3n_text"), executor="plain").read_ids([5, 6]).attribution(),
         "the parts of a score follow from one stream, and a gemma3n_text model has several, which each block mixes. "
         "Patching, attention and steps inside work with all of them."),
        (InputError, lambda: AutoModelForCausalLM.from_pretrained(path("gemma3n_text"))(inputs_embeds=VECTORS),
         "this family's blocks have vectors of their own for each token id: give input_ids, beside vectors too."),
        (InputError, lambda: AutoModelForCausalLM.from_pretrained(path("gemma3n_text"))(IDS[:, :2], inputs_embeds=VECTORS),
         "inputs_embeds have shape (1, 3, 48) and input_ids (1, 2); a token has one of each."),
        (InputError, lambda: architecture_of(tiny("gemma3n_text"), "model"),
         "model: GGUF's readers take altup_num_inputs=4 of a gemma3n_text model of 5 layers, not 3. Keep the checkpoint as "
         "it is; load(…, weights=…) packs its weights all the same."),
        (ConfigError, lambda: tiny("gemma4_text", enable_moe_block=True),
         "config field 'num_experts' is missing, in a model with experts."),
        (ConfigError, lambda: tiny("gemma4_text", enable_moe_block=True, num_experts=4, top_k_experts=5,
                                   moe_intermediate_size=8),
         "config field 'top_k_experts' is 5, but there are 4 experts."),
        (ConfigError, lambda: tiny("gemma4_text", use_bidirectional_attention="all"),
         "config field 'use_bidirectional_attention' is 'all'; a decoder that looks ahead is not supported. For vectors of "
         "texts take an encoder, such as minilm."),
        (ConfigError, lambda: tiny("gemma4_text", vocab_size_per_layer_input=90),
         "config field 'vocab_size_per_layer_input' is 90; every block reads a vector of each of the 160 tokens."),
        (ConfigError, lambda: tiny("gemma4_text", global_head_dim=7),
         "config field 'global_head_dim' is 7; it must be a multiple of 2."),
        (ConfigError, lambda: tiny("gemma4_text", num_kv_shared_layers=4),
         "config field 'num_kv_shared_layers' is 4; before them there must be a layer of each of their kinds, whose keys "
         "and values they share."),
        (ConfigError, lambda: tiny("gemma4_text", per_layer_config=5),
         "config field 'per_layer_config' is 5; it must be an object."),
        (ConfigError, lambda: tiny("gemma4_text", per_layer_config={"1": {"head_dim": 8}, "4": {"head_dim": 16}}),
         "config field 'per_layer_config' is {'1': {'head_dim': 8}, '4': {'head_dim': 16}}; all layers that see everything "
         "must have the same head_dim and num_key_value_heads, and no other field."),
        (ConfigError, lambda: deepseek(qk_rope_head_dim=7),
         "config field 'qk_rope_head_dim' is 7; RoPE rotates pairs, so it must be even."),
        (ConfigError, lambda: deepseek(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
         "config field 'partial_rotary_factor' is 0.5; in a deepseek_v2 model 'qk_rope_head_dim' says what is rotated."),
        (ConfigError, lambda: deepseek(topk_method="noaux_tc"),
         "config field 'topk_method' is 'noaux_tc', which is not known. Known: greedy, group_limited_greedy."),
        (ConfigError, lambda: blueprints.read_config(
            {"model_type": "glm4_moe_lite", **TINY["glm4_moe_lite"], "mlp_layer_types": ["dense"]}
         ),
         "config field 'mlp_layer_types' has to say of each of the 3 layers whether it is 'dense' or 'sparse'."),
        (CheckpointError, torn_convolution,
         "…model.layers.0.linear_attn.q_conv1d.weight… and those beside it do not fit together. Fetch them again."),
        (ConfigError, lambda: llama4(no_rope_layers=[1, 0]), "config field 'no_rope_layers' lists 2 layers of 3."),
        (ConfigError, lambda: llama4(layer_types=["conv"] * 3),
         "config field 'layer_types' must name one of chunked_attention, full_attention for each of the 3 layers, not "
         "['conv', 'conv', 'conv']."),
        (ConfigError, lambda: llama4(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
         "config field 'rope_parameters' has RoPE of the kind 'yarn', which is not supported beside norms of queries and "
         "keys ('use_qk_norm')."),
        (ConfigError, lambda: blueprints.read_config(
            {"model_type": "lfm2", **TINY["lfm2"], "layer_types": None, "full_attn_idxs": 2}
         ),
         "config field 'full_attn_idxs' is 2; it must list layers by index."),
        (ConfigError, lambda: tiny("led", attention_window=[4]),
         "config field 'attention_window' is [4]; it must be a number, or one for each of the 2 blocks of the encoder."),
        (ConfigError, lambda: tiny("led", attention_window=[4, 7]),
         "config field 'attention_window' is 7; it must be even, since half of a window is on each side."),
        (ConfigError, lambda: glm4_moe(n_group=4),
         "config field 'n_group' is 4, but 6 experts ('n_routed_experts') make no such groups of two or more each."),
        (ConfigError, lambda: glm4_moe(topk_group=4),
         "config field 'topk_group' is 4, but there are 3 groups ('n_group')."),
        (ConfigError, lambda: glm4_moe(num_experts_per_tok=5),
         "config field 'num_experts_per_tok' is 5, but the best groups ('topk_group') have 4 experts."),
        (ConfigError, lambda: Scratch([("d_model", 24)]),
         "h_params is a dictionary, not list."),
        (ConfigError, lambda: Scratch({**H_PARAMS, "num_heads": 5}),
         "config field 'num_heads' is 5, which does not divide the hidden size 24."),
        (ConfigError, lambda: Scratch({**H_PARAMS, "dropout": None}),
         "config field 'dropout' is None; it must be float."),
        (ConfigError, lambda: Scratch({"d_model": 24}),
         "h_params lack 'context_length'."),
        (ConfigError, lambda: llama(num_hidden_layers=2**31),
         "config field 'num_hidden_layers' is 2147483648; it must be at most 4096."),
        (ConfigError, lambda: llama(num_attention_heads=10**30),
         "config field 'num_attention_heads' is 1000000000000000000000000000000; it must be at most 2147483647."),
        (ConfigError, lambda: llama(rms_norm_eps=float("nan")),
         "config field 'rms_norm_eps' is nan; it must be a finite number."),
        (ConfigError, lambda: llama(rms_norm_eps=-1e-5),
         "config field 'rms_norm_eps' is -1e-05; it must be at least 0."),
        (ConfigError, lambda: llama(attention_dropout=1.5),
         "config field 'attention_dropout' is 1.5; it must be at most 1."),
        (ConfigError, lambda: llama(eos_token_id=[2, 2**40]),
         "config field 'eos_token_id' is 1099511627776; it must be at most 2147483647."),
    ],
    "collators": [
        (InputError, lambda: collator(mlm_probability=1.5),
         "mlm_probability is 1.5; it must be a share between 0 and 1."),
        (InputError, lambda: collator(mask_replace_prob=0.8, random_replace_prob=0.5),
         "mask_replace_prob and random_replace_prob are shares of one whole, and together exceed 1."),
        (InputError, lambda: collator(mlm=False, whole_word_mask=True),
         "whole_word_mask=True masks words, which mlm=False does not. Leave one of them out."),
        (InputError, lambda: collator(whole_word_mask=True)([{"input_ids": [5, 6]}]),
         "whole_word_mask needs to know the words: encode with return_offsets_mapping=True."),
        (InputError, lambda: collator(tokenizer()),
         "the tokenizer has no mask token, which mlm=True needs. Pass mlm=False to train on the next token."),
        (InputError, lambda: collator(tokenizer(), mlm=False)([[5, 6], [7]]),
         "the tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token."),
        (InputError, lambda: collator(return_tensors="tf")([[5]]),
         "return_tensors='tf' is not known. Use 'pt' or 'np'."),
        (InputError, lambda: tokenizer().get_special_tokens_mask([5]),
         "the mask is that of one text with its special tokens: pass already_has_special_tokens=True, or encode with "
         "return_special_tokens_mask=True."),
    ],
}  # fmt: skip
