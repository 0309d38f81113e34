"""Compare, Tokens, Tasks and Parameters in a real browser, held against what the server and Python say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry
from glassformer.studio import saved_page
from tests.serving.conftest import serving
from tests.studio.api import post
from tests.studio.browser import OpenPage, StudioPage, visible
from tests.studio.conftest import LIMITS
from tests.studio.test_static import SOURCES


def show_view(page: StudioPage, address: str, fragment: str) -> Locator:
    """Open a view, which has the conversation's place."""
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#{fragment}")
    return page.page.locator("section.left")


def bars(view: Locator, name: str, number: int = 0) -> dict[str, float]:
    """A list's bars, in percent, by their labels."""
    shown: dict[str, float] = (
        view.get_by_role("list", name=name)
        .nth(number)
        .locator("li:has(.bar)")
        .evaluate_all(
            "rows => Object.fromEntries(rows.map(row => [row.querySelector('.label').textContent,"
            " parseFloat(row.querySelector('.bar').style.width)]))"
        )
    )
    return shown


# Compare -------------------------------------------------------------------------------------------------------------------


def test_two_answers_are_compared_token_by_token(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_role("slider").first.fill("0")
    page.ask("hi")
    page.wait_until_written()
    page.page.get_by_role("button", name="Compare with…").click()
    view = page.page.locator("section.left")
    view.get_by_role("button", name="Write B").click()
    expect(view.locator(".verdict")).to_have_text("A and B are the same, token for token.")

    view.get_by_label("What B has switched off").select_option("block")
    view.get_by_label("block", exact=True).fill("1")
    view.get_by_label("block", exact=True).blur()
    expect(view.locator("code")).to_have_text('model.watch(prompt, change={"blocks.1.*.update": Change(scale=0)})')
    view.get_by_role("button", name="Write B").click()
    expect(view.locator(".verdict")).to_contain_text("A and B part at token")

    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    shared: dict[str, Any] = {"model": "tiny", "prompt": prompt, "raw": True, "max_tokens": 6, "temperature": 0}
    runs = [post(address, "record", **shared, change=change) for change in ({}, {"blocks.1.*.update": {"scale": 0}})]
    for letter, run in zip("AB", runs, strict=True):
        tokens = view.get_by_role("group", name=f"Tokens of {letter}").get_by_role("button")
        assert tokens.all_text_contents() == [visible(step["token"]["text"]) for step in run["steps"]]
    ids = [[step["token"]["id"] for step in run["steps"]] for run in runs]
    parting = next(number for number, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])
    expect(view.locator(".verdict")).to_contain_text(f"part at token {parting + 1}")
    first = view.get_by_role("group", name="Tokens of A").get_by_role("button").nth(parting)
    expect(first).to_have_attribute("aria-pressed", "true")
    expect(first).to_have_attribute("aria-label", re.compile("only in A$"))
    row = view.get_by_role("row", name=re.compile("^A ")).last
    expect(row).to_contain_text("%")  # the model's own probability: that a run is greedy removes no candidate
    expect(row).not_to_contain_text("removed by")
    assert page.value("new URLSearchParams(location.hash.slice(1)).get('token')") == str(parting)


