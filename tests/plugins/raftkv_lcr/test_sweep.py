"""The sweep: what is provably dead goes, and whatever is in doubt stays.

The cases are those of upstream's suite for its own sweep, and some of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from raftkv.errors import PeerUnreachable, RaftkvError, Timeout
from raftkv.testing.clock import run
from raftkv_lcr import LCR
from raftkv_lcr.commands import Adopt, Channel, Registered, Restart
from raftkv_lcr.legacy_wire import OLD_ALIVE, OldAlive, OldLiving, pack, unpack
from raftkv_lcr.service import LcrService
from raftkv_lcr.sweep import GRACE_S, LOOK_S, Sweep
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode
from tests.plugins.raftkv_lcr.worlds import OldFakeNode

Living = Sequence[bool] | None


class FakeSessions:
    """A session manager, and the broker behind it."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], Channel] = {}
        self.opening: dict[tuple[str, str], object] = {}
        self.alive: set[str] = set()
        self.looks: list[str] = []
        self.closed: list[Channel] = []

    @property
    def owner(self) -> FakeSessions:
        return self

    def is_alive(self, channel: Channel) -> bool:
        self.looks.append(channel.client_id)
        return channel.client_id in self.alive

    async def close(self, row: Channel) -> None:
        self.closed.append(row)
        del self.held[(row.client_id, row.channel)]


