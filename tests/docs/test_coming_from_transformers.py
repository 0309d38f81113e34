"""docs/coming-from-transformers.md: each name that scripts use is where the page says, and each difference is shown.

The page's tables are made from those here; one that has fallen behind is printed as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from glassformer import blueprints
from glassformer.ground.errors import InputError, UnknownArgument
from tests.ecosystem.models import load_pair, load_tokenizers, write_model, write_tokenizer
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "coming-from-transformers.md"

SAME: dict[str, str] = {  # where names are looked for: the names
    "module": """
        AutoConfig AutoModel AutoModelForCausalLM AutoModelForMaskedLM AutoModelForQuestionAnswering AutoModelForSeq2SeqLM
        AutoModelForSequenceClassification AutoModelForTextEncoding AutoModelForTokenClassification AutoTokenizer
        BatchEncoding DataCollatorForLanguageModeling DataCollatorForSeq2Seq DataCollatorForTokenClassification
        DataCollatorWithPadding DefaultDataCollator DynamicCache EncoderDecoderCache GenerationConfig LogitsProcessor
        LogitsProcessorList MaxLengthCriteria MaxTimeCriteria StopStringCriteria EosTokenCriteria AddedToken
        TextGenerationPipeline TemperatureLogitsWarper TopKLogitsWarper TopPLogitsWarper MinPLogitsWarper
        TypicalLogitsWarper EpsilonLogitsWarper EtaLogitsWarper RepetitionPenaltyLogitsProcessor
        NoRepeatNGramLogitsProcessor NoBadWordsLogitsProcessor SequenceBiasLogitsProcessor
        PrefixConstrainedLogitsProcessor MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor
        ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor SuppressTokensLogitsProcessor
        SuppressTokensAtBeginLogitsProcessor ExponentialDecayLengthPenalty PreTrainedConfig PreTrainedModel
        PreTrainedTokenizerBase PreTrainedTokenizerFast StaticCache
        StoppingCriteria StoppingCriteriaList TextIteratorStreamer TextStreamer default_data_collator logging pipeline
        set_seed BertConfig BertForMaskedLM BertModel BertTokenizer GPT2LMHeadModel GPT2Tokenizer LlamaConfig
        LlamaForCausalLM Qwen3ForCausalLM T5ForConditionalGeneration T5Tokenizer
    """,
    "model": """
        add_model_tags
        base_model can_generate compute_transition_scores config device dtype enable_input_require_grads eval forward
        from_pretrained generate generation_config get_input_embeddings get_memory_footprint get_output_embeddings
        gradient_checkpointing_disable gradient_checkpointing_enable is_gradient_checkpointing main_input_name
        name_or_path named_parameters num_parameters prepare_inputs_for_generation push_to_hub resize_token_embeddings
        save_pretrained set_input_embeddings set_output_embeddings state_dict tie_weights to train
    """,
    "tokenizer": """
        add_special_tokens add_tokens all_special_ids all_special_tokens apply_chat_template backend_tokenizer
        batch_decode chat_template convert_ids_to_tokens convert_tokens_to_ids convert_tokens_to_string decode encode
        eos_token eos_token_id get_added_vocab get_special_tokens_mask get_vocab is_fast mask_token model_input_names
        model_max_length name_or_path num_special_tokens_to_add pad pad_token pad_token_id padding_side push_to_hub
        save_pretrained special_tokens_map tokenize truncation_side vocab_size
    """,
    "config": """
        architectures from_dict from_pretrained get_text_config hidden_size id2label is_encoder_decoder label2id model_type
        name_or_path num_attention_heads num_hidden_layers num_labels pad_token_id save_pretrained tie_word_embeddings
        to_dict to_json_string update use_cache vocab_size
    """,
}
NOT_HERE: dict[tuple[str, str], str] = {  # where, names: what to do instead
    **{("module", names): advice for names, advice in glassformer._ELSEWHERE.items()},
    ("model", "add_adapter load_adapter set_adapter"): "wrap the model: `peft.get_peft_model`, `peft.PeftModel`",
    ("model", "set_attn_implementation dequantize"): "there is one attention, and weights are expanded as they are read",
    ("tokenizer", "train_new_from_iterator save_vocabulary"):
        "train with the tokenizers library; save_pretrained saves it all",
    ("config", "to_diff_dict to_json_file"): "to_dict, to_json_string and save_pretrained",
}  # fmt: skip


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """What names are looked for in: ours and theirs."""
    models = load_pair(write_model(tmp_path_factory.mktemp("llama"), "llama", "causal"), "causal")
    tokenizers = load_tokenizers(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return {
        "module": (glassformer, transformers),
        "model": (models.ours, models.theirs),
        "tokenizer": (tokenizers.ours, tokenizers.theirs),
        "config": (models.ours.config, models.theirs.config),
    }


def is_in(theirs: Any, name: str) -> bool:
    """Whether transformers has a name, or its module of rules and stops."""
    return hasattr(theirs, name) or (theirs is transformers and hasattr(transformers.generation, name))


@pytest.mark.parametrize("place", SAME)
def test_names_that_are_the_same_are_in_both(place: str, things: dict[str, tuple[Any, Any]]) -> None:
    ours, theirs = things[place]
    for name in SAME[place].split():
        assert hasattr(ours, name), name
        assert is_in(theirs, name), name


@pytest.mark.parametrize(("place", "names"), NOT_HERE)
def test_names_that_are_not_here_are_only_in_theirs(place: str, names: str, things: dict[str, tuple[Any, Any]]) -> None:
    ours, theirs = things[place]
    for name in names.split():
        if place == "module":
            with pytest.raises(ImportError, match=f"^glassformer has no {name}. Instead: "):
                getattr(ours, name)
        else:
            assert not hasattr(ours, name), f"{name} is here now: the page can say so"
        assert is_in(theirs, name), f"{name} is gone from transformers: the page needs no word about it"


# What differs on purpose: a word about each, and the proof ----------------------------------------------------------------

DIFFERENCES: dict[str, Callable[[Any, Any, Path, pytest.LogCaptureFixture], None]] = {}
IDS = torch.tensor([[5, 6, 7, 8]])


def difference(text: str) -> Callable[[Any], Any]:
    def add(proof: Any) -> Any:
        DIFFERENCES[text] = proof
        return proof

    return add


@difference("An argument that there is not is an error that names the nearest one; transformers drops many without a word.")
def _unknown_arguments(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnknownArgument, match="'attention_mask'"):
        ours(IDS, atention_mask=torch.ones_like(IDS))


@difference(
    "Token ids outside the vocabulary, masks of another shape and the like are errors in one sentence, before anything runs."
)
def _checked_inputs(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="outside the vocabulary"):
        ours(torch.tensor([[9999]]))
    with pytest.raises(IndexError):
        theirs(torch.tensor([[9999]]))


@difference(
    "Positions are counted from the mask, so padding on either side changes nothing; what stands at padding itself differs."
)
def _padding(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    padded, mask = torch.tensor([[0, 0, 5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    torch.testing.assert_close(ours(padded, attention_mask=mask).logits[:, 2:], ours(IDS).logits, atol=1e-5, rtol=1e-5)


@difference("`generate` writes at most 256 new tokens where nothing else is set, and transformers 20.")
def _default_length(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours.generation_config.eos_token_id = theirs.generation_config.eos_token_id = None
    assert ours.generate(IDS).shape[1] == min(4 + 256, ours.config.max_position_embeddings)
    assert theirs.generate(IDS).shape[1] == 4 + 20


@difference("Draws are counted: `seed=7` gives the same text alone, in a batch or streamed, but not transformers' text.")
def _draws(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"do_sample": True, "max_new_tokens": 5, "seed": 7}
    alone = ours.generate(IDS, **settings)
    assert torch.equal(ours.generate(IDS, **settings), alone)


@difference(
    "Stopping criteria and logits processors are asked about each text by itself, so a batch of texts is no state of theirs."
)
def _criteria(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    batches = []
    ours.generate(IDS.repeat(2, 1), max_new_tokens=2, stopping_criteria=[lambda ids, scores: batches.append(len(ids))])
    assert set(batches) == {1}


@difference(
    "`attn_implementation` is accepted and means nothing: every attention pattern can be seen, with the fast kernel."
)
def _attention(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = glassformer.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="flash_attention_2")
    assert len(model(IDS, output_attentions=True).attentions) == model.config.num_hidden_layers


@difference("`trust_remote_code=True` is answered with a notice: no code from a checkpoint is ever run.")
def _remote_code(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    glassformer.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert "no code from a checkpoint is ever run" in caplog.text


@difference("Weights are always saved as safetensors; `safe_serialization=False` is answered with a notice.")
def _safetensors(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours.save_pretrained(folder / "saved", safe_serialization=False)
    assert (folder / "saved" / "model.safetensors").exists()
    assert "always written as safetensors" in caplog.text


@difference("A config's fields are checked when they are set, too.")
def _config(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(glassformer.GlassError, match="'hidden_size' is 'x'"):
        ours.config.hidden_size = "x"


@difference("There is one tokenizer class; `BertTokenizer` and the others are names of it, made by `from_pretrained` alone.")
def _tokenizers(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert type(glassformer.PreTrainedTokenizerFast.from_pretrained(write_tokenizer(folder))) is glassformer.Tokenizer


@difference(
    "An expert of Switch Transformers takes all tokens that are sent to it; transformers drops some of a text read at once."
)
@torch.no_grad()
def _experts(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the reference drops of a text that it reads at once, and not of one that it writes."""
    models = load_pair(write_model(folder, "switch_transformers", "seq2seq", expert_capacity=2, num_experts=2), "seq2seq")
    source, ids = torch.arange(5, 16)[None], torch.arange(20, 29)[None]
    dropping = models.theirs(source, decoder_input_ids=ids).logits
    for module in models.theirs.modules():
        if hasattr(module, "expert_capacity"):
            module.expert_capacity = 64
    whole = models.theirs(source, decoder_input_ids=ids).logits
    assert not torch.allclose(dropping, whole, atol=1e-2)
    assert torch.allclose(models.ours(source, decoder_input_ids=ids).logits, whole, atol=1e-5)


