"""The course's model: against a slow statement of it that knows nothing of ours, and the course's own calls, run.

Tensor names are those of the chapter's checkpoints. Shapes: ids (batch, length); states (batch, length, hidden).
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer
from glassformer.blueprints import blueprint
from glassformer.checkpoint import tiktoken_ranks
from glassformer.checkpoint.scratch import RENAMED
from glassformer.compat.scratch import Model, generate_with_trace
from glassformer.ground.errors import ConfigError, GlassError, InputError, InputTypeError, SettingError

pytestmark = pytest.mark.usefixtures("one_thread")

H_PARAMS: dict[str, Any] = {
    "d_model": 24, "context_length": 11, "num_blocks": 2, "num_heads": 3, "dropout": 0.1, "vocab_size": 60,
    "batch_size": 4, "learning_rate": 1e-3, "device": "cpu",
}  # fmt: skip
CL100K = {**H_PARAMS, "vocab_size": 100256, "context_length": 16, "d_model": 8, "num_heads": 2}
TABLE, OUTPUT = "token_embedding_lookup_table.weight", "model_out_linear_layer.weight"
State = dict[str, Tensor]


# The slow statement ---------------------------------------------------------------------------------------------


def oracle(state: Mapping[str, Tensor], h_params: Mapping[str, Any], ids: Tensor) -> Tensor:
    """The scores of every position, head by head, with nothing cached and nothing fused."""
    width, length = h_params["d_model"], ids.shape[1]
    size = width // h_params["num_heads"]

    def linear(name: str, x: Tensor) -> Tensor:
        y = x @ state[f"{name}.weight"].T
        return y + state[f"{name}.bias"] if f"{name}.bias" in state else y

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / spread * state[f"{name}.weight"] + state[f"{name}.bias"]

    x = state[TABLE][ids] + sinusoids(length, width)
    for number in range(h_params["num_blocks"]):
        block, seen = f"transformer_blocks.{number}", []
        h = norm(f"{block}.ln1", x)
        for head in range(h_params["num_heads"]):
            query, key, value = (linear(f"{block}.mha.heads.{head}.{name}", h) for name in ("Wq", "Wk", "Wv"))
            mask = state[f"{block}.mha.heads.{head}.mask"][:length, :length]
            scores = (query @ key.mT / math.sqrt(size)).masked_fill(mask == 0, -math.inf)
            seen.append(scores.softmax(-1) @ value)
        x = x + linear(f"{block}.mha.projection_layer", torch.cat(seen, -1))
        h = norm(f"{block}.ln2", x)
        x = x + linear(f"{block}.ffn.ffn.2", linear(f"{block}.ffn.ffn.0", h).clamp(min=0))
    return linear("model_out_linear_layer", norm(f"transformer_blocks.{h_params['num_blocks']}", x))


def sinusoids(length: int, width: int) -> Tensor:
    """In float32 whatever the weights are, as the course computes them."""
    table = torch.zeros(length, width)
    for column in range(width):
        rate = torch.exp(torch.tensor(float(column - column % 2)) * (-math.log(10000.0) / width))
        angles = torch.arange(length).float() * rate
        table[:, column] = angles.cos() if column % 2 else angles.sin()
    return table


def naive(
    scores: Callable[[Tensor], Tensor], ids: Tensor, context: int, count: int, temperature: float, top_k: int | None
) -> Tensor:
    """Generation without a cache: everything is computed anew for each token."""
    for _ in range(count):
        last = scores(ids[:, -context:])[:, -1] / temperature
        if top_k is not None:
            best = last.topk(top_k)
            last = torch.full_like(last, -math.inf).scatter(-1, best.indices, best.values)
        ids = torch.cat((ids, torch.multinomial(last.softmax(-1), 1)), 1)
    return ids


# Material -------------------------------------------------------------------------------------------------------


def state_of(h_params: Mapping[str, Any], dtype: torch.dtype = torch.float32, tied: bool = False) -> State:
    """A checkpoint's tensors, written down without our classes; nothing is zero and nothing is one."""
    draw = torch.Generator().manual_seed(5)
    width, heads, context = h_params["d_model"], h_params["num_heads"], h_params["context_length"]

    def random(*shape: int, around: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=draw) * 0.25 + around).to(dtype)

    def norm(name: str) -> State:
        return {f"{name}.weight": random(width, around=1.0), f"{name}.bias": random(width)}

    state = {TABLE: random(h_params["vocab_size"], width)}
    for number in range(h_params["num_blocks"]):
        block = f"transformer_blocks.{number}"
        state |= norm(f"{block}.ln1") | norm(f"{block}.ln2")
        for head in range(heads):
            state[f"{block}.mha.heads.{head}.mask"] = torch.ones(context, context).tril()
            for name in ("Wq", "Wk", "Wv"):
                state[f"{block}.mha.heads.{head}.{name}.weight"] = random(width // heads, width)
        for name, rows, columns in (("mha.projection_layer", 1, 1), ("ffn.ffn.0", 4, 1), ("ffn.ffn.2", 1, 4)):
            state[f"{block}.{name}.weight"] = random(rows * width, columns * width)
            state[f"{block}.{name}.bias"] = random(rows * width)
    state |= norm(f"transformer_blocks.{h_params['num_blocks']}")
    state[OUTPUT] = state[TABLE] if tied else random(h_params["vocab_size"], width)
    state["model_out_linear_layer.bias"] = random(h_params["vocab_size"])
    return state


def repository_names(state: State) -> State:
    """The same tensors under the names of the public repository, which says ffn inside its feed-forward layer too."""
    theirs = {ours: name for name, ours in RENAMED.items()}
    spelt = {}
    for name, value in state.items():
        first, inner, last = name.partition(".ffn.ffn.")
        spelt[
            ".".join(theirs.get(word, word) for word in first.split(".")) + (inner and f".feed_forward_layer.ffn.{last}")
        ] = value
    return spelt


def model_of(state: State, h_params: Mapping[str, Any] = H_PARAMS, dtype: torch.dtype = torch.float32) -> Any:
    model = Model(h_params).to(dtype)
    model.load_state_dict(state)
    return model.eval()


def ids_of(batch: int, length: int, vocabulary: int = 60, seed: int = 3) -> Tensor:
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def ckpt(folder: Path, h_params: Mapping[str, Any] = H_PARAMS, **changes: Any) -> Path:
    """A file as the course's training script leaves it."""
    path = folder / "model.ckpt"
    torch.save({"h_params": dict(h_params), "model_state_dict": state_of(h_params, **changes)}, path)
    return path


@pytest.fixture
def trained(tmp_path: Path, cl100k: Path) -> Path:
    """A checkpoint with the true vocabulary."""
    return ckpt(tmp_path, CL100K)


# The model ------------------------------------------------------------------------------------------------------


class TestAgainstTheOracle:
    @pytest.mark.parametrize("length", [1, 4, 11])
    def test_logits_equal_the_oracles(self, length: int) -> None:
        state = state_of(H_PARAMS, torch.float64)
        model, ids = model_of(state, dtype=torch.float64), ids_of(3, length)
        with torch.no_grad():
            logits, loss = model(ids)
        assert loss is None
        assert logits.shape == (3, length, 60)
        assert float((logits - oracle(state, H_PARAMS, ids)).abs().max()) < 1e-8

    @pytest.mark.parametrize("tied", [False, True])
    def test_loss_and_gradients(self, tied: bool) -> None:
        state = state_of(H_PARAMS, torch.float64, tied=tied)
        model, ids, targets = model_of(state, dtype=torch.float64), ids_of(2, 9), ids_of(2, 9, seed=4)
        _, loss = model(ids, targets)
        loss.backward()
        leaves = {name: value.clone().requires_grad_() for name, value in state.items() if not name.endswith("mask")}
        if tied:
            leaves[OUTPUT] = leaves[TABLE]
        expected = F.cross_entropy(oracle({**state, **leaves}, H_PARAMS, ids).flatten(0, 1), targets.flatten())
        expected.backward()
        assert abs(loss.item() - expected.item()) < 1e-8
        found = dict(model.named_parameters(remove_duplicate=False))
        assert found.keys() == leaves.keys()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            assert float(leaf.grad.abs().max()) > 0, name
            assert float((found[name].grad - leaf.grad).abs().max()) < 1e-8, name

    @pytest.mark.parametrize("start", [1, 6, 11, 17])
    @pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (0.2, 5), (2.0, 1), (1.3, 60)])
    def test_generated_ids_equal_the_naive_loops(self, start: int, temperature: float, top_k: int | None) -> None:
        """The same random numbers give the same text, well past the context, wherever the prompt ends."""
        state = state_of(H_PARAMS, torch.float64)
        model, ids = model_of(state, dtype=torch.float64), ids_of(2, start)
        torch.manual_seed(21)
        expected = naive(lambda x: oracle(state, H_PARAMS, x), ids, 11, 30, temperature, top_k)
        torch.manual_seed(21)
        found = model.generate(ids, max_new_tokens=30, temperature=temperature, top_k=top_k)
        assert found.tolist() == expected.tolist()

    def test_max_new_tokens_are_generated(self) -> None:
        model, ids = model_of(state_of(H_PARAMS)), ids_of(1, 2)
        assert torch.equal(model.generate(ids, 0), ids)
        assert model.generate(ids).shape == (1, 102)
        assert model.generate(ids, 3, top_k=1000).shape == (1, 5)  # more than there are is all
        assert not model.generate(ids, 1).requires_grad


