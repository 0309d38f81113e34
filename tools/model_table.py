"""Writes docs/models.md: what runs each family, what can be seen in it, its GGUF and its heads, all read off the families.

`python tools/model_table.py` writes it; a test says when it is old. Tiny configs stand for the families; what was found in
families without a file here is found in tiny models of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.parity.configs import TINY

from glassformer.blueprints import Blueprint, Head, blueprint, model_types, module_for, read_config, title_of
from glassformer.checkpoint.gguf_names import TABLES, tables_of
from glassformer.checkpoint.gguf_tensors import NEXTN
from glassformer.engine.gpu.device import blueprint_reason
from glassformer.engine.lowering import Lowering
from glassformer.ground.errors import ConfigError, ExecutorError
from glassformer.quantize.gguf_metadata import ARCHITECTURES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
FOUND = "\n## Found by the bridge\n"
SHAPES: Mapping[Head, str] = {"causal": "decoder", "seq2seq": "encoder-decoder", "masked": "encoder"}
GROUPS = {  # what a family's sites are called together, by one of them
    "attention.pattern": "attention", "attention.state": "state", "recurrent.state": "state beside attention",
    "cross.pattern": "cross-attention", "mlp.hidden": "MLP", "mlp.experts": "experts",
}  # fmt: skip
UPDATES = {
    "attention.update": "attention's update",
    "recurrent.update": "the state's",
    "cross.update": "cross-attention's",
    "mlp.update": "the MLP's",
}
INTRODUCTION = """# Models

