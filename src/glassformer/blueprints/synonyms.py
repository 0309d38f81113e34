"""What other libraries call a model's sites, read off its blueprint: a closed list for each model.

TransformerLens has names of its own (https://transformerlensorg.github.io/TransformerLens), the same for every family:
`blocks.3.hook_resid_post`, in short `resid_post.3`. nnsight (https://nnsight.net) and PyTorch's hooks go by the paths of
transformers' modules: `transformer.h.3.mlp.output`, `model.layers.3.self_attn.o_proj.input`.

A name is a synonym only where the numbers are the same. Where they are not, it is refused with the nearest site: a silent
difference would cost somebody a week.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from glassformer.ground.sites import Synonyms
from glassformer.ops.activate import Activate
from glassformer.ops.add import Add, Identity
from glassformer.ops.embed import Embed
from glassformer.ops.gate import Gate
from glassformer.ops.norm import Norm
from glassformer.ops.op import Op
from glassformer.ops.rotate import Rotate

IN_BLOCK: Mapping[str, str] = {  # TransformerLens, after `blocks.N.`
    "hook_resid_mid": "middle",
    "hook_resid_post": "residual",
    "hook_out": "residual",
    "attn.hook_in": "attention.input",
    "attn.hook_v": "attention.value",
    "attn.hook_pattern": "attention.pattern",
    "attn.hook_z": "attention.heads",
    "hook_attn_out": "attention.update",
    "mlp.hook_in": "mlp.input",
    "mlp.hook_post": "mlp.hidden",
    "hook_mlp_out": "mlp.update",
}
OUTSIDE: Mapping[str, str] = {
    "hook_embed": "embedding",
    "ln_final.hook_out": "final",
    "unembed.hook_in": "final",
    "unembed.hook_out": "scores",
    "hook_unembed": "scores",
}
UNROTATED: Mapping[str, str] = {"attn.hook_q": "attention.query", "attn.hook_k": "attention.key"}
ROTATED: Mapping[str, str] = {"attn.hook_rot_q": "attention.query", "attn.hook_rot_k": "attention.key"}
SHORT: Mapping[str, tuple[str, ...]] = {  # as its `get_act_name` spells them, before `.N`
    "hook_resid_pre": ("resid_pre",),
    "hook_resid_mid": ("resid_mid",),
    "hook_resid_post": ("resid_post",),
    "attn.hook_q": ("q", "query"),
    "attn.hook_k": ("k", "key"),
    "attn.hook_rot_q": ("rot_q",),
    "attn.hook_rot_k": ("rot_k",),
    "attn.hook_v": ("v", "value"),
    "attn.hook_pattern": ("pattern", "attn"),
    "attn.hook_attn_scores": ("attn_scores", "attn_logits"),
    "attn.hook_z": ("z",),
    "attn.hook_result": ("result",),
    "hook_attn_out": ("attn_out",),
    "mlp.hook_pre": ("pre", "mlp_pre"),
    "mlp.hook_post": ("post", "mlp_post"),
    "hook_mlp_out": ("mlp_out",),
}
ABSENT: Mapping[str, str] = {  # of TransformerLens, after `blocks.N.`
    "attn.hook_attn_scores": "scores before the softmax are no site: 'attention.pattern' has the weights after it.",
    "attn.hook_result": "each head's share of the update is no site: 'attention.heads' is what comes before the mixing.",
    "mlp.hook_pre": "neurons before the activation are no site: 'mlp.hidden' has them after it.",
    "mlp.hook_pre_linear": "the half of a gated MLP that is not activated is no site: 'mlp.hidden' is the product of both.",
    "ln1.hook_normalized": "a norm before its gain is no site: 'attention.input' comes after it.",
    "ln1.hook_scale": "what a norm divides by is no site: 'attention.input' is the result.",
    "ln2.hook_normalized": "a norm before its gain is no site: 'mlp.input' comes after it.",
    "ln2.hook_scale": "what a norm divides by is no site: 'mlp.input' is the result.",
}
ABSENT_OUTSIDE: Mapping[str, str] = {
    "hook_pos_embed": "positions by themselves are no site: 'embedding' has them added.",
    "ln_final.hook_normalized": "the last norm before its gain is no site: 'final' comes after it.",
    "ln_final.hook_scale": "what the last norm divides by is no site: 'final' is the result.",
}
ABSENT_ROTATED: Mapping[str, str] = {
    "attn.hook_q": "queries before RoPE are no site: 'attention.query' comes after it, as hook_rot_q does.",
    "attn.hook_k": "keys before RoPE are no site: 'attention.key' comes after it, as hook_rot_k does.",
}
RESULT_OF: Mapping[str, tuple[str, tuple[type[Op], ...]]] = {  # a name means our site if that is a result of such an op
    "hook_resid_mid": ("middle", (Add,)),  # and no norm of the sum, as in BERT
    "hook_attn_out": ("middle", (Add,)),
    "mlp.hook_post": ("mlp.hidden", (Activate, Gate)),  # and not the experts'
    "hook_embed": ("embedding", (Embed,)),  # and not with positions
    "ln_final.hook_out": ("final", (Norm,)),
    "unembed.hook_in": ("final", (Norm,)),
}


def synonyms(ops: Sequence[Op], blocks: int) -> Synonyms:
    """Every other name of this model's sites, and why some of TransformerLens' names have none."""
    hooks = _Hooks(ops, blocks)
    return Synonyms({**_module_paths(ops), **dict(hooks.names())}, dict(hooks.absent()))


# TransformerLens ----------------------------------------------------------------------------------------------------


class _Hooks:
    """TransformerLens' names in one model."""

    def __init__(self, ops: Sequence[Op], blocks: int) -> None:
        self.blocks = blocks
        self.ops = {op.site: op for op in ops if op.site}
        self.sites = {*self.ops, *(site for op in ops for site in op.inner_sites)}
        self.rotated = any(isinstance(op, Rotate) for op in ops)

    def names(self) -> Iterator[tuple[str, str]]:
        return ((name, site) for name, site, same in self._table() if same)

    def absent(self) -> Iterator[tuple[str, str]]:
        for index in range(self.blocks):
            for hook, reason in {**ABSENT, **(ABSENT_ROTATED if self.rotated else {})}.items():
                yield from _spellings(index, hook, reason)
        yield from ABSENT_OUTSIDE.items()
        for name, site, same in self._table():
            if not same:
                yield name, f"in this family it is another value: the nearest site is {site!r}."

    def _table(self) -> Iterator[tuple[str, str, bool]]:
        """Every name with its site, and whether its numbers are the same in this model."""
        hooks = {**IN_BLOCK, **(ROTATED if self.rotated else UNROTATED)}
        for index in range(self.blocks):
            before = f"blocks.{index - 1}.residual" if index else "embedding"
            scope = f"blocks.{index}."
            for hook, site in (("hook_resid_pre", before), ("hook_in", before), *((h, scope + s) for h, s in hooks.items())):
                for name, _ in _spellings(index, hook, site):
                    yield name, site, self._is_same(hook, site, scope)
        for hook, site in OUTSIDE.items():
            yield hook, site, self._is_same(hook, site)

    def _is_same(self, hook: str, site: str, scope: str = "") -> bool:
        if hook in RESULT_OF:
            other, kinds = RESULT_OF[hook]
            if not isinstance(self.ops.get(scope + other), kinds):
                return False
        return site in self.sites and (site != "scores" or self.ops[site].is_plain)