def test_state_dict_names_are_the_chapters() -> None:
    """The names, shapes and order that it prints; the masks are among them."""
    found = {
        name: tuple(value.shape) for name, value in Model({**CL100K, "d_model": 80, "num_heads": 4}).state_dict().items()
    }
    printed = {
        TABLE: (100256, 80),
        "transformer_blocks.0.ln1.weight": (80,),
        "transformer_blocks.0.ln1.bias": (80,),
        "transformer_blocks.0.mha.heads.0.Wq.weight": (20, 80),
        "transformer_blocks.0.mha.heads.0.Wk.weight": (20, 80),
        "transformer_blocks.0.mha.heads.0.Wv.weight": (20, 80),
        OUTPUT: (100256, 80),
        "model_out_linear_layer.bias": (100256,),
    }
    assert list(found)[:3] == list(printed)[:3]
    assert list(found)[-2:] == list(printed)[-2:]
    assert [(name, shape) for name, shape in found.items() if name in printed] == list(printed.items())
    state = Model(H_PARAMS).state_dict()
    assert list(state) == list(state_of(H_PARAMS))
    assert torch.equal(state["transformer_blocks.1.mha.heads.2.mask"], torch.ones(11, 11).tril())


@pytest.mark.parametrize(
    "words",
    [
        ("d_model", "context_length", "num_blocks", "num_heads", "vocab_size"),
        ("d_model", "context_length", "num_blocks", "num_heads", "max_token_value"),
        ("n_embd", "block_size", "n_layer", "n_head", "vocab_size"),
    ],
)
def test_h_params_in_every_spelling(words: tuple[str, ...]) -> None:
    model = Model(dict(zip(words, (24, 11, 2, 3, 60), strict=True)))
    assert model.context_length == 11
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in state_of(H_PARAMS).items()
    }
    assert model.config.dropout == 0.1


