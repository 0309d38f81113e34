"""What is fuzzed: for every parser good inputs, how they are mutated, and what reads them."""

from __future__ import annotations

import io
import json
import random
import zipfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import mutated_bytes, mutated_json, mutated_text

PROSE = ["the quick brown fox jumps over the lazy dog", "how are you today? I am well, thank you", "don't panic: it is 42"]
TEXT = "the dog is well, don't panic"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "how are you?"},
    {"role": "assistant", "content": "fine", "tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}]},
    {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
]
TEMPLATE = (
    "{% if messages[0].role == 'system' %}{{ messages[0]['content'] }}{% endif %}"
    "{% for message in messages %}{% set index = loop.index0 %}<|{{ message.role }}|>"
    "{{ message['content'] if message.content is string else message.content | map(attribute='text') | join(' ') | trim }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson(indent=2) }}{% endif %}{{ '\\n' * (index % 2) }}{% endfor %}"
    "{% macro end(text) %}{{ text | upper }}{% endmacro %}{% if add_generation_prompt %}{{ end('<|bot|>') }}{% endif %}"
)
TOOL_TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls if tools %}<tool_call>"
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>"""
    "{% endfor %}{% endfor %}"
)
# Chains: what one round makes of X, how the rounds follow each other, and what is made of the last.
CHAIN_STEPS = (
    "X | map('upper')", "X | map('list')", "X | map('first')", "X | map('map', 'upper')", "X | select", "X | reject('none')",
    "X | select('eq', X)", "X | selectattr('a')", "X | rejectattr('a')", "X | batch(2)", "X | batch(3, X)", "X | slice(2)",
    "X | groupby('a')", "X | unique", "X | unique(attribute='a')", "X | reverse", "X | items", "dict(a=X) | items",
    "dict(a=X) | dictsort", "dict(a=X).items()", "{'a': X}.values() | select", "[X]", "(X, X)", "{'a': X}",
    "[X] | map('first')", "[X] | reverse", "[X, X] | sort", "[X] + [X]", "X | first", "X | list", "X | default([X])",
    "X | sum(start=[])", "X[0]", "namespace(x=X)", "X.x", "cycler(X)", "joiner(X)", "loop",
    "X | map(attribute='a', default=X)", "X | random", "m",
)  # fmt: skip
CHAINS = (
    "{% set s = namespace(x=START) %}{% for i in range(ROUNDS) %}{% set X = s.x %}{% set s.x = STEP %}{% endfor %}"
    "{% set X = s.x %}END",
    "{% set s = namespace(x=START, y=1) %}{% for i in range(ROUNDS) %}{% for a in s.x %}{% set s.y = loop %}{% break %}"
    "{% endfor %}{% set X = s.y %}{% set s.x = STEP %}{% endfor %}{% set X = s.x %}END",
    "{% macro m(X, n) %}{% if n %}{{ m(STEP, n - 1) }}{% else %}END{% endif %}{% endmacro %}{{ m(START, ROUNDS) }}",
    "{% for X in START recursive %}{% if loop.depth < ROUNDS %}{{ loop(STEP) }}{% else %}END{% endif %}{% endfor %}",
    "{% set s = namespace(x=START) %}{% for i in range(ROUNDS) %}{% set X = s.x %}{% macro m() %}{{ X }}END{% endmacro %}"
    "{% set s.x = STEP %}{% endfor %}{{ s.x }}",
)
CHAIN_ENDS = (
    "{{ X | list }}", "{{ X | first }}", "{{ X }}", "{% for a in X %}{{ a }}{% endfor %}", "", "{{ X | tojson }}",
    "{{ X | length }}", "{{ X | join }}", "{{ X == X }}", "{{ X | string }}", "{{ X | pprint }}", "{{ X() }}",
    "{{ {X: 1} }}",
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "max_new_tokens": 2, "do_sample": True, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9,
    "epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4, "repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "seed": 7,
    "num_return_sequences": 2, "bad_words_ids": [[3], [4, 5]], "sequence_bias": [[[6], -1.0]], "min_new_tokens": 1,
    "forced_eos_token_id": 2, "suppress_tokens": [7], "begin_suppress_tokens": [8], "eos_token_id": [2], "pad_token_id": 0,
    "stop_strings": ["x"],
}  # fmt: skip
BEAMS: dict[str, Any] = {
    "max_new_tokens": 2, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.8, "early_stopping": True,
    "diversity_penalty": 0.0, "no_repeat_ngram_size": 2, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LONGEST_MESSAGE = 2_000  # characters: some list all names that there are
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"], "additionalProperties": False, "$defs": {"list": {"type": "array", "items": {"enum": [1, "a"]}}},
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser under test."""

    make_good: Callable[[], Any]  # an input that must be accepted
    make: Callable[[random.Random], Any]  # a mutated one
    read: Callable[[Any], object]  # gives a value, or raises one of our errors
    refuses: bool = True  # whether there is anything that it must not accept


