"""The bytes of the write-ahead log: records, batches, headers, and what a crash does to them.

Rules of this file: bytes in, records out. No files, no log, no policy but one: which damage can be
the work of a crash. All numbers are little-endian.

    segment  = header, batch, batch, ...
    header   = magic, format version, own number, number and length of the segment before,
               id of the log, crc
    batch    = MARK, record, ..., record, crc32, END (exactly one write followed by one fdatasync)
    record   = kind u8, body length u32, body, crc32 of all before it

A MARK says: everything before me was on stable storage when I was written, for the next batch is
written only after the sync of the last one returned. It carries its own place (segment, offset,
running number of the batch), so that it cannot be taken for another, and the length of its batch.

The checksum of a batch covers the checksums of its records, its place and the id of the log. So
records cannot be lost, doubled, exchanged or taken from another place, an older state or another
node's log of the same shape, though each of them is whole. (It must not run over the records
themselves: a CRC over data followed by their own CRC is the same for all data of that length.)
Format 1 had neither the id nor that checksum; it is read, and never written.

The torn tail. Only the last batch of the last segment may be unfinished, and nobody was told of
it: it may be cut, whole. But the last batch may as well have been synced and acknowledged, and then
damage in it must stop the node. The two are told apart by what a crash can do to an unsynced
write, and a decaying disk cannot:

1. The file ends before the batch does. A sync makes the length of the file durable too, so this
   batch was never synced: cut. That is why MARK holds the length: the length field of a record
   alone could itself be what is damaged.
2. The file has the batch's full length, but sectors of it were never written and read as zeros.
   A sector that reads as zeros although the batch did not contain that many blank ones is the
   trace of a crash: cut. A batch may contain blank sectors of its own (values full of zeros),
   therefore MARK counts them. "Blank" means at most one bit set, so that a single flipped bit
   never makes a sector look unwritten; MARKs, kinds and END have several bits set for that reason.
3. Everything else is damage: a wrong checksum without a missing sector, or any fault in a batch
   that is followed by another MARK or another segment.

Sectors are assumed to be written whole or not at all; half a sector is damage and stops the node.
What cannot be seen: a file that somebody cut, later, exactly between two batches or inside one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from raftkv.errors import DamagedLog, NewerFormat

__all__ = [
    "BASE",
    "ENTRY",
    "FORMAT_VERSION",
    "HARD_STATE",
    "HEADER_BYTES",
    "TRUNCATE",
    "Batch",
    "Header",
    "Record",
    "base_record",
    "entry_record",
    "hard_state_record",
    "read_batches",
    "read_header",
    "seal",
    "truncate_record",
    "write_header",
]

SECTOR_BYTES: Final = 512  # the smallest unit that disks write whole
MAGIC: Final = b"raftkvWL"
FORMAT_VERSION: Final = 2
_FORMAT_1: Final = 1
# A greater number was never a version.
_VERSION_MAX: Final = 1000

# Kinds. Several bits set, so that no flipped bit turns one into a zero or into another.
ENTRY: Final = 0xB1
TRUNCATE: Final = 0xB2
HARD_STATE: Final = 0xB4
BASE: Final = 0xB8
MARK: Final = 0xA5
END: Final = b"\xff"

_FRAME = struct.Struct("<BI")
_CRC = struct.Struct("<I")
_ENTRY_HEAD = struct.Struct("<BIQQ")
_PAIR = struct.Struct("<QQ")
_INDEX = struct.Struct("<Q")
_TERM_VOTE = struct.Struct("<QB")
_MARK = struct.Struct("<BIQQQQQI")
_HEADER_1 = struct.Struct("<8sIQQQ")
_HEADER = struct.Struct("<8sIQQQQ")
# What a batch's checksum covers beside its records: log, segment, offset, sequence, last index.
_PLACE = struct.Struct("<QQQQQ")

RECORD_OVERHEAD: Final = _FRAME.size + _CRC.size
MARK_BYTES: Final = _MARK.size + _CRC.size
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_HEADER_1_BYTES: Final = _HEADER_1.size + _CRC.size
TAIL_BYTES: Final = _CRC.size + len(END)
_VERSION_END: Final = len(MAGIC) + 4


class Header(NamedTuple):
    """The segment before counts up to `previous_bytes`; what lies behind was given up."""

    number: int
    previous_number: int  # 0: none
    previous_bytes: int
    log_id: int = 0  # the same in all segments of a log
    version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Where the first batch begins."""
        return HEADER_BYTES if self.version == FORMAT_VERSION else _HEADER_1_BYTES


class Record(NamedTuple):
    """ENTRY: index, term, payload. TRUNCATE: index. BASE: index, term. HARD_STATE: term, vote."""

    kind: int
    index: int  # type: ignore[assignment]  # a tuple's method of that name is not needed
    term: int
    data: bytes | None  # payload or vote


class Batch(NamedTuple):
    offset: int
    end: int
    sequence: int
    last_index: int  # of the whole log after this batch
    records: list[Record]


class _Mark(NamedTuple):
    segment: int
    offset: int
    size: int  # of the whole batch, MARK and END included
    sequence: int
    last_index: int
    blank: int


