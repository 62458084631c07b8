"""What a node with the registry and a broker shows, held against docs/metrics.md."""

from __future__ import annotations

import asyncio
import re

import pytest

from raftkv.testing.local_cluster import LocalCluster
from raftkv_lcr import LCR
from raftkv_lcr.testing import MemoryBroker
from tests.metrics_page import documented


async def _scraped() -> tuple[str, str]:
    """What a node shows before it has a broker, and with one that has a session."""
    async with LocalCluster(cores=1, replicants=0, plugins=[LCR()], fsync="off") as cluster:
        (node,) = cluster.nodes
        before = node.metrics.render()[1].decode()
        broker = MemoryBroker(node.name)
        broker.attach(node.plugin(LCR))
        await node.plugin(LCR).switch_mode("enabled", timeout_s=10)
        assert (await broker.connect("c", "a")).outcome == "ok"
        return before, node.metrics.render()[1].decode()


@pytest.fixture(scope="module")
def scraped() -> tuple[str, str]:
    return asyncio.run(asyncio.wait_for(_scraped(), 40))


def kinds(text: str) -> dict[str, str]:
    """Name and type of every figure of the plugin."""
    return dict(re.findall(r"^# TYPE (raftkv_lcr_\S+) (\S+)$", text, re.M))


def test_the_page_lists_what_the_plugin_shows_and_nothing_else(scraped: tuple[str, str]) -> None:
    assert documented("raftkv_lcr_") == kinds(scraped[1])


def test_the_figures_of_sessions_are_there_once_there_is_a_broker(
    scraped: tuple[str, str],
) -> None:
    before, after = scraped
    more = set(kinds(after)) - set(kinds(before))
    assert {"raftkv_lcr_channels_open", "raftkv_lcr_channels_parked", "raftkv_lcr_frozen"} <= more
    assert "\nraftkv_lcr_channels_open 1.0\n" in after
    assert "\nraftkv_lcr_channels_opening 0.0\n" in after
    # Nothing is left out by a scrape, as it would be if a name were there twice.
    for name in ("raftkv_metrics_dropped_total", "raftkv_metrics_faults_total"):
        assert not re.search(rf"^{name}(\{{.*\}})? [1-9]", after, re.M)
