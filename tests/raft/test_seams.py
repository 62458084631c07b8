"""The seams between our engine and PySyncObj 0.3.17.

Each method that the engine replaces was read in one version of PySyncObj. If its source changes,
what we replaced may not be what it was: the hashes below say so.
"""

from __future__ import annotations

import hashlib
import inspect
import re

import pytest
from pysyncobj import SyncObj
from pysyncobj.version import VERSION

from raftkv.raft import engine as engine_module
from raftkv.raft.engine import Engine

# Stock method (mangled) -> first half of the sha256 of its source.
REPLACED: dict[str, str] = {
    "_SyncObj__applyLogEntries": "073db677773b5a2dddf17cc51f84ac88",
    "_SyncObj__changeCluster": "66b42884f9d2dbd1d27daaf1e1aa93d9",
    "_SyncObj__doApplyCommand": "1ea7aa506e950d0aecc7aa7ea750a6fc",
    "_SyncObj__doChangeCluster": "247d4d4101b8cd3ce82232ec9cf69d35",
    "_SyncObj__generateRaftTimeout": "92ed37d3620e781a15680bc5af8a1983",
    "_SyncObj__loadDumpFile": "ec66e83905de703bcead2735be875e71",
    "_SyncObj__onMessageReceived": "ddfe34b6c02821795146dc533fb7c0fc",
    "_SyncObj__parseChangeClusterRequest": "b2d5d695b12e592fd32dc95641588409",
    "_SyncObj__sendAppendEntries": "9cb9073128c392fa9e5efc4691420ba4",
    "_SyncObj__tryLogCompaction": "c2f8a0ec14cc7312e3ff41a16cde9be7",
    "_SyncObj__updateClusterConfiguration": "e2de42f3d1a46c962435731d2f0de4bc",
    "_checkCommandsToApply": "a386a8079361d204f2c11f895416548c",
    "_onTick": "cc9eb08232d005ba4e21a33ec453e5d0",
}

# Kept, and relied upon: the constructor, the changes of role and term, the first entry of a term.
KEPT: dict[str, str] = {
    "__init__": "09df12cd7fd7d7270fee82c1a025acc1",
    "_SyncObj__setState": "2c1f239f7bd79b3945b63418b4f564c4",
    "_SyncObj__setCurrentTerm": "0ad5bf456ac06bd314d2dbc8991c6b62",
    "_SyncObj__onBecomeLeader": "5a3fd97bc17dc1cf3070b007538b6a8d",
    "_SyncObj__getCurrentLogTerm": "1cb8867e6a13d3976c07506c31d71681",
    "_SyncObj__getCurrentLogIndex": "e5af22ca246686bdc5fd2bd9c5e34eac",
    "_SyncObj__onSetCodeVersion": "17b050edb193c8537da50ede2bbffc11",
}


def source_hash(name: str) -> str:
    source = inspect.getsource(inspect.getattr_static(SyncObj, name))
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def test_the_version_is_the_one_that_was_read() -> None:
    assert VERSION == "0.3.17"


@pytest.mark.parametrize("name", sorted({**REPLACED, **KEPT}))
def test_the_stock_source_is_the_one_that_was_read(name: str) -> None:
    assert hasattr(SyncObj, name), f"PySyncObj has no {name} any more"
    assert source_hash(name) == {**REPLACED, **KEPT}[name], (
        f"PySyncObj changed under our feet ({name}): read the diff, then update"
    )


def test_everything_that_the_engine_overrides_is_pinned() -> None:
    overridden = {name for name in vars(Engine) if name in vars(SyncObj)} - {"__init__"}
    dunder = {"__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__"}
    dunder.add("__static_attributes__")
    assert overridden - dunder == set(REPLACED)


def test_the_engine_overrides_nothing_that_does_not_exist() -> None:
    """A renamed stock method would leave ours behind, never called."""
    ours = {name for name in vars(Engine) if name.startswith("_SyncObj__")}
    assert ours <= set(vars(SyncObj))


def test_the_table_in_the_engines_text_names_what_is_replaced() -> None:
    text = engine_module.__doc__ or ""
    table = text[text.index("stock method") : text.index("Objects replaced")]
    named = set(re.findall(r"^    (_\w+)", table, re.MULTILINE))
    mangled = {f"_SyncObj{name}" if name.startswith("__") else name for name in named}
    assert mangled == set(REPLACED)


def test_every_stock_field_that_the_engine_sets_is_one_of_pysyncobjs() -> None:
    """A misspelt private name would set a field that nobody reads."""
    used = set(re.findall(r"self\.(_SyncObj__\w+)", inspect.getsource(engine_module)))
    stock = inspect.getsource(SyncObj)
    missing = {name for name in used if f"__{name.removeprefix('_SyncObj__')}" not in stock}
    assert used
    assert not missing
