"""Tasks that read pairs of texts: zero-shot-classification and rerank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from glassformer import load, pipeline
from glassformer.ground.errors import InputError, SettingError
from glassformer.serving.http.dialects.rerank import relevance
from tests.tasks.conftest import Make, same

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["My phone is broken, help!", "Ada lives in London.", "x " * 90]
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "ENTAILMENT"}, "num_labels": 3}
NLI["label2id"] = {name: number for number, name in NLI["id2label"].items()}  # type: ignore[attr-defined]
REVERSED = {"id2label": {0: "entailment", 1: "contradiction"}, "label2id": {"entailment": 0, "contradiction": 1}}
DOCUMENTS = ["Goethe wrote Faust.", "It rained.", "x " * 90, "Who wrote it?"]
QUERY = "Who wrote Faust?"


def reference(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu", **options)


class TestZeroShot:
    @pytest.mark.parametrize(("model_type", "labels"), [("bert", NLI), ("distilbert", REVERSED), ("roberta", NLI)])
    def test_equals_the_reference(self, make: Make, model_type: str, labels: dict[str, Any]) -> None:
        folder = make(model_type, "SequenceClassification", **labels)
        task = "zero-shot-classification"
        ours, theirs = pipeline(task, folder), reference(task, folder)
        theirs.tokenizer.model_max_length = ours.limit  # type: ignore[attr-defined]
        for labels_of_mine in (["urgent", "later", "phone"], "urgent, later", ["urgent"]):
            for options in ({}, {"multi_label": True}, {"hypothesis_template": "It is about {}."}):
                asked = {"candidate_labels": labels_of_mine, **options}
                same(ours(TEXTS[0], **asked), theirs(TEXTS[0], **asked))
                same(ours(TEXTS, **asked), theirs(TEXTS, **asked))
        same(ours(TEXTS[0], ["a", "b"]), theirs(TEXTS[0], ["a", "b"]))
        assert [*ours(iter(TEXTS), ["a", "b"])] == ours(TEXTS, ["a", "b"])

    def test_labels_of_the_task(self, make: Make) -> None:
        task = pipeline("zero-shot", make("bert", "SequenceClassification", **NLI), candidate_labels=["urgent", "later"])
        answer = task(TEXTS[0])
        assert set(answer["labels"]) == {"urgent", "later"}
        assert sum(answer["scores"]) == pytest.approx(1)

    def test_refusals(self, make: Make) -> None:
        task = pipeline("zero-shot-classification", make("bert", "SequenceClassification", **NLI))
        for empty in ([], " , ", [""]):
            with pytest.raises(SettingError, match="candidate_labels"):
                task("Hi", candidate_labels=empty)
        for template in ("This is it.", "{", "{} {}", "{x}", "{0.nothing}"):
            with pytest.raises(SettingError, match="hypothesis_template"):
                task("Hi", ["a"], hypothesis_template=template)
        with pytest.raises(InputError, match="leaves no room for a text. Shorten it"):
            task("Hi", ["a " * 60])


class TestRerank:
    @pytest.fixture(params=["bert", "llama"])
    def folder(self, request: pytest.FixtureRequest, make: Make) -> Path:
        return make(request.param, "SequenceClassification", num_labels=1)

    def test_scores_are_those_of_the_references_classifier(self, folder: Path) -> None:
        theirs = reference("text-classification", folder)
        pairs = [{"text": QUERY, "text_pair": document} for document in DOCUMENTS]
        length = load(folder).config.context
        scores = [theirs(pair, truncation=True, max_length=length)["score"] for pair in pairs]
        answer = pipeline("rerank", folder)(QUERY, DOCUMENTS)
        assert [entry["index"] for entry in answer] == sorted(range(4), key=lambda number: -scores[number])
        for entry in answer:
            assert entry["score"] == pytest.approx(scores[entry["index"]], abs=1e-5)

    @pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert", "deberta-v2", "gte", "electra", "eurobert"])
    @pytest.mark.parametrize("stated", ["older", "newer", "file", None])
    def test_scores_as_the_models_files_say(self, family: str, stated: str | None, make: Make, tmp_path: Path) -> None:
        """Many rerankers were trained without a sigmoid: what their files name is applied, and by default a sigmoid."""
        import torch

        folder = tmp_path / "folder"
        shutil.copytree(make(family, "SequenceClassification", num_labels=1), folder)
        raw = json.loads((folder / "config.json").read_text())
        if stated == "older":
            raw["sbert_ce_default_activation_function"] = "torch.nn.modules.linear.Identity"
        elif stated == "newer":
            raw["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
        elif stated == "file":
            settings = {"prompts": {}, "activation_fn": "torch.nn.modules.linear.Identity"}
            (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps(raw))
        ours = pipeline("rerank", folder)
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        tokens = ours.tokenizer([QUERY] * 4, DOCUMENTS, truncation=True, max_length=ours.limit, padding=True,
                                return_tensors="pt")  # fmt: skip
        with torch.inference_mode():
            logits = theirs(**tokens).logits[:, 0]
        wanted = logits if stated else logits.sigmoid()
        for entry in ours(QUERY, DOCUMENTS):
            assert entry["score"] == pytest.approx(float(wanted[entry["index"]]), abs=2e-5)
        scores, _ = relevance(load(folder), QUERY, DOCUMENTS)
        assert scores == pytest.approx(wanted.tolist(), abs=2e-5)

    def test_a_function_that_is_not_known_is_refused(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder, tmp_path / "folder")
        raw = json.loads((folder / "config.json").read_text())
        raw["sbert_ce_default_activation_function"] = "torch.nn.modules.activation.Softplus"
        (tmp_path / "folder" / "config.json").write_text(json.dumps(raw))
        task = pipeline("rerank", tmp_path / "folder")
        with pytest.raises(SettingError, match="Softplus"):
            task(QUERY, DOCUMENTS)
        assert len(task(QUERY, DOCUMENTS, function_to_apply="none")) == 4

    def test_options_and_many_queries(self, folder: Path) -> None:
        task = pipeline("text-ranking", folder)
        answer = task(QUERY, DOCUMENTS)
        best = task(QUERY, DOCUMENTS, top_k=1, return_documents=True)
        assert best == [{**answer[0], "text": DOCUMENTS[answer[0]["index"]]}]
        questions = [{"query": QUERY, "documents": DOCUMENTS}, {"query": "Why?", "documents": DOCUMENTS[:1]}]
        several = task(questions)
        assert [len(entries) for entries in several] == [4, 1]
        same(several[0], answer)
        raw = task(QUERY, DOCUMENTS, function_to_apply="none")
        assert [entry["index"] for entry in raw] == [entry["index"] for entry in answer]
        assert any(not 0 <= entry["score"] <= 1 for entry in raw)

    def test_a_server_ranks_with_it(self, folder: Path) -> None:
        model = load(folder)
        scores, tokens = relevance(model, QUERY, DOCUMENTS)
        answer = pipeline("rerank", model)(QUERY, DOCUMENTS)
        assert {entry["index"]: entry["score"] for entry in answer} == pytest.approx(dict(enumerate(scores)))
        assert tokens > len(DOCUMENTS)
