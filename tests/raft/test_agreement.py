"""Snapshot and log name the same members where both are committed (agreement.py)."""

from __future__ import annotations

import random

import msgspec
import pytest

from raftkv.config import Limits
from raftkv.errors import Diverged
from raftkv.raft import wire
from raftkv.raft.agreement import Held, require_agreement
from raftkv.raft.membership import Configuration, encode
from raftkv.raft.recovery import Recovered, recover
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.raft.snapshot_file import FORMAT_1, FORMAT_VERSION, header
from raftkv.testing.disk import SimDisk
from tests.raft.harness import (
    DIRECTORY,
    A,
    B,
    Bench,
    C,
    append,
    batch,
    chunk,
    configuration_entry,
    write_log,
)

TWO, THREE = Configuration((A, B)), Configuration((A, B, C))
LOG = [(1, batch(str(number))) for number in range(3, 11)]  # entries 3 to 10; 2 holds THREE


def meta(index: int, configuration: Configuration, since: int = 0, term: int = 1) -> SnapshotMeta:
    """`since` 0: as core format 1 has it."""
    version = FORMAT_VERSION if since else FORMAT_1
    return SnapshotMeta(index, term, encode(configuration), "cluster", version, since)


# The rule ----------------------------------------------------------------------------------------


def test_it_is_compared_at_committed_indexes_only() -> None:
    held = Held(8, THREE, 2, 1)
    require_agreement(held, meta(8, THREE, 2))
    require_agreement(held, meta(8, THREE))
    require_agreement(held, meta(20, THREE, 2))
    require_agreement(held, meta(20, TWO, 9))  # behind what is committed here
    require_agreement(held, meta(20, TWO))  # nothing shows since when
    for contradiction in (meta(8, TWO), meta(20, TWO, 2), meta(20, TWO, 8), meta(20, THREE, 5)):
        with pytest.raises(Diverged, match="add it with an empty directory"):
            require_agreement(held, contradiction)


def test_a_snapshot_from_before_a_committed_change_is_no_contradiction() -> None:
    """It arrives late: the log that came in its place holds a change behind it."""
    require_agreement(Held(10, THREE, 9, 1), meta(8, TWO, 2))
    require_agreement(Held(10, THREE, 9, 1), meta(8, TWO))
    require_agreement(Held(10, THREE, 0, 9), meta(8, TWO, 2))
    with pytest.raises(Diverged):
        require_agreement(Held(10, THREE, 8, 1), meta(8, TWO, 2))


def test_an_entry_that_the_log_has_forgotten_lies_at_its_base_or_before() -> None:
    for configuration in (THREE, None):
        held = Held(8, configuration, 0, 5)
        require_agreement(held, meta(20, THREE, 5))
        require_agreement(held, meta(20, TWO, 9))
        with pytest.raises(Diverged, match=r"5 or before"):
            require_agreement(held, meta(20, THREE, 6))
    require_agreement(Held(8, None, 0, 5), meta(8, TWO))


# At a start --------------------------------------------------------------------------------------


def started(snapshot: SnapshotMeta) -> Recovered:
    disk = SimDisk(random.Random(4))
    write_log(disk, THREE, LOG, 1)
    writer = SnapshotStore(disk, f"{DIRECTORY}/snapshots").writer(snapshot)
    writer.write(b"state")
    writer.commit()
    return recover(disk, DIRECTORY, Limits(), fsync=True, belongs=True)


def test_a_start_refuses_a_snapshot_that_the_log_contradicts() -> None:
    assert started(meta(7, THREE)).configurations.since(9) == 0
    assert started(meta(7, THREE, 2)).configurations.since(9) == 2
    for contradiction in (meta(7, TWO), meta(7, TWO, 2), meta(7, THREE, 4)):
        with pytest.raises(Diverged, match="the snapshot at entry 7"):
            started(contradiction)


def test_a_start_replaces_a_log_that_does_not_hold_the_snapshots_last_entry() -> None:
    found = started(meta(7, TWO, 5, term=3))
    assert (found.configurations.latest, found.wal.base_index) == (TWO, 7)


# At an installation ------------------------------------------------------------------------------


