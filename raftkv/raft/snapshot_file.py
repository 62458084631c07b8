"""One snapshot file: its format, and reading it without believing anything unchecked.

Rules of this file: no length is followed before it was compared with what the file can hold;
nothing is handed out before its checksum matched. The bytes inside are opaque, and chunks come back
exactly as they were written.

    file   = header, chunk, chunk, ..., footer       (all numbers little-endian)
    header = magic, version u32, length of meta u32, meta (msgpack), crc32 of all before
    chunk  = length u32 (not 0), crc32 of the data u32, data
    footer = 0 u32, number of chunks u64, bytes of data u64, crc32 of all data, crc32 of the footer

The footer proves that no chunk is missing at the end; its checksum over all data, that none is
missing, doubled or exchanged inside. It must be the end of the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from raftkv.errors import DamagedSnapshot, NewerFormat
from raftkv.runtime import File, Files

__all__ = [
    "CHUNK_BYTES_MAX",
    "FORMAT_1",
    "FORMAT_VERSION",
    "SINCE_CORE_FORMAT",
    "Footer",
    "Snapshot",
    "SnapshotMeta",
    "chunk_head",
    "header",
]

MAGIC: Final = b"raftkvSN"
# The first version does not hold `configuration_index`. It is written while the core format is 1.
FORMAT_1: Final = 1
FORMAT_VERSION: Final = 2
# The core format from which on the second one is written.
SINCE_CORE_FORMAT: Final = 2
# A greater number was never a version.
VERSION_MAX: Final = 1000

# A slice of the state is encoded in one piece; this is far more than any slice should be.
CHUNK_BYTES_MAX: Final = 1 << 30
# Mostly the configuration: some hundred bytes per member.
META_BYTES_MAX: Final = 1 << 20
# Indexes and terms have 16 digits in file names.
NUMBER_MAX: Final = 10**16 - 1

_START = struct.Struct("<8sII")
_CHUNK = struct.Struct("<II")
_FOOTER = struct.Struct("<IQQI")
_CRC = struct.Struct("<I")
FOOTER_BYTES: Final = _FOOTER.size + _CRC.size


class SnapshotMeta(msgspec.Struct, frozen=True):
    """What a snapshot is of: the state after entry (`index`, `term`) of that cluster's log.

    `configuration_index` is that of the entry that holds `configuration`; 0: not known, as always
    in the file format 1.
    """

    index: int
    term: int
    configuration: bytes  # as of `index`, encoded by the engine
    cluster_id: str
    format_version: int = FORMAT_1
    configuration_index: int = 0


_decoder = msgspec.msgpack.Decoder(SnapshotMeta)


def header(meta: SnapshotMeta) -> bytes:
    fields = msgspec.structs.asdict(meta)
    if meta.format_version == FORMAT_1:
        del fields["configuration_index"]
    body = msgspec.msgpack.encode(fields)
    if len(body) > META_BYTES_MAX or not 0 < meta.index <= NUMBER_MAX:
        raise ValueError(f"the snapshot's meta data exceed their limits: {meta!r:.200}")
    data = _START.pack(MAGIC, meta.format_version, len(body)) + body
    return data + _CRC.pack(zlib.crc32(data))


def chunk_head(chunk: bytes) -> bytes:
    if not 0 < len(chunk) <= CHUNK_BYTES_MAX:
        raise ValueError(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {len(chunk)}")
    return _CHUNK.pack(len(chunk), zlib.crc32(chunk))


class Footer:
    """Counts chunks, while they are written or read."""

    __slots__ = ("checksum", "chunks", "size")

    def __init__(self) -> None:
        self.chunks = self.size = self.checksum = 0

    def add(self, chunk: bytes) -> None:
        self.chunks += 1
        self.size += len(chunk)
        self.checksum = zlib.crc32(chunk, self.checksum)

    def encode(self) -> bytes:
        data = _FOOTER.pack(0, self.chunks, self.size, self.checksum)
        return data + _CRC.pack(zlib.crc32(data))


class Snapshot:
    """A validated snapshot file. Safe to read from several threads, but for the first `read`."""

    def __init__(self, files: Files, path: str, meta: SnapshotMeta, size: int, footer: bytes):
        self._file: File | None = None
        self._files = files
        self.meta = meta
        self.path = path
        self.size_bytes = size
        self.footer = footer
        self._start = len(header(meta))

    @classmethod
    def load(cls, files: Files, path: str) -> Snapshot:
        """Validate the whole file. Raises DamagedSnapshot, NewerFormat, OSError."""
        file = files.open(path, "r")
        try:
            size = file.size()
            meta = _read_header(file, path, size)
            for _ in _read_chunks(file, path, len(header(meta)), size):
                pass
            footer = file.pread(size - FOOTER_BYTES, FOOTER_BYTES)
        finally:
            file.close()
        return cls(files, path, meta, size, footer)

    @property
    def id(self) -> str:
        """Names the content: files with the same id are equal (but for a chance of 2**-32)."""
        # Without the checksums inside: a CRC over data and its own CRC is the same for all data.
        parts = header(self.meta)[: -_CRC.size] + self.footer[: -_CRC.size]
        checksum = zlib.crc32(parts)
        return f"{self.meta.index}-{self.meta.term}-{self.size_bytes}-{checksum:08x}"

    def chunks(self) -> Iterator[bytes]:
        """The chunks as they were written, each verified before it is handed out.

        Raises DamagedSnapshot; after the last chunk too, if the file as a whole does not match.
        """
        file = self._files.open(self.path, "r")
        try:
            yield from _read_chunks(file, self.path, self._start, self.size_bytes)
        finally:
            file.close()

    def verify(self) -> None:
        """Read everything and compare the checksums. Raises DamagedSnapshot, OSError.

        Through the file that `read` keeps open, if it does.
        """
        if self._file is None:
            for _ in self.chunks():
                pass
            return
        if header(_read_header(self._file, self.path, self._file.size())) != header(self.meta):
            raise DamagedSnapshot(self.path, 0, "the header is another one than it was")
        for _ in _read_chunks(self._file, self.path, self._start, self.size_bytes):
            pass

    def read(self, offset: int, count: int) -> bytes:
        """Raw bytes for sending; the receiver verifies them.

        The first call opens the file and keeps it open until `close`: a newer snapshot may remove
        the file while this one is being sent.
        """
        if self._file is None:
            self._file = self._files.open(self.path, "r")
        return self._file.pread(offset, count)

    def close(self) -> None:
        """Release the file that `read` opened; the next `read` would open it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # A transfer can end in many ways (done, refused, leadership lost); none may leak a descriptor.
    __del__ = close


