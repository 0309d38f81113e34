"""Tasks over models that read: equal to the reference's pipelines, or to a slow statement of what is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import AutoModelForMaskedLM, AutoTokenizer, load, pipeline
from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.tasks.forward import batches
from glassformer.tasks.registry import find_task
from glassformer.tasks.token_classification import EntitySpan, group_spans
from glassformer.training.task_kinds import KINDS
from tests.sweeps import examples
from tests.tasks.conftest import Make, same

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["Ada lives in London.", "Hi", "The quick brown fox jumps over the lazy dog, doesn't it? Ünïcode 日本 👍", "x " * 30]


def reference(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu", **options)


class TestFillMask:
    @pytest.fixture(params=["bert", "distilbert"])
    def folder(self, request: pytest.FixtureRequest, make: Make) -> Path:
        return make(request.param, "MaskedLM")

    @pytest.mark.parametrize("top_k", [1, 5, 40])
    def test_equals_the_reference(self, folder: Path, top_k: int) -> None:
        ours, theirs = pipeline("fill-mask", folder, top_k=top_k), reference("fill-mask", folder, top_k=top_k)
        texts = ["Paris is the [MASK] of France.", "[MASK]", "One [MASK], two [MASK]."]
        for text in texts:
            same(ours(text), theirs(text))
        same(ours(texts), theirs(texts))
        same(ours(texts[:1]), theirs(texts[:1]))
        same(ours(texts, batch_size=1), theirs(texts))

    def test_fill_mask_targets(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        ours, theirs = pipeline("fill-mask", folder), reference("fill-mask", folder)
        for targets in (["capital", "city"], "cat", ["capital", "capital"], ["Ünknownword", "dog"]):
            same(ours("A [MASK].", targets=targets), theirs("A [MASK].", targets=targets))
        assert "'Ünknownword' is not in the vocabulary; using 'unknown' instead." in caplog.text

    def test_refusals(self, make: Make) -> None:
        task = pipeline("fill-mask", make("bert", "MaskedLM"))
        with pytest.raises(InputError, match="at most 64"):
            task("[MASK] " * 80)
        assert task("[MASK] " + "x " * 80, truncation=True)


class TestTextClassification:
    @pytest.mark.parametrize(
        ("model_type", "changes"),
        [
            ("bert", {}),
            ("distilbert", {"num_labels": 1}),
            ("gpt2", {"num_labels": 4, "problem_type": "multi_label_classification"}),
            ("llama", {}),
            ("llama", {"num_labels": 1}),
        ],
    )
    def test_equals_the_reference(self, make: Make, model_type: str, changes: dict[str, Any]) -> None:
        folder = make(model_type, "SequenceClassification", **changes)
        ours, theirs = pipeline("text-classification", folder), reference("text-classification", folder)
        for text in TEXTS:
            same(ours(text), theirs(text))
            same(ours(text, top_k=None), theirs(text, top_k=None))
        every, all_of_theirs = (pipe("text-classification", folder, top_k=None) for pipe in (pipeline, reference))
        same(every(TEXTS[0]), all_of_theirs(TEXTS[0]))
        for options in ({}, {"top_k": 1}, {"top_k": 2}, {"function_to_apply": "none"}, {"function_to_apply": "sigmoid"}):
            same(ours(TEXTS, **options), theirs(TEXTS, **options))
        same(ours({"text": "a b", "text_pair": "c"}), theirs({"text": "a b", "text_pair": "c"}))
        same(
            ours([{"text": "a", "text_pair": "c"}, {"text": "b"}]), theirs([{"text": "a", "text_pair": "c"}, {"text": "b"}])
        )
        assert ours(("a b", "c")) == ours({"text": "a b", "text_pair": "c"})

    def test_regression_scores_are_raw(self, make: Make) -> None:
        folder = make("bert", "SequenceClassification", num_labels=1, problem_type="regression")
        same(pipeline("text-classification", folder)("Hi"), reference("text-classification", folder)("Hi"))

    def test_label_names(self, make: Make) -> None:
        folder = make("bert", "SequenceClassification", id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
        found = pipeline("sentiment-analysis", folder)("Hi", top_k=None)
        assert {one["label"] for one in found} == {"bad", "good"}
        assert sum(one["score"] for one in found) == pytest.approx(1)

    def test_refusals(self, make: Make) -> None:
        task = pipeline("text-classification", make("bert", "SequenceClassification"))
        for wrong in (0, -1, "few", True):
            with pytest.raises(SettingError, match="top_k is"):
                task("a", top_k=wrong)


class TestTokenClassification:
    @pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
    @pytest.mark.parametrize("model_type", ["bert", "distilbert", "gpt2"])
    @pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
    def test_equals_the_reference(self, make: Make, named_labels: dict[str, Any], model_type: str, strategy: str) -> None:
        folder = make(model_type, "TokenClassification", **named_labels)
        ours = pipeline("ner", folder, aggregation_strategy=strategy)
        theirs = reference("ner", folder, aggregation_strategy=strategy)
        for text in TEXTS:
            same(ours(text), theirs(text))
            same(ours(text, ignore_labels=[]), theirs(text, ignore_labels=[]))
            same(ours(text, ignore_labels=["O", "PER", "I-LOC"]), theirs(text, ignore_labels=["O", "PER", "I-LOC"]))
        same(ours(TEXTS), theirs(TEXTS))

    def test_input_split_into_words(self, make: Make, named_labels: dict[str, Any]) -> None:
        folder = make("bert", "TokenClassification", **named_labels)
        ours, theirs = pipeline("ner", folder), reference("ner", folder)
        for strategy in ("none", "simple", "first"):
            options = {"is_split_into_words": True, "aggregation_strategy": strategy, "ignore_labels": []}
            words = ["Ada", "Lovelace", "lives", "in", "Saint-Malo", "."]
            same(ours(words, **options), theirs(words, **options))
            same(ours([words, ["Hi"]], **options), theirs([words, ["Hi"]], **options))
            same(ours(words, **options, delimiter="_ "), theirs(words, **options, delimiter="_ "))

    def test_long_texts_are_read_in_windows(self, make: Make, named_labels: dict[str, Any]) -> None:
        """Every token is answered once, in its place, though the model reads 64 at a time."""
        folder = make("bert", "TokenClassification", **named_labels)
        task = pipeline("ner", folder, ignore_labels=[])
        text = " ".join(f"word{number} embedding" for number in range(90))
        whole = task.tokenizer(text, return_offsets_mapping=True)
        for stride in (None, 0, 1, 61):
            found = task(text, stride=stride)
            assert [(one["start"], one["end"]) for one in found] == [tuple(at) for at in whole["offset_mapping"][1:-1]]
            assert [one["index"] for one in found] == list(range(1, len(found) + 1))
        # a token in the middle of the second window has that window's scores
        ids = whole["input_ids"][1:-1]
        window = [task.tokenizer.cls_token_id, *ids[62:124], task.tokenizer.sep_token_id]
        with torch.inference_mode():
            scores = task.model.module(torch.tensor([window])).logits[0].softmax(-1)
        assert task(text, stride=0)[62 + 30]["score"] == pytest.approx(float(scores[31].max()), abs=1e-5)

    def test_no_entity_is_cut_by_a_window(self, make: Make, named_labels: dict[str, Any]) -> None:
        task = pipeline(
            "ner", make("bert", "TokenClassification", **named_labels), aggregation_strategy="simple", ignore_labels=[]
        )
        text = " ".join(["Ada"] * 200)
        single = task(text, aggregation_strategy="none")
        parts = [EntitySpan(one["entity"], one["score"], [one["word"]], one["start"], one["end"]) for one in single]
        assert [(one["start"], one["end"]) for one in task(text)] == [(g[0].start, g[-1].end) for g in group_spans(parts)]


def slow_answers(task: Any, question: str, context: str, options: dict[str, Any]) -> list[tuple[float, int, int]]:
    """Every passage of every window with its score, by plain loops."""
    limit = min(options.get("max_seq_len", 384), 64)
    tokenizer = task.tokenizer
    asked = tokenizer(question, add_special_tokens=False)["input_ids"]
    whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = whole["input_ids"], whole["offset_mapping"]
    room = limit - 3 - len(asked)
    step = room - min(options.get("doc_stride", 128), room // 2)
    found: dict[tuple[int, int], float] = {}
    none = 1.0
    begin = 0
    while True:
        part = ids[begin : begin + room]
        row = [tokenizer.cls_token_id, *asked, tokenizer.sep_token_id, *part, tokenizer.sep_token_id]
        types = [0] * (len(asked) + 2) + [1] * (len(part) + 1)
        with torch.inference_mode():
            out = task.model.module(torch.tensor([row]), token_type_ids=torch.tensor([types]))
        first = len(asked) + 2
        places = [*([0] if options.get("handle_impossible_answer") else []), *range(first, first + len(part))]
        starts = dict(zip(places, out.start_logits[0, places].softmax(0).tolist(), strict=True))
        ends = dict(zip(places, out.end_logits[0, places].softmax(0).tolist(), strict=True))
        none = min(none, starts.get(0, 0.0) * ends.get(0, 0.0))
        for i in range(len(part)):
            for j in range(i, min(len(part), i + options.get("max_answer_len", 15))):
                key = (offsets[begin + i][0], offsets[begin + j][1])
                found[key] = max(found.get(key, 0.0), starts[first + i] * ends[first + j])
        if begin + room >= len(ids):
            break
        begin += step
    passages = [(score, *key) for key, score in found.items()]
    if options.get("handle_impossible_answer"):
        passages.append((none, 0, 0))
    return sorted(passages, reverse=True)


class TestQuestionAnswering:
    CONTEXT = "Ada Lovelace was born in London in 1815, wrote about the Analytical Engine and is remembered everywhere."

    @pytest.mark.parametrize(
        "options",
        [
            {}, {"top_k": 5}, {"max_answer_len": 1}, {"max_seq_len": 20, "doc_stride": 4, "top_k": 8},
            {"max_seq_len": 17, "doc_stride": 0, "top_k": 3}, {"handle_impossible_answer": True, "top_k": 40},
        ],
        ids=repr,
    )  # fmt: skip
    def test_equals_a_direct_computation(self, make: Make, options: dict[str, Any]) -> None:
        task = pipeline("question-answering", make("bert", "QuestionAnswering"))
        wanted = slow_answers(task, "Where was Ada born?", self.CONTEXT, options)
        found = task(question="Where was Ada born?", context=self.CONTEXT, align_to_words=False, **options)
        found = found if isinstance(found, list) else [found]
        assert len(found) == min(options.get("top_k", 1), len(wanted))
        for one, (score, start, end) in zip(found, wanted, strict=False):
            assert one["score"] == pytest.approx(score, abs=1e-6)
            assert (one["start"], one["end"], one["answer"]) == (start, end, self.CONTEXT[start:end])

    def test_a_long_context_is_read_to_its_end(self, make: Make) -> None:
        task = pipeline("qa", make("bert", "QuestionAnswering"), align_to_words=False, top_k=3)
        context = " ".join(f"{self.CONTEXT} It goes on, number {number}." for number in range(12))
        wanted = slow_answers(task, "Who?", context, {})
        found = task({"question": "Who?", "context": context})
        assert [one["score"] for one in found] == pytest.approx([score for score, _, _ in wanted[:3]], abs=1e-6)

    def test_align_to_words(self, make: Make) -> None:
        task = pipeline("qa", make("bert", "QuestionAnswering"), top_k=20)
        words = {(0, 10), (11, 22)}
        for one in task(question="What?", context="Antananariv incomprehensi"[:25]):
            assert one["start"] in {0, 12} or one["start"] in {begin for begin, _ in words}, one
            assert one["answer"] in {"Antananariv", "incomprehensi", "Antananariv incomprehensi"}

    def test_lists_of_questions(self, make: Make) -> None:
        task = pipeline("qa", make("bert", "QuestionAnswering"))
        one, two = task(question="Where?", context="Here."), task(question="Who?", context="Ada.")
        same(task([{"question": "Where?", "context": "Here."}, {"question": "Who?", "context": "Ada."}]), [one, two])
        same(task(question=["Where?", "Who?"], context=["Here.", "Ada."]), [one, two])
        same(task(question=["Where?", "Where?"], context="Here."), [one, one])
        same(task("Where?", "Here."), one)


class TestEveryTask:
    def test_what_is_trained_by_a_name_is_run_by_it(self) -> None:
        for name, kind in KINDS.items():
            assert find_task(name)[0].heads == (kind.head,)

    def test_default_task_of_a_model(self, make: Make) -> None:
        assert pipeline(model=make("bert", "MaskedLM")).name == "fill-mask"
        assert pipeline(model=make("bert", "base")).name == "embed"

    def test_pipeline_takes_names_models_and_modules(self, make: Make) -> None:
        folder = make("bert", "MaskedLM")
        by_path = pipeline("fill-mask", folder)("A [MASK].")
        module, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert pipeline("fill-mask", load(folder))("A [MASK].") == by_path
        assert pipeline("fill-mask", module.train(), tokenizer)("A [MASK].") == by_path
        assert pipeline("fill-mask", module, str(folder), device="cpu")("A [MASK].") == by_path
        assert pipeline("fill-mask", folder, tokenizer)("A [MASK].") == by_path
        once = load(folder)
        held = once.module
        assert once.with_tokenizer(tokenizer).module is held  # loaded once
        assert repr(pipeline("fill-mask", module, tokenizer)) == "FillMaskTask('BertForMaskedLM')"

    @pytest.mark.parametrize(
        ("wrong", "error", "said"),
        [
            (None, InputTypeError, "takes text, not NoneType"),
            (b"bytes", InputTypeError, "takes text, not bytes"),
            (3, InputTypeError, "takes text, not int"),
            ("", InputError, "the text is empty"),
            (" \n", InputError, "the text is empty"),
            ("a \ud800 b", InputError, "lone surrogate"),
        ],
    )
    def test_bad_inputs_are_refused(self, make: Make, wrong: Any, error: type[Exception], said: str) -> None:
        task = pipeline("text-classification", make("bert", "SequenceClassification"))
        with pytest.raises(error, match=said):
            task(wrong)
        with pytest.raises(error, match=said):
            task(["fine", wrong])
        found = list(task.stream(["fine", wrong, "fine too"]))
        assert isinstance(found[1], error)
        assert [found[0]["label"], found[2]["label"]] == [one["label"] for one in task(["fine", "fine too"])]

    @pytest.mark.parametrize(
        ("task", "head", "options", "said"),
        [
            ("embed", "base", {"normalize": "no"}, "normalize is 'no'; it must be true, false or null."),
            ("embed", "base", {"prompt": 3}, "prompt is 3; it must be a text or null."),
            ("ner", "TokenClassification", {"stride": "far"}, "stride is 'far'; it must be a whole number or null."),
            ("ner", "TokenClassification", {"ignore_labels": "O"}, "ignore_labels is 'O'; it must be a list of texts."),
            ("qa", "QuestionAnswering", {"handle_impossible_answer": "yes"}, "it must be true or false."),
            ("fill-mask", "MaskedLM", {"targets": 3}, "targets is 3; it must be a text, a list of texts or null."),
            ("fill-mask", "MaskedLM", {"truncation": "maybe"}, "truncation is 'maybe'; it must be true or false."),
            ("fill-mask", "MaskedLM", {"max_length": 0}, "max_length is 0; it must be a whole number of at least 1."),
            ("embed", "base", {"batch_size": -1}, "batch_size is -1; it must be a whole number of at least 1."),
        ],
    )
    def test_options_of_the_wrong_type_are_refused(
        self, make: Make, task: str, head: str, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(SettingError) as caught:
            pipeline(task, make("bert", head), **options)
        assert said in str(caught.value)

    def test_transformers_arguments(self, make: Make) -> None:
        folder = make("bert", "MaskedLM")
        plain = pipeline("fill-mask", folder)
        assert plain.task == "fill-mask"
        assert plain.device == torch.device("cpu")
        for options in ({"device": -1}, {"device": "cpu"}, {"torch_dtype": "auto"}, {"torch_dtype": torch.float32}):
            assert pipeline("fill-mask", folder, **options)("A [MASK].") == plain("A [MASK].")
        long = "A [MASK]. " + "x " * 90
        short = plain(long, max_length=12)
        assert short == plain(long, truncation=True, max_length=12, padding=True) != plain(long, truncation=True)

    def test_a_torch_dataset_gives_an_iterator(self, make: Make) -> None:
        class Dataset:
            """As torch's: a length and items, and no more."""

            def __len__(self) -> int:
                return 3

            def __getitem__(self, at: int) -> str:
                return f"text {at}"

        task = pipeline("text-classification", make("bert", "SequenceClassification"))
        same(list(task(Dataset())), task([f"text {at}" for at in range(3)]))
        same(task([{"text": "text 0", "id": 7}]), task(["text 0"]))

    def test_empty_list_gives_empty_list(self, make: Make) -> None:
        assert pipeline("text-classification", make("bert", "SequenceClassification"))([]) == []
        assert pipeline("embed", make("bert", "base"))([]).shape == (0, 48)

    def test_an_iterator_gives_an_iterator(self, make: Make) -> None:
        task = pipeline("text-classification", make("bert", "SequenceClassification"))
        read = []

        def texts() -> Any:
            for number in range(10_000):
                read.append(number)
                yield f"text {number}"

        found = task(texts())
        assert next(found)["label"].startswith("LABEL_")
        assert len(read) < 100

    @settings(max_examples=examples(10, 40), deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 300), max_size=60),
        most=st.none() | st.integers(1, 9),
        padded=st.booleans(),
        load=st.integers(1, 2000),
    )
    def test_batches_cover_all_rows_within_limits(
        self, lengths: list[int], most: int | None, padded: bool, load: int
    ) -> None:
        found = list(batches(lengths, most, padded, load))
        assert sorted(at for batch in found for at in batch) == list(range(len(lengths)))
        for batch in found:
            longest = max(lengths[at] for at in batch)
            assert padded or {lengths[at] for at in batch} == {longest}
            assert len(batch) <= most if most else len(batch) == 1 or longest * len(batch) <= load
        order = [lengths[at] for batch in found for at in batch]
        assert order == sorted(lengths, reverse=True)

    def test_without_padding_token_rows_of_one_length_share_a_batch(self, make: Make) -> None:
        """Then rows of one length share a batch, and nothing is padded."""
        folder = make("gpt2", "SequenceClassification")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = None
        texts = ["a", "b c", "d", "e f g", "h i"]
        same(pipeline("text-classification", folder, tokenizer)(texts), pipeline("text-classification", folder)(texts))


class TestVectors:
    def test_feature_extraction(self, make: Make) -> None:
        folder = make("bert", "base")
        ours, theirs = pipeline("feature-extraction", folder), reference("feature-extraction", folder)
        same(ours("Hello world"), theirs("Hello world"))
        same(ours(TEXTS), theirs(TEXTS))
        tensor = ours("Hello world", return_tensors=True)
        assert torch.allclose(tensor, theirs("Hello world", return_tensors=True), atol=1e-5)

    def test_feature_extraction_with_every_head(self, make: Make) -> None:
        for head in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"):
            folder = make("bert", head)
            vector = pipeline("embed", folder)("Hello")
            with torch.inference_mode():
                states = transformers.AutoModel.from_pretrained(folder)(
                    **transformers.AutoTokenizer.from_pretrained(folder)("Hello", return_tensors="pt")
                )[0]
            assert np.allclose(vector, states[0].mean(0).numpy(), atol=1e-5)