def sent(snapshot: SnapshotMeta, in_term: int = 4) -> wire.SnapshotChunk:
    """The whole file in one chunk."""
    disk = SimDisk(random.Random(9))
    writer = SnapshotStore(disk, "elsewhere").writer(snapshot)
    writer.write(b"state")
    file = writer.commit()
    data, name = file.read(0, file.size_bytes), file.id
    index, term = snapshot.index, snapshot.term
    return chunk(in_term, data, data, 0, index=index, snapshot_term=term, name=name)


def arrives(bench: Bench, snapshot: SnapshotMeta) -> None:
    bench.receive(A, sent(snapshot))
    bench.runtime.settle()


def follower(*log: tuple[int, bytes], commit: int) -> Bench:
    """It has `commit` entries committed of those and the first configuration."""
    bench = Bench(C, log=log)
    bench.deliver(A, append(1, 2 + len(log), 1, commit=commit))
    assert bench.engine.commit == commit
    return bench


def test_a_snapshot_that_contradicts_a_committed_configuration_stops_the_node() -> None:
    for contradiction in (meta(50, TWO, 2, 3), meta(50, THREE, 5, 3)):
        bench = follower(*LOG, commit=8)
        arrives(bench, contradiction)
        (fault,) = bench.application.faults
        assert isinstance(fault, Diverged)
        assert bench.application.restored == []
        # A restart must not find it either: its log would be taken for one that only lags.
        left = SnapshotStore(bench.disk, f"{DIRECTORY}/snapshots")
        assert left.latest() is None


def test_a_snapshot_that_agrees_or_is_later_is_installed() -> None:
    for snapshot in (meta(50, THREE, 2, 3), meta(50, TWO, 9, 3), meta(50, TWO, term=3)):
        bench = follower(*LOG, commit=8)
        arrives(bench, snapshot)
        assert bench.application.faults == []
        assert bench.application.restored == [50]
        assert bench.engine.configurations.since(50) == snapshot.configuration_index


def test_an_uncommitted_configuration_that_differs_is_replaced_without_complaint() -> None:
    change = (1, configuration_entry(TWO))
    bench = follower(*LOG, change, commit=8)
    assert bench.engine.configuration == TWO
    arrives(bench, meta(50, THREE, 2, 3))
    assert bench.application.faults == []
    assert bench.engine.configuration == THREE


def test_a_snapshot_of_another_cluster_is_dropped_with_its_link() -> None:
    bench = follower(*LOG, commit=8)
    other = msgspec.structs.replace(meta(50, THREE, 2, 3), cluster_id="another")
    arrives(bench, other)
    assert bench.application.faults == []
    assert bench.application.restored == []
    assert bench.links[A].closed
    assert not [path for path in bench.disk.paths() if "/snapshots/" in path]


def test_what_is_committed_meanwhile_is_compared_at_the_swap() -> None:
    bench = follower(*LOG, (1, configuration_entry(TWO)), commit=8)
    bench.receive(A, sent(meta(50, THREE, 10, 3), in_term=1))
    bench.runtime.finish_bulk()  # it is whole, and nothing that is committed contradicts it
    assert bench.application.faults == []
    bench.deliver(A, append(1, 11, 1, commit=11))
    (fault,) = bench.application.faults
    assert isinstance(fault, Diverged)
    assert bench.application.restored == []


# The file ----------------------------------------------------------------------------------------


def test_a_core_writes_the_index_at_the_format_that_has_it() -> None:
    for core_format, version, since in ((1, FORMAT_1, 0), (2, FORMAT_VERSION, 2)):
        bench = follower(*LOG, commit=8)
        bench.application.core_format = core_format
        bench.engine.snapshotting.begin()
        bench.runtime.settle()
        snapshot = bench.engine.snapshotting.store.latest()
        assert snapshot is not None
        assert (snapshot.meta.format_version, snapshot.meta.configuration_index) == (version, since)


def test_the_file_of_core_format_1_is_that_of_the_release_before() -> None:
    first = meta(7, THREE)
    former = {name: getattr(first, name) for name in first.__struct_fields__[:5]}
    assert list(former) == ["index", "term", "configuration", "cluster_id", "format_version"]
    body = msgspec.msgpack.encode(former)
    assert header(first)[:-4] == b"raftkvSN" + bytes([1, 0, 0, 0, len(body), 0, 0, 0]) + body