class _Tail(NamedTuple):
    """What ends a batch; in format 1 without a checksum."""

    size_bytes: int
    place: int  # the checksum of the batch's place


# Writing -----------------------------------------------------------------------------------------


def _framed(kind: int, body: bytes) -> bytes:
    data = _FRAME.pack(kind, len(body)) + body
    return data + _CRC.pack(zlib.crc32(data))


def entry_record(payload: bytes, index: int, term: int) -> tuple[bytes, bytes, bytes]:
    """The parts of an ENTRY; in parts, so that the payload is copied once, by the final join."""
    head = _ENTRY_HEAD.pack(ENTRY, 16 + len(payload), index, term)
    return head, payload, _CRC.pack(zlib.crc32(payload, zlib.crc32(head)))


def truncate_record(index: int) -> bytes:
    """Entries from `index` on are dropped."""
    return _framed(TRUNCATE, _INDEX.pack(index))


def base_record(index: int, term: int) -> bytes:
    """Everything up to `index` is in a snapshot."""
    return _framed(BASE, _PAIR.pack(index, term))


def hard_state_record(term: int, vote: str | None) -> bytes:
    name = b"" if vote is None else vote.encode()
    return _framed(HARD_STATE, _TERM_VOTE.pack(term, vote is not None) + name)


def write_header(header: Header) -> bytes:
    number, previous_number, previous_bytes, log_id, _ = header
    data = _HEADER.pack(MAGIC, FORMAT_VERSION, number, previous_number, previous_bytes, log_id)
    return data + _CRC.pack(zlib.crc32(data))


def seal(
    parts: list[bytes], segment: int, offset: int, sequence: int, last_index: int, log_id: int = 0
) -> bytes:
    """One batch of the given records, to be written at `offset` of the segment."""
    records = b"".join(parts)
    place = zlib.crc32(_PLACE.pack(log_id, segment, offset, sequence, last_index))
    body = b"".join((records, _CRC.pack(_batch_checksum(records, place)), END))
    blank = blank_sectors(body, offset + MARK_BYTES, bits_max=1)
    size = MARK_BYTES + len(body)
    mark = _MARK.pack(
        MARK, _MARK.size - _FRAME.size, segment, offset, size, sequence, last_index, blank
    )
    return b"".join((mark, _CRC.pack(zlib.crc32(mark)), body))


def _batch_checksum(records: bytes, place: int) -> int:
    """Over the checksums of whole records behind each other."""
    checksum, offset = place, 0
    while offset < len(records):
        _, length = _FRAME.unpack_from(records, offset)
        offset += RECORD_OVERHEAD + length
        checksum = zlib.crc32(records[offset - _CRC.size : offset], checksum)
    return checksum


def blank_sectors(data: bytes, offset: int, bits_max: int) -> int:
    """How many pieces of `data`, cut where the file's sectors end, have at most that many bits."""
    count = 0
    start = 0
    stop = SECTOR_BYTES - offset % SECTOR_BYTES
    while start < len(data):
        # Most sectors are dismissed by their first two bytes.
        if not data[start] or data[start + 1 : start + 2] <= b"\0":
            piece = data[start:stop]
            if piece.count(0) + bits_max >= len(piece):
                count += int.from_bytes(piece, "little").bit_count() <= bits_max
        start, stop = stop, stop + SECTOR_BYTES
    return count


# Reading -----------------------------------------------------------------------------------------


def read_header(file: str, data: bytes, number: int, *, last: bool) -> Header | None:
    """The header of segment `number`; None when the crash that tore it can have created it.

    `last` says that no segment follows. Raises DamagedLog.
    """
    header = _decode_header(data)
    if header is not None:
        if header.number != number:
            raise DamagedLog(file, 0, f"this is not segment {number} of a log")
        return header
    head = data[:HEADER_BYTES]
    version = _newer_version(head)
    if version:
        raise NewerFormat(file, version, FORMAT_VERSION)
    torn = len(head) < HEADER_BYTES or _unwritten(data, 0, HEADER_BYTES)
    if not last or not torn or _has_mark(data, 0, number):
        raise DamagedLog(file, 0, "the header of the segment fails its checksum")
    return None


def _decode_header(data: bytes) -> Header | None:
    """The header at the start of a segment, of either format; None if it is not whole."""
    for version, layout in ((FORMAT_VERSION, _HEADER), (_FORMAT_1, _HEADER_1)):
        head = data[: layout.size + _CRC.size]
        if len(head) == layout.size + _CRC.size and _checked(head):
            magic, found, number, previous, size, *more = layout.unpack_from(head)
            if magic == MAGIC and found == version:
                return Header(number, previous, size, more[0] if more else 0, version)
    return None


def _newer_version(head: bytes) -> int:
    """The format version that a header claims if it is a newer one, else 0.

    A header in which the version alone was damaged is not newer: with the right one it is whole.
    """
    if len(head) < _VERSION_END or not head.startswith(MAGIC):
        return 0
    version = int.from_bytes(head[len(MAGIC) : _VERSION_END], "little")
    if not FORMAT_VERSION < version <= _VERSION_MAX:
        return 0
    for known in (_FORMAT_1, FORMAT_VERSION):
        repaired = MAGIC + known.to_bytes(4, "little") + head[_VERSION_END:]
        if _decode_header(repaired) is not None:
            return 0
    return version


