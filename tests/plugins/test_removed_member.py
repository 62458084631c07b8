"""What each plugin keeps of a core ends with the core's removal."""

from __future__ import annotations

from typing import Any

import msgspec

from raftkv.state import SetVoters
from raftkv.state.core import MemberRemoved
from raftkv_cluster_call.commands import Leave
from raftkv_lcr.registry import live_owner
from raftkv_limbo.commands import Declare
from tests.plugins.raftkv_cluster_call.pure import CallLog
from tests.plugins.raftkv_lcr.one_log import Log
from tests.plugins.raftkv_limbo.pure import LimboLog
from tests.plugins.raftkv_subscriptions.pure import RegionLog
from tests.plugins.raftkv_txqueue.pure import TxLog


def remove(log: Any, name: str) -> None:
    """The core is struck off the voters, and then removed, as the leader does it."""
    machine = log.machine
    machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
    member = machine.members[name]
    other = next(each for each in log.sessions if each != name)
    version, voters = machine.voters
    left = tuple(raft_id for raft_id in voters if raft_id != member.raft_id)
    log.run(log.sessions[other], "core", SetVoters(left, version))
    log.run(log.sessions[other], "core", MemberRemoved(member.raft_id))
    assert not machine.members[name].up


def test_item_4_lcr_owner_of_a_removed_core_counts_no_longer() -> None:
    log = Log(("n1", "n2"))
    row = log.register("n2", "A").channel
    remove(log, "n2")
    view = log.machine.view("lcr")
    assert live_owner(view.table("clients")[row.client_id], view.members) is None
    assert ("n2", 1) in view.table("ended")


def test_item_4_limbo_acknowledgements_of_a_removed_core_are_dropped() -> None:
    log = LimboLog()
    log.send("n2", Declare("east"))
    log.sync()
    log.ack("n1", "n2")
    remove(log, "n2")
    assert set(log.table("nodes")) == {"n1"}


def test_item_4_calls_wait_no_longer_for_a_removed_core() -> None:
    log = CallLog()
    assert set(log.table("cursors")) == {"n1", "n2", "n3"}
    remove(log, "n3")
    assert set(log.table("cursors")) == {"n1", "n2"}


def test_item_4_calls_remember_nothing_of_a_removed_core_that_had_left() -> None:
    log = CallLog()
    log.send("n3", Leave("n3", forced=False))
    assert "n3" in log.table("left")
    remove(log, "n3")
    assert "n3" not in log.table("left")


def test_item_4_txqueue_sessions_of_a_removed_core_are_ended() -> None:
    log = TxLog()
    log.open("n2")
    remove(log, "n2")
    assert ("n2", 1) in log.table("ended_nodes")


def test_item_4_subscriptions_consumers_of_a_removed_core_are_ended() -> None:
    log = RegionLog()
    log.subscribe()
    log.attach("n2")
    remove(log, "n2")
    assert ("n2", 1) in log.table("ended_nodes")
