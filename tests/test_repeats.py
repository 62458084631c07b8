"""repeats.py, and the lines about plugins that fail: said, counted, and not without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from raftkv.errors import PluginFault
from raftkv.plugin import Context, Host, Plugin, Service
from raftkv.repeats import REPEAT_S, SUBJECTS_MAX, Repeats
from raftkv.testing.local_cluster import LocalCluster


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_the_same_is_said_again_after_a_while_with_the_number_of_times() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    assert repeats.left_out("disk", "slow") == 0
    assert [repeats.left_out("disk", "slow") for _ in range(3)] == [None] * 3
    assert repeats.left_out("net", "slow") == 0, "another subject"
    assert repeats.left_out("disk", "gone") == 0, "another trouble"
    assert repeats.left_out("disk", "gone") is None
    clock.now += REPEAT_S
    assert repeats.left_out("disk", "gone") == 1
    assert repeats.left_out("disk", "gone") is None


def test_the_oldest_subjects_are_forgotten() -> None:
    repeats = Repeats(Clock())
    for subject in range(SUBJECTS_MAX + 1):
        assert repeats.left_out(subject, "x") == 0
    assert repeats.left_out(SUBJECTS_MAX, "x") is None
    assert repeats.left_out(0, "x") == 0


# Plugins that fail -------------------------------------------------------------------------------


class Break(msgspec.Struct, frozen=True, array_like=True, tag="break"):
    Result = None


class FailingService(Service):
    def on_progress(self, index: int) -> None:
        raise LookupError(f"nothing at {index}")


class Failing(Plugin[Any]):
    name = "failing"
    commands = (Break,)

    def apply(self, command: Any, ctx: Context) -> None:
        raise ZeroDivisionError(f"at {command}")

    def open(self, host: Host) -> Host:
        return host

    def service(self, host: Host, api: Any) -> Service:
        return FailingService()


Check = Callable[[LocalCluster], Coroutine[Any, Any, None]]


def with_failing(check: Check) -> None:
    async def run() -> None:
        async with LocalCluster(cores=1, fsync="off", plugins=[Failing()]) as cluster:
            await check(cluster)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_what_a_plugin_raises_in_a_command_is_logged_with_its_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(cluster: LocalCluster) -> None:
        (node,) = cluster.nodes
        for _ in range(20):
            with pytest.raises(PluginFault):
                await node.propose("failing", Break())
        assert node.machine.fault_count == 20
        assert not node.machine.faults

    with caplog.at_level(logging.ERROR, "raftkv.plugins"):
        with_failing(check)
    lines = [r.getMessage() for r in caplog.records if "failed in Break" in r.getMessage()]
    assert len(lines) == 1
    assert "ZeroDivisionError" in lines[0]
    assert "in apply" in lines[0]


def test_a_hook_that_fails_at_every_entry_is_counted_and_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(cluster: LocalCluster) -> None:
        (node,) = cluster.nodes
        for _ in range(20):
            await node.kv.put(b"k", b"v")
        assert node.hosting.hook_faults >= 20

    with caplog.at_level(logging.ERROR, "raftkv.plugins"):
        with_failing(check)
    lines = [r for r in caplog.records if "hook failed" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].exc_info is not None
