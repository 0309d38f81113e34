"""When Python looks for garbage: not while paused, rarely in a start, and afterwards as before."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from glassformer.ground.garbage_collection import collection_paused


def test_a_pause_ends_and_nests() -> None:
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_start_collects_rarely_and_what_follows_as_usual() -> None:
    code = "import gc\nfrom glassformer.ground import garbage_collection\nusual = gc.get_threshold()\n"
    code += "garbage_collection.collect_rarely()\nassert gc.get_threshold()[0] > 10 * usual[0]\n"
    code += "garbage_collection.collect_as_usual()\nassert gc.get_threshold() == usual and gc.get_freeze_count() > 0\n"
    subprocess.run([sys.executable, "-c", code], check=True)
