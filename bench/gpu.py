"""The GPU engine beside transformers, and beside what the card can do: the same weights, in one run.

    python bench/gpu.py [--rounds 5] [--only decode batches …] [--alone] [--json]

Ours goes through the public face: `Model.generate` for one text, `Model.generate_steps` for batches, text or ids out,
greedy. Each part is a process of its own with a time limit, for ours and for transformers (eager, and with its static cache
and `torch.compile`); a part that fails or takes too long is said to be missing, with its last words. Beside them stand the
limits, measured in the same run: how fast the card reads memory (a token needs every weight once, and the keys and values of
its context), and how fast it multiplies matrices in bfloat16. Weights are random, of Qwen3-0.6B's shape or Llama-3-8B's,
and so is the vocabulary, which has a word for each id. Figures are medians.

    decode     one text: tokens/s after a short prompt and after 4,096 tokens, and with ten candidates and a
               residual a token; with the persistent kernel, and without it
    batches    32 and 128 texts of 128 tokens in and 128 out; and the same with cuBLAS instead of kernels whose sums have one
               order, which is what batch invariance costs
    prefill    a prompt of 2,048 tokens
    start      a fresh process: from loading to the first token, with kernels and Python's byte code in their caches
    packed     one text with weights of 8 and 4 bits
    llama      one text of Llama-3-8B's shape
    hybrid     one text, 32 and 128 of Qwen3.5-0.8B's shape, whose layers keep a state three times of four; and a prompt
    plain      the plain executor on the card: 1, 32 and 128 texts
    eager      transformers: the same
    compiled   transformers with its static cache and torch.compile: one text

Needs torch, triton, numpy, safetensors, tokenizers, jinja2, huggingface_hub, rich and typer; transformers for its own parts.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import QWEN3_06B, QWEN35_08B, random_checkpoint, report

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192, "rope_theta": 5e5,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "eos_token_id": 128001, "dtype": "bfloat16",
}  # fmt: skip
TINY: dict[str, Any] = {  # for a try without a card
    **QWEN3_06B, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "eos_token_id": 1,
}  # fmt: skip
HYBRID: dict[str, Any] = {**QWEN35_08B, "eos_token_id": 248044, "dtype": "bfloat16"}
SHAPES = {"qwen3": QWEN3_06B, "llama": LLAMA_8B, "hybrid": HYBRID, "tiny": TINY}
THEIRS = ("eager", "compiled")
PARTS = ("decode", "batches", "prefill", "start", "packed", "llama", "hybrid", "plain", *THEIRS)
LIMITS = {"llama": 240, "compiled": 300}  # seconds that a part may take
LIMIT = 180  # for the others
PACKED = {"8-bit": ("Q8_0", "Q8_0"), "4-bit": ("Q4_K", "Q6_K")}  # the kinds of matrices, and of the embedding and head
GOALS: dict[str, tuple[float, float]] = {  # what must be reached, and what is aimed at
    "decode tokens/s": (1600, 2400), "decode ÷ static + compile": (5, 8), "decode at 4096, share of its limit": (0.35, 0.6),
    "8-bit ÷ bfloat16": (1.3, 1.6), "4-bit ÷ bfloat16": (1.5, 2.2), "batch 32, invariant ÷ not": (0.6, 0.8),
    "batch 128, invariant ÷ not": (0.6, 0.8), "watched ÷ unwatched": (0.9, 0.97),
    "batch 32 tokens/s": (12_000, 25_000), "batch 128 tokens/s": (30_000, 70_000),
    "prefill 2048, share of the matmul rate": (0.25, 0.45), "start seconds": (6, 3),
    "llama decode, share of the limit": (0.6, 0.8), "hybrid decode, share of the limit": (0.5, 0.6),
    "plain ÷ eager, batch 1": (1.2, 1.2),
    "plain ÷ eager, batch 32": (1.2, 1.2), "plain ÷ eager, batch 128": (1.2, 1.2),
}  # fmt: skip
SMALLER_IS_BETTER = {"start seconds"}
PROMPT, NEW, DEPTH, PREFILL = 128, 128, 4096, 2048
ROWS = (1, 32, 128)
MIN_SECONDS = 0.5


# What a child process measures ------------------------------------------------------------------------------------


def load(shape: str, executor: str, *, batch_invariant: bool = True) -> Any:
    """A model; not batch-invariant: with the persistent kernel for a single text."""
    import glassformer

    options = known(glassformer.load, batch_invariant=batch_invariant) if executor == "gpu" else {}
    return glassformer.load(checkpoint(shape), executor=executor, **options)


def known(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The options that a function has: so older versions can be measured too."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


def packed_model(shape: str, executor: str, kind: str, head_kind: str) -> Any:
    """The same with random packed weights; the norms are the checkpoint's."""
    from glassformer.checkpoint.gguf_kinds import block_size
    from glassformer.checkpoint.stored_tensors import BufferedFile
    from glassformer.runtime.executors import Executors
    from shapes import random_blocks

    model = load(shape, executor, batch_invariant=False)
    tensors = dict(model.opened.tensors)
    for name, tensor in tensors.items():
        own_kind = head_kind if "embed_tokens" in name or "lm_head" in name else kind
        elements, _ = block_size(own_kind)
        if len(tensor.shape) == 2 and tensor.shape[1] % elements == 0:
            blocks = random_blocks(own_kind, tensor.elements // elements, seed=len(name))
            file = BufferedFile(Path("memory"), blocks)
            tensors[name] = replace(tensor, kind=own_kind, file=file, offset=0, size=blocks.size)
    opened = replace(model.opened, replacement_tensors=tensors)
    return replace(model, opened=opened, executors=Executors(opened, model.executors.options))


def checkpoint(shape: str) -> Path:
    """A folder with random weights, and a vocabulary with a word for each id."""
    folder = random_checkpoint(SHAPES[shape])
    path = folder / "tokenizer.json"
    if not path.exists():
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(SHAPES[shape]["vocab_size"])}, "w0"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
        words.save(str(path))
    return folder


