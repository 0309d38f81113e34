"""Settings of what is generated: values, contradictions, rules and grammars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import glassformer
from glassformer import GenerationConfig, TextStreamer
from glassformer.decoding import Policy, Recipe
from glassformer.decoding.grammar import Grammar
from glassformer.engine.checks import InputChecks
from glassformer.engine.protocol import Feed
from glassformer.ground.errors import (
    CheckpointError,
    ExecutorError,
    InputError,
    InputTypeError,
    ModelNotFound,
    NotNumbers,
    SettingError,
    UnknownArgument,
)
from tests.messages.calls import IDS, Entry, decoder, guided, half_a_head, halved, module, pair_module, tokenizer
from tests.see.models import TEXT, encoder
from tests.site_names import usual_sites


def setting(**changes: Any) -> Any:
    return GenerationConfig().merged(changes)


def sampled(**changes: Any) -> Any:
    return setting(do_sample=True, **changes)


def made(**changes: Any) -> Any:
    """The recipe that settings make, with a tokenizer."""
    return Recipe.of(setting(**changes), tokenizer(), size=256)


def chosen(*scores: float, source: Any = None, **changes: Any) -> Any:
    """What a policy makes of the first scores."""
    return Policy(Recipe.of(setting(**changes)), [1], context=9, source=source).feed(np.array(scores, np.float32))


def ordered(*rules: str) -> Any:
    return chosen(1, 2, 3, do_sample=True, temperature=0.5, top_k=2, rules=[*rules])


def nothing(*_: object) -> None:
    """A rule that gives no scores."""


def not_numbers(ids: Any, scores: Any) -> Any:
    return scores * torch.nan


MESSAGES: dict[str, list[Entry]] = {
    "settings": [
        (UnknownArgument, lambda: GenerationConfig().merged({"max_new_token": 5}),
         "there is no setting 'max_new_token'. Did you mean 'max_new_tokens'?"),
        (SettingError, lambda: GenerationConfig().merged({"dola_layers": "high"}),
         "the setting 'dola_layers' is not supported. Leave it out."),
        (SettingError, lambda: decoder().chat(TEXT, do_sample=True, temperature="0.5"),
         "temperature is '0.5'; it must be a number above 0."),
        (SettingError, lambda: decoder().chat(TEXT, stop_strings="\ud800"),
         "stop_strings holds a lone surrogate, which is no character. Repair its encoding first."),
        (SettingError, lambda: decoder().chat(TEXT, do_sample=False, top_k=4),
         "top_k=4 has no effect without sampling. Pass do_sample=True too."),
        (SettingError, lambda: decoder().watch(TEXT, sites="final", prompt_lookup_num_tokens=2),
         "states, attentions and sites are read where each pass gives a token. Leave penalty_alpha, and what drafts, "
         "out."),
        (SettingError, lambda: guided(negative_prompt=""),
         "negative_prompt is empty, and the model has no token that begins a text. Leave it out."),
        (InputTypeError, lambda: module().generate(IDS, streamer="x"),
         "a streamer has put() and end(), such as TextStreamer(tokenizer); not 'x'."),
        (InputError, lambda: module().generate(IDS, num_beams=2, streamer=TextStreamer(tokenizer())),
         "a streamer follows one text as it grows; give it a batch of one, and no beams."),
        (InputError, lambda: encoder().model.chat(TEXT),
         "… is an encoder (bert): it reads text and writes none. Look at what it makes of a text: glass look."),
        (NotImplementedError, lambda: glassformer.StoppingCriteria()(IDS, None),
         "StoppingCriteria needs a method __call__(self, input_ids, scores)."),
        (SettingError, lambda: decoder().chat(TEXT, num_beams=3, num_return_sequences=2),
         "num_return_sequences=2 gives several texts. Leave it out, or call watch_many(…)."),
        (SettingError, lambda: decoder().chat(TEXT, logprobs=2),
         "logprobs has no place in a text. Here watch(…) keeps all there is: run.steps."),
        (SettingError, lambda: decoder().chat(TEXT, output_scores=True, return_dict_in_generate=True),
         "return_dict_in_generate is for generate(). Here watch(…) keeps all there is: run.steps."),
        (InputError, lambda: decoder().chat(TEXT, guidance_scale=4.0, negative_prompt_ids=[]),
         "negative_prompt_ids are token ids, at least one, not []."),
        (SettingError, lambda: decoder().watch(TEXT, suppress_tokens=list(range(256))),
         "no token is left at step 0: suppress_tokens took out all. Allow more."),
        (SettingError, lambda: GenerationConfig().merged({"generation_config": {}}),
         "generation_config is dict; it must be a GenerationConfig."),
        (UnknownArgument, lambda: GenerationConfig().merged({"cache": "q8"}),
         "there is no setting 'cache'. A model is loaded with it: load(…, cache=…)."),
        (SettingError, lambda: GenerationConfig(num_beams=4).merged({"prompt_lookup_num_tokens": 3}),
         "prompt_lookup_num_tokens and num_beams do not go together. num_beams=1 switches the model's own off."),
        (SettingError, lambda: decoder().watch(TEXT, max_length=3),
         "max_length=3 leaves no room after a prompt of 22 tokens. Use max_new_tokens."),
        (SettingError, lambda: module().generate(IDS, stop_strings="end"),
         "stop_strings names texts, so a tokenizer is needed. Pass tokenizer=tokenizer too."),
        (SettingError, lambda: decoder().watch(TEXT, suppress_tokens=[999]),
         "suppress_tokens has the id 999, which is outside the vocabulary of 256. Leave it out."),
        (SettingError, lambda: decoder().watch(TEXT, rules=[halved], max_new_tokens=1),
         "the rule halved gave scores of shape (3,); it must give scores of shape (256,)."),
        (InputError, lambda: decoder().watch(TEXT, look="some"),
         "watch(): look is 'some'; it must be a whole number or 'all'."),
        (ExecutorError, lambda: InputChecks(8, 8, usual_sites(1)).feed(Feed(None, (1,), vectors=torch.zeros(1, 4)), 0),
         "this executor takes token ids alone. Feed vectors to the plain one."),
        (UnknownArgument, lambda: GenerationConfig().merged({"max_tokens": 1}),
         "there is no setting 'max_tokens'. Here it is 'max_new_tokens'."),
        (InputError, lambda: decoder().watch(TEXT, max_new_tokens=1).why(4),
         "there is no token 4 in a text of 1."),
        (InputError, lambda: decoder().watch_many(TEXT, max_new_tokens=1)[0].why(0),
         "this step kept no account of its rules. Get the run with watch(…), or watch_many(…, look=10)."),
        (InputError, lambda: decoder().watch(TEXT, look=1, max_new_tokens=1).steps[0].waterfall.removed_by(4),
         "no account was kept of token 4. Look at more candidates, or at 'all'."),
        (SettingError, lambda: decoder().chat(TEXT, assistant_model=pair_module()),
         "assistant_model must have the same vocabulary and kind as …: BartForConditionalGeneration is bart of 12 "
         "tokens, not 256."),
        (SettingError, lambda: decoder().chat(TEXT, assistant_model="mtp"),
         "assistant_model='mtp' means a model's own head for further tokens, and … has none. Leave it out, or name a "
         "smaller model of the same vocabulary."),
        (CheckpointError, lambda: half_a_head().check_whole(),
         "…: its head for further tokens lacks mtp.pre_fc_norm_embedding.weight, mtp.pre_fc_norm_hidden.weight, "
         "mtp.layers.0.input_layernorm.weight and 11 more, so it cannot draft. Leave assistant_model='mtp' out, or fetch "
         "the files again."),
        (ModelNotFound, lambda: decoder().chat(TEXT, assistant_model="mpt"),
         "assistant_model='mpt': there is no model 'mpt'. Give a path, a hub id such as 'Qwen/Qwen3-0.6B', or a catalogue "
         "name: …. Did you mean 'mtp'?"),
    ],
    "values": [
        (SettingError, lambda: setting(max_new_tokens=0),
         "max_new_tokens is 0; it must be a whole number of at least 1."),
        (SettingError, lambda: setting(max_new_tokens=2.5),
         "max_new_tokens is 2.5; it must be a whole number of at least 1."),
        (SettingError, lambda: setting(max_new_tokens=True),
         "max_new_tokens is True; it must be a whole number of at least 1."),
        (SettingError, lambda: setting(max_new_tokens=2**40),
         "max_new_tokens is 1099511627776; it must be a whole number of at least 1 and at most 2147483647."),
        (SettingError, lambda: setting(max_new_tokens=10**5000),
         "max_new_tokens is a number of thousands of digits; it must be a whole number of at least 1 and at most "
         "2147483647."),
        (SettingError, lambda: setting(max_length=-3),
         "max_length is -3; it must be a whole number of at least 1."),
        (SettingError, lambda: setting(do_sample="yes"),
         "do_sample is 'yes'; it must be true or false."),
        (SettingError, lambda: sampled(temperature=-1.0),
         "temperature is -1.0; it must be above 0."),
        (SettingError, lambda: sampled(temperature="hot"),
         "temperature is 'hot'; it must be a number above 0."),
        (SettingError, lambda: sampled(temperature=-math.inf),
         "temperature is -inf; it must be a number above 0."),
        (SettingError, lambda: sampled(temperature=1e300),
         "temperature is 1e+300; it must be above 0 and at most 1000000000."),
        (SettingError, lambda: sampled(top_k=-1),
         "top_k is -1; it must be a whole number of at least 0."),
        (SettingError, lambda: sampled(top_p=1.5),
         "top_p is 1.5; it must be above 0 and at most 1."),
        (SettingError, lambda: sampled(top_p=0),
         "top_p is 0; it must be above 0 and at most 1."),
        (SettingError, lambda: sampled(min_p=-0.1),
         "min_p is -0.1; it must be at least 0 and at most 1."),
        (SettingError, lambda: sampled(seed=-1),
         "seed is -1; it must be a whole number from 0 to 2**64 - 1."),
        (SettingError, lambda: sampled(seed=2**64),
         "seed is 18446744073709551616; it must be a whole number from 0 to 2**64 - 1."),
        (SettingError, lambda: setting(num_beams=0),
         "num_beams is 0; it must be a whole number of at least 1 and at most 1024."),
        (SettingError, lambda: setting(num_beams=10**12),
         "num_beams is 1000000000000; it must be a whole number of at least 1 and at most 1024."),
        (SettingError, lambda: setting(num_beams=2, early_stopping="soon"),
         "early_stopping is 'soon'; it must be true, false or 'never'."),
        (SettingError, lambda: setting(repetition_penalty=0),
         "repetition_penalty is 0; it must be above 0."),
        (SettingError, lambda: setting(presence_penalty="much"),
         "presence_penalty is 'much'; it must be a number."),
        (SettingError, lambda: setting(stop_strings=5),
         "stop_strings is 5; it must be a text or a list of texts."),
        (SettingError, lambda: setting(bad_words_ids=[1, 2]),
         "bad_words_ids is [1, 2]; it must be a list of lists of token ids."),
        (SettingError, lambda: setting(suppress_tokens="x"),
         "suppress_tokens is 'x'; it must be a list of token ids."),
        (SettingError, lambda: setting(logits_processor=[3]),
         "logits_processor is [3]; it must be a list of functions."),
        (SettingError, lambda: setting(stop_when=3),
         "stop_when is 3; it must be a function."),
        (SettingError, lambda: setting(max_time=0),
         "max_time is 0; it must be above 0."),
        (SettingError, lambda: setting(eos_token_id="end"),
         "eos_token_id is 'end'; it must be a token id, or a list of them."),
        (SettingError, lambda: setting(eos_token_id=[2, 2**63]),
         "eos_token_id is [2, 9223372036854775808]; it must be a token id, or a list of them."),
        (SettingError, lambda: setting(choices="yes"),
         "choices is 'yes'; it must be a list of texts."),
        (SettingError, lambda: made(stop_strings=[""]),
         "stop_strings is ['']; each must be a text of at least one character."),
        (SettingError, lambda: made(logit_bias={"ab": 1.0}),
         "logit_bias names 'ab', which is 2 tokens, not one. Use sequence_bias."),
        (SettingError, lambda: made(logit_bias={5: "much"}),
         "logit_bias for 5 is 'much'; it must be a number, or minus infinity."),
        (SettingError, lambda: made(logit_bias={5: math.inf}),
         "logit_bias for 5 is inf; it must be a number, or minus infinity."),
        (SettingError, lambda: made(logit_bias=[[5]]),
         "logit_bias is [[5]]; it must be a dictionary, or a list of pairs of a token and a number."),
        (SettingError, lambda: made(logit_bias=[[[5], 1.0]]),
         "logit_bias names [5]; it must be a token id, or a token's text."),
        (SettingError, lambda: made(forced_tokens={0: "ab"}),
         "forced_tokens names 'ab', which is 2 tokens, not one. Give each its step."),
        (SettingError, lambda: made(forced_tokens={"first": 5}),
         "forced_tokens has the step 'first'; steps are whole numbers, 0 the first."),
        (SettingError, lambda: made(forced_tokens={0: 1.5}),
         "forced_tokens at step 0 is 1.5; it must be a token id, or a token's text."),
        (SettingError, lambda: made(forced_tokens=[[5]]),
         "forced_tokens is [[5]]; it must be a dictionary, or a list of pairs of a step and a token."),
        (SettingError, lambda: made(sequence_bias={5: 1.0}),
         "sequence_bias is {5: 1.0}; it must be a dictionary from tuples of token ids to numbers, or a list of [ids, "
         "number]."),
        (SettingError, lambda: made(bad_words_ids=[[]]),
         "bad_words_ids has an empty list. Leave it out."),
        (SettingError, lambda: made(bad_words=["x", ""]),
         "bad_words has an empty text. Leave it out."),
        (SettingError, lambda: made(cancel=5),
         "cancel is 5; it must be a threading.Event, or have is_set() as one has."),
        (SettingError, lambda: GenerationConfig.from_dict({"top_p": 7, "do_sample": True}),
         "generation_config.json: top_p is 7; it must be above 0 and at most 1."),
        (UnknownArgument, lambda: GenerationConfig(temprature=3),
         "there is no setting 'temprature'. Did you mean 'temperature'?"),
        (SettingError, lambda: made(sequence_bias={(): 1.0}),
         "sequence_bias is {(): 1.0}; it must be a dictionary from tuples of token ids to numbers, or a list of [ids, "
         "number]."),
        (SettingError, lambda: setting(num_beams=2, length_penalty=math.nan),
         "length_penalty is nan; it must be a number at least -10 and at most 10."),
        (SettingError, lambda: setting(repetition_penalty=math.inf),
         "repetition_penalty is inf; it must be a number above 0."),
        (SettingError, lambda: setting(max_time="5"),
         "max_time is '5'; it must be a number above 0."),
        (SettingError, lambda: sampled(mirostat=1),
         "mirostat is 1; only version 2 is here: mirostat=2."),
        (SettingError, lambda: sampled(epsilon_cutoff=1.0),
         "epsilon_cutoff is 1.0; it must be at least 0 and below 1."),
    ],
    "contradictions": [
        (SettingError, lambda: setting(temperature=0.5),
         "temperature=0.5 has no effect without sampling. Pass do_sample=True too."),
        (SettingError, lambda: setting(length_penalty=2.0),
         "length_penalty=2.0 has no effect without beams. Pass num_beams=4 too."),
        (SettingError, lambda: setting(early_stopping=True),
         "early_stopping=True has no effect without beams. Pass num_beams=4 too."),
        (SettingError, lambda: setting(dry_base=2.0),
         "dry_base=2.0 has no effect without DRY. Pass dry_multiplier=0.8 too."),
        (SettingError, lambda: setting(xtc_probability=0.2, xtc_threshold=0.2),
         "xtc_probability=0.2 has no effect without sampling. Pass do_sample=True too."),
        (SettingError, lambda: setting(negative_prompt="no"),
         "negative_prompt='no' has no effect without guidance. Pass guidance_scale=1.5 too."),
        (SettingError, lambda: setting(output_scores=True),
         "output_scores=True has no effect without a place for them. Pass return_dict_in_generate=True too."),
        (SettingError, lambda: setting(num_assistant_tokens=3),
         "num_assistant_tokens=3 has no effect without a model that drafts. Pass assistant_model='…' too."),
        (SettingError, lambda: setting(max_matching_ngram_size=3),
         "max_matching_ngram_size=3 has no effect without prompt lookup. Pass prompt_lookup_num_tokens=10 too."),
        (SettingError, lambda: setting(max_new_tokens=5, max_length=9),
         "max_new_tokens and max_length say the same thing in two ways. Pass one of them."),
        (SettingError, lambda: setting(min_new_tokens=5, max_new_tokens=4),
         "min_new_tokens=5 is more than max_new_tokens=4. Change one of them."),
        (SettingError, lambda: setting(min_length=5, max_length=4),
         "min_length=5 is more than max_length=4. Change one of them."),
        (SettingError, lambda: setting(regex="a", choices=["a"]),
         "regex and choices do not go together. Leave out one of them."),
        (SettingError, lambda: setting(num_beams=2, guidance_scale=2.0),
         "num_beams and guidance_scale do not go together. Leave out one of them."),
        (SettingError, lambda: setting(num_beams=2, prompt_lookup_num_tokens=3),
         "prompt_lookup_num_tokens and num_beams do not go together. Leave out one of them."),
        (SettingError, lambda: setting(guidance_scale=2.0, negative_prompt="a", negative_prompt_ids=[1]),
         "negative_prompt and negative_prompt_ids do not go together. Leave out one of them."),
        (SettingError, lambda: setting(num_return_sequences=3),
         "num_return_sequences=3 would give the same text each time. Pass do_sample=True or num_beams too."),
        (SettingError, lambda: setting(num_return_sequences=3, num_beams=2),
         "num_return_sequences=3 is more than num_beams=2. Pass more beams."),
        (SettingError, lambda: sampled(xtc_threshold=0.2),
         "xtc_threshold=0.2 has no effect without XTC. Pass xtc_probability=0.5 too."),
        (SettingError, lambda: sampled(mirostat_tau=3.0),
         "mirostat_tau=3.0 has no effect without mirostat. Pass mirostat=2 too."),
        (SettingError, lambda: sampled(mirostat=2, top_k=9),
         "mirostat takes the place of top_k. Pass one of them."),
    ],
    "rules": [
        (SettingError, lambda: ordered("temperature"),
         "top_k is in force, but has no place in the order of rules. Put it in, or unset it."),
        (SettingError, lambda: ordered("temperature", "top_k", "top_k"),
         "the order of rules has 'top_k' twice. Leave one out."),
        (SettingError, lambda: ordered("temperature", "top_k", "top_p"),
         "the order of rules has 'top_p', which is not in force. Set it, or leave it out."),
        (SettingError, lambda: ordered("temprature", "top_k"),
         "there is no rule 'temprature'. Did you mean 'temperature'? Rules: …."),
        (SettingError, lambda: chosen(1, 2, 3, rules=[nothing]),
         "the rule nothing gave NoneType; it must give scores of shape (3,)."),
        (SettingError, lambda: chosen(1, 2, 3, logits_processor=[nothing]),
         "the rule nothing gave NoneType; it must give a tensor of scores, as it got."),
        (SettingError, lambda: chosen(1, 2, 3, logits_processor=[not_numbers]),
         "the rule not_numbers gave scores that are not numbers (NaN) at step 0."),
        (NotNumbers, lambda: chosen(1, math.nan, 3),
         "the model's scores at step 0 are not numbers (NaN or infinite)."),
        (SettingError, lambda: chosen(1, 2, source=[5, 6], guidance_scale=2.0),
         "an encoder-decoder's guidance_scale needs a negative prompt. Pass negative_prompt too."),
    ],
    "grammars": [
        (SettingError, lambda: decoder().watch_many(TEXT, choices=["a", "b"], num_beams=4, num_return_sequences=3),
         "the rules leave no more than 2 different texts, and num_return_sequences is 3. Ask for fewer, or allow more."),
        (SettingError, lambda: Grammar.compile("regex", "aa", tokenizer()).guide().accept(5),
         "regex does not allow token 5 after 0 tokens. Give it one of those that Guide.allowed() marks."),
        (SettingError, lambda: decoder().chat(TEXT, grammar='root ::= "a'),
         "grammar is no GBNF: Unexpected end of input at line 1, 'root ::= \"a' ^ ''. Fix it, or write Lark."),
    ],
}  # fmt: skip
