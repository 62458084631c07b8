"""Recovery of the log: torn tails are cut, damage is not, and no crash loses what was promised."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import DamagedLog
from raftkv.raft.records import HEADER_BYTES, SECTOR_BYTES, blank_sectors, read_batches
from raftkv.raft.wal import Entry, Wal
from raftkv.testing.disk import SimDisk

DIRECTORY = "wal"
FIRST = "wal/0000000000000001.wal"

# Everything that a log promises to remember: base, base term, entries, term, vote.
State = tuple[list[Entry], int, str | None]


def new_disk(seed: int = 1, files: dict[str, bytes] | None = None) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.makedirs(DIRECTORY)
    for path, content in (files or {}).items():
        file = disk.open(path, "w")
        file.write(content)
        file.datasync()
    disk.sync_dir(DIRECTORY)
    return disk


def contents(disk: SimDisk) -> dict[str, bytes]:
    paths = [f"{DIRECTORY}/{name}" for name in disk.listdir(DIRECTORY)]
    return {path: disk.open(path, "r").pread(0, 1 << 30) for path in paths}


def state_of(wal: Wal) -> State:
    return wal[:], wal.term, wal.vote


def sync(wal: Wal) -> None:
    pending = wal.take()
    if pending is not None:
        wal.write(pending)
        wal.written(pending)


def sample(payloads: list[bytes]) -> tuple[dict[str, bytes], list[State]]:
    """The files of a log with one batch for each payload, and the state after each batch."""
    disk = new_disk()
    wal = Wal.open(disk, DIRECTORY)
    states = [state_of(wal)]
    for index, payload in enumerate(payloads, 2):
        wal.append(payload, index, 1)
        if index % 3 == 0:
            wal.set_hard_state(index, f"n{index}")
        sync(wal)
        states.append(state_of(wal))
    assert len(contents(disk)) == 1
    return contents(disk), states


def recover(files: dict[str, bytes]) -> State:
    return state_of(Wal.open(new_disk(files=files), DIRECTORY))


def ends(data: bytes) -> list[int]:
    return [batch.end for batch in read_batches(FIRST, data, 1, last=True)]


PAYLOADS = [b"\0a" * 20, b"\0" * 100, b"\0" + bytes(range(256)), b"", b"\0last one"]


# The torn tail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("payloads", [PAYLOADS, [*PAYLOADS, b"\0" * 1500]])
def test_a_log_cut_at_any_byte_recovers_the_batches_before_the_cut(payloads: list[bytes]) -> None:
    files, states = sample(payloads)
    data = files[FIRST]
    stops = ends(data)
    assert stops[-1] == len(data)
    for size in range(stops[0], len(data) + 1):
        whole = sum(stop <= size for stop in stops)
        assert recover({FIRST: data[:size]}) == states[whole - 1]


def test_a_log_cut_inside_its_creation_is_created_again() -> None:
    files, states = sample([])
    data = files[FIRST]
    for size in range(len(data)):
        wal = Wal.open(new_disk(files={FIRST: data[:size]}), DIRECTORY)
        assert wal.created
        assert state_of(wal) == states[0]


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(st.binary(max_size=900), max_size=3), st.binary(min_size=1, max_size=3000), st.data()
)
def test_sectors_of_the_last_batch_that_were_never_written_are_a_torn_tail(
    payloads: list[bytes], last: bytes, data: st.DataObject
) -> None:
    files, states = sample([*payloads, last])
    content = bytearray(files[FIRST])
    start = ends(bytes(content))[-2]
    sectors = range(start // SECTOR_BYTES, -(-len(content) // SECTOR_BYTES))
    lost = data.draw(st.sets(st.sampled_from(sectors), min_size=1))
    before = bytes(content)
    for sector in lost:
        first = max(start, sector * SECTOR_BYTES)
        stop = min((sector + 1) * SECTOR_BYTES, len(content))
        content[first:stop] = bytes(stop - first)
    if content != before:
        assert recover({FIRST: bytes(content)}) == states[-2]


def test_a_sector_lost_in_an_earlier_batch_is_damage() -> None:
    files, _ = sample([b"\0" + bytes([7]) * 3000, b"\0after it"])
    content = bytearray(files[FIRST])
    content[1024:1536] = bytes(512)
    with pytest.raises(DamagedLog):
        recover({FIRST: bytes(content)})


def test_a_lost_mark_is_damage_when_another_mark_stands_behind_it() -> None:
    files, _ = sample([b"\0" + bytes([7]) * 3000, b"\0after it"])
    content = bytearray(files[FIRST])
    start = ends(bytes(content))[0]
    content[start:512] = bytes(512 - start)
    with pytest.raises(DamagedLog):
        recover({FIRST: bytes(content)})


# Damage ------------------------------------------------------------------------------------------


def damaged_everywhere(files: dict[str, bytes], bits: Callable[[int], list[int]]) -> None:
    """Every flipped bit must stop the log, also in the last batch: it may be acknowledged."""
    for path, data in files.items():
        for offset in range(len(data)):
            for bit in bits(offset):
                content = bytearray(data)
                content[offset] ^= 1 << bit
                disk = new_disk(files={**files, path: bytes(content)})
                with pytest.raises(DamagedLog) as caught:
                    Wal.open(disk, DIRECTORY)
                assert caught.value.file in files


def test_any_flipped_bit_stops_the_log() -> None:
    files, _ = sample([b"\0ab", b"\0", b"\0last"])
    damaged_everywhere(files, lambda offset: list(range(8)))


def test_a_flipped_bit_stops_the_log_among_values_that_are_full_of_zeros() -> None:
    one_bit_per_sector = b"\0" * 600 + (b"\x01" + bytes(511)) * 3 + b"\0" * 700
    files, _ = sample([b"\0x", one_bit_per_sector])
    damaged_everywhere(files, lambda offset: [offset % 8, 0] if offset % 8 else [0])


def test_a_flipped_bit_stops_the_log_in_every_segment() -> None:
    disk = new_disk()
    wal = Wal.open(disk, DIRECTORY, segment_bytes_max=300)
    for index in range(2, 8):
        wal.append(b"\0%d" % index, index, 1)
        sync(wal)
    assert len(contents(disk)) > 1
    damaged_everywhere(contents(disk), lambda offset: [offset % 8])


@settings(max_examples=150, derandomize=True)
@given(
    st.lists(st.binary(max_size=700), min_size=1, max_size=5),
    st.integers(0, 10**9),
    st.integers(0, 7),
)
def test_a_flipped_bit_is_never_silently_cut(payloads: list[bytes], place: int, bit: int) -> None:
    files, _ = sample(payloads)
    content = bytearray(files[FIRST])
    content[place % len(content)] ^= 1 << bit
    with pytest.raises(DamagedLog):
        recover({FIRST: bytes(content)})


def many_segments() -> dict[str, bytes]:
    disk = new_disk()
    wal = Wal.open(disk, DIRECTORY, segment_bytes_max=400)
    for index in range(2, 20):
        wal.append(b"\0%d" % index, index, 1)
        sync(wal)
    assert len(contents(disk)) >= 4
    return contents(disk)


def test_a_segment_that_is_gone_is_damage() -> None:
    files = many_segments()
    for path in sorted(files)[:-1]:
        rest = {p: data for p, data in files.items() if p != path}
        with pytest.raises(DamagedLog, match="missing"):
            recover(rest)


def test_a_segment_that_lost_its_last_batch_is_damage_unless_it_is_the_newest() -> None:
    files = many_segments()
    for path in sorted(files)[:-1]:
        with pytest.raises(DamagedLog, match="bytes or more"):
            recover({**files, path: files[path][:-60]})


def test_two_torn_segments_are_damage() -> None:
    files = many_segments()
    for path in sorted(files)[-2:]:
        files[path] = files[path][: HEADER_BYTES + 10]
    disk = new_disk(files=files)
    for _ in range(3):
        with pytest.raises(DamagedLog, match="complete batch"):
            Wal.open(disk, DIRECTORY)
    assert contents(disk) == files, "the evidence stays"
    with pytest.raises(DamagedLog, match="complete batch"):
        recover({FIRST: b"raft", "wal/0000000000000002.wal": b""})


def test_a_lonely_torn_segment_that_was_not_the_first_is_damage() -> None:
    files = many_segments()
    path = max(files)
    with pytest.raises(DamagedLog, match="complete batch"):
        recover({path: files[path][:30]})


def test_segments_cannot_be_exchanged() -> None:
    files = many_segments()
    *_, one, other, newest = sorted(files)
    with pytest.raises(DamagedLog, match="not segment"):
        recover({**files, newest: files[other]})
    size = max(len(files[one]), len(files[other]))
    swapped = {one: files[other].ljust(size, b"x"), other: files[one].ljust(size, b"x")}
    with pytest.raises(DamagedLog, match="checksum|not segment"):
        recover({**files, **swapped})


def test_the_error_names_file_and_place_and_what_to_do() -> None:
    files, _ = sample([b"\0one", b"\0two"])
    content = bytearray(files[FIRST])
    place = ends(bytes(content))[1] + 70
    content[place] ^= 4
    with pytest.raises(DamagedLog) as caught:
        recover({FIRST: bytes(content)})
    assert caught.value.file == FIRST
    assert place - 70 <= caught.value.offset <= place
    assert "empty data directory" in str(caught.value)


def test_remains_of_a_deletion_are_removed() -> None:
    files = many_segments()
    disk = new_disk(files=files)
    wal = Wal.open(disk, DIRECTORY, segment_bytes_max=400)
    wal.compact(18, 1)
    sync(wal)
    expected = state_of(wal)
    kept = contents(disk)
    old = sorted(set(files) - set(kept))
    assert len(old) >= 2
    for path in old:
        again = new_disk(files={**kept, path: files[path]})
        assert state_of(Wal.open(again, DIRECTORY)) == expected
        assert path not in contents(again)


# Crashes -----------------------------------------------------------------------------------------

# (what, size): sizes are taken modulo whatever is possible at that moment.
OPERATIONS = ("append", "append", "truncate", "compact", "rebase", "vote", "sync", "sync", "reopen")
Step = tuple[str, int]


class Machine:
    """A log on a disk, and which states it may be in after a crash at this very moment."""

    def __init__(self, seed: int, segment_bytes_max: int = 700) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.segment_bytes_max = segment_bytes_max
        self.wal = self._open()
        # The last acknowledged state, and the one in flight: nothing else may ever come back.
        self.allowed = [state_of(self.wal)]

    def _open(self) -> Wal:
        return Wal.open(self.disk, DIRECTORY, segment_bytes_max=self.segment_bytes_max)

    def step(self, step: Step) -> None:
        what, size = step
        wal = self.wal
        if what == "append":
            payload = bytes([size % 3]) * (size % 1500)
            wal.append(payload, wal.last_index + 1, wal.last_term + size % 2)
        elif what == "truncate" and len(wal) > 1:
            wal.truncate_from(wal.first_index + size % (len(wal) - 1))
        elif what == "compact":
            entry = wal[size % len(wal)]
            wal.compact(entry.index, entry.term)
        elif what == "rebase" and size % 4 == 0:
            wal.rebase(wal.base_index + size % 9, wal.last_term + 1)
        elif what == "vote":
            wal.set_hard_state(wal.term + size % 2, f"n{size % 3}")
        elif what == "sync":
            self.sync()
        elif what == "reopen":
            self.restart(power_cut=False)

    def sync(self) -> None:
        pending = self.wal.take()
        if pending is None:
            return
        state = state_of(self.wal)
        self.allowed = [self.allowed[0], state]
        self.wal.write(pending)
        self.wal.written(pending)
        assert self.wal.durable_index == self.wal.last_index
        self.allowed = [state]

    def restart(self, *, power_cut: bool) -> None:
        if power_cut:
            self.disk.crash()
        self.disk.changes_left = None
        self.wal = self._open()
        state = state_of(self.wal)
        assert state in self.allowed
        assert self.wal.durable_index == self.wal.last_index
        # What it answered with was synced before it answered.
        self.allowed = [state]


steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3000)), max_size=40)


@settings(max_examples=250, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(steps, st.integers(0, 60), st.booleans()), min_size=1, max_size=4),
)
def test_after_any_crash_the_log_is_the_acknowledged_one_or_the_one_in_flight(
    seed: int, lives: list[tuple[list[Step], int, bool]]
) -> None:
    machine = Machine(seed)
    for life, changes, power_cut in lives:
        machine.disk.changes_left = changes
        try:
            for step in life:
                machine.step(step)
        except OSError:
            assert machine.disk.changes_left == 0
        machine.restart(power_cut=power_cut)


SCRIPT: list[Step] = [
    *[("append", 900 + i) if i % 2 else ("sync", 0) for i in range(8)],
    ("vote", 4),
    ("sync", 0),
    ("compact", 2),
    ("sync", 0),
    ("append", 300),
    ("truncate", 2),
    ("append", 301),
    ("sync", 0),
    ("compact", 1),
    ("append", 1200),
    ("sync", 0),
    ("rebase", 8),
    ("append", 40),
    ("sync", 0),
    ("append", 1499),
    ("compact", 1),
    ("sync", 0),
]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("power_cut", [True, False])
def test_a_crash_at_every_operation_of_a_script(seed: int, power_cut: bool) -> None:
    changes = 0
    while True:
        machine = Machine(seed)
        machine.disk.changes_left = changes
        try:
            for step in SCRIPT:
                machine.step(step)
            break
        except OSError:
            pass  # the power is off, as was asked for
        machine.restart(power_cut=power_cut)
        machine.step(("append", 5))
        machine.sync()
        changes += 1
    assert changes > 30


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_at_every_operation_of_a_recovery(seed: int) -> None:
    changes = 0
    while True:
        machine = Machine(seed)
        for step in SCRIPT:
            machine.step(step)
        machine.step(("append", 700))
        pending = machine.wal.take()
        assert pending is not None
        machine.allowed.append(state_of(machine.wal))
        machine.disk.changes_left = 1
        with pytest.raises(OSError, match="power"):
            machine.wal.write(pending)
        machine.disk.crash()
        machine.disk.changes_left = changes
        try:
            machine._open()
            break
        except OSError:
            pass  # the power is off, as was asked for
        machine.restart(power_cut=True)
        changes += 1
    assert changes >= 4


# The sector count --------------------------------------------------------------------------------


@settings(derandomize=True)
@given(st.binary(max_size=1500), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1200))))
def test_blank_sectors_are_counted_as_a_naive_count_does(
    noise: bytes, holes: list[tuple[int, int]]
) -> None:
    data = bytearray(noise * 2)
    for start, length in holes:
        stop = min(len(data), start + length)
        if start < stop:
            data[start:stop] = bytes(stop - start)
    for offset in (0, 1, 300, 511, 512):
        padded = bytes(offset) + bytes(data)
        pieces = [padded[i : i + 512] for i in range(0, len(padded), 512)]
        skipped = offset // 512
        pieces = pieces[skipped:]
        if pieces:
            pieces[0] = pieces[0][offset % 512 :]
        naive = sum(1 for piece in pieces if piece and not any(piece))
        assert blank_sectors(bytes(data), offset, bits_max=0) == naive