def bytes_target(seeds: list[bytes], read: Callable[[bytes], object]) -> Target:
    return Target(lambda: seeds[0], lambda draw: mutated_bytes(draw.choice(seeds), draw), read)


def json_target(seeds: list[Any], read: Callable[[Any], object]) -> Target:
    return Target(lambda: seeds[0], lambda draw: mutated_json(draw.choice(seeds), draw), read)


def file_target(folder: Path, name: str, seeds: list[bytes], read: Callable[[Path], object]) -> Target:
    """Mutated bytes of one file in a folder; `read` is given the folder."""

    def put(data: bytes) -> object:
        (folder / name).unlink(missing_ok=True)  # what was mapped stays as it was
        (folder / name).write_bytes(data)
        return read(folder)

    return bytes_target(seeds, put)


def json_file_target(folder: Path, name: str, seeds: list[Any], read: Callable[[Path], object]) -> Target:
    """A mutated JSON file in a folder, its structure and sometimes its bytes; `read` is given the folder."""

    def put(data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder)

    def make(draw: random.Random) -> bytes:
        seed = draw.choice(seeds)
        if draw.random() < 0.15:
            return mutated_bytes(dumped(seed), draw)
        return dumped(mutated_json(seed, draw))

    return Target(lambda: dumped(seeds[0]), make, put)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


# Good material --------------------------------------------------------------------------------------------------