Written by `tools/model_table.py` from the families themselves. A family is one file in `src/glassformer/blueprints/`; any
other model type runs through [the bridge](#any-other-model).

Every family has the stream (`embedding`, `blocks.N.residual`, `final`), attention's and the MLP's updates, and `scores`;
"attention" in the table means queries, keys, values, patterns and heads, "MLP" its neurons, "experts" the router's choice
and "state" what a recurrent layer keeps. `glass look --sites -m MODEL` lists a model's own. PyTorch (`executor="plain"`)
runs all, and there every module is a site by its own name: `module:model.layers.3.mlp.down_proj`.

"further tokens" among the heads: where a checkpoint brings a head for further tokens, it is read, saved, and
[drafts](decoding.md) (`assistant_model="mtp"`); with "(GGUF too)", GGUF files keep it as well.

| family | `model_type` | shape | CPU engine | GPU engine | sites | GGUF | heads |
|---|---|---|---|---|---|---|---|
"""
BRIDGE = """
## Any other model

With `pip install 'glassformer[transformers]'`, a folder or a hub id of any other model type that transformers has for
texts loads, too: `glass.load` says in a line that transformers computes it, and goes on. No code of a checkpoint is ever
run; a model type that needs some is refused. A field of a config that transformers cannot take is an error that names it.
Generating, beams, sampling, batches, the server, `glass look`, the lens, patching of the stream, steering and explanations
work as with any family; the Auto classes are for families with a file, and `glass.load(…).module` is transformers' own
model.

What is where in it is found by running it once on a few tokens. The blocks are those modules that the stream goes through
one by one. What a module gives is an update if the stream plus it is what the block goes on with. So a site is there only
where the numbers say that it is one. Patterns are those of transformers' eager attention, in a pass of their own and only
when they are asked for; they can be read, and not changed. Every module is a site by its own name, to read and to change:

```python
import glassformer as glass

model = glass.load("state-spaces/mamba-130m-hf")
out_proj = model.read("how are you?").at("module:backbone.layers.3.mixer.out_proj")
without = model.changed({"module:backbone.layers.3.mixer": glass.Change(scale=0)})
print(without.chat("how are you?"))
```

Its value is what the module gives for each token, (tokens, numbers). A module that is called several times in a pass can
be changed, and not read. A view that needs more than these sites says what it lacks: attribution, circuits and gradients
need the equations of a family's file.

Each row is computed by itself, so that nothing depends on what runs beside it. It goes on from the model's own cache
where that gives the same scores as reading at once, which is tried when the model is loaded; otherwise, and after a
rewind of what a cache cannot forget, the row is read again. `weights`, `cache`, `activations`, `adapter` and
`tensor_parallel` are for families with a file.
"""
TABLE = """
What was found in tiny models of some families. "reads anew": its cache does not give what reading at once gives.

| `model_type` | head | a text goes on | the stream | updates | patterns |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The page's text but for what the bridge finds."""
    rows = [family_row(kind) for kind in model_types() if kind != "scratch"]
    return INTRODUCTION + "\n".join(rows) + "\n" + BRIDGE


def family_row(kind: str) -> str:
    module = module_for(kind)
    described, config = _blueprint(kind)
    heads: tuple[Head, ...] = next(value.heads for value in vars(module).values() if type(value).__name__ == "Family")
    gpu = "yes" if config.default_head != "masked" and blueprint_reason(described) is None else "no"
    shape = SHAPES[config.default_head]
    columns = (
        title_of(kind), f"`{kind}`", shape, _cpu(described, config), gpu, _sites(described),
        ", ".join(f"`{name}`" for name in _architectures(kind)) or "–", ", ".join(("none", *heads, *_drafts(kind, config))),
    )  # fmt: skip
    return f"| {' | '.join(columns)} |"


def bridge_row(kind: str, model: Any) -> str:
    """What the bridge found in a model."""
    anatomy = model.opened.model.anatomy
    sites = [one.site for one in anatomy.sites]
    stream = sum(site.endswith(".residual") for site in sites)
    updates = [name for part, name in UPDATES.items() if any(site.endswith(part) for site in sites)]
    patterns = sum(site.endswith(".pattern") for site in sites)
    goes_on = "reads anew" if anatomy.continues == "never" and model.writes else anatomy.continues if model.writes else "–"
    columns = (
        f"`{kind}`", model.head, goes_on, f"{stream} blocks" if stream else "–", ", ".join(updates) or "–",
        f"of {patterns} layers" if patterns else "–",
    )  # fmt: skip
    return f"| {' | '.join(columns)} |"


def bridge_rows() -> Iterable[str]:
    """A row for each family that the bridge is tested with."""
    from tests.engine.bridge import families

    import glassformer

    for kind in sorted({**families.DECODERS, **families.ENCODERS, **families.PAIRS, **families.WITHOUT_STREAM}):
        with TemporaryDirectory() as folder:
            families.write(Path(folder), kind)
            yield bridge_row(kind, glassformer.load(folder))


def _blueprint(kind: str) -> tuple[Blueprint, Any]:
    """Of the family's usual config, or of a tiny one."""
    for fields in (module_for(kind).Config.default_fields, TINY.get(kind, {})):
        try:
            config = read_config({**fields, "model_type": kind})
            return blueprint(config), config
        except ConfigError as error:
            reason = error
    raise reason


def _cpu(described: Blueprint, config: Any) -> str:
    """Whether the CPU engine's program can be written."""
    try:
        for stack in ("encoder.", "") if described.encoder_blocks else ("",):
            Lowering(described, stack, frozenset(), frozenset(), config).lower()
    except ExecutorError:
        return "no"
    return "yes"


def _sites(described: Blueprint) -> str:
    ends = {site.split(".", 2)[-1] for site in described.sites if site.startswith("blocks.")}
    return ", ".join(name for end, name in GROUPS.items() if end in ends)


def _architectures(kind: str) -> list[str]:
    """What the GGUF files of a family call it, in those that are read or written."""
    read = [name for name in TABLES if kind in [table.model_type for table in tables_of(name)]]
    return read or [name for model_type, name in ARCHITECTURES.items() if model_type == kind]


def _drafts(kind: str, config: Any) -> list[str]:
    """Whether the family has heads for further tokens, and its GGUF files, too."""
    if config.draft_fields is None:
        return []
    architecture = ARCHITECTURES.get(kind)
    tables = tables_of(architecture) if architecture is not None else []
    in_gguf = any(NEXTN.items() <= table.names.items() for table in tables)
    return ["further tokens (GGUF too)" if in_gguf else "further tokens"]


def write() -> None:
    PAGE.write_text(page() + FOUND + TABLE + "\n".join(bridge_rows()) + "\n", "utf-8")


if __name__ == "__main__":
    write()
