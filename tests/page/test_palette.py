"""The colors of every picture: text can be read on them, they differ for who sees no green, and stay in order in grey."""

from __future__ import annotations

import math
import re

import pytest

from glassformer.page import palette
from glassformer.page.html import STYLE
from glassformer.page.palette import DARK, LIGHT, STEPS, TERMINAL_NEGATIVE, TERMINAL_POSITIVE, Theme, shade
from tests.colors import JUST_NOTICEABLE, as_deuteranope, contrast, luminance

themes = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
STRENGTHS = [step / 20 for step in range(21)]


@themes
def test_text_can_be_read_on_the_paper_and_on_every_shade(theme: Theme) -> None:
    for text in (theme.ink, theme.faint, theme.mark, theme.good, theme.code):
        assert contrast(text, theme.paper) >= 4.5
    for color in (theme.positive, theme.negative):
        for strength in STRENGTHS:
            assert contrast(theme.ink, shade(theme.paper, color, strength)) >= 4.5
        assert contrast(color, theme.paper) >= 3, "a bar or an edge is seen on the paper"


def test_a_terminals_colors_can_be_read_on_black_and_on_white() -> None:
    for color in (TERMINAL_POSITIVE, TERMINAL_NEGATIVE):
        assert contrast(color, "#000000") >= 4.5
        assert contrast(color, "#ffffff") >= 4.5


@themes
def test_shades_keep_their_order_in_grey(theme: Theme) -> None:
    for color in (theme.positive, theme.negative):
        for strengths in (STRENGTHS, STEPS):
            greys = [luminance(shade(theme.paper, color, strength)) for strength in strengths]
            assert greys == sorted(greys, reverse=theme is LIGHT)


@themes
def test_the_signs_differ_for_a_deuteranope_at_every_step(theme: Theme) -> None:
    for strength in STEPS:
        signs = (as_deuteranope(shade(theme.paper, color, strength)) for color in (theme.positive, theme.negative))
        assert math.dist(*signs) >= 3 * JUST_NOTICEABLE
    assert math.dist(as_deuteranope(TERMINAL_POSITIVE), as_deuteranope(TERMINAL_NEGATIVE)) >= 3 * JUST_NOTICEABLE


def test_a_page_has_no_color_but_those_of_the_palette() -> None:
    assert set(re.findall(r"#[0-9a-f]{3,8}\b", STYLE)) == set(re.findall(r"#[0-9a-f]{6}", palette.page_css()))
    assert not re.search(r"rgba?\(\d", STYLE)
    used = set(re.findall(r"var\(--(\w+)\)", STYLE)) - {"columns"}
    assert used <= palette.page_variables(LIGHT).keys()
