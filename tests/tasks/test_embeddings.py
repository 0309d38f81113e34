"""Sentences to vectors, as the model's own files say."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from glassformer import load, pipeline
from glassformer.checkpoint.sentence_pooling import AnswerTokens, read_sentence_settings
from glassformer.ground.errors import CheckpointError, SettingError
from tests.tasks.conftest import Make

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["How old are you?", "Hi", "The quick brown fox jumps over the lazy dog, again and again."]


class TestMiniLM:
    def test_minilm_equals_transformers(self, minilm: Path) -> None:
        model, tokenizer = transformers.AutoModel.from_pretrained(minilm), transformers.AutoTokenizer.from_pretrained(minilm)
        tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.inference_mode():
            states, mask = model(**tokens)[0], tokens["attention_mask"][..., None]
        wanted = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
        found = pipeline("embed")(TEXTS)
        assert found.dtype == np.float32
        assert np.allclose(found, wanted.numpy(), atol=1e-6)
        assert np.allclose(pipeline("embed")(TEXTS[0]), wanted[0].numpy(), atol=1e-6)

    def test_similar_texts_score_higher(self) -> None:
        task = pipeline("similarity")
        near, far = task("How old are you?", ["What is your age?", "My phone is broken."])
        assert near > 0.7 > 0.3 > far

    def test_long_texts_are_cut_with_a_note(self, caplog: pytest.LogCaptureFixture) -> None:
        task = pipeline("embed")
        with caplog.at_level(logging.WARNING, "glassformer"):
            found = task(["word " * 400, "short"])
        assert "1 of 2 texts were cut to the 256 tokens that minilm reads." in caplog.text
        assert np.allclose(found[0], task("word " * 254), atol=1e-6)


Sentences = Callable[..., Path]


@pytest.fixture
def sentences(make: Make, tmp_path: Path) -> Sentences:
    """A tiny embedder with any files beside it."""

    def of(**files: Any) -> Path:
        shutil.copytree(make("bert", "base"), tmp_path, dirs_exist_ok=True)
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_json", ".json")
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return of


def states(folder: Path, text: str) -> np.ndarray:
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        return np.asarray(transformers.AutoModel.from_pretrained(folder)(**tokens)[0][0])


POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "pooling_mode_cls_token": lambda s: s[0],
    "pooling_mode_max_tokens": lambda s: np.max(s, 0),
    "pooling_mode_mean_tokens": lambda s: sum(s) / len(s),
    "pooling_mode_mean_sqrt_len_tokens": lambda s: sum(s) / len(s) ** 0.5,
    "pooling_mode_weightedmean_tokens": lambda s: sum((n + 1) * row for n, row in enumerate(s)) / sum(range(len(s) + 1)),
    "pooling_mode_lasttoken": lambda s: s[-1],
}


@pytest.mark.parametrize("way", POOLINGS)
def test_pooling_modes(sentences: Sentences, way: str) -> None:
    folder = sentences(**{"1_Pooling__config_json": {name: name == way for name in POOLINGS}})
    wanted = [POOLINGS[way](states(folder, text)) for text in TEXTS]
    assert np.allclose(pipeline("embed", folder)(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("way", POOLINGS)
def test_a_prompt_that_is_not_pooled(sentences: Sentences, way: str) -> None:
    """It is hidden from means and maxima; the first and the last state stay what they are, and weights count it."""
    folder = sentences(
        config_sentence_transformers_json={"prompts": {"query": "my query: "}},
        **{"1_Pooling__config_json": {way: True, "include_prompt": False}},
    )
    task, s = pipeline("embed", folder), states(folder, "my query: Hi there")
    first = len(task.tokenizer("my query: ")["input_ids"]) - 1
    places = np.arange(1, len(s) + 1)[first:, None]
    weighted = (s[first:] * places).sum(0) / places.sum()
    kept = {"pooling_mode_cls_token": s[0], "pooling_mode_weightedmean_tokens": weighted}
    wanted = kept.get(way, POOLINGS[way](s[first:]))
    assert np.allclose(task("Hi there", prompt_name="query"), wanted, atol=1e-5)


def test_texts_that_lose_their_capitals_and_vectors_that_are_cut(sentences: Sentences) -> None:
    folder = sentences(
        sentence_bert_config_json={"do_lower_case": True, "max_seq_length": 64},
        config_sentence_transformers_json={"truncate_dim": 7},
        tokenizer_config_json={"tokenizer_class": "PreTrainedTokenizerFast"},
    )
    cased = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": None}
    (folder / "tokenizer.json").write_text(json.dumps(cased))
    task = pipeline("embed", folder)
    assert not np.allclose(states(folder, "OLD Cats"), states(folder, "old cats")[:4])
    assert np.allclose(task("OLD Cats"), states(folder, "old cats").mean(0)[:7], atol=1e-5)
    assert task("OLD Cats", truncate_dim=3).shape == (3,)


MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


@pytest.mark.parametrize("executor", ["cpu", "plain"])
def test_a_decoder_as_embedder(tiny_qwen3: Path, tmp_path: Path, executor: str) -> None:
    """Qwen3 Embedding's folder: its names have no base in front, its tokenizer ends texts, whose last state counts."""
    folder = tmp_path / "embedder"
    shutil.copytree(tiny_qwen3, folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): value for name, value in weights.items()}, folder / "model.safetensors")
    whole = json.loads((folder / "tokenizer.json").read_text())
    ending = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}]
    whole["post_processor"] = {
        "type": "TemplateProcessing", "single": ending, "pair": ending,
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [151643], "tokens": ["<|endoftext|>"]}},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in MODULES]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True})
    )
    prompts = {"prompts": {"query": INSTRUCTION, "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**prompts, "similarity_fn_name": "cosine"}))

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.AutoModel.from_pretrained(tiny_qwen3)

    def slow(text: str) -> np.ndarray:
        ids = tokenizer(text)["input_ids"]
        assert ids[-1] == 151643
        with torch.inference_mode():
            last = np.asarray(model(torch.tensor([ids]))[0][0, -1])
        return last / np.linalg.norm(last)

    task = pipeline("embed", load(folder, executor=executor))
    assert np.allclose(task(TEXTS), [slow(text) for text in TEXTS], atol=1e-5)
    query = task(TEXTS[0], prompt_name="query")
    assert np.allclose(query, slow(INSTRUCTION + TEXTS[0]), atol=1e-5)
    assert np.allclose(task(TEXTS, prompt_name="document"), task(TEXTS), atol=1e-6)
    short = slow(TEXTS[0])[:8]
    assert np.allclose(task(TEXTS[0], truncate_dim=8), short / np.linalg.norm(short), atol=1e-5)


def test_several_poolings_are_concatenated(sentences: Sentences) -> None:
    folder = sentences(**{"1_Pooling__config_json": {"pooling_mode": ["mean", "cls"]}})
    s = states(folder, "Hi")
    assert np.allclose(pipeline("embed", folder)("Hi"), [*s.mean(0), *s[0]], atol=1e-5)


def test_dense_layer_and_normalization(sentences: Sentences) -> None:
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize")]
    folder = sentences(
        modules_json=[
            {"idx": n, "path": path, "type": f"sentence_transformers.models.{kind}"} for n, (kind, path) in enumerate(kinds)
        ],
        **{
            "1_Pooling__config_json": {"pooling_mode": "cls"},
            "2_Dense__config_json": {"activation_function": "torch.nn.modules.activation.Tanh"},
        },
    )
    generator = np.random.default_rng(0)
    weight, bias = generator.normal(size=(10, 48)).astype(np.float32), generator.normal(size=10).astype(np.float32)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    wanted = np.tanh(weight @ states(folder, "Hi")[0] + bias)
    assert np.allclose(pipeline("embed", folder)("Hi"), wanted / np.linalg.norm(wanted), atol=1e-5)
    assert np.allclose(pipeline("embed", folder)("Hi", normalize=False, truncate_dim=4), wanted[:4], atol=1e-5)


def test_sentence_prompts(sentences: Sentences) -> None:
    folder = sentences(
        config_sentence_transformers_json={"prompts": {"query": "query: ", "none": ""}, "default_prompt_name": "query"},
        **{"1_Pooling__config_json": {"pooling_mode": "mean", "include_prompt": False}},
    )
    task = pipeline("embed", folder)
    s = states(folder, "query: Hi")
    prompt = len(task.tokenizer("query: ")["input_ids"]) - 1
    assert np.allclose(task("Hi"), s[prompt:].mean(0), atol=1e-5)
    assert np.allclose(task("Hi", prompt_name="none"), states(folder, "Hi").mean(0), atol=1e-5)
    assert np.allclose(task("Hi", prompt="query: "), task("Hi"), atol=1e-6)
    with pytest.raises(SettingError, match=r"has no prompt 'qery'\. Did you mean 'query'\? It has: query, none"):
        task("Hi", prompt_name="qery")


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_functions(sentences: Sentences, function: str) -> None:
    folder = sentences(config_sentence_transformers_json={"similarity_fn_name": function})
    a, b, c = (states(folder, text).mean(0).astype(float) for text in ("one", "two fish", "three"))
    slow = {
        "cosine": lambda x, y: x @ y / (x @ x) ** 0.5 / (y @ y) ** 0.5,
        "dot": lambda x, y: x @ y,
        "euclidean": lambda x, y: -(((x - y) ** 2).sum() ** 0.5),
        "manhattan": lambda x, y: -abs(x - y).sum(),
    }[function]
    task = pipeline("similarity", folder)
    assert task(("one", "two fish")) == pytest.approx(slow(a, b), abs=1e-4)
    assert task({"text": "one", "text_pair": "three"}) == pytest.approx(slow(a, c), abs=1e-4)
    assert task([("one", "two fish"), ("three", "one")]) == pytest.approx([slow(a, b), slow(c, a)], abs=1e-4)
    assert np.allclose(task("one", ["two fish", "three"]), [slow(a, b), slow(a, c)], atol=1e-4)
    assert np.allclose(task(["one", "three"], ["two fish"]), [[slow(a, b)], [slow(c, b)]], atol=1e-4)
    assert task("one", "three") == pytest.approx(slow(a, c), abs=1e-4)
    assert task([], ["one"]).shape == (0, 1)
    assert task(("one", "two fish"), function="cosine") == pytest.approx(a @ b / (a @ a) ** 0.5 / (b @ b) ** 0.5, abs=1e-5)


def test_bad_embed_options_are_refused(sentences: Sentences) -> None:
    folder = sentences()
    assert np.allclose(pipeline("embed", folder, pooling="cls")("Hi"), states(folder, "Hi")[0], atol=1e-5)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"modules_json": "{"}, "is no list of modules"),
        ({"modules_json": [{"type": "x.Pooling"}]}, "is no list of modules"),
        ({"modules_json": [{"type": "x.Pooling", "path": "../away"}]}, "lies outside the checkpoint"),
        ({"modules_json": [{"type": "x.LSTM", "path": "1"}]}, "a LSTM module is not supported; Pooling, Dense and"),
        ({"modules_json": [{"type": "x.Pooling", "path": "1"}]}, "the file is missing"),
        ({"1_Pooling__config_json": {"pooling_mode": "middle"}}, "the pooling 'middle' is not known"),
        ({"modules_json": [{"type": "x.Dense", "path": "2"}], "2__config_json": {"activation_function": "x.Foo"}},
         "the activation 'Foo' is not known"),
        ({"modules_json": [{"type": "x.Dense", "path": "2"}], "2__config_json": {}}, "holds no model.safetensors"),
        ({"config_sentence_transformers_json": {"prompts": {"a": 3}}}, "does not map names to texts"),
        ({"config_sentence_transformers_json": {"default_prompt_name": "a"}}, "there is no such prompt"),
        ({"config_sentence_transformers_json": {"similarity_fn_name": "no"}}, "there are cosine, dot"),
        ({"config_sentence_transformers_json": {"truncate_dim": 0}}, "'truncate_dim' is 0; it must be a number"),
        ({"modules_json": [{"type": "x.Dense", "path": "2"}], "2__config_json": {"module_input_name": "token_embeddings"}},
         "a Dense module of anything but a text's vector is not supported"),
        ({"modules_json": [{"type": "x.LogitScore", "path": "1"}], "1__config_json": {"true_token_id": "yes"}},
         "'true_token_id' and 'false_token_id' are 'yes' and None; they must be tokens' ids"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_bad_sentence_files_are_refused(sentences: Sentences, files: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_sentence_settings(sentences(**files))


def test_unusable_dense_layer_is_refused(sentences: Sentences) -> None:
    folder = sentences(modules_json=[{"type": "x.Dense", "path": "2"}], **{"2__config_json": {}})
    save_file({"other": np.zeros(3, np.float32)}, folder / "2" / "model.safetensors")
    with pytest.raises(CheckpointError, match="is no linear layer: it holds other"):
        read_sentence_settings(folder)


def test_a_rerankers_modules_say_nothing_of_vectors(sentences: Sentences) -> None:
    modules = [{"type": f"x.{kind}", "path": path} for kind, path in (("Transformer", ""), ("LogitScore", "1_LogitScore"))]
    score = {"true_token_id": 9, "false_token_id": None, "module_input_name": "causal_logits"}
    settings = read_sentence_settings(sentences(modules_json=modules, **{"1_LogitScore__config_json": score}))
    assert (settings.stated, settings.pooling, settings.normalize) == (False, ("mean",), False)
    assert settings.answers == AnswerTokens(9, None)


def test_pooling_from_gguf() -> None:
    for number, way in {1: "mean", 2: "cls", 3: "lasttoken", 0: "mean", None: "mean"}.items():
        metadata = {"general.architecture": "bert", "bert.pooling_type": number}
        assert read_sentence_settings(Path("x.gguf"), metadata).pooling == (way,)


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("pool_prompt", [True, False])
def test_a_similarity_is_explained_with_the_vectors_of_the_task(
    sentences: Sentences, function: str, pool_prompt: bool
) -> None:
    """Prompt, pooling and function are as the files say; a distance has no shares, so it is the cosine that is explained."""
    folder = sentences(
        config_sentence_transformers_json={
            "prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": function,
        },
        **{"1_Pooling__config_json": {"pooling_mode": ["mean", "cls"], "include_prompt": pool_prompt}},
    )  # fmt: skip
    first, second = "one fish", "two fish"
    why, task = load(folder).explain(first, pair=second), pipeline("similarity", folder)
    known = "cosine" if function == "euclidean" else function
    assert why.similarity.function == known
    assert why.lead == pytest.approx(task((first, second), function=known), rel=1e-4)
    assert "query" not in [word.text for word in why.words]
    for word in why.words:
        texts = [first, second]
        texts[word.origin == "pair"] = texts[word.origin == "pair"].replace(word.text, "").strip()
        assert why.lead + word.left_out == pytest.approx(task((texts[0], texts[1]), function=known), rel=1e-4), word.text