class Swept:
    """A node with a sweep of its own, and what stands in for the session flow and old nodes."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.node = cluster.nodes[name]
        self.sessions = FakeSessions()
        self.questions: list[tuple[str, list[str]]] = []
        #: What each old node answers; missing: all of them live.
        self.answers: dict[str, Callable[[Sequence[Channel]], Living]] = {}
        self.sweep = Sweep(
            self.node,
            self.node.lcr.counters,
            self.node.lcr.held,
            lambda: self.sessions,
            self.ask,
            self.node.lcr.long_runs,
        )

    async def ask(self, node: str, channels: Sequence[Channel]) -> Living:
        self.questions.append((node, [channel.client_id for channel in channels]))
        answer = self.answers.get(node, lambda channels: [True] * len(channels))
        return answer(channels)

    def count(self, name: str) -> int:
        return self.node.lcr.counters[f"sweep_{name}"]


Body = Callable[[Cluster], Awaitable[None]]


def case(body: Body, *, old: Sequence[str] = ()) -> Callable[[], None]:
    """A test on three nodes, of which core1 leads, and on old ones of these names."""

    async def whole() -> None:
        cluster = await Cluster(3, 0).start()
        for name in old:
            await join_as_old(cluster, name)
        await body(cluster)
        cluster.check()

    def test() -> None:
        run(whole())

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def old_case(body: Body) -> Callable[[], None]:
    """A test with two nodes more that know the old registry only."""
    return case(body, old=("old1", "old2"))


async def join_as_old(cluster: Cluster, name: str) -> None:
    node = cluster.nodes[name] = OldFakeNode(cluster, name, "replicant")
    node.catch_up()
    await node.service.start()
    cluster.node_up(node)


async def enter(node: FakeNode, client_id: str, channel: str = "x", of: str = "") -> Channel:
    """A row in the log of which no manager knows."""
    member = node.members[of or node.name]
    row = Channel(client_id, channel, member.name, member.incarnation, 0, 0)
    answer = await node.propose(Adopt(row, True))
    assert isinstance(answer, Registered)
    return answer.channel


def clients(cluster: Cluster) -> list[str]:
    return [key for key, _ in cluster.any_live().view().table("clients").scan()]


# --- rows of this node ----------------------------------------------------------------------------


@case
async def test_local_dead_channel_is_purged(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "dead")
    await swept.sweep.once()
    assert clients(cluster) == []
    assert (swept.count("scanned"), swept.count("deleted_local_dead")) == (1, 1)
    assert swept.sessions.looks == ["dead", "dead"]
    assert swept.count("ms") >= GRACE_S * 1000
    assert swept.count("runs") == 1


@case
async def test_local_live_channel_is_kept(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "live")
    swept.sessions.alive.add("live")
    await swept.sweep.once()
    assert clients(cluster) == ["live"]
    assert swept.count("deleted_local_dead") == 0


@case
async def test_session_that_the_broker_forgot_is_closed(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    row = await enter(swept.node, "forgotten")
    swept.sessions.held[("forgotten", "x")] = row
    await swept.sweep.once()
    assert swept.sessions.closed == [row]
    assert swept.count("deleted_local_dead") == 1


@case
async def test_channel_that_is_being_opened_is_kept(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    swept.sessions.opening[("c", "x")] = object()
    await swept.sweep.once()
    assert clients(cluster) == ["c"]


@case
async def test_channel_that_lives_at_the_second_look_is_kept(cluster: Cluster) -> None:
    """Its registration came out of the log just before the broker knew."""
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    sweep = asyncio.ensure_future(swept.sweep.once())
    await asyncio.sleep(GRACE_S / 2)
    assert clients(cluster) == ["c"]
    swept.sessions.alive.add("c")
    await sweep
    assert clients(cluster) == ["c"]
    assert swept.count("deleted_local_dead") == 0


@case
async def test_what_was_registered_past_the_manager_is_kept(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await swept.node.lcr.connect("own", "x")
    await swept.sweep.once()
    assert clients(cluster) == ["own"]


@case
async def test_without_a_broker_nobody_is_dead(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    counters = swept.node.lcr.counters
    long_runs = swept.node.lcr.long_runs
    await Sweep(swept.node, counters, {}, lambda: None, swept.ask, long_runs).once()
    assert clients(cluster) == ["c"]


@case
async def test_row_that_changed_since_the_look_is_kept(cluster: Cluster) -> None:
    """The client has connected elsewhere: the delete names the row that was looked at."""
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    sweep = asyncio.ensure_future(swept.sweep.once())
    await asyncio.sleep(GRACE_S / 2)
    newer = (await cluster.nodes["core3"].lcr.connect("c", "y")).owner
    await sweep
    assert cluster.nodes["core2"].lcr.lookup_local("c") == newer
    assert swept.count("deleted_local_dead") == 0


@case
async def test_rows_of_a_former_life_are_the_cleaners(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    sweep = asyncio.ensure_future(swept.sweep.once())
    await asyncio.sleep(GRACE_S / 2)
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    await sweep
    assert swept.count("deleted_local_dead") == 0
    assert cluster.nodes["core1"].lcr.counters["cleanup_rows"] == 1


@case
async def test_claim_is_swept_once_it_has_expired(cluster: Cluster) -> None:
    swept = Swept(cluster, "core2")
    owner = (await cluster.nodes["core3"].lcr.connect("c", "owner")).owner
    answer = await swept.node.lcr.register("c", "claimant", predecessor=None)
    assert isinstance(answer, Restart)
    await swept.sweep.once()
    assert swept.node.view().table("clients")["c"].claim is not None
    cluster.stamp_ms += 30_000
    await enter(cluster.nodes["core3"], "other")
    await swept.sweep.once()
    assert swept.node.view().table("clients")["c"].claim is None
    assert swept.node.lcr.lookup_local("c") == owner


# --- rows of old nodes ----------------------------------------------------------------------------


@old_case
async def test_remote_orphan_is_purged(cluster: Cluster) -> None:
    swept = Swept(cluster, "core1")
    await enter(swept.node, "gone", of="old1")
    await enter(swept.node, "lives", of="old1")
    swept.answers["old1"] = lambda channels: [c.client_id == "lives" for c in channels]
    await swept.sweep.once()
    assert clients(cluster) == ["lives"]
    assert swept.count("deleted_remote_orphan") == 1


@old_case
async def test_remote_live_channel_is_kept(cluster: Cluster) -> None:
    swept = Swept(cluster, "core1")
    await enter(swept.node, "lives", of="old1")
    await swept.sweep.once()
    assert swept.questions == [("old1", ["lives"])]
    assert clients(cluster) == ["lives"]


def _raises(error: RaftkvError) -> Callable[[Sequence[Channel]], Living]:
    def answer(channels: Sequence[Channel]) -> Living:
        raise error

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lambda channels: None,
        lambda channels: [],
        lambda channels: [False] * (len(channels) + 1),
        _raises(Timeout("no answer")),
        _raises(PeerUnreachable("gone")),
    ],
    ids=["doubt", "too short", "too long", "timeout", "unreachable"],
)
def test_remote_doubt_keeps_the_row(answer: Callable[[Sequence[Channel]], Living]) -> None:
    async def body(cluster: Cluster) -> None:
        swept = Swept(cluster, "core1")
        await enter(swept.node, "c", of="old1")
        await enter(swept.node, "orphan", of="old2")
        swept.answers["old1"] = answer
        swept.answers["old2"] = lambda channels: [False]
        await swept.sweep.once()
        # One node's doubt is no other's.
        assert clients(cluster) == ["c"]
        assert swept.count("kept_in_doubt") == 1
        assert swept.count("runs") == 1

    old_case(body)()


@old_case
async def test_each_old_node_is_asked_once_per_sweep(cluster: Cluster) -> None:
    cluster.set("sweep_rows_per_s", 20)
    swept = Swept(cluster, "core1")
    for number in range(10):
        await enter(swept.node, f"a{number}", of="old1")
        await enter(swept.node, f"b{number}", of="old2")
    await swept.sweep.once()
    assert sorted(swept.questions) == [
        ("old1", [f"a{number}" for number in range(10)]),
        ("old2", [f"b{number}" for number in range(10)]),
    ]
    await swept.sweep.once()
    assert len(swept.questions) == 4


@old_case
async def test_only_the_leader_asks_and_only_old_nodes(cluster: Cluster) -> None:
    leader, other = Swept(cluster, "core1"), Swept(cluster, "core3")
    await enter(leader.node, "old", of="old1")
    await enter(leader.node, "new", of="core2")
    await other.sweep.once()
    assert other.questions == []
    await leader.sweep.once()
    assert leader.questions == [("old1", ["old"])]


@old_case
async def test_old_node_that_began_a_new_life_is_not_asked_for_its_former(
    cluster: Cluster,
) -> None:
    swept = Swept(cluster, "core1")
    swept.answers["old1"] = lambda channels: [False] * len(channels)
    await enter(swept.node, "c", of="old1")
    release = cluster.hold("core1")
    cluster.declare_dead("old1")
    cluster.rejoin("old1")
    await swept.sweep.once()
    assert swept.questions == []
    release()
    await asyncio.sleep(10.0)


@old_case
async def test_more_than_one_question_is_asked_over_several_sweeps(cluster: Cluster) -> None:
    """Long client ids: what has no room in one call is asked next time, and none is left out."""
    swept = Swept(cluster, "core1")
    ids = [f"{number}" + "x" * 15_000 for number in range(9)]
    for client_id in ids:
        await enter(swept.node, client_id, of="old1")
    for _ in range(3):
        await swept.sweep.once()
    asked = [client_id for _, part in swept.questions for client_id in part]
    assert asked == ids
    await swept.sweep.once()
    assert swept.questions[-1] == swept.questions[0]


@old_case
async def test_an_old_node_is_asked_in_its_own_protocol(cluster: Cluster) -> None:
    """The node's own sweep, and the call as it goes over the wire."""
    node = cluster.nodes["core1"]
    gone = await enter(node, "gone", of="old1")
    await enter(node, "lives", of="old1")

    async def answer(sender: str, payload: bytes) -> bytes:
        channels = unpack(payload, OldAlive).channels
        return pack(OldLiving(tuple(channel != gone for channel in channels)))

    cluster.nodes["old1"].rpc.register(OLD_ALIVE, answer)
    assert isinstance(node.service, LcrService)
    await node.service.sweep.once()
    assert clients(cluster) == ["lives"]
    assert node.lcr.counters["old_calls_made"] == 1

    async def nonsense(sender: str, payload: bytes) -> bytes:
        return b"\xc1"

    cluster.nodes["old1"].rpc.register(OLD_ALIVE, nonsense)
    await node.service.sweep.once()
    assert clients(cluster) == ["lives"]
    assert node.lcr.counters["sweep_kept_in_doubt"] == 1