def _spellings(index: int, hook: str, meaning: str) -> Iterator[tuple[str, str]]:
    yield f"blocks.{index}.{hook}", meaning
    for short in SHORT.get(hook, ()):
        yield f"{short}.{index}", meaning


# Paths of modules ---------------------------------------------------------------------------------------------------


def _module_paths(ops: Sequence[Op]) -> dict[str, str]:
    """`MODULE.output` and `MODULE.input` with their sites; a module that runs twice has none."""
    readers: dict[int, set[int]] = {}
    for index, op in enumerate(ops):
        for source in op.inputs:
            readers.setdefault(source, set()).add(index)
    paths: dict[str, str] = {}
    runs = Counter[str]()
    for group in _groups(ops):
        block = min((ops[index].module for index in group), key=len)
        for module in _modules([ops[index].module for index in group], block):
            runs[module] += 1
            inside = [index for index in group if f"{ops[index].module}.".startswith(f"{module}.")]
            deepest = max(ops[index].module.count(".") for index in inside)
            if module != block and deepest > module.count(".") + 1:
                continue  # sums have no module of their own: one may be inside of it too
            first, last = ops[inside[0]], ops[inside[-1]]
            summed = last.options.get("summed", False) and module != last.module
            if last.is_plain and not summed and (site := last.read_site):
                paths[f"{module}.output"] = site
            for source in (*first.inputs[:1], *(inside[:1] if isinstance(first, Identity) else ())):
                # what others read too would be changed for them as well
                if first.is_plain and readers[source] <= set(inside) and (site := ops[source].read_site):
                    paths[f"{module}.input"] = site
                    break
    return {name: site for name, site in paths.items() if runs[name.rpartition(".")[0]] == 1}


def _groups(ops: Sequence[Op]) -> Iterable[list[int]]:
    """The numbers of each block's ops, and of each op outside of blocks."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for index, op in enumerate(ops):
        if op.module:
            key = (op.stack, -1, index) if op.block is None else (op.stack, op.block, 0)
            groups.setdefault(key, []).append(index)
    return groups.values()


def _modules(modules: Iterable[str], block: str) -> list[str]:
    """The modules of a block's ops and those directly around them."""
    around = (parent for module in modules for parent in (module, module.rpartition(".")[0]))
    return [module for module in dict.fromkeys(around) if f"{module}.".startswith(f"{block}.")]
