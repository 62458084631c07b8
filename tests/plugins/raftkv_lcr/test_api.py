"""The service half on a faked log: the flow of a connect, doubts, lost channels, cleaning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from raftkv.errors import Timeout, TooLarge
from raftkv.plugin import Request
from raftkv.state import Envelope
from raftkv.testing.clock import run
from raftkv_lcr import Channel, ConnectResult, OutdatedEarly, Registered
from raftkv_lcr.api import RETRIES_MAX
from raftkv_lcr.commands import Entry, Register, Unregister
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode

Scenario = Callable[[Cluster], Awaitable[None]]


def scenario(cores: int = 3, replicants: int = 0) -> Callable[[Scenario], Callable[[], None]]:
    """A test on a started cluster, in virtual time, with the invariants checked at its end."""

    def wrap(body: Scenario) -> Callable[[], None]:
        async def whole() -> None:
            cluster = await Cluster(cores, replicants).start()
            await body(cluster)
            cluster.check()

        def test() -> None:
            run(whole())

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


def tag_of(envelope: Envelope) -> str:
    """The tag of a command of this plugin; "" for the core's."""
    if envelope.plugin != "lcr":
        return ""
    tag: str = msgspec.msgpack.decode(envelope.command)[0]
    return tag


def entry_of(node: FakeNode) -> Entry:
    entry = node.view().table("clients").get("c")
    assert isinstance(entry, Entry)
    return entry


def rows(cluster: Cluster, client_id: str) -> set[Channel | None]:
    return {n.lcr.lookup_local(client_id) for n in cluster.nodes.values() if n.alive}


@scenario(replicants=3)
async def test_registered_once_seen_everywhere(cluster: Cluster) -> None:
    """Scenario 1."""
    answer = await cluster.nodes["rep2"].lcr.connect("c", "a")
    assert answer.outcome == "ok"
    assert not answer.session_present
    assert answer.attempts == 1
    assert rows(cluster, "c") == {answer.owner}
    for node in cluster.nodes.values():
        assert await node.lcr.lookup("c") == answer.owner
        assert node.lcr.channels_local("c") == [answer.owner]
    assert await cluster.nodes["core1"].lcr.lookup("nobody") is None


@scenario(replicants=1)
async def test_lagging_node_takes_over_all_the_same(cluster: Cluster) -> None:
    """Scenario 3: its local copy is empty, the session is continued nevertheless."""
    first = await cluster.nodes["core1"].lcr.connect("c", "a")
    lagging = cluster.nodes["rep1"]
    lagging.lcr.lookup_local = lambda client_id: None  # type: ignore[method-assign]
    second = await lagging.lcr.connect("c", "b")
    assert second.session_present
    assert second.predecessor == first.owner
    assert second.attempts == 2
    assert {n.lcr.lookup_local("c") for n in cluster.nodes.values() if n is not lagging} == {
        second.owner
    }


@scenario()
async def test_outdated_early_proposes_nothing(cluster: Cluster) -> None:
    """Scenario 6."""
    node = cluster.nodes["core2"]
    older, newer = node.now_ms() - 20, node.now_ms() - 10
    await cluster.nodes["core1"].lcr.connect("c", "a", version=newer)
    proposed = node.proposed
    answer = await node.lcr.connect("c", "old", version=older)
    assert answer.outcome == "outdated_early"
    assert answer.index is None
    seen = node.lcr.lookup_local("c")
    direct = await node.lcr.register("c", "old", predecessor=seen, version=older)
    assert isinstance(direct, OutdatedEarly)
    assert node.proposed == proposed
    assert node.lcr.counters["outdated_early"] == 2


@scenario()
async def test_outdated_late_when_the_local_copy_is_behind(cluster: Cluster) -> None:
    """Scenario 7."""
    node = cluster.nodes["core2"]
    older, newer = node.now_ms() - 20, node.now_ms() - 10
    owner = (await cluster.nodes["core1"].lcr.connect("c", "a", version=newer)).owner
    node.lcr.lookup_local = lambda client_id: None  # type: ignore[method-assign]
    answer = await node.lcr.connect("c", "old", version=older)
    assert (answer.outcome, answer.owner) == ("outdated_late", owner)


