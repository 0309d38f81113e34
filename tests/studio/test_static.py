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

from glassformer.page.html import STYLE
from glassformer.see.recording import Recording
from glassformer.see.schema import schema
from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.registry import ModelSource, Registry
from glassformer.studio import MEDIA_TYPES, static_files
from tests.serving.conftest import KEY, ask

SOURCES = Path(__file__).parents[2] / "studio"
FIRST_SCREEN = 90_000  # bytes of script and style, compressed
VIEW = 30_000  # likewise
SHIPPED_RUN = 60_000  # bytes
JUST_NOTICEABLE = 2.3  # difference of two colours in CIELAB


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


def linear(color: str) -> tuple[float, float, float]:
    """A colour's red, green and blue in proportion to their light."""
    channels = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return red, green, blue


def luminance(color: str) -> float:
    red, green, blue = linear(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def colors_of(theme: str) -> dict[str, str]:
    """The variables of a theme, by name."""
    block = (SOURCES / "src" / "app.css").read_text("utf-8").split("}")[["light", "dark"].index(theme)]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(theme: str) -> None:
    colors = colors_of(theme)
    pairs = [(step, ink) for step in colors if (ink := re.sub(r"-(\d+)$", r"-ink-\1", step)) in colors and ink != step]
    assert len(pairs) >= 5
    pairs += [(ground, text) for ground in ("paper", "panel") for text in ("ink", "faint", "accent", "error")]
    pairs += [(f"{sign}-{step}", "ink") for sign in ("positive", "negative") for step in (1, 2, 3)]
    pairs += [("positive-4", "signed-ink-4"), ("negative-4", "signed-ink-4")]
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


def as_deuteranope(color: str) -> tuple[float, float, float]:
    """A colour as somebody without green cones sees it, in CIELAB (Machado, Oliveira and Fernandes 2009, severity 1)."""
    red, green, blue = linear(color)
    seen = (
        0.367322 * red + 0.860646 * green - 0.227968 * blue,
        0.280085 * red + 0.672501 * green + 0.047413 * blue,
        -0.011820 * red + 0.042940 * green + 0.968881 * blue,
    )
    red, green, blue = (min(1.0, max(0.0, channel)) for channel in seen)
    white_shares = (  # X, Y and Z, each of its value for white
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (share ** (1 / 3) if share > 0.008856 else 7.787 * share + 16 / 116 for share in white_shares)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_without_script_have_the_same_colours(theme: str) -> None:
    block = STYLE.split("}")[["light", "dark"].index(theme)]
    shared = {name: color for name, color in re.findall(r"--(\w+): (#[0-9a-f]{6});", block) if name in colors_of(theme)}
    assert shared.keys() == {"ink", "paper", "faint", "line"}
    assert shared == {name: colors_of(theme)[name] for name in shared}


def test_the_tests_that_the_documentation_names_exist() -> None:
    tests = Path(__file__).parent
    documentation = (tests.parents[1] / "docs" / "studio.md").read_text("utf-8")
    names = re.findall(r"`(test_\w+\.py)::(test_\w+)`", documentation)
    assert len(names) >= 10
    for file, name in names:
        assert f"\ndef {name}(" in (tests / file).read_text("utf-8"), name
