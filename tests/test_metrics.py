"""metrics/: what nodes show, held against docs/metrics.md; and sources that misbehave."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from raftkv.errors import DiskFailed
from raftkv.histogram import Histogram
from raftkv.metrics import Family
from raftkv.metrics.exposition import encode
from raftkv.metrics.plugins import SAMPLES_MAX, Sources
from raftkv.plugin import Metric
from raftkv.server.serving import door_of
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv.testing.simulated import SimulatedCluster
from tests import metrics_page

ROOT = Path(__file__).resolve().parent.parent
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


async def _scraped() -> dict[str, tuple[str, str]]:
    """What the leader, a follower and a replicant show after some work, as (text, OpenMetrics)."""
    cluster = LocalCluster(cores=2, replicants=1, fsync="off")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    cluster.configs["core1"] = msgspec.structs.replace(
        cluster.configs["core1"], http_address=address
    )
    async with cluster:
        door_of(cluster.running["core1"])
        await asyncio.gather(*(node.kv.put(b"k", b"v") for node in cluster.nodes for _ in range(9)))
        await asyncio.gather(*(node.kv.get(b"k") for node in cluster.nodes))
        await cluster.converge()
        leader = cluster.leader()
        assert leader is not None
        (follower,) = (node for node in cluster.cores if node is not leader)
        (replicant,) = cluster.replicants
        nodes = {"leader": leader, "follower": follower, "replicant": replicant}
        found = {}
        for role, node in nodes.items():
            plain_type, plain = node.metrics.render()
            open_type, opened = node.metrics.render(OPENMETRICS)
            assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
            assert open_type.startswith("application/openmetrics-text; version=1.0.0")
            found[role] = plain.decode(), opened.decode()
        return found


@pytest.fixture(scope="module")
def scraped() -> dict[str, tuple[str, str]]:
    return asyncio.run(asyncio.wait_for(_scraped(), 40))


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def kinds(text: str) -> dict[str, str]:
    """Name and type of every figure of raftkv."""
    return dict(re.findall(r"^# TYPE (raftkv_\S+) (\S+)$", text, re.M))


OF_PLUGINS = tuple(
    f"raftkv_{plugin}" for plugin in ("lcr", "calls", "conf", "limbo", "subscriptions", "txqueue")
)


def documented() -> dict[str, str]:
    """Those of raftkv itself; the plugins have tests of their own, in tests/plugins."""
    listed = metrics_page.documented()
    return {name: kind for name, kind in listed.items() if not name.startswith(OF_PLUGINS)}


def test_the_page_lists_what_nodes_show_and_nothing_else(
    scraped: dict[str, tuple[str, str]],
) -> None:
    shown: dict[str, str] = {}
    for text, _ in scraped.values():
        shown |= kinds(text)
    assert shown == documented()


def test_the_alerts_on_the_page_name_figures_that_exist() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    listed = documented()
    for name in re.findall(r"raftkv_[a-z0-9_]*[a-z0-9](?![a-z0-9_*])", page):
        plain = re.sub(r"_(bucket|count|sum)$", "", name)
        assert plain in listed or name.startswith(("raftkv_shop", *OF_PLUGINS)), name


@pytest.mark.parametrize("role", ["leader", "follower", "replicant"])
def test_both_formats_are_well_formed_and_agree(
    scraped: dict[str, tuple[str, str]], role: str
) -> None:
    text, opened = scraped[role]
    plain = samples(text)
    strict = {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in openmetrics.text_string_to_metric_families(opened)
        for sample in family.samples
        if sample.name.startswith("raftkv_")
    }
    assert strict == {key for key in plain if key[0].startswith("raftkv_")}
    names = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(names) == len(set(names))


def test_names_follow_the_conventions(scraped: dict[str, tuple[str, str]]) -> None:
    for text, _ in scraped.values():
        for name, kind in kinds(text).items():
            assert (kind == "counter") == name.endswith("_total"), name
            if kind == "histogram":
                assert re.search(r"_(seconds|bytes|commands)$", name), name
            assert not re.search(r"_(ms|us|kb|mb)(_|$)", name), name


def test_the_figures_are_those_of_the_work(scraped: dict[str, tuple[str, str]]) -> None:
    leader, replicant = samples(scraped["leader"][0]), samples(scraped["replicant"][0])
    follower = samples(scraped["follower"][0])
    for role in (leader, follower, replicant):
        assert role["raftkv_kv_revision", ()] == 28
        assert role["raftkv_kv_history_revisions", ()] == 27
        assert role["raftkv_kv_keys", ()] == 1
        assert role["raftkv_proposal_outcomes_total", (("outcome", "applied"),)] >= 9
        assert role["raftkv_proposals_in_flight", ()] == 0
        assert role["raftkv_proposal_seconds_count", ()] >= 9
        assert role["raftkv_reads_total", ()] >= 1
        assert role["raftkv_members", (("state", "up"),)] == 3
        assert role["raftkv_apply_seconds_count", ()] >= 1
        assert role["raftkv_links", ()] >= 1
        assert role["raftkv_link_sent_bytes_total", ()] > 300
        assert role["raftkv_link_received_bytes_total", ()] > 500
        assert role["raftkv_links_closed_for_cause_total", ()] == 0
        assert role["raftkv_plugin_faults_total", ()] == 0
        assert role["raftkv_metrics_dropped_total", ()] == 0
    assert [role["raftkv_is_leader", ()] for role in (leader, follower, replicant)] == [1, 0, 0]
    assert leader["raftkv_commit_seconds_count", ()] == leader["raftkv_batch_commands_count", ()]
    assert leader["raftkv_batch_commands_sum", ()] >= 30
    assert leader["raftkv_log_fsync_seconds_count", ()] >= 1
    assert leader["raftkv_log_written_bytes_total", ()] > 1_000
    (peer,) = (key for key in leader if key[0] == "raftkv_peer_round_trip_seconds")
    assert 0 < leader[peer] < 1
    assert leader["raftkv_peer_up", peer[1]] == 1
    assert leader["raftkv_peer_lag_entries", peer[1]] == 0
    assert replicant["raftkv_replicant_following", ()] == 1
    assert replicant["raftkv_replicant_lag_entries", ()] == 0
    fed = [r["raftkv_replicants_fed", ()] for r in (leader, follower)]
    assert sorted(fed) == [0, 1]


def test_buckets_are_cumulated_to_the_count(scraped: dict[str, tuple[str, str]]) -> None:
    found = samples(scraped["leader"][0])
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in found.items()
        if name == "raftkv_apply_seconds_bucket"
    ]
    values = [value for _, value in sorted(buckets)]
    assert values == sorted(values)
    assert values[-1] == found["raftkv_apply_seconds_count", ()] > 0


def test_one_node_of_a_process_shows_the_process_and_the_next_one_after_it() -> None:
    async def shown() -> list[bool]:
        async with LocalCluster(cores=1, replicants=1, fsync="off") as cluster:
            first, second = cluster.nodes
            seen = [b"process_cpu_seconds" in n.metrics.render()[1] for n in (first, second, first)]
            await cluster.kill(first.name)
            return [*seen, b"process_cpu_seconds" in second.metrics.render()[1]]

    assert asyncio.run(asyncio.wait_for(shown(), 30)) == [True, False, True, True]


def test_a_simulated_node_counts_the_same_in_every_run_and_reads_no_real_clock() -> None:
    def run() -> list[str]:
        with SimulatedCluster(11, cores=3, replicants=1, rate_per_s=60) as cluster:
            cluster.world.run(2)
            return [
                cluster.nodes[name].metrics.render()[1].decode() for name in sorted(cluster.names)
            ]

    first, again = run(), run()
    assert first == again
    assert not any("process_" in text for text in first)
    assert any("raftkv_is_leader 1.0" in text for text in first)


def test_a_node_that_has_stopped_itself_still_says_so() -> None:
    async def shown() -> list[dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
        async with LocalCluster(cores=1, replicants=1, fsync="off") as cluster:
            for node in cluster.nodes:
                node._faulted(DiskFailed("for the test"))
                await node.stop()
            return [samples(node.metrics.render()[1].decode()) for node in cluster.nodes]

    for found in asyncio.run(asyncio.wait_for(shown(), 30)):
        assert found["raftkv_faulted", ()] == 1


def test_a_promoted_replicant_shows_what_a_core_shows() -> None:
    async def shown() -> tuple[str, str]:
        async with LocalCluster(cores=1, replicants=1, fsync="off") as cluster:
            core, replicant = cluster.nodes
            await core.membership.promote(replicant.name)
            async with asyncio.timeout(20):
                while replicant.role != "core":
                    await asyncio.sleep(0.01)
            await core.kv.put(b"k", b"v")
            await cluster.converge()
            return replicant.metrics.render()[1].decode(), core.metrics.render()[1].decode()

    promoted, core = (kinds(text) for text in asyncio.run(asyncio.wait_for(shown(), 40)))
    assert set(promoted) == set(core)


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=x", ",;=,", "\x00", "text/html"])
def test_whatever_a_client_accepts_it_gets_plain_text(accept: str) -> None:
    content_type, body = encode(CollectorRegistry(), accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body == b""


def test_certificates_are_shown_with_their_ends() -> None:
    async def shown() -> str:
        async with LocalCluster(cores=1, fsync="off", tls=True) as cluster:
            return cluster.nodes[0].metrics.render()[1].decode()

    found = samples(asyncio.run(asyncio.wait_for(shown(), 30)))
    name = "raftkv_certificate_end_timestamp_seconds"
    ends = [found[name, (("what", what),)] for what in ("certificate", "authority")]
    assert all(end > found["process_start_time_seconds", ()] for end in ends)
    assert found["raftkv_certificate_fault", ()] == 0


def test_who_shows_nothing_imports_nothing() -> None:
    script = (
        "import sys, raftkv.node, raftkv.metrics, raftkv.metrics.plugins\n"
        "assert not [name for name in sys.modules if name.startswith('prometheus_client')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, cwd=ROOT)


# Sources -----------------------------------------------------------------------------------------


def given(sources: Sources, *metrics: Metric) -> list[Family]:
    sources.add("shop", lambda: metrics)
    return [f for f in sources.families({}, set()) if f.name.startswith("shop_")]


def counter(name: str, value: float = 1, **labels: str) -> Metric:
    return Metric(name, "counter", value, "Doc.", labels)


def test_samples_of_one_name_are_one_family() -> None:
    (family,) = given(Sources(), counter("sold", 1, what="a"), counter("sold", 2, what="b"))
    assert family.name == "shop_sold_total"
    assert family.kind == "counter"
    assert family.samples == (({"what": "a"}, 1), ({"what": "b"}, 2))


def test_a_word_that_is_no_name_becomes_one() -> None:
    sources = Sources()
    sources.add("My-Shop", lambda: (counter("sold"),))
    assert next(f.name for f in sources.families({}, set())) == "my_shop_sold_total"


@pytest.mark.parametrize(
    "bad",
    [
        counter("no good"),
        counter("sold", 3),
        Metric("sold_total", "gauge", 1, "Doc."),
        counter("sold", 1, what="a"),
        Metric("other", "histogram", 1, "Doc."),  # type: ignore[arg-type]
        Metric("other", "gauge", "many", "Doc."),  # type: ignore[arg-type]
        Metric("other", "gauge", 1, "Doc.", {"bad label": "x"}),
    ],
    ids=["name", "twice", "kind", "labels", "histogram", "value", "label"],
)
def test_what_cannot_be_shown_is_left_out_and_counted(bad: Metric) -> None:
    sources = Sources()
    (family,) = given(sources, counter("sold"), bad)
    assert family.samples == (({}, 1),)
    assert sources.dropped == 1


def test_a_source_gives_so_many_samples_and_no_more() -> None:
    sources = Sources()
    many = [counter("sold", number, client=str(number)) for number in range(SAMPLES_MAX + 7)]
    (family,) = given(sources, *many)
    assert len(family.samples) == SAMPLES_MAX
    assert sources.dropped == 7


def test_a_name_that_is_taken_is_left_out() -> None:
    sources = Sources()
    sources.add("log", lambda: (Metric("segments", "gauge", 1, "Doc."),))
    families = list(sources.families({}, {"log_segments"}))
    assert [f.name for f in families] == ["metrics_faults_total", "metrics_dropped_total"]
    assert sources.dropped == 1


def test_a_source_that_fails_is_logged_once_until_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources, broken = Sources(), [True]

    def source() -> Sequence[Metric]:
        if broken[0]:
            raise RuntimeError("no")
        return (counter("sold"),)

    remove = sources.add("shop", source)

    def names() -> Iterator[str]:
        return (family.name for family in sources.families({}, set()))

    for _ in range(3):
        assert "shop_sold_total" not in names()
    assert (sources.faults, len(caplog.records)) == (3, 1)
    broken[0] = False
    assert "shop_sold_total" in names()
    broken[0] = True
    assert "shop_sold_total" not in names()
    assert (sources.faults, len(caplog.records)) == (4, 2)
    remove()
    list(names())
    assert sources.faults == 4


def test_a_source_of_anything_else_fails_alone() -> None:
    sources = Sources()
    sources.add("shop", lambda: [object()])  # type: ignore[list-item]
    also = {"other": lambda: (counter("sold"),)}
    names = [family.name for family in sources.families(also, set())]
    assert names[0] == "other_sold_total"
    assert sources.faults == 1


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0, 1, 1.5, 4, 9):
        histogram.observe(value)
    histogram.observe(3, 10)
    assert histogram.counts == [2, 1, 11, 1]
    assert histogram.total == 45.5
    assert histogram.count == 15
