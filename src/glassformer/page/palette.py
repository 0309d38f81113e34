"""The colors of every picture, stated once: pages, the terminal and the studio take theirs from here.

What is positive is teal and what is negative orange, wherever a picture has both: people who see no red or no green tell
these apart, and each sign also has a mark (a minus, a side, a dashed line). A shade grows from the paper to the full color,
so its order stays in grey; text in ink can be read on all of it. tests/page/test_palette.py holds the contrasts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """Colors on one ground, each as #rrggbb."""

    ink: str
    paper: str
    faint: str  # what is less important
    line: str
    mark: str  # a special token, a hit
    good: str  # what was chosen
    code: str
    positive: str  # the shade of +1: text can be read on it, and it can be told from the paper
    negative: str  # the shade of -1


LIGHT = Theme(
    ink="#1c1e21", paper="#ffffff", faint="#5d6673", line="#dfe3e8", mark="#a21caf", good="#15803d", code="#0e7490",
    positive="#0e96b1", negative="#d46d05",
)  # fmt: skip
DARK = Theme(
    ink="#e6e9ee", paper="#111317", faint="#98a2b0", line="#2a2f37", mark="#e879f9", good="#4ade80", code="#67e8f9",
    positive="#0b7387", negative="#a35304",
)  # fmt: skip
TERMINAL_POSITIVE, TERMINAL_NEGATIVE = "#0c8198", "#b65e05"  # can be read on white and on black: a terminal may be either
STEPS = (0.2, 0.45, 0.7, 1.0)  # of the studio's shades


def channels(color: str) -> tuple[int, int, int]:
    """
    >>> channels("#0e96b1")
    (14, 150, 177)
    """
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


def shade(paper: str, color: str, strength: float) -> str:
    """A color so strong on a paper.

    >>> shade("#ffffff", "#0e96b1", 0.5)
    '#86cad8'
    """
    pairs = zip(channels(paper), channels(color), strict=True)
    return "#" + "".join(f"{int(ground + (full - ground) * strength):02x}" for ground, full in pairs)


def page_variables(theme: Theme) -> dict[str, str]:
    """The variables of a page's style; the signs as channels, which a shade adds its strength to."""
    named = {name: getattr(theme, name) for name in ("ink", "paper", "faint", "line", "mark", "good", "code")}
    return named | {sign: ",".join(map(str, channels(getattr(theme, sign)))) for sign in ("positive", "negative")}


def studio_variables(theme: Theme) -> dict[str, str]:
    """The variables of the studio's style that other pictures have too; the signs in steps."""
    named = {name: getattr(theme, name) for name in ("ink", "paper", "faint", "line")}
    return named | {
        f"{sign}-{step}": shade(theme.paper, getattr(theme, sign), strength)
        for sign in ("positive", "negative")
        for step, strength in enumerate(STEPS, 1)
    }


def css_rule(selector: str, variables: dict[str, str]) -> str:
    """A style's rule that sets some variables."""
    lines = "".join(f"  --{name}: {value};\n" for name, value in variables.items())
    return f"{selector} {{\n{lines}}}\n"


def page_css() -> str:
    """The colors of a page, in light and in dark."""
    dark = css_rule(".glass", page_variables(DARK))
    return css_rule(".glass", page_variables(LIGHT)) + f"@media screen and (prefers-color-scheme:dark) {{\n{dark}}}\n"


def studio_css() -> str:
    """The colors of the studio, in light and in dark: its file studio/src/palette.css."""
    head = "/* Written by tools/studio_palette.py from glassformer/page/palette.py: change it there. */\n"
    dark = ':root[data-theme="dark"],\n:host([data-theme="dark"])'
    return head + css_rule(":root,\n:host", studio_variables(LIGHT)) + css_rule(dark, studio_variables(DARK))
