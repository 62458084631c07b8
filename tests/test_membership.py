"""Growing, shrinking and mending a running cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits
from raftkv.errors import (
    MembershipRefused,
    NoLeader,
    NotApplied,
    OutcomeUnknown,
    RemovedNode,
    Timeout,
)
from raftkv.node import Node
from raftkv.parts import CorePart
from raftkv.raft.membership import name_of
from raftkv.rebuild import Rebuild
from raftkv.testing.local_cluster import LocalCluster, free_ports


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 50))

    return run


async def until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def asked(change: Callable[[], Awaitable[Any]]) -> None:
    """Ask again, as the error says, when the leader was held up and did not answer in time."""
    for _ in range(3):
        with contextlib.suppress(NoLeader, Timeout):
            await change()
            return


async def refused(change: Callable[[], Awaitable[Any]], words: str) -> None:
    with pytest.raises(MembershipRefused, match=words):
        await asked(change)


def voters(node: Node) -> list[str]:
    return [core.name for core in node.membership.list() if core.votes]


class Writers:
    """A load that counts on: every acknowledged number must be found later."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self.failed: list[bytes] = []
        self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        number = 0
        while True:
            number += 1
            key = b"%06d" % number
            nodes = self._cluster.nodes
            try:
                await nodes[number % len(nodes)].kv.put(key, key, timeout_s=20)
            except (NotApplied, OutcomeUnknown, RemovedNode):
                self.failed.append(key)
                await asyncio.sleep(0)  # a stopped node refuses without waiting
                continue  # its node was stopped: nothing was promised
            self.acknowledged.append(key)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def check(self, node: Node) -> None:
        await node.barrier(timeout_s=20)
        rows = dict(node.machine.view("kv").table("keys").scan())
        assert set(self.acknowledged) <= set(rows)
        assert all(row.version == 1 for row in rows.values())


def announced(node: Node) -> list[str]:
    """Whom the state takes for voters."""
    return [name_of(raft_id) for raft_id in node.machine.voters[1]]


@in_loop
async def test_a_removal_that_is_not_carried_out_leaves_the_state_right() -> None:
    async with LocalCluster(cores=3) as cluster:
        await until(lambda: cluster.leader() is not None)
        leader = cluster.leader()
        assert leader is not None
        await until(lambda: len(announced(leader)) == 3)
        gone = next(node.name for node in cluster.nodes if node is not leader)

        def refuse(*args: Any, **named: Any) -> int:
            assert gone not in announced(leader)
            raise MembershipRefused("not today")

        leader._part.engine.change_configuration = refuse
        with pytest.raises(MembershipRefused, match="not today"):
            await leader.membership.remove(gone)
        await leader.kv.put(b"k", b"v")
        await until(lambda: gone in announced(leader))


@in_loop
async def test_a_cluster_grows_from_one_to_five_and_shrinks_back_under_load() -> None:
    async with LocalCluster(cores=1) as cluster:
        first = cluster.nodes[0]
        writers = Writers(cluster)
        for number in (2, 3, 4, 5):
            name = f"core{number}"
            node = await cluster.start_new_core(name)
            await until(lambda name=name: any(p.startswith(name) for p in first._part.engine.links))
            await cluster.nodes[number - 2].membership.add(name)
            await node.wait_ready()
            await until(lambda n=number, node=node: len(voters(node)) == n)
        assert voters(first) == ["core1", "core2", "core3", "core4", "core5"]
        await until(lambda: announced(first) == voters(first))
        seen = len(writers.acknowledged)
        await until(lambda: len(writers.acknowledged) > seen + 20)
        for number in (5, 4, 3, 2):
            name = f"core{number}"
            await first.membership.remove(name)
            assert name not in announced(first)  # the state knew before it was done
            await cluster.kill(name)
        assert voters(first) == announced(first) == ["core1"]
        seen = len(writers.acknowledged)
        await until(lambda: len(writers.acknowledged) > seen + 20)
        await writers.stop()
        await writers.check(first)