def prompt(tokens: int, seed: int = 0) -> str:
    return " ".join(f"w{10 + (seed * 7919 + at * 31) % 400}" for at in range(tokens))


def text_rate(model: Any, tokens: int, new: int, look: int = 0) -> float:
    """Tokens a second of one text, after its first; `look`: with so many candidates and one residual a token."""
    run = model.start(prompt(tokens), raw=True, max_new_tokens=new, eos_token_id=None, do_sample=False)
    sites = known(model.generate, sites=f"blocks.{model.blueprint.blocks // 2}.residual") if look else {}
    for _ in model.generate(run, look=look, **sites):
        pass
    assert len(run.ids) == new
    return float(run.tokens_per_second)


def batch_rate(model: Any, rows: int, new: int = NEW) -> float:
    """Tokens a second of several texts, with their prompts, ids out."""
    settings = model.settings.merged({"max_new_tokens": new, "eos_token_id": None, "do_sample": False})
    recipe = model.recipe(settings)
    prompts = [[10 + (row * 7919 + at * 31) % 400 for at in range(PROMPT)] for row in range(rows)]
    policies = [policy for ids in prompts for policy in model.policies(recipe, ids)]
    began = time.perf_counter()
    count = sum(1 for _ in model.generate_steps(policies))
    assert count == rows * new
    return count / (time.perf_counter() - began)


def prefill_rate(model: Any, tokens: int) -> float:
    """Tokens a second of a prompt, to the first token of the answer."""
    run = model.start(prompt(tokens, seed=int(time.time() * 1e6) % 1000), raw=True, max_new_tokens=1, do_sample=False)
    began = time.perf_counter()
    assert list(model.generate(run))
    return tokens / (time.perf_counter() - began)


def median(rate: Callable[[], float], rounds: int) -> float:
    rate()  # warms up: kernels are compiled, graphs captured
    return statistics.median(rate() for _ in range(rounds))


def ours(part: str, options: argparse.Namespace) -> dict[str, float]:
    began = time.perf_counter()
    tiny, rounds = options.shape == "tiny", options.rounds
    shape = part if part in SHAPES and not tiny else options.shape
    if part == "packed":
        return {
            f"{name} decode tokens/s": median(
                partial(text_rate, packed_model(shape, options.executor, *kinds), 32, 256), rounds
            )
            for name, kinds in PACKED.items()
        }
    if part == "plain":
        return plain(shape, rounds)
    model = load(shape, options.executor, batch_invariant=part not in ("decode", "llama"))
    if part == "start":
        next(iter(model.generate(model.start(prompt(16), raw=True, max_new_tokens=2, do_sample=False))))
        return {"start seconds": time.perf_counter() - began}
    if part == "decode":
        depth, invariant = 256 if tiny else DEPTH, load(shape, options.executor)
        return {
            "decode tokens/s": median(partial(text_rate, model, 32, 512), rounds),
            "decode at 4096 tokens/s": median(partial(text_rate, model, depth, 128), rounds),
            "watched tokens/s": median(partial(text_rate, model, 32, 512, look=10), rounds),
            "batch-invariant decode tokens/s": median(partial(text_rate, invariant, 32, 256), rounds),
        }
    if part == "batches":
        figures = {f"batch {rows} tokens/s": median(partial(batch_rate, model, rows), rounds) for rows in ROWS[1:]}
        if options.executor == "gpu":
            use_cublas(model)
            for rows in ROWS[1:]:
                figures[f"batch {rows} with cuBLAS tokens/s"] = median(partial(batch_rate, model, rows), rounds)
        return figures
    if part == "prefill":
        return {"prefill tokens/s": median(partial(prefill_rate, model, 256 if tiny else PREFILL), rounds)}
    if part == "hybrid":
        return {
            "hybrid decode tokens/s": median(partial(text_rate, model, 32, 256), rounds),
            **{f"hybrid, batch {rows} tokens/s": median(partial(batch_rate, model, rows), rounds) for rows in ROWS[1:]},
            "hybrid prefill tokens/s": median(partial(prefill_rate, model, 256 if tiny else PREFILL), rounds),
        }
    return {"llama decode tokens/s": median(partial(text_rate, model, 32, 64), rounds)}


