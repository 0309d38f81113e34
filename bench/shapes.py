"""Models of a true shape with random weights, made on the spot, to measure engines where the real ones are missing.

    python bench/shapes.py [--kinds Q4_K Q8_0 BF16 Q4_0 Q6_K]

Speed depends on shapes and kinds, not on what the weights say; only with mixed activations it depends on how many outliers
there are, and norms make as many as trained models have. So nothing is quantized: a GGUF file gets the metadata and
the tensor table that the real one has, and its blocks are random bytes with scales that keep the weights around 0.02. That
takes about a second per gigabyte. The tokenizers are made up too, with as many tokens and merges as the real ones have.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from common import (
    GPT_OSS_SMALL,
    LFM2_350M,
    MINILM,
    QWEN3_06B,
    QWEN3_MOE_SMALL,
    QWEN35_08B,
    SMOLLM2,
    WORDS,
    random_checkpoint,
)
from glassformer import blueprints
from glassformer.checkpoint.gguf_kinds import block_size
from glassformer.checkpoint.gguf_writer import OutputTensor, write_gguf
from glassformer.checkpoint.quantization import Bytes, check_kind
from glassformer.ground.files import home
from glassformer.quantize.export import model_contents

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": QWEN3_06B, "qwen3.5-0.8b": QWEN35_08B, "lfm2-350m": LFM2_350M, "qwen3-moe-small": QWEN3_MOE_SMALL,
    "gpt-oss-small": GPT_OSS_SMALL,
}  # fmt: skip
KINDS = ("Q4_K", "Q8_0", "BF16", "Q4_0", "Q6_K")
SCALES: Mapping[str, Mapping[int, float]] = {  # the half floats of a block, by their offset
    "Q4_0": {0: 0.0043}, "Q4_1": {0: 0.0043, 2: -0.032}, "Q5_0": {0: 0.0022}, "Q8_0": {0: 0.00027},
    "Q4_K": {0: 0.00014, 2: 0.001}, "Q5_K": {0: 0.00007, 2: 0.001}, "Q6_K": {208: 0.000015},
}  # fmt: skip
MASKS = {"BF16": (0x807F, 0x3C80), "F16": (0x83FF, 0x2400)}  # sign and mantissa are random, the exponent is that of 2**-6
OUTLIER, OUTLIER_DISTANCE = (
    12.0,
    128,
)  # of norms' weights: in a seventh of the blocks of 32 inputs one is five times their rms
PIECE = 1 << 20  # bytes that are drawn at a time
WORDPIECE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def smollm2() -> Path:
    """SmolLM2's shape as the real file has it: Q4_1, the embeddings in Q8_0, 97 MB."""
    return random_gguf("Q4_1", SMOLLM2, "smollm2-135m")


def random_gguf(kind: str, shape: Mapping[str, Any] = QWEN3_06B, name: str = "qwen3-0.6b") -> Path:
    """A GGUF file in a kind, made once and kept beside the fetched models."""
    kind = check_kind(kind)
    path = home() / "bench" / "with-outliers" / f"{name}-{kind.lower()}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        config = blueprints.read_config(shape)
        no_rows = dict.fromkeys((weight.name for weight in blueprints.blueprint(config).weights), _no_rows)
        metadata, tensors = model_contents(name, config, no_rows, kind)
        random = [RandomTensor(tensor.name, tensor.kind, tensor.shape, tensor.open) for tensor in tensors]
        write_gguf(path, metadata["general.architecture"], metadata | byte_level_bpe(config.vocab_size), random)
    return path


def named(name: str, kind: str) -> Path:
    """One of `SHAPES`."""
    return random_gguf(kind, SHAPES[name], name)


def _no_rows(*_: Any) -> Any:
    raise NotImplementedError("a random tensor has no rows of floats")


class RandomTensor(OutputTensor):
    """A tensor of random blocks; what is not quantized (norms) is ones, and some outliers."""

    def pieces(self) -> Iterator[Callable[[], Bytes]]:
        _, size = block_size(self.kind)
        if self.name.endswith(".ssm_a"):  # rates of decay, with their sign
            yield lambda: np.full(self.size // 4, -1.0, np.float32).view(np.uint8)
            return
        blocks, step = self.size // size, PIECE // size
        for at in range(0, blocks, step):
            yield partial(random_blocks, self.kind, min(step, blocks - at), seed=at)


def random_blocks(kind: str, count: int, seed: int) -> Bytes:
    """So many blocks of a kind, as bytes."""
    if kind == "F32":
        norm = np.ones(count, np.float32)
        norm[::OUTLIER_DISTANCE] = OUTLIER
        return norm.view(np.uint8)
    _, size = block_size(kind)
    draw = np.random.Generator(np.random.SFC64(seed))
    drawn = draw.integers(0, 1 << 64, -(-count * size // 8), np.uint64).view(np.uint8)[: count * size]
    if kind in MASKS:
        kept, exponent = MASKS[kind]
        return (drawn.view(np.uint16) & np.uint16(kept) | np.uint16(exponent)).view(np.uint8)
    blocks = drawn.reshape(count, size)
    for offset, scale in SCALES[kind].items():
        blocks[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
    return drawn


def byte_level_bpe(size: int) -> dict[str, Any]:
    """The metadata of a byte-level BPE of so many tokens: the bytes, then ever longer strings of letters."""
    merged = list(islice(letter_strings(shortest=2), size - 256))
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(pre_tokenizers.ByteLevel.alphabet()) + merged,
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": [f"{token[:-1]} {token[-1]}" for token in merged],
    }  # fmt: skip


def letter_strings(shortest: int) -> Iterator[str]:
    """All strings of up to four letters, short ones first."""
    return ("".join(some) for length in range(shortest, 5) for some in product(string.ascii_lowercase, repeat=length))


def minilm() -> Path:
    """A folder of MiniLM's shape with a WordPiece tokenizer of its size, which knows the words of the texts."""
    folder = random_checkpoint(MINILM)
    if not (folder / "tokenizer.json").exists():
        inner = (f"##{letter}" for letter in string.ascii_lowercase)
        tokens = dict.fromkeys(chain(WORDPIECE_SPECIAL, WORDS, inner, letter_strings(shortest=1)))
        vocabulary = {token: number for number, token in enumerate(islice(tokens, MINILM["vocab_size"]))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        ends = (("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
        tokenizer.post_processor = processors.BertProcessing(*ends)
        (folder / "modules.json").write_text('[{"type": "Normalize", "path": ""}]')  # after the mean of the states
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    print(smollm2(), minilm(), *map(random_gguf, parser.parse_args().kinds), sep="\n")


if __name__ == "__main__":
    main()