def test_a_link_restores_what_is_switched_off(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=compare&part=head&layer=1&head=2")
    expect(view.get_by_label("What B has switched off")).to_have_value("head")
    expect(view.get_by_label("block", exact=True)).to_have_value("1")
    expect(view.get_by_label("head", exact=True)).to_have_value("2")
    view.get_by_label("B's prompt").select_option("chat")
    expect(view.get_by_label("B's message")).to_have_value("how are you?")
    expect(view.get_by_label("thinks first")).to_be_visible()


def test_an_encoder_decoders_cross_attention_can_be_switched_off(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=compare")
    view.get_by_label("B's model").select_option("pair")
    view.get_by_label("What B has switched off").select_option("cross")
    expect(view.locator("code")).to_have_text('model.watch(prompt, change={"blocks.0.cross.update": Change(scale=0)})')
    view.get_by_label("B's prompt").select_option("raw")
    view.get_by_role("button", name="Write B").click()
    expect(view.get_by_role("region", name="Answer B")).to_contain_text("without cross-attention of block 0")


def test_b_is_written_with_a_temperature_that_was_just_typed(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=compare")
    view.get_by_label("B's model").select_option("tiny")
    view.get_by_label("B's temperature").fill("0")
    view.get_by_role("button", name="Write B").click()  # whose pressing ends the typing, and must not move the button away
    expect(view.get_by_label("B's seed")).to_be_disabled()
    expect(view.get_by_role("region", name="Answer B")).to_contain_text("the best token each time")


# Tokens --------------------------------------------------------------------------------------------------------------------


def test_a_text_is_cut_as_one_types_by_several_tokenizers(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=tokens")
    text = "a 🦜 <img src=x>"
    view.get_by_label("A text to cut into tokens").press_sequentially("x")
    view.get_by_label("A text to cut into tokens").fill(text)
    view.get_by_role("group", name="Tokenizers side by side").get_by_role("button", name="encoder").click()
    for model in ("tiny", "encoder"):
        tokens = post(address, "tokens", model=model, text=text)["tokens"]
        boxes = view.get_by_role("region", name=f"Tokens of {model}").get_by_role("group").get_by_role("button")
        shown = [token["bytes"] if "\\x" in token["text"] else visible(token["text"]) for token in tokens]
        expect(boxes.locator(".text")).to_have_text(shown)
        expect(boxes.locator(".id")).to_have_text([str(token["id"]) for token in tokens])
        assert boxes.locator("xpath=self::*[contains(@class, 'special')]").count() == sum(
            token["special"] for token in tokens
        )
    assert page.page.locator("img").count() == 0
    view.get_by_role("region", name="Tokens of tiny").get_by_role("group").get_by_role("button").nth(1).focus()
    linked = view.get_by_role("region", name="Tokens of encoder").locator("button.linked .text")
    expect(linked).to_have_text(["[UNK]"])
    page.page.keyboard.press("Home")
    expect(linked).to_have_text(["·a"])
    assert "text=a+" in page.value("location.hash")


# Tasks ---------------------------------------------------------------------------------------------------------------------


def run_task(view: Locator, model: str, task: str) -> None:
    view.get_by_label("The model that does the task").select_option(model)
    view.get_by_role("group", name="Tasks").get_by_role("button", name=task).click()
    view.get_by_role("button", name="Run", exact=True).click()


def test_tasks_show_the_numbers_that_the_server_gives(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=tasks")
    run_task(view, "labels", "Classify a text")
    expect(view.get_by_role("article")).to_have_count(3)
    texts = ["I love this film!", "The plot made no sense at all.", "It was fine, I suppose."]
    outputs = post(address, "task/text-classification", model="labels", inputs=texts, options={"top_k": None})["outputs"]
    for number, output in enumerate(outputs):
        expected = {label["label"]: pytest.approx(100 * label["score"], abs=0.01) for label in output["output"]}
        assert bars(view, "Labels", number) == expected

    run_task(view, "gaps", "Fill a gap")
    expect(view.get_by_role("article")).to_have_count(2)
    inputs = ["Paris is the [MASK] of France."]
    (output,) = post(address, "task/fill-mask", model="gaps", inputs=inputs, options={"top_k": 6})["outputs"]
    assert list(bars(view, "Words for gap 1").values()) == pytest.approx(
        [100 * word["score"] for word in output["output"]], abs=0.01
    )

    run_task(view, "answers", "Answer from a passage")
    expect(view.get_by_role("article")).to_have_count(2)
    passage = view.get_by_label("The passage").input_value()
    inputs = [{"question": "Where does Ada live?", "context": passage}]
    (output,) = post(address, "task/question-answering", model="answers", inputs=inputs, options={"top_k": 3})["outputs"]
    expect(view.locator("mark").first).to_contain_text(output["output"][0]["answer"])

    run_task(view, "entities", "Find entities")
    expect(view.get_by_role("article")).to_have_count(2)
    inputs, options = ["Ada Lovelace lived in London."], {"aggregation_strategy": "simple"}
    (output,) = post(address, "task/token-classification", model="entities", inputs=inputs, options=options)["outputs"]
    marks = view.get_by_role("article").first.locator("mark")
    assert [mark.split()[0] for mark in marks.all_text_contents()] == [
        "Ada Lovelace lived in London."[entity["start"] : entity["end"]].split()[0] for entity in output["output"]
    ]
    assert page.value("location.hash").endswith("part=token-classification")


def test_similarity_and_an_alignment(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=tasks")
    run_task(view, "encoder", "Measure similarity")
    pairs = [["How old are you?", other] for other in ("What is your age?", "How are you?", "My phone is broken.")]
    outputs = post(address, "task/similarity", model="encoder", inputs=pairs)["outputs"]
    expected = sorted((round(output["output"], 2) for output in outputs), reverse=True)
    values = view.get_by_role("list", name="Similarities").locator(".value")
    expect(values).to_have_count(3)
    assert [float(text.replace("−", "-")) for text in values.all_text_contents()] == pytest.approx(expected, abs=0.011)

    run_task(view, "pair", "Rewrite a text")
    view.get_by_role("button", name="Show what each token attended to").first.click()
    source = "translate English to German: How old are you?"
    run = post(address, "record", model="pair", prompt=source, raw=True, max_tokens=48, temperature=0)
    prompt, answer = ([token["id"] for token in run["prompt_tokens"]], [step["token"]["id"] for step in run["steps"]])
    data = post(address, "attention", model="pair", prompt=prompt, answer_ids=answer, kind="cross")
    written = view.get_by_role("group", name="Written tokens").get_by_role("button")
    expect(written).to_have_count(len(data["queries"]) - 1)
    written.nth(1).focus()
    keys = view.get_by_role("list", name="Attention over the text").get_by_role("listitem")
    shares = [key.get_attribute("aria-label") or "" for key in keys.all()]
    assert [float(re.findall(r"[\d.]+", share)[-1]) for share in shares] == pytest.approx(
        [100 * weight for weight in data["weights"][1]], rel=0.06, abs=0.06
    )


def test_a_task_that_a_model_is_not_for_names_one_that_is(open_page: OpenPage, address: str) -> None:
    page = open_page()
    view = show_view(page, address, "view=tasks&part=fill-mask")
    expect(view).to_contain_text(
        "needs a model with a masked language modeling head, and this one has a language modeling head"
    )
    expect(view.locator("pre")).to_have_text("glass studio -m bert-base-uncased")


# Parameters ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("pair", "decoder.block.1.layer.0.SelfAttention.q.weight"),
        pytest.param("tiny", "model.layers.1.self_attn.q_proj.weight", marks=pytest.mark.sweep),
        pytest.param("encoder", "encoder.layer.1.attention.self.query.weight", marks=pytest.mark.sweep),
    ],
)
def test_parameters_unfold_to_a_tensors_histogram(open_page: OpenPage, address: str, model: str, tensor: str) -> None:
    everything = post(address, "parameters", model=model)
    page = open_page()
    view = show_view(page, address, "view=parameters")
    view.get_by_label("The model whose parameters are shown").select_option(model)
    expect(view.locator(".total")).to_have_text(
        re.compile(f"^{everything['elements']:,} parameters in {everything['tensors']} ")
    )
    names = [name.split(":")[0] for name in json.loads(rows_of(view))]
    unfolded = next(name for name in names if tensor.startswith(name) and not tensor.endswith(name))
    while unfolded != tensor:
        row = view.locator(f'button[data-row][aria-label^="{unfolded}:"]')
        if row.get_attribute("aria-expanded") == "false":
            row.focus()
            page.page.keyboard.press("ArrowRight")
        names = [name.split(":")[0] for name in json.loads(rows_of(view))]
        unfolded = max((name for name in names if f"{tensor}.".startswith(f"{name}.")), key=len)
    view.locator(f'button[data-row][aria-label^="{tensor}:"]').click()
    (listed,) = leaves(post(address, "parameters", model=model, only=tensor, histogram=True)["tree"])
    titles = view.get_by_role("img", name=re.compile("values of")).locator("title")
    expect(titles).to_have_count(21)
    counts = [int(title.split(" values")[0].replace(",", "")) for title in titles.all_text_contents()]
    assert counts == listed["statistics"]["histogram"]["counts"]
    assert page.value("new URLSearchParams(location.hash.slice(1)).get('part')") == tensor


def rows_of(view: Locator) -> str:
    return str(view.locator(".table").evaluate(
        "table => JSON.stringify([...table.querySelectorAll('[data-row]')].map(row => row.ariaLabel))"
    ))  # fmt: skip


def leaves(module: dict[str, Any]) -> list[dict[str, Any]]:
    return [*module["parameters"], *(tensor for inner in module["modules"] for tensor in leaves(inner))]


def test_packed_weights_have_histograms_too(open_page: OpenPage, smollm2: Path) -> None:
    source = ModelSource("smollm2", lambda: glassformer.load(smollm2))
    page = open_page()
    with serving(create_app(Registry([source], LIMITS), LIMITS)) as address:
        view = show_view(page, address, "view=parameters&part=model.layers.0.self_attn.k_proj.weight")
        expect(view.get_by_role("img", name=re.compile("110,592 values"))).to_be_visible()
        expect(view).to_contain_text("Q4_1, 5.0 bits each")


# Models that only read -----------------------------------------------------------------------------------------------------


def test_a_server_with_an_encoder_alone_says_so_and_offers_views(
    open_page: OpenPage, sources: tuple[ModelSource, ...]
) -> None:
    page = open_page(390, dark=True)
    with serving(create_app(Registry(sources[1:], LIMITS), LIMITS)) as address:
        page.show(address)
        note = page.page.get_by_role("note")
        expect(note).to_contain_text("encoder is an encoder (bert): it reads text and writes none.")
        assert page.page.get_by_role("textbox").count() == 0
        note.get_by_role("button", name="Tasks").click()
        expect(page.page.locator("section.left")).to_contain_text("bert, an encoder without a head")
        assert page.value("document.documentElement.scrollWidth") == 390


def test_a_saved_page_says_what_gives_the_rest(open_page: OpenPage, tmp_path: Path) -> None:
    page, path = open_page(), tmp_path / "run.html"
    path.write_text(saved_page(json.loads((SOURCES / "shipped-run.json").read_text("utf-8"))), "utf-8")
    lines = {
        "compare": "print(glassformer.compare(run, other))",
        "tokens": 'glassformer.load("smollm2").tokens(',
        "tasks": 'glassformer.pipeline("similarity", "smollm2")\nprint(task("How old are you?", "What is your age?"))',
        "parameters": 'glassformer.load("smollm2").parameters()',
    }
    for name, line in lines.items():
        page.show_file(path, f"view={name}")
        expect(page.page.locator("section.left pre")).to_contain_text(line)
