"""The configuration of a whole cluster on real nodes, whose files are on a real disk.

What a handler's `apply` was called with is kept outside the node (`Hand`), so that it is seen over
restarts: that is what a program would have done with the value.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.config import RaftTimes
from raftkv.node import Node
from raftkv.state.core import SetSetting
from raftkv.testing.local_cluster import LocalCluster
from raftkv_cluster_call import Call, Calls, CallsApi
from raftkv_conf import Conf, ConfApi, InvalidValue, UnknownPath
from tests.plugins.raftkv_cluster_call.cluster import DEADLINE_S, NODE_DOWN_MS, RETRY_MS, until

pytestmark = pytest.mark.slow

THREE = ["core1", "core2", "core3"]
LIMIT_MAX = 1_000
SECRET = "correct-horse-battery-staple"


class Zone(msgspec.Struct, frozen=True):
    """A value with an inside."""

    listeners: int
    allow: tuple[str, ...] = ()


def at_most(value: int) -> str | None:
    return None if value <= LIMIT_MAX else f"{value} connections are too many: say {LIMIT_MAX}"


class Hand:
    """What the configuration has done to one node, over all its lives."""

    def __init__(self) -> None:
        self.limits: list[int] = []
        # From now on a new limit cannot be brought about here.
        self.broken = False

    def take(self, conf: ConfApi) -> None:
        conf.handler("broker.limit", int, default=10, validate=at_most, apply=self._set_limit)
        conf.handler("broker.zone", Zone, default=Zone(1))

    def _set_limit(self, value: int) -> None:
        if self.broken:
            raise OSError("the broker does not take it")
        self.limits.append(value)


class ConfCluster(LocalCluster):
    """Nodes with calls and a configuration, whose handlers are there from the start."""

    def __init__(self, cores: int, replicants: int, local: dict[str, dict[str, Any]]) -> None:
        raft = RaftTimes(node_down_ms=NODE_DOWN_MS)
        super().__init__(cores, replicants, plugins=[Calls(), Conf()], raft=raft)
        self.hands: dict[str, Hand] = {}
        for name, values in local.items():
            options = {"conf": {"local": values}}
            self.configs[name] = msgspec.structs.replace(self.configs[name], options=options)

    async def start(self, name: str) -> Node:
        node = await super().start(name)
        self.hands.setdefault(name, Hand()).take(node.plugin(Conf))
        return node

    def conf(self, name: str) -> ConfApi:
        return self.running[name].plugin(Conf)

    def kept_in(self, name: str) -> Path:
        """Where the node keeps its configuration."""
        return Path(self.running[name].hosting.hosts["conf"].directory)

    async def set_calls(self, **settings: Any) -> None:
        for key, value in settings.items():
            await self.nodes[0].propose("core", SetSetting.of("calls", key, value))

    def table(self, name: str, at: str = "core1") -> dict[Any, Any]:
        return dict(self.running[at].machine.view("calls").table(name).scan())

    async def following(self, *names: str) -> None:
        def all_follow() -> bool:
            rows = self.table("cursors")
            return all(name in rows and rows[name].state == "following" for name in names)

        await until(all_follow, lambda: f"{names} follow; there is {self.table('cursors')}")

    async def agrees(self, path: str, value: object, *names: str) -> None:
        """Wait until these nodes (all) have this value."""
        wanted = names or tuple(self.running)
        await until(
            lambda: all(self.conf(name).get(path) == value for name in wanted),
            lambda: f"{path} is {value!r}: {[self.conf(n).get(path) for n in wanted]}",
        )

    async def add(self, name: str) -> None:
        """Let a core that was started with an empty directory take part."""
        await self.nodes[0].membership.add(name)
        await self.running[name].wait_ready()


def play(
    body: Callable[[ConfCluster], Awaitable[None]],
    cores: int = 3,
    replicants: int = 0,
    local: dict[str, dict[str, Any]] | None = None,
) -> None:
    async def whole() -> None:
        cluster = ConfCluster(cores, replicants, local or {})
        async with cluster:
            await cluster.following(*(node.name for node in cluster.cores))
            await cluster.set_calls(retry_ms=RETRY_MS)
            await body(cluster)
            for node in cluster.nodes:
                assert list(Calls().invariants(node.machine.view("calls"))) == []

    asyncio.run(whole())


def test_set_get_and_unset_reach_all_nodes() -> None:
    async def body(cluster: ConfCluster) -> None:
        assert [cluster.conf(name).get("broker.limit") for name in THREE] == [10, 10, 10]
        done = await cluster.conf("core1").set("broker.limit", 200, timeout_s=DEADLINE_S)
        assert done.outcome == "ok"
        for name in THREE:
            assert cluster.conf(name).get("broker.limit") == 200
            assert cluster.hands[name].limits[-1] == 200
        zone = Zone(3, ("a", "b"))
        assert (await cluster.conf("core2").set("broker.zone", zone)).outcome == "ok"
        assert {cluster.conf(name).get("broker.zone") for name in THREE} == {zone}
        # Below "user." is anything, of any shape.
        await cluster.conf("core3").set("user.tags", ["x", {"y": 1}])
        assert [cluster.conf(n).get("user.tags") for n in THREE] == [["x", {"y": 1}]] * 3
        changed: list[str] = []
        cluster.conf("core2").on_change(lambda path, *_: changed.append(path))
        await cluster.conf("core1").unset("broker.limit")
        assert [cluster.conf(name).get("broker.limit") for name in THREE] == [10, 10, 10]
        assert [cluster.hands[name].limits[-1] for name in THREE] == [10, 10, 10]
        assert changed == ["broker.limit"]

    play(body)


def test_what_is_wrong_is_refused_on_the_initiator_and_reaches_nobody() -> None:
    async def body(cluster: ConfCluster) -> None:
        conf = cluster.conf("core1")
        before = {name: list(cluster.hands[name].limits) for name in THREE}
        for wrong in (LIMIT_MAX + 1, SECRET, None):
            with pytest.raises(InvalidValue) as invalid:
                await conf.set("broker.limit", wrong)
            assert "broker.limit" in str(invalid.value)
            assert SECRET not in str(invalid.value)
        with pytest.raises(UnknownPath) as unknown:
            await conf.set("broker.limits", 5)
        assert "broker.limit" in str(unknown.value)
        assert [cluster.conf(name).get("broker.limit") for name in THREE] == [10, 10, 10]
        assert {name: cluster.hands[name].limits for name in THREE} == before
        records = cluster.table("records").values()
        assert all(record.state == "aborted" for record in records)

    play(body)


def test_diff_shows_what_a_node_has_for_itself() -> None:
    """A local override stands in a node's own file and wins there; nobody else has it."""

    async def body(cluster: ConfCluster) -> None:
        await cluster.conf("core1").set("broker.limit", 200)
        assert cluster.conf("core3").get("broker.limit") == 77
        assert cluster.hands["core3"].limits[-1] == 77
        for name in THREE:
            report = await cluster.conf(name).diff()
            assert (set(report.nodes), report.unreachable) == (set(THREE), {})
            [row] = report.rows
            assert (row.path, row.cause) == ("broker.limit", "local")
            found = {value.node: (value.value, value.source) for value in row.values}
            expected = {"core1": (200, "set"), "core2": (200, "set"), "core3": (77, "local")}
            assert found == expected
        # It is no fault of the calls: all nodes have executed them.
        assert (await cluster.conf("core1").sync()).verdict == "consistent"

    play(body, local={"core3": {"broker.limit": 77}})


