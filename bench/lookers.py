"""The contestants of `bench/looking.py`: the same questions to the same weights, as each library's users would write them.

    python bench/lookers.py CONTESTANT     one of them: a task's name a line in, its seconds and answer out

What is faster by hand is done by hand: texts of similar lengths in one batch, all heads of a layer as rows of one batch.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import texts

THREADS = 2
TEXTS = texts(100)
TOKENS = 64  # of the lens' text, and to be written
LAYER, STRENGTH = 15, 0.5  # where to steer
CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPTED = "When Mary and John went to the store, Mary gave a drink to"
ANSWERS = (" Mary", " John")
COUNTRIES = ("France", "Italy", "Spain", "Germany", "Japan", "China", "India", "Russia", "Brazil", "Egypt", "Turkey")
PAIRS = [
    (f"The capital of {one} is", f"The capital of {other} is") for one in COUNTRIES for other in COUNTRIES if one != other
][:50]
STORY = "The keeper of the lighthouse told me how the storm came in that night, first the wind and then the rain. " * 12
PROMPT = "The keeper of the lighthouse told me how the storm came in that night: "


def float32_folder() -> Path:
    """SmolLM2's packed weights expanded, in a folder that every library opens; made once."""
    from glassformer.ground.files import home

    folder = home() / "bench" / "smollm2-float32"
    if not (folder / "tokenizer.json").exists():
        import glassformer

        glassformer.AutoModelForCausalLM.from_pretrained("smollm2", dtype="float32").save_pretrained(folder)
        glassformer.AutoTokenizer.from_pretrained("smollm2").save_pretrained(folder)
    return folder


def direction(size: int) -> Any:
    return np.random.default_rng(0).standard_normal(size).astype(np.float32) * STRENGTH