def test_the_default_vocabulary_is_cl100k() -> None:
    assert Model({name: value for name, value in H_PARAMS.items() if name != "vocab_size"}).config.vocab_size == 100256


def test_tensor_names_in_both_spellings() -> None:
    state = state_of(H_PARAMS)
    theirs = repository_names(state)
    assert "transformer_blocks.0.multi_head_attention_layer.heads.0.query_layer.weight" in theirs
    assert not theirs.keys() & {name for name in state if name.startswith("transformer_blocks.0")}
    ids = ids_of(2, 5)
    assert torch.equal(model_of(theirs)(ids)[0], model_of(state)(ids)[0])


def test_a_state_dict_that_does_not_fit_is_refused() -> None:
    state = state_of(H_PARAMS)
    with pytest.raises(RuntimeError, match="Missing key.*model_out_linear_layer.bias"):
        Model(H_PARAMS).load_state_dict({name: value for name, value in state.items() if "layer.bias" not in name})
    some = {TABLE: state[TABLE], "other": torch.ones(1)}
    result = Model(H_PARAMS).load_state_dict(some, strict=False)
    assert result.unexpected_keys == ["other"]
    assert OUTPUT in result.missing_keys


def test_training_mode_drops_and_evaluation_mode_does_not() -> None:
    model, ids = model_of(state_of(H_PARAMS)), ids_of(1, 8)
    assert not model.training
    assert torch.equal(model(ids)[0], model(ids)[0])
    model.train()
    assert not torch.equal(model(ids)[0], model(ids)[0])
    torch.manual_seed(1)
    first = model(ids)[0]
    torch.manual_seed(1)
    assert torch.equal(model(ids)[0], first)
    never = Model({**H_PARAMS, "dropout": 0.0}).train()
    assert torch.equal(never(ids)[0], never(ids)[0])


