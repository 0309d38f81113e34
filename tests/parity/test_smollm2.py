"""The default model, from its GGUF file, against the reference; the sweep lets the reference expand the file too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Feed, Want
from tests.site_names import usual_sites

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "2 + 2 =",
    "Explain gravity to a child.",
    "List three fruits.",
    "def fibonacci(n):",
    "Once upon a time, in a small village,",
    "Translate to French: good morning",
    "Why is the sky blue?",
    "  Strange   spacing\n\nand 12345 digits é 😊",
)


@pytest.fixture(scope="module")
def pair(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Ours, and the reference with the same weights: it takes half a minute to expand the file itself."""
    ours = glassformer.AutoModelForCausalLM.from_pretrained("smollm2").requires_grad_(False)
    folder = tmp_path_factory.mktemp("floats")
    ours.save_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return ours, theirs, glassformer.AutoTokenizer.from_pretrained("smollm2")


@pytest.mark.sweep
def test_weights_equal_the_reference(smollm2: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    ours = glassformer.AutoModelForCausalLM.from_pretrained("smollm2")
    expected = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, expected[name]), name


@torch.no_grad()
def test_logits_and_states_equal_the_reference(pair: tuple[Any, Any, Any]) -> None:
    ours, theirs, tokenizer = pair
    ids = tokenizer(PROMPTS[3], return_tensors="pt")["input_ids"]
    expected, result = (model(ids, output_hidden_states=True) for model in (theirs, ours))
    for one, other in zip((*result.hidden_states, result.logits), (*expected.hidden_states, expected.logits), strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(other.max() - other.min())


@torch.no_grad()
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in range(1, len(PROMPTS)))])
def test_64_greedy_ids_equal_the_reference(pair: tuple[Any, Any, Any], number: int) -> None:
    ours, theirs, tokenizer = pair
    chat = [{"role": "user", "content": PROMPTS[number]}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    text = ours.generate(ids, max_new_tokens=64, do_sample=False, eos_token_id=None)
    best = theirs(text[:, :-1]).logits.argmax(-1)  # one pass: the reference would choose each of these after those before it
    assert text[:, ids.shape[1] :].tolist() == best[:, ids.shape[1] - 1 :].tolist()


def test_it_knows_paris(pair: tuple[Any, Any, Any]) -> None:
    model = glassformer.load("smollm2")
    assert model.chat("What is the capital of France?") == "The capital of France is Paris."


def test_watching_the_real_model_changes_no_bit(pair: tuple[Any, Any, Any]) -> None:
    ours, _, tokenizer = pair
    ids = tokenizer("Watching changes nothing.")["input_ids"]
    from glassformer.ground.sites import Watch

    watch = Watch.of("*", names=usual_sites(30))
    one, other = PlainExecutor(ours), PlainExecutor(ours)
    plain = one.run([Feed(one.open(), ids, Want.ALL)])[0]
    watched = other.run([Feed(other.open(), ids, Want.ALL, watch=watch)])[0]
    for index in range(len(ids)):
        assert (plain.host(index) == watched.host(index)).all()
    assert len(watched.sites) == 1 + 30 * 12 + 2