# --- history --------------------------------------------------------------------------------------


async def _left(cluster: Cluster, count: int) -> FakeNode:
    """So many clients have come and gone; the leader."""
    cluster.set("history_ms", 5_000)
    leader = cluster.nodes["core1"]
    for number in range(count):
        owner = (await leader.lcr.connect(f"c{number:03}", "x")).owner
        assert owner is not None
        await leader.lcr.unregister(owner)
    return leader


def _history(node: FakeNode) -> int:
    return len(node.view().table("past"))


@case
async def test_history_is_not_touched_before_it_expires(cluster: Cluster) -> None:
    leader = await _left(cluster, 10)
    proposed = leader.proposed
    await Swept(cluster, "core1").sweep.once()
    assert _history(leader) == 10
    # And nothing is proposed for nothing.
    assert leader.proposed == proposed


def test_expired_history_is_purged_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: Cluster) -> None:
        leader = await _left(cluster, 25)
        cluster.set("cleanup_rows_max", 10)
        cluster.stamp_ms += 5_000
        # The log stands still; a node knows all the same how late it is.
        monkeypatch.setattr(leader, "now_ms", lambda: cluster.stamp_ms)
        proposed = leader.proposed
        follower = Swept(cluster, "core2")
        monkeypatch.setattr(follower.node, "now_ms", lambda: cluster.stamp_ms)
        await follower.sweep.once()
        assert _history(leader) == 25
        swept = Swept(cluster, "core1")
        await swept.sweep.once()
        assert _history(leader) == 0
        assert leader.proposed - proposed == 3
        assert swept.count("deleted_history") == 25

    case(body)()


