"""The studio's built files, as the server gives them to a browser."""

from __future__ import annotations

import gzip
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import httpx
import jsonschema
import pytest
from fastapi import FastAPI

from glassformer.page.palette import studio_css
from glassformer.see.recording import Recording
from glassformer.see.schema import schema
from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.registry import ModelSource, Registry
from glassformer.studio import MEDIA_TYPES, static_files
from tests.colors import JUST_NOTICEABLE, as_deuteranope, contrast, luminance
from tests.serving.conftest import KEY, ask

SOURCES = Path(__file__).parents[2] / "studio"
FIRST_SCREEN = 90_000  # bytes of script and style, compressed
VIEW = 30_000  # likewise
SHIPPED_RUN = 60_000  # bytes


def no_model() -> None:
    raise AssertionError("no model is needed for the studio's files")


@pytest.fixture
def app() -> FastAPI:
    registry = Registry([ModelSource("tiny", no_model)])  # type: ignore[arg-type]
    return create_app(registry, security=Security(api_key=KEY))


def get(app: FastAPI, path: str) -> httpx.Response:
    return ask(app, "GET", path)


def test_the_page_comes_without_a_key_and_under_a_strict_policy(app: FastAPI) -> None:
    page = get(app, "/")
    assert page.status_code == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-cache"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", [path for path in static_files() if path != "index.html"])
def test_each_file_has_its_type_and_is_kept(app: FastAPI, path: str) -> None:
    response = get(app, f"/{path}")
    assert response.content == static_files()[path].content
    assert response.headers["Content-Type"] == MEDIA_TYPES[Path(path).suffix]
    assert response.headers["Cache-Control"].endswith("immutable")
    assert re.search(r"-[\w-]{8}\.", path), "a name without a hash would be kept though its content changed"


def test_the_page_asks_for_its_own_files_alone() -> None:
    page = static_files()["index.html"].content.decode()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links
    assert all(link.removeprefix("./") in static_files() for link in links)
    assert not re.search(r"<script[^>]*>[^<]", page), "an inline script, which the policy forbids"
    assert "<style" not in page
    assert "style=" not in page


@pytest.mark.parametrize(
    "name",
    [
        "none.js",
        "..%2findex.html",
        "%2e%2e/index.html",
        "..%2f..%2f__init__.py",
        "%00",
        "/etc/passwd",
        "..%5c..%5c__init__.py",
    ],
)
def test_no_path_leads_out_of_the_build(app: FastAPI, name: str) -> None:
    response = ask(app, "GET", f"/studio/{name}", headers={"Authorization": f"Bearer {KEY}"})
    assert response.status_code == 404
    assert "import" not in response.text


def test_a_missing_file_is_explained(app: FastAPI) -> None:
    assert get(app, "/studio/none.js").json()["error"]["message"] == (
        "the studio has no such file. Load the page again: it may be of another version."
    )


def test_the_first_screen_and_each_further_view_are_within_their_budgets() -> None:
    compressed = {path: len(gzip.compress(file.content)) for path, file in static_files().items()}
    page = static_files()["index.html"].content.decode()
    first = {"index.html", *re.findall(r'(?:src|href)="\./([^"]*)"', page)}
    assert sum(compressed[path] for path in first) <= FIRST_SCREEN
    views = compressed.keys() - first
    assert all(compressed[path] <= VIEW for path in views if path.endswith((".js", ".css")))


def test_the_shipped_run_is_a_recording_of_the_size_that_is_allowed() -> None:
    (path,) = (path for path in static_files() if path.endswith(".json"))
    content = static_files()[path].content
    assert content == (SOURCES / "shipped-run.json").read_bytes()
    assert len(content) <= SHIPPED_RUN
    run = json.loads(content)
    jsonschema.validate(run, schema(Recording))
    assert "how are you?" in run["prompt"]
    assert run["steps"][-1]["finish"] == "eos"
    assert all(len(step["candidates"]["ids"]) >= 64 for step in run["steps"])


def test_components_show_text_as_text() -> None:
    sources = [*SOURCES.glob("src/**/*.svelte"), *SOURCES.glob("src/**/*.ts")]
    assert sources
    for path in sources:
        assert not re.search(r"@html|innerHTML|\beval\(", path.read_text("utf-8")), path.name


def colors_of(theme: str) -> dict[str, str]:
    """The variables of a theme, by name."""
    files = ((SOURCES / "src" / name).read_text("utf-8") for name in ("palette.css", "app.css"))
    blocks = (file.split("}")[["light", "dark"].index(theme)] for file in files)
    return {name: color for block in blocks for name, color in re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)}


def test_the_studios_palette_is_that_of_all_pictures() -> None:
    assert (SOURCES / "src" / "palette.css").read_text("utf-8") == studio_css()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(theme: str) -> None:
    colors = colors_of(theme)
    pairs = [(step, ink) for step in colors if (ink := re.sub(r"-(\d+)$", r"-ink-\1", step)) in colors and ink != step]
    assert len(pairs) >= 5
    pairs += [(ground, text) for ground in ("paper", "panel") for text in ("ink", "faint", "accent", "error")]
    pairs += [(f"{sign}-{step}", "ink") for sign in ("positive", "negative") for step in (1, 2, 3, 4)]
    for ground, text in [*pairs, ("bar-track", "faint")]:
        assert contrast(colors[ground], colors[text]) >= 4.5, (ground, text)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_steps_of_a_scale_keep_their_order_without_colour(theme: str) -> None:
    scales: dict[str, list[float]] = {}
    for name, color in colors_of(theme).items():
        if step := re.fullmatch(r"(surprise|attention|positive|negative)-\d+", name):
            scales.setdefault(step[1], []).append(luminance(color))
    assert scales
    for greys in scales.values():
        assert greys == sorted(greys, reverse=theme == "light"), "more is darker on light paper, brighter on dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_that_mean_something_differ_for_a_deuteranope(theme: str) -> None:
    """What else means something is no colour: A and B are letters, solid and dashed; what was chosen has a mark."""
    colors = colors_of(theme)
    scales: dict[str, list[str]] = {}
    for name in colors:
        if step := re.fullmatch(r"(surprise|attention|positive|negative)-\d+", name):
            scales.setdefault(step[1], []).append(name)
    assert len(scales) == 4
    pairs = [pair for steps in scales.values() for pair in pairwise(steps)]
    pairs += list(zip(scales["positive"], scales["negative"], strict=True))
    pairs += [("paper", "positive-1"), ("paper", "negative-1"), ("bar", "bar-track"), ("bar", "paper")]
    pairs += [("masked", "attention-0"), ("masked", "attention-1"), ("error", "ink"), ("error", "faint"), ("accent", "ink")]
    for first, second in pairs:
        difference = math.dist(as_deuteranope(colors[first]), as_deuteranope(colors[second]))
        assert difference >= 3 * JUST_NOTICEABLE, (first, second)


def test_the_tests_that_the_documentation_names_exist() -> None:
    tests = Path(__file__).parent
    documentation = (tests.parents[1] / "docs" / "studio.md").read_text("utf-8")
    names = re.findall(r"`(test_\w+\.py)::(test_\w+)`", documentation)
    assert len(names) >= 10
    for file, name in names:
        assert f"\ndef {name}(" in (tests / file).read_text("utf-8"), name