def plain(shape: str, rounds: int) -> dict[str, float]:
    import torch

    model = load(shape, "plain")
    model.module.to("cuda" if torch.cuda.is_available() else "cpu")
    return {f"plain, batch {rows} tokens/s": median(partial(batch_rate, model, rows, 32), min(rounds, 2)) for rows in ROWS}


def use_cublas(model: Any) -> None:
    """Let cuBLAS multiply matrices of floats: its order of summation depends on the number of rows."""
    import torch
    import torch.nn.functional as F

    from glassformer.engine.gpu import kernels
    from glassformer.engine.gpu.kernels.elementwise import prepare_inputs

    def matmul(x: Any, matrices: Any, out: Any, *, norm: Any = None, epilogue: str = "none", activation: Any = None,
               residual: Any = None, scale: float = 1.0, input_rows: Any = None, output_rows: Any = None,
               prompt: bool = False) -> None:  # fmt: skip
        (matrix,) = matrices
        sums = prepare_inputs(x, norm, matrix.data.dtype, input_rows) @ matrix.data.T
        if epilogue == "gate":
            gates, values = sums.chunk(2, dim=1)
            sums = F.silu(gates) * values
        if output_rows is not None:
            out[output_rows] = residual[output_rows] + sums if epilogue == "add" else sums.to(out.dtype)
        elif epilogue == "add":
            torch.add(residual, sums, out=out)
        else:
            out.copy_(sums)

    class WithCublas:
        def __getattr__(self, name: str) -> Any:
            return matmul if name == "matmul" else getattr(kernels, name)

    executor = model.executor
    executor._kernels = WithCublas()
    executor._replays._drop(list(executor._replays._replays))


