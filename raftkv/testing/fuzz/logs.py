"""Small write-ahead logs to be damaged, and everything that was promised when they were written.

A sample is a directory after some lives of a log: appended, truncated, compacted, replaced by a
snapshot's base, voted in, reopened. Of every batch the sample knows its place and the state that
was acknowledged with it, so that the oracle (wal.py) can say what a damaged directory may give
without asking the code under test. Each sample has a sibling: the log of another node that did the
same with other contents, so that every record of the one fits, by place and size, into the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftkv.raft.records import RECORD_OVERHEAD, TAIL_BYTES, read_batches
from raftkv.raft.wal import Entry, Wal
from raftkv.testing.fuzz.memory import MemoryFiles

__all__ = ["DIRECTORY", "SAMPLES", "Place", "Sample", "State", "make_sample", "state_of"]

DIRECTORY: Final = "wal"
SAMPLES: Final = 48

# Base and entries, term, vote: all that a log promises to remember.
State = tuple[tuple[Entry, ...], int, str | None]


class Place(NamedTuple):
    """Of a batch in its file."""

    path: str
    sequence: int
    start: int
    end: int


@dataclass
class Sample:
    """A directory as it was left by a clean end, everything in it acknowledged."""

    number: int
    log_id: int
    files: dict[str, bytes] = field(default_factory=dict)
    batches: list[Place] = field(default_factory=list)
    # (path, start, end) of every record of every batch.
    records: list[tuple[str, int, int]] = field(default_factory=list)
    # What was acknowledged, by the running number of the batch.
    states: dict[int, State] = field(default_factory=dict)
    # Of a batch that was written but never acknowledged: it may be there or not.
    torn: State | None = None

    @property
    def acknowledged(self) -> State:
        return self.states[max(self.states)]


def state_of(wal: Wal) -> State:
    return tuple(wal[:]), wal.term, wal.vote


def make_sample(number: int, *, sibling: bool = False) -> Sample:
    """The sample of that number; its sibling differs in contents and identity only."""
    script = random.Random(f"log {number}")
    content = random.Random(f"log {number} {sibling}")
    return _Writer(number, script, content, sibling).run()


class _Writer:
    """Writes one sample. `script` decides what is done, `content` the bytes."""

    def __init__(
        self, number: int, script: random.Random, content: random.Random, sibling: bool
    ) -> None:
        self._script = script
        self._content = content
        self._files = MemoryFiles()
        self._sample = Sample(number, 1000 + 2 * number + sibling)
        self._voters = ("m", "n") if sibling else ("a", "b")
        self._open(new=True)

    def _open(self, *, new: bool = False) -> None:
        limit = 250 + self._sample.number % 7 * 150
        self._wal = open_log(self._files, self._sample.log_id, segment_bytes_max=limit, new=new)
        self._sample.states[self._sequence()] = state_of(self._wal)

    def _sequence(self) -> int:
        return self._wal._sequence

    def run(self) -> Sample:
        script = self._script
        for _ in range(3 + self._sample.number % 9):
            for _ in range(script.randrange(4)):
                self._change()
            self._sync()
            if script.random() < 0.12:
                self._open()
        sample = self._sample
        if sample.number % 5 == 4:
            # The last write of this life was never acknowledged.
            self._append()
            self._sync(acknowledge=False)
        sample.files = self._files.contents(DIRECTORY)
        for path, data in sample.files.items():
            self._measure(path, data)
        return sample

    def _append(self) -> None:
        wal, script = self._wal, self._script
        size = script.choice((0, 3, 20, 60, 400, 700))
        zeros = script.random() < 0.2
        body = bytes(size) if zeros else self._content.randbytes(size)
        wal.append(b"\0" + body, wal.last_index + 1, wal.last_term + (script.random() < 0.3))

    def _change(self) -> None:
        wal, script = self._wal, self._script
        draw = script.random()
        if draw < 0.6:
            self._append()
        elif draw < 0.7 and len(wal) > 1:
            wal.truncate_from(wal.first_index + script.randrange(len(wal) - 1))
        elif draw < 0.8:
            entry = wal[script.randrange(len(wal))]
            wal.compact(entry.index, entry.term)
        elif draw < 0.83:
            wal.rebase(wal.base_index + script.randrange(6), wal.last_term + 1)
        else:
            wal.set_hard_state(wal.term + script.randrange(2), self._voters[script.randrange(2)])

    def _sync(self, *, acknowledge: bool = True) -> None:
        pending = self._wal.take()
        if pending is None:
            return
        self._wal.write(pending)
        self._wal.written(pending)
        state = state_of(self._wal)
        if acknowledge:
            self._sample.states[self._sequence()] = state
        else:
            self._sample.torn = state

    def _measure(self, path: str, data: bytes) -> None:
        number = int(path.rpartition("/")[2].partition(".")[0])
        for batch in read_batches(path, data, number, last=True):
            place = Place(path, batch.sequence, batch.offset, batch.end)
            self._sample.batches.append(place)
            offset = batch.offset
            while offset < batch.end - TAIL_BYTES:
                size = int.from_bytes(data[offset + 1 : offset + 5], "little")
                end = offset + RECORD_OVERHEAD + size
                self._sample.records.append((path, offset, end))
                offset = end


def open_log(
    files: MemoryFiles, log_id: int, *, segment_bytes_max: int = 1 << 20, new: bool = False
) -> Wal:
    """As a node opens the log of a directory that belongs to a cluster."""
    return Wal.open(
        files,
        DIRECTORY,
        segment_bytes_max=segment_bytes_max,
        log_id=log_id,
        must_exist=not new,
    )
