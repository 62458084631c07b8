"""Guards that look at where things are, on small sources: what they count and what not."""

from __future__ import annotations

import pytest

from tests.guards.apply_half import ApplyHalf
from tests.guards.dead import Dead
from tests.guards.samples import counts, measured
from tests.guards.skeleton import Skeleton
from tests.guards.spread import Spread
from tests.guards.wheel import PUBLIC, Wheel

# Files that name a thing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("raftkv/kv/a.py", "class Compact(Struct): ...", {"files.command.product"}),
        ("raftkv/kv/a.py", "await kv.compact(1)", {"files.command.product"}),
        ("raftkv/server/a.py", "'/v3/kv/compaction'", {"files.command.product"}),
        ("tests/kv/test_a.py", "kv.compact()", {"files.command"}),
        ("docs/cli.md", "raftkv kv compact 7", {"files.command"}),
        ("raftkv/raft/wal.py", "def compact(self): ...", set()),
        ("raftkv/kv/a.py", "compact_revision = compacted = compaction", set()),
        ("tools/simulate-limbo", "", {"files.plugin"}),
        ("docs/limbo.md", "", {"files.plugin"}),
        ("raftkv/config.py", "import raftkv_limbo", {"files.plugin"}),
        ("plugins/raftkv_limbo/a.py", "limbo", set()),
        ("tests/plugins/raftkv_limbo/a.py", "limbo", set()),
        ("CHANGELOG.md", "limbo, kv compact", set()),
        ("bench/a.py", "class TxQueueLoad: ...", {"files.workload"}),
        ("bench/cluster_calls.py", "", {"files.workload"}),
        ("bench/workloads/txqueue/load.py", "txqueue", set()),
        ("plugins/raftkv_x/a.py", "txqueue", set()),
    ],
)
def test_files_that_name_a_thing(path: str, text: str, found: set[str]) -> None:
    if "files.command.product" in found:
        found = {*found, "files.command"}
    named = counts(Spread(), {path: text})
    assert {name for name, count in named.items() if count} == found


def test_a_file_counts_once_for_each_workload_that_it_names() -> None:
    assert counts(Spread(), {"bench/a.py": "limbo limbo txqueue lcr"})["files.workload"] == 3


# The wheel ----------------------------------------------------------------------------------------


def test_test_tools_that_no_public_one_imports_are_verification() -> None:
    public = {
        f"{'plugins/' if name.startswith('raftkv_') else ''}{name.replace('.', '/')}"
        + ("/__init__.py" if name.endswith("testing") else ".py"): ""
        for name in PUBLIC
    }
    found = measured(
        Wheel(),
        {
            **public,
            "raftkv/testing/distance.py": "def f():\n    from .clock import now\n",
            "raftkv/testing/clock.py": "import time\n",
            "raftkv/testing/faults.py": "from .clock import now\n\n",
            "plugins/raftkv_x/testing/load.py": "x = 1\n",
            "tests/verification/other.py": "x = 1\n",
        },
    )
    assert found["wheel.modules"].places == ("raftkv.testing.faults", "raftkv_x.testing.load")
    assert found["wheel.lines"].count == 3


def test_the_public_test_tools_must_exist() -> None:
    with pytest.raises(LookupError, match="no modules"):
        measured(Wheel(), {"raftkv/testing/__init__.py": ""})


# The apply half -----------------------------------------------------------------------------------

PLUGIN = """
from raftkv.plugin import Host, Plugin
from .api import Api
from .machine import queue
from .views import rows

class Queues(Plugin[Api]):
    def apply(self, command, ctx): ...
"""


WORLD = ("datetime", "multiprocessing", "secrets", "selectors", "signal", "ssl", "subprocess")
WORLD = (*WORLD, "importlib", "os.path", "random", "sys", "tempfile", "time", "uuid")


@pytest.mark.parametrize(
    ("path", "text", "imported"),
    [
        ("views.py", "import asyncio", "asyncio"),
        ("views.py", "from raftkv.plugin import Context, Host", "raftkv.plugin.Host"),
        ("views.py", "from raftkv import Client", "raftkv.Client"),
        ("views.py", "from raftkv.cli.kit import say", "raftkv.cli.kit"),
        ("rows.py", "def f():\n    from .api import Api", "raftkv_x.api"),
        ("rows.py", "if TYPE_CHECKING:\n    from .http import routes", "raftkv_x.http.routes"),
        ("machine/queue.py", "from ..node import service", "raftkv_x.node.service"),
        ("machine/unused.py", "import asyncio", "asyncio"),
        ("views.py", "from raftkv.plugin import Context, View", ""),
        *((("views.py", f"import {name}", name)) for name in WORLD),
        ("views.py", "import numpy", "numpy"),
        ("views.py", "import re, msgspec.structs\nfrom collections.abc import Iterable", ""),
        ("api.py", "import asyncio", ""),
        ("node/service.py", "import asyncio", ""),
        ("testing/load.py", "import asyncio", ""),
    ],
)
def test_imports_of_the_apply_half(path: str, text: str, imported: str) -> None:
    files = {
        "plugin.py": PLUGIN,
        "__init__.py": "from .api import Api",
        "api.py": "from .views import rows",
        "views.py": "",
        "rows.py": "",
        "http/__init__.py": "",
        "http/routes.py": "",
        "machine/__init__.py": "",
        "machine/queue.py": "",
        "node/service.py": "",
    }
    # rows.py is reached through views.py.
    files["views.py"] = "from . import rows\n"
    files[path] = f"{files.get(path, '')}\n{text}"
    files = {f"plugins/raftkv_x/{name}": text for name, text in files.items()}
    found = measured(ApplyHalf(), files)
    places = found["apply.imports"].places
    assert [place.rpartition(": imports ")[2] for place in places] == [imported] * bool(imported)