def read_batches(file: str, data: bytes, number: int, *, last: bool) -> Iterator[Batch]:
    """The batches behind the header of segment `number`, up to a torn tail if it is the `last`.

    Raises DamagedLog for any damage that is not the torn tail of a crash (see the top).
    """
    header = read_header(file, data, number, last=last)
    if header is None:
        return
    offset = header.size_bytes
    while offset < len(data):
        mark = _read_mark(data, offset, number)
        bad = offset
        if mark is None:
            # The first batch is written together with the header, in whose sector its MARK lies.
            later = offset > header.size_bytes
            torn = offset + MARK_BYTES > len(data)
            torn = torn or (later and _unwritten(data, offset, MARK_BYTES))
            torn = torn and not _has_mark(data, offset + 1, number)
        elif (end := offset + mark.size) > len(data):
            torn = True
        else:
            records, bad = _read_records(data, offset + MARK_BYTES, end, _tail(header, mark))
            if bad == end:
                yield Batch(offset, end, mark.sequence, mark.last_index, records)
                offset = end
                continue
            zeros = blank_sectors(data[offset:end], offset, bits_max=0)
            torn = end == len(data) and zeros > mark.blank
        if torn and last:
            return
        raise DamagedLog(file, bad, "a record fails its checksum or is cut short")


def _checked(record: bytes) -> bool:
    return bool(_CRC.pack(zlib.crc32(record[: -_CRC.size])) == record[-_CRC.size :])


def _read_mark(data: bytes, offset: int, segment: int) -> _Mark | None:
    raw = data[offset : offset + MARK_BYTES]
    if len(raw) < MARK_BYTES or not _checked(raw):
        return None
    kind, _, *fields = _MARK.unpack_from(raw)
    mark = _Mark(*fields)
    if kind != MARK or mark.segment != segment or mark.offset != offset:
        return None
    return mark if mark.size > MARK_BYTES else None


def _has_mark(data: bytes, offset: int, segment: int) -> bool:
    """Whether a valid MARK stands anywhere behind `offset`: what precedes it had been synced."""
    prefix = _FRAME.pack(MARK, _MARK.size - _FRAME.size) + _INDEX.pack(segment)
    while (offset := data.find(prefix, offset)) >= 0:
        if _read_mark(data, offset, segment) is not None:
            return True
        offset += 1
    return False


def _unwritten(data: bytes, offset: int, count: int) -> bool:
    """Whether a sector that `count` bytes from `offset` touch reads as zeros from there on."""
    stop = -(-(offset + count) // SECTOR_BYTES) * SECTOR_BYTES
    return blank_sectors(data[offset:stop], offset, bits_max=0) > 0


def _tail(header: Header, mark: _Mark) -> _Tail:
    if header.version == _FORMAT_1:
        return _Tail(len(END), 0)
    place = _PLACE.pack(header.log_id, mark.segment, mark.offset, mark.sequence, mark.last_index)
    return _Tail(TAIL_BYTES, zlib.crc32(place))


def _read_records(data: bytes, offset: int, end: int, tail: _Tail) -> tuple[list[Record], int]:
    """The records of a batch, and `end`, or the offset of the first bad one."""
    records: list[Record] = []
    view = memoryview(data)
    limit = end - tail.size_bytes
    checksum = tail.place
    while offset < limit:
        if offset + RECORD_OVERHEAD > limit:
            return records, offset
        kind, length = _FRAME.unpack_from(data, offset)
        body = offset + _FRAME.size
        stop = body + length
        if stop + _CRC.size > limit:
            return records, offset
        if _CRC.unpack_from(data, stop)[0] != zlib.crc32(view[offset:stop]):
            return records, offset
        record = _decode(kind, data, body, stop)
        if record is None:
            return records, offset
        records.append(record)
        offset = stop + _CRC.size
        checksum = zlib.crc32(view[stop:offset], checksum)
    ending = END if tail.size_bytes == len(END) else _CRC.pack(checksum) + END
    return (records, end) if data[limit:end] == ending else (records, limit)


def _decode(kind: int, data: bytes, body: int, stop: int) -> Record | None:
    length = stop - body
    if kind == ENTRY and length >= _PAIR.size:
        index, term = _PAIR.unpack_from(data, body)
        return Record(ENTRY, index, term, data[body + _PAIR.size : stop])
    if kind == TRUNCATE and length == _INDEX.size:
        return Record(TRUNCATE, _INDEX.unpack_from(data, body)[0], 0, None)
    if kind == BASE and length == _PAIR.size:
        index, term = _PAIR.unpack_from(data, body)
        return Record(BASE, index, term, None)
    if kind == HARD_STATE and length >= _TERM_VOTE.size:
        term, voted = _TERM_VOTE.unpack_from(data, body)
        return Record(HARD_STATE, 0, term, data[body + _TERM_VOTE.size : stop] if voted else None)
    return None