@in_loop
async def test_a_leader_is_removed_by_its_successor() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        others = [node for node in cluster.nodes if node is not leader]
        await others[0].kv.put(b"k", b"v")
        await leader.membership.remove(leader.name)
        await until(lambda: all(leader.name not in voters(node) for node in others))
        assert (await others[1].kv.get(b"k")).value == b"v"
        await others[1].kv.put(b"k", b"w")


@pytest.mark.parametrize("who", ["leader", "other"])
def test_a_removal_waits_for_voters_that_were_not_heard_just_now(who: str) -> None:
    """As in a cluster that has just started: the followers' answers are still under way."""

    async def story() -> None:
        async with LocalCluster(cores=3) as cluster:
            leader = cluster.leader()
            assert leader is not None
            engine = leader._part.engine
            leading, looks = engine.leading, 0

            def late(now: float) -> list[str]:
                nonlocal looks
                looks += 1
                return [engine.me] if looks < 5 else type(leading).alive(leading, now)

            leading.alive = late
            gone = leader if who == "leader" else next(n for n in cluster.cores if n is not leader)
            await leader.membership.remove(gone.name)
            assert looks >= 5
            rest = [node for node in cluster.cores if node is not gone]
            await until(lambda: all(gone.name not in voters(node) for node in rest))
            await rest[0].kv.put(b"k", b"v")

    asyncio.run(asyncio.wait_for(story(), 50))


@in_loop
async def test_a_dead_core_is_replaced_and_its_old_self_is_told() -> None:
    limits = Limits(snapshot_log_entries=50, log_tail_entries=5)
    async with LocalCluster(cores=3, replicants=1, limits=limits) as cluster:
        leader = cluster.leader()
        assert leader is not None
        for number in range(200):
            await leader.kv.put(b"%d" % number, b"x")
        dead = next(node.name for node in cluster.cores if node is not leader)
        await cluster.kill(dead)
        await leader.membership.remove(dead)
        fresh = await cluster.start_new_core("core4")
        await until(lambda: any(peer.startswith("core4") for peer in leader._part.engine.links))
        await cluster.replicants[0].membership.add("core4")
        await fresh.wait_ready()
        assert sorted(voters(fresh)) == sorted({"core1", "core2", "core3", "core4"} - {dead})
        assert (await fresh.kv.range()).count == 200
        old = await cluster.start(dead)
        fault = await asyncio.wait_for(asyncio.shield(old.fault), 20)
        assert isinstance(fault, RemovedNode)
        await leader.kv.put(b"more", b"x")


@in_loop
async def test_a_wiped_core_comes_back_as_a_new_member() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        name = next(node.name for node in cluster.cores if node is not leader)
        await leader.kv.put(b"k", b"v")
        await cluster.kill(name)
        await leader.membership.remove(name)
        cluster.configs[name] = msgspec.structs.replace(
            cluster.configs[name], dir=f"{cluster.directory}/{name}-new"
        )
        node = await cluster.start(name)
        await until(lambda: any(peer.startswith(name) for peer in leader._part.engine.links))
        await leader.membership.add(name)
        await node.wait_ready()
        assert sorted(voters(node)) == ["core1", "core2", "core3"]


