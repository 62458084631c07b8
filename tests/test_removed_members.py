"""The leader tells the state of each removal that has committed, and so does each leader after."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from raftkv.errors import Timeout
from raftkv.raft.changing import remove
from raftkv.removed_members import RETRY_S, RemovedMembers
from raftkv.state import Envelope
from raftkv.state.core import MemberRemoved

from .state.harness import encode, node_up
from .test_voter_news import FakeNode, on_a_clock, rounds

TERM = 2


class Node(FakeNode):
    """One of three cores, on which the test decides who leads and what is applied."""

    def __init__(self, core_format: int = 2) -> None:
        super().__init__("a-1", "b-1", "c-1")
        machine = self.machine
        if core_format > 1:
            machine.raise_format(machine.index + 1, msgspec.msgpack.encode(core_format))
        for nonce, name in ((90, "b"), (91, "c")):
            up = node_up(nonce, name, machine, raft_id=f"{name}-1")
            self.driver.batch([Envelope(0, nonce, 0, "core", encode(up))])
        self.removed = RemovedMembers(self)  # type: ignore[arg-type]  # what it uses of a node
        self.removed.start()

    def commit_removal(self, raft_id: str, index: int) -> None:
        self.change(index, lambda now: remove(now, raft_id))
        self._part.engine.commit = index

    def proposed(self) -> list[Any]:
        return [command for command, _ in self.under_way]


@on_a_clock
async def test_item_4_removal_is_told_once_it_has_committed() -> None:
    node = Node()
    node.removed.look()
    await rounds()
    assert node.proposed() == []
    node.change(11, lambda now: remove(now, "c-1"))
    node.removed.look()
    await rounds()
    assert node.proposed() == []  # another leader may roll it back
    node._part.engine.commit = 11
    node.removed.look()
    await rounds()
    assert node.proposed() == [MemberRemoved("c-1")]
    node.answer()
    node.removed.look()
    await rounds()
    assert node.proposed() == []
    assert not node.machine.members["c"].up
    assert node.machine.members["b"].up


@on_a_clock
async def test_item_4_every_leader_proposes_it_until_it_is_applied() -> None:
    node = Node()
    node.commit_removal("c-1", 11)
    node.removed.look()
    await rounds()
    node.lose(Timeout("no majority", session=1, seq=1))
    node._part.leads = False
    node.removed.look()
    await asyncio.sleep(2 * RETRY_S)
    assert node.proposed() == []
    node._part.leads, node._part.engine.term = True, TERM
    node.removed.look()
    await rounds()
    node.lose(Timeout("no majority", session=1, seq=2))
    await asyncio.sleep(2 * RETRY_S)
    assert node.proposed() == [MemberRemoved("c-1")]
    node.answer()
    await rounds()
    assert not node.machine.members["c"].up


@on_a_clock
async def test_item_4_row_that_comes_up_again_after_it_is_ended_again() -> None:
    node = Node()
    node.commit_removal("c-1", 11)
    node.removed.look()
    await rounds()
    node.answer()
    node.removed.look()
    await rounds()
    # Sent by the removed core before it knew.
    late = node_up(95, "c", node.machine, raft_id="c-1")
    node.driver.batch([Envelope(0, 95, 0, "core", encode(late))])
    assert node.machine.members["c"].up
    node.removed.look()
    await rounds()
    assert node.proposed() == [MemberRemoved("c-1")]
    node.answer()
    assert not node.machine.members["c"].up


@on_a_clock
async def test_item_4_another_directory_under_the_name_is_left_alone() -> None:
    node = Node()
    node.commit_removal("c-1", 11)
    again = node_up(95, "c", node.machine, raft_id="c-2")
    node.driver.batch([Envelope(0, 95, 0, "core", encode(again))])
    node.removed.look()
    await rounds()
    assert node.proposed() == []


@on_a_clock
async def test_item_4_below_format_2_nothing_is_proposed() -> None:
    node = Node(core_format=1)
    node.commit_removal("c-1", 11)
    node.removed.look()
    await rounds()
    assert node.proposed() == []
    node.machine.raise_format(node.machine.index + 1, msgspec.msgpack.encode(2))
    node.removed.look()
    await rounds()
    assert node.proposed() == [MemberRemoved("c-1")]
