"""Without PyTorch, which is an extra: everything that the CPU engine can run works, and what needs the extra names it.

One process without torch, triton and transformers runs all of it; each test asks what came of its part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.patience import patience
from tests.see.test_views import make

Outcome: TypeAlias = dict[str, Any]
INSTALL = "pip install 'glassformer[torch]'"
WORKER = """
import json, sys
sys.modules.update(dict.fromkeys(("torch", "triton", "transformers")))  # nobody can import them
from click.testing import CliRunner
from glassformer.cli.app import app

commands, snippets, model = json.load(sys.stdin)
outcomes, names = {}, {"model": model}
for name, words in commands.items():
    done = CliRunner().invoke(app, words)
    kind = None if done.exit_code == 0 else type(done.exception).__name__
    outcomes[name] = {"error": kind, "said": done.output if kind in (None, "SystemExit") else str(done.exception)}
for code in snippets:
    try:
        exec(code, names)
        outcomes[code] = {"error": None}
    except Exception as error:
        outcomes[code] = {"error": type(error).__name__, "said": str(error)}
print(json.dumps(outcomes), file=sys.__stdout__)
"""
WORKS = {  # MODEL is a tiny decoder, FOLDER is empty at first
    "run": "run --raw Hi -n 2 -m MODEL",
    "run with a temperature": "run --raw Hi -n 2 --temperature 0.8 --seed 7 --why -m MODEL",
    "run with a schema": 'run --raw Hi -n 2 --schema {"type":"integer"} -m MODEL',
    "run, saved": "run --raw Hi -n 2 --save FOLDER/run.json -m MODEL",
    "run, replayed": "run --replay FOLDER/run.json -m MODEL",
    "run as a page": "run --raw Hi -n 2 --studio FOLDER/run.html -m MODEL",
    "run over a file": "run --raw --file FOLDER/lines.txt --out FOLDER/answers.jsonl -n 2 -m MODEL",
    "run of an encoder-decoder": "run hello -m g2p",
    "chat": "chat -m MODEL",
    "look": "look --raw Hi -m MODEL",
    "look at an encoder-decoder": "look hello -m g2p",
    "tokens": "tokens Hi -m MODEL",
    "trace": "trace --raw --given Hi -m MODEL",
    "trace of a run": "trace --raw Hi -n 2 -m MODEL",
    "tree": "tree --raw Hi --width 2 --depth 2 -m MODEL",
    "attention": "attention --raw Hi --layer 0 --head 0 -m MODEL",
    "lens": "lens --raw Hi -m MODEL",
    "lens that attributes": "lens --raw Hi --wrote a --against b -m MODEL",
    "graph": "graph --raw Hi --wrote a -m MODEL",
    "saliency": "saliency --raw Hi -m MODEL",
    "circuit": "circuit --layer 0 --head 0 --raw Hi -m MODEL",
    "patch": "patch --raw cat dog -m MODEL",
    "compare": "compare --raw the_cat the_dog -m MODEL",
    "compare with a change": "compare --raw Hi --change blocks.0.attention.heads:1=0 -n 2 -m MODEL",
    "steer make": "steer make --pairs FOLDER/pairs.csv --site blocks.0.residual --out FOLDER/v.safetensors -m MODEL",
    "steer": "run --raw Hi -n 2 --steer FOLDER/v.safetensors=1 -m MODEL",
    "activations": "activations --texts FOLDER/lines.txt --site blocks.0.residual --out FOLDER/acts -m MODEL",
    "eval": "eval --text FOLDER/lines.txt MODEL",
    "task": "task text-generation Hi -n 2 -m MODEL",
    "task of an encoder": "task similarity one two -m MINILM",
    "task over a file": "task embed -f FOLDER/lines.txt --out FOLDER/vectors.jsonl -m MINILM",
    "models list": "models list",
    "models params": "models params MODEL",
    "models quantize": "models quantize MODEL --to f16 --out FOLDER/tiny.gguf --no-perplexity",
    "run, quantized": "run --raw Hi -n 2 -m FOLDER/tiny.gguf",
    "doctor": "doctor",
}
NEEDS_TORCH = {  # and what needs it
    "run --raw Hi -m MODEL --executor plain": "what is asked of MODEL",
    "run --raw Hi -m MODEL --dtype float32": "what is asked of MODEL",
    "run --raw Hi -m MODEL --tensor-parallel 2": "--tensor-parallel",
    "look Hi -m MINILM": "what is asked of MINILM",
    "attention Hi --layer 0 --head 0 -m MINILM": "what is asked of MINILM",
    "saliency --raw Hi --method integrated -m MODEL": "this",
    "attribution-patch --raw cat dog -m MODEL": "this",
    "lens --train FOLDER/lines.txt --out FOLDER/lens.safetensors -m MODEL": "this",
    "train-features --text FOLDER/lines.txt --site blocks.0.residual --out FOLDER/sae -m MODEL": "glass train-features",
    "probe --data FOLDER/labels.csv -m MODEL": "this",
    "train --text FOLDER/lines.txt --out FOLDER/trained": "glass train",
    "doctor --verify -m MODEL": "--verify",
}
PYTHON_WORKS = (
    "import glassformer as glass; loaded = glass.load(model)",
    "assert loaded.chat('Hi', max_new_tokens=2) == ''.join(loaded.stream('Hi', max_new_tokens=2))",
    "run = loaded.watch('Hi', max_new_tokens=2, sites='blocks.*.residual')",
    "print(run.journey, run.trace, run.attention(layer=0, head=0), run.lens(), run.attribution(0), run.why(0))",
    "loaded.read('Hi').lens().to_dict(), loaded.read('Hi').saliency(metric='log-probability').strongest",
    "glass.compare(run, loaded.watch('Hi', max_new_tokens=2, change={'blocks.0.mlp.update': glass.Change(scale=0)}))",
    "glass.plan(loaded.config), glass.AutoConfig.from_pretrained(model)",
    "glass.AutoTokenizer.from_pretrained(model)('Hi', return_tensors='np')",
    "glass.pipeline('text-generation', model, device_map='auto', max_new_tokens=2)('Hi')",
    "from starlette.testclient import TestClient\n"
    "from glassformer.serving.http.app import create_app\n"
    "from glassformer.serving.registry import ModelSource, Registry\n"
    "app = create_app(Registry([ModelSource('tiny', lambda: loaded)]))\n"
    "with TestClient(app, base_url='http://localhost') as client:\n"
    "    request = {'model': 'tiny', 'prompt': 'Hi', 'max_tokens': 2}\n"
    "    assert client.post('/v1/completions', json=request).status_code == 200\n"
    "    assert client.get('/').status_code == 200",
)
PYTHON_NEEDS_TORCH = {
    "glass.AutoModelForCausalLM": "AutoModelForCausalLM",
    "from glassformer import BertForMaskedLM": "BertForMaskedLM",
    "import glassformer.scratch": "glassformer.scratch",
    "from glassformer.modeling_outputs import ModelOutput": "glassformer.modeling_outputs",
    "glass.TopPLogitsWarper": "TopPLogitsWarper",
    "glass.DataCollatorWithPadding": "DataCollatorWithPadding",
    "loaded.module": "what is asked of MODEL",
    "loaded.read('Hi').saliency(metric='loss')": "this",
    "loaded.read('Hi').gradients('blocks.0.residual')": "this",
    "glass.AutoTokenizer.from_pretrained(model)('Hi', return_tensors='pt')": "return_tensors='pt'",
    "loaded.watch('Hi', max_new_tokens=2, change={'blocks.0.residual': lambda value, where: value})": "a function at a site",
    "glass.load(model, executor='plain').chat('Hi')": "what is asked of MODEL",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("gpt2"), "gpt2", "causal")


@pytest.fixture(scope="module")
def filled(model: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A text with the paths that its capitals stand for."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "lines.txt").write_text("how are you?\nI am well.\n")
    (folder / "pairs.csv").write_text("positive,negative\ngood,bad\nwarm,cold\n")
    (folder / "labels.csv").write_text("text,label\n" + "good,yes\nbad,no\n" * 8)
    paths = {"FOLDER": folder, "MODEL": model, "MINILM": minilm}

    def fill(text: str) -> str:
        for word, path in paths.items():
            text = text.replace(word, str(path))
        return text

    return fill


@pytest.fixture(scope="module")
def outcomes(filled: Callable[[str], str], model: Path) -> Mapping[str, Outcome]:
    words = {name: filled(line).split() for name, line in [*WORKS.items(), *((line, line) for line in NEEDS_TORCH)]}
    work = json.dumps([words, [*PYTHON_WORKS, *PYTHON_NEEDS_TORCH], str(model)])
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=work, capture_output=True, text=True, timeout=patience(120),
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Outcome] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [*WORKS, *PYTHON_WORKS])
def test_works(name: str, outcomes: Mapping[str, Outcome]) -> None:
    assert outcomes[name]["error"] is None, outcomes[name]["said"]


@pytest.mark.parametrize(("name", "what"), [*NEEDS_TORCH.items(), *PYTHON_NEEDS_TORCH.items()])
def test_names_the_extra(name: str, what: str, outcomes: Mapping[str, Outcome], filled: Callable[[str], str]) -> None:
    assert outcomes[name] == {"error": "MissingExtra", "said": f"{filled(what)} needs PyTorch: {INSTALL}."}
