"""Finds imports between the files of a package that break the order of its layers or form a cycle."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """An import of one module of the package by another.

    Args:
        source: the importing module, dotted.
        target: the imported module, dotted.
        line: line of the import.
        starts: whether the target is started as a new process instead of imported.
    """

    source: str
    target: str
    line: int
    starts: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.line} -> {self.target}"


def read_imports(package: Path) -> list[Import]:
    """Returns all imports between the package's files, at any place in a file.

    Modules named in strings count as well: `"package.module.Name"`, as in tables of lazily loaded objects;
    `f"package.folder.{name}"`, which may be any module of the folder; and the word after `"-m"` in a command.
    """
    modules = {_module(file, package.parent): file for file in sorted(package.rglob("*.py"))}
    found = set()
    for source, file in modules.items():
        place = source if file.name == "__init__.py" else source.rpartition(".")[0]
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        uses = [*((name, line, False) for name, line in _statements(tree, place)), *_strings(tree, package.name)]
        found |= {Import(source, to, line, starts) for name, line, starts in uses for to in _resolve(name, modules)}
    return sorted((each for each in found if each.target != each.source), key=str)


def _module(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(tree: ast.Module, place: str) -> Iterator[tuple[str, int]]:
    """Yields the full names in import statements and their lines; `place` is the package of relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = place.split(".")[: len(place.split(".")) - node.level + 1] if node.level else []
            module = [node.module] if node.module else []
            yield from ((".".join([*outer, *module, alias.name]), node.lineno) for alias in node.names)


def _strings(tree: ast.Module, package: str) -> Iterator[tuple[str, int, bool]]:
    """Yields dotted names in strings, their lines, and whether they follow `"-m"`; `folder.*` for an f-string."""
    started = set()
    for node in ast.walk(tree):  # from the outside to the inside
        match node:
            case ast.List(words) | ast.Tuple(words) | ast.Call(args=words):
                pairs = itertools.pairwise(words)
                started |= {word for option, word in pairs if isinstance(option, ast.Constant) and option.value == "-m"}
            case ast.Constant(str(name)) if node in started and name == package:
                yield f"{package}.__main__", node.lineno, True
            case ast.Constant(str(name)) if re.fullmatch(rf"{package}(\.\w+)+", name):
                yield name, node.lineno, node in started
            case ast.JoinedStr([ast.Constant(str(start)), *_]) if start.startswith(f"{package}."):
                yield f"{start.rpartition('.')[0]}.*", node.lineno, False


def _resolve(name: str, modules: Iterable[str]) -> list[str]:
    """Returns the modules that a name refers to: its longest prefix that is a module, or all modules of a folder."""
    folder, _, last = name.rpartition(".")
    if last == "*":
        return [module for module in modules if module.rpartition(".")[0] == folder]
    parts = name.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return [next(candidate for candidate in candidates if candidate in modules)] if parts[0] in modules else []


def upward(imports: Iterable[Import], layers: Sequence[str]) -> list[str]:
    """Returns the imports of a higher layer by a lower one; a layer is a folder or file directly in the package.

    Raises:
        ValueError: if a module does not belong to any of the layers.
    """
    return [str(each) for each in imports if _rank(each.target, layers) > _rank(each.source, layers)]


def _rank(module: str, layers: Sequence[str]) -> int:
    return layers.index(module.split(".")[1] if "." in module else "__init__")


def circles(imports: Iterable[Import]) -> list[str]:
    """Returns import cycles: one among all files, and one in each folder among its files and subfolders.

    Starting a module as a new process is not an import, so it cannot close a cycle.
    """
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for each in imports:
        if each.starts:
            continue
        graphs["files"][each.source].add(each.target)
        source, target = (name.split(".") for name in (each.source, each.target))
        depth = next((i for i, (a, b) in enumerate(zip(source, target, strict=False)) if a != b), None)
        if depth is not None:
            graphs[".".join(source[:depth])][source[depth]].add(target[depth])
    return [f"{name}: {circle}" for name, graph in graphs.items() if (circle := _circle(graph))]


def _circle(graph: dict[str, set[str]]) -> str | None:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " <- ".join(error.args[1])
    return None
