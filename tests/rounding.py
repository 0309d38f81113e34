"""What arithmetic guarantees of a number on every processor, whatever the order in which its sums are made.

A sum of n float32 numbers, in any order, is within n · 2⁻²⁴ of its exact value, as a share of the sum of the magnitudes. The
tests' tiny models add up to 256 numbers at a time (the width of their vocabulary), some sixteen times on the way to a score.
"""

from __future__ import annotations

EPSILON = 2.0**-24
SHARE = 256 * 16 * EPSILON  # 2.4e-4
