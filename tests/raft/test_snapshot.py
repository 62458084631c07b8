"""Snapshots: complete or absent after any crash, never believed when damaged, sent in pieces."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import DamagedSnapshot
from raftkv.raft.snapshot import Snapshot, SnapshotMeta, SnapshotReceiver, SnapshotStore
from raftkv.raft.snapshot_file import CHUNK_BYTES_MAX, META_BYTES_MAX, header
from raftkv.runtime import Files, OsFiles
from raftkv.testing.disk import SimDisk

DIRECTORY = "data/snapshots"
CHUNKS = [b"first", b"\0" * 700, bytes(range(256)) * 9, b"x"]


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def meta(index: int, term: int = 2) -> SnapshotMeta:
    return SnapshotMeta(index, term, b"members at %d" % index, "cluster")


def save(
    files: Files, index: int, chunks: list[bytes] = CHUNKS, directory: str = DIRECTORY
) -> Snapshot:
    writer = SnapshotStore(files, directory).writer(meta(index))
    for chunk in chunks:
        writer.write(chunk)
    return writer.commit()


def raw(snapshot: Snapshot) -> bytes:
    return snapshot.read(0, snapshot.size_bytes)


def send(receiver: SnapshotReceiver, data: bytes, size: int = 100) -> None:
    while receiver.offset < len(data):
        chunk = data[receiver.offset : receiver.offset + size]
        assert receiver.add(receiver.offset, chunk, zlib.crc32(chunk))


# Writing and finding -----------------------------------------------------------------------------


def test_an_empty_store_has_no_snapshot() -> None:
    store = SnapshotStore(new_disk(), DIRECTORY)
    assert store.latest() is None
    assert store.all() == []


def test_a_real_directory_gives_a_snapshot_back(tmp_path: Path) -> None:
    directory = str(tmp_path / "a" / "snapshots")
    written = save(OsFiles(), 7, directory=directory)
    found = SnapshotStore(OsFiles(), directory).latest()
    assert found is not None
    assert found.meta == written.meta == meta(7)
    assert list(found.chunks()) == list(written.chunks()) == CHUNKS
    assert found.size_bytes == written.size_bytes == Path(found.path).stat().st_size
    assert found.id == written.id
    assert raw(found) == Path(found.path).read_bytes()
    assert found.read(found.size_bytes - 3, 100) == Path(found.path).read_bytes()[-3:]
    found.close()
    assert OsFiles().listdir(directory) == ["0000000000000007-0000000000000002.snap"]


@settings(max_examples=50, derandomize=True)
@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=6))
def test_chunks_come_back_as_they_were_written(chunks: list[bytes]) -> None:
    disk = new_disk()
    assert list(save(disk, 3, chunks).chunks()) == chunks
    disk.crash()
    found = SnapshotStore(disk, DIRECTORY).latest()
    assert found is not None
    assert list(found.chunks()) == chunks


def test_the_newest_replaces_the_older_ones() -> None:
    disk = new_disk()
    store = SnapshotStore(disk, DIRECTORY)
    for index in (5, 9, 12):
        writer = store.writer(meta(index))
        writer.write(b"%d" % index)
        snapshot = writer.commit()
        assert store.latest() is snapshot
    assert disk.listdir(DIRECTORY) == ["0000000000000012-0000000000000002.snap"]


def test_an_older_snapshot_that_is_finished_late_does_not_replace_a_newer_one() -> None:
    store = SnapshotStore(disk := new_disk(), DIRECTORY)
    late = store.writer(meta(5))
    early = store.writer(meta(9))
    newest = early.commit()
    assert late.commit().meta.index == 5
    assert store.latest() is newest
    assert disk.listdir(DIRECTORY) == ["0000000000000009-0000000000000002.snap"]


def test_the_file_is_synced_before_it_gets_its_name() -> None:
    disk = new_disk()
    save(disk, 5)
    writer = SnapshotStore(disk, DIRECTORY).writer(meta(9))
    writer.write(b"x")
    disk.fail_syncs = True
    with pytest.raises(OSError, match="failed to sync"):
        writer.commit()
    disk.fail_syncs = False
    found = SnapshotStore(disk, DIRECTORY).latest()
    assert found is not None
    assert found.meta.index == 5


def test_an_aborted_snapshot_leaves_nothing() -> None:
    disk = new_disk()
    writer = SnapshotStore(disk, DIRECTORY).writer(meta(5))
    writer.write(b"x")
    writer.abort()
    assert disk.listdir(DIRECTORY) == []


def test_what_a_crash_left_unfinished_is_removed_at_the_next_start() -> None:
    disk = new_disk()
    save(disk, 5)
    store = SnapshotStore(disk, DIRECTORY)
    store.writer(meta(9)).write(b"x")
    store.receiver("a", 10).add(0, b"x", zlib.crc32(b"x"))
    assert len(disk.listdir(DIRECTORY)) == 3
    assert SnapshotStore(disk, DIRECTORY).latest() is not None
    assert len(disk.listdir(DIRECTORY)) == 1


@pytest.mark.parametrize("chunk", [b"", bytearray(0)])
def test_an_empty_chunk_is_refused(chunk: bytes) -> None:
    writer = SnapshotStore(new_disk(), DIRECTORY).writer(meta(5))
    with pytest.raises(ValueError, match=str(CHUNK_BYTES_MAX)):
        writer.write(chunk)


def test_meta_data_over_their_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="limits"):
        header(SnapshotMeta(1, 1, bytes(META_BYTES_MAX), "c"))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("power_cut", [True, False])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new_snapshot(
    seed: int, power_cut: bool
) -> None:
    changes = 0
    done = False
    while not done:
        disk = new_disk(seed)
        save(disk, 5)
        disk.changes_left = changes
        try:
            save(disk, 9, [b"new", b"n" * 2000])
            done = True
        except OSError:
            pass  # the power is off, as was asked for
        disk.changes_left = None
        if power_cut:
            disk.crash()
        found = SnapshotStore(disk, DIRECTORY).latest()
        assert found is not None
        expected = {5: CHUNKS, 9: [b"new", b"n" * 2000]}
        assert list(found.chunks()) == expected[found.meta.index]
        assert found.meta.index == 9 or not done
        changes += 1
    assert changes > 7


# Damage ------------------------------------------------------------------------------------------


def with_content(content: bytes, index: int = 5) -> SimDisk:
    disk = new_disk()
    disk.makedirs(DIRECTORY)
    disk.open(f"{DIRECTORY}/{index:016d}-{2:016d}.snap", "w").write(content)
    return disk


def test_any_flipped_bit_is_found() -> None:
    content = raw(save(new_disk(), 5, [b"one", b"\0\0\0", b"three"]))
    for offset in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[offset] ^= 1 << bit
            store = SnapshotStore(with_content(bytes(damaged)), DIRECTORY)
            with pytest.raises(DamagedSnapshot) as caught:
                store.latest()
            assert caught.value.file.endswith(".snap")
            assert store.all() == []


@pytest.mark.parametrize("chunks", [[], [b"one", b"two"]])
def test_a_file_of_any_other_length_is_damaged(chunks: list[bytes]) -> None:
    content = raw(save(new_disk(), 5, chunks))
    cuts = [content[:size] for size in range(len(content))]
    for damaged in [*cuts, content + b"\0", content + content, b"x" + content]:
        with pytest.raises(DamagedSnapshot):
            SnapshotStore(with_content(damaged), DIRECTORY).latest()


@pytest.mark.parametrize(
    "rearrange",
    [
        lambda head, one, two, foot: head + two + one + foot,
        lambda head, one, two, foot: head + one + one + foot,
        lambda head, one, two, foot: head + one + foot,
        lambda head, one, two, foot: head + one + two + two + foot,
        lambda head, one, two, foot: head + one + two + b"stray" + foot,
    ],
)
def test_rearranged_chunks_are_damage(rearrange: Callable[..., bytes]) -> None:
    content = raw(save(new_disk(), 5, [b"one", b"two"]))
    start = len(header(meta(5)))
    one, two = content[start : start + 11], content[start + 11 : start + 22]
    assert (one[-3:], two[-3:]) == (b"one", b"two")
    damaged = rearrange(content[:start], one, two, content[start + 22 :])
    with pytest.raises(DamagedSnapshot):
        SnapshotStore(with_content(damaged), DIRECTORY).latest()


def test_a_file_under_a_wrong_name_is_damaged() -> None:
    content = raw(save(new_disk(), 5))
    with pytest.raises(DamagedSnapshot, match="it holds index 5"):
        SnapshotStore(with_content(content, index=6), DIRECTORY).latest()


def test_a_damaged_newest_snapshot_is_an_error_but_the_older_one_can_be_had() -> None:
    disk = with_content(raw(save(new_disk(), 5)))
    disk.open(f"{DIRECTORY}/{9:016d}-{2:016d}.snap", "w").write(b"raftkvSN nonsense")
    store = SnapshotStore(disk, DIRECTORY)
    with pytest.raises(DamagedSnapshot, match=f"{9:016d}"):
        store.latest()
    assert [snapshot.meta.index for snapshot in store.all()] == [5]


def test_damage_after_validation_is_found_when_the_chunks_are_read() -> None:
    disk = new_disk()
    snapshot = save(disk, 5)
    disk.flip_bit(snapshot.path, snapshot.size_bytes // 2)
    with pytest.raises(DamagedSnapshot):
        list(snapshot.chunks())


# Sending and receiving ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_a_snapshot_travels_in_pieces_of_any_size(size: int) -> None:
    sender = save(new_disk(), 5)
    store = SnapshotStore(disk := new_disk(), DIRECTORY)
    receiver = store.receiver(sender.id, sender.size_bytes)
    send(receiver, raw(sender), size)
    received = receiver.finish()
    assert store.latest() is received
    disk.crash()
    found = SnapshotStore(disk, DIRECTORY).latest()
    assert found is not None
    assert (found.meta, found.id, list(found.chunks())) == (sender.meta, sender.id, CHUNKS)


def test_a_snapshot_can_be_sent_while_a_newer_one_replaces_it() -> None:
    for files, directory in ((new_disk(), DIRECTORY),):
        old = save(files, 5, directory=directory)
        start = old.read(0, 50)
        save(files, 9, directory=directory)
        assert not files.exists(old.path)
        assert old.read(50, 20) == raw(save(new_disk(), 5))[50:70]
        assert start == raw(save(new_disk(), 5))[:50]


def test_chunks_that_were_not_asked_for_change_nothing() -> None:
    data = raw(save(new_disk(), 5))
    receiver = SnapshotStore(new_disk(), DIRECTORY).receiver("a", len(data))
    assert receiver.add(0, data[:50], zlib.crc32(data[:50]))
    for offset, chunk, crc in [
        (0, data[:50], zlib.crc32(data[:50])),
        (51, data[51:60], zlib.crc32(data[51:60])),
        (50, data[50:60], zlib.crc32(data[50:60]) ^ 1),
        (50, b"", 0),
        (50, data[50:] + b"x", zlib.crc32(data[50:] + b"x")),
    ]:
        assert not receiver.add(offset, chunk, crc)
        assert receiver.offset == 50
    send(receiver, data)
    assert list(receiver.finish().chunks()) == CHUNKS


def test_the_same_id_resumes_and_another_begins_anew() -> None:
    data = raw(save(new_disk(), 5))
    store = SnapshotStore(disk := new_disk(), DIRECTORY)
    receiver = store.receiver("a", len(data))
    assert receiver.add(0, data[:50], zlib.crc32(data[:50]))
    assert store.receiver("a", len(data)) is receiver
    other = store.receiver("b", len(data))
    assert (other.offset, other.snapshot_id) == (0, "b")
    assert not receiver.open
    receiver.abort()
    assert len(disk.listdir(DIRECTORY)) == 1, "the abort of the old one spares the new one"
    send(other, data)
    assert other.finish().meta == meta(5)
    assert store.receiver("b", len(data)) is not other


def test_two_spliced_snapshots_are_refused_and_the_old_one_stays() -> None:
    one, other = raw(save(new_disk(), 9, [b"a" * 400])), raw(save(new_disk(), 9, [b"b" * 400]))
    store = SnapshotStore(disk := new_disk(), DIRECTORY)
    save(disk, 5)
    receiver = store.receiver("a", len(one))
    send(receiver, one[:200] + other[200:])
    with pytest.raises(DamagedSnapshot):
        receiver.finish()
    found = store.latest()
    assert found is not None
    assert found.meta.index == 5
    assert len(disk.listdir(DIRECTORY)) == 1
    send(again := store.receiver("a", len(one)), one)
    assert again.finish().meta.index == 9


def test_an_incomplete_transfer_cannot_be_finished() -> None:
    data = raw(save(new_disk(), 5))
    receiver = SnapshotStore(new_disk(), DIRECTORY).receiver("a", len(data))
    send(receiver, data[:100])
    with pytest.raises(AssertionError, match="not complete"):
        receiver.finish()


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_at_any_operation_of_an_install_leaves_the_old_or_the_new(seed: int) -> None:
    data = raw(save(new_disk(), 9))
    changes = 0
    done = False
    while not done:
        disk = new_disk(seed)
        save(disk, 5, [b"old"])
        disk.changes_left = changes
        try:
            receiver = SnapshotStore(disk, DIRECTORY).receiver("a", len(data))
            send(receiver, data, 500)
            receiver.finish()
            done = True
        except OSError:
            pass  # the power is off, as was asked for
        disk.crash()
        found = SnapshotStore(disk, DIRECTORY).latest()
        assert found is not None
        assert list(found.chunks()) == {5: [b"old"], 9: CHUNKS}[found.meta.index]
        assert found.meta.index == 9 or not done
        changes += 1
    assert changes > 7