def theirs(part: str, options: argparse.Namespace) -> dict[str, float]:
    """transformers: one text by `generate`, eager or compiled with a static cache; batches eager."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(checkpoint(options.shape), dtype=torch.bfloat16).to(device).eval()
    )

    def rate(rows: int, new: int, **more: Any) -> float:
        ids = torch.randint(10, 400, (rows, PROMPT), device=device)
        began = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
            pad_token_id=0, **more,
        )  # fmt: skip
        if device == "cuda":
            torch.cuda.synchronize()
        return rows * new / (time.perf_counter() - began)

    if part == "compiled":
        return {"static + compile tokens/s": median(lambda: rate(1, 128, cache_implementation="static"), 2)}
    return {f"eager, batch {rows} tokens/s": median(partial(rate, rows, 32), 2) for rows in ROWS}


def limits() -> dict[str, float]:
    """Bytes that the card reads in a second, and operations of bfloat16 matmuls."""
    import torch

    def seconds(work: Callable[[], Any]) -> float:
        work()
        torch.cuda.synchronize()
        times, until = [], time.perf_counter() + MIN_SECONDS
        while time.perf_counter() < until:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return statistics.median(times)

    memory = torch.ones(2**30, dtype=torch.float32, device="cuda")
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return {
        "read bytes/s": 4 * memory.numel() / seconds(memory.sum),
        "matmul operations/s": 2 * 8192**3 / seconds(lambda: a @ b),
    }


# What the run makes of it -----------------------------------------------------------------------------------------


def child(what: str, options: argparse.Namespace) -> dict[str, float]:
    """What a process of its own measures; nothing where it fails, with its last words."""
    seconds = LIMITS.get(what, LIMIT)
    command = [sys.executable, __file__, "--measure", what, "--rounds", str(options.rounds), "--shape", options.shape]
    byte_code = {} if sys.pycache_prefix else {"PYTHONPYCACHEPREFIX": str(checkpoint(options.shape).parent / "pycache")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | byte_code
    try:
        process = subprocess.run(
            [*command, "--executor", options.executor], capture_output=True, text=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        print(f"{what} is missing: no result after {seconds} s", file=sys.stderr)
        return {}
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no word"])[-1]
        print(f"{what} is missing: {last}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    if not options.json:
        print("  ".join(f"{name} {value:,.4g}" for name, value in figures.items()), file=sys.stderr)
    return figures


def weight_bytes(shape: str) -> int:
    """That a token reads: all weights but the embedding's, where it is not the head's too."""
    from glassformer import blueprints

    config = blueprints.read_config(SHAPES[shape])
    total = 2 * sum(math.prod(weight.shape) for weight in blueprints.blueprint(config).weights)
    return total if config.tie_word_embeddings else total - 2 * config.vocab_size * config.hidden_size


def state_numbers(shape: str) -> int:
    from glassformer import blueprints

    return blueprints.blueprint(blueprints.read_config(SHAPES[shape])).state_size


def key_value_bytes(shape: str) -> int:
    s = SHAPES[shape]
    return int(2 * 2 * s["num_hidden_layers"] * s["num_key_value_heads"] * s["head_dim"])


def matmul_operations(shape: str, tokens: int) -> float:
    return float(tokens * (weight_bytes(shape) - 2 * SHAPES[shape]["vocab_size"] * SHAPES[shape]["hidden_size"]))


def conclusions(figures: dict[str, float], shape: str) -> dict[str, float]:
    """The figures that have goals."""
    reads, rate = figures.get("read bytes/s"), figures.get("matmul operations/s")
    ratios: dict[str, float] = {}

    def divide(name: str, over: str, under: float | None) -> None:
        if over in figures and under:
            ratios[name] = figures[over] / under

    divide("decode ÷ static + compile", "decode tokens/s", figures.get("static + compile tokens/s"))
    divide("decode ÷ eager", "decode tokens/s", figures.get("eager, batch 1 tokens/s"))
    divide("watched ÷ unwatched", "watched tokens/s", figures.get("decode tokens/s"))
    divide("batch-invariant decode ÷ not", "batch-invariant decode tokens/s", figures.get("decode tokens/s"))
    for name in PACKED:
        divide(f"{name} ÷ bfloat16", f"{name} decode tokens/s", figures.get("decode tokens/s"))
    for rows in ROWS:
        divide(f"plain ÷ eager, batch {rows}", f"plain, batch {rows} tokens/s", figures.get(f"eager, batch {rows} tokens/s"))
        cublas = figures.get(f"batch {rows} with cuBLAS tokens/s")
        divide(f"batch {rows}, invariant ÷ not", f"batch {rows} tokens/s", cublas)
    if reads:
        divide("decode, share of the limit", "decode tokens/s", reads / weight_bytes(shape))
        context = weight_bytes(shape) + DEPTH * key_value_bytes(shape)
        divide("decode at 4096, share of its limit", "decode at 4096 tokens/s", reads / context)
        divide("llama decode, share of the limit", "llama decode tokens/s", reads / weight_bytes("llama"))
        state = 2 * 4 * state_numbers("hybrid")  # is read and written
        divide("hybrid decode, share of the limit", "hybrid decode tokens/s", reads / (weight_bytes("hybrid") + state))
    if rate:
        seconds = PREFILL / figures["prefill tokens/s"] if "prefill tokens/s" in figures else 0
        if seconds:
            ratios["prefill 2048, share of the matmul rate"] = matmul_operations(shape, PREFILL) / seconds / rate
    return ratios


def judged(name: str, value: float) -> dict[str, Any]:
    row: dict[str, Any] = {"what": name, "value": float(f"{value:.4g}")}
    if name in GOALS:
        must, aim = GOALS[name]
        sign = -1 if name in SMALLER_IS_BETTER else 1
        verdict = "aim reached" if sign * value >= sign * aim else "reached" if sign * value >= sign * must else "MISSED"
        row |= {"must": must, "aim": aim, "": verdict}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3")
    parser.add_argument("--executor", default="gpu", help="another one, to compare")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON, but for what is missing")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        measure = limits if options.measure == "limits" else partial(_measure, options.measure, options)
        print(json.dumps(measure()))
        return
    checkpoint(options.shape)
    for shape in ("llama", "hybrid"):
        if shape in options.only and options.shape != "tiny":
            checkpoint(shape)
    figures = {} if options.shape == "tiny" else child("limits", options)
    for part in options.only:
        if part in THEIRS and (options.alone or find_spec("transformers") is None):
            print(f"{part} is missing: {'--alone' if options.alone else 'transformers is not installed'}", file=sys.stderr)
            continue
        if part == "start":
            child("start", options)  # compiles what is kept
        figures |= child(part, options)
    rows = [judged(name, value) for name, value in (figures | conclusions(figures, options.shape)).items()]
    report("the GPU engine", rows, quiet=options.json)


def _measure(part: str, options: argparse.Namespace) -> dict[str, float]:
    return (theirs if part in THEIRS else ours)(part, options)


if __name__ == "__main__":
    main()
