"""Takeovers and sessions with the linear registry on, and off: one body for both groups.

Each scenario is played under "enabled" (`lcr_on`) and under "disabled" (`lcr_off`). What the client
must be told is the benchmark's own judgement (`bench/truth.py`). With the registry on nothing is
wrong. With it off the old registry's anomalies are asserted, one by one: a baseline that did not
show them would be no baseline, and a test that skipped them would not notice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest

from bench.truth import AuditOutcome, Race, audit_outcome, merged
from raftkv.errors import NoLeader
from raftkv.testing.clock import run
from raftkv_lcr.legacy_locks import LEASE_MS, WAIT_S
from raftkv_lcr.result import OpenedSession
from tests.plugins.raftkv_lcr.fakes import Cluster
from tests.plugins.raftkv_lcr.worlds import Group, World, texts

Body = Callable[[World, Group], Awaitable[None]]

both_groups = pytest.mark.parametrize("group", get_args(Group))

LAG_S = 0.5


def play(body: Body, group: Group, cores: int = 3, replicants: int = 2) -> None:
    """Play a scenario in one group, in virtual time; the log's invariants hold in both."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants).start()
        world = World(cluster)
        if group == "lcr_on":
            await cluster.nodes["core1"].lcr.switch_mode("migration")
            await cluster.nodes["core1"].lcr.switch_mode("enabled")
        await world.warm_up()
        await world.rest()
        await body(world, group)
        cluster.check()

    run(whole())


def everywhere(world: World, outcome: AuditOutcome) -> Counter[AuditOutcome]:
    """That finding on every node that lives."""
    return Counter({outcome: sum(node.alive for node in world.cluster.nodes.values())})


@both_groups
def test_session_follows_the_client_through_all_nodes(group: Group) -> None:
    """Scenario 1. While nothing lags and nobody fails, both are right."""

    async def body(world: World, group: Group) -> None:
        names = list(world.cluster.nodes)
        for number in range(2 * len(names)):
            opened = await world.connect(names[number % len(names)], "c", f"ch{number}")
            assert (opened.outcome, opened.present) == ("ok", number > 0)
            world.publish("c", f"m{number}")
            await world.rest(0.5)
        assert texts(world.session("c")) == [f"m{number}" for number in range(2 * len(names))]
        await world.rest()
        assert world.audit("c") == everywhere(world, "ok")
        await world.leave("c")
        await world.rest()
        assert world.audit("c") == everywhere(world, "ok")
        assert world.live("c") == []
        assert not world.anomalies

    play(body, group)


@both_groups
def test_lagging_replicant_takes_over(group: Group) -> None:
    """Scenario 3: a second session with the registry off, the session itself with it on."""

    async def body(world: World, group: Group) -> None:
        world.begin_lag("rep1", LAG_S)
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest(0.1)
        opened = await world.connect("rep1", "c", "b")
        await world.rest()
        if group == "lcr_on":
            assert (opened.outcome, opened.present) == ("ok", True)
            assert texts(world.session("c")) == ["m1"]
            assert world.live("c") == [("rep1", "b")]
            assert world.audit("c") == everywhere(world, "ok")
            assert not world.anomalies
        else:
            assert (opened.outcome, opened.present) == ("ok", False)
            assert world.anomalies == {"wrong_session_present": 1}
            assert sorted(world.live("c")) == [("core1", "a"), ("rep1", "b")]
            assert texts(world.session("c")) == [], "m1 is in a session that nobody will ask for"
            assert world.audit("c") == everywhere(world, "duplicate_session")

    play(body, group)


@both_groups
def test_lagging_replicant_starts_clean(group: Group) -> None:
    """Scenario 2: what it did not see is discarded with the registry on, and stays with it off."""

    async def body(world: World, group: Group) -> None:
        world.begin_lag("rep1", LAG_S)
        await world.connect("core1", "c", "a")
        await world.rest(0.1)
        opened = await world.connect("rep1", "c", "b", clean_start=True)
        assert (opened.outcome, opened.present) == ("ok", False)
        await world.rest()
        if group == "lcr_on":
            assert world.live("c") == [("rep1", "b")]
            assert world.audit("c") == everywhere(world, "ok")
        else:
            assert sorted(world.live("c")) == [("core1", "a"), ("rep1", "b")]
            assert world.audit("c") == everywhere(world, "duplicate_session")

    play(body, group)


