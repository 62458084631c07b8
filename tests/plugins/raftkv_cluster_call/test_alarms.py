"""Alarms: raised once, cleared once, the same on every node, and told to who wants to hear."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raftkv_cluster_call.alarms import Alarm
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.options import CallsOptions
from tests.plugins.raftkv_cluster_call.fakes import Cluster, Note, story, until


class Heard:
    """What a callback was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int, bool]] = []

    def __call__(self, alarm: Alarm, raised: bool) -> None:
        self.told.append((alarm.name, alarm.node, alarm.id, raised))


@story()
async def test_an_alarm_is_told_once_and_cleared_once(cluster: Cluster) -> None:
    heard = {name: Heard() for name in cluster.nodes}
    for name, callback in heard.items():
        cluster.calls(name).on_alarm(callback)
    cluster.seats["core2"].broken = {"*"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.row("core2").attempts >= 10)
    [alarm] = cluster.calls("core3").alarms()
    assert (alarm.name, alarm.node, alarm.id) == ("call_failed", "core2", 1)
    assert alarm.cause.startswith("Broken in ")
    assert 0 < alarm.since_ms <= cluster.now_ms() - 1_000
    late = Heard()
    cluster.calls("core3").on_alarm(late)
    cluster.seats["core2"].broken = set()
    await cluster.at(1)
    for callback in heard.values():
        assert callback.told == [
            ("call_failed", "core2", 1, True),
            ("call_failed", "core2", 1, False),
        ]
    assert late.told == heard["core1"].told


@story()
async def test_an_alarm_goes_on_with_the_next_call_that_fails(cluster: Cluster) -> None:
    heard = Heard()
    cluster.calls("core1").on_alarm(heard)
    cluster.seats["core2"].broken = {"*"}
    for number in (1, 2):
        await cluster.calls("core1").call("note", Note(str(number)), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    await cluster.calls("core1").skip("core2")
    await until(lambda: cluster.row("core2").failing == 2)
    assert [(id, raised) for _, _, id, raised in heard.told] == [(1, True), (1, False), (2, True)]


class TestLog:
    def test_an_alarm_is_logged_on_the_node_that_it_concerns(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        @story()
        async def body(cluster: Cluster) -> None:
            cluster.seats["core2"].broken = {"*"}
            await cluster.calls("core1").call("note", Note("x"), required=1)
            await until(lambda: cluster.row("core2").failing == 1)
            cluster.seats["core2"].broken = set()
            await cluster.at(1)
            assert [cluster.calls(name).counters["alarms_raised"] for name in cluster.nodes] == [
                0,
                1,
                0,
            ]

        with caplog.at_level(logging.INFO):
            body()
        lines = [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "alarm" in record.getMessage()
        ]
        assert [level for level, _ in lines] == ["WARNING", "INFO"]
        assert "call_failed of core2 at call 1: Broken in " in lines[0][1]
        assert "cleared" in lines[1][1]


@story()
async def test_a_callback_that_fails_harms_nobody(cluster: Cluster) -> None:
    heard = Heard()

    def bad(alarm: Alarm, raised: bool) -> None:
        raise ValueError("no")

    cluster.calls("core1").on_alarm(bad)
    cluster.calls("core1").on_alarm(heard)
    cluster.seats["core2"].broken = {"*"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: len(heard.told) == 1)


@story()
async def test_a_lost_effect_is_an_alarm_until_it_is_acknowledged(cluster: Cluster) -> None:
    cluster.hold("core1", "commit")
    calling = asyncio.ensure_future(
        cluster.calls("core1").call("note", Note("x"), required=1, timeout_s=2)
    )
    await until(lambda: ("core1", 1) in cluster.table("lost"))
    cluster.filter = lambda node, envelope: True
    assert (await calling).outcome == "init_failure"
    [alarm] = cluster.calls("core2").alarms()
    assert (alarm.name, alarm.node, alarm.id) == ("effect_lost", "core1", 1)
    assert alarm.cause == "note version 1: expired"
    await cluster.restart("core1")
    assert cluster.alarms("core1") == {("effect_lost", "core1", 1)}
    await cluster.calls("core1").acknowledge(1)
    assert cluster.calls("core2").alarms() == ()


@story(options=CallsOptions(joining_stuck_s=3))
async def test_a_node_that_cannot_join_is_an_alarm(cluster: Cluster) -> None:
    await cluster.calls("core1").call("note", Note("x"))
    release = cluster.hold("core4", "sync")
    heard = Heard()
    cluster.calls("core1").on_alarm(heard)
    await cluster.add("core4")
    await until(lambda: cluster.state("core4") == "joining")
    await asyncio.sleep(1)
    assert heard.told == []
    # Time passes without a word in the log.
    await asyncio.sleep(3)
    assert [(name, node, raised) for name, node, _, raised in heard.told] == [
        ("joining_stuck", "core4", True)
    ]
    release()
    await until(lambda: cluster.state("core4") == "following")
    assert heard.told[-1] == ("joining_stuck", "core4", 0, False)


@story()
async def test_the_gauge_counts_them(cluster: Cluster) -> None:
    cluster.seats["core2"].broken = {"*"}
    await cluster.calls("core1").call("note", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    found = {
        metric.labels["alarm"]: metric.value
        for metric in cluster.nodes["core3"].service.metrics()
        if metric.name == "alarms"
    }
    assert found == {"call_failed": 1, "gap": 0, "joining_stuck": 0, "effect_lost": 0}


@story()
async def test_a_node_that_does_not_get_its_join_through_says_so(cluster: Cluster) -> None:
    """It has no row that others could see; it knows itself."""
    heard = Heard()
    cluster.register = lambda node: node.calls.on_alarm(heard)
    release = cluster.hold("core4", "join")
    await cluster.add("core4")
    await asyncio.sleep(60)
    assert heard.told == [("joining_stuck", "core4", 0, True)]
    release()
    await until(lambda: cluster.state("core4") == "following")
    await asyncio.sleep(2)
    assert heard.told[1:] == [("joining_stuck", "core4", 0, False)]


@story()
async def test_an_alarm_tells_the_latest_cause(cluster: Cluster) -> None:
    def odd(args: Note, call: Call) -> None:
        if call.kind == "replicate" and call.attempt == 1:
            raise ValueError
        if call.node == "core2":
            raise KeyError

    for node in cluster.nodes.values():
        node.calls.function("odd", type=Note)(odd)
    await cluster.calls("core1").call("odd", Note("x"), required=1)
    await until(lambda: cluster.row("core2").failing == 1)
    [first] = [alarm for alarm in cluster.calls("core1").alarms() if alarm.node == "core2"]
    assert first.cause.startswith("ValueError in ")
    await until(lambda: cluster.row("core2").attempts == 10)
    [alarm] = cluster.calls("core1").alarms()
    assert alarm.cause.startswith("KeyError in ")
    assert alarm.since_ms == first.since_ms