def test_value_that_a_node_cannot_take_is_an_alarm_until_it_can() -> None:
    async def body(cluster: ConfCluster) -> None:
        await cluster.conf("core1").set("broker.limit", 20)
        cluster.hands["core3"].broken = True
        done = await cluster.conf("core1").set("broker.limit", 30, required=["core1", "core2"])
        assert done.outcome == "ok"
        assert [cluster.conf(name).get("broker.limit") for name in THREE] == [30, 30, 20]
        alarms = cluster.running["core1"].plugin(Calls).alarms
        await until(lambda: [a.node for a in alarms()] == ["core3"], "there is an alarm")
        [row] = (await cluster.conf("core2").diff()).rows
        assert (row.path, row.cause) == ("broker.limit", "stored")
        assert [value.value for value in row.values] == [30, 30, 20]
        cluster.hands["core3"].broken = False
        await cluster.agrees("broker.limit", 30)
        assert cluster.hands["core3"].limits[-1] == 30
        await until(lambda: alarms() == (), "the alarm is cleared")
        assert (await cluster.conf("core2").diff()).consistent
        assert (await cluster.conf("core2").sync()).verdict == "consistent"

    play(body)


def stumble_on(name: str, calls: CallsApi) -> None:
    """A function that never succeeds on core3, and leaves nothing anywhere."""

    @calls.function("test.stumble", version=1)
    def stumble(args: str, call: Call) -> None:
        if name == "core3":
            raise OSError("never here")


