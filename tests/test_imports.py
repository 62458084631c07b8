"""The dependency rule of docs/architecture.md, read from the source of every module.

    cli, server -> node -> {plugin, rpc} -> {state, raft, replicant}

Imports inside functions and under TYPE_CHECKING count too: a type that is needed is a dependency.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import raftkv
import raftkv.testing

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "raftkv", *(p for p in sorted((ROOT / "plugins").iterdir()) if p.is_dir()))

# Time, chance, streams, threads, processes and files: runtime.py alone may touch them.
WORLD = frozenset(
    "concurrent ctypes datetime fcntl glob io mmap multiprocessing pathlib pty random secrets "
    "select selectors shutil signal socket socketserver ssl subprocess tempfile threading time "
    "uuid _thread".split()
)
# What `os` offers without asking the system anything.
OS_PURE = {"fspath", "PathLike", "path"}
OS_PATH_PURE = {"join", "dirname", "basename", "isabs", "split", "splitext", "normpath"}

# The modules of raft/ that only decide; they know no engine, no loop and no file.
PURE_RAFT = {"election", "append", "progress", "membership", "changing", "epoch", "reads"}


class Import(NamedTuple):
    """`module` is absolute; `names` are what a `from` import takes out of it."""

    module: str
    names: tuple[str, ...]
    line: int

    @property
    def targets(self) -> tuple[str, ...]:
        """Everything this import may bind: the module and, for `from`, each name under it."""
        return (self.module, *(f"{self.module}.{name}" for name in self.names))


def module_name(path: Path) -> str:
    base = ROOT / "plugins" if "plugins" in path.relative_to(ROOT).parts else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    paths = (path for package in PACKAGES for path in sorted(package.rglob("*.py")))
    return {module_name(path): path for path in paths}


MODULES = modules()


def imports(source: str, name: str, *, is_package: bool) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, (), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                up = name.split(".")[: len(name.split(".")) - node.level + is_package]
                module = ".".join([*up, module] if module else up)
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno)


@functools.cache
def imports_of(name: str) -> list[Import]:
    path = MODULES[name]
    source = path.read_text(encoding="utf-8")
    return list(imports(source, name, is_package=path.name == "__init__.py"))


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def crossing(names: list[str], *forbidden: str) -> list[str]:
    """The imports of modules `names` that reach one of `forbidden`."""
    return [
        f"{name}:{found.line} imports {target}"
        for name in names
        for found in imports_of(name)
        for target in found.targets
        if within(target, *forbidden)
    ]


def select(*packages: str) -> list[str]:
    chosen = [name for name in MODULES if within(name, *packages)]
    assert chosen, f"no module in {packages}: the rule would check nothing"
    return chosen


# The layers --------------------------------------------------------------------------------------

UPPER = ("raftkv.cli", "raftkv.server", "raftkv.node", "raftkv.client", "raftkv.blocking")


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("raftkv.raft", ("raftkv.state", "raftkv.kv", "raftkv.plugin", "raftkv.rpc", *UPPER)),
        ("raftkv.replicant", ("raftkv.state", "raftkv.kv", "raftkv.plugin", "raftkv.rpc", *UPPER)),
        ("raftkv.state", ("raftkv.raft", "raftkv.replicant", "raftkv.kv", "raftkv.rpc", *UPPER)),
        ("raftkv.state", ("raftkv.runtime", "raftkv.config", "raftkv.testing", "asyncio")),
        ("raftkv.state", ("os", "sys", "logging", "pysyncobj", "numpy")),
        ("raftkv.plugin", ("raftkv.raft", "raftkv.replicant", *UPPER)),
        ("raftkv.rpc", ("raftkv.state", "raftkv.kv", *UPPER)),
        ("raftkv.node", ("raftkv.cli", "raftkv.client", "raftkv.blocking")),
        ("raftkv.server", ("raftkv.cli", "raftkv.raft", "raftkv.replicant", "raftkv.testing")),
        ("raftkv.errors", ("raftkv.raft", "raftkv.state", "raftkv.config", "raftkv.runtime")),
        ("raftkv.runtime", ("raftkv.raft", "raftkv.state", "raftkv.config", "raftkv.plugin")),
        ("raftkv.config", ("raftkv.raft", "raftkv.state", "raftkv.runtime", "raftkv.plugin")),
    ],
)
def test_arrows_point_down_only(package: str, forbidden: tuple[str, ...]) -> None:
    found = crossing(select(package), *forbidden)
    assert not found, "\n".join(found)


# What a plugin offers for tests of itself and of programs that embed it: like `raftkv.testing`, it
# drives simulated worlds, and nothing that a node runs may import it.
KITS = sorted({f"{name.split('.')[0]}.testing" for name in MODULES if not within(name, "raftkv")})


def test_only_tests_and_users_import_the_testing_package() -> None:
    others = [n for n in MODULES if not within(n, "raftkv.testing", *KITS)]
    found = crossing(others, "raftkv.testing", *KITS)
    assert not found, "\n".join(found)
    # The plugins build on raftkv, never the other way round.
    found = crossing(select("raftkv.testing"), *KITS)
    assert not found, "\n".join(found)


def test_the_pure_modules_of_raft_know_no_engine_loop_or_file() -> None:
    chosen = [name for name in select("raftkv.raft") if name.rpartition(".")[2] in PURE_RAFT]
    assert chosen, "no pure module of raft/ was found"
    found = crossing(chosen, "pysyncobj", "asyncio", "raftkv.runtime", "raftkv.raft.engine", "os")
    assert not found, "\n".join(found)


# The package imports late ------------------------------------------------------------------------


def test_the_lazy_names_of_the_package_are_those_that_a_type_checker_sees() -> None:
    source = MODULES["raftkv"].read_text(encoding="utf-8")
    seen = {
        name: found.module
        for found in imports(source, "raftkv", is_package=True)
        for name in found.names
        if within(found.module, "raftkv")
    }
    assert set(raftkv.__all__) == set(seen)
    for name, module in seen.items():
        assert getattr(raftkv, name) is getattr(importlib.import_module(module), name)
        assert name in dir(raftkv)
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = raftkv.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", ["raftkv.kv", "raftkv.state"])
def test_a_package_that_imports_late_gives_what_a_type_checker_sees(package: str) -> None:
    found: Any = importlib.import_module(package)
    source = MODULES[package].read_text(encoding="utf-8")
    seen = {
        name: each.module
        for each in imports(source, package, is_package=True)
        for name in each.names
        if within(each.module, package)
    }
    assert set(found.__all__) == set(seen)
    late = {name: f"{package}.{home}" for name, home in found._HOMES.items()}
    assert late.items() <= seen.items()
    for name, module in seen.items():
        assert getattr(found, name) is getattr(importlib.import_module(module), name)
        assert name in dir(found)
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = found.colour


@pytest.mark.parametrize("package", ["raftkv_conf", "raftkv_lcr"])
def test_a_name_that_a_plugins_package_lacks_is_named_with_the_package(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        importlib.import_module(package).Nothing  # noqa: B018


# In a process for each: whichever module is the first, as another process loads a plugin's class.
FIRST = """
import importlib, sys
package, first = sys.argv[1:]
importlib.import_module(f"{package}.{first}")
found, public = sys.modules[package], importlib.import_module(f"{package}.public")
assert all(getattr(found, name) is getattr(public, name) for name in public.__all__)
assert not hasattr(found, "colour")
"""


@pytest.mark.parametrize("first", ["plugin", "cli"])
@pytest.mark.parametrize("package", [path.name for path in PACKAGES[1:]])
def test_a_plugins_package_gives_its_names_whichever_module_is_first(
    package: str, first: str
) -> None:
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    command = [sys.executable, "-c", FIRST, package, first]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_names_of_the_testing_package_are_there() -> None:
    for name in raftkv.testing.__all__:
        assert getattr(raftkv.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = raftkv.testing.colour  # type: ignore[attr-defined]


def test_the_package_alone_imports_no_engine() -> None:
    # By the first name: the finder of an editable installation has raftkv in its name, too.
    ours = "[m for m in sys.modules if m.split('.')[0] == 'raftkv']"
    check = f"import sys, raftkv.errors; print({ours})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "['raftkv', 'raftkv.errors']\n"


# Plugins see public names only -------------------------------------------------------------------

PUBLIC = {"raftkv", "raftkv.errors", "raftkv.late_names", "raftkv.plugin", "raftkv.validation"}
# The keyspace's commands, which a plugin that `uses` it proposes and calls; nothing below it.
KEYSPACE = "raftkv.kv"
# What a plugin's commands are made of; a node does not import them.
COMMANDS = "raftkv.cli.kit"
# What a plugin's own testing package is made of; a node does not import that either (see KITS).
TESTING = "raftkv.testing"


def is_command(name: str) -> bool:
    """`cli`, and the modules that it is divided into, `cli_...`."""
    return name.rpartition(".")[2].partition("_")[0] == "cli"


def private_of(package: str, found: Import) -> list[str]:
    """`from raftkv import kv` would bind a module that is not a public name."""
    return [n for n in found.names if n.startswith("_") or f"{package}.{n}" in MODULES]


def test_kv_and_plugins_import_public_names_only() -> None:
    found = []
    for name in [n for n in MODULES if within(n, "raftkv.kv") or not within(n, "raftkv")]:
        own = "raftkv.kv" if within(name, "raftkv.kv") else name.split(".")[0]
        for each in imports_of(name):
            if not within(each.module, "raftkv") or within(each.module, own):
                continue
            private = private_of("raftkv", each)
            if each.module == COMMANDS and is_command(name):
                continue
            if within(each.module, TESTING) and within(name, *KITS):
                continue
            if each.module == KEYSPACE and not private_of(KEYSPACE, each):
                continue
            if each.module not in PUBLIC or (each.module == "raftkv" and private):
                found.append(f"{name}:{each.line} imports {each.module} {' '.join(each.names)}")
    assert not found, "\n".join(found)


def test_a_plugin_imports_another_only_by_its_public_name() -> None:
    plugins = {name.split(".")[0] for name in MODULES} - {"raftkv"}
    found = [
        f"{name}:{each.line} imports {each.module}"
        for name in MODULES
        for each in imports_of(name)
        if each.module.split(".")[0] in plugins - {name.split(".")[0]} and "." in each.module
    ]
    assert not found, "\n".join(found)


# The world comes through runtime.py --------------------------------------------------------------

ENGINE = ("raftkv.raft", "raftkv.replicant", "raftkv.state", "raftkv.kv")
ENGINE_MODULES = [
    name
    for name in MODULES
    if within(name, *ENGINE, "raftkv.node", "raftkv.rpc", "raftkv.plugin")
    or not within(name, "raftkv")
]


def world_use(source: str, name: str, *, is_package: bool = False) -> list[str]:
    """Imports of world modules, use of `os` beyond pure path arithmetic, calls of open()."""
    found = [
        f"{each.line}: imports {each.module}"
        for each in imports(source, name, is_package=is_package)
        if each.module.split(".")[0] in WORLD or (each.module == "os" and each.names)
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"open", "input", "print"}:
                found.append(f"{node.lineno}: calls {node.func.id}()")
        elif isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            if whole.startswith("os.path."):
                impure = whole.split(".")[2] not in OS_PATH_PURE
            else:
                impure = whole.startswith("os.") and whole.split(".")[1] not in OS_PURE
            if impure:
                found.append(f"{node.lineno}: uses {whole}")
    return found


# A plugin's testing package draws worlds from a seed and measures how long a run took; its command
# runs several in processes of their own, and prints. `raftkv.testing` may do as much.
KIT_WORLD = tuple(f": imports {module}" for module in ("random", "time"))
KIT_COMMAND_WORLD = (*KIT_WORLD, ": imports concurrent.futures", ": calls print()", ": uses os.")


def is_allowed(name: str, use: str) -> bool:
    """Whether module `name` may touch the world in this way, which `world_use` has found."""
    if not within(name, *KITS):
        return False
    uses = KIT_COMMAND_WORLD if name.endswith(".__main__") else KIT_WORLD
    return any(allowed in use for allowed in uses)


def test_only_the_runtime_touches_the_world() -> None:
    found = []
    for name in ENGINE_MODULES:
        path = MODULES[name]
        source = path.read_text(encoding="utf-8")
        is_package = path.name == "__init__.py"
        uses = world_use(source, name, is_package=is_package)
        found += [f"{name}:{use}" for use in uses if not is_allowed(name, use)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "allowed"),
    [
        ("raftkv_lcr.testing.storm", "import random", True),
        ("raftkv_lcr.testing.storm", "import socket", False),
        ("raftkv_lcr.testing.storm", "print('x')", False),
        ("raftkv_lcr.testing.__main__", "print('x')", True),
        ("raftkv_lcr.testing.__main__", "open('x')", False),
        ("raftkv_lcr.testing_not", "import random", False),
        ("raftkv_lcr.service", "import random", False),
        ("raftkv_lcr.__main__", "print('x')", False),
    ],
)
def test_a_testing_package_may_use_chance_and_time(name: str, source: str, allowed: bool) -> None:
    (use,) = world_use(source, name)
    assert is_allowed(name, use) is allowed


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import choice",
        "import os\nos.fsync(3)",
        "import os\nos.path.exists('x')",
        "from os import path",
        "def f():\n    import socket",
        "open('x')",
    ],
)
def test_a_planted_use_of_the_world_is_found(source: str) -> None:
    assert world_use(source, "raftkv.raft.planted")


def test_path_arithmetic_is_allowed() -> None:
    assert not world_use("import os\nos.path.join('a', 'b')", "raftkv.raft.planted")


# State is a pure function of the log -------------------------------------------------------------


def impure_calls(source: str) -> list[str]:
    """`hash` of a string and `id` differ from process to process, so no replica may use them."""
    return [
        f"{node.lineno}: calls {node.func.id}()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"hash", "id", "open", "globals", "__import__"}
    ]


# Chooses by the hash in which dict a row lies; the order of rows comes from their keys alone, as
# tests/state/test_rows.py shows.
HASHES = ("raftkv.state.rows", "hash()")


def test_state_does_nothing_that_differs_between_processes() -> None:
    found = [
        f"{name}:{call}"
        for name in select("raftkv.state")
        for call in impure_calls(MODULES[name].read_text(encoding="utf-8"))
        if not (name == HASHES[0] and call.endswith(HASHES[1]))
    ]
    assert not found, "\n".join(found)


def test_planted_impurity_is_found() -> None:
    assert impure_calls("x = hash('a')") == ["1: calls hash()"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from . import a", ("raftkv.raft", "raftkv.raft.a")),
        ("from ..state import b", ("raftkv.state", "raftkv.state.b")),
        ("import x.y", ("x.y",)),
        ("def f():\n    from ...raftkv import c", ("raftkv", "raftkv.c")),
    ],
)
def test_relative_imports_are_resolved(source: str, expected: tuple[str, ...]) -> None:
    (found,) = imports(source, "raftkv.raft.wal", is_package=False)
    assert found.targets == expected