@both_groups
def test_lagging_replicant_takes_over_from_the_wrong_channel(group: Group) -> None:
    """The seed's second complaint: the copy shows a channel that another has followed already."""

    async def body(world: World, group: Group) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        world.begin_lag("rep1", LAG_S)
        await world.connect("core2", "c", "b")
        world.publish("c", "m1")
        await world.rest(0.1)
        opened = await world.connect("rep1", "c", "d")
        await world.rest()
        if group == "lcr_on":
            assert opened.predecessor is not None
            assert (opened.present, opened.predecessor.channel) == (True, "b")
            assert texts(world.session("c")) == ["m1"]
            assert world.audit("c") == everywhere(world, "ok")
        else:
            assert (opened.present, opened.handover, opened.failure) == (False, "lost", "noproc")
            assert world.anomalies == {"wrong_session_present": 1}
            assert world.audit("c") == everywhere(world, "duplicate_session")

    play(body, group)


@both_groups
def test_client_that_left_is_told_of_a_session_by_a_lagging_replicant(group: Group) -> None:
    """A wrong Session Present the other way round does not happen: nobody is there to begin."""

    async def body(world: World, group: Group) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        world.begin_lag("rep1", LAG_S)
        await world.leave("c")
        await world.rest(0.1)
        opened = await world.connect("rep1", "c", "b")
        assert (opened.outcome, opened.present) == ("ok", False)
        await world.rest()
        assert world.audit("c") == everywhere(world, "ok")
        assert not world.anomalies

    play(body, group)


@both_groups
def test_two_contenders_and_a_frozen_channel(group: Group) -> None:
    """Scenario 4: with the lock, the newest one is kept out by the one before it."""

    async def body(world: World, group: Group) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        older = asyncio.ensure_future(world.brokers["core2"].connect("c", "b"))
        await asyncio.sleep(0.01)
        newer = asyncio.ensure_future(world.brokers["rep1"].connect("c", "d"))
        await asyncio.sleep(6.0)
        suspended.set()
        first, second = await asyncio.gather(older, newer)
        await world.rest(20)
        if group == "lcr_on":
            assert second.outcome == "ok"
            assert first.outcome in ("ok", "outdated_late", "outdated_early")
            assert world.live("c") == [("rep1", "d")]
            for name in world.cluster.nodes:
                assert world.registered(name, "c") == ["d"]
        else:
            assert (first.outcome, first.failure) == ("ok", "timeout")
            assert second.outcome == "timeout", "the newest connection is refused"
            assert sorted(world.live("c")) == [("core1", "a"), ("core2", "b")]

    play(body, group)


@both_groups
def test_channel_that_never_answers(group: Group) -> None:
    """Scenario 5: the new connection gets in within the time-out in both groups."""

    async def body(world: World, group: Group) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        loop = asyncio.get_running_loop()
        started = loop.time()
        opened = await world.connect("core2", "c", "b")
        assert loop.time() - started < 6
        assert (opened.outcome, opened.handover, opened.failure) == ("ok", "lost", "timeout")
        await world.rest(60)
        if group == "lcr_on":
            assert world.live("c") == [("core2", "b")]
            assert world.audit("c") == everywhere(world, "ok")
        else:
            assert sorted(world.live("c")) == [("core1", "a"), ("core2", "b")]
            assert world.audit("c") == everywhere(world, "duplicate_session")

    play(body, group)


@both_groups
def test_node_that_dies_in_the_middle_of_a_takeover(group: Group) -> None:
    """The lock that it leaves behind keeps its client out until the lease ends."""

    async def body(world: World, group: Group) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        dying = asyncio.ensure_future(world.brokers["core2"].connect("c", "b"))
        await asyncio.sleep(0.1)
        world.cluster.kill("core2")
        dying.cancel()
        world.cluster.declare_dead("core2")
        suspended.set()
        loop = asyncio.get_running_loop()
        started = loop.time()
        refused = 0
        while (await world.connect("rep1", "c", f"d{refused}")).outcome != "ok":
            refused += 1
        waited_s = loop.time() - started
        if group == "lcr_on":
            assert (refused, world.anomalies) == (0, {})
            assert waited_s < 6
        else:
            assert world.outcomes["timeout"] == refused > 3
            assert LEASE_MS / 1000 - 1 < waited_s < LEASE_MS / 1000 + 2 * WAIT_S

    play(body, group)


@both_groups
def test_deregistration_overruns_registration(group: Group) -> None:
    """Scenario 10: a replicant's core goes between its write and its delete; both are spread."""

    async def body(world: World, group: Group) -> None:
        replicant = world.cluster.nodes["rep1"].lcr.legacy
        core, *others = replicant.copies._cores_by_preference()
        for other in others:
            world.cluster.nodes[other].lcr.legacy.lag_s = 2.0
        await world.connect("rep1", "c", "a")
        # The replicant loses its core, which goes on sending what it has to the others.
        reaches = world.cluster.reaches
        world.cluster.reaches = (  # type: ignore[method-assign]
            lambda one, two: {one, two} != {"rep1", core} and reaches(one, two)
        )
        await world.leave("c")
        await world.rest(10)
        found = world.audit("c")
        if group == "lcr_on":
            assert found == everywhere(world, "ok")
        else:
            assert found["leaked_registration"] >= 1
            assert world.registered(others[0], "c") == ["a"], "the delete was there first"

    play(body, group)


