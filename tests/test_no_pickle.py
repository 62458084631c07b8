"""Nothing that arrives from the network or the disk can run code.

Three proofs: our source neither imports nor calls anything that turns bytes into code; the parts
of PySyncObj that the engine keeps do not either; and a pickle sent to every port runs nothing.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Set
from pathlib import Path

import pysyncobj.syncobj
import pytest
from pysyncobj import SyncObj

from raftkv.raft.engine import Engine
from raftkv.validation import checked

ROOT = Path(__file__).resolve().parent.parent

MODULES = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"),
    *("pickletools", "joblib", "yaml", "code", "codeop"),
}
CALLS = {"eval", "exec", "compile", "__import__"}

# Functions that make code, as dataclasses do, of signatures of this program: of identifiers only,
# which `test_generated_checks_consist_of_identifiers` shows.
GENERATORS = {"raftkv/validation.py": {"_generate"}}


def dangers(source: str, generators: Set[str] = frozenset()) -> list[str]:
    """Imports of serializers that run code, and calls that turn text or bytes into code.

    The functions named as `generators`, at the top of the module, may call.
    """
    found = []
    tree = ast.parse(source)
    allowed = {
        node
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name in generators
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for node in ast.walk(tree):
        if node in allowed:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from pysyncobj import pickle` and `from pysyncobj.pickle import loads` too.
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [f"{node.func.id}()"] if node.func.id in CALLS else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
        elif isinstance(node, ast.Attribute) and node.attr in MODULES - {"code"}:
            names = [node.attr]
        else:
            continue
        for name in names:
            if name in {f"{call}()" for call in CALLS} or MODULES & set(str(name).split(".")):
                found.append(f"{node.lineno}: {name}")
    return found


@pytest.mark.parametrize("folder", ["raftkv", "plugins", "bench"])
def test_our_code_cannot_turn_bytes_into_code(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths, f"{folder} holds no module: the rule would check nothing"
    found = [
        f"{path.relative_to(ROOT)}:{danger}"
        for path in paths
        for danger in dangers(
            path.read_text(encoding="utf-8"),
            GENERATORS.get(path.relative_to(ROOT).as_posix(), frozenset()),
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("path", "names"), GENERATORS.items())
def test_a_generator_is_still_needed(path: str, names: Set[str]) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    for name in names:
        assert dangers(source, names - {name}), f"{path}: {name} makes no code any more"
    assert not dangers(source, names)


def test_only_the_named_function_may_make_code() -> None:
    source = "def f(x):\n    exec(x)\ndef g(x):\n    exec(x)\n    import pickle\n"
    assert sorted(dangers(source, {"g"})) == ["2: exec()", "5: pickle"]
    assert dangers("def g():\n    importlib.import_module('dill')", {"g"}) == ["2: dill"]


def test_generated_checks_consist_of_identifiers() -> None:
    """Nothing that a value prints, and no name that is not one, comes into generated code."""
    hostile = "__import__('os').abort()"

    class Default:
        def __repr__(self) -> str:
            return hostile

    def function(value: object = Default(), *, text: str = hostile) -> tuple[object, str]:
        return value, text

    function.__name__ = function.__qualname__ = hostile
    value, text = checked(function)()
    assert isinstance(value, Default)
    assert text == hostile
    with pytest.raises(ValueError, match="not a valid parameter name"):
        inspect.Parameter(hostile, inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pysyncobj.pickle as codec",
        "from pysyncobj import pickle",
        "from pysyncobj.pickle import loads",
        "import pysyncobj\npysyncobj.pickle.loads(b'')",
        "from marshal import loads",
        "def f(x):\n    return eval(x)",
        "import importlib\nimportlib.import_module('dill')",
    ],
)
def test_a_planted_danger_is_found(source: str) -> None:
    assert dangers(source)


@pytest.mark.parametrize("source", ["import code_table", "re.compile('x')", "x.evaluate()"])
def test_harmless_code_is_not_accused(source: str) -> None:
    assert not dangers(source)


# The parts of PySyncObj that are kept -------------------------------------------------------------


class Kept:
    """The methods of `SyncObj` that `Engine` does not replace, as PySyncObj's source has them.

    Names are mangled, as attributes are at run time (`_SyncObj__setState`).
    """

    def __init__(self) -> None:
        tree = ast.parse(inspect.getsource(pysyncobj.syncobj))
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        functions = [n for n in classes["SyncObj"].body if isinstance(n, ast.FunctionDef)]
        sources = {mangled(node.name): node for node in functions}
        stock = vars(SyncObj)
        assert set(sources) <= set(stock), "the source does not belong to the imported module"
        self.methods = {
            name: node
            for name, node in sources.items()
            if inspect.getattr_static(Engine, name) is stock[name]
        }

    def reachable(self, roots: set[str]) -> set[str]:
        """The kept methods that some root mentions, directly or through others."""
        found: set[str] = set()
        waiting = [name for name in roots if name in self.methods]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [each for each in mentions(self.methods[name]) if each in self.methods]
        return found


def mangled(name: str) -> str:
    return f"_SyncObj{name}" if name.startswith("__") and not name.endswith("__") else name


def mentions(tree: ast.AST) -> set[str]:
    """Every attribute, and every string that might name one."""
    nodes = list(ast.walk(tree))
    attributes = {mangled(node.attr) for node in nodes if isinstance(node, ast.Attribute)}
    strings = {
        mangled(node.value)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return attributes | strings


def uses_pickle(tree: ast.AST) -> bool:
    """Pickle by name, or a call of the Serializer, which pickles snapshots."""
    return any(
        (isinstance(node, ast.Name) and node.id == "pickle")
        or (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "__serializer"
        )
        for node in ast.walk(tree)
    )


def our_mentions() -> set[str]:
    paths = sorted((ROOT / "raftkv").rglob("*.py"))
    found = (mentions(ast.parse(path.read_text(encoding="utf-8"))) for path in paths)
    return set().union(*found)


def test_no_kept_method_that_we_can_reach_pickles() -> None:
    kept = Kept()
    reachable = kept.reachable({"__init__", *our_mentions()})
    assert "_SyncObj__setState" in reachable, "the walk found nothing: it would prove nothing"
    found = sorted(name for name in reachable if uses_pickle(kept.methods[name]))
    assert not found, f"kept, reachable, and pickling: {found}"


def test_the_walk_finds_pickle_where_it_is() -> None:
    """Stock PySyncObj pickles in what a membership change reaches: the walk must say so."""
    kept = Kept()
    reachable = kept.reachable({"addNodeToCluster"})
    assert any(uses_pickle(kept.methods[name]) for name in reachable)


def test_the_engine_keeps_neither_the_stock_wire_nor_the_stock_journal() -> None:
    """Both decode with pickle; ours are given to the constructor instead."""
    imported = {
        name.name
        for path in sorted((ROOT / "raftkv").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pysyncobj")
        for name in node.names
    }
    assert not imported & {"TCPTransport", "TcpConnection", "Serializer", "FileJournal"}