@scenario()
async def test_a_ticket_drawn_at_connect_decides(cluster: Cluster) -> None:
    node, other = cluster.nodes["core1"], cluster.nodes["core2"]
    early = await node.lcr.ticket()
    late = await other.lcr.ticket()
    won = await other.lcr.connect("c", "late", ticket=late.ticket)
    lost = await node.lcr.connect("c", "early", ticket=early.ticket)
    assert won.outcome == "ok"
    assert lost.outcome == "outdated_early"


@scenario()
async def test_ahead_is_logged_and_the_flow_tries_again(cluster: Cluster) -> None:
    first, second = cluster.nodes["core1"], cluster.nodes["core2"]
    gone = (await first.lcr.connect("c", "a")).owner
    assert gone is not None
    lines = capture(second)
    stale = iter([gone])
    second.lcr.lookup_local = lambda client_id: next(stale, None)  # type: ignore[method-assign]
    await first.lcr.unregister(gone)
    # The first look is for the flow; the early decision looks again.
    answer = await second.lcr.connect("c", "b")
    assert answer.outcome == "ok"
    assert answer.attempts == 2
    assert not answer.session_present
    assert second.lcr.counters["ahead"] == 1
    assert any("nothing was written" in line for line in lines)


@scenario()
async def test_retries_are_bounded(cluster: Cluster) -> None:
    """Scenario 9: the predecessor leaves before every attempt, and another one comes."""
    node, other = cluster.nodes["core1"], cluster.nodes["core2"]
    await other.lcr.connect("c", "a0", version=0)
    node.lcr.lookup_local = lambda client_id: None  # type: ignore[method-assign]
    number = 0

    def churn(sender: FakeNode, envelope: Envelope) -> bool:
        nonlocal number
        if sender is node and tag_of(envelope) == "register":
            number += 1
            send_now(cluster, other, Unregister(entry_of(other).owner))
            send_now(cluster, other, Register("c", f"a{number}", None, number))
        return True

    cluster.filter = churn
    # Without a time it was made when it reached the log; the others count as a minute older.
    answer = await node.lcr.connect("c", "b")
    assert answer.outcome == "retries_exhausted"
    assert answer.attempts == RETRIES_MAX + 1
    assert node.lcr.counters["retries_exhausted"] == 1
    cluster.filter = lambda sender, envelope: True
    await asyncio.sleep(1)
    entry = entry_of(node)
    assert entry.claim is None
    assert entry.owner.channel == f"a{number}"


@scenario(replicants=3)
async def test_massive_race_has_one_winner_without_any_spacing(cluster: Cluster) -> None:
    """Scenario 15, at 0 ms: 60 connects of one client over all nodes at once."""
    nodes = list(cluster.nodes.values())
    answers = await asyncio.gather(
        *(nodes[i % len(nodes)].lcr.connect("c", f"ch{i}") for i in range(60))
    )
    assert all(a.outcome in ("ok", "outdated_late", "outdated_early") for a in answers)
    winners = [a.owner for a in answers if a.outcome == "ok"]
    assert winners
    [owner] = rows(cluster, "c")
    assert owner is not None
    assert owner.ticket == max(w.ticket for w in winners if w is not None)
    # Every winner but the first continued the session of the one before.
    assert sum(not a.session_present for a in answers if a.outcome == "ok") == 1
    held = [row for node in nodes for row in node.lcr.held.values()]
    assert held == [owner]


@scenario(replicants=1)
async def test_taken_over_channel_is_reported_lost(cluster: Cluster) -> None:
    first, second = cluster.nodes["core1"], cluster.nodes["rep1"]
    lost: list[tuple[Channel, Channel | None]] = []
    first.lcr.on_lost = lambda channel, newer: lost.append((channel, newer))
    a = (await first.lcr.connect("c", "a")).owner
    b = (await second.lcr.connect("c", "b")).owner
    assert lost == [(a, b)]
    assert first.lcr.held == {}
    assert b is not None
    assert await second.lcr.unregister(b)
    assert not await second.lcr.unregister(b)
    assert len(lost) == 1


@scenario()
async def test_registration_in_doubt_that_was_applied_is_removed(cluster: Cluster) -> None:
    """The caller saw a time-out; nobody holds the channel; the row must not stay."""
    node = cluster.nodes["core2"]
    late = hold_back(cluster, node, "register")
    with pytest.raises(Timeout):
        await node.lcr.connect("c", "a", timeout_s=0.05)
    cluster.filter = lambda sender, envelope: True
    cluster.append(late)
    assert rows(cluster, "c") != {None}
    await asyncio.sleep(2)
    assert rows(cluster, "c") == {None}
    assert len(node.lcr.reaper) == 0