@pytest.mark.parametrize("with_address", [False, True])
def test_a_name_that_another_directory_holds_is_not_added(
    with_address: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rebuilt core does it, the new process goes on although it is refused as wiped."""
    monkeypatch.setattr(Rebuild, "on_wiped", lambda rebuild, text: True)

    @in_loop
    async def run() -> None:
        async with LocalCluster(cores=3) as cluster:
            leader = cluster.leader()
            assert leader is not None
            former = next(node for node in cluster.cores if node is not leader)
            name, address = former.name, former.config.peer_address
            chosen = address if with_address else None
            await leader.membership.add(name, address=chosen)
            await cluster.kill(name)
            await leader.membership.add(name, address=chosen)  # it may be repeated meanwhile
            cluster.configs[name] = msgspec.structs.replace(
                cluster.configs[name], dir=f"{cluster.directory}/{name}-new"
            )
            node = await cluster.start(name)
            assert node.raft_id != former.raft_id
            with pytest.raises(MembershipRefused, match=f"remove {name} first") as caught:
                await leader.membership.add(name, address=chosen)
            assert former.raft_id in str(caught.value)
            assert f"{address} ({node.raft_id})" in str(caught.value)
            await leader.membership.remove(name)
            await leader.membership.add(name, address=chosen)
            await node.wait_ready()
            assert sorted(voters(node)) == ["core1", "core2", "core3"]

    run()


@in_loop
async def test_what_cannot_be_done_says_so() -> None:
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        other = next(node for node in cluster.cores if node is not leader)
        await refused(
            lambda: other.membership.add("nobody", timeout_s=0.2),
            "no core called 'nobody' is connected",
        )
        # No node can be called so: nothing is waited for.
        await refused(lambda: other.membership.add("a/b", timeout_s=600), "not a valid name")
        await refused(lambda: other.membership.promote("nobody"), "no core of this cluster")
        await refused(lambda: leader.membership.remove("nobody"), "is no member of this cluster")
        await leader.membership.add(other.name)
        third = next(n for n in cluster.cores if n not in (leader, other))
        await cluster.kill(third.name)
        await until(lambda: len(leader._part.engine.links) == 1)
        await refused(lambda: leader.membership.remove(other.name), "too few can be heard")
        await leader.membership.remove(third.name)
        assert len(voters(leader)) == 2


@in_loop
async def test_a12_a_removal_that_is_repeated_is_done() -> None:
    """A caller that lost the first answer may ask again, at any node, a new leader included."""
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        gone, other = (node for node in cluster.cores if node is not leader)
        await leader.membership.remove(gone.name)
        await until(lambda: gone.name in leader.machine.removed_members)
        await cluster.kill(gone.name)
        for node in (leader, other):
            await node.membership.remove(gone.name)
        await leader.membership.remove(leader.name)
        await until(lambda: cluster.leader() is other)
        await other.membership.remove(gone.name)
        await refused(lambda: other.membership.remove("core9"), "is no member of this cluster")
        assert voters(other) == [other.name]


@in_loop
async def test_what_would_lose_the_quorum_is_refused_unless_it_is_forced() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        leader = cluster.leader()
        assert leader is not None
        dead, other = (node.name for node in cluster.cores if node is not leader)
        await cluster.kill(dead)
        await until(lambda: len(leader._part.engine.links) == 1)
        # Two of three are left: neither may go, the leader no more than the other.
        await refused(lambda: leader.membership.remove(other), "too few can be heard")
        await refused(lambda: leader.membership.remove(leader.name), "too few can be heard")
        # A copy that nobody reaches is not made, and one more voter is no problem.
        await refused(lambda: leader.membership.add("core9", timeout_s=0.2), "say at which address")
        await leader.membership.promote("replicant1")
        assert len(voters(leader)) == 4
        await leader.membership.remove(dead)
        await leader.membership.remove(other)
        await cluster.kill(other)
        assert voters(leader) == sorted([leader.name, "replicant1"])
        await cluster.kill("replicant1")
        await until(lambda: not leader._part.engine.links)
        # The last one that lives: it cannot hand over to the dead, forced or not.
        with pytest.raises((MembershipRefused, NoLeader, Timeout)):
            await leader.membership.remove(leader.name, force=True, timeout_s=1)
        assert leader.name in voters(leader)


@in_loop
async def test_the_last_voter_stays_whatever_is_forced() -> None:
    async with LocalCluster(cores=2) as cluster:
        leader = cluster.leader()
        assert leader is not None
        other = next(node.name for node in cluster.cores if node is not leader)
        await leader.kv.put(b"k", b"v")
        await leader.membership.remove(other)
        await refused(lambda: leader.membership.remove(leader.name), "is the last voter")
        await refused(
            lambda: leader.membership.remove(leader.name, force=True), "is the last voter"
        )
        await leader.kv.put(b"k", b"w")


@in_loop
async def test_a_core_in_nobodys_file_is_added_by_its_address() -> None:
    """It knows only one core, and that is not the leader; hearsay or an address brings it in."""
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        knows = next(node for node in cluster.cores if node is not leader)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        cluster.configs["a-core"] = msgspec.structs.replace(
            cluster.configs[knows.name],
            name="a-core",
            dir=f"{cluster.directory}/a-core",
            peer_address=address,
            cores={"a-core": address, knows.name: knows.config.peer_address},
        )
        node = await cluster.start("a-core")
        await leader.membership.add("a-core", address=address)
        await node.wait_ready()
        assert "a-core" in voters(leader)
        listing = await node.membership.survey()
        assert listing.told_by == leader.name
        assert [row.standing for row in listing.members] == ["voter"] * 4
        assert all(row.up and row.connected for row in listing.members)
        assert {row.name for row in listing.members if row.leads} == {leader.name}


# Promotion ---------------------------------------------------------------------------------------


async def promoted(cluster: LocalCluster, name: str) -> Node:
    """Promote the replicant while it is written to; every answer must come, none may be lost."""
    node = cluster.running[name]
    writers = Writers(cluster)
    await until(lambda: len(writers.acknowledged) > 20)
    incarnation, session = node.incarnation, node.session
    await cluster.nodes[0].membership.promote(name)
    assert (node.role, node.incarnation, node.session) == ("core", incarnation, session)
    seen = len(writers.acknowledged)
    await until(lambda: len(writers.acknowledged) > seen + 20)
    await writers.stop()
    assert not writers.failed, "no call through any node has failed"
    await writers.check(node)
    return node


@in_loop
async def test_a_replicant_is_promoted_and_stays_a_core_after_a_restart() -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        node = await promoted(cluster, "replicant1")
        assert voters(node) == ["core1", "core2", "core3", "replicant1"]
        await until(lambda: node.machine.members["replicant1"].role == "core")
        assert node.config.role == "replicant"
        await cluster.restart("replicant1")
        node = cluster.running["replicant1"]
        assert (node.role, node.status().role) == ("core", "follower")
        await node.kv.put(b"k", b"v")
        await cluster.converge()
        assert len({each.machine.digest() for each in cluster.nodes}) == 1
        # It counts: two of the four others may go, in turn, and it leads if it must.
        for name in ("core1", "core2", "core3"):
            await node.membership.remove(name)
            await cluster.kill(name)
        assert voters(node) == ["replicant1"]
        await node.kv.put(b"k", b"w")


@in_loop
async def test_a_promoted_replicant_catches_up_over_snapshots() -> None:
    limits = Limits(snapshot_log_entries=40, log_tail_entries=2)
    async with LocalCluster(cores=1, replicants=2, limits=limits) as cluster:
        for number in range(120):
            await cluster.nodes[0].kv.put(b"x%d" % number, b"x")
        await promoted(cluster, "replicant2")
        assert voters(cluster.running["core1"]) == ["core1", "replicant2"]
        assert cluster.running["replicant1"].role == "replicant"


@in_loop
async def test_a_promotion_may_be_asked_for_twice_and_by_the_replicant_itself() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, replicant = cluster.nodes
        await asyncio.gather(
            core.membership.promote("replicant1"), replicant.membership.promote("replicant1")
        )
        await replicant.membership.promote("replicant1")
        assert voters(replicant) == ["core1", "replicant1"]


@in_loop
async def test_the_link_of_a_machine_that_is_gone_does_not_stand_for_its_successor() -> None:
    """No packet tells that it is gone, so its link stays for as long as TCP tries."""
    async with LocalCluster(cores=3) as cluster:
        leader = cluster.leader()
        assert leader is not None
        gone = next(node for node in cluster.cores if node is not leader)
        assert isinstance(leader._part, CorePart)
        links, former = leader._part.engine.links, gone.raft_id
        link = links[former]
        await cluster.kill(gone.name)
        await leader.membership.remove(gone.name)
        await until(lambda: former not in links)
        others = dict(links)
        links.clear()
        links.update({former: link, **others})
        config = cluster.configs[gone.name]
        cluster.configs[gone.name] = msgspec.structs.replace(config, dir=f"{config.dir}-new")
        node = await cluster.start(gone.name)
        await leader.membership.add(gone.name)
        assert node.raft_id in leader._part.engine.configuration.voters


@in_loop
async def test_a_promoted_replicant_that_lost_its_directory_is_a_replicant_again() -> None:
    """Its file says replicant and its directory says nothing: its vote was the old directory's."""
    async with LocalCluster(cores=2, replicants=1) as cluster:
        core = cluster.nodes[0]
        await core.membership.promote("replicant1")
        await cluster.kill("replicant1")
        shutil.rmtree(cluster.configs["replicant1"].dir)
        node = await cluster.restart("replicant1")
        assert node.role == "replicant"
        await refused(lambda: core.membership.promote("replicant1"), "under another data directory")
        await core.membership.remove("replicant1")
        await core.membership.promote("replicant1")
        assert voters(core) == ["core1", "core2", "replicant1"]


@in_loop
async def test_a_crash_in_a_promotion_leaves_a_replicant_or_a_core() -> None:
    """The directory is copied after every step of it; each copy must start as what it is."""
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, replicant = cluster.nodes
        await core.kv.put(b"k", b"v")
        copies: list[str] = []
        directory = replicant.config.dir

        def copy() -> None:
            copies.append(f"{directory}-{len(copies)}")
            shutil.copytree(directory, copies[-1])

        watched(replicant.runtime.files, copy)
        await core.membership.promote("replicant1")
        await cluster.kill("replicant1")
        await core.membership.remove("replicant1", force=True)
        roles = []
        for path in copies:
            config = msgspec.structs.replace(cluster.configs["replicant1"], dir=path)
            node = Node(config, plugins=())
            await node.start()
            roles.append(node.role)
            assert node.machine.index >= (1 if node.role == "replicant" else 2)
            await node.stop()
        assert roles == sorted(roles, reverse=True)
        assert set(roles) == {"replicant", "core"}


def watched(files: Any, copy: Callable[[], None]) -> None:
    """Call `copy` before every change that makes something durable or visible."""
    for name in ("rename", "sync_dir", "remove"):
        original = getattr(files, name)

        def wrapped(*args: Any, original: Any = original) -> Any:
            copy()
            return original(*args)

        setattr(files, name, wrapped)


@in_loop
async def test_what_cannot_be_promoted_says_so() -> None:
    async with LocalCluster(cores=1, replicants=1) as cluster:
        core, replicant = cluster.nodes
        await refused(lambda: core.membership.add("replicant1"), "is a replicant: promote it")
        await refused(lambda: core.membership.remove("replicant1"), "just stop it")
        await refused(lambda: core.membership.promote("core9"), "no replicant of that name is up")

        def full(*args: Any) -> Any:
            raise OSError(28, "no space left on device")

        open_file, replicant.runtime.files.open = replicant.runtime.files.open, full
        await refused(lambda: core.membership.promote("replicant1", timeout_s=2), "no space left")
        assert replicant.role == "replicant"
        await replicant.kv.put(b"k", b"v")
        replicant.runtime.files.open = open_file
        await core.membership.promote("replicant1")
        assert voters(replicant) == ["core1", "replicant1"]