@cache
def tokenizer_json(kind: str) -> dict[str, Any]:
    """A tiny tokenizer.json, trained here."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    elif kind == "words":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(PROSE * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 64,
    "pad_token": {"content": "<pad>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
    "unk_token": "<unk>", "padding_side": "left", "truncation_side": "right", "clean_up_tokenization_spaces": False,
    "add_bos_token": True, "add_eos_token": False, "add_prefix_space": False, "chat_template": TEMPLATE,
    "added_tokens_decoder": {"1": {"content": "<s>", "special": True}}, "model_input_names": ["input_ids", "attention_mask"],
    "extra_special_tokens": {"image_token": "<s>"}, "additional_special_tokens": ["</s>"], "split_special_tokens": False,
}  # fmt: skip


@cache
def piece_model(kind: str) -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE * 4), model_writer=written, minloglevel=2, hard_vocab_limit=False,
        model_type=kind, vocab_size=330 if kind == "bpe" else 90, byte_fallback=kind == "bpe",
    )  # fmt: skip
    return written.getvalue()


def write_tokenizer(folder: Path, kind: str = "bpe") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(dumped(tokenizer_json(kind)))
    (folder / "tokenizer_config.json").write_bytes(dumped(TOKENIZER_CONFIG))
    return folder


def use_tokenizer(folder: Path) -> object:
    from glassformer import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer([TEXT, "the"], padding=True, truncation=True)["input_ids"]
    tokenizer.decode(ids[0], skip_special_tokens=True)
    tokenizer.convert_ids_to_tokens(ids[1])
    return len(tokenizer), tokenizer.all_special_ids, tokenizer.model_max_length


def llama_weights() -> dict[str, Any]:
    """The tensors of a one-block Llama with hidden size 16, named as in a folder."""
    import numpy as np

    hidden, inner, shared = 16, 24, 8
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (300, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (300, hidden),
    }  # fmt: skip
    block: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (shared, hidden), "self_attn.v_proj": (shared, hidden),
        "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in block.items()}
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "float32", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "tie_word_embeddings": False, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "initializer_range": 0.02,
}  # fmt: skip
GENERATION_CONFIG: dict[str, Any] = {
    "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "do_sample": True, "temperature": 0.6, "top_k": 20,
    "top_p": 0.95, "repetition_penalty": 1.05, "max_new_tokens": 4, "transformers_version": "4.51.0", "max_length": 60,
}  # fmt: skip


def write_llama(folder: Path) -> Path:
    from safetensors.numpy import save_file

    write_tokenizer(folder)
    (folder / "config.json").write_bytes(dumped(LLAMA_CONFIG))
    save_file(llama_weights(), folder / "model.safetensors")
    return folder


def gguf_bytes(folder: Path) -> bytes:
    """A small Llama as a GGUF file with its tokenizer, written by the gguf package."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    path = folder / "good.gguf"
    writer = GGUFWriter(path, "llama")
    numbers = {
        "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }  # fmt: skip
    for name, value in numbers.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    vocabulary = tokenizer_json("bpe")["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number < 4 else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer_json("bpe")["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {
        "token_embd": (len(tokens), 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (32, 32), "blk.0.ffn_up": (32, 32), "blk.0.ffn_down": (32, 32),
    }  # fmt: skip
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = draw.standard_normal(shape, np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = quants.quantize(values, GGMLQuantizationType.Q4_1)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def open_everything(path: Path) -> object:
    """All that opening a model reads, down to each tensor's values."""
    import numpy as np

    from glassformer.model_files import open_model

    opened = open_model(path)
    with np.errstate(all="ignore"):
        values = [float(tensor.to_float32().sum()) for tensor in opened.tensors.values()]
    return opened.config, opened.settings, opened.blueprint(), values


def run_model(path: Path, executor: str = "cpu") -> object:
    """Load a model and generate two tokens."""
    import numpy as np

    import glassformer

    model = glassformer.load(path, executor=executor)
    with np.errstate(all="ignore"):
        return model.watch("the dog", raw=True, max_new_tokens=2).text


# The targets ----------------------------------------------------------------------------------------------------


def config(folder: Path) -> Target:
    from glassformer.blueprints import blueprint, read_config
    from tests.parity import reference

    seeds = [{**reference.config(family).to_dict(), "model_type": family} for family in reference.FAMILIES]
    return json_target(seeds, lambda raw: blueprint(read_config(raw)).sites if isinstance(raw, dict) else None)


def config_file(folder: Path) -> Target:
    return json_file_target(write_llama(folder), "config.json", [LLAMA_CONFIG], open_everything)


def model(folder: Path) -> Target:
    return json_file_target(write_llama(folder), "config.json", [LLAMA_CONFIG], run_model)


def generation_config(folder: Path) -> Target:
    from glassformer.model_files import open_model

    write_llama(folder)
    return json_file_target(
        folder, "generation_config.json", [GENERATION_CONFIG], lambda path: open_model(path).settings.to_dict()
    )


def settings(folder: Path) -> Target:
    import numpy as np

    import glassformer

    model = glassformer.load(write_llama(folder), executor="cpu")

    def read(raw: Any) -> object:
        with np.errstate(all="ignore"):
            return model.watch_many("the dog", raw=True, **raw) if isinstance(raw, dict) else None

    return json_target([SETTINGS, BEAMS], read)


def safetensors(folder: Path) -> Target:
    seed = (write_llama(folder) / "model.safetensors").read_bytes()
    return file_target(folder, "model.safetensors", [seed], open_everything)


def safetensors_index(folder: Path) -> Target:
    seed = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(llama_weights(), "shard.safetensors")}
    (write_llama(folder) / "model.safetensors").rename(folder / "shard.safetensors")
    return json_file_target(folder, "model.safetensors.index.json", [seed], open_everything)


def torch_file(folder: Path) -> Target:
    import torch

    (write_llama(folder) / "model.safetensors").unlink()
    tensors = {name: torch.from_numpy(values) for name, values in llama_weights().items()}
    seeds = []
    for zipped in (True, False):
        torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        seeds.append((folder / "pytorch_model.bin").read_bytes())
    return file_target(folder, "pytorch_model.bin", seeds, open_everything)


def gguf(folder: Path) -> Target:
    seed = gguf_bytes(folder)
    return file_target(folder, "model.gguf", [seed], lambda path: open_everything(path / "model.gguf"))


def gguf_model(folder: Path) -> Target:
    """A GGUF file, run by the CPU engine."""
    seed = gguf_bytes(folder)
    return file_target(folder, "model.gguf", [seed], lambda path: run_model(path / "model.gguf"))


def gguf_tokenizer(folder: Path) -> Target:
    from glassformer.model_files import open_model
    from glassformer.text import Tokenizer

    (folder / "seed.gguf").write_bytes(gguf_bytes(folder))
    metadata = dict(open_model(folder / "seed.gguf").checkpoint.metadata)  # type: ignore[attr-defined]
    seed = {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in metadata.items()}

    def read(raw: Any) -> object:
        if not isinstance(raw, dict):
            return None
        tokenizer = Tokenizer.from_gguf(raw)
        return tokenizer.decode(tokenizer.encode(TEXT))

    return json_target([seed], read)


def tokenizer_file(folder: Path) -> Target:
    seeds = [tokenizer_json(kind) for kind in ("bpe", "words", "unigram")]
    return json_file_target(write_tokenizer(folder), "tokenizer.json", seeds, use_tokenizer)


def tokenizer_config(folder: Path) -> Target:
    return json_file_target(write_tokenizer(folder), "tokenizer_config.json", [TOKENIZER_CONFIG], use_tokenizer)


def word_list(folder: Path) -> Target:
    """vocab.txt of a WordPiece tokenizer."""
    vocabulary = tokenizer_json("words")["model"]["vocab"]
    words = sorted({**vocabulary, "[CLS]": 900, "[SEP]": 901, "[MASK]": 902, "[PAD]": 903, "[UNK]": 904}, key=str)
    (folder / "tokenizer_config.json").write_bytes(dumped({"tokenizer_class": "BertTokenizer"}))
    return file_target(folder, "vocab.txt", ["\n".join(words).encode()], use_tokenizer)


def merges(folder: Path) -> Target:
    """merges.txt beside a vocab.json."""
    model = tokenizer_json("bpe")["model"]
    (folder / "vocab.json").write_bytes(dumped({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    names = {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_bytes(dumped(names))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    return file_target(folder, "merges.txt", ["\n".join(lines).encode()], use_tokenizer)


def pieces(folder: Path) -> Target:
    """tokenizer.model, SentencePiece's protobuf."""
    (folder / "tokenizer_config.json").write_bytes(dumped({"tokenizer_class": "LlamaTokenizer", "pad_token": "<unk>"}))
    return file_target(folder, "tokenizer.model", [piece_model("unigram"), piece_model("bpe")], use_tokenizer)


def ranks(folder: Path) -> Target:
    """tiktoken's lines of base64 and a rank."""
    from glassformer.text import Tokenizer

    tokens = [bytes([value]) for value in range(256)] + [b"th", b"the", b" d", b" do", b" dog"]
    seed = b"".join(b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    return file_target(
        folder, "x.tiktoken", [seed], lambda path: Tokenizer.from_tiktoken(path / "x.tiktoken").encode("the dog")
    )


def template(folder: Path) -> Target:
    from glassformer.text.chat.template import ChatTemplate

    def read(source: str) -> str:
        return ChatTemplate(source).render(MESSAGES, add_generation_prompt=True)

    return Target(lambda: TEMPLATE, lambda draw: mutated_text(TEMPLATE, draw), read)


def chained_filters(folder: Path) -> Target:
    """Filters, containers and loops that read from each other, through namespaces, macros and recursion."""
    from glassformer.text.chat.template import ChatTemplate

    def chain(form: str, start: str, steps: list[str], rounds: int, end: str) -> str:
        step = "X"
        for text in steps:
            step = text.replace("X", f"({step})")
        parts = {"START": start, "STEP": step, "ROUNDS": str(rounds), "END": end}
        for name, text in parts.items():
            form = form.replace(name, text)
        return form

    def make(draw: random.Random) -> str:
        steps = draw.choices(CHAIN_STEPS, k=draw.choice((1, 1, 1, 2, 3)))
        rounds = draw.choice((2, 7, 30, 45, 45, 300, 300, 3_000)) if draw.random() < 0.99 else 100_000
        start = draw.choice(("['a', 'b']", "messages", "[[['c']]]", "{'a': 1}", "'text'", "[]", "[{'a': {'a': 1}}]"))
        return chain(draw.choice(CHAINS), start, steps, rounds, draw.choice(CHAIN_ENDS))

    good = chain(CHAINS[0], "['a', 'b']", ["X | map('upper')"], 7, "{{ X | list }}")
    return Target(lambda: good, make, lambda source: ChatTemplate(source).render(MESSAGES))


def messages(folder: Path) -> Target:
    from glassformer.text.chat.template import ChatTemplate

    chat = ChatTemplate(TEMPLATE)
    return json_target([MESSAGES], lambda raw: chat.render(raw, add_generation_prompt=True))


def receipt(folder: Path) -> Target:
    import glassformer

    model = glassformer.load(write_llama(folder), executor="cpu")
    changes = {
        "blocks.0.residual": glassformer.Change(scale=0.5, positions=slice(0, 2), maximum=3.0),
        "blocks.0.attention.heads": glassformer.Change(scale=0.0, heads=[1]),
        "blocks.0.mlp.update": glassformer.Change(shift=[0.5] * 16, positions=[1]),
    }
    seeds = []
    for changed in (model, model.changed(changes)):
        run = changed.watch("the dog", raw=True, max_new_tokens=3, do_sample=True, seed=1)
        run.save(folder / "run.json")
        seeds.append(json.loads((folder / "run.json").read_text("utf-8")))
    return json_file_target(folder, "run.json", seeds, lambda path: bounded(lambda: model.replay(path / "run.json")))


def job_row(folder: Path) -> Target:
    """A row of a batch job, ours or OpenAI's, and its answer."""
    import glassformer
    from glassformer.ground.errors import GlassError
    from glassformer.jobs.formats.openai_batch import OpenAIBatch
    from glassformer.jobs.formats.row_format import InputRow, PlainRows, RowFormat
    from glassformer.jobs.row_workers import TextWorker

    model = glassformer.load(write_llama(folder), executor="cpu")
    model.tokenizer.chat_template = TOOL_TEMPLATE
    ours, openai = PlainRows(), OpenAIBatch("x", model.tokenizer, 0)

    def read(raw: Any) -> str:
        row_format: RowFormat = openai if openai.recognizes(raw) else ours
        row = InputRow(0, row_format.id_of(raw) or 0, raw)
        worker = TextWorker(model, row_format, {"max_new_tokens": 2}, 1, 4, lambda count: None)
        ((_, answer),) = worker.answers([row], ())
        if isinstance(answer, GlassError):
            json.dumps(row_format.error_answer(row, answer))
            raise answer
        return json.dumps(answer.output)

    body = {"messages": MESSAGES[:2], "max_tokens": 2, "temperature": 0.8, "top_p": 0.9, "n": 2, "stop": ["x"], "seed": 7,
            "logit_bias": {"7": 1}, "logprobs": True, "top_logprobs": 2, "frequency_penalty": 0.1}  # fmt: skip
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "now", "arguments": "{}"}}]}
    tools = [{"type": "function", "function": {"name": "now", "description": "x", "parameters": {"type": "object"}}}]
    tooled = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, called], "tools": tools,
              "tool_choice": {"type": "function", "function": {"name": "now"}}, "parallel_tool_calls": False,
              "response_format": {"type": "text"}}  # fmt: skip
    seeds = [
        {
            "id": "a",
            "prompt": TEXT,
            "max_new_tokens": 2,
            "do_sample": True,
            "temperature": 0.8,
            "metadata": [1],
            "raw": True,
        },
        {
            "messages": MESSAGES,
            "system": None,
            "template": {},
            "num_return_sequences": 1,
            "logprobs": 1,
            "stop_strings": ["x"],
        },
        {"ids": [1, 5, 9], "num_beams": 2, "min_new_tokens": 1},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": [1, 5], "logprobs": 1}},
        {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": tooled},
    ]
    return json_target(seeds, read)


def bounded(read: Callable[[], object]) -> object:
    """What is read; a message that refuses it is a sentence, and not as long as the file."""
    from glassformer.ground.errors import GlassError

    try:
        return read()
    except GlassError as error:
        if len(str(error)) >= LONGEST_MESSAGE:
            raise AssertionError(f"a message of {len(str(error)):,} characters") from error
        raise


def run_rows(folder: Path, source: Path) -> object:
    """A whole job, into lines and into a table: every row has its answer, and the second run finds nothing to do."""
    import glassformer
    from glassformer.jobs import run_job

    model = _job_model(folder)
    for name in ("out.jsonl", "out.parquet"):
        for file in folder.glob("out.*"):
            file.unlink()
        summary = run_job(model, source, folder / name, max_new_tokens=1, seed=1)
        assert run_job(model, source, folder / name, max_new_tokens=1, seed=1).resumed == summary.rows
        if name == "out.jsonl":
            lines = (folder / name).read_text("utf-8").splitlines()
            assert [json.loads(line, parse_constant=lambda word: 1 / 0).keys() >= {"id"} for line in lines] == [
                True
            ] * summary.rows
    if summary.failed == summary.rows:
        raise glassformer.ground.errors.InputError("no row has an answer")
    return summary


@cache
def _job_model(folder: Path) -> Any:
    import glassformer

    return glassformer.load(write_llama(folder), executor="cpu")


def rows(folder: Path) -> Target:
    """Files of rows: whatever a line holds, it has an answer or an error, and the job ends."""
    plain: list[Any] = [
        {"id": "a", "prompt": TEXT, "raw": True, "metadata": {"n": 1.5, "text": "x"}},
        {"id": 3, "prompt": "the", "raw": True, "metadata": [1, 2]},
        "the dog",
        {"ids": [5, 6], "metadata": None},
    ]
    source = folder / "rows" / "in.jsonl"
    source.parent.mkdir()

    def make(draw: random.Random) -> bytes:
        if draw.random() < 0.4:
            return mutated_bytes(b"\n".join(map(dumped, plain)), draw)
        return b"\n".join(dumped(mutated_json(row, draw) if draw.random() < 0.5 else row) for row in plain)

    def read(data: bytes) -> object:
        source.write_bytes(data)
        return bounded(lambda: run_rows(folder, source))

    return Target(lambda: b"\n".join(map(dumped, plain)), make, read)


def parquet_rows(folder: Path) -> Target:
    """Tables of rows, damaged in their bytes or with cells that JSON cannot represent."""
    import pyarrow as pa
    from pyarrow import parquet

    def table(rows: list[dict[str, Any]]) -> bytes:
        written = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(rows), written)
        return written.getvalue()

    good: list[dict[str, Any]] = [
        {"id": f"row {number}", "prompt": "the", "raw": True, "metadata": [{"a": number / 2, "b": None}]}
        for number in range(4)
    ]
    odd = (float("nan"), float("inf"), 2**62, b"\xff", "\u202e", 1e-320, None, [], [[1]], {"x": {"y": None}})
    source = folder / "rows" / "in.parquet"
    source.parent.mkdir()

    def make(draw: random.Random) -> bytes:
        if draw.random() < 0.6:
            return mutated_bytes(table(good), draw)
        name, value = draw.choice(("id", "prompt", "metadata", "seed", "new")), draw.choice(odd)
        return table([{**row, name: value} for row in good])

    def read(data: bytes) -> object:
        source.unlink(missing_ok=True)
        source.write_bytes(data)
        return bounded(lambda: run_rows(folder, source))

    return Target(lambda: table(good), make, read)


def training_checkpoint(folder: Path) -> Target:
    """A checkpoint's files: with checksums no damaged one is taken up; without, a value or an error."""
    from glassformer.training.trainer import Trainer
    from glassformer.training.training_folder import TrainingFolder
    from tests.training.models import SETTINGS, language_model, tiny_model

    training = TrainingFolder(folder)
    trainer = Trainer(tiny_model(), language_model(), SETTINGS, training)
    trainer.train_step()
    path = trainer.save().path
    names = ("state.json", "weights.safetensors", "optimizer.safetensors")
    whole = {name: (path / name).read_bytes() for name in names}
    older = {**whole, "state.json": b'{"step": 1, "epoch": 0.1, "losses": [3.5]}'}

    def make(draw: random.Random) -> tuple[bool, dict[str, bytes]]:
        files, name = draw.choice((whole, older)), draw.choice(names)
        return files is whole, {**files, name: mutated_bytes(files[name], draw)}

    def read(case: tuple[bool, dict[str, bytes]]) -> object:
        sealed, files = case
        for name, data in files.items():
            (path / name).unlink(missing_ok=True)
            (path / name).write_bytes(data)
        assert bounded(trainer.resume)
        if sealed:
            state = json.loads(files["state.json"])
            whole_state = {name: value for name, value in json.loads(whole["state.json"]).items() if name in state}
            assert {**files, "state.json": state} == {**whole, "state.json": whole_state}, (
                "a damaged checkpoint was taken up"
            )
        return trainer.step

    return Target(lambda: (True, whole), make, read)


def json_schema(folder: Path) -> Target:
    import glassformer

    model = glassformer.load(write_llama(folder), executor="cpu")
    return json_target([SCHEMA], lambda raw: model.watch("the dog", raw=True, json_schema=raw, max_new_tokens=2))


def screen(folder: Path) -> Target:
    """Whatever a text holds, nothing in it acts on a terminal."""
    import unicodedata

    from glassformer.page.document import Page, Paragraph
    from glassformer.page.terminal import TerminalPage, plain_text

    def read(text: str) -> object:
        shown = plain_text(TerminalPage(Page("x", (Paragraph(text),))), 80)
        wrong = [mark for mark in shown if unicodedata.category(mark) in ("Cc", "Cs") and mark != "\n"]
        assert not wrong, wrong
        return shown

    return Target(lambda: TEXT, lambda draw: mutated_text("\n".join(PROSE), draw), read, refuses=False)


def tool_call(folder: Path) -> Target:
    """A model's text with tool calls in any family's format: the same message however it is cut, and only whole calls."""
    from glassformer.text.chat.tool_calls import ToolCallFormat, ToolCallParser
    from tests.text.test_tool_calls import CASES, TOOLS

    texts = [(ToolCallFormat.of_template(template), text) for template, text, _, _ in CASES.values()]

    def message(call_format: Any, text: str, size: int) -> tuple[str, list[tuple[str, str]]]:
        parser = ToolCallParser(call_format, TOOLS)
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        parser.finish()
        parsed = parser.message()
        return parsed.content, [(call.name, call.arguments) for call in parsed.calls]

    def read(case: tuple[Any, str]) -> object:
        whole = message(*case, len(case[1]) or 1)
        for size in (1, 7):
            assert message(*case, size) == whole, "it depends on how the text is cut"
        for _, arguments in whole[1]:
            assert isinstance(json.loads(arguments), dict), arguments
        return whole

    def make(draw: random.Random) -> tuple[Any, str]:
        call_format, text = draw.choice(texts)
        return call_format, mutated_text(text, draw)

    return Target(lambda: texts[0], make, read, refuses=False)


def prefix(folder: Path) -> Target:
    """A request's body, as the front of a cluster compares it: whatever it holds, the same body has the same keys."""
    from glassformer.scale.prefixes import prefix_keys

    seeds = [dumped({"model": "m", "messages": MESSAGES * 20, "tools": [SCHEMA]}), dumped({"prompt": TEXT * 30})]

    def read(body: bytes) -> object:
        keys = prefix_keys(body)
        assert prefix_keys(body) == keys
        return keys

    return Target(lambda: seeds[0], lambda draw: mutated_bytes(draw.choice(seeds), draw), read, refuses=False)


ADAPTER_CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "up_proj"], "bias": "none",
    "use_rslora": False, "modules_to_save": ["lm_head"], "rank_pattern": {"up_proj": 3},
    "alpha_pattern": {"layers.0.*q_proj": 5},
    "layers_to_transform": [0], "layers_pattern": "layers", "base_model_name_or_path": None, "task_type": "CAUSAL_LM",
    "exclude_modules": ["k_proj"], "use_dora": False, "fan_in_fan_out": False, "init_lora_weights": True,
}  # fmt: skip


