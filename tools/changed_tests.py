"""The test files that a change can reach: those that import a changed file, directly or through others.

    python tools/changed_tests.py [COMMIT]

prints them for what differs from COMMIT (HEAD unless told), new files included. An import counts wherever it stands: in a
function, for type checking, in a call of `import_module`, and in a test also in a string (a module's name, a command, code
that another process runs). A test has what the `conftest.py` of its folders imports, and what the fixtures there import that
it asks for. A file that is no module is read by the modules of its folder, and by those that name it or its top folder.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LAZY = "glassformer"  # whose names are imported from their homes when they are asked for
DOTTED = re.compile(rf"(?:{LAZY}|tests|tools)(?:\.\w+)+\.?")
COMMAND = re.compile(rf"{LAZY}|glass(?: .*)?", re.S)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Mentions:
    """What a piece of Python names: modules or what is in them (where it ends in a dot, all that begin so), and others."""

    imports: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)


def mentions(tree: ast.AST, module: str, without: Iterable[ast.AST] = ()) -> Mentions:
    found, aliases, skipped = Mentions(), {LAZY}, set(map(id, without))
    nodes = [tree]
    for node in nodes:
        children = [child for child in ast.iter_child_nodes(node) if id(child) not in skipped]
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            children = [child for child in children if child is not node.body[0]]
        nodes.extend(children)
        match node:
            case ast.ImportFrom(module=str(home), names=names):
                found.imports.update(f"{home}.{alias.name}" for alias in names)
            case ast.Import(names=names):
                found.imports.update(alias.name for alias in names)
                aliases.update(alias.asname for alias in names if alias.name == LAZY and alias.asname)
            case ast.Constant(value=str(text)):
                found.strings.add(text)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[ast.JoinedStr() as name]
            ):
                found.imports.add(_beginning(name, module))
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(text))):
                found.folders.update(text.split("/"))
            case ast.arg(arg=name):
                found.arguments.add(name)
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    found.imports.update(f"{LAZY}.{node.attr}" for node in attributes if node.value.id in aliases)
    return found


def _beginning(name: ast.JoinedStr, module: str) -> str:
    """What is known of a module's name that is put together."""
    text = ast.unparse(name)[2:-1].replace("{__name__}", module)
    return text.partition("{")[0]


class Repository:
    """The modules of a repository, and what each imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        places = ((root / "src", ""), (root, "tests"), (root, "tools"))
        files = [(base, path) for base, inner in places for path in sorted((base / inner).rglob("*.py"))]
        self.modules = {_dotted(path.relative_to(base)): path for base, path in files}
        trees = {path: ast.parse(path.read_text("utf-8")) for path in self.modules.values()}
        lazy = ast.walk(trees[self.modules[LAZY]])
        taken = [(node.module, alias) for node in lazy if isinstance(node, ast.ImportFrom) for alias in node.names]
        self.exported = {alias.asname or alias.name: f"{home}.{alias.name}" for home, alias in taken}
        self.named, self.folders, self.imports = dict[Path, set[str]](), dict[Path, set[str]](), dict[Path, set[Path]]()
        arguments, fixtures = dict[Path, set[str]](), dict[Path, dict[str, Mentions]]()
        for module, path in self.modules.items():
            own = [node for node in trees[path].body if path.name == "conftest.py" and _is_fixture(node)]
            asked = [node for node in own if not _is_autouse(node)]
            found = mentions(trees[path], module, asked)
            fixtures[path] = {node.name: mentions(node, module) for node in asked}
            self.named[path], self.folders[path] = found.strings, found.folders
            self.imports[path], arguments[path] = self._files(found, path), found.arguments
        for path in self.modules.values():
            if path.is_relative_to(root / "tests"):
                self._add_fixtures(path, arguments[path], fixtures)

    def _add_fixtures(self, path: Path, asked: set[str], fixtures: dict[Path, dict[str, Mentions]]) -> None:
        """What a file has from the conftest.py of its folders."""
        above = [one for folder in path.parents if (one := folder / "conftest.py") in fixtures]
        self.imports[path].update(set(above) - {path})
        ahead, seen = list(asked), set(asked)
        while ahead:
            name = ahead.pop()
            for one in above:
                if fixture := fixtures[one].get(name):
                    self.imports[path] |= self._files(fixture, one)
                    ahead.extend(fixture.arguments - seen)
                    seen |= fixture.arguments

    def _files(self, found: Mentions, path: Path) -> set[Path]:
        names = set(found.imports)
        if path.is_relative_to(self.root / "tests") and path.name != "conftest.py":
            names.update(name for text in found.strings for name in DOTTED.findall(text))
            names.update(f"{LAZY}.__main__" for text in found.strings if COMMAND.fullmatch(text))
        else:
            names.update(text for text in found.strings if text.endswith(".") and DOTTED.fullmatch(text))
        return {file for name in names for file in self._homes(name)} - {path}

    def _homes(self, name: str) -> Iterator[Path]:
        """The files behind a dotted name."""
        if name.endswith("."):
            yield from (path for module, path in self.modules.items() if f"{module}.".startswith(name))
            return
        package, _, attribute = name.partition(".")
        name = self.exported.get(attribute, name) if package == LAZY else name
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        if name and (name != LAZY or attribute):
            yield self.modules[name]

    def reached(self, changed: Iterable[Path]) -> list[Path]:
        """The test files that any of these can reach."""
        importers = defaultdict[Path, set[Path]](set)
        for path, imported in self.imports.items():
            for one in imported:
                importers[one].add(path)
        found, ahead = set[Path](), [path for one in changed for path in self._readers(one)]
        while ahead:
            if (path := ahead.pop()) not in found:
                found.add(path)
                ahead.extend(importers[path])
        return sorted(path for path in found if path.name.startswith("test_") and path.is_relative_to(self.root / "tests"))

    def _readers(self, changed: Path) -> Iterable[Path]:
        """The modules that change with a file: itself, or those that read it."""
        if changed == self.modules[LAZY]:
            return self.imports
        if changed in self.imports:
            return [changed]
        folders = {path.parent for path in self.imports}
        nearest = next((folder for folder in changed.parents if folder in folders), None)
        name, top = changed.name, changed.relative_to(self.root).parts[0]
        return [
            path
            for path in self.imports
            if path.parent == nearest
            or name in self.named[path] | self.folders[path]
            or (top in self.folders[path] and nearest is None)
        ]


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_fixture(node: ast.stmt) -> bool:
    return isinstance(node, Function) and any("fixture" in ast.unparse(one) for one in node.decorator_list)


def _is_autouse(node: Function) -> bool:
    return any("autouse" in ast.unparse(one) for one in node.decorator_list)


def changed_files(root: Path, since: str) -> list[Path]:
    """What differs from a commit in the working tree, and what is new there."""
    listed = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    outputs = (subprocess.run(["git", *one], cwd=root, capture_output=True, text=True, check=True).stdout for one in listed)
    return [root / line for output in outputs for line in output.splitlines()]


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    for test in Repository(here).reached(changed_files(here, *sys.argv[1:2] or ["HEAD"])):
        print(test.relative_to(here).as_posix())
