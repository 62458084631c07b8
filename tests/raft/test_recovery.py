"""recovery.py: what a start makes of log and snapshots (rules 4 and 6)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.config import Limits
from raftkv.errors import DamagedLog, DamagedSnapshot
from raftkv.raft.membership import EMPTY, Configuration, encode
from raftkv.raft.recovery import Recovered, recover
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.raft.wal import Wal
from raftkv.testing.disk import SimDisk
from tests.raft.harness import DIRECTORY, batch, configuration_entry, sync

ONE, TWO, THREE = (Configuration(("a-1", "b-1", "c-1")[:count]) for count in (1, 2, 3))


def new_disk() -> SimDisk:
    return SimDisk(random.Random(3))


def open_node(disk: SimDisk, *, belongs: bool = True) -> Recovered:
    return recover(disk, DIRECTORY, Limits(), fsync=True, belongs=belongs)


def snapshot(disk: SimDisk, index: int, term: int, configuration: Configuration) -> str:
    store = SnapshotStore(disk, f"{DIRECTORY}/snapshots")
    writer = store.writer(SnapshotMeta(index, term, encode(configuration), "cluster"))
    writer.write(b"state")
    return writer.commit().path


def fill(disk: SimDisk, entries: list[tuple[int, bytes]]) -> Wal:
    """A synced log of these (term, payload) from index 2 on."""
    wal = Wal.open(disk, f"{DIRECTORY}/wal")
    for index, (term, payload) in enumerate(entries, 2):
        wal.append(payload, index, term)
    sync(wal)
    return wal


def test_an_empty_directory() -> None:
    found = open_node(new_disk(), belongs=False)
    assert (found.applied, found.snapshot, found.wal.last_index) == (1, None, 1)
    assert found.configurations.latest == EMPTY


def test_a_member_whose_log_is_gone_does_not_start() -> None:
    with pytest.raises(DamagedLog, match="the log is gone"):
        open_node(new_disk(), belongs=True)


def test_configurations_come_from_the_log_uncommitted_ones_too() -> None:
    disk = new_disk()
    log = [(1, configuration_entry(ONE)), (1, batch("x")), (2, configuration_entry(THREE))]
    fill(disk, log)
    found = open_node(disk)
    assert found.configurations.latest == THREE
    assert found.configurations.at(3) == ONE
    assert found.configurations.truncate_from(4)
    assert found.configurations.latest == ONE


def test_the_snapshots_configuration_counts_where_the_log_is_gone() -> None:
    disk = new_disk()
    wal = fill(disk, [(1, configuration_entry(ONE)), (1, batch("3")), (1, batch("4"))])
    snapshot(disk, 3, 1, TWO)
    wal.compact(3, 1)
    sync(wal)
    found = open_node(disk)
    assert found.configurations.latest == TWO
    assert (found.applied, found.wal.first_index, found.wal.last_index) == (3, 4, 4)


def test_a_configuration_in_front_of_the_snapshot_is_not_taken_twice() -> None:
    disk = new_disk()
    log = [(1, configuration_entry(ONE)), (1, configuration_entry(TWO)), (1, batch("4"))]
    fill(disk, log)
    snapshot(disk, 3, 1, TWO)
    found = open_node(disk)
    assert found.configurations.latest_index == 3
    assert found.configurations.latest == TWO


def test_a_log_that_begins_behind_the_snapshot_has_a_hole() -> None:
    disk = new_disk()
    wal = fill(disk, [(1, batch(str(index))) for index in range(2, 10)])
    snapshot(disk, 3, 1, ONE)
    wal.compact(6, 1)
    sync(wal)
    with pytest.raises(DamagedLog, match="begins?|starts behind index 6") as caught:
        open_node(disk)
    assert "start the node with an empty data directory" in str(caught.value)


def test_a_compacted_log_without_any_snapshot_has_a_hole() -> None:
    disk = new_disk()
    wal = fill(disk, [(1, batch(str(index))) for index in range(2, 10)])
    wal.compact(6, 1)
    sync(wal)
    with pytest.raises(DamagedLog):
        open_node(disk)


def test_a_damaged_snapshot_stops_the_start() -> None:
    disk = new_disk()
    fill(disk, [(1, batch("2"))])
    path = snapshot(disk, 2, 1, ONE)
    disk.flip_bit(path, 60)
    with pytest.raises(DamagedSnapshot, match="Keep a copy of the directory"):
        open_node(disk)


def test_term_and_vote_survive_a_log_that_starts_anew() -> None:
    disk = new_disk()
    wal = fill(disk, [(1, batch("2"))])
    wal.set_hard_state(9, "b-1")
    sync(wal)
    snapshot(disk, 50, 4, ONE)
    for _ in range(2):
        found = open_node(disk)
        assert (found.wal.base_index, found.wal.base_term, found.wal.last_index) == (50, 4, 50)
        assert (found.wal.term, found.wal.vote) == (9, "b-1")
        assert found.wal.durable_index == 50
        found.wal.close()


@given(
    last=st.integers(3, 12),
    at=st.integers(2, 14),
    base=st.integers(1, 12),
    term=st.integers(1, 3),
    changes_left=st.integers(0, 30),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_a_crash_anywhere_in_recovery_is_recovered_from(
    last: int, at: int, base: int, term: int, changes_left: int, seed: int
) -> None:
    """Log 2 to `last` of terms 1 and 2, snapshot at `at`, compacted to `base` or not yet."""
    disk = SimDisk(random.Random(seed))
    wal = fill(disk, [(1 + index // 7, batch(str(index))) for index in range(2, last + 1)])
    snapshot(disk, at, term, ONE)
    if 1 < base <= min(at, last):
        wal.compact(base, wal.term_at(base) or 0)
        sync(wal)
    matches = wal.term_at(at) == term
    tail = wal.entries(at + 1) if matches else []
    disk.changes_left = changes_left
    try:
        open_node(disk)
    except OSError:
        disk.crash()
    disk.changes_left = None
    found = open_node(disk)
    assert found.applied == at
    assert found.wal.term_at(at) == term
    assert found.wal.entries(at + 1) == tail
    assert found.wal.durable_index == found.wal.last_index
