"""What llama.cpp's `llama-bench` measures, of this engine: one process, one file, one test, its options.

    python bench/glass_bench.py -m FILE -t 8 -p 512            prefill of 512 tokens
    python bench/glass_bench.py -m FILE -t 8 -n 128 -d 4000    decode of 128 tokens after 4,000
    python bench/glass_bench.py -m FILE -t 8 -n 48 --rows 8    decode of 8 rows together

Both warm up first and then time one run. llama-bench times bare passes over random ids: no tokenizer, no choice of a
token, no text. This one times the public API from text to text, greedy. Prefill is the prompt's tokens by the time from
the call to the first text, so it counts tokenizing, one choice and one detokenized piece as well. Decode is the tokens
after the first by the time from there to the last, each of them chosen, checked for the end, and turned to text; it begins
after a prompt of one token, or of `-d`. Rows are passes of the executor with the best token taken from each.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

TALE = "The keeper of the lighthouse told me how the storm came in that night: first the wind, then the rain, and then "
ROW_PROMPT = 32  # tokens that each row has before it is timed


def prompt_of(model: Any, tokens: int) -> str:
    """A text of so many tokens."""
    ids = model.tokenizer(TALE * (tokens // 10 + 1))["input_ids"][:tokens]
    return str(model.tokenizer.decode(ids))


def rates(model: Any, prompt: str, new: int) -> tuple[float, float]:
    """Tokens per second of the prompt, up to the first text, and of the tokens after that."""
    began = time.perf_counter()
    run = model.start(prompt, raw=True, max_new_tokens=1 + new, do_sample=False, eos_token_id=[])
    pieces = model.generate(run)
    next(pieces)
    first, at_first = time.perf_counter(), len(run.steps)
    for _ in pieces:
        pass
    decoded, seconds = len(run.steps) - at_first, time.perf_counter() - first
    return len(run.prompt_ids) / (first - began), decoded / seconds


def rows_rate(model: Any, rows: int, new: int) -> float:
    """Tokens per second of rows that are decoded together, each with the best token that followed."""
    from glassformer.engine.protocol import Feed

    executor = model.executor
    decode_best = executor.capabilities.sampler.best
    opened = [executor.open() for _ in range(rows)]
    executor.run([Feed(row, list(range(number, number + ROW_PROMPT))) for number, row in enumerate(opened)])
    decode_best(opened, [0] * rows, 2)  # the first steps warm up
    began = time.perf_counter()
    decode_best(opened, [0] * rows, new)
    return rows * new / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-p", "--n-prompt", type=int, default=0)
    parser.add_argument("-n", "--n-gen", type=int, default=0)
    parser.add_argument("-d", "--n-depth", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--activations", choices=("q14", "mixed", "q8"))
    options = parser.parse_args()
    if options.threads is not None:
        os.environ["GLASS_THREADS"] = str(options.threads)  # read when the engine starts

    import glassformer

    model = glassformer.load(options.model, executor="cpu", activations=options.activations)
    if options.rows:
        rate = rows_rate(model, options.rows, options.n_gen)
    elif options.n_prompt:
        prompt = prompt_of(model, options.n_prompt)
        rates(model, prompt, 1)
        rate, _ = rates(model, prompt, 1)
    else:
        rates(model, prompt_of(model, 1), 4)
        _, rate = rates(model, prompt_of(model, max(1, options.n_depth)), options.n_gen)
    tested = {"n_prompt": options.n_prompt, "n_gen": options.n_gen, "n_depth": options.n_depth, "rows": options.rows}
    print(json.dumps([{**tested, "avg_ts": rate}]))


if __name__ == "__main__":
    main()
