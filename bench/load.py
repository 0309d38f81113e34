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
from pathlib import Path
from typing import Any

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    models = {"Qwen3-0.6B shape, bfloat16 folder": random_checkpoint(), "SmolLM2, Q4_1 GGUF to float32": locate("smollm2")}
    rows = []
    for label, path in models.items():
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
        for _ in range(asked.rounds + 1):  # the first round warms the page cache
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
    report("loading, ours / transformers", rows)


if __name__ == "__main__":
    main()
