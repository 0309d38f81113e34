"""Names to paths, and fetching: what is here is used, what is fetched appears whole or not at all. No network."""

from __future__ import annotations


