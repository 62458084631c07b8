"""The page of metrics lists what nodes show, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from raftkv.plugin import Metric
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost
from raftkv_subscriptions import Subscriptions, SubscriptionsApi
from raftkv_subscriptions.metrics import link_metrics
from raftkv_subscriptions.status import LinkStatus

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
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    documented: dict[str, str] = {}
    for names, kind in re.findall(
        r"^\| (`raftkv_subscriptions_.*?) \| (counter|gauge) \|", page, re.M
    ):
        for name in re.findall(r"`(\w+)`", names):
            assert name not in documented, f"{name} stands there twice"
            documented[name] = kind
    assert {name_of(each): each.kind for each in run(shown())} == documented


def test_labels_are_regions_only() -> None:
    assert {tuple(each.labels) for each in run(shown())} == {(), ("region",)}


def test_the_limits_on_the_page_have_the_metrics_that_it_says() -> None:
    page = (ROOT / "docs" / "subscriptions.md").read_text("utf-8")
    table = page.partition("## Limits")[2].partition("## What it does not do")[0]
    names = {each.name for each in run(shown())}
    said = [name for row in re.findall(r"\| ([^|]*) \|$", table, re.M) for name in
            re.findall(r"`(\w+)`", row)]  # fmt: skip
    assert len(said) > 10
    assert not [name for name in said if name not in names]
