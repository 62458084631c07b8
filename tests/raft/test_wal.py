"""The log as its callers see it: durability, truncation in flight, failing disks, the journal.

Recovery from crashes and damage has a file of its own (test_wal_recovery.py).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raftkv.raft.wal import NO_OP, Entry, Wal
from raftkv.runtime import OsFiles
from raftkv.testing.disk import SimDisk

DIRECTORY = "data/wal"


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def sync(wal: Wal) -> None:
    pending = wal.take()
    if pending is not None:
        wal.write(pending)
        wal.written(pending)


def filled(disk: SimDisk, last: int, *, term: int = 1, segment_bytes_max: int = 1 << 20) -> Wal:
    """A log with entries 2 to `last`, one batch each."""
    wal = Wal.open(disk, DIRECTORY, segment_bytes_max=segment_bytes_max)
    for index in range(2, last + 1):
        wal.append(b"\0entry %d" % index, index, term)
        sync(wal)
    return wal


def segments(disk: SimDisk) -> list[str]:
    return disk.listdir(DIRECTORY)


# Opening -----------------------------------------------------------------------------------------


def test_an_empty_directory_becomes_an_empty_log() -> None:
    wal = Wal.open(new_disk(), DIRECTORY)
    assert wal.created
    assert (wal.base_index, wal.base_term, wal.term, wal.vote) == (1, 0, 0, None)
    assert (wal.first_index, wal.last_index, wal.last_term, wal.durable_index) == (2, 1, 0, 1)
    assert wal[0] == (NO_OP, 1, 0)
    assert wal.entries(2) == []
    assert wal.take() is None
    assert not wal.has_pending


@pytest.mark.parametrize("fsync", [True, False])
def test_a_real_directory_gives_everything_back(tmp_path: Path, fsync: bool) -> None:
    directory = str(tmp_path / "a" / "wal")
    wal = Wal.open(OsFiles(), directory, segment_bytes_max=4000, fsync=fsync)
    wal.set_hard_state(3, "kärnä/1")
    for index in range(2, 200):
        wal.append(bytes([0]) + b"x" * index, index, 1 + index // 100)
        sync(wal)
    wal.compact(150, 2)
    wal.truncate_from(190)
    sync(wal)
    expected = wal[:]
    size = sum(
        (tmp_path / "a" / "wal" / name).stat().st_size for name in OsFiles().listdir(directory)
    )
    assert wal.bytes_total == size
    wal.close()
    for _ in range(3):
        wal = Wal.open(OsFiles(), directory, segment_bytes_max=4000, fsync=fsync)
        assert not wal.created
        assert wal[:] == expected
        assert all(type(entry) is Entry for entry in wal[:])
        assert (wal.term, wal.vote, wal.durable_index) == (3, "kärnä/1", 189)
        wal.close()


def test_what_was_not_written_is_not_there_after_a_restart() -> None:
    disk = new_disk()
    wal = filled(disk, 4)
    wal.append(b"\0lost", 5, 1)
    assert Wal.open(disk, DIRECTORY).last_index == 4


def test_opening_again_and_again_does_not_collect_files() -> None:
    disk = new_disk()
    filled(disk, 4)
    for _ in range(10):
        assert Wal.open(disk, DIRECTORY).last_index == 4
    assert len(segments(disk)) <= 2


def test_a_new_log_can_be_written_on_after_it_was_recovered() -> None:
    disk = new_disk()
    filled(disk, 4)
    for last in range(4, 30):
        wal = Wal.open(disk, DIRECTORY, segment_bytes_max=500)
        assert wal.last_index == last
        wal.append(b"\0more", last + 1, 7)
        wal.set_hard_state(last, f"n{last}")
        sync(wal)
        disk.crash()
    wal = Wal.open(disk, DIRECTORY)
    assert (wal.last_index, wal.term, wal.vote) == (30, 29, "n29")


# One batch ---------------------------------------------------------------------------------------


def test_a_batch_is_one_write_and_one_sync() -> None:
    disk = new_disk()
    wal = filled(disk, 2)
    writes, syncs = disk.writes_total, disk.syncs_total
    wal.set_hard_state(4, "a")
    for index in range(3, 103):
        wal.append(b"\0x", index, 4)
    wal.truncate_from(60)
    sync(wal)
    assert (disk.writes_total - writes, disk.syncs_total - syncs) == (1, 1)
    assert wal.durable_index == 59


def test_without_fsync_nothing_is_synced_after_the_start() -> None:
    disk = new_disk()
    wal = Wal.open(disk, DIRECTORY, fsync=False, segment_bytes_max=100)
    syncs = disk.syncs_total
    for index in range(2, 20):
        wal.append(b"\0" * 60, index, 1)
        sync(wal)
    assert disk.syncs_total == syncs
    assert wal.durable_index == 19


def test_nothing_changed_means_nothing_to_write() -> None:
    disk = new_disk()
    wal = filled(disk, 5)
    wal.set_hard_state(2, "a")
    sync(wal)
    wal.set_hard_state(2, "a")
    wal.truncate_from(6)
    wal.compact(1, 0)
    assert wal.take() is None


def test_a_pending_batch_does_not_see_later_changes() -> None:
    disk = new_disk()
    wal = filled(disk, 3)
    wal.append(b"\0four", 4, 1)
    pending = wal.take()
    assert pending is not None
    wal.append(b"\0five", 5, 1)
    wal.set_hard_state(9, "late")
    wal.write(pending)
    disk.crash()
    recovered = Wal.open(disk, DIRECTORY)
    assert recovered[:][-1] == (b"\0four", 4, 1)
    assert recovered.term == 0


# durable_index -----------------------------------------------------------------------------------


def test_only_written_entries_are_durable() -> None:
    wal = filled(new_disk(), 5)
    wal.append(b"\0", 6, 1)
    pending = wal.take()
    assert pending is not None
    wal.append(b"\0", 7, 1)
    assert wal.durable_index == 5
    wal.write(pending)
    assert wal.durable_index == 5
    wal.written(pending)
    assert wal.durable_index == 6


def test_an_entry_replaced_while_its_write_is_in_flight_is_not_durable() -> None:
    disk = new_disk()
    wal = filled(disk, 5)
    for index in (6, 7, 8):
        wal.append(b"\0old", index, 1)
    pending = wal.take()
    assert pending is not None
    wal.truncate_from(7)
    for index in (7, 8, 9):
        wal.append(b"\0new", index, 2)
    wal.write(pending)
    wal.written(pending)
    assert wal.durable_index == 6
    sync(wal)
    assert wal.durable_index == 9
    disk.crash()
    assert [e.payload for e in Wal.open(disk, DIRECTORY).entries(6)] == [b"\0old"] + [b"\0new"] * 3


def test_truncation_below_the_durable_index_lowers_it() -> None:
    wal = filled(new_disk(), 8)
    wal.append(b"\0", 9, 1)
    pending = wal.take()
    assert pending is not None
    wal.truncate_from(4)
    assert wal.durable_index == 3
    wal.append(b"\0", 4, 2)
    wal.write(pending)
    wal.written(pending)
    assert wal.durable_index == 3
    sync(wal)
    assert wal.durable_index == 4


def test_a_rebase_is_durable_only_when_its_base_record_is() -> None:
    disk = new_disk()
    wal = filled(disk, 8)
    wal.append(b"\0", 9, 1)
    before = wal.take()
    assert before is not None
    wal.rebase(20, 3)
    wal.write(before)
    wal.written(before)
    assert wal.durable_index == 1
    assert (wal.base_index, wal.base_term, wal.last_index) == (20, 3, 20)
    sync(wal)
    assert wal.durable_index == 20
    wal.append(b"\0", 21, 3)
    sync(wal)
    disk.crash()
    recovered = Wal.open(disk, DIRECTORY)
    assert recovered[:] == [(NO_OP, 20, 3), (b"\0", 21, 3)]


def test_a_rebase_onto_a_conflicting_entry_drops_what_is_behind_it() -> None:
    disk = new_disk()
    wal = filled(disk, 8)
    wal.rebase(5, 3)
    sync(wal)
    disk.crash()
    assert Wal.open(disk, DIRECTORY)[:] == [(NO_OP, 5, 3)]


# Failing disks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["fail_writes", "fail_syncs"])
@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 100])
def test_a_failed_write_acknowledges_nothing_and_ends_the_log(
    fault: str, segment_bytes_max: int
) -> None:
    disk = new_disk()
    wal = filled(disk, 5, segment_bytes_max=segment_bytes_max)
    wal.append(b"\0" * 100, 6, 1)
    pending = wal.take()
    assert pending is not None
    setattr(disk, fault, True)
    with pytest.raises(OSError, match="simulated disk"):
        wal.write(pending)
    setattr(disk, fault, False)
    assert wal.durable_index == 5
    wal.append(b"\0", 7, 1)
    with pytest.raises(OSError, match="earlier write"):
        wal.write(pending)
    with pytest.raises(OSError, match="earlier write"):
        wal.take()
    assert Wal.open(disk, DIRECTORY).durable_index in (5, 6)


def test_pages_that_a_failed_sync_left_in_memory_are_not_believed_to_be_on_disk() -> None:
    disk = new_disk()
    wal = filled(disk, 5)
    wal.append(b"\0seen", 6, 1)
    pending = wal.take()
    assert pending is not None
    disk.fail_syncs = True
    with pytest.raises(OSError, match="failed to sync"):
        wal.write(pending)
    disk.fail_syncs = False
    # Only the process restarts: the page cache still shows entry 6, and it will be acknowledged.
    assert Wal.open(disk, DIRECTORY).durable_index == 6
    disk.crash()
    assert Wal.open(disk, DIRECTORY).entries(6) == [(b"\0seen", 6, 1)]


# Segments ----------------------------------------------------------------------------------------


def test_compaction_deletes_the_segments_that_it_makes_useless() -> None:
    disk = new_disk()
    wal = filled(disk, 60, segment_bytes_max=600)
    files, size = len(segments(disk)), wal.bytes_total
    assert files > 5
    wal.compact(50, 1)
    assert len(segments(disk)) == files, "files may go only after the base record is durable"
    sync(wal)
    assert len(segments(disk)) < files / 2
    assert wal.bytes_total < size / 2
    disk.crash()
    recovered = Wal.open(disk, DIRECTORY)
    assert [e.index for e in recovered.entries(51)] == list(range(51, 61))


def test_segments_whose_entries_were_truncated_do_not_wait_for_the_base_to_pass_them() -> None:
    disk = new_disk()
    wal = filled(disk, 60, segment_bytes_max=600)
    wal.truncate_from(5)
    wal.append(b"\0" * 600, 5, 2)
    wal.compact(5, 2)
    sync(wal)
    assert len(segments(disk)) == 1
    disk.crash()
    assert Wal.open(disk, DIRECTORY)[:] == [(NO_OP, 5, 2)]


def test_a_rebase_deletes_all_older_segments() -> None:
    disk = new_disk()
    wal = filled(disk, 60, segment_bytes_max=600)
    wal.rebase(100, 2)
    sync(wal)
    assert len(segments(disk)) == 1
    assert Wal.open(disk, DIRECTORY)[:] == [(NO_OP, 100, 2)]


def test_a_segment_holds_one_batch_even_if_that_is_too_long() -> None:
    disk = new_disk()
    wal = Wal.open(disk, DIRECTORY, segment_bytes_max=1000)
    wal.append(b"\0" * 5000, 2, 1)
    sync(wal)
    wal.append(b"\0", 3, 1)
    sync(wal)
    # The first segment held no entry, so it went at once.
    assert len(segments(disk)) == 2
    assert Wal.open(disk, DIRECTORY).last_index == 3


# Reading -----------------------------------------------------------------------------------------


def test_entries_are_cut_out_by_index_and_bytes() -> None:
    wal = filled(new_disk(), 10)
    wal.compact(3, 1)
    index = [e.index for e in wal.entries(5)]
    assert index == [5, 6, 7, 8, 9, 10]
    assert [e.index for e in wal.entries(4, 6)] == [4, 5, 6]
    assert [e.index for e in wal.entries(4, 99)] == [4, 5, 6, 7, 8, 9, 10]
    assert wal.entries(8, 7) == []
    assert wal.entries(8, 2) == []
    assert wal.entries(11) == []
    size = len(b"\0entry 5")
    assert [e.index for e in wal.entries(5, bytes_max=2 * size)] == [5, 6]
    assert [e.index for e in wal.entries(5, bytes_max=2 * size - 1)] == [5]
    assert [e.index for e in wal.entries(5, bytes_max=0)] == [5]
    with pytest.raises(AssertionError):
        wal.entries(3)


def test_terms_are_known_from_the_base_to_the_end() -> None:
    wal = filled(new_disk(), 6)
    wal.append(b"\0", 7, 4)
    wal.compact(3, 1)
    assert [wal.term_at(i) for i in range(1, 9)] == [None, None, 1, 1, 1, 1, 4, None]
    assert wal.term_at(-5) is None
    assert (wal.last_term, wal.base_term) == (4, 1)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda wal: wal.append(b"\0", 8, 1),
        lambda wal: wal.append(b"\0", 6, 1),
        lambda wal: wal.append(b"\0", 7, 0),
        lambda wal: wal.truncate_from(3),
        lambda wal: wal.compact(7, 1),
        lambda wal: wal.compact(4, 2),
        lambda wal: wal.rebase(2, 1),
        lambda wal: wal.set_hard_state(4, "a"),
    ],
)
def test_calls_that_would_break_the_log_are_refused(mistake: object) -> None:
    wal = filled(new_disk(), 6)
    wal.compact(3, 1)
    wal.set_hard_state(5, "a")
    sync(wal)
    expected = wal[:]
    assert callable(mistake)
    with pytest.raises(AssertionError):
        mistake(wal)
    assert wal[:] == expected
    assert not wal.has_pending


# PySyncObj's view --------------------------------------------------------------------------------


def test_the_journal_speaks_in_positions() -> None:
    wal = Wal.open(new_disk(), DIRECTORY)
    for index in range(2, 10):
        wal.add(b"\0", index, 1)
    assert len(wal) == 9
    assert wal[0] == (NO_OP, 1, 0)
    assert wal[-1] == (b"\0", 9, 1)
    wal.deleteEntriesFrom(6)
    assert wal.last_index == 6
    wal.deleteEntriesTo(3)
    assert [e[1] for e in wal[:]] == [4, 5, 6]
    assert wal[0] == (NO_OP, 4, 1)
    wal.setCurrentTerm(4, "a")
    assert (wal.getCurrentTerm(), wal.getVotedForNodeId()) == (4, "a")
    assert wal.getRaftCommitIndex() == 4
    wal.setRaftCommitIndex(6)
    assert wal.getRaftCommitIndex() == 6
    wal.onOneSecondTimer()
    wal.clear()
    assert wal[:] == [(NO_OP, 4, 1)]
    wal._destroy()
