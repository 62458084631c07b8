"""Real etcd beside raftkv, and a cluster of three cores for the clients that others wrote.

etcd comes from Debian's package: installed, or downloaded without root (bench/peers/debian.py).
Where neither works the tests that need it are skipped, with the reason.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.differential.both import both
from bench.differential.example import Pair
from bench.peers import debian
from raftkv.cli.devcluster import DevCluster

UP_S = 60.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """One etcd and one raftkv at the same revision. What does not agree leaves them apart."""
    try:
        debian.find("etcd")
    except debian.Missing as error:
        pytest.skip(str(error))
    with both() as started:
        yield started


@pytest.fixture(scope="session")
def three_nodes(
    tmp_path_factory: pytest.TempPathFactory,
    at_folder_end: Callable[[Path, Callable[[], object]], None],
) -> Iterator[DevCluster]:
    dev = DevCluster(tmp_path_factory.mktemp("etcd") / "dev")
    dev.create(cores=3, replicants=0, plugins=[])
    at_folder_end(Path(__file__).parent, dev.down)
    yield dev
    dev.down()


@pytest.fixture
def three(three_nodes: DevCluster) -> DevCluster:
    """Three cores, all of which run and take writes."""
    three_nodes.up(timeout_s=UP_S)
    return three_nodes


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Of an endpoint, as clients want them."""
    parts = urllib.parse.urlsplit(endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
