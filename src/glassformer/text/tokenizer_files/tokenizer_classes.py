"""What a tokenizer's class says where its files are silent: its special tokens, and whether it gives token types.

A tokenizer_config.json names the class; where it does not, the `model_type` in config.json stands for one. Older
checkpoints rely on this: GPT-2's names not even its end-of-text token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

SENTINELS = 100  # T5's <extra_id_0>, <extra_id_1>, …: the places in a text that it is asked to fill


@dataclass(frozen=True)
class PieceOrder:
    """Ids that are not those of SentencePiece's file: special tokens, by role, stand around its pieces."""

    before: tuple[str, ...]
    replaced: int  # how many of the file's first pieces they stand for
    after: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()  # tokens that follow those before, whatever the file has
    languages: tuple[str, ...] = ()  # tokens that follow the file's


class Languages(NamedTuple):
    """Tokens that say which language a text has."""

    default: str  # where no file says it
    token: str  # a pattern of such tokens, with the language's code as its group
    before: bool  # before a text, and not after its end token


class Around(NamedTuple):
    """The tokens around one text and around a pair, as templates of the tokenizers library."""

    single: str
    pair: str
    first: str  # the role of the token that the templates call `first`; "": they have none
    last: str


CLS_SEP_SEP = Around("first:0 $A:0 last:0", "first:0 $A:0 last:0 last:0 $B:0 last:0", "cls_token", "sep_token")
CLS_SEP = Around("first:0 $A:0 last:0", "first:0 $A:0 last:0 $B:1 last:1", "cls_token", "sep_token")
END_OF_EACH = Around("$A:0 last:0", "$A:0 last:0 $B:0 last:0", "", "eos_token")
END_OF_BOTH = Around("$A:0 last:0", "$A:0 $B:0 last:0", "", "eos_token")


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


@dataclass(frozen=True)
class TokenizerClass:
    files: Literal["vocab.txt", "vocab.json", "pieces", "source.spm", "vocab.json and pieces", "ranks", ""] = (
        ""  # what it can be built from without a tokenizer.json
    )
    special: Mapping[str, str] = field(default_factory=dict)
    token_types: bool = False  # which of two texts a token belongs to, as BERT was trained with
    around: Around | None = None  # None: begin and end tokens, where a file asks for them
    padding_side: str = "right"  # where no file says it
    sets_prefix_space: bool = False  # whether `add_prefix_space` counts, whatever a tokenizer.json says
    split_type: str = ""  # GGUF's name of how it splits a text, whatever a tokenizer.json says; "": as that file does
    piece_order: PieceOrder | None = None  # None: as in SentencePiece's file
    languages: Languages | None = None