def write_adapter(folder: Path) -> Path:
    """A base, and in `adapter` an adapter on it."""
    import numpy as np
    from safetensors.numpy import save_file

    draw, prefix = np.random.default_rng(1), "base_model.model.model.layers.0"
    shapes = {
        f"{prefix}.self_attn.q_proj.lora_A.weight": (2, 16), f"{prefix}.self_attn.q_proj.lora_B.weight": (16, 2),
        f"{prefix}.mlp.up_proj.lora_A.weight": (3, 16), f"{prefix}.mlp.up_proj.lora_B.weight": (24, 3),
        "base_model.model.lm_head.weight": (300, 16),
    }  # fmt: skip
    write_llama(folder)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_bytes(dumped(ADAPTER_CONFIG))
    tensors = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    return folder


def open_adapted(folder: Path, adapter: str = "adapter") -> object:
    """A base with an adapter, merged and beside, down to each tensor's values."""
    import numpy as np

    from glassformer.model_files import open_model, with_adapters

    base = open_model(folder)
    with np.errstate(all="ignore"):
        for mode in ("merged", "beside"):
            opened = with_adapters(base, folder / adapter, mode)
            values = [float(tensor.to_float32().sum()) for tensor in opened.tensors.values()]
    return opened.blueprint(), values


def adapter_config(folder: Path) -> Target:
    return json_file_target(write_adapter(folder), "adapter/adapter_config.json", [ADAPTER_CONFIG], open_adapted)