def test_a_plugin_without_commands_has_no_apply_half() -> None:
    files = {
        "plugins/raftkv_x/plugin.py": PLUGIN,
        "plugins/raftkv_y/plugin.py": PLUGIN.replace("apply", "open"),
        "plugins/raftkv_y/views.py": "import asyncio",
    }
    assert counts(ApplyHalf(), files) == {"apply.imports": 0}


@pytest.mark.parametrize("base", ["Plugin", "plugin.Plugin[Api]", "Rows, raftkv.plugin.Plugin"])
def test_a_plugin_is_found_by_its_base(base: str) -> None:
    text = f"if True:\n    class Q({base}):\n        def apply(self): ...\n"
    text = f"from . import views\nclass Old(Plugin): ...\n{text}"
    files = {"plugins/raftkv_x/plugin.py": text, "plugins/raftkv_x/views.py": "import asyncio"}
    assert counts(ApplyHalf(), files) == {"apply.imports": 1}


def test_there_must_be_a_plugin() -> None:
    with pytest.raises(LookupError, match="no module defines a plugin"):
        measured(ApplyHalf(), {"raftkv/a.py": ""})


# Dead modules and missing parts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "is_dead"),
    [
        ("raftkv/b.py", "from raftkv import watch", False),
        ("raftkv/b.py", "from raftkv.watch import a", False),
        ("raftkv/b.py", 'import_module(homes["watch"])', False),
        ("raftkv/b.py", 'run(["-m", "raftkv.watch"])', False),
        ("docs/a.md", "python -m raftkv.watch", False),
        ("docs/a.md", "python3 raftkv/watch.py", False),
        ("docs/a.md", "`raftkv.watch`, raftkv/watch.py", True),
        ("setup.cfg", "raftkv.watch", True),
        ("setup.cfg", "run = raftkv.watch:main", False),
        ("tools/watch", "exec python raftkv/watch.py", False),
        ("raftkv/b.py", "watch = raftkv.watches + myraftkv.watch", True),
        ("tests/test_watch.py", "from raftkv import watch", True),
    ],
)
def test_modules_that_nothing_uses(path: str, text: str, is_dead: bool) -> None:
    files = {"raftkv/watch.py": '"watch"; raftkv.watch', "raftkv/__main__.py": "from . import b"}
    found = measured(Dead(), {**files, path: text})
    assert list(found["modules.dead"].places) == ["raftkv/watch.py"] * is_dead


@pytest.mark.parametrize("use", ["from . import b", '"raftkv.b"'])
def test_dead_modules_that_use_each_other_are_dead(use: str) -> None:
    files = {"raftkv/a.py": use, "raftkv/b.py": 'from raftkv import a; "raftkv.a"'}
    assert counts(Dead(), files)["modules.dead"] == 2
    assert counts(Dead(), {**files, "tools/run": "exec python -m raftkv.a"})["modules.dead"] == 0
    # A module that is used runs its packages.
    files = {**files, "raftkv/__init__.py": "from . import b", "raftkv/c/__main__.py": ""}
    assert counts(Dead(), files)["modules.dead"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "from raftkv.testing.faults import cut",
        "from raftkv.testing import (\n    clock,\n    faults,\n)",
        "def f():\n    from raftkv.testing import faults as f",
        "import raftkv.testing.faults",
        "run('raftkv.testing.faults')",
    ],
)
def test_a_test_uses_test_tools(text: str) -> None:
    files = {"raftkv/testing/faults.py": "", "raftkv/testing/clock.py": "", "raftkv/a.py": ""}
    test = {"tests/test_a.py": f"{text}\nfrom raftkv import a\nfrom raftkv.testing import clock\n"}
    found = measured(Dead(), {**files, **test})["modules.dead"]
    assert found.places == ("raftkv/a.py",)
    assert counts(Dead(), files)["modules.dead"] == 3


def test_parts_that_plugins_lack() -> None:
    whole = ("api.py", "errors.py", "http/routes.py", "cli.py", "machine/a.py", "node/b.py")
    files = {f"plugins/raftkv_x/{name}": "" for name in whole}
    files["plugins/raftkv_x/plugin.py"] = PLUGIN
    assert counts(Skeleton(), files) == {"plugins.parts": 0}
    files["plugins/raftkv_y/plugin.py"] = PLUGIN
    files["plugins/raftkv_z/plugin.py"] = PLUGIN.replace("apply", "open")
    found = measured(Skeleton(), files)["plugins.parts"].places
    of_all = ["api", "errors", "http", "cli"]
    of_y = [*of_all, "machine", "node"]
    assert list(found) == [
        *(f"plugins/raftkv_y: {part}" for part in of_y),
        *(f"plugins/raftkv_z: {part}" for part in of_all),
    ]
