"""Colors as eyes see them: their light, their contrast, and what somebody without green cones makes of them."""

from __future__ import annotations

JUST_NOTICEABLE = 2.3  # difference of two colours in CIELAB


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