# --- pace -----------------------------------------------------------------------------------------


@case
async def test_no_more_rows_per_second_than_allowed(cluster: Cluster) -> None:
    cluster.set("sweep_rows_per_s", 50)
    node = cluster.nodes["core2"]
    await asyncio.gather(*(node.lcr.connect(f"c{number}", "x") for number in range(200)))
    swept = Swept(cluster, "core1")
    started = node.runtime.monotonic()
    sweep = asyncio.ensure_future(swept.sweep.once())
    for second in range(1, 4):
        await asyncio.sleep(1.0)
        assert swept.count("scanned") <= 50 * second + 5
    await sweep
    assert swept.count("scanned") == 200
    assert node.runtime.monotonic() - started >= 4.0


@case
async def test_deletions_keep_the_pace_too(cluster: Cluster) -> None:
    cluster.set("sweep_rows_per_s", 10)
    swept = Swept(cluster, "core2")
    for number in range(20):
        await enter(swept.node, f"c{number}")
    started = swept.node.runtime.monotonic()
    await swept.sweep.once()
    assert clients(cluster) == []
    assert swept.node.runtime.monotonic() - started >= 2.0 + GRACE_S + 2.0


@case
async def test_one_sweep_per_interval(cluster: Cluster) -> None:
    """The sweeps that each node's service runs, and the setting as it changes."""
    counters = cluster.nodes["core2"].lcr.counters
    cluster.set("sweep_interval_s", 60)
    await asyncio.sleep(59.0)
    assert counters["sweep_runs"] == 0
    await asyncio.sleep(60 * 10)
    assert 9 <= counters["sweep_runs"] <= 10
    cluster.set("sweep_interval_s", 0)
    await asyncio.sleep(LOOK_S)
    runs = counters["sweep_runs"]
    await asyncio.sleep(3600.0)
    assert counters["sweep_runs"] == runs
    cluster.set("sweep_interval_s", 5)
    await asyncio.sleep(LOOK_S + 20.0)
    assert counters["sweep_runs"] >= runs + 3


@case
async def test_a_cluster_that_does_not_answer_is_left_for_the_next_sweep(
    cluster: Cluster,
) -> None:
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    cluster.filter = lambda node, envelope: False
    await swept.sweep.once()
    assert (swept.count("runs"), clients(cluster)) == (0, ["c"])
    cluster.filter = lambda node, envelope: True
    await swept.sweep.once()
    assert (swept.count("runs"), clients(cluster)) == (1, [])


@case
async def test_a_brokers_mistake_is_not_the_end_of_all_sweeps(cluster: Cluster) -> None:
    cluster.set("sweep_interval_s", 60)
    swept = Swept(cluster, "core2")
    await enter(swept.node, "c")
    right = swept.sessions.is_alive

    def wrong(channel: Channel) -> bool:
        raise RuntimeError("the broker stumbled")

    swept.sessions.is_alive = wrong  # type: ignore[method-assign]
    task = asyncio.ensure_future(swept.sweep.run())
    await asyncio.sleep(100.0)
    assert clients(cluster) == ["c"]
    swept.sessions.is_alive = right  # type: ignore[method-assign]
    await asyncio.sleep(100.0)
    assert clients(cluster) == []
    task.cancel()


def test_every_metric_of_the_sweep_is_shown() -> None:
    async def body(cluster: Cluster) -> None:
        node = cluster.nodes["core1"]
        await enter(node, "c")  # by then everybody has announced itself who can
        shown: dict[str, Any] = {metric.name: metric.value for metric in node.service.metrics()}
        for name in ("runs", "scanned", "deleted_local_dead", "deleted_remote_orphan", "ms"):
            assert shown[f"sweep_{name}_total"] == 0
        assert shown["old_nodes"] == 2
        assert shown["history_rows"] == 0
        assert node.service.status()["mode"] == "disabled"
        assert LCR().invariants(node.view()) == []

    old_case(body)()
