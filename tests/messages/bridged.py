"""Models that transformers computes."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from glassformer import Change, load
from glassformer.ground.errors import CheckpointError, ConfigError, ExecutorError, InputError, SiteError
from tests.engine.bridge import families
from tests.messages.calls import Entry
from tests.see.models import both


@cache
def folder(kind: str) -> Path:
    place = Path(mkdtemp()) / kind
    place.mkdir()
    families.write(place, kind)
    return place


@cache
def model(kind: str = "codegen") -> Any:
    return load(folder(kind))


def other_architecture() -> Any:
    place = Path(mkdtemp()) / "codegen"
    shutil.copytree(folder("codegen"), place)
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps({**config, "architectures": ["CodeGenForImages"]}), "utf-8")
    return load(place)


MESSAGES: dict[str, list[Entry]] = {
    "models that transformers computes": [
        (CheckpointError, lambda: load(folder("codegen"), executor="cpu"),
         "…/codegen is computed by transformers, and executor is for Glassformer's own families. Leave it out."),
        (CheckpointError, lambda: load(folder("codegen"), weights="q8_0"),
         "…/codegen is computed by transformers, and weights is for Glassformer's own families. Leave it out."),
        (ConfigError, other_architecture,
         "config field 'architectures' is 'CodeGenForImages', which has none of the heads that are known here. Take one of "
         "CodeGenForCausalLM, CodeGenModel."),
        (SiteError, lambda: model().changed({"blocks.0.attention.pattern": Change(scale=0)}).chat([5]),
         "'blocks.0.attention.pattern' can be read, and not changed: transformers gives its patterns when they have been "
         "used. Change 'blocks.0.attention.update'."),
        (SiteError, lambda: model().read_ids([5, 6]).attribution(),
         "the parts of a score follow from the equations of each layer, and codegen is no family of Glassformer's own: "
         "transformers computes it, and shows what goes into its modules and what comes out. Its sites: glass look "
         "--sites."),
        (SiteError, lambda: model().read_ids([5, 6]).experts(),
         "the shares of experts follow from the equations of each layer, and codegen is no family of Glassformer's own: "
         "transformers computes it, and shows what goes into its modules and what comes out. Its sites: glass look "
         "--sites."),
        (SiteError, lambda: model("mamba").read_ids([5, 6]).attention(),
         "no layer of …/mamba has a site like 'blocks.0.attention.pattern', and this view shows patterns. Take "
         "reading.at(…) for the sites that there are."),
        (InputError, lambda: model().changed({"blocks.0.residual": Change(scale=0)}).module,
         "…/codegen is computed by transformers, whose module knows nothing of changes: they are made in each text that is "
         "read or written. Take the module of the unchanged model."),
        (ExecutorError, lambda: model("xlnet").chat([5]),
         "a xlnet model writes by reading more than the text, and transformers alone knows how. Use its own generate()."),
        (SiteError, lambda: both("llama").reading().at("module:model.layers"),
         "'module:model.layers' is not in this pass: it does not call its module. Take the module around it."),
    ],
}  # fmt: skip