def test_sync_copies_what_a_stuck_node_lacks() -> None:
    """A call that core3 never takes stands before the values that it lacks."""

    async def body(cluster: ConfCluster) -> None:
        for name in THREE:
            stumble_on(name, cluster.running[name].plugin(Calls))
        await cluster.conf("core1").set("user.0", "old")
        majority = ["core1", "core2"]
        await cluster.running["core1"].plugin(Calls).call("test.stumble", "x", required=majority)
        for number in range(5):
            await cluster.conf("core1").set(f"user.{number}", number, required=majority)
        await cluster.conf("core2").set("broker.limit", 30, required=majority)
        assert cluster.conf("core3").get("user.4") is None
        assert not (await cluster.conf("core1").diff()).consistent
        report = await cluster.conf("core1").sync()
        assert (report.verdict, report.synced) == ("fixed", ("core3",)), report
        for number in range(5):
            assert cluster.conf("core3").get(f"user.{number}") == number
        assert cluster.hands["core3"].limits[-1] == 30
        assert (await cluster.conf("core1").sync()).verdict == "consistent"
        assert (await cluster.conf("core1").diff()).consistent
        assert (await cluster.conf("core3").set("user.0", 2)).outcome == "ok"

    play(body)


def test_restarted_node_has_its_configuration_before_anybody_speaks_to_it() -> None:
    async def body(cluster: ConfCluster) -> None:
        await cluster.conf("core1").set("broker.limit", 200)
        await cluster.kill("core3")
        await cluster.conf("core1").set("broker.limit", 300, required=["core1", "core2"])
        await cluster.restart("core3")
        await cluster.agrees("broker.limit", 300)
        assert cluster.hands["core3"].limits[-1] == 300
        await cluster.kill("core3")
        applied = len(cluster.hands["core3"].limits)
        await cluster.restart("core3")
        await cluster.agrees("broker.limit", 300)
        # A program that starts anew is told the value anew.
        await until(
            lambda: cluster.hands["core3"].limits[applied:] == [300],
            lambda: f"300 is applied once: {cluster.hands['core3'].limits[applied:]}",
        )

    play(body)


def test_late_joiner_gets_the_configuration_without_the_history() -> None:
    async def body(cluster: ConfCluster) -> None:
        await cluster.set_calls(history_max=1, cleanup_ms=1_000)
        for number in range(20):
            await cluster.conf("core1").set(f"user.{number % 3}", number)
        await cluster.conf("core2").set("broker.limit", 222)
        await until(lambda: min(cluster.table("records")) == 21, "the history is trimmed")
        await cluster.start_new_core("core4")
        await cluster.add("core4")
        await cluster.following(*THREE, "core4")
        assert cluster.conf("core4").get("broker.limit") == 222
        assert cluster.hands["core4"].limits[-1] == 222
        assert cluster.conf("core4").all() == cluster.conf("core1").all()
        done = await cluster.conf("core4").set("broker.limit", 223, timeout_s=DEADLINE_S)
        assert done.outcome == "ok"
        await cluster.agrees("broker.limit", 223)

    play(body)


def test_node_whose_plugin_directory_was_lost_gets_a_copy() -> None:
    async def body(cluster: ConfCluster) -> None:
        await cluster.conf("core1").set("broker.limit", 200)
        await cluster.conf("core1").set("user.note", SECRET)
        lost = cluster.kept_in("core3")
        assert lost.is_relative_to(cluster.configs["core3"].dir)
        await cluster.kill("core3")
        shutil.rmtree(lost)
        await cluster.restart("core3")
        await cluster.agrees("user.note", SECRET)
        await cluster.following(*THREE)
        assert cluster.conf("core3").all() == cluster.conf("core1").all()
        assert cluster.hands["core3"].limits[-1] == 200
        assert (await cluster.conf("core1").sync()).verdict == "consistent"

    play(body)


def test_node_whose_disk_was_replaced_gets_a_copy() -> None:
    """The member is removed and added again under its name; its cursor is an old one still."""

    async def body(cluster: ConfCluster) -> None:
        await cluster.conf("core1").set("broker.limit", 200)
        await cluster.kill("core3")
        await cluster.nodes[0].membership.remove("core3", force=True)
        await cluster.conf("core1").set("broker.limit", 300, required=["core1", "core2"])
        shutil.rmtree(cluster.configs["core3"].dir)
        await cluster.start("core3")
        await cluster.add("core3")
        await cluster.agrees("broker.limit", 300)
        await cluster.following(*THREE)
        assert cluster.hands["core3"].limits[-1] == 300
        assert (await cluster.conf("core3").set("broker.limit", 301)).outcome == "ok"

    play(body)


def test_replicant_sets_through_a_core() -> None:
    async def body(cluster: ConfCluster) -> None:
        done = await cluster.conf("replicant1").set("broker.limit", 200, timeout_s=DEADLINE_S)
        assert done.outcome == "ok"
        await cluster.agrees("broker.limit", 200, *THREE)

    play(body, replicants=1)
