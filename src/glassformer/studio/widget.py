"""The studio in a notebook: the same app as the page, in one cell, from a recording and without a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from glassformer.ground.errors import needed_for
from glassformer.studio.saved_page import script

HEIGHT = 720  # pixels


def recording_widget(recording: Mapping[str, Any], slices: Mapping[str, Any], height: int = HEIGHT) -> Any:
    """A widget that shows a recording's data, and in its views the slices that there are."""
    return _widget_class()(recording=recording, slices=slices, height=height)


@cache
def _widget_class() -> Any:
    """Made when it is first asked for: its base is in an extra."""
    with needed_for("a widget"):
        import anywidget
        import traitlets

    class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """A run that can be explored."""

        _esm = script()
        recording = traitlets.Dict().tag(sync=True)
        slices = traitlets.Dict().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)

    return StudioWidget
