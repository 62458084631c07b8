"""A removal that has committed ends what the state keeps of the core."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import SessionExpired, UnknownCommand
from raftkv.plugin import Context
from raftkv.state import Envelope, MemberChange, SetVoters, StateMachine
from raftkv.state.core import DeclareDead, MemberRemoved

from .harness import Bank, Close, Driver, Shop, copy_of, encode, node_up


class Watching(Bank):
    """Notes the changes of members that it is notified of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[MemberChange] = []

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        super().on_members(change, ctx)
        self.seen.append(change)


def started(core_format: int = 2) -> tuple[Driver, Watching]:
    """n1 and n2 are up, n1 votes; the session is that of n1."""
    bank = Watching()
    driver = Driver(StateMachine([bank, Shop()]))
    driver.start("n2", raft_id="n2-old")
    driver.start("n1", raft_id="n1-a")
    if core_format > 1:
        index = driver.machine.index + 1
        driver.machine.raise_format(index, msgspec.msgpack.encode(core_format))
    driver.send(SetVoters(("n1-a",), 0), "core")
    bank.seen.clear()
    return driver, bank


def removed(driver: Driver, raft_id: str = "n2-old") -> Any:
    return driver.send(MemberRemoved(raft_id), "core")


def test_item_4_ends_the_incarnation_and_the_session_and_tells_plugins_once() -> None:
    driver, bank = started()
    before = driver.machine.members["n2"]
    assert removed(driver).incarnation == 2
    member = driver.machine.members["n2"]
    assert (member.up, member.incarnation, member.started_ms) == (False, 2, driver.now)
    assert bank.seen == [MemberChange(before, None, 1)]
    assert driver.machine.session_count == 1
    assert driver.machine.formats_of("n2") == {}
    assert dict(driver.machine.removed_members.scan()) == {"n2": "n2-old"}
    assert removed(driver) is None
    assert len(bank.seen) == 1
    assert copy_of(driver.machine).digest() == driver.machine.digest()


def test_item_4_core_that_was_declared_dead_before_is_removed_all_the_same() -> None:
    driver, bank = started()
    driver.send(DeclareDead("n2", 1, 0), "core")
    down = driver.machine.members["n2"]
    bank.seen.clear()
    assert removed(driver).incarnation == 2
    assert driver.machine.members["n2"] == down
    assert bank.seen == [MemberChange(down, None, None)]
    assert removed(driver) is None


def test_item_4_voters_replicants_and_others_are_passed_over() -> None:
    driver, bank = started()
    driver.start("r1", raft_id="r1-x", role="replicant")
    session, driver.session = driver.session, driver.session
    bank.seen.clear()
    for raft_id in ("n1-a", "r1-x", "n9-x", "", "n2"):
        assert removed(driver, raft_id) is None
    assert driver.session == session
    assert bank.seen == []
    assert all(member.up for member in driver.machine.members.values())


def test_item_4_core_of_that_name_may_come_back_and_is_not_the_removed_one() -> None:
    driver, bank = started()
    removed(driver)
    up = node_up(99, "n2", driver.machine, raft_id="n2-new")
    envelope = Envelope(0, 99, 0, "core", encode(up))
    [opened] = driver.batch([envelope])
    assert opened.incarnation == 3
    assert dict(driver.machine.removed_members.scan()) == {}
    bank.seen.clear()
    assert removed(driver) is None
    assert driver.machine.members["n2"].up
    assert bank.seen == []


def test_item_4_what_the_removed_core_still_sends_is_refused() -> None:
    driver, _ = started()
    other = driver.session
    driver.start("n3", raft_id="n3-x")
    driver.send(MemberRemoved("n3-x"), "core")
    # The command was applied, and ended the session that it came by.
    assert isinstance(driver.send(Close("a")), SessionExpired)
    driver.session = other
    assert not isinstance(driver.send(Close("a"), seq=1_000), SessionExpired)


@pytest.mark.parametrize("core_format", [1])
def test_item_4_at_format_1_it_is_a_command_that_cannot_be_decoded(core_format: int) -> None:
    driver, bank = started(core_format)
    digest = driver.machine.digest()
    assert isinstance(removed(driver), UnknownCommand)
    assert bank.seen == []
    assert driver.machine.members["n2"].up
    assert digest != ""
