"""Release 0.1.0 and this checkout in one cluster under load: node by node up, down and up again.

Nothing that was acknowledged is lost, and all nodes hold the same at one index, whatever release
each of them runs. Then the core format is raised, and nodes of 0.1.0 are refused.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.upgrade.load import Load
from tests.upgrade.nodes import POLL_S, MixedCluster
from tests.upgrade.releases import CHECKOUT, ROOT, WHEELS, Release, stored_wheels, unpacked
from tests.upgrade.usage import Usage

OLD = "0.1.0"
WHEEL_BYTES_MAX = 2_000_000
EQUAL_S = 30.0
REFUSED_S = 45.0
# What release 0.1.0 logs when it is refused at the handshake, and when it ends because of its own
# snapshot or log, in which it finds a format that it does not know.
REASONS = (
    "knows 1 at most: upgrade raftkv there",
    "the cluster runs the plugin 'core', which this node lacks",
    "which this version does not know: it was written by a newer version. Upgrade this node",
    # It has written a snapshot since the raise.
    "has format version 2, this version of raftkv reads up to 1",
)
# So few would mean that the load stood still for most of the time.
WRITES_MIN = 300


@pytest.fixture
def old(tmp_path: Path) -> Release:
    return unpacked(OLD, tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    mixed = MixedCluster(tmp_path / "nodes")
    yield mixed
    mixed.close()


def test_every_stored_wheel_is_listed_and_small() -> None:
    wheels = {path.name: path.stat().st_size for path in WHEELS.glob("*.whl")}
    assert wheels.keys() == stored_wheels().keys()
    assert max(wheels.values()) <= WHEEL_BYTES_MAX


def test_a_wheel_that_was_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"raftkv-{OLD}-py3-none-any.whl"
    (tmp_path / name).write_bytes((WHEELS / name).read_bytes() + b"x")
    (tmp_path / "SHA256SUMS").write_bytes((WHEELS / "SHA256SUMS").read_bytes())
    monkeypatch.setattr("tests.upgrade.releases.WHEELS", tmp_path)
    with pytest.raises(ValueError, match="SHA256SUMS"):
        unpacked(OLD, tmp_path / "unpacked")


@pytest.mark.slow
def test_each_release_runs_its_own_code(old: Release, tmp_path: Path) -> None:
    modules = ("raftkv", "raftkv_lcr", "raftkv_conf", "raftkv_txqueue")
    for path in old.source_of(modules, tmp_path).values():
        assert path.is_relative_to(old.path[0])
    for path in CHECKOUT.source_of(modules, tmp_path).values():
        assert path.is_relative_to(ROOT)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_cluster_under_load_goes_up_down_up_again_and_is_raised(
    cluster: MixedCluster, old: Release
) -> None:
    usage = Usage(cluster)
    for name in cluster.nodes:
        cluster.start(name, old)
    cluster.wait_ready(cluster.nodes)
    usage.prepare()
    with Load(cluster) as load:
        usage.step("core1")
        for release in (CHECKOUT, old, CHECKOUT):
            roll(cluster, release, load, usage)
            with load.paused():
                check_equal(cluster, release, usage)
        raise_format(cluster, load, usage)
        for name in ("replicant2", "core2"):
            check_refused(cluster, name, old)
        with load.paused():
            check_equal(cluster, CHECKOUT, usage)
    assert len(load.acknowledged) > WRITES_MIN
    usage.check()
    for node in cluster.nodes.values():
        load.check(node)
    for name in cluster.nodes:
        cluster.stop(name)


def roll(cluster: MixedCluster, release: Release, load: Load, usage: Usage) -> None:
    """Change the release node by node.

    Half way the plugins are used at a node of each release, and all nodes are compared: later they
    would hold what one release made of the whole log, when it replayed it.
    """
    # A core and a replicant in turn, so that all pairs of old and new meet on every kind of link.
    pairs = zip(cluster.cores, [n for n in cluster.nodes if n not in cluster.cores], strict=True)
    acknowledged = load.check_progress(since=-1)
    for number, name in enumerate(name for pair in pairs for name in pair):
        cluster.restart(name, release)
        acknowledged = load.check_progress(since=acknowledged)
        if number == 2:
            for core in ("core1", "core3"):
                usage.step(core)
            if release is CHECKOUT:
                refused = run(CHECKOUT, cluster, "format", "raise")
                assert refused.returncode == 1, refused
                # By the leader, or about the leader, if that is of the old release.
                assert "upgrade" in refused.stderr.lower(), refused
            with load.paused():
                check_equal(cluster, release, usage)
    usage.step("core2")


def raise_format(cluster: MixedCluster, load: Load, usage: Usage) -> None:
    """Raise the core format under load; every node has applied it when this returns."""
    acknowledged = load.check_progress(since=-1)
    done = run(CHECKOUT, cluster, "format", "raise")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in cluster.nodes:
        raised = functools.partial(is_raised, cluster, name)
        cluster.wait_for(raised, f"{name} applies core format 2")
    usage.step("core3")
    load.check_progress(since=acknowledged)


def is_raised(cluster: MixedCluster, name: str) -> bool:
    active: dict[str, int] = cluster.status(name)["formats"]["active"]
    return active["core"] == 2


def check_refused(cluster: MixedCluster, name: str, old: Release) -> None:
    """A node that goes back behind the raise takes no part, and its log names the reason.

    Its directory is then used by the present release again.
    """
    cluster.stop(name)
    node = cluster.nodes[name]
    former = len(node.log)
    cluster.start(name, old)
    until = time.monotonic() + REFUSED_S
    while not any(reason in node.log[former:] for reason in REASONS):
        assert time.monotonic() < until, node.log[former:]
        assert not node.is_ready()
        time.sleep(POLL_S)
    assert not node.is_ready()
    cluster.kill(name)
    cluster.start(name, CHECKOUT)
    cluster.wait_ready([name])
    assert is_raised(cluster, name)


def run(release: Release, cluster: MixedCluster, *command: str) -> CompletedProcess[str]:
    """Run a command of the command line against all nodes."""
    return release.run(*command, "--endpoint", cluster.endpoints, directory=cluster.directory)


def check_equal(cluster: MixedCluster, release: Release, usage: Usage) -> None:
    """All nodes hold the same keys and the same in every plugin, at one applied index."""
    done = run(release, cluster, "endpoint", "hashkv", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    compared = json.loads(done.stdout)
    assert compared["same"], compared
    assert all(each["keys"] > 0 for each in compared["nodes"]), compared
    views = views_at_one_index(cluster, usage)
    first = views["core1"]
    for name, view in views.items():
        assert view == first, f"{name} differs from core1"


def views_at_one_index(cluster: MixedCluster, usage: Usage) -> dict[str, object]:
    """The nodes' own views, read while every node stood at one and the same applied index."""
    until = time.monotonic() + EQUAL_S
    while True:
        before = applied(cluster)
        views: dict[str, object] = {name: usage.view(node) for name, node in cluster.nodes.items()}
        if len({*before.values(), *applied(cluster).values()}) == 1:
            return views
        assert time.monotonic() < until, f"the nodes never stood at one index: {before}"


def applied(cluster: MixedCluster) -> dict[str, int]:
    return {name: cluster.status(name)["applied_index"] for name in cluster.nodes}
