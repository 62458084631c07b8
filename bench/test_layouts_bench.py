"""The registry's scenarios on real processes, small: so many connects until all is at rest.

A round is a fixed number of connects (`extra_info`), of few clients, without injected lag, and
without an audit: the smallest thing that shows whether a change made connecting slower. For
figures, and for right and wrong, there is `python -m bench run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.control import Done, Play
from bench.coordinator import at_rest
from bench.layouts import Cluster, Layout
from bench.scenarios import Load
from bench.test_parts_bench import LoopThread

Benchmark = Any

CLIENTS = 8
CONNECTS = 200
LOOK_EVERY_S = 0.002

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module", params=["1", "3", "3+3"])
def cluster(
    request: pytest.FixtureRequest, loop: LoopThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    out: Path = tmp_path_factory.mktemp("layout")

    async def started() -> Cluster:
        return await Cluster(Layout.parse(request.param), out, "bench").__aenter__()

    running: Cluster = loop.run(started())
    yield running
    loop.run(running.__aexit__(None, None, None))


@pytest.mark.parametrize("registry", ["lcr", "legacy"])
@pytest.mark.parametrize("scenario", ["initial", "reconnect", "same_client"])
def test_connects(
    benchmark: Benchmark, loop: LoopThread, cluster: Cluster, scenario: str, registry: str
) -> None:
    drivers = cluster.layout.drivers
    load = Load(
        scenario=scenario,
        registry=registry,
        clients=CLIENTS,
        seconds=60.0,
        connects_max=CONNECTS,
    )

    async def prepare() -> None:
        await cluster.ask_all(drivers, load, Done)

    async def connects() -> None:
        await cluster.ask_all(drivers, Play(), Done)
        await at_rest(cluster, LOOK_EVERY_S)

    benchmark.group = f"{scenario}, layout {cluster.layout.name}"
    benchmark.extra_info.update(
        layout=cluster.layout.name,
        drivers=len(drivers),
        clients=CLIENTS * len(drivers),
        connects=CONNECTS * len(drivers),
    )
    benchmark.pedantic(
        lambda: loop.run(connects()), setup=lambda: loop.run(prepare()), rounds=3, warmup_rounds=1
    )
