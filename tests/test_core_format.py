"""Raising the core format of a running cluster, with nodes that stand for the former release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from raftkv.errors import FormatRefused
from raftkv.testing.local_cluster import LocalCluster

FORMER = 1


@contextlib.asynccontextmanager
async def cluster_of(
    cores: int = 3, replicants: int = 0, *, former: tuple[str, ...] = (), **changes: object
) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(cores, replicants)
    cluster.core_formats = dict.fromkeys(former, FORMER)
    for name, config in cluster.configs.items():
        cluster.configs[name] = msgspec.structs.replace(config, **changes)
    async with cluster:
        yield cluster


async def upgrade(cluster: LocalCluster, name: str) -> None:
    cluster.core_formats.pop(name, None)
    await cluster.restart(name)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


ALL = ("core1", "core2", "core3", "replicant1")


def test_a_new_cluster_begins_at_the_newest_format() -> None:
    async def play() -> None:
        async with cluster_of(3, 1) as cluster:
            await cluster.converge()
            assert {node.format.active for node in cluster.nodes} == {2}
            status = cluster.nodes[0].status()
            assert status.formats.active["core"] == 2
            assert status.formats.known["kv"] >= 3
            # C6: for how long no flood of sessions ends one that wrote.
            assert status.client_session_kept_s == 600
            survey = await cluster.replicants[0].format.survey()
            assert (survey.active, survey.newest, survey.missing) == (2, 2, [])
            assert [row.name for row in survey.members] == list(ALL)
            assert await cluster.nodes[0].format.raise_to_newest() == 2

    asyncio.run(play())


def test_a_new_cluster_uses_the_newest_formats_of_the_plugins_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes ask for their sessions before they have applied the raised format."""
    monkeypatch.setattr("raftkv.core_format.LOOK_S", 3600.0)

    async def play() -> None:
        async with cluster_of(3, 1) as cluster:
            newest = cluster.nodes[0].machine.plugin_versions
            await until(lambda: all(n.machine.active_versions == newest for n in cluster.nodes))

    asyncio.run(play())


def test_one_core_of_the_former_release_keeps_a_new_cluster_at_format_1() -> None:
    async def play() -> None:
        async with cluster_of(3, former=("core2",)) as cluster:
            await cluster.converge()
            assert {node.format.active for node in cluster.nodes} == {1}
            assert cluster.nodes[0].status().client_session_kept_s == 0, "no promise"

    asyncio.run(play())


def test_the_format_is_raised_once_every_member_knows_it() -> None:
    async def play() -> None:
        async with cluster_of(3, 1, former=ALL) as cluster:
            leader = cluster.leader()
            assert leader is not None
            await leader.kv.put(b"k", b"1")
            for name in ("core1", "core2", "replicant1"):
                await upgrade(cluster, name)
            via = cluster.running["core1"]
            await until(lambda: via.leader is not None)
            if via.leader == "core3":  # the former release leads
                with pytest.raises(FormatRefused, match=r"core3 leads and runs raftkv 0\.1\.0"):
                    await cluster.running["replicant1"].format.raise_to_newest()
                await cluster.kill("core3")
                await cluster.start("core3")
            with pytest.raises(FormatRefused, match="core3"):
                await cluster.running["replicant1"].format.raise_to_newest()
            assert {node.format.active for node in cluster.nodes} == {1}
            await upgrade(cluster, "core3")
            assert await cluster.running["replicant1"].format.raise_to_newest() == 2
            await cluster.converge()
            assert {node.format.active for node in cluster.nodes} == {2}
            assert len({node.machine.digest() for node in cluster.nodes}) == 1
            await cluster.restart("core2")
            assert cluster.running["core2"].format.active == 2

    asyncio.run(play())


def test_a_replicant_of_the_former_release_hinders_it_while_it_is_up() -> None:
    async def play() -> None:
        async with cluster_of(1, 1, former=("core1", "replicant1")) as cluster:
            await upgrade(cluster, "core1")
            with pytest.raises(FormatRefused, match="replicant1"):
                await cluster.running["core1"].format.raise_to_newest()
            survey = await cluster.running["core1"].format.survey()
            assert survey.missing == ["replicant1"]
            rows = {row.name: (row.software, row.core_format) for row in survey.members}
            assert rows["replicant1"] == ("0.1.0", 1)

    asyncio.run(play())


def test_a_node_of_the_former_release_is_refused_after_the_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with cluster_of(3) as cluster:
            await cluster.converge()
            await cluster.kill("core3")
            cluster.core_formats["core3"] = FORMER
            node = await cluster.start("core3")
            await until(lambda: "upgrade raftkv there" in caplog.text)
            assert (node.format.active, node.session) == (1, 0)
            await cluster.running["core1"].kv.put(b"k", b"1")

    asyncio.run(play())


def test_the_leader_raises_it_by_itself_after_the_named_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftkv.core_format.LOOK_S", 0.02)

    async def play(mode: str) -> int:
        changes = {"format_raise": mode, "format_raise_after_s": 0.05}
        async with cluster_of(1, 1, former=("core1", "replicant1"), **changes) as cluster:
            await upgrade(cluster, "replicant1")
            await upgrade(cluster, "core1")
            core = cluster.running["core1"]
            if mode == "automatic":
                await until(lambda: core.format.active == 2)
            else:
                # Many looks, each of which would have raised it.
                for number in range(30):
                    await core.kv.put(b"k", b"%d" % number)
                    await asyncio.sleep(0.01)
            return core.format.active

    assert asyncio.run(play("automatic")) == 2
    assert asyncio.run(play("manual")) == 1