def test_parameter_count() -> None:
    model = Model(H_PARAMS)
    total_params = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert total_params == sum(value.numel() for name, value in state_of(H_PARAMS).items() if "mask" not in name)
    assert total_params == model.num_parameters() == blueprint(model.config).parameters


def test_training_lowers_the_loss() -> None:
    """A few steps downhill on one batch."""
    model = Model({**H_PARAMS, "dropout": 0.0}).train()
    x, y = ids_of(4, 11), ids_of(4, 11, seed=9)
    losses = []
    for _ in range(25):
        _, loss = model(x, y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
        losses.append(loss.item())
    assert abs(losses[0] - math.log(60)) < 0.3  # knowing nothing, all tokens are as likely
    assert losses[-1] < losses[0] - 1.5


# One table for both ends ----------------------------------------------------------------------------------------


class TestTiedOutput:
    def shared(self, model: Any) -> bool:
        return model.model_out_linear_layer.weight is model.token_embedding_lookup_table.weight

    @pytest.mark.parametrize("assign", [False, True])
    def test_shared_memory_stays_shared(self, tmp_path: Path, assign: bool) -> None:
        state = torch.load(ckpt(tmp_path, tied=True))["model_state_dict"]
        model = Model(H_PARAMS)
        model.load_state_dict(state, assign=assign)
        assert self.shared(model)
        assert model.config.tie_word_embeddings
        assert model.num_parameters() == Model(H_PARAMS).num_parameters() - 60 * 24
        torch.save(model.state_dict(), tmp_path / "again.pt")
        again = Model(H_PARAMS)
        again.load_state_dict(torch.load(tmp_path / "again.pt"))
        assert self.shared(again)
        assert torch.equal(again(ids_of(1, 5))[0], model(ids_of(1, 5))[0]) == (not model.training)

    def test_equal_numbers_alone_are_not_tied(self) -> None:
        state = state_of(H_PARAMS, tied=True)
        model = model_of({**state, OUTPUT: state[OUTPUT].clone()})
        assert not self.shared(model)
        assert not model.config.tie_word_embeddings
        empty = Model(H_PARAMS)
        empty.load_state_dict({name: value.to("meta") for name, value in state_of(H_PARAMS).items()}, assign=True)
        assert not self.shared(empty)  # neither has a place in memory, which is not the same place

    def test_parameters_stay_the_same_objects(self) -> None:
        """An optimizer that holds them goes on holding them."""
        model = Model(H_PARAMS)
        before = [id(parameter) for parameter in model.parameters()]
        model.load_state_dict(state_of(H_PARAMS))
        assert [id(parameter) for parameter in model.parameters()] == before

    def test_a_second_state_dict_unties(self) -> None:
        """Otherwise the output layer's numbers would end up in the table."""
        model = model_of(state_of(H_PARAMS, tied=True))
        state = state_of(H_PARAMS)
        model.load_state_dict(state)
        assert not self.shared(model)
        assert torch.equal(model.token_embedding_lookup_table.weight, state[TABLE])
        assert torch.equal(model.model_out_linear_layer.weight, state[OUTPUT])
        model.load_state_dict(state_of(H_PARAMS, tied=True))
        assert self.shared(model)

    def test_a_tied_model_is_saved_and_loaded(self, tmp_path: Path) -> None:
        model, ids = model_of(state_of(H_PARAMS, tied=True)), ids_of(2, 5)
        model.save_pretrained(tmp_path)
        again = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path)
        assert self.shared(again)
        assert torch.equal(again(ids).logits, model(ids)[0])

    @pytest.mark.parametrize("tied", [False, True])
    def test_a_tied_ckpt_is_loaded_tied(self, tmp_path: Path, tied: bool) -> None:
        model = glassformer.AutoModelForCausalLM.from_pretrained(ckpt(tmp_path, tied=tied))
        assert self.shared(model) == tied
        state, ids = state_of(H_PARAMS, tied=tied), ids_of(2, 5)
        assert torch.allclose(model(ids).logits, oracle(state, H_PARAMS, ids), atol=1e-5)


