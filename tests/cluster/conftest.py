"""One cluster of six real processes for all tests of this folder that need no other one.

Starting six nodes costs more than most tests do, so the cluster is kept for the folder. Every test
gets it with all nodes running, may kill any of them, and writes under keys of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster

UP_S = 60.0


@pytest.fixture(scope="session")
def six_nodes(
    tmp_path_factory: pytest.TempPathFactory,
    at_folder_end: Callable[[Path, Callable[[], object]], None],
) -> Iterator[DevCluster]:
    dev = DevCluster(tmp_path_factory.mktemp("six") / "dev")
    dev.create(cores=3, replicants=3, plugins=[])
    at_folder_end(Path(__file__).parent, dev.down)
    yield dev
    dev.down()


@pytest.fixture
def six(six_nodes: DevCluster) -> DevCluster:
    """Three cores and three replicants, all of which take writes."""
    six_nodes.up(timeout_s=UP_S)
    return six_nodes
