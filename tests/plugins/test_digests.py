"""The cores' comparison of states sees the rows of every plugin, in whatever table."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.state import StateMachine
from raftkv.state.digests import DigestWalk
from raftkv.testing.damage import lose

from .raftkv_limbo.pure import LimboLog
from .raftkv_subscriptions.pure import RegionLog
from .raftkv_txqueue.pure import TxLog


def digests(machine: StateMachine) -> dict[str, bytes]:
    walk = DigestWalk(machine.freeze())
    for _ in walk.slices(3):
        pass
    return walk.tables


def written() -> list[Any]:
    """A log of each kind with some rows."""
    queues, limbo, region = TxLog(), LimboLog(), RegionLog()
    queues.publish("q", b"body")
    limbo.promote("n1")
    limbo.sync()
    region.declare("t")
    region.publish("t", b"body")
    region.subscribe()
    return [queues, limbo, region]


@pytest.mark.parametrize("log", written(), ids=lambda log: type(log).__name__)
def test_a_lost_row_of_any_table_changes_the_digest_of_that_table_alone(log: Any) -> None:
    machine: StateMachine = log.machine
    walked = {f"{plugin}.{table}" for plugin, table, _ in machine.freeze()._tables}
    tables = {
        f"{plugin}.{spec.name}"
        for plugin, routed in machine._active.items()
        for spec in routed.plugin.tables
    }
    assert walked == tables
    before = digests(machine)
    filled = [key for key, count in machine.row_counts().items() if count]
    assert {plugin for plugin, _ in filled} > {"core"}
    for plugin, table in filled:
        first = next(iter(machine.view(plugin).table(table).scan()))[0]
        lose(machine, plugin, table, first)
        after = digests(machine)
        differing = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        assert differing == {f"{plugin}.{table}"}
        before = after