# Files ----------------------------------------------------------------------------------------------------------


def test_the_checkpoint_opens_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.ckpt` with its h_params, and a bare state dict; saved as a folder and loaded again."""
    ckpt(tmp_path)
    torch.save(state_of(H_PARAMS), tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    ids = ids_of(2, 7)
    expected = model_of(state_of(H_PARAMS))(ids)[0]
    for name in ("model.ckpt", "model.pt"):
        model = glassformer.AutoModelForCausalLM.from_pretrained(name)
        assert type(model).__name__ == "ScratchForCausalLM"
        assert torch.equal(model(ids).logits, expected)
        model.save_pretrained(tmp_path / "folder")
        again = glassformer.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
        assert torch.equal(again(ids).logits, expected)
        assert again.config.to_dict()["d_model"] == 24
        assert again.config.dropout == 0.1
        greedy = naive(lambda x, model=model: model(x).logits, ids[:1, :3], 11, 8, 1.0, 1)  # type: ignore[misc]
        assert model.generate(ids[:1, :3], max_new_tokens=8).tolist() == greedy.tolist()
    made = torch.load("model.ckpt")
    assert made["h_params"] == H_PARAMS


def test_load_watch_and_look(trained: Path) -> None:
    model = glassformer.load(trained)
    text = "农夫山泉 "
    run = model.watch(text, max_new_tokens=5)
    assert run.prompt == text
    assert model.tokenizer.decode(list(run.prompt_ids)) == text
    state = state_of(CL100K)
    greedy = naive(lambda x: oracle(state, CL100K, x), torch.tensor([run.prompt_ids]), 16, 5, 1.0, 1)
    assert [step.id for step in run.steps] == greedy[0, len(run.prompt_ids) :].tolist()
    journey = model.look(text)
    assert journey.next.id == run.steps[0].id
    assert journey.shapes["embedding"] == (1, len(run.prompt_ids), 8)
    assert journey.shapes["scores"] == (1, len(run.prompt_ids), 100256)
    assert {stage.blocks for stage in journey.stages if stage.blocks} == {(0, 1)}
    with pytest.raises(InputError, match="context of 16"):
        model.chat(text * 8)


def test_a_missing_tokenizer_is_refused(tmp_path: Path, empty_home: Path) -> None:
    model = glassformer.load(ckpt(tmp_path))
    with pytest.raises(GlassError, match="its tokenizer is cl100k_base. Fetch it: glass models pull cl100k_base"):
        model.chat("hi")


# The chapter ----------------------------------------------------------------------------------------------------

INFERENCE = """
import torch
import tiktoken
from glassformer.scratch import Model

checkpoint = torch.load('model/model.ckpt')
h_params = checkpoint['h_params']
model = Model(h_params)
model.load_state_dict(checkpoint['model_state_dict'])
model.eval()
model.to(h_params['device'])

encoding = tiktoken.get_encoding("cl100k_base")
start = "农夫山泉 "
start_ids = encoding.encode(start)
print(f"Token IDs: {start_ids}")
x = torch.tensor(start_ids, dtype=torch.long, device=h_params['device'])
x = x.unsqueeze(0)
print(f"Input shape: {x.shape}")

with torch.no_grad():
    y = model.generate(x, max_new_tokens=200, temperature=0.5, top_k=None)
output_text = encoding.decode(y[0].tolist())
print('---------------')
print(repr(output_text))
print('---------------')
print(len(y[0]))
y = model.generate(x, temperature=0.5)
y = model.generate(x, top_k=50)
y = model.generate(x, max_new_tokens=200)

total_params = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"Model param size: {total_params:,}")
for name, param in model.state_dict().items():
    print(f"{name}: {param.shape}")

prompts = ["农夫山泉", "可口可乐", "奥利奥", "蒙牛"]
for prompt in prompts:
    x = torch.tensor(encoding.encode(prompt), dtype=torch.long, device=h_params['device'])[None, ...]
    with torch.no_grad():
        y = model.generate(x, max_new_tokens=50, temperature=0.5)
    print(f"Prompt: {prompt}")
    assert encoding.decode(y[0].tolist()).startswith(prompt)

for step in range(10):
    with torch.no_grad():
        logits, _ = model(x[:, -model.context_length:])
    probs = torch.softmax(logits[:, -1, :] / 1.0, dim=-1)
    top5_probs, top5_ids = torch.topk(probs[0], 5)
    for prob, idx in zip(top5_probs, top5_ids):
        encoding.decode([idx.item()]), f"{prob.item():.3f}"
    x = torch.cat((x, torch.multinomial(probs, num_samples=1)), dim=1)
print(f"Traced: {x.shape}")
"""


@pytest.mark.parametrize("length", [20, pytest.param(200, marks=pytest.mark.sweep)])  # the chapter's is 200
def test_every_call_of_the_chapter(tmp_path: Path, cl100k: Path, length: int) -> None:
    """In a process of its own: no network, no cache of tiktoken's, and only the line that imports the model is ours."""
    (tmp_path / "model").mkdir()
    (tmp_path / "temporary").mkdir()
    ckpt(tmp_path / "model", CL100K)
    (tmp_path / "inference.py").write_text(INFERENCE.replace("max_new_tokens=200", f"max_new_tokens={length}"), "utf-8")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    given = {name: value for name, value in os.environ.items() if name not in tiktoken_ranks.CACHE_VARIABLES}
    done = subprocess.run(
        [sys.executable, "inference.py"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env={**given, **nowhere, "TMPDIR": str(tmp_path / "temporary"), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ids = glassformer.AutoTokenizer.from_pretrained(cl100k).encode("农夫山泉 ")
    assert lines[0] == f"Token IDs: {ids}"
    assert lines[1] == f"Input shape: torch.Size([1, {len(ids)}])"
    assert lines[2] == lines[4] == "---------------"
    assert lines[3][1:].startswith("农夫山泉 ")
    assert lines[5] == str(length + len(ids))
    state = state_of(CL100K)
    assert lines[6] == f"Model param size: {sum(v.numel() for n, v in state.items() if 'mask' not in n):,}"
    assert lines[7 : 7 + len(state)] == [f"{name}: {value.shape}" for name, value in state.items()]
    prompts = ("农夫山泉", "可口可乐", "奥利奥", "蒙牛")
    assert lines[7 + len(state) : -1] == [f"Prompt: {prompt}" for prompt in prompts]
    assert lines[-1].startswith("Traced: torch.Size([1, ")


class TestTrace:
    def test_the_trace_prints_as_in_the_chapter(self, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = model_of(torch.load(trained)["model_state_dict"], CL100K)
        text = glassformer.AutoTokenizer.from_pretrained(tiktoken_ranks.NAME)
        x = torch.tensor([text.encode("农夫山泉 ")])
        torch.manual_seed(4)
        found = generate_with_trace(model, x, max_new_tokens=12, temperature=0.7)
        printed = capsys.readouterr().out
        torch.manual_seed(4)
        assert torch.equal(model.generate(x, max_new_tokens=12, temperature=0.7), found)
        expected = ["Initial prompt: 农夫山泉 ", "---"]
        for step in range(12):
            so_far = found[:, : x.shape[1] + step]
            shares = (oracle(model.state_dict(), CL100K, so_far[:, -16:])[0, -1] / 0.7).softmax(-1)
            best = shares.topk(5)
            expected.append(f"Step {step + 1} candidates:")
            expected += [f"  '{text.decode([int(i)])}': {p:.3f}" for i, p in zip(best.indices, best.values, strict=True)]
            chosen = found[0, so_far.shape[1]]
            expected.append(f"  -> selected: '{text.decode([int(chosen)])}'")
            expected += [f"  current sequence: {text.decode(found[0, : so_far.shape[1] + 1].tolist())}", "---"]
        assert printed == "\n".join(expected) + "\n"

    def test_a_trace_with_a_tiny_vocabulary(self, cl100k: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = generate_with_trace(Model({**H_PARAMS, "vocab_size": 3}).eval(), torch.tensor([[1]]), 2)
        assert found.shape == (1, 3)
        assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * (1 + 3 + 3)


# What goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["d_model", "context_length", "num_blocks", "num_heads"])
def test_missing_h_params_are_refused(lacking: str) -> None:
    with pytest.raises(ConfigError, match=f"'{lacking}'"):
        Model({name: value for name, value in H_PARAMS.items() if name != lacking})


@pytest.mark.parametrize(
    ("h_params", "message"),
    [
        ([("d_model", 24)], "list"),
        (None, "NoneType"),
        ({**H_PARAMS, "num_heads": 5}, "'num_heads' is 5"),
        ({**H_PARAMS, "num_heads": "3"}, "'num_heads' is '3'"),
        ({**H_PARAMS, "context_length": 0}, "'context_length' is 0"),
        ({**H_PARAMS, "dropout": None}, "'dropout' is None"),
    ],
)
def test_bad_h_params_are_refused(h_params: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Model(h_params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_bad_generation_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Model(H_PARAMS).generate(ids_of(1, 2), **settings)
    if "temperature" in settings:
        with pytest.raises(SettingError, match=message):
            generate_with_trace(Model(H_PARAMS), ids_of(1, 2), **settings)


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        (torch.tensor([[1, 60]]), InputError, "token id 60"),
        (torch.tensor([[60] + [1] * 20]), InputError, "token id 60"),
        (torch.tensor([[-1, 6]]), InputError, "token id -1"),
        (torch.tensor([1, 2]), InputError, r"not \(2,\)"),
        (torch.tensor([[[1]]]), InputError, r"not \(1, 1, 1\)"),
        (torch.empty(1, 0, dtype=torch.long), InputError, "prompt"),
        (torch.tensor([[1.0]]), InputTypeError, "torch.float32"),
        ("农夫山泉", InputTypeError, "not str"),
    ],
)
def test_bad_prompts_are_refused(ids: Any, kind: type[Exception], message: str) -> None:
    model = Model(H_PARAMS)
    for call in (model, model.generate, lambda ids: generate_with_trace(model, ids)):
        with pytest.raises(kind, match=message):
            call(ids)


def test_bad_targets_are_refused() -> None:
    model = Model(H_PARAMS)
    with pytest.raises(InputError, match="12 tokens"):
        model(ids_of(1, 12))


def test_a_deep_copy_is_independent() -> None:
    model = model_of(state_of(H_PARAMS, tied=True))
    other, ids = copy.deepcopy(model), ids_of(1, 4)
    with torch.no_grad():
        other.token_embedding_lookup_table.weight.zero_()
    assert model(ids)[0].std().item() > 0.1
    assert torch.equal(other(ids)[0][0, 0], other.model_out_linear_layer.bias)
