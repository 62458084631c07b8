"""A write that a table refuses is the plugin's fault, and the machine stands as before."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from raftkv.plugin import Context, Plugin, TableSpec
from raftkv.state import StateMachine
from tests.state.harness import Driver


class Do(msgspec.Struct, frozen=True, array_like=True, tag="do"):
    Result: ClassVar[Any] = int
    what: str


class Careless(Plugin[None]):
    """Writes what no table takes."""

    name: ClassVar[str] = "careless"
    commands: ClassVar[Any] = (Do,)
    tables: ClassVar[Any] = (
        TableSpec("log", int, int, run=True),
        TableSpec("pairs", tuple[str, int], int),
    )

    def apply(self, command: Any, ctx: Context) -> Any:
        log, pairs = ctx.table("log"), ctx.table("pairs")
        first = len(log) + 1
        log.put(first, 1)
        pairs.put(("a", first), 1)
        match command.what:
            case "gap":
                log.put(first + 5, 1)
            case "middle":
                log.put(first + 1, 1)
                log.put(first + 2, 1)
                log.delete(first + 1)
            case "order":
                pairs.put(("a", None), 1)  # cannot be compared
        return first


@pytest.mark.parametrize(
    ("what", "error"), [("gap", "ValueError"), ("middle", "ValueError"), ("order", "TypeError")]
)
def test_the_command_is_undone_and_the_next_one_is_applied(what: str, error: str) -> None:
    driver = Driver(StateMachine([Careless()]))
    driver.start()
    assert driver.send(Do("well"), "careless") == 1
    digest = driver.machine.digest()
    outcome = driver.send(Do(what), "careless")
    assert (type(outcome).__name__, outcome.args[1]) == ("PluginFault", error)
    assert driver.table("log", "careless") == {1: 1}
    assert driver.table("pairs", "careless") == {("a", 1): 1}
    assert driver.send(Do("well"), "careless") == 2
    assert driver.machine.digest() != digest
    assert driver.machine.invariants() == []
