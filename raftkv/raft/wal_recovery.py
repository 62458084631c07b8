"""Reading a log directory back: which segments count, what they add up to, where to go on.

Rules of this file: it reads and syncs; the one thing it removes is a segment that was torn while it
was created, and that segment never held anything acknowledged.

Theory. The newest segment names the one before it and how much of that counts, and so on back until
a segment is gone: this chain is the log. Segments outside it are remains of a deletion that a crash
interrupted; they are listed as obsolete. Nothing trusts that deletions reached the disk in order.

The records are replayed oldest first. The oldest segments may be deleted as soon as the base record
that made them useless is durable, and truncations in a deleted or kept segment may refer to entries
of the other kind; so a replay may pass through states with a gap between base and first entry. Only
the end must be whole: entries without a gap from the last base on, up to the last index that the
last MARK names. Batch numbers must run on without a gap through the whole chain.

Why the newest batch is written again. A failed fdatasync leaves pages in the page cache that look
written but are not on the disk, and a later fdatasync does not write them. A node that fails a sync
stops; started again, it would read such pages, believe them and acknowledge them. Only the newest
batch can be in that state. `Recovered` therefore names it, and the log copies its effect into a new
segment whose header excludes the original: from then on it does not matter what became of it.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftkv.errors import DamagedLog
from raftkv.raft.records import (
    BASE,
    ENTRY,
    HARD_STATE,
    HEADER_BYTES,
    TRUNCATE,
    Batch,
    Header,
    read_batches,
    read_header,
)
from raftkv.runtime import Files

__all__ = ["NO_OP", "Entry", "Recovered", "Segment", "recover", "segment_path"]

NO_OP: Final = b"\x01"
_NAME = re.compile(r"(\d{16})\.wal")


class Entry(NamedTuple):
    """One entry of the log, in PySyncObj's order. The payload starts with its kind."""

    payload: bytes
    index: int  # type: ignore[assignment]  # a tuple's method of that name is not needed
    term: int


@dataclass(slots=True)
class Segment:
    """What the log must know of a file in order to delete it in time."""

    number: int
    size: int  # the bytes that count
    last_index: int = 0  # the highest entry in it that is still part of the log


@dataclass(slots=True)
class Recovered:
    """The log as it was after the last complete batch."""

    base_index: int = 0
    base_term: int = 0
    term: int = 0
    vote: str | None = None
    entries: list[Entry] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)  # oldest first
    obsolete: list[int] = field(default_factory=list)  # numbers of files outside the log
    newest: int = 0  # the number of the newest file
    log_id: int = 0
    sequence: int = 0  # of the last batch that stays where it is
    first_copied: int = 0  # entries from here on were touched by the newest batch

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.base_index


class _Source(NamedTuple):
    path: str
    header: Header
    data: bytes


def segment_path(directory: str, number: int) -> str:
    return os.path.join(directory, f"{number:016d}.wal")


def recover(files: Files, directory: str, log_id: int = 0) -> Recovered | None:
    """The state of the log in `directory`, or None if there is none yet.

    `log_id` says whose log it must be; 0 takes any. Raises DamagedLog, NewerFormat.
    """
    numbers = [int(m[1]) for name in files.listdir(directory) if (m := _NAME.fullmatch(name))]
    if not numbers:
        return None
    newest = _newest(files, directory, numbers)
    if newest is None:
        return None
    chain = _chain(files, directory, newest, set(numbers))
    state = Recovered(newest=newest.header.number, log_id=_common_id(chain, log_id))
    used = {source.header.number for source in chain}
    state.obsolete = [number for number in numbers if number not in used]
    last = None
    for source in chain:
        is_last = source is newest
        for batch in read_batches(source.path, source.data, source.header.number, last=is_last):
            if not state.segments or state.segments[-1].number != source.header.number:
                state.segments.append(Segment(source.header.number, len(source.data)))
            _replay(state, batch, source.path)
            last = batch
    assert last is not None, "the newest segment has a batch"
    _check_whole(state, last, newest.path)
    _give_up_newest(state, last, newest.header)
    return state


def _read(files: Files, path: str) -> bytes:
    file = files.open(path, "r")
    try:
        # The pages may still be in memory only: whoever relies on them must know them on the disk.
        file.datasync()
        return file.pread(0, file.size())
    finally:
        file.close()


def _newest(files: Files, directory: str, numbers: list[int]) -> _Source | None:
    """The newest segment with a complete batch, or None if the log was never completely created.

    A segment that was torn at its creation is removed, from the directory and from `numbers`.
    """
    newest = max(numbers)
    source = _complete(files, directory, newest)
    if source is not None:
        return source
    path = segment_path(directory, newest)
    if newest - 1 in numbers:
        source = _complete(files, directory, newest - 1)
    if source is not None:
        _check_previous(files, path, newest, source)
    elif numbers != [1]:
        # A segment is created when the one before it is whole, and deleted when the one behind it
        # is: a crash leaves one torn segment at most, and only behind a whole one.
        raise DamagedLog(path, 0, "neither it nor the segment before it holds a complete batch")
    files.remove(path)
    numbers.remove(newest)
    return source


