"""Guards that read each module for itself, on small sources: what they count and what not."""

from __future__ import annotations

import pytest

from tests.guards.assertions import Assertions
from tests.guards.circles import Circles, circles
from tests.guards.clones import Clones
from tests.guards.layout import Layout
from tests.guards.private_access import PrivateAccess
from tests.guards.public_api import PublicApi
from tests.guards.samples import Files, counts, measured

# Circles of imports -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "found"),
    [
        # An import under TYPE_CHECKING, and one in a function.
        (
            {
                "raftkv/a.py": "if TYPE_CHECKING:\n    from .b import B\n",
                "raftkv/b.py": "def f():\n    from .a import A\n",
            },
            ["raftkv.a, raftkv.b"],
        ),
        # Through a package that imports its module, and through three modules of two packages.
        (
            {
                "raftkv/kv/__init__.py": "from .api import Api\n",
                "raftkv/kv/api.py": "from raftkv.kv import KeyValue\n",
                "bench/a.py": "import bench.b\n",
                "bench/b.py": "from raftkv_x import c\n",
                "plugins/raftkv_x/c.py": "from bench import a\n",
            },
            ["bench.a, bench.b, raftkv_x.c", "raftkv.kv, raftkv.kv.api"],
        ),
        # A package at a place that no list names is code.
        (
            {
                "raftkv_core/a.py": "from raftkv_core import b\n",
                "raftkv_core/b.py": "from raftkv_core import a\n",
                "docs/examples/a.py": "import b\n",
                "docs/examples/b.py": "import a\n",
            },
            ["raftkv_core.a, raftkv_core.b"],
        ),
        # A module that a package has is no import of the package; tests are not looked at.
        (
            {
                "raftkv/kv/__init__.py": "from .api import Api\n",
                "raftkv/kv/api.py": "from . import model\n",
                "raftkv/kv/model.py": "import asyncio\n",
                "tests/a.py": "from tests import b\n",
                "tests/b.py": "from tests import a\n",
            },
            [],
        ),
    ],
)
def test_circles_of_imports(files: Files, found: list[str]) -> None:
    measures = measured(Circles(), files)
    assert list(measures["circles"].places) == found
    assert measures["circles.modules"].count == sum(len(each.split(", ")) for each in found)


def test_circles_are_the_strongly_connected_components() -> None:
    edges = {"a": "b", "b": "c", "c": "ad", "d": "ef", "e": "d", "f": "g", "g": "", "h": "a"}
    assert circles({node: set(to) for node, to in edges.items()}) == [["a", "b", "c"], ["d", "e"]]


# Private names ------------------------------------------------------------------------------------

NODE = {
    "raftkv/node.py": """
        class Node:
            def __init__(self):
                self._part = None

            def _check(self): ...
        """
}


@pytest.mark.parametrize(
    ("line", "private", "of_node"),
    [
        ("node._part", 1, 1),
        ("self._node._part = 1", 1, 1),
        ("self.nodes[name]._check()", 1, 1),
        ("other._part", 1, 0),
        ("node._other", 1, 0),
        ("import raftkv.node; raftkv.node._part", 1, 1),
        ("from .b import _hidden", 1, 0),
        ("self._part", 0, 0),
        ("cls._part; super()._part", 0, 0),
        ("node.__class__; node.part", 0, 0),
        ("import os; os._exit(1)", 0, 0),
        ("row._replace(a=1)", 0, 0),
        ("import traces; traces._lower()", 1, 0),
        ("import pysyncobj as p; p._lower()", 1, 0),
        ("getattr(node, '_part'); hasattr(other, '_part', None)", 2, 1),
        ("setattr(self._node, '_part', 1)", 1, 1),
        ("getattr(self, '_part'); getattr(node, part); getattr(node, 'part')", 0, 0),
        # Defined here, so it may be of an object of this module.
        ("self._part = 1; other._part", 0, 0),
        ("class C:\n    def _part(self): ...\nother._part", 0, 0),
        ("class C:\n    _part: int\nother._part", 0, 0),
        ("class C:\n    __slots__ = ('_part',)\nother._part", 0, 0),
        ("self._part = 1; node._part", 1, 1),
        # These are no attributes.
        ("def _check(): ...\nnode._check()", 1, 1),
        ("_part = 1\nnode._part", 1, 1),
        ("def f():\n    _part = 1\n    node._part", 1, 1),
    ],
)
def test_private_names_of_other_modules(line: str, private: int, of_node: int) -> None:
    found = counts(PrivateAccess(), {**NODE, "raftkv/a.py": line})
    assert found == {"private": private, "private.testing": 0, "private.node": of_node}
    found = counts(PrivateAccess(), {**NODE, "raftkv/testing/a.py": line})
    assert found == {"private": 0, "private.testing": private, "private.node": of_node}


