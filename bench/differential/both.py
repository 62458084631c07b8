"""etcd and raftkv side by side: one member of each, started by entering a context.

Without an fsync on either side worth the name: data lie in memory where the machine has a file
system for that. What is compared is what is said, not what survives.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.differential.example import Pair
from bench.peers.etcd import Etcd
from raftkv.cli.devcluster import DevCluster

__all__ = ["both"]

MEMORY: Final = "/dev/shm"
UP_S: Final = 60.0


@contextlib.contextmanager
def both() -> Iterator[Pair]:
    """Raises `debian.Missing`, `EtcdFailed`, or a `RaftkvError` when one does not start."""
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="raftkv-differential-", dir=within) as place:
        (Path(place) / "etcd").mkdir()
        with Etcd(Path(place) / "etcd", members=1) as etcd:
            dev = DevCluster(Path(place) / "raftkv")
            try:
                dev.up(cores=1, replicants=0, fsync="off", plugins=[], timeout_s=UP_S)
                pair = Pair(etcd.endpoints[0], dev.endpoints()[0])
                try:
                    pair.align()
                    yield pair
                finally:
                    pair.close()
            finally:
                dev.down()