UNKNOWN_CLASS = TokenizerClass()
BERT = TokenizerClass(
    "vocab.txt", _roles(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]"), token_types=True, around=CLS_SEP
)
DISTILBERT = replace(BERT, token_types=False)
GPT2 = TokenizerClass("vocab.json", dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"))
ROBERTA = TokenizerClass(
    "vocab.json",
    _roles(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask="<mask>"),
    around=CLS_SEP_SEP,
)
DEBERTA = TokenizerClass(
    "vocab.json",
    _roles(bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]"),
    token_types=True,
    around=Around(*CLS_SEP_SEP),  # another one: its offsets keep their spaces
)
MPNET = replace(ROBERTA, files="vocab.txt", special={**ROBERTA.special, "unk_token": "[UNK]"})
XLM_ROBERTA = TokenizerClass(
    "pieces",
    ROBERTA.special,
    around=CLS_SEP_SEP,
    piece_order=PieceOrder(("bos_token", "pad_token", "eos_token", "unk_token"), 3, ("mask_token",)),  # fairseq's ids
)
MBART_CODES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
    "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip
MBART50_CODES = (  # beside these
    "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN",
    "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES",
    "sl_SI",
)  # fmt: skip
M2M_CODES = (
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el", "en",
    "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id",
    "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk",
    "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si",
    "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo",
    "xh", "yi", "yo", "zh", "zu",
)  # fmt: skip
WMT21_CODES = (
    "en", "ha", "is", "ja", "cs", "ru", "zh", "de",
)  # fmt: skip
MBART = replace(
    XLM_ROBERTA,
    piece_order=replace(XLM_ROBERTA.piece_order or PieceOrder((), 0), languages=MBART_CODES),
    languages=Languages("en_XX", r"([a-z]{2}_[A-Z]{2})", before=False),
)
MBART50 = replace(
    MBART,
    piece_order=replace(MBART.piece_order or PieceOrder((), 0), languages=(*MBART_CODES, *MBART50_CODES)),
    languages=Languages("en_XX", r"([a-z]{2}_[A-Z]{2})", before=True),
)
NLLB = TokenizerClass("", XLM_ROBERTA.special, languages=Languages("eng_Latn", r"([a-z]{3}_[A-Z][a-z]{3})", before=True))
M2M100 = TokenizerClass(
    "vocab.json and pieces",
    _roles(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>"),
    languages=Languages("en", r"__([a-z]{2,3})__", before=True),
)
ALBERT = TokenizerClass(
    "pieces",
    _roles(bos="[CLS]", eos="[SEP]", unk="<unk>", sep="[SEP]", pad="<pad>", cls="[CLS]", mask="[MASK]"),
    around=CLS_SEP,
)
DEBERTA_V2 = TokenizerClass(
    "pieces", {**ALBERT.special, "unk_token": "[UNK]", "pad_token": "[PAD]"}, token_types=True, around=CLS_SEP
)
T5 = TokenizerClass("pieces", _roles(eos="</s>", unk="<unk>", pad="<pad>"), around=END_OF_EACH)
MARIAN = TokenizerClass("source.spm", T5.special, around=END_OF_BOTH)
PEGASUS_OFFSET = 103  # how far its reserved tokens move the ids of SentencePiece's file
PEGASUS = TokenizerClass(
    "pieces",
    {**T5.special, "mask_token": "<mask_2>"},
    around=END_OF_BOTH,
    piece_order=PieceOrder(
        ("pad_token", "eos_token"),
        replaced=2,
        reserved=("<mask_1>", "<mask_2>", *(f"<unk_{index}>" for index in range(2, PEGASUS_OFFSET))),
    ),
)
LLAMA = TokenizerClass("pieces", _roles(bos="<s>", eos="</s>", unk="<unk>"), padding_side="left")
GEMMA = TokenizerClass(
    "pieces", _roles(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"), padding_side="left"
)
CODE_LLAMA = replace(LLAMA, files="")
COHERE = TokenizerClass(
    "",
    _roles(
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        unk="<UNK>",
        sep="<SEP>",
        pad="<PAD>",
        cls="<CLS>",
        mask="<MASK_TOKEN>",
    ),
    padding_side="left",
    sets_prefix_space=True,
)
SETS_PREFIX_SPACE = TokenizerClass(sets_prefix_space=True)
QWEN2, QWEN3_5 = TokenizerClass(split_type="qwen2"), TokenizerClass(split_type="qwen35")
PADDED_LEFT = TokenizerClass(padding_side="left")  # classes of which nothing else is known here
SENTENCEPIECE = TokenizerClass("pieces")  # SentencePiece's file alone says everything
TIKTOKEN = TokenizerClass("ranks", _roles(bos="<|begin_of_text|>", eos="<|end_of_text|>"))  # as Llama 3 has it

CLASS_BY_NAME: Mapping[str, TokenizerClass] = {
    **dict.fromkeys(("Bert", "ConvBert", "Electra", "LayoutLM", "MobileBert", "SqueezeBert"), BERT),
    "DistilBert": DISTILBERT,
    **dict.fromkeys(("GPT2", "CodeGen"), GPT2),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), ROBERTA),
    "MPNet": MPNET,
    "XLMRoberta": XLM_ROBERTA,
    "Albert": ALBERT,
    "Deberta": DEBERTA,
    "DebertaV2": DEBERTA_V2,
    "T5": T5,
    "Marian": MARIAN,
    "MBart": MBART,
    "MBart50": MBART50,
    "M2M100": M2M100,
    "Nllb": NLLB,
    "Pegasus": PEGASUS,
    "Llama": LLAMA,
    "Gemma": GEMMA,
    "CodeLlama": CODE_LLAMA,
    "Cohere": COHERE,
    "GPTNeoX": SETS_PREFIX_SPACE,
    "Qwen2": QWEN2,
    "Qwen3_5": QWEN3_5,
    **dict.fromkeys(("CpmAnt", "Siglip2", "XLNet"), PADDED_LEFT),
    **dict.fromkeys(
        ("BioGpt", "Blenderbot", "BlenderbotSmall", "Camembert", "OpenAIGPT", "RoFormer"), UNKNOWN_CLASS
    ),  # names alone
}
CLASS_BY_MODEL_TYPE: Mapping[str, TokenizerClass] = {
    **dict.fromkeys(("bert", "convbert", "electra", "layoutlm", "mobilebert", "nomic_bert", "squeezebert"), BERT),
    "megatron-bert": BERT,
    "distilbert": DISTILBERT,  # which has no table of token types
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen"), GPT2),
    **dict.fromkeys(("roberta", "bart", "longformer", "led"), ROBERTA),
    "mpnet": MPNET,
    "xlm-roberta": XLM_ROBERTA,
    "albert": ALBERT,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA_V2,
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "marian": MARIAN,
    "mbart": MBART,
    "m2m_100": M2M100,
    "pegasus": PEGASUS,
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), GEMMA),
    **dict.fromkeys(("diffusion_gemma", "recurrent_gemma", "shieldgemma2", "t5gemma", "zaya"), GEMMA),
    **dict.fromkeys(("cohere", "cohere2", "aya_vision"), COHERE),
    "code_llama": CODE_LLAMA,
    **dict.fromkeys(("idefics", "idefics2"), LLAMA),
    **dict.fromkeys(("cpmant", "siglip2", "xlnet"), PADDED_LEFT),
    **dict.fromkeys(("llama", "mistral", "mixtral"), SENTENCEPIECE),
}
CLASS_DESPITE_NAME = dict.fromkeys(("qwen3_5", "qwen3_5_moe"), QWEN3_5)  # model types whose files name an older class
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that say nothing


def class_name(config: Mapping[str, Any], model: Mapping[str, Any]) -> str | None:
    """The class that a checkpoint's tokenizer_config.json or config.json names."""
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    return name if isinstance(name, str) else None


def class_for_config(config: Mapping[str, Any], model: Mapping[str, Any]) -> TokenizerClass:
    """The kind of a checkpoint with a tokenizer.json; one that is not in the tables has nothing to add."""
    if (known := CLASS_DESPITE_NAME.get(str(model.get("model_type")))) is not None:
        return known
    if (name := class_name(config, model)) is not None:
        return CLASS_BY_NAME.get(name.removesuffix("Fast").removesuffix("Tokenizer"), UNKNOWN_CLASS)
    return CLASS_BY_MODEL_TYPE.get(str(model.get("model_type")), UNKNOWN_CLASS)