def test_the_class_that_is_counted_separately_must_exist() -> None:
    with pytest.raises(LookupError, match="no class Node"):
        measured(PrivateAccess(), {"raftkv/a.py": "node._part"})


# Names and sizes ----------------------------------------------------------------------------------


def test_names_and_sizes_of_modules() -> None:
    found = measured(
        Layout(),
        {
            "raftkv/reading.py": '"""Doc\n\nstring."""\n\n# A comment.\nx = 1\ny = (\n    2,\n)\n',
            "raftkv/testing/__init__.py": "",
            "raftkv/long.py": "x = 1\n" * 501,
            "raftkv/short.py": "x = 1\n" * 500,
            "tests/test_reading.py": "\n" * 501,
            "bench/test_long_bench.py": "\n" * 501,
            "raftkv/errors.py": '__all__ = [\n    "A",\n]\n',
            "plugins/raftkv_x/public.py": '__all__ = ["A"]\n',
            "plugins/raftkv_x/api.py": '__all__ = [\n    "A",\n    "B",\n]\n',
            "plugins/raftkv_x/rows.py": '__all__: list[str] = [\n    "A",\n]\n__all__ += ["B"]\n',
        },
    )
    assert found["modules.ing"].places == ("raftkv/reading.py",)
    assert found["modules.long"].places == ("raftkv/long.py: 501 lines",)
    assert found["modules.long.tests"].count == 2
    assert found["all.lines"].count == 8
    assert found["all.lines"].places == (
        "plugins/raftkv_x/api.py: 4 lines",
        "plugins/raftkv_x/rows.py: 4 lines",
    )
    assert found["code.lines"].count == 4 + 501 + 500 + 3 + 1 + 4 + 4


# Docstrings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(): ...", ["f"]),
        ("async def f(): ...", ["f"]),
        ('def f():\n    "Does it."', []),
        ("def _f(): ...\nclass _C:\n    def f(self): ...", []),
        ("class C:\n    def f(self): ...\n    def _g(self): ...", ["C", "C.f"]),
        ('class C:\n    "It."\n    def __len__(self): ...', []),
        ('class C:\n    "It."\n    @f.setter\n    def f(self, x): ...', []),
        ('class C:\n    "It."\n    @typing.overload\n    def f(self): ...', []),
        ("def f():\n    def g(): ...", ["f"]),
        ('def f():\n    """"""', ["f"]),
        ('class C:\n    "  "\n    def f(self):\n        ""', ["C", "C.f"]),
        ("if x:\n    def f(): ...", ["f"]),
        ("try:\n    class C: ...\nexcept ImportError:\n    def f(): ...", ["C", "f"]),
        ('class C:\n    "It."\n    if x:\n        def f(self): ...', ["C.f"]),
    ],
)
def test_public_names_without_docstring(text: str, found: list[str]) -> None:
    measures = measured(PublicApi(), {"raftkv/a.py": text})
    assert [place.rpartition(" ")[2] for place in measures["undocumented"].places] == found
    assert measures["undocumented.api"].count == 0


def test_the_public_api_is_what_public_modules_export() -> None:
    found = measured(
        PublicApi(),
        {
            "raftkv/__init__.py": "from .node import Node\n__all__ = ['Node']\n",
            "raftkv/node.py": "class Node:\n    'It.'\n    def f(self): ...\nclass Other: ...\n",
            "raftkv/errors.py": (
                "class Refused: ...\nclass Hidden: ...\n"
                "__all__: list[str] = []\n__all__ += ['Refused']\n"
            ),
            "plugins/raftkv_x/public.py": "from .api import *\n__all__ = ['Api']\n",
            "plugins/raftkv_x/api.py": "class Api: ...\nclass Inner: ...\n",
        },
    )
    assert found["undocumented"].count == 6
    assert found["undocumented.api"].places == (
        "plugins/raftkv_x/api.py:1: Api",
        "raftkv/errors.py:1: Refused",
        "raftkv/node.py:3: Node.f",
    )