@scenario()
async def test_registration_in_doubt_can_never_be_applied_later(cluster: Cluster) -> None:
    """Scenario 10: the register arrives after everything that could have deleted its row."""
    node = cluster.nodes["core2"]
    late = hold_back(cluster, node, "register")
    with pytest.raises(Timeout):
        await node.lcr.connect("c", "a", timeout_s=0.05)
    cluster.filter = lambda sender, envelope: True
    await asyncio.sleep(2)
    assert len(node.lcr.reaper) == 0
    cluster.append(late)
    cluster.append(late)
    assert rows(cluster, "c") == {None}


@scenario()
async def test_same_channel_that_comes_back_is_told_what_became_of_it(cluster: Cluster) -> None:
    predecessor = (await cluster.nodes["core1"].lcr.connect("c", "before")).owner
    node = cluster.nodes["core2"]
    late = hold_back(cluster, node, "register")
    with pytest.raises(Timeout):
        await node.lcr.register("c", "a", predecessor=predecessor, timeout_s=0.05)
    cluster.filter = lambda sender, envelope: True
    cluster.append(late)
    answer = await node.lcr.register("c", "a", predecessor=predecessor)
    assert isinstance(answer, Registered)
    assert answer.repeated
    assert answer.session_present
    await asyncio.sleep(2)
    assert rows(cluster, "c") == {answer.channel}