class Glassformer:
    """Ours. What is not there yet (a list of pairs, texts to disk) is done one by one."""

    def __init__(self, name: str) -> None:
        import glassformer

        self.glass = glassformer
        self.model = glassformer.load(name, executor="cpu")
        self.vector = direction(self.model.config.hidden_size)
        self.story = self.model.tokenizer(STORY)["input_ids"]

    def residuals(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            if hasattr(self.model, "read_many"):
                self.model.read_many(TEXTS).record("blocks.*.residual", folder=folder)
                return "to disk"
            from safetensors.numpy import save_file

            for number, text in enumerate(TEXTS):
                save_file(self.model.read(text, raw=True).values("blocks.*.residual"), f"{folder}/{number}.safetensors")
        return "to disk"

    def lens(self) -> Any:
        lens = self.model.read_ids(self.story[:TOKENS]).lens(range(TOKENS))
        return lens.final[-1].id

    def heads(self) -> Any:
        best = self.model.patch(CLEAN, CORRUPTED, "heads", raw=True, answer=ANSWERS[0], against=ANSWERS[1]).cells[0]
        return [int(best.layer), int(best.place)]

    def pairs(self) -> Any:
        if hasattr(self.model, "patch_pairs"):
            return len(self.model.patch_pairs(PAIRS, "residual", -1, raw=True).pairs)
        return len([self.model.patch(*pair, "residual", -1, raw=True) for pair in PAIRS])

    def attribution_patching(self) -> Any:
        if not hasattr(self.model, "attribution_patch"):
            return None
        best = self.model.attribution_patch(CLEAN, CORRUPTED, "heads", raw=True, answer=ANSWERS[0], against=ANSWERS[1])
        return [int(best.cells[0].layer), int(best.cells[0].place)] if hasattr(best, "cells") else True

    def patterns(self) -> Any:
        return len(self.model.read_ids(self.story[:256]).values("blocks.*.attention.pattern"))

    def _steered(self, change: Any) -> Any:
        model = self.model.changed({f"blocks.{LAYER}.residual": change})
        return model.chat(PROMPT, raw=True, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)

    def steering(self) -> Any:
        return self._steered(self.glass.Change(shift=self.vector))

    def own_function(self) -> Any:
        import torch

        vector = torch.from_numpy(self.vector)
        return self._steered(lambda value, where: value + vector)

    def writing(self) -> Any:
        return self.model.chat(PROMPT, raw=True, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)

    def watching(self) -> Any:
        sites = f"blocks.{LAYER}.residual"
        settings: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
        return self.model.watch(PROMPT, raw=True, sites=sites, **settings).text


class Reference:
    """What the two libraries over transformers share: the model in memory, its tokenizer, and batches by hand."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
        self.torch, folder = torch, float32_folder()
        self.folder = str(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.pad_token, self.tokenizer.padding_side = self.tokenizer.eos_token, "right"
        self.hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        config = self.hf.config
        self.layers, self.head_count = config.num_hidden_layers, config.num_attention_heads
        self.size = config.hidden_size // self.head_count
        self.vector = torch.from_numpy(direction(config.hidden_size))
        self.story = self.ids(STORY)
        self.answers = [self.tokenizer(answer)["input_ids"][0] for answer in ANSWERS]

    def ids(self, text: str) -> Any:
        return self.tokenizer(text, return_tensors="pt")["input_ids"]

    def batches(self) -> list[Any]:
        """The texts in batches of ten of similar lengths."""
        ordered = sorted(TEXTS, key=len)
        return [
            self.tokenizer(ordered[at : at + 10], padding=True, return_tensors="pt") for at in range(0, len(ordered), 10)
        ]

    def save(self, number: int, residuals: Any, folder: str) -> None:
        from safetensors.torch import save_file

        save_file(
            {str(layer): value.contiguous() for layer, value in enumerate(residuals)}, f"{folder}/{number}.safetensors"
        )

    def lead(self, logits: Any) -> Any:
        return logits[:, -1, self.answers[0]] - logits[:, -1, self.answers[1]]

    def best(self, scores: Any) -> list[int]:
        return [int(number) for number in np.unravel_index(int(scores.argmax()), scores.shape)]

    def pair_ids(self) -> tuple[Any, Any]:
        """Both sides of all pairs, which have as many tokens; the few that have not stand as the first pair does."""
        rows = [[self.tokenizer(text)["input_ids"] for text in pair] for pair in PAIRS]
        width = len(rows[0][0])
        rows = [row if all(len(ids) == width for ids in row) else rows[0] for row in rows]
        first, second = zip(*rows, strict=True)
        return self.torch.tensor(first), self.torch.tensor(second)


class TransformerLens(Reference):
    def __init__(self) -> None:
        super().__init__()
        from transformer_lens import TransformerBridge

        self.model = TransformerBridge.boot_transformers(
            self.folder, hf_model=self.hf, tokenizer=self.tokenizer, device="cpu"
        )

    def residuals(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for number, batch in enumerate(self.batches()):
                _, cache = self.model.run_with_cache(
                    batch["input_ids"], attention_mask=batch["attention_mask"],
                    names_filter=lambda name: name.endswith("hook_resid_post"),
                )  # fmt: skip
                self.save(number, [cache["resid_post", layer] for layer in range(self.layers)], folder)
        return "to disk"

    def lens(self) -> Any:
        ids = self.story[:, :TOKENS]
        _, cache = self.model.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_resid_post"))
        stream = self.torch.cat([cache["resid_post", layer] for layer in range(self.layers)])
        logits = self.model.unembed(self.model.ln_final(stream))
        top = logits.log_softmax(-1).topk(5)
        return int(top.indices[-1, -1, 0])

    def heads(self) -> Any:
        clean, corrupted = self.ids(CLEAN), self.ids(CORRUPTED)
        _, cache = self.model.run_with_cache(clean, names_filter=lambda name: name.endswith("hook_z"))
        rows = corrupted.expand(self.head_count, -1)
        scores = []
        for layer in range(self.layers):

            def put(value: Any, hook: Any, layer: int = layer) -> Any:
                for head in range(self.head_count):
                    value[head, :, head] = cache["z", layer][0, :, head]
                return value

            logits = self.model.run_with_hooks(rows, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", put)])
            scores.append(self.lead(logits))
        return self.best(self.torch.stack(scores))

    def pairs(self) -> Any:
        first, second = self.pair_ids()
        _, cache = self.model.run_with_cache(first, names_filter=lambda name: name.endswith("hook_resid_post"))
        for layer in range(self.layers):

            def put(value: Any, hook: Any, layer: int = layer) -> Any:
                value[:, -1] = cache["resid_post", layer][:, -1]
                return value

            self.model.run_with_hooks(second, fwd_hooks=[(f"blocks.{layer}.hook_out", put)])
        return len(first)

    def attribution_patching(self) -> Any:
        torch, kept = self.torch, {}
        _, cache = self.model.run_with_cache(self.ids(CLEAN), names_filter=lambda name: name.endswith("hook_z"))

        def keep(value: Any, hook: Any) -> Any:
            value.requires_grad_().retain_grad()
            kept[hook.name] = value
            return value

        with torch.enable_grad():
            hooks = [(f"blocks.{layer}.attn.hook_z", keep) for layer in range(self.layers)]
            self.lead(self.model.run_with_hooks(self.ids(CORRUPTED), fwd_hooks=hooks)).sum().backward()
        values = [kept[name] for name in sorted(kept, key=lambda name: int(name.split(".")[1]))]
        estimates = [
            ((cache["z", layer] - value.detach()) * value.grad).sum((0, 1, 3)) for layer, value in enumerate(values)
        ]
        self.hf.zero_grad(set_to_none=True)
        return self.best(torch.stack(estimates))

    def patterns(self) -> Any:
        _, cache = self.model.run_with_cache(
            self.story[:, :256], names_filter=lambda name: name.endswith("hook_pattern")
        )  # fmt: skip
        return len([cache["pattern", layer].numpy() for layer in range(self.layers)])

    def steering(self) -> Any:
        def steer(value: Any, hook: Any) -> Any:
            return value + self.vector

        with self.model.hooks(fwd_hooks=[(f"blocks.{LAYER}.hook_out", steer)]):
            written = self.model.generate(
                self.ids(PROMPT), max_new_tokens=TOKENS, do_sample=False, stop_at_eos=False, verbose=False
            )
        return self.tokenizer.decode(written[0, -TOKENS:])

    own_function = steering


class Nnsight(Reference):
    def __init__(self) -> None:
        super().__init__()
        import nnsight

        self.nnsight = nnsight
        self.model = nnsight.LanguageModel(self.hf, tokenizer=self.tokenizer)

    def _stream(self, batch: Any) -> Any:
        save, model = self.nnsight.save, self.model
        with model.trace(batch):
            stream = save([layer.output for layer in model.model.layers])
        return stream  # noqa: RET504  (nothing is there before the block ends)

    def residuals(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for number, batch in enumerate(self.batches()):
                self.save(number, self._stream(dict(batch)), folder)
        return "to disk"

    def lens(self) -> Any:
        stream = self.torch.cat(list(self._stream(self.story[:, :TOKENS])))
        top = self.hf.lm_head(self.hf.model.norm(stream)).log_softmax(-1).topk(5)
        return int(top.indices[-1, -1, 0])

    def heads(self) -> Any:
        model, save, size = self.model, self.nnsight.save, self.size
        with model.trace(self.ids(CLEAN)):
            clean = save([layer.self_attn.o_proj.input for layer in model.model.layers])
        rows = self.ids(CORRUPTED).expand(self.head_count, -1)
        scores = []
        for number in range(self.layers):
            with model.trace(rows):
                value = model.model.layers[number].self_attn.o_proj.input.clone()
                for head in range(self.head_count):
                    part = slice(head * size, (head + 1) * size)
                    value[head, :, part] = clean[number][0, :, part]
                model.model.layers[number].self_attn.o_proj.input = value
                logits = save(model.lm_head.output)
            scores.append(self.lead(logits))
        return self.best(self.torch.stack(scores))

    def pairs(self) -> Any:
        model, save = self.model, self.nnsight.save
        first, second = self.pair_ids()
        clean = self._stream(first)
        for number in range(self.layers):
            with model.trace(second):
                model.model.layers[number].output[:, -1] = clean[number][:, -1]
                save(model.lm_head.output)
        return len(first)

    def attribution_patching(self) -> Any:
        model, save, torch = self.model, self.nnsight.save, self.torch
        with model.trace(self.ids(CLEAN)):
            clean = save([layer.self_attn.o_proj.input for layer in model.model.layers])
        with torch.enable_grad(), model.trace(self.ids(CORRUPTED)):
            values = save([])
            for layer in model.model.layers:
                value = layer.self_attn.o_proj.input
                value.retain_grad()
                values.append(value)
            lead = save(self.lead(model.lm_head.output).sum())
        lead.backward()
        estimates = [
            ((one - value.detach()) * value.grad).unflatten(-1, (self.head_count, self.size)).sum((0, 1, 3))
            for one, value in zip(clean, values, strict=True)
        ]
        self.hf.zero_grad(set_to_none=True)
        return self.best(torch.stack(estimates))

    def patterns(self) -> Any:
        model, save = self.model, self.nnsight.save
        with model.trace(self.story[:, :256]):
            patterns = save([layer.self_attn.output[1] for layer in model.model.layers])
        return len([pattern.numpy() for pattern in patterns])

    def steering(self) -> Any:
        model, vector = self.model, self.vector
        with model.generate(self.ids(PROMPT), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None) as tracer:
            for _ in tracer.iter[:TOKENS]:
                model.model.layers[LAYER].output[:] = model.model.layers[LAYER].output + vector
            written = self.nnsight.save(tracer.result)
        return self.tokenizer.decode(written[0, -TOKENS:])

    own_function = steering


CONTESTANTS: dict[str, Callable[[], Any]] = {
    "ours, packed": lambda: Glassformer("smollm2"),
    "ours, float32": lambda: Glassformer(str(float32_folder())),
    "TransformerLens": TransformerLens,
    "nnsight": Nnsight,
}


def main(name: str) -> None:
    """Say 'ready', then answer each line: a task's name with its seconds and answer, or why there is none."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what the libraries print is no answer
    contestant = CONTESTANTS[name]()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        task = getattr(contestant, line.strip(), None)
        started = time.perf_counter()
        answer = error = None
        try:
            answer = None if task is None else task()
        except Exception as caught:  # a contestant that cannot answer loses this task only
            error = f"{type(caught).__name__}: {caught}".splitlines()[0]
        seconds = None if answer is None else time.perf_counter() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        reply = {"seconds": seconds, "answer": answer, "error": error, "memory": memory}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
