"""What `glass models recommend` says of a model's speed beside what the model does here: SmolLM2, decoding a chat.

python bench/recommend.py
"""

from __future__ import annotations

from glassformer.blueprints import blueprint
from glassformer.engine.cpu.calibration import measure
from glassformer.engine.cpu.thread_bench import model_speeds
from glassformer.engine.cpu.thread_count import chosen_threads
from glassformer.model_files import open_model
from glassformer.quantize.tensor_kinds import weight_bytes
from glassformer.see.recommendation import ERROR


def main() -> None:
    threads = chosen_threads().threads
    opened = open_model("smollm2")
    model = blueprint(opened.config)
    for _ in range(3):  # what else runs here comes and goes
        found = measure(threads)
        predicted = found.rates["Q4_1"].tokens_per_second(model.blocks, weight_bytes(model, "Q4_1"))
        speed = model_speeds(opened.config, model, opened.tensors, [threads])[threads]
        disturbed = ", disturbed" if found.disturbed or speed.disturbed else ""
        print(f"predicted {predicted:.1f} tokens/s ±{ERROR:.0%}, measured {speed.decode:.1f}{disturbed}")


if __name__ == "__main__":
    main()