def _check_previous(files: Files, path: str, newest: int, previous: _Source) -> None:
    """A torn segment may still say how much of the one before it was on the disk."""
    header = read_header(path, _read(files, path), newest, last=True)
    number = previous.header.number
    if header is not None and header.previous_number == number:
        counted = _counted(previous.path, previous.data, header.previous_bytes)
        for _ in read_batches(previous.path, counted, number, last=False):
            pass


def _counted(path: str, data: bytes, size: int) -> bytes:
    """What counts of a segment according to the one behind it."""
    if len(data) < size:
        raise DamagedLog(path, len(data), f"the segment should have {size} bytes or more")
    return data[:size]


def _complete(files: Files, directory: str, number: int) -> _Source | None:
    """A segment with at least one complete batch, read as the last of the log."""
    path = segment_path(directory, number)
    data = _read(files, path)
    header = read_header(path, data, number, last=True)
    if header is None or not any(True for _ in read_batches(path, data, number, last=True)):
        return None
    return _Source(path, header, data)


def _chain(files: Files, directory: str, newest: _Source, numbers: set[int]) -> list[_Source]:
    chain = [newest]
    while (number := chain[-1].header.previous_number) in numbers:
        path = segment_path(directory, number)
        data = _read(files, path)
        data = _counted(path, data, chain[-1].header.previous_bytes)
        if number >= chain[-1].header.number:
            raise DamagedLog(chain[-1].path, 0, "the segment names a newer one as the one before")
        header = read_header(path, data, number, last=False)
        assert header is not None, "only a last segment may be torn"
        chain.append(_Source(path, header, data))
    return chain[::-1]


def _common_id(chain: list[_Source], log_id: int) -> int:
    """The id of the log. Segments without one (of format 1, say) fit every log."""
    for source in reversed(chain):
        found = source.header.log_id
        if found and log_id and found != log_id:
            raise DamagedLog(source.path, 0, "the segment belongs to the log of another node")
        log_id = log_id or found
    return log_id


def _replay(state: Recovered, batch: Batch, path: str) -> None:
    if state.sequence and batch.sequence != state.sequence + 1:
        raise DamagedLog(
            path,
            batch.offset,
            f"batch {batch.sequence} follows batch {state.sequence}: batches are missing",
        )
    state.sequence = batch.sequence
    entries = state.entries
    segment = state.segments[-1]
    for record in batch.records:
        if record.kind == ENTRY:
            assert record.data is not None, "an entry has a payload"
            if entries and record.index != entries[-1].index + 1:
                raise DamagedLog(
                    path,
                    batch.offset,
                    f"entry {record.index} follows entry {entries[-1].index}",
                )
            entries.append(Entry(record.data, record.index, record.term))
            segment.last_index = record.index
        elif record.kind == TRUNCATE:
            if entries:
                del entries[max(0, record.index - entries[0].index) :]
            truncate_segments(state.segments, record.index)
        elif record.kind == BASE:
            state.base_index, state.base_term = record.index, record.term
            if entries:
                del entries[: max(0, record.index + 1 - entries[0].index)]
        elif record.kind == HARD_STATE:
            state.term = record.term
            state.vote = None if record.data is None else record.data.decode()


def truncate_segments(segments: list[Segment], index: int) -> None:
    """Entries from `index` on are no longer part of the log."""
    for segment in segments:
        segment.last_index = min(segment.last_index, max(0, index - 1))


def _check_whole(state: Recovered, last: Batch, path: str) -> None:
    first = state.entries[0].index if state.entries else state.base_index + 1
    if first != state.base_index + 1:
        raise DamagedLog(
            path,
            HEADER_BYTES,
            f"entries {state.base_index + 1} to {first - 1} are missing: an older segment is gone",
        )
    if state.last_index != last.last_index:
        raise DamagedLog(
            path,
            last.offset,
            f"the log ends with entry {state.last_index} instead of {last.last_index}",
        )


def _give_up_newest(state: Recovered, last: Batch, header: Header) -> None:
    """Let the newest batch count no more where it stands; its effect is to be written again."""
    touched = [r.index for r in last.records if r.kind in (ENTRY, TRUNCATE)]
    state.first_copied = min(touched, default=state.last_index + 1)
    state.sequence = last.sequence - 1
    truncate_segments(state.segments, max(state.first_copied, state.base_index + 1))
    newest = state.segments[-1]
    newest.size = last.offset
    if last.offset == header.size_bytes:
        # Nothing else in it: the new segment takes its place.
        state.obsolete.append(newest.number)
        state.segments.pop()
