"""Rules: small pure functions from the candidates in play to the candidates left in play.

A rule is made once of its settings (`top_k(50)`) and then called at each step with the candidates and what stands before
them. It writes to neither. Which rules there are, and in which order they come, is in `decoding/order.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from glassformer.decoding.past import Past
from glassformer.decoding.shortlist import Shortlist

Rule: TypeAlias = Callable[[Shortlist, Past], Shortlist]