@both_groups
def test_false_death_of_a_node(group: Group) -> None:
    """Scenario 13: declared dead, purged everywhere, heard again: its channels are registered."""

    async def body(world: World, group: Group) -> None:
        await world.connect("rep1", "stays", "a")
        await world.connect("rep1", "moves", "a")
        await world.rest()
        world.cluster.isolate("rep1")
        world.cluster.declare_dead("rep1")
        moved = await world.connect("core1", "moves", "b")
        assert moved.outcome == "ok"
        await world.rest()
        world.cluster.rejoin("rep1")
        await world.rest(30)
        if group == "lcr_on":
            assert world.live("stays") == [("rep1", "a")]
            assert world.live("moves") == [("core1", "b")]
            for name in world.cluster.nodes:
                assert world.registered(name, "stays") == ["a"]
                assert world.registered(name, "moves") == ["b"]
        else:
            # Both are entered again, as nothing in the old registry says that one has lost.
            assert sorted(world.live("moves")) == [("core1", "b"), ("rep1", "a")]
            assert world.audit("moves")["duplicate_session"] == 5

    play(body, group)


async def storm(world: World, spacing_s: float, lag_s: float) -> tuple[list[OpenedSession], Race]:
    """50 connects of one client id over all nodes. Every one is told something definite."""
    for node in world.cluster.nodes.values():
        node.lcr.legacy.lag_s = lag_s
    names = list(world.cluster.nodes)
    race = Race("c")

    async def one(number: int) -> OpenedSession:
        await asyncio.sleep(number * spacing_s)
        broker = world.brokers[names[number % len(names)]]
        opened = await broker.connect("c", f"ch{number}", timeout_s=60.0)
        if opened.outcome == "ok":
            assert opened.channel is not None
            taken = opened.predecessor if opened.present else None
            version = opened.channel.version
            race.connected(f"ch{number}", version, taken and taken.channel)
        elif opened.outcome != "timeout":
            race.connect_failed(f"ch{number}", opened.outcome)
        return opened

    answers = await asyncio.gather(*(one(number) for number in range(50)))
    await world.rest(60)
    race.discarded(
        session.channel
        for broker in world.brokers.values()
        for session in broker.sessions.values()
        if session.closed_for is not None
    )
    return list(answers), race


@both_groups
@pytest.mark.parametrize("spacing_s", [0.0, 0.01, 0.1])
def test_massive_race(group: Group, spacing_s: float) -> None:
    """Scenario 15, the copies of the old registry 50 ms behind, as every copy is at times."""

    async def body(world: World, group: Group) -> None:
        answers, race = await storm(world, spacing_s, 0.05)
        outcomes = Counter(answer.outcome for answer in answers)
        expected = merged([race.facts()])
        found = Counter(
            audit_outcome(expected, world.registered(name, "c")) for name in world.cluster.nodes
        )
        if group == "lcr_on":
            assert outcomes["ok"] >= 1
            assert set(outcomes) <= {"ok", "outdated_late", "outdated_early"}
            assert len(world.live("c")) == 1
            assert found == everywhere(world, "ok")
        else:
            # The lock lets one in after the other, but they come in faster than the copies: each
            # of them that sees nobody begins a session of its own, beside those that live.
            assert set(outcomes) <= {"ok", "timeout"}
            begun = sum(answer.outcome == "ok" and not answer.present for answer in answers)
            assert begun > 1, "all but the first were told a wrong session present"

    play(body, group)


@both_groups
def test_connect_while_no_core_answers(group: Group) -> None:
    """No quorum, no verdict: neither answers a connect that it could not write."""

    async def body(world: World, group: Group) -> None:
        for name in ("core1", "core2", "core3"):
            world.cluster.isolate(name)
        world.cluster.filter = lambda node, envelope: False
        if group == "lcr_on":
            with pytest.raises(Exception, match="no answer in time"):
                await world.connect("rep1", "c", "a", timeout_s=2.0)
        else:
            refused = await world.connect("rep1", "c", "a")
            assert refused.outcome == "timeout"
            with pytest.raises(NoLeader):
                await world.cluster.nodes["rep1"].lcr.legacy.add(
                    world.cluster.nodes["rep1"].lcr.legacy.row("c", "a", None)
                )
        assert world.live("c") == []

    play(body, group)