@scenario()
async def test_cancelled_connect_leaves_no_row(cluster: Cluster) -> None:
    node = cluster.nodes["core2"]
    task = asyncio.ensure_future(node.lcr.connect("c", "a"))
    await asyncio.sleep(0.0005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(2)
    assert len(node.lcr.reaper) == 0
    assert rows(cluster, "c") == {None}


@scenario()
async def test_unregister_that_failed_goes_on_by_itself(cluster: Cluster) -> None:
    node = cluster.nodes["core2"]
    owner = (await node.lcr.connect("c", "a")).owner
    assert owner is not None
    cluster.filter = lambda sender, envelope: tag_of(envelope) != "unregister"
    with pytest.raises(Timeout):
        await node.lcr.unregister(owner, timeout_s=0.05)
    await asyncio.sleep(3)
    assert rows(cluster, "c") == {owner}
    cluster.filter = lambda sender, envelope: True
    await asyncio.sleep(10)
    assert rows(cluster, "c") == {None}


@scenario(replicants=2)
async def test_dead_node_is_cleaned_once(cluster: Cluster) -> None:
    """Scenario 11, with more clients than one batch takes."""
    cluster.set("cleanup_rows_max", 30)
    dying = cluster.nodes["rep1"]
    await asyncio.gather(*(dying.lcr.connect(f"c{i}", "x") for i in range(100)))
    kept = await cluster.nodes["rep2"].lcr.connect("kept", "x")
    cluster.kill("rep1")
    assert rows(cluster, "c7") != {None}  # a partition is not a death
    cluster.declare_dead("rep1")
    assert rows(cluster, "c7") == {None}  # fenced by that one entry
    leader = cluster.nodes["core1"]
    assert len(leader.machine.view("lcr").table("clients")) == 101
    await asyncio.sleep(1)
    for node in cluster.nodes.values():
        if node.alive:
            assert len(node.machine.view("lcr").table("clients")) == 1
            assert len(node.machine.view("lcr").table("ended")) == 0
    assert rows(cluster, "kept") == {kept.owner}
    assert leader.lcr.counters["cleanup_rows"] == 100
    assert leader.lcr.counters["cleanup_runs"] == 1
    assert sum(n.lcr.counters["cleanup_rows"] for n in cluster.nodes.values()) == 100


@scenario()
async def test_new_leader_finishes_the_cleaning(cluster: Cluster) -> None:
    """Scenario 12: a core dies, the leader too, and the marks are in the log."""
    dying = cluster.nodes["core3"]
    await dying.lcr.connect("c", "x")
    cluster.kill("core1")
    cluster.leader = None
    cluster.declare_dead("core3")
    await asyncio.sleep(1)
    assert len(cluster.nodes["core2"].machine.view("lcr").table("clients")) == 1
    cluster.lead("core2")
    await asyncio.sleep(1)
    assert len(cluster.nodes["core2"].machine.view("lcr").table("clients")) == 0


@scenario(replicants=1)
async def test_fenced_channels_of_a_returned_node_are_lost_not_resurrected(
    cluster: Cluster,
) -> None:
    """Scenario 13: cut off, declared dead, back again as another incarnation."""
    node = cluster.nodes["rep1"]
    lost: list[str] = []
    node.lcr.on_lost = lambda channel, newer: lost.append(channel.client_id)
    await node.lcr.connect("stays", "x")
    await node.lcr.connect("moved", "x")
    cluster.pause("rep1")
    cluster.declare_dead("rep1")
    moved = await cluster.nodes["core2"].lcr.connect("moved", "y")
    assert not moved.session_present
    await asyncio.sleep(1)
    cluster.resume("rep1")
    cluster.node_up(node)
    await asyncio.sleep(1)
    assert sorted(lost) == ["moved", "stays"]
    assert rows(cluster, "stays") == {None}
    assert rows(cluster, "moved") == {moved.owner}
    again = await node.lcr.connect("stays", "x")
    assert again.outcome == "ok"
    assert rows(cluster, "stays") == {again.owner}


@scenario()
async def test_bad_arguments_are_refused_before_anything_is_proposed(cluster: Cluster) -> None:
    lcr = cluster.nodes["core1"].lcr
    for client_id, channel, error in (
        ("", "a", ValueError),
        ("c", "", ValueError),
        ("c" * 16_384, "a", TooLarge),
        ("c", "a" * 257, TooLarge),
    ):
        with pytest.raises(error):
            await lcr.connect(client_id, channel)
    with pytest.raises(ValueError, match="version"):
        await lcr.connect("c", "a", version=-1)
    with pytest.raises(ValueError, match="ticket"):
        await lcr.connect("c", "a", ticket=2**63)
    assert cluster.nodes["core1"].proposed == 0


@scenario()
async def test_the_door_and_the_figures(cluster: Cluster) -> None:
    node = cluster.nodes["core1"]
    owner = (await node.lcr.connect("c", "a")).owner
    assert owner is not None
    routes = {route.path: route.handler for route in node.service.routes()}

    async def get(path: str, **query: str) -> Any:
        return await routes[path](Request({"client_id": query.pop("id", "")}, query, b"", ""))

    assert (await get("clients/{client_id}", id="c")).body["channel"] == "a"
    assert (await get("clients/{client_id}", id="c", consistency="local")).status == 200
    assert (await get("clients/{client_id}", id="nobody")).status == 404
    listed = (await get("clients", limit="5")).body
    assert [row["client_id"] for row in listed["channels"]] == ["c"]
    assert (await get("clients", limit="zero")).status == 400
    assert (await get("stats")).body["registered"] == 1
    metrics = {metric.name: metric.value for metric in node.service.metrics()}
    assert metrics["clients"] == metrics["held"] == metrics["registered_total"] == 1


def capture(node: FakeNode) -> list[str]:
    """The node's INFO lines."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    node.log = logging.getLogger(f"test.{node.name}")
    node.log.setLevel(logging.INFO)
    node.log.handlers = [Keep()]
    return lines


def hold_back(cluster: Cluster, node: FakeNode, tag: str) -> list[Envelope]:
    """Keep this node's commands of that kind off the log; what was sent stands in the list."""
    held: list[Envelope] = []

    def keep(sender: FakeNode, envelope: Envelope) -> bool:
        if sender is node and tag_of(envelope) == tag:
            held.append(envelope)
            return False
        # Nor may the question about its outcome come through yet.
        return envelope.plugin != "core"

    cluster.filter = keep
    return held


def send_now(cluster: Cluster, node: FakeNode, command: msgspec.Struct) -> None:
    node.seq += 1
    cluster.append([Envelope(node.session, node.seq, 1, "lcr", msgspec.msgpack.encode(command))])


def test_connect_result_names_every_field() -> None:
    """The benchmark's driver reads these names."""
    fields = [field.name for field in msgspec.structs.fields(ConnectResult)]
    assert fields == [
        "outcome",
        "session_present",
        "owner",
        "predecessor",
        "index",
        "attempts",
    ]


def test_scenarios_run_on_virtual_time() -> None:
    """The decorator above must not swallow a failing body."""

    async def fails(cluster: Cluster) -> None:
        raise AssertionError("seen")

    with pytest.raises(AssertionError, match="seen"):
        scenario()(fails)()