def test_a_method_inherits_the_docstring_of_the_one_that_it_overrides() -> None:
    base = "class Base(Generic[T]):\n    'It.'\n    def f(self):\n        'Does it.'\n"
    derived = "from .base import Base\nclass C(Base[int]):\n    'It.'\n    def f(self): ...\n"
    further = "from .c import C\nclass D(C):\n    'It.'\n    def f(self): ...\n"
    files = {"raftkv/base.py": base, "raftkv/c.py": derived, "raftkv/d.py": further}
    assert counts(PublicApi(), files)["undocumented"] == 0
    files["raftkv/base.py"] = base.replace("'Does it.'", "...")
    assert counts(PublicApi(), files)["undocumented"] == 3


# Clones -------------------------------------------------------------------------------------------

BLOCK = """
def {name}(self, at):
    rows = self.rows.of({name!r}, limit={number})
    if not rows:
        raise Empty("{name} has no rows", at)
    for row in rows:
        self.seen[row.key] = row.value + {number}
    {call}
    self.count += len(rows) * {number}
    return sorted(rows, key=lambda row: row.key)[:{number}]
"""
ONE = BLOCK.format(name="one", number=1, call="self.tell(rows)")
TWO = BLOCK.format(name="two", number=22, call="self.show(rows)")
ASYNC = "async " + BLOCK.lstrip().format(name="three", number=3, call="await self.show(rows)")
OTHER = TWO.replace("return sorted", "return None  #")


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        ({"bench/a.py": ONE, "bench/b.py": TWO}, 18),
        ({"bench/a.py": ONE + TWO}, 18),
        ({"bench/a.py": ONE, "bench/b.py": ASYNC}, 18),
        ({"bench/a.py": ONE, "bench/b.py": TWO + ASYNC}, 27),
        ({"bench/a.py": ONE}, 0),
        # All statements but the last one are alike.
        ({"bench/a.py": ONE, "bench/b.py": OTHER}, 16),
        ({"bench/a.py": "x = 1\n" * 50}, 0),
        ({"bench/a.py": "class A:\n" + "    x: int = 1\n" * 50}, 0),
        ({"bench/a.py": "class A:\n    x: dict[str, int]\n" * 50}, 0),
        ({"bench/a.py": "from a import b, c, d\n" * 50}, 0),
        ({"bench/a.py": "f(1, 2)\ng(x, y)\n" * 2}, 0),
    ],
)
def test_repeated_lines(files: Files, lines: int) -> None:
    assert counts(Clones(), files)["clones.bench"] == lines


def test_repeated_lines_belong_to_the_area_of_their_file() -> None:
    found = measured(Clones(), {"raftkv/a.py": ONE, "plugins/x/testing/b.py": TWO})
    assert {name: each.count for name, each in found.items()} == {
        "clones.raftkv": 9,
        "clones.plugins": 0,
        "clones.bench": 0,
        "clones.tools": 0,
        "clones.testing": 9,
    }
    assert found["clones.raftkv"].places == ("raftkv/a.py:2-10 ~ plugins/x/testing/b.py:2-10",)
    found = measured(Clones(), {"tools/a.py": ONE, "raftkv_core/b.py": TWO})
    assert found["clones.tools"].count == found["clones.raftkv_core"].count == 9


# Assertions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "is_counted"),
    [
        ("index >= self.base", True),
        ("self._rest is None", True),
        ("a is not None and a > 1", True),
        ("a is not None", False),
        ("isinstance(a, int)", False),
        ("not isinstance(a, int)", False),
        ("a is not None and isinstance(b, int)", False),
        ("None is not a", False),
        ("a != None", False),
        ("not (a is None)", False),
        ("callable(a)", False),
        ("True", False),
        ("1 == 1", False),
        ("not False", False),
        ("(a, 'text')", False),
        ("a == a", False),
        ("a > 1 or True", False),
        ("a > 1 and True", True),
        ("a > 1 or a is not None", True),
    ],
)
def test_assertions_of_invariants(test: str, is_counted: bool) -> None:
    text = f"def f():\n    assert {test}\n\nclass C:\n    async def g(self): ...\n"
    files = {"raftkv/raft/a.py": text, "raftkv/node.py": "def f():\n    assert 1 < x\n"}
    (found,) = measured(Assertions(), files).values()
    assert found.count == (500 if is_counted else 0)
    assert found.kind == "floor"
