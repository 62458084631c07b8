"""The write-ahead log: what this node promised to remember, on disk before the promise leaves.

Rules of this file:
1. Memory first, disk per tick. Changes act on the list in memory at once and are buffered;
   `take` hands over everything buffered as one immutable batch, `write` seals it and puts it on the
   disk with one write and one fdatasync (and may run in a thread meanwhile), `written` believes it.
2. One batch in flight. The next one is taken after `written`; so every batch in a file but the last
   was synced, which is what recovery builds on (records.py, wal_recovery.py).
3. A batch counts whole or not at all: entries, term and vote of one tick survive together.
4. A file is only ever appended to. Nothing is rewritten or cut in place: `open` starts a new
   segment whose header says how much of the one before counts.
5. A failed write or sync ends the log: nothing of that batch is believed, nothing more is written,
   and nothing is tried again. A sync that failed cannot be repeated (wal_recovery.py says why).
   A lack of file descriptors is no failed write: `write` may be called again with the same batch
   and continues where it stopped.

Theory. `durable_index` is the last entry known to be on this disk: what the node may acknowledge,
or count for itself as a leader. An entry can be truncated and replaced by another of the same index
while a write is under way; `written` then must not count the new one. So truncation lowers both
`durable_index` and what the batch in flight may raise it to.

A segment is deleted when all its entries are either truncated or covered by a base that is on disk.
Segments go oldest first, by the writer, after the sync of the batch that made them useless; a
deletion that a crash undoes does no harm.

Position 0 of the list is no entry but the base: a placeholder (NO_OP, base index, base term) for
everything that the snapshot holds. A new log starts from (1, 0), as a new PySyncObj log does. What
is ugly: PySyncObj addresses its journal by list positions and believes that position 0 is an
ordinary entry; the methods at the end translate. Its `clear` cannot empty the list.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, overload

from pysyncobj.journal import Journal  # type: ignore[import-untyped, unused-ignore]

from raftkv.descriptors import lacks_descriptors
from raftkv.errors import DamagedLog
from raftkv.raft.records import (
    HEADER_BYTES,
    MARK_BYTES,
    TAIL_BYTES,
    Header,
    base_record,
    entry_record,
    hard_state_record,
    seal,
    truncate_record,
    write_header,
)
from raftkv.raft.wal_recovery import (
    NO_OP,
    Entry,
    Recovered,
    Segment,
    recover,
    segment_path,
    truncate_segments,
)
from raftkv.runtime import File, Files, Space
from raftkv.waste import Waste

__all__ = ["NO_OP", "Entry", "Pending", "Wal"]

# Recovery reads a segment whole, and a segment is the unit in which disk space is given back.
SEGMENT_BYTES_MAX: Final = 64 << 20

_FIRST_INDEX: Final = 1
_FIRST_TERM: Final = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """One batch on its way to the disk."""

    header: bytes  # of the new segment, if it begins one
    # The batch itself. Made by the writer: sealing 16 MiB would hold the loop up for 30 ms.
    sealed: Callable[[], bytes]
    path: str
    creates: bool  # the batch begins a new segment
    last_index: int
    obsolete: tuple[str, ...]  # files that nobody needs once the batch is durable


class Wal(Journal):  # type: ignore[misc, unused-ignore]
    """A Raft log on disk. Made by `Wal.open`; everything but `write` belongs to the loop."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segment_bytes_max: int,
        fsync: bool,
        state: Recovered,
    ) -> None:
        self._files = files
        self._directory = directory
        self._log_id = state.log_id
        self._segment_bytes_max = segment_bytes_max
        self._fsync = fsync
        self._entries = [Entry(NO_OP, state.base_index, state.base_term), *state.entries]
        self._term = state.term
        self._vote = state.vote
        self._segments = state.segments
        self._obsolete = [segment_path(directory, number) for number in state.obsolete]
        self._newest = state.newest
        self._sequence = state.sequence
        self._file: File | None = None
        self._failed = False
        self._buffer: list[bytes] = []
        self._in_flight: Pending | None = None
        # The batch whose content is on the disk, though perhaps not the name of its file.
        self._stored: Pending | None = None
        self._in_flight_last = 0
        self._commit = state.base_index
        self.durable_index = 0
        self.created = False
        #: Bytes handed to the disk since the log was opened.
        self.written_bytes = 0
        #: Entries that were dropped, 10^5 of them at once perhaps: whoever drives the log sweeps
        #: it.
        self.waste = Waste()

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        fsync: bool = True,
        log_id: int = 0,
        must_exist: bool = False,
    ) -> Wal:
        """Recover the log in `directory`, or create one (`created` tells which).

        `log_id` is the same whenever this log is opened, and another one for every other log: the
        segments of another node are refused; 0 takes any. `must_exist`: never create one, raise
        DamagedLog.

        What it returns with is on stable storage, unless `fsync` is off: then nothing is ever
        synced, and after a power failure the log may be refused as damaged. A segment is at most
        `segment_bytes_max` long, or one batch. Raises DamagedLog, NewerFormat, OSError.
        """
        files.makedirs(directory)
        state = recover(files, directory, log_id)
        created = state is None
        if created and must_exist:
            raise DamagedLog(directory, 0, "the log is gone, though the node belongs to a cluster")
        if state is None:
            state = Recovered(base_index=_FIRST_INDEX, base_term=_FIRST_TERM, log_id=log_id)
        wal = cls(files, directory, segment_bytes_max, fsync, state)
        wal.created = created
        if not created:
            wal._buffer.append(truncate_record(state.first_copied))
            start = max(state.first_copied, wal.first_index)
            for entry in wal.entries(start):
                wal._buffer.extend(entry_record(*entry))
        pending = wal._take(rotate=True)
        wal.write(pending)
        wal.written(pending)
        return wal

    # State ---------------------------------------------------------------------------------------

    @property
    def base_index(self) -> int:
        return self._entries[0].index

    @property
    def base_term(self) -> int:
        return self._entries[0].term

    @property
    def first_index(self) -> int:
        """The first entry that the log can give; there may be none yet."""
        return self._entries[0].index + 1

    @property
    def last_index(self) -> int:
        return self._entries[-1].index

    @property
    def last_term(self) -> int:
        return self._entries[-1].term

    @property
    def term(self) -> int:
        return self._term

    @property
    def vote(self) -> str | None:
        return self._vote

    @property
    def has_pending(self) -> bool:
        """Whether `take` has something to hand over."""
        return bool(self._buffer)

    @property
    def bytes_total(self) -> int:
        """The size of the log on disk, the batch in flight included."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """Files that the log consists of."""
        return len(self._segments)

    def space(self) -> Space:
        """The room on the volume of the log. Blocking. Raises OSError."""
        return self._files.space(self._directory)

    def term_at(self, index: int) -> int | None:
        """The term of an entry or of the base; None below the base and above the last entry."""
        position = index - self._entries[0].index
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def entries(
        self,
        first: int,
        last: int | None = None,
        bytes_max: int | None = None,
        entries_max: int | None = None,
    ) -> list[Entry]:
        """Entries from `first` to `last`, both included; `first` must lie above the base.

        With `bytes_max`, as many as have payloads of so many bytes together, but at least one.
        """
        base = self._entries[0].index
        assert first > base, f"entry {first} is not in the log, which begins behind {base}"
        stop = len(self._entries) if last is None else max(0, last - base + 1)
        if entries_max is not None:
            stop = min(stop, first - base + entries_max)
        found = self._entries[first - base : stop]
        if bytes_max is not None:
            total = 0
            for position, entry in enumerate(found):
                total += len(entry.payload)
                if total > bytes_max and position:
                    return found[:position]
        return found

    def newest_first(self, first: int) -> Iterator[Entry]:
        """Entries from the last one back to `first`, without copying any."""
        base = self._entries[0].index
        for position in range(len(self._entries) - 1, max(0, first - base - 1), -1):
            yield self._entries[position]

    # Changes -------------------------------------------------------------------------------------

    def append(self, payload: bytes, index: int, term: int) -> None:
        """Add the next entry. Its index and term must follow from the last one's."""
        last = self._entries[-1]
        assert index == last.index + 1, f"entry {index} cannot follow entry {last.index}"
        assert term >= last.term, f"term {term} cannot follow term {last.term}"
        self._entries.append(Entry(payload, index, term))
        self._buffer += entry_record(payload, index, term)

    def truncate_from(self, index: int) -> None:
        """Drop the entries from `index` on; nothing happens if there are none."""
        base = self._entries[0].index
        assert index > base, f"entry {index} is at or below the base {base}"
        if index > self._entries[-1].index:
            return
        self.waste.add(self._entries[index - base :])
        del self._entries[index - base :]
        self._buffer.append(truncate_record(index))
        truncate_segments(self._segments, index)
        self._lower_durable(index - 1)

    def set_hard_state(self, term: int, vote: str | None) -> None:
        """Remember the term and whom this node voted for in it."""
        assert term >= self._term, f"term {term} is older than {self._term}"
        if (term, vote) != (self._term, self._vote):
            self._term, self._vote = term, vote
            self._buffer.append(hard_state_record(term, vote))

    def compact(self, index: int, term: int) -> None:
        """A durable snapshot holds everything up to entry `index`: keep only what is behind it."""
        assert self.term_at(index) == term, f"no entry {index} of term {term} in the log"
        position = index - self._entries[0].index
        if position:
            self.waste.add(self._entries[: position + 1])
            self._entries[: position + 1] = [Entry(NO_OP, index, term)]
            self._buffer.append(base_record(index, term))

    def rebase(self, index: int, term: int) -> None:
        """A durable snapshot at `index` replaces the log, which does not contain that point."""
        base = self._entries[0].index
        assert index >= base, f"a snapshot at {index} is older than the log's base {base}"
        self.waste.add(self._entries)
        self._entries = [Entry(NO_OP, index, term)]
        self._buffer.append(truncate_record(0))
        self._buffer.append(base_record(index, term))
        truncate_segments(self._segments, 0)
        # Not `index`: the new base is promised only once it is written.
        self._lower_durable(base)

    def _lower_durable(self, index: int) -> None:
        self.durable_index = min(self.durable_index, index)
        self._in_flight_last = min(self._in_flight_last, index)

    # Writing -------------------------------------------------------------------------------------

    def take(self) -> Pending | None:
        """Everything changed since the last call, for `write`; None if nothing was.

        Raises OSError when an earlier write failed.
        """
        if not self._buffer:
            return None
        self._refuse_if_failed()
        assert self._in_flight is None, "the batch before this one has not been written"
        size = self._segments[-1].size + sum(map(len, self._buffer))
        return self._take(rotate=size > self._segment_bytes_max)

    def _take(self, *, rotate: bool) -> Pending:
        parts = self._buffer
        self._buffer = []
        header = b""
        if rotate:
            before = self._segments[-1] if self._segments else Segment(0, 0)
            self._newest += 1
            header = write_header(Header(self._newest, before.number, before.size, self._log_id))
            self._segments.append(Segment(self._newest, HEADER_BYTES))
            base = self._entries[0]
            parts[:0] = [
                base_record(base.index, base.term),
                hard_state_record(self._term, self._vote),
            ]
        segment = self._segments[-1]
        self._sequence += 1
        place = (segment.number, segment.size, self._sequence, self.last_index, self._log_id)
        segment.size += MARK_BYTES + sum(map(len, parts)) + TAIL_BYTES
        segment.last_index = self.last_index
        while self._segments[0].last_index <= self.base_index and len(self._segments) > 1:
            self._obsolete.append(segment_path(self._directory, self._segments.pop(0).number))
        path = segment_path(self._directory, segment.number)
        pending = Pending(
            header,
            partial(seal, parts, *place),
            path,
            rotate,
            self.last_index,
            tuple(self._obsolete),
        )
        self._obsolete.clear()
        self._in_flight = pending
        self._in_flight_last = pending.last_index
        return pending

    def write(self, pending: Pending) -> None:
        """Put the batch on stable storage and delete the files that it makes obsolete. Blocking.

        Raises OSError; then nothing of the batch may be acknowledged, and the log is closed for
        all further writes: the caller stops the node. After one for want of file descriptors
        (`lacks_descriptors`) the caller repeats the call.
        """
        self._refuse_if_failed()
        try:
            if self._stored is not pending:
                self._store(pending)
                self._stored = pending
            if self._fsync and pending.creates:
                self._files.sync_dir(self._directory)
            for path in pending.obsolete:
                self._files.remove(path)
        except OSError as error:
            self._failed = not lacks_descriptors(error)
            raise
        self._stored = None

    def _store(self, pending: Pending) -> None:
        """The content of the batch. Only its beginning can lack a descriptor."""
        if pending.creates:
            before, self._file = self._file, self._files.open(pending.path, "w")
            if before is not None:
                before.close()
        assert self._file is not None, "a log is opened with a new segment"
        data = pending.header + pending.sealed()
        self._file.write(data)
        self.written_bytes += len(data)
        if self._fsync:
            self._file.datasync()

    def written(self, pending: Pending) -> None:
        """Believe a batch that `write` returned from: `durable_index` rises."""
        assert pending is self._in_flight, "this batch is not the one in flight"
        self._in_flight = None
        self.durable_index = max(self.durable_index, self._in_flight_last)

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "an earlier write of the log failed", self._directory)

    def close(self) -> None:
        """Close the file. What was not written stays unwritten."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # PySyncObj's Journal: the same by list position -----------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.append(command, idx, term)

    def clear(self) -> None:
        """Drop all entries; the base stays."""
        self.truncate_from(self.first_index)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self.truncate_from(self.base_index + entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """The entry at position `entryTo` becomes the base: its payload is in the snapshot."""
        entry = self._entries[entryTo]
        self.compact(entry.index, entry.term)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        self.close()

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self.set_hard_state(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Kept in memory only: after a restart the leader tells it again."""
        self._commit = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return max(self._commit, self.base_index)

    def onOneSecondTimer(self) -> None:
        """Nothing: term and vote are written with the tick that changes them."""
