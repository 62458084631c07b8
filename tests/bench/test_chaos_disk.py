"""The disk that fails on order, and the power cut that takes what was not synced."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.chaos.files import Books, FaultyFiles, Order, Strike
from bench.chaos.power import TORN_SHARE, cut_power
from raftkv.raft.wal import Wal


class Host:
    """One node's directory with its books; a `Files` per life."""

    def __init__(self, folder: Path) -> None:
        self.data = str(folder / "data")
        self.books = str(folder / "books")
        self.control = folder / "control.json"
        self.strikes_path = folder / "strikes"
        self.files = self.life()
        self.files.makedirs(self.data)

    def life(self) -> FaultyFiles:
        """The files of a process that starts now."""
        self.files = FaultyFiles(str(self.control), str(self.strikes_path), Books(self.books))
        return self.files

    def path(self, name: str) -> str:
        return os.path.join(self.data, name)

    def order(self, order: Order) -> None:
        self.control.write_bytes(msgspec.json.encode(order))

    def strikes(self) -> list[str]:
        lines = self.strikes_path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Strike).what for line in lines]

    def write(self, name: str, data: bytes, *, sync: bool, sync_dir: bool = True) -> None:
        file = self.files.open(self.path(name), "a")
        file.write(data)
        if sync:
            file.datasync()
        file.close()
        if sync_dir:
            self.files.sync_dir(self.data)

    def cut(self, seed: int = 1) -> int:
        """A power cut; how much it took, of files and of changes in directories."""
        loss = cut_power(self.data, self.books, random.Random(seed))
        return loss.bytes + loss.changes

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(Path(self.data).iterdir())}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_an_order_the_disk_is_sound(host: Host) -> None:
    host.write("f", b"abc", sync=True)
    assert host.content() == {"f": b"abc"}
    assert host.strikes() == []


@pytest.mark.parametrize(
    ("order", "error", "left", "struck"),
    [
        (Order(fsync="error"), errno.EIO, b"abcd", "fsync"),
        (Order(write="error"), errno.EIO, b"", "write"),
        (Order(write="full"), errno.ENOSPC, b"ab", "full"),
    ],
)
def test_an_ordered_fault_strikes_and_is_noted(
    order: Order, error: int, left: bytes, struck: str, host: Host
) -> None:
    host.order(order)
    with pytest.raises(OSError, match=os.strerror(error)) as raised:
        host.write("f", b"abcd", sync=True)
    assert raised.value.errno == error
    assert host.content() == {"f": left}
    assert host.strikes() == [struck]
    host.control.unlink()
    host.write("f", b"!", sync=True)
    assert host.content() == {"f": left + b"!"}


def test_a_slow_disk_is_slow_and_otherwise_sound(host: Host) -> None:
    host.order(Order(fsync="slow", delay_s=0.001))
    host.write("f", b"abc", sync=True)
    assert host.content() == {"f": b"abc"}
    assert set(host.strikes()) == {"slow"}


def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(host: Host) -> None:
    host.write("f", b"synced", sync=True)
    host.write("f", b" and not", sync=False)
    host.write("g", b"synced", sync=True)
    seen = set()
    for seed in range(20):
        (Path(host.data) / "f").write_bytes(b"synced and not")
        Books(host.books).synced(host.path("f"), 6)
        assert host.cut(seed) > 0
        seen.add(host.content()["f"])
    assert all(b"synced and not".startswith(left) and len(left) < 14 for left in seen)
    assert b"synced" in seen, "some power cuts take all of it"
    assert len(seen) > 2, "some tear the end"
    assert host.content()["g"] == b"synced"


def test_after_kill_9_alone_everything_written_is_there_and_still_unsynced(host: Host) -> None:
    host.write("f", b"synced", sync=True)
    host.write("f", b" and not", sync=False)
    host.life()
    assert host.content() == {"f": b"synced and not"}
    host.files.open(host.path("f"), "r").datasync()
    assert host.cut() == 0, "recovery has synced it"


# A power cut that finds no change of a directory on the disk, as `cut_power` draws it.
WORST = next(seed for seed in range(100) if random.Random(seed).random() >= TORN_SHARE)


def test_a_file_whose_directory_was_not_synced_vanishes(host: Host) -> None:
    host.write("f", b"abc", sync=True, sync_dir=False)
    assert host.cut(WORST) == 1
    assert host.content() == {}


def test_a_rename_and_a_removal_that_were_not_synced_are_undone(host: Host) -> None:
    host.write("old", b"old", sync=True)
    host.write("new", b"new", sync=True)
    host.write("gone", b"gone", sync=True)
    before = host.content()
    host.files.rename(host.path("new"), host.path("old"))
    host.files.remove(host.path("gone"))
    assert host.content() == {"old": b"new"}
    assert host.cut(WORST) == 2
    assert host.content() == before


def test_what_was_synced_in_a_directory_stays(host: Host) -> None:
    host.write("old", b"old", sync=True)
    host.write("new", b"new", sync=True)
    host.files.rename(host.path("new"), host.path("old"))
    host.files.sync_dir(host.data)
    assert host.cut() == 0
    assert host.content() == {"old": b"new"}


@settings(max_examples=30)
@given(
    steps=st.lists(st.sampled_from(["write", "forget", "kill", "power"]), max_size=12),
    seed=st.integers(0, 1000),
)
def test_a_log_loses_nothing_that_its_write_returned_from(
    steps: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The real log over the real disk: whatever `write` returned from survives every cut."""
    host = Host(tmp_path_factory.mktemp("host"))
    directory = host.path("wal")
    wal = Wal.open(host.files, directory, segment_bytes_max=400)
    durable = 1
    for number, step in enumerate(steps):
        wal.append(b"x" * 50, wal.last_index + 1, 1)
        pending = wal.take()
        assert pending is not None
        if step == "forget":
            # It is written and not synced.
            host.order(Order(fsync="error"))
            with pytest.raises(OSError, match="Input/output"):
                wal.write(pending)
            host.control.unlink()
        else:
            wal.write(pending)
            wal.written(pending)
            durable = wal.last_index
        if step != "write":
            wal.close()
            if step != "kill":
                cut_power(host.data, host.books, random.Random(seed + number))
            wal = Wal.open(host.life(), directory, segment_bytes_max=400)
            assert wal.last_index >= durable
            durable = wal.last_index
    wal.close()
