"""The page of metrics lists what nodes show, and nothing else."""

from __future__ import annotations

from pathlib import Path

from raftkv.plugin import Metric
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost
from raftkv_subscriptions import Subscriptions, SubscriptionsApi
from raftkv_subscriptions.metrics import link_metrics
from raftkv_subscriptions.status import LinkStatus
from tests.metrics_page import documented

ROOT = Path(__file__).resolve().parent.parent.parent.parent


async def shown() -> list[Metric]:
    """Those of a node that leads, and of a link."""
    cluster: FakeCluster[FakeHost[SubscriptionsApi]] = FakeCluster(Subscriptions, 1)
    await cluster.start()
    service = cluster.nodes["core1"].service
    return [*service.metrics(), *link_metrics([LinkStatus("us", "connected")])]


def name_of(metric: Metric) -> str:
    """As the node shows it: with the plugin's name, a counter with its ending."""
    ending = "_total" if metric.kind == "counter" and not metric.name.endswith("_total") else ""
    return f"raftkv_subscriptions_{metric.name}{ending}"


def test_the_page_lists_what_nodes_show_and_nothing_else() -> None:
    figures = {name_of(each): each.kind for each in run(shown())}
    assert figures == documented("raftkv_subscriptions_")


def test_labels_are_regions_only() -> None:
    assert {tuple(each.labels) for each in run(shown())} == {(), ("region",)}