def _read_header(file: File, path: str, size: int) -> SnapshotMeta:
    start = file.pread(0, _START.size)
    if len(start) < _START.size:
        raise DamagedSnapshot(path, len(start), "the file ends inside its header")
    magic, version, length = _START.unpack(start)
    if magic != MAGIC:
        raise DamagedSnapshot(path, 0, "this is not a snapshot")
    if FORMAT_VERSION < version <= VERSION_MAX and not _is_whole(file, length, size):
        # With the right version it would be whole, were the version alone damaged.
        raise NewerFormat(path, version, FORMAT_VERSION)
    if version not in (FORMAT_1, FORMAT_VERSION):
        raise DamagedSnapshot(path, len(MAGIC), f"there is no format version {version}")
    if length > META_BYTES_MAX or _START.size + length + _CRC.size > size:
        raise DamagedSnapshot(path, len(MAGIC) + 4, f"a header of {length} bytes is impossible")
    body = file.pread(_START.size, length)
    if file.pread(_START.size + length, _CRC.size) != _CRC.pack(zlib.crc32(start + body)):
        raise DamagedSnapshot(path, 0, "the header fails its checksum")
    try:
        meta = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedSnapshot(path, _START.size, f"the meta data are malformed: {error}") from None
    if not 0 < meta.index <= NUMBER_MAX or not 0 <= meta.term <= NUMBER_MAX:
        raise DamagedSnapshot(path, _START.size, "index or term is impossible")
    if not 0 <= meta.configuration_index <= meta.index or meta.format_version != version:
        raise DamagedSnapshot(path, _START.size, "the members' index or the version is impossible")
    if header(meta) != start + body + _CRC.pack(zlib.crc32(start + body)):
        raise DamagedSnapshot(path, _START.size, "the meta data are not in their one true form")
    return meta


def _is_whole(file: File, length: int, size: int) -> bool:
    """Whether the header's checksum matches once its version is one that this code knows."""
    if length > META_BYTES_MAX or _START.size + length + _CRC.size > size:
        return False
    body = file.pread(_START.size, length)
    crc = file.pread(_START.size + length, _CRC.size)
    starts = [_START.pack(MAGIC, version, length) for version in (FORMAT_1, FORMAT_VERSION)]
    return any(crc == _CRC.pack(zlib.crc32(start + body)) for start in starts)


def _read_chunks(file: File, path: str, offset: int, size: int) -> Iterator[bytes]:
    end = size - FOOTER_BYTES
    seen = Footer()
    while offset + _CHUNK.size <= end:
        length, crc = _CHUNK.unpack(file.pread(offset, _CHUNK.size))
        data_offset = offset + _CHUNK.size
        if not 0 < length <= min(CHUNK_BYTES_MAX, end - data_offset):
            raise DamagedSnapshot(path, offset, f"a chunk of {length} bytes is impossible here")
        data = file.pread(data_offset, length)
        if len(data) != length or zlib.crc32(data) != crc:
            raise DamagedSnapshot(path, offset, "a chunk fails its checksum")
        seen.add(data)
        yield data
        offset = data_offset + length
    if offset != end or file.pread(end, FOOTER_BYTES) != seen.encode():
        raise DamagedSnapshot(path, offset, "the footer does not match the chunks")