def adapter_weights(folder: Path) -> Target:
    seed = (write_adapter(folder) / "adapter" / "adapter_model.safetensors").read_bytes()
    return file_target(folder, "adapter/adapter_model.safetensors", [seed], open_adapted)


def gguf_adapter(folder: Path) -> Target:
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(write_llama(folder) / "seed.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for name, shape in {"lora_a": (2, 16), "lora_b": (16, 2)}.items():
        writer.add_tensor(f"blk.0.attn_q.weight.{name}", np.random.default_rng(2).standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    seed = (folder / "seed.gguf").read_bytes()
    return file_target(folder, "adapter.gguf", [seed], lambda path: open_adapted(path, "adapter.gguf"))


PACKINGS: list[dict[str, Any]] = [
    {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [8, 8]},
    {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 8}}},
    },
    {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True},
]  # fmt: skip


def write_packed(folder: Path) -> Path:
    """A matrix of sixteen by sixteen in each of the packings, and a config of the first of them."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    draw = np.random.default_rng(3)
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [16, 16], "nested_blocksize": 256, "nested_offset": 0.1}

    def words(*shape: int) -> Any:
        return torch.from_numpy(draw.integers(-(1 << 31), 1 << 31, shape).astype(np.int32))

    def floats(*shape: int) -> Any:
        return torch.from_numpy(draw.standard_normal(shape).astype(np.float16))

    tensors = {
        "a.qweight": words(2, 16), "a.qzeros": words(1, 2), "a.scales": floats(1, 16),
        "a.g_idx": torch.zeros(16, dtype=torch.int32),
        "b.weight": words(128, 1).to(torch.uint8), "b.weight.absmax": words(4).to(torch.uint8),
        "b.weight.quant_map": floats(16), "b.weight.nested_absmax": floats(1), "b.weight.nested_quant_map": floats(256),
        "b.weight.quant_state.bitsandbytes__nf4": torch.frombuffer(bytearray(dumped(state)), dtype=torch.uint8),
        "c.weight": floats(16, 16).to(torch.float8_e4m3fn), "c.weight_scale_inv": floats(2, 2),
        "d.weight_packed": words(16, 2), "d.weight_scale": floats(16, 2), "d.weight_shape": torch.tensor([16, 16]),
        "e.SCB": floats(16).float(), "e.weight": words(16, 16).to(torch.int8),
    }  # fmt: skip
    (folder / "config.json").write_bytes(dumped({**LLAMA_CONFIG, "quantization_config": PACKINGS[0]}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def expand_all(folder: Path) -> object:
    """Every matrix that is unpacked."""
    import numpy as np

    from glassformer.checkpoint.folder import FolderCheckpoint
    from glassformer.checkpoint.stored_tensors import ComputedFile

    tensors = FolderCheckpoint(folder).tensors.values()
    with np.errstate(all="ignore"):
        return [float(tensor.to_float32().sum()) for tensor in tensors if isinstance(tensor.file, ComputedFile)]


def packed_config(folder: Path) -> Target:
    seeds = [{**LLAMA_CONFIG, "quantization_config": packing} for packing in PACKINGS]
    return json_file_target(write_packed(folder), "config.json", seeds, expand_all)


def packed_weights(folder: Path) -> Target:
    from glassformer.ground.errors import GlassError

    seed = (write_packed(folder) / "model.safetensors").read_bytes()

    def expand_each(path: Path) -> object:
        """By each of the packings; refused if one of those that the file has is."""
        for packing in PACKINGS[:-1]:
            (path / "config.json").write_bytes(dumped({**LLAMA_CONFIG, "quantization_config": packing}))
            expand_all(path)
        (path / "config.json").write_bytes(dumped({**LLAMA_CONFIG, "quantization_config": PACKINGS[-1]}))
        try:
            return expand_all(path)
        except GlassError:  # the words are GPTQ's
            return None

    return file_target(folder, "model.safetensors", [seed], expand_each)


def training_metrics(folder: Path) -> Target:
    from glassformer.see.training_curves import read_training

    lines: list[dict[str, Any]] = [
        {"kind": "step", "step": 1, "loss": 5.5, "learning_rate": 0.001, "gradient_norm": 1.5, "tokens": 64, "seconds": 0.1},
        {"kind": "evaluation", "step": 1, "loss": 5.25, "seconds": 0.1, "perplexity": 190.5},
        {"kind": "sample", "step": 1, "text": "the dog"},
    ]
    (folder / "training.json").write_bytes(dumped({"kind": "text", "steps": 9}))
    seed = b"\n".join(map(dumped, lines)) + b"\n"

    def draw_page(path: Path) -> object:
        return str(read_training(path))

    return file_target(folder, "metrics.jsonl", [seed], draw_page)


def feature_config(folder: Path) -> Target:
    seed = json.loads((write_features(folder) / "cfg.json").read_text())
    return json_target([seed], lambda raw: use_features(put_json(folder / "features" / "cfg.json", raw)))


def feature_weights(folder: Path) -> Target:
    features = write_features(folder)
    seed = (features / "sae_weights.safetensors").read_bytes()
    return file_target(features, "sae_weights.safetensors", [seed], use_features)


def feature_archive(folder: Path) -> Target:
    import numpy as np

    from tests.features.dictionaries import random_tensors

    tensors = random_tensors("jumprelu")

    def archive(save: Callable[..., None], damaged: str = "", draw: random.Random | None = None) -> bytes:
        """All arrays; one of them damaged, in an archive that is whole."""
        whole, changed = io.BytesIO(), io.BytesIO()
        save(whole, **tensors)
        if draw is None:
            return whole.getvalue()
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(changed, "w") as target:
            for name in source.namelist():
                data = source.read(name)
                target.writestr(name, mutated_bytes(data, draw) if name == f"{damaged}.npy" else data)
        return changed.getvalue()

    def make(draw: random.Random) -> bytes:
        save = draw.choice((np.savez, np.savez_compressed))
        if draw.random() < 0.5:
            return mutated_bytes(archive(save), draw)
        return archive(save, draw.choice([*tensors]), draw)

    def read(data: bytes) -> object:
        (folder / "params.npz").write_bytes(data)
        return use_features(folder / "params.npz")

    return Target(lambda: archive(np.savez), make, read)


def write_features(folder: Path) -> Path:
    from tests.features.dictionaries import write_folder

    return write_folder(folder / "features", "jumprelu")


def put_json(path: Path, raw: Any) -> Path:
    path.write_bytes(dumped(raw))
    return path.parent


def use_features(path: Path) -> object:
    """What a dictionary of features makes of some states."""
    import numpy as np

    from glassformer.features.files import read_dictionary

    dictionary = read_dictionary(path, "blocks.0.residual")
    states = np.ones((2, len(dictionary.encoder)), np.float32)
    return dictionary.decode(dictionary.encode(states), states)


def steering_vector(folder: Path) -> Target:
    import numpy as np

    from glassformer.steering.vector import SteeringVector, read_vector

    vector = SteeringVector(
        {"blocks.0.residual": np.ones(8, np.float32), "embedding": np.ones(8, np.float32)}, "tiny", "ab12"
    )
    seed = vector.save(folder / "calm.safetensors").read_bytes()
    return file_target(folder, "calm.safetensors", [seed], lambda path: read_vector(path / "calm.safetensors"))


TARGETS: dict[str, Callable[[Path], Target]] = {
    target.__name__: target
    for target in (
        config, config_file, model, generation_config, settings, safetensors, safetensors_index, torch_file, gguf,
        gguf_model, gguf_tokenizer, tokenizer_file, tokenizer_config, word_list, merges, pieces, ranks, template, messages,
        chained_filters,
               receipt, job_row, rows, parquet_rows, training_checkpoint,
        json_schema, tool_call, screen, prefix, adapter_config, adapter_weights, gguf_adapter,
        packed_config, packed_weights, training_metrics, feature_config, feature_weights, feature_archive, steering_vector,
    )
}  # fmt: skip
