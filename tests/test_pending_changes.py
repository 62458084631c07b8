"""A change of the members is done once it is committed, and relies on voters that can commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from raftkv.errors import ChangePending, MembershipRefused
from raftkv.membership import METHOD, METHOD_2, METHOD_LIST, Request
from raftkv.node import Node
from raftkv.raft import wire
from raftkv.raft.changing import CAUGHT_UP_ENTRIES, add_learner, promote
from raftkv.testing.local_cluster import LocalCluster
from tests.test_membership import in_loop, until, voters


class Behind:
    """While entered, the node takes no entries and answers each message as a heartbeat."""

    def __init__(self, node: Node) -> None:
        self._engine = node._part.engine

    def __enter__(self) -> None:
        receive = self._engine.receive

        def without_entries(link: Any, message: wire.Consensus) -> None:
            if isinstance(message, wire.Append) and message.entries:
                # What a leader sends that does not know where the logs agree.
                message = msgspec.structs.replace(message, prev_index=0, prev_term=0, entries=[])
            receive(link, message)

        self._engine.receive = without_entries

    def __exit__(self, *_: object) -> None:
        del self._engine.receive


async def settled(cluster: LocalCluster) -> tuple[Node, Node, Node]:
    """The leader and the two others, once all three hold the whole log."""
    await until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    others = [node for node in cluster.cores if node is not leader]
    await leader.kv.put(b"k", b"v")
    engine = leader._part.engine
    await until(lambda: len(engine.leading.able(leader.runtime.monotonic())) == 3)
    return leader, *others


async def written(node: Node) -> None:
    """More entries than a voter that a change relies on may lack."""
    for number in range(CAUGHT_UP_ENTRIES + 1):
        await node.kv.put(b"k", b"%d" % number)


async def standing(node: Node, name: str) -> tuple[str, str | None]:
    rows = {row.name: row for row in (await node.membership.survey()).members}
    return rows[name].standing, rows[name].pending


async def pending(change: Callable[[], Awaitable[Any]], words: str) -> None:
    with pytest.raises(ChangePending, match=words):
        await change()


@in_loop
async def test_a_repeated_removal_is_pending_until_it_is_committed() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader, slow, gone = await settled(cluster)
        with Behind(slow):
            for force in (True, False, True):
                await pending(
                    lambda f=force: leader.membership.remove(gone.name, force=f, timeout_s=2),
                    f"the removal of {gone.name} .* is not committed .* may still be rolled back",
                )
            # Every node gives the leader's answer.
            await pending(lambda: slow.membership.remove(gone.name, timeout_s=2), "not committed")
            assert await standing(leader, gone.name) == ("voter", "removed")
            assert not gone.fault.done()
        await slow.membership.remove(gone.name)
        assert (await standing(leader, gone.name))[1] is None
        assert gone.name not in voters(leader)


@in_loop
async def test_a_removal_that_was_said_to_be_pending_may_be_rolled_back() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader, slow, gone = await settled(cluster)
        with Behind(slow):
            remove = leader.membership.remove
            await pending(lambda: remove(gone.name, force=True, timeout_s=2), "rolled back")
            await cluster.kill(leader.name)
        await until(lambda: gone.status().role == "leader")
        assert await standing(slow, gone.name) == ("voter", None)
        await gone.kv.put(b"k", b"w")


@in_loop
async def test_a_repeated_promotion_is_pending_until_it_is_committed() -> None:
    async with LocalCluster(cores=2) as cluster:
        await until(lambda: cluster.leader() is not None)
        leader = cluster.leader()
        assert leader is not None
        other = next(node for node in cluster.cores if node is not leader)
        await leader.kv.put(b"k", b"v")
        engine = leader._part.engine
        new = await cluster.start_new_core("core3")
        await until(lambda: any(peer.startswith("core3") for peer in engine.links))
        raft_id = next(peer for peer in engine.links if peer.startswith("core3"))
        engine.change_configuration(add_learner(engine.configuration, raft_id), force=False)
        await until(lambda: engine.commit >= engine.configurations.latest_index)
        with Behind(other), Behind(new):
            engine.change_configuration(promote(engine.configuration, raft_id), force=True)
            for verb in (leader.membership.promote, leader.membership.add):
                await pending(
                    lambda verb=verb: verb("core3", timeout_s=2), "the promotion of core3"
                )
            assert await standing(leader, "core3") == ("copy", "voter")
        await leader.membership.promote("core3")
        assert await standing(leader, "core3") == ("voter", None)


@in_loop
async def test_a_voter_that_is_heard_and_cannot_commit_does_not_count() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader, slow, other = await settled(cluster)
        with Behind(slow):
            await written(leader)  # the other two commit it
            with pytest.raises(MembershipRefused, match=f"heard, but behind: {slow.name}"):
                await leader.membership.remove(other.name)
            with pytest.raises(MembershipRefused, match=f"heard, but behind: {slow.name}"):
                await leader.membership.remove(leader.name)
            assert len(voters(leader)) == 3
            await leader.kv.put(b"k", b"x")
            # The one that lags is what may go.
            await leader.membership.remove(slow.name)
            await leader.kv.put(b"k", b"y")
        assert sorted(voters(leader)) == sorted([leader.name, other.name])


@in_loop
async def test_a_removal_waits_for_a_voter_that_has_nearly_caught_up() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader, slow, other = await settled(cluster)
        behind = Behind(slow)
        behind.__enter__()
        await written(leader)
        leader.runtime.call_later(0.2, behind.__exit__)
        await leader.membership.remove(other.name)
        await leader.kv.put(b"k", b"x")


@in_loop
async def test_nodes_of_the_former_release_ask_and_answer_under_the_old_names() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader, other, third = await settled(cluster)
        rpc = other.rpc
        answer = msgspec.msgpack.decode(await rpc.call(leader.name, METHOD_LIST, b"", 2.0))
        assert all("pending" not in row for row in answer["members"])
        request = msgspec.msgpack.encode(Request("remove", "core9", False, 1.0))
        refused, retry = msgspec.msgpack.decode(await rpc.call(leader.name, METHOD, request, 2.0))
        assert refused.startswith("core9 is no member of this cluster: ")
        assert not retry
        # A leader of that release knows only the old name.
        del leader.rpc._handlers[METHOD_2]
        await other.membership.remove(third.name)
        assert len(voters(leader)) == 2