@difference("Patterns of LED's encoder have a column for each token of the source, and rows for global tokens, too.")
@torch.no_grad()
def _windows(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reference's have one for each global token and each place in the window, and global tokens' are elsewhere."""
    models = load_pair(write_model(folder, "led", "seq2seq", attention_window=4), "seq2seq")
    source, ids = torch.arange(5, 16)[None], torch.arange(20, 29)[None]
    chosen = (source == 5).long()
    given = {"decoder_input_ids": ids, "global_attention_mask": chosen, "output_attentions": True}
    expected, (pattern, *_) = models.theirs(source, **given), models.ours(source, **given).encoder_attentions
    assert expected.encoder_attentions[0].shape == (*pattern.shape[:3], 1 + 4 + 1)
    assert torch.allclose(pattern[:, :, 0], expected.encoder_global_attentions[0][:, :, :11, 0], atol=1e-6)
    assert torch.allclose(pattern[:, :, 1:, 0], expected.encoder_attentions[0][:, :, 1:, 0], atol=1e-6)


@difference("A text that T5Gemma classifies with both stacks has the scores of the text alone, in a padded batch too.")
@torch.no_grad()
def _classified(ours: Any, theirs: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reference's decoder reads a padded text to its end, and one without padding but for its last token."""
    models = load_pair(write_model(folder, "t5gemma", "sequence"), "sequence")
    alone = torch.arange(5, 9)[None]
    padded, mask = torch.cat((alone, torch.zeros_like(alone)), 1), (torch.arange(8) < 4).long()[None]
    expected = models.theirs(alone).logits
    assert not torch.allclose(models.theirs(padded, attention_mask=mask).logits, expected, atol=1e-3)
    assert torch.allclose(models.ours(padded, attention_mask=mask).logits, expected, atol=1e-5)


@pytest.mark.parametrize("text", DIFFERENCES)
def test_what_differs_does_so(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = load_pair(write_model(tmp_path, "llama", "causal"), "causal")
    DIFFERENCES[text](models.ours, models.theirs, tmp_path, caplog)


# The page -----------------------------------------------------------------------------------------------------------------


def same_table() -> str:
    places = {"module": "`glassformer.…`", "model": "of a model", "tokenizer": "of a tokenizer", "config": "of a config"}
    rows = [f"| {places[place]} | {', '.join(f'`{name}`' for name in names.split())} |\n" for place, names in SAME.items()]
    families = ", ".join(f"`{name}`" for name in blueprints.model_types() if name != "scratch")
    rows.append(f"| families, whose classes, configs and tokenizers have the same names | {families} |\n")
    return "".join(["| | names |\n|---|---|\n", *rows])


def not_here_table() -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in names.split())} | {advice} |\n" for (_, names), advice in NOT_HERE.items()
    ]
    return "".join(["| not here | instead |\n|---|---|\n", *rows])


def differences_list() -> str:
    return "".join(f"- {text}\n" for text in DIFFERENCES)


@pytest.mark.parametrize(
    ("mark", "table"), [("same", same_table), ("not here", not_here_table), ("differences", differences_list)]
)
def test_tables_are_those_here(mark: str, table: Any) -> None:
    (shown,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", PAGE.read_text("utf-8"), re.S)
    assert shown == table(), f"between the marks {mark!r} the page should have:\n\n{table()}\n"


def test_the_readme_links_the_page() -> None:
    assert "(docs/coming-from-transformers.md)" in (ROOT / "README.md").read_text("utf-8")
