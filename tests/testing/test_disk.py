"""The simulated disk: kind to what was synced, unkind to everything else, the same for a seed."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.runtime import Files, OsFiles, Space
from raftkv.testing.disk import SECTOR_BYTES, SPACE, SimDisk


def new_disk(seed: int = 1) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.makedirs("d")
    return disk


def put(disk: SimDisk, path: str, data: bytes, *, durable: bool = True) -> None:
    file = disk.open(path, "w")
    file.write(data)
    if durable:
        file.datasync()
        disk.sync_dir("d")


def get(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path, "r")
    return file.pread(0, file.size())


# It is a file system -----------------------------------------------------------------------------


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest) -> Files:
    return OsFiles() if request.param == "real" else SimDisk(random.Random(1))


@pytest.fixture
def root(files: Files, tmp_path: Path) -> str:
    directory = str(tmp_path / "root")
    files.makedirs(directory)
    return directory


def test_both_file_systems_behave_alike(files: Files, root: str) -> None:
    files.makedirs(f"{root}/a/b")
    files.makedirs(f"{root}/a/b")
    file = files.open(f"{root}/a/b/one", "a")
    file.write(b"hello ")
    file.write(b"world")
    assert (file.size(), file.pread(6, 100), file.pread(50, 1)) == (11, b"world", b"")
    file.truncate(5)
    again = files.open(f"{root}/a/b/one", "a")
    again.write(b"!")
    assert file.pread(0, 100) == b"hello!"
    again.datasync()
    files.rename(f"{root}/a/b/one", f"{root}/a/b/two")
    files.sync_dir(f"{root}/a/b")
    assert not files.exists(f"{root}/a/b/one")
    assert files.listdir(f"{root}/a/b") == ["two"]
    assert files.listdir(f"{root}/a") == ["b"]
    assert files.open(f"{root}/a/b/two", "w").size() == 0
    files.remove(f"{root}/a/b/two")
    assert file.pread(0, 10) == b"", "an open file outlives its name"
    file.close()
    file.close()
    with pytest.raises(OSError, match="closed|descriptor|reading"):
        file.size()
    for mistake in (
        lambda: files.open(f"{root}/a/b/none", "r"),
        lambda: files.open(f"{root}/none/one", "w"),
        lambda: files.remove(f"{root}/a/b/none"),
        lambda: files.listdir(f"{root}/none"),
        lambda: files.rename(f"{root}/a/b/none", f"{root}/a/b/x"),
        lambda: files.sync_dir(f"{root}/none"),
    ):
        with pytest.raises(FileNotFoundError):
            mistake()


def test_a_lock_is_exclusive(files: Files, root: str) -> None:
    files.makedirs(f"{root}/a")
    lock = files.lock(f"{root}/a/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{root}/a/lock")
    lock.release()
    lock.release()
    files.lock(f"{root}/a/lock").release()
    assert files.exists(f"{root}/a/lock")


def test_a_file_opened_for_reading_cannot_be_written(files: Files, root: str) -> None:
    files.makedirs(f"{root}/a")
    files.open(f"{root}/a/x", "w").close()
    with pytest.raises(OSError, match="closed|descriptor|reading"):
        files.open(f"{root}/a/x", "r").write(b"x")


# Crashes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_what_was_synced_survives(seed: int) -> None:
    disk = new_disk(seed)
    put(disk, "d/a", b"x" * 3000)
    put(disk, "d/b", b"old")
    disk.rename("d/b", "d/c")
    disk.sync_dir("d")
    disk.open("d/a", "a").write(b"more" * 500)
    disk.crash()
    assert get(disk, "d/a")[:3000] == b"x" * 3000
    assert get(disk, "d/c") == b"old"
    assert not disk.exists("d/b")


@settings(max_examples=200, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 3000), st.integers(1, 5000))
def test_each_sector_of_an_unsynced_write_is_new_or_old(seed: int, before: int, size: int) -> None:
    disk = new_disk(seed)
    put(disk, "d/a", b"o" * before)
    disk.open("d/a", "a").write(b"n" * size)
    disk.crash()
    found = get(disk, "d/a")
    whole = b"o" * before + b"n" * size
    assert before <= len(found) <= len(whole)
    for start in range(0, len(found), SECTOR_BYTES):
        piece = found[start : start + SECTOR_BYTES]
        old = whole[:before][start : start + SECTOR_BYTES].ljust(len(piece), b"\0")
        assert piece in (whole[start : start + len(piece)], old)


def outcomes(write: bytes) -> set[str]:
    seen = set()
    for seed in range(200):
        disk = new_disk(seed)
        put(disk, "d/a", b"o" * 100)
        disk.open("d/a", "a").write(write)
        disk.crash()
        found = get(disk, "d/a")[100:]
        if not found:
            seen.add("lost")
        elif found == write:
            seen.add("whole")
        elif b"\0" in found:
            seen.add("zeroed")
        else:
            seen.add("cut at a sector" if len(found) % 512 == 412 else "cut inside a sector")
    return seen


def test_every_kind_of_tear_happens() -> None:
    expected = {"lost", "whole", "zeroed", "cut at a sector", "cut inside a sector"}
    assert outcomes(b"n" * 3000) == expected


def test_unsynced_names_may_be_lost_in_any_combination() -> None:
    seen = set()
    for seed in range(300):
        disk = new_disk(seed)
        put(disk, "d/old", b"x")
        put(disk, "d/gone", b"x")
        file = disk.open("d/new", "w")
        file.write(b"n")
        file.datasync()
        disk.rename("d/new", "d/named")
        disk.remove("d/gone")
        disk.crash()
        seen.add(tuple(disk.listdir("d")))
        if disk.exists("d/named"):
            assert get(disk, "d/named") == b"n"
    assert seen == {
        ("gone", "old"),
        ("gone", "new", "old"),
        ("gone", "named", "old"),
        ("named", "old"),
        ("old",),
        ("new", "old"),
    }


def test_locks_and_open_files_do_not_survive_a_crash() -> None:
    disk = new_disk()
    put(disk, "d/a", b"x")
    file = disk.open("d/a", "a")
    stale = disk.lock("d/lock")
    disk.crash()
    with pytest.raises(OSError, match="closed"):
        file.write(b"y")
    held = disk.lock("d/lock")
    stale.release()
    with pytest.raises(BlockingIOError):
        disk.lock("d/lock")
    held.release()


def trace(seed: int) -> list[tuple[str, bytes]]:
    disk = new_disk(seed)
    found = []
    for turn in range(20):
        put(disk, f"d/{turn}", bytes([turn]) * 2000, durable=turn % 3 == 0)
        disk.open("d/0", "a").write(b"x" * 700)
        disk.crash()
        if not disk.exists("d/0"):
            put(disk, "d/0", b"")
        found += [(name, get(disk, f"d/{name}")) for name in disk.listdir("d")]
    return found


def test_the_same_seed_gives_the_same_disk() -> None:
    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


# Faults ------------------------------------------------------------------------------------------


def test_a_full_disk_writes_a_part_at_most() -> None:
    disk = new_disk()
    put(disk, "d/a", b"old")
    disk.fail_writes = True
    with pytest.raises(OSError, match="no space left"):
        disk.open("d/a", "a").write(b"x" * 100)
    assert get(disk, "d/a").rstrip(b"x") == b"old"
    assert len(get(disk, "d/a")) < 103


def test_what_a_failed_sync_should_have_written_stays_unwritten() -> None:
    disk = new_disk()
    put(disk, "d/a", b"old")
    file = disk.open("d/a", "a")
    file.write(b"lost")
    disk.fail_syncs = True
    with pytest.raises(OSError, match="failed to sync"):
        file.datasync()
    disk.fail_syncs = False
    file.datasync()
    assert get(disk, "d/a") == b"oldlost"
    disk.crash()
    assert get(disk, "d/a") == b"old"


def test_a_flipped_bit_stays_flipped() -> None:
    disk = new_disk()
    put(disk, "d/a", b"\0" * 10)
    disk.flip_bit("d/a", 4, 3)
    assert get(disk, "d/a") == b"\0\0\0\0\x08\0\0\0\0\0"
    disk.flip_bit("d/a", 9)
    disk.crash()
    assert sum(byte.bit_count() for byte in get(disk, "d/a")) == 2


@pytest.mark.parametrize("readable", [True, False])
def test_a_lost_sector_stays_lost_until_it_is_mended(readable: bool) -> None:
    disk = new_disk()
    whole = bytes(range(1, 251)) * 6
    put(disk, "d/a", whole)
    held = disk.lose_sector("d/a", 1, readable=readable)
    assert held == whole[SECTOR_BYTES : 2 * SECTOR_BYTES]
    disk.crash()
    if readable:
        lost = whole[:SECTOR_BYTES] + bytes(SECTOR_BYTES) + whole[2 * SECTOR_BYTES :]
        assert get(disk, "d/a") == lost
    else:
        with pytest.raises(OSError, match="failed to read"):
            get(disk, "d/a")
        assert disk.open("d/a", "r").pread(0, SECTOR_BYTES) == whole[:SECTOR_BYTES]
        assert disk.read_failures_total == 1
    disk.mend_sector("d/a", 1, held)
    assert get(disk, "d/a") == whole


def test_a_disk_that_is_put_back_holds_what_was_durable_then() -> None:
    disk = new_disk()
    put(disk, "d/a", b"old")
    put(disk, "d/b", b"not durable", durable=False)
    copy = disk.platters()
    put(disk, "d/a", b"new")
    put(disk, "d/c", b"later")
    disk.crash()
    disk.roll_back(copy)
    assert disk.listdir("d") == ["a"]
    assert get(disk, "d/a") == b"old"
    disk.crash()
    assert get(disk, "d/a") == b"old"


def test_the_power_can_fail_between_two_operations() -> None:
    disk = new_disk()
    disk.changes_left = 2
    file = disk.open("d/a", "w")
    file.write(b"x")
    for attempt in (file.datasync, lambda: disk.remove("d/a"), lambda: file.write(b"y")):
        with pytest.raises(OSError, match="power is off"):
            attempt()
    assert get(disk, "d/a") == b"x"
    disk.crash()
    put(disk, "d/a", b"z")
    assert get(disk, "d/a") == b"z"


def test_a_disk_that_is_full_for_snapshots_takes_everything_else() -> None:
    disk = SimDisk(random.Random(1))
    disk.makedirs("/d/snapshots")
    disk.fail_snapshots = True
    disk.space_of_snapshots = Space(5, 10)
    disk.open("/d/log.wal", "a").write(b"x")
    disk.open("/d/snapshots/1.snap", "w").write(b"x")
    with pytest.raises(OSError, match="no space left") as caught:
        disk.open("/d/snapshots/1.snap.tmp", "w").write(b"x" * 100)
    assert caught.value.errno == errno.ENOSPC
    assert (disk.failures_total, disk.snapshot_failures_total) == (0, 1)
    assert disk.space("/d/snapshots") == Space(5, 10)
    assert disk.space("/d") == SPACE
    disk.fail_snapshots = False
    assert disk.space("/d/snapshots") == SPACE


def test_the_operating_system_tells_the_space_of_a_volume(tmp_path: Path) -> None:
    space = OsFiles().space(str(tmp_path))
    assert 0 <= space.free_bytes <= space.total_bytes
    with pytest.raises(FileNotFoundError):
        OsFiles().space(str(tmp_path / "none"))
