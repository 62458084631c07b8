"""Files of a data directory: format versions, whose they are, and damage that whole records hide.

Each of these was found by tools/fuzz, or would have been.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from raftkv.config import Limits, load_config
from raftkv.errors import (
    ConfigError,
    DamagedLog,
    DamagedSnapshot,
    Diverged,
    NewerFormat,
)
from raftkv.kv import KV
from raftkv.raft import wire
from raftkv.raft.progress import FIRST_INDEX, Flow, Progress
from raftkv.raft.records import HEADER_BYTES, MARK_BYTES
from raftkv.raft.recovery import recover
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.raft.wal import Wal
from raftkv.replica import Replica
from raftkv.state import StateMachine
from raftkv.testing.disk import SimDisk
from tests.raft.harness import A, B, Bench, append, batch, rejected, sync

FIRST = "wal/0000000000000001.wal"
MINE, THEIRS = 11, 12


def new_disk(files: dict[str, bytes] | None = None) -> SimDisk:
    disk = SimDisk(random.Random(1))
    for path, content in (files or {}).items():
        disk.makedirs(path.rpartition("/")[0])
        disk.open(path, "w").write(content)
    return disk


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.open(path, "r").pread(0, 1 << 30) for path in disk.paths()}


def written(
    log_id: int, *payloads: bytes, vote: str = "a", segment_bytes: int = 1 << 20
) -> SimDisk:
    """A log with a batch for each payload."""
    disk = new_disk()
    wal = Wal.open(disk, "wal", log_id=log_id, segment_bytes_max=segment_bytes)
    wal.set_hard_state(1, vote)
    for index, payload in enumerate(payloads, 2):
        wal.append(payload, index, 1)
        sync(wal)
    return disk


# Versions ----------------------------------------------------------------------------------------


def test_a_log_of_a_newer_format_is_refused_by_name_and_left_alone() -> None:
    whole = contents(written(MINE, b"\0one"))[FIRST]
    head = whole[:8] + struct.pack("<I", 3) + whole[12 : HEADER_BYTES - 4]
    same_layout = head + struct.pack("<I", zlib.crc32(head)) + whole[HEADER_BYTES:]
    other_layout = whole[:8] + struct.pack("<I", 7) + random.Random(1).randbytes(300)
    for content, version in ((same_layout, 3), (other_layout, 7)):
        disk = new_disk({FIRST: content})
        with pytest.raises(NewerFormat, match=f"{FIRST} has format version {version}") as caught:
            Wal.open(disk, "wal", log_id=MINE)
        assert "start the node with the version that wrote it" in str(caught.value)
        assert contents(disk) == {FIRST: content}


def test_a_damaged_version_is_damage() -> None:
    whole = contents(written(MINE, b"\0one"))[FIRST]
    for bit in range(32):
        version = int.from_bytes(whole[8:12], "little") ^ 1 << bit
        with pytest.raises(DamagedLog):
            Wal.open(new_disk({FIRST: whole[:8] + struct.pack("<I", version) + whole[12:]}), "wal")


@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_of_a_newer_format_is_refused_by_name_and_left_alone(version: int) -> None:
    disk = new_disk()
    meta = SnapshotMeta(7, 2, b"", "cluster", version)
    writer = SnapshotStore(disk, "snapshots").writer(meta)
    writer.write(b"state")
    path = writer.commit().path
    whole = contents(disk)[path]
    newer = whole[:8] + struct.pack("<I", 3) + whole[12:16] + b"\x7f" + whole[17:]
    with pytest.raises(NewerFormat, match="has format version 3"):
        SnapshotStore(new_disk({path: newer}), "snapshots").latest()
    for bit in range(32):
        flipped = whole[:8] + struct.pack("<I", version ^ 1 << bit) + whole[12:]
        with pytest.raises(DamagedSnapshot):
            SnapshotStore(new_disk({path: flipped}), "snapshots").latest()


# Whose it is -------------------------------------------------------------------------------------


def test_a_segment_of_another_nodes_log_is_refused() -> None:
    mine = contents(written(MINE, *[b"\0%d" % n * 9 for n in range(9)], segment_bytes=300))
    theirs = contents(written(THEIRS, *[b"\0%d" % n * 9 for n in range(9)], segment_bytes=300))
    assert mine.keys() == theirs.keys()
    assert len(mine) > 2
    for path in mine:
        with pytest.raises(DamagedLog, match="another node") as caught:
            Wal.open(new_disk({**mine, path: theirs[path]}), "wal", log_id=MINE)
        assert caught.value.file == path
    with pytest.raises(DamagedLog, match="another node"):
        Wal.open(new_disk(theirs), "wal", log_id=MINE)
    assert Wal.open(new_disk(theirs), "wal", log_id=THEIRS).last_index == 10


def test_whole_records_and_batches_of_another_log_are_damage() -> None:
    """A CRC over data and its own CRC is the same for all data: it would not see the exchange."""
    mine = contents(written(MINE, b"\0mine", b"\0last", vote="a"))[FIRST]
    theirs = contents(written(THEIRS, b"\0yours"[:5], b"\0last", vote="b"))[FIRST]
    assert len(mine) == len(theirs)
    start = HEADER_BYTES
    while start < len(mine):
        size = int.from_bytes(mine[start + 5 + 16 : start + 5 + 24], "little")
        record = start + MARK_BYTES
        while record < start + size - 5:
            end = record + 9 + int.from_bytes(mine[record + 1 : record + 5], "little")
            spliced = mine[:record] + theirs[record:end] + mine[end:]
            if spliced != mine:
                with pytest.raises(DamagedLog):
                    Wal.open(new_disk({FIRST: spliced}), "wal", log_id=MINE)
            record = end
        whole = mine[:start] + theirs[start : start + size] + mine[start + size :]
        with pytest.raises(DamagedLog):
            Wal.open(new_disk({FIRST: whole}), "wal", log_id=MINE)
        start += size
    assert start == len(mine)


def test_a_log_without_an_owner_gets_one() -> None:
    disk = written(0, b"\0one", b"\0two")
    assert Wal.open(disk, "wal", log_id=MINE).last_index == 3
    with pytest.raises(DamagedLog, match="another node"):
        Wal.open(disk, "wal", log_id=THEIRS)
    assert Wal.open(disk, "wal").last_index == 3


def test_a_member_whose_log_is_gone_does_not_get_a_new_one() -> None:
    """Also if what is left is the torn creation of a first segment: votes were in it."""
    whole = contents(written(0, b"\0one"))[FIRST]
    for files in ({}, {"data/" + FIRST: whole[:60]}, {"data/" + FIRST: b""}):
        disk = new_disk(files)
        for _ in range(2):
            with pytest.raises(DamagedLog, match="the log is gone"):
                recover(disk, "data", Limits(), fsync=True, belongs=True, owner="c/core1")


def test_owners_have_different_logs() -> None:
    disk = new_disk()
    recover(disk, "data", Limits(), fsync=True, belongs=False, owner="c/core1").wal.close()
    recover(disk, "data", Limits(), fsync=True, belongs=True, owner="c/core1").wal.close()
    with pytest.raises(DamagedLog, match="another node"):
        recover(disk, "data", Limits(), fsync=True, belongs=True, owner="c/core2")


# A torn segment behind a whole one ---------------------------------------------------------------


def segments() -> dict[str, bytes]:
    files = contents(written(MINE, *[b"\0%d" % n * 9 for n in range(15)], segment_bytes=500))
    assert len(files) >= 4
    return files


def test_the_header_of_a_torn_segment_still_vouches_for_the_one_before() -> None:
    files = segments()
    *_, before, newest = sorted(files)
    torn = {**files, newest: files[newest][: HEADER_BYTES + 9]}
    assert Wal.open(new_disk(torn), "wal", log_id=MINE).last_index < 16
    with pytest.raises(DamagedLog, match="bytes or more") as caught:
        Wal.open(new_disk({**torn, before: files[before][:-1]}), "wal", log_id=MINE)
    assert caught.value.file == before


def test_a_torn_segment_is_never_the_second_to_go() -> None:
    files = segments()
    *_, before, newest = sorted(files)
    files[newest] = files[newest][: HEADER_BYTES + 9]
    del files[before]
    with pytest.raises(DamagedLog, match="complete batch"):
        Wal.open(new_disk(files), "wal", log_id=MINE)


def test_a_header_without_its_batch_in_the_same_sector_is_no_crash() -> None:
    files = segments()
    newest = max(files)
    files[newest] = files[newest][:HEADER_BYTES].ljust(len(files[newest]), b"\0")
    with pytest.raises(DamagedLog) as caught:
        Wal.open(new_disk(files), "wal", log_id=MINE)
    assert (caught.value.file, caught.value.offset) == (newest, HEADER_BYTES)


# Messages ----------------------------------------------------------------------------------------


def test_entries_whose_terms_fall_cost_the_link_and_nothing_else() -> None:
    bench = Bench(log=[(1, batch("x"))])
    for terms, prev_term, term in (([3, 2], 1, 3), ([4], 1, 3), ([1], 2, 3), ([], 4, 3)):
        entries = [(t, batch("y")) for t in terms]
        message = append(term, 3, prev_term, entries)
        with pytest.raises(wire.ProtocolError, match="term"):
            bench.engine.receive(bench.links[B], message)  # type: ignore[arg-type]
    bench.runtime.settle()
    assert bench.engine.fault is None
    assert bench.deliver(B, append(3, 3, 1, [(2, batch("y")), (3, batch("z"))]))


def test_a_follower_that_says_it_holds_nothing_gets_the_log_from_its_first_entry() -> None:
    bench = Bench(A)
    term = bench.lead()
    progress = Progress(bench.wal.last_index, now=0.0)
    progress.rejected(bench.wal.last_index, 0, 0, bench.wal)
    assert (progress.flow, progress.next) == (Flow.PROBE, FIRST_INDEX)
    bench.disconnect(B)
    bench.connect(B)
    bench.tick()
    bench.deliver(B, rejected(term, bench.wal.last_index))
    bench.tick(0.2)
    assert bench.engine.fault is None


# Documents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b'name = "\xff"', b"cluster = " + b"[" * 5000, b"\x00", b'timeout_s = "\xc3']
)
def test_a_configuration_that_is_no_text_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


@pytest.mark.parametrize("number", ["nan", "inf", "-1.0"])
def test_a_timeout_is_a_finite_number(number: str, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        f'name = "a"\ndir = "d"\npeer_address = "127.0.0.1:1"\ntimeout_s = {number}\n'
        '[cores]\na = "127.0.0.1:1"\n'
    )
    with pytest.raises(ConfigError, match="timeout_s"):
        load_config(path)


def test_a_follower_cannot_acknowledge_more_than_the_log_holds() -> None:
    bench = Bench(A)
    term = bench.lead()
    leading = bench.engine.leading
    assert leading is not None
    leading._sending.on_reply = lambda *arguments: True  # type: ignore[method-assign]
    leading.on_snapshot_reply(B, wire.SnapshotReply(term, "1-1-1-x", 10**9, 5, True), 0.0)
    assert leading.progress_of(B).match == bench.wal.last_index


def test_an_entry_that_is_no_batch_is_a_contradiction() -> None:
    disk = new_disk()
    wal = Wal.open(disk, "wal")
    wal.append(b"\0\xc1", 2, 1)
    machine = StateMachine([KV()])
    machine.skip(1)
    unused: Any = None
    with pytest.raises(Diverged, match="entry 2 of the log is no batch"):
        Replica(machine, unused, unused, unused).elected(wal)
