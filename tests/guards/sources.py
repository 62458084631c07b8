"""The files that the guards of the structure read, and what they need of each.

A file is parsed once for all guards, on first use, and dropped after they have seen it: all trees
together take half a gigabyte.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# Code that is not a test, and the folders of it that are import roots themselves.
FOLDERS = ("raftkv", "plugins", "bench", "tools")
# Python files of a folder that is in neither list are code, so that no measure misses them.
OTHER_FOLDERS = ("docs", "tests")
IMPORT_ROOTS = ("plugins/", "tools/")
# Code that searches for faults: it is measured as code, wherever it is.
VERIFICATION = ("tests/verification/",)

SUFFIXES = {".py", ".md", ".cfg", ".toml", ".sh", ".lua", ".erl", ""}
SKIPPED_FOLDERS = {"build", "dist", "out", "__pycache__", "htmlcov"}

GIT_VARIABLES = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class Import(NamedTuple):
    """An import statement: an absolute module, and the names that a `from` import takes."""

    module: str
    names: tuple[str, ...]
    line: int

    def targets(self, modules: Iterable[str]) -> Iterator[str]:
        """The modules among `modules` that it imports: submodules, where a name is one."""
        for name in self.names:
            below = f"{self.module}.{name}"
            target = below if below in modules else self.module
            if target in modules:
                yield target
        if not self.names and self.module in modules:
            yield self.module


class Source:
    """A text file of the repository; `path` is relative to the root."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    @functools.cached_property
    def is_code(self) -> bool:
        """Whether it is a Python module outside the tests."""
        if not self.path.endswith(".py") or Path(self.path).name.startswith("test_"):
            return False
        folder = self.path.split("/")[0]
        return folder not in OTHER_FOLDERS or self.path.startswith(VERIFICATION)

    @property
    def area(self) -> str:
        """`testing` for test tools and verification, else the first folder."""
        if "/testing/" in self.path or self.path.startswith(VERIFICATION):
            return "testing"
        return self.path.split("/")[0]

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @functools.cached_property
    def name(self) -> str:
        """The name under which the module is imported."""
        below = self.path
        for root in IMPORT_ROOTS:
            below = below.removeprefix(root)
        return below.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @functools.cached_property
    def statements(self) -> list[ast.AST]:
        """The module and its statements, at any depth, without their expressions."""
        found: list[ast.AST] = [self.tree]
        for node in found:  # the list grows in the loop
            for block in blocks(node):
                found += block
        return found

    @functools.cached_property
    def imports(self) -> list[Import]:
        """All imports, those in functions and under TYPE_CHECKING included."""
        found = []
        for node in self.statements:
            if isinstance(node, ast.Import):
                found += [Import(alias.name, (), node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    parts = self.name.split(".")
                    up = parts[: len(parts) - node.level + self.is_package]
                    module = ".".join([*up, module] if module else up)
                found.append(Import(module, tuple(each.name for each in node.names), node.lineno))
        return found


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Trees have no cycles, and the search for cycles doubles the time of the parser."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    """The blocks of a compound statement, as lists of statements, handlers or cases."""
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if block.__class__ is list and block:
            yield block


def outer_statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a module or class, those under `if`, `try` and the like included."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in blocks(node):
                yield from outer_statements(block)


def name_of(node: ast.expr) -> str:
    """The last name of a base class or decorator: `Plugin` of `plugin.Plugin[Api]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
    return ""


def graph(imports: Mapping[str, Iterable[Import]]) -> dict[str, set[str]]:
    """Which of the modules imports which other ones."""
    return {
        name: {target for each in of_module for target in each.targets(imports)} - {name}
        for name, of_module in imports.items()
    }


def reachable(edges: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    """The nodes of a graph that can be reached from `roots`, the roots included."""
    found: set[str] = set()
    waiting = [root for root in roots if root in edges]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += (each for each in edges[node] if each in edges)
    return found


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_private(name: str) -> bool:
    """Whether it begins with an underscore; special names such as `__len__` do not count."""
    return name.startswith("_") and not re.fullmatch(r"_+|__\w+__", name)


def is_within(name: str, *packages: str) -> bool:
    """Whether a module is one of `packages` or lies below one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def unknown_folders(paths: Iterable[str]) -> list[str]:
    """The outermost folders, or files, with Python in them that no list above names."""
    outermost = {path.split("/")[0] for path in paths if path.endswith(".py")}
    return sorted(outermost - {*FOLDERS, *OTHER_FOLDERS})


def sources(root: Path = ROOT) -> Iterator[Source]:
    """Every text file of the repository, in a stable order."""
    for name in paths(root):
        path = root / name
        if path.suffix in SUFFIXES and path.is_file():
            yield Source(name, path.read_text(encoding="utf-8", errors="replace"))


def paths(root: Path = ROOT) -> list[str]:
    """The files that git tracks or would add; without git, those in folders that are not built."""
    listed = _listed_by_git(root)
    if listed is not None:
        return sorted(listed)
    found = [path.relative_to(root).parts for path in sorted(root.rglob("*"))]
    return ["/".join(parts) for parts in found if not any(map(_is_skipped, parts))]


def _listed_by_git(root: Path) -> list[str] | None:
    """None if `root` is no checkout, or there is no git that reads it."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    # In a hook of git these name the repository of the hook.
    environment = {name: each for name, each in os.environ.items() if name not in GIT_VARIABLES}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        return None  # the files are found without it
    return [name for name in done.stdout.split("\0") if name]


def _is_skipped(part: str) -> bool:
    return part in SKIPPED_FOLDERS or part.startswith(".") or ".egg-info" in part
