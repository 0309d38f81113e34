"""Tasks over models that write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from glassformer import AutoTokenizer, load, pipeline
from glassformer.ground.errors import InputError
from tests.parity import reference
from tests.tasks.conftest import Make
from tests.text.test_languages import from_json, nllb

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES: dict[str, dict[str, Any]] = {
    "t5": {"decoder_start_token_id": 0, "eos_token_id": 102, "num_decoder_layers": 2},  # as many as the encoder has: what
    "bart": {"decoder_start_token_id": 50256, "decoder_layers": 2},  # the reference's cache can hold
}
BRACKETS = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def gpt2(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny writer with a chat template."""
    folder = tmp_path_factory.mktemp("writer")
    shutil.copytree(make("gpt2", "CausalLM"), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(BRACKETS)
    return folder


class TestTextGeneration:
    OPTIONS = {"max_new_tokens": 8, "do_sample": False}

    @pytest.fixture
    def both(self, gpt2: Path) -> tuple[Any, Any]:
        return pipeline("text-generation", gpt2), transformers.pipeline("text-generation", model=str(gpt2), device="cpu")

    @pytest.mark.parametrize("options", [{}, {"return_full_text": False}, {"prefix": "Well, "}], ids=repr)
    def test_texts_equal_transformers(self, both: tuple[Any, Any], options: dict[str, Any]) -> None:
        ours, theirs = both
        texts = ["Once upon a time", "Hi", "a much longer beginning than the others have, by far"]
        assert ours("Once upon a time", **self.OPTIONS, **options) == theirs("Once upon a time", **self.OPTIONS, **options)
        assert ours(texts, **self.OPTIONS, **options) == theirs(texts, **self.OPTIONS, **options)
        assert ours(texts, **self.OPTIONS, **options, batch_size=1) == ours(texts, **self.OPTIONS, **options)

    @pytest.mark.parametrize("options", [{}, {"return_full_text": False}, {"continue_final_message": False}], ids=repr)
    def test_conversations_equal_transformers(self, both: tuple[Any, Any], options: dict[str, Any]) -> None:
        ours, theirs = both
        asks = [{"role": "user", "content": "Hi!"}]
        begun = [*asks, {"role": "assistant", "content": "Hel"}]
        for chat in (asks, begun, [asks, begun]):
            assert ours(chat, **self.OPTIONS, **options) == theirs(chat, **self.OPTIONS, **options)

    def test_sampling_is_reproducible(self, both: tuple[Any, Any]) -> None:
        ours, _ = both
        options = {"max_new_tokens": 8, "do_sample": True, "seed": 5}
        assert ours("Hi", **options) == ours("Hi", **options) == ours(["Hi", "Hello there"], **options)[0]

    def test_call_settings_do_not_stay(self, gpt2: Path) -> None:
        task = pipeline("text-generation", gpt2, max_new_tokens=3, return_full_text=False)
        assert task("Hi") == task("Hi", max_new_tokens=3)
        assert len(task("Hi", max_new_tokens=9)[0]["generated_text"]) > len(task("Hi")[0]["generated_text"])
        assert load(gpt2).chat("Hi", raw=True, max_new_tokens=3) == task("Hi")[0]["generated_text"]

    def test_refusals(self, both: tuple[Any, Any]) -> None:
        ours, _ = both
        assert ours("Hi", num_beams=1, use_cache=True, **self.OPTIONS) == ours("Hi", **self.OPTIONS)
        ours.tokenizer.chat_template = "{{ '' }}"
        with pytest.raises(InputError, match="no tokens"):
            ours([{"role": "user", "content": "Hi!"}])

    def test_truncation_of_long_prompts(self, both: tuple[Any, Any]) -> None:
        ours, _ = both
        found = ours(" a" * 300, truncation=True, max_new_tokens=8, return_full_text=False)
        assert found == ours(" a" * 248, max_new_tokens=8, return_full_text=False)
        chat = [{"role": "user", "content": " a" * 300}]
        assert ours(chat, truncation=True, max_new_tokens=8)[0]["generated_text"][-1]["role"] == "assistant"

    def test_smollm2_generates(self, smollm2: Path) -> None:
        task = pipeline("text-generation")
        assert task("The capital of France is", max_new_tokens=3, return_full_text=False)[0]["generated_text"].startswith(
            " Paris"
        )
        answer = task([{"role": "user", "content": "What is the capital of France?"}], max_new_tokens=12)
        assert "Paris" in answer[0]["generated_text"][-1]["content"]


class TestTextToText:
    @pytest.fixture(params=["t5", "bart"])
    def folder(self, request: pytest.FixtureRequest, make: Make) -> Path:
        return make(request.param, "Seq2SeqLM", **SHAPES[request.param])

    def test_text2text_equals_generate(self, folder: Path) -> None:
        task = pipeline("text2text-generation", folder, max_new_tokens=7)
        texts = ["How old are you?", "Hi", "I have been here for quite a while now."]
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        wanted = []
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            written = model.generate(ids, max_new_tokens=7, do_sample=False, num_beams=1)
            wanted.append([{"generated_text": tokenizer.decode(written[0, 1:], skip_special_tokens=True)}])
        assert task(texts) == wanted
        assert task(texts[0]) == wanted[0]

    def test_long_sources_are_refused_or_cut(self, make: Make) -> None:
        task = pipeline("text2text-generation", make("bart", "Seq2SeqLM", **SHAPES["bart"]), max_new_tokens=5)
        with pytest.raises(InputError, match="101 tokens"):
            task("hello " * 100)
        assert task("hello " * 100, truncation=True)[0]["generated_text"]

    @pytest.mark.parametrize(
        ("family", "write_tokenizer"), [("m2m_100", nllb), ("mbart", lambda f: from_json(f, "MBart50Tokenizer"))]
    )
    def test_translations_into_one_of_many_languages(self, family: str, write_tokenizer: Any, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        model = reference.write(tmp_path, family, "seq2seq", decoder_start_token_id=2, forced_eos_token_id=None)
        codes = list(AutoTokenizer.from_pretrained(tmp_path).lang_code_to_id)
        task = pipeline("translation", tmp_path, max_new_tokens=7)
        for source, target in ((codes[0], codes[1]), (codes[2], codes[0])):
            theirs.src_lang = source
            ids = torch.tensor([theirs("the dog")["input_ids"]])
            first = theirs.convert_tokens_to_ids(target)
            options: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, "num_beams": 1, "use_cache": False}
            written = model.generate(ids, forced_bos_token_id=first, **options)
            wanted = [{"translation_text": theirs.decode(written[0, 1:], skip_special_tokens=True)}]
            assert written[0, 1] == first
            assert task("the dog", src_lang=source, tgt_lang=target) == wanted
            assert pipeline(f"translation_{source}_to_{target}", tmp_path, max_new_tokens=7)("the dog") == wanted
            run = load(tmp_path).watch("the dog", max_new_tokens=3, forced_tokens={0: target})
            assert run.steps[0].id == first
        with pytest.raises(InputError, match="many languages: pass"):
            task("the dog")
        with pytest.raises(InputError, match="'xx'"):
            task("the dog", tgt_lang="xx")
        with pytest.raises(InputError, match="'xx'"):
            task("the dog", src_lang="xx", tgt_lang=codes[1])

    def test_task_prefixes(self, make: Make, tmp_path: Path) -> None:
        source = make("t5", "Seq2SeqLM", **SHAPES["t5"])
        plain = pipeline("text2text-generation", source, max_new_tokens=5)
        said = plain("translate English to German: Hi")[0]["generated_text"]
        assert pipeline("translation_en_to_de", source, max_new_tokens=5)("Hi") == [{"translation_text": said}]
        task = pipeline("translation", source, max_new_tokens=5)
        assert task("Hi", src_lang="en", tgt_lang="de") == [{"translation_text": said}]
        assert task("Hi", prefix="translate English to German: ") == [{"translation_text": said}]
        short = plain("summarize: Hi")[0]["generated_text"]
        assert pipeline("summarization", source, max_new_tokens=5)("Hi") == [{"summary_text": short}]
        folder = tmp_path / "own"
        shutil.copytree(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config["task_specific_params"] = {
            "translation_en_to_xx": {"prefix": "in X: "},
            "summarization": {"prefix": "tl;dr "},
        }
        (folder / "config.json").write_text(json.dumps(config))
        own = plain("in X: Hi")[0]["generated_text"]
        assert pipeline("translation_en_to_xx", folder, max_new_tokens=5)("Hi") == [{"translation_text": own}]
        short = plain("tl;dr Hi")[0]["generated_text"]
        assert pipeline("summarisation", folder, max_new_tokens=5)("Hi") == [{"summary_text": short}]

    def test_other_families_need_no_prefix(self, make: Make) -> None:
        folder = make("bart", "Seq2SeqLM", **SHAPES["bart"])
        said = pipeline("text2text", folder, max_new_tokens=5)("Hi")[0]["generated_text"]
        assert pipeline("translation", folder, max_new_tokens=5)("Hi") == [{"translation_text": said}]
        assert pipeline("translation_en_to_fr", folder, max_new_tokens=5)("Hi") == [{"translation_text": said}]
        assert pipeline("summarization", folder, max_new_tokens=5)("Hi") == [{"summary_text": said}]
