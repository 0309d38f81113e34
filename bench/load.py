"""Loading beside transformers: seconds and peak memory, each in a process of its own, on a warm page cache.

    python bench/load.py [--rounds 3]

Memory is what the process holds at its peak beyond what it held after its imports, after loading and one forward pass
(so that every mapped page has been touched), as a multiple of the weights' bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import random_checkpoint, report
from glassformer.checkpoint.locate import locate

PROBE = """
import json, os, resource, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
which, name = sys.argv[1:]
import torch
if which == "ours":
    from glassformer import AutoModelForCausalLM
    options = {}
else:
    from transformers import AutoModelForCausalLM, utils
    utils.logging.disable_progress_bar()
    folder, _, file = name.rpartition("/")
    options = {"gguf_file": file, "dtype": torch.float32} if file.endswith(".gguf") else {}
    name = folder if options else name
def peak():
    if os.path.exists("/proc/self/status"):  # getrusage would count the parent's memory from before exec
        lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
began = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(name, **options)
loaded = time.perf_counter() - began
loaded_peak = peak() - before
with torch.inference_mode():
    model(torch.tensor([[5]]))
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps({"seconds": loaded, "weights": weights, "peak": max(loaded_peak, peak() - before)}))
"""


def probe(which: str, name: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE, which, str(name)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def vocabulary(tokens: int = 151_936) -> dict[str, Any]:
    """Seconds to read the header of a GGUF file with so many tokens and as many merges."""
    import gguf

    from glassformer.checkpoint.gguf import GgufCheckpoint

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wide.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_token_list([f"token{number}" for number in range(tokens)])
        writer.add_token_types([1] * tokens)
        writer.add_token_merges([f"to ken{number}" for number in range(tokens)])
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
            write()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            assert len(GgufCheckpoint(path).metadata["tokenizer.ggml.tokens"]) == tokens
            times.append(time.perf_counter() - began)
    return {"model": f"GGUF header, {tokens:,} tokens and merges", "seconds": f"{statistics.median(times):.2f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    models = {"Qwen3-0.6B shape, bfloat16 folder": random_checkpoint(), "SmolLM2, Q4_1 GGUF to float32": locate("smollm2")}
    rows = []
    for label, path in models.items():
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
        for _ in range(arguments.rounds + 1):  # the first round warms the page cache
            for which in found:
                found[which].append(probe(which, path))
        seconds = {which: statistics.median(one["seconds"] for one in ones[1:]) for which, ones in found.items()}
        memory = {
            which: statistics.median(one["peak"] / one["weights"] for one in ones[1:]) for which, ones in found.items()
        }
        rows.append(
            {
                "model": label,
                "seconds": f"{seconds['ours']:.2f} / {seconds['theirs']:.2f}",
                "times faster": round(seconds["theirs"] / seconds["ours"], 1),
                "peak ÷ weights": f"{memory['ours']:.2f} / {memory['theirs']:.2f}",
            }
        )
    rows.append(vocabulary())
    report("loading, ours / transformers", rows)


if __name__ == "__main__":
    main()
