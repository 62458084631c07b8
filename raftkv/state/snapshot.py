"""The whole replicated state as a stream of chunks, and back.

Chunks are tagged msgpack arrays, in this order:

    Header    format, index, now, serial, active plugins with versions
    Rows      rows of one table in key order; plugins and their tables in name order
    Opened    one session, in the order of their ids, each followed by its
    Outcomes  kept outcomes in the order of their numbers
    Piece     a part of any of these that is too large for one chunk; the last one completes it
    End       counts, and the digest of all that went before

Rules of this file
1. The bytes of a row depend on the row alone, so the digest, which runs over rows and not over
   chunks, does not depend on where the stream was cut: equal states have equal digests, whether
   they were walked at once or in slices between other commands.
2. A chunk is closed at CHUNK_BYTES; only a single row or outcome can make it larger. What would
   exceed what its way takes (a file, a message) goes as pieces of CHUNK_BYTES. A reader refuses a
   chunk above CHUNK_BYTES_MAX, and pieces above WHOLE_BYTES_MAX together, before decoding them. A
   chunk may have no rows: the walk has passed keys that are all younger than the freeze. It must be
   a step nonetheless, or there is no limit to one.
3. Reading builds an `Image` aside, chunk by chunk; its tables are ready for use when the last chunk
   has been read. Nothing is replaced before the end marker, the counts and the digest have been
   found right: a restore happens wholly or not at all.
4. Each step (a chunk written, a chunk read) is short, whatever the size of the state; but a row is
   encoded and decoded in one go, like the command that wrote it.

The digest serves both ends: two nodes at the same index compare it, and a reader verifies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from raftkv.errors import DamagedSnapshot, MissingPlugin, Refused
from raftkv.waste import Waste

from .refusals import Refusals
from .rows import Rows as TableRows
from .rows import RunRows, SmallRows, grown
from .sessions import ABANDONED, DROPPED, FrozenSessions, RestoredResult, Session
from .tables import FrozenTable

__all__ = ["HEAD_BYTES", "Frozen", "Header", "Image", "Reader", "decode_outcome", "encode_outcome"]

FORMAT: Final = 1
# A chunk is encoded in one go on the event loop: 512 KiB take about a millisecond.
CHUNK_BYTES: Final = 512 * 1024
# One command can leave a row of any size, and what was written must be readable. Up to this size a
# row goes in one chunk, which version 0.1 reads too; a larger one in pieces.
UNDIVIDED_BYTES_MAX: Final = 64 * 1024 * 1024
# What a snapshot's file takes (raft/snapshot_file.py): there are chunks from before there were
# pieces.
CHUNK_BYTES_MAX: Final = 1 << 30
# What was divided: the rows are one msgpack string, which has 4 GiB at most, and a few names.
WHOLE_BYTES_MAX: Final = (1 << 32) + (1 << 20)

KIND_RESULT: Final = 0
KIND_REFUSAL: Final = 1
KIND_ABANDONED: Final = 2
# From core format 2 on.
KIND_DROPPED: Final = 3

#: The core format from which on the texts of refusals are no part of the state.
NO_TEXTS_SINCE: Final = 2


class _Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    pass


class Header(_Chunk, frozen=True, tag=0):
    """What is true of the whole state. `plugins` are the active ones with their versions."""

    format: int
    index: int
    now: int
    serial: int
    plugins: tuple[tuple[str, int], ...]


class Rows(_Chunk, frozen=True, tag=1):
    plugin: str
    table: str
    rows: bytes


class Opened(_Chunk, frozen=True, tag=2):
    id: int
    node: str
    nonce: int
    floor: int
    used_ms: int
    used_serial: int


class Outcomes(_Chunk, frozen=True, tag=3):
    outcomes: bytes


class End(_Chunk, frozen=True, tag=4):
    rows: int
    sessions: int
    outcomes: int
    digest: bytes


class Piece(_Chunk, frozen=True, tag=5):
    """The next bytes of an encoded chunk; `last` completes it."""

    last: bool
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decode_chunk = msgspec.msgpack.Decoder(Header | Rows | Opened | Outcomes | End | Piece).decode
_decode_outcomes = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]]).decode


def encode_outcome(outcome: Any, refusals: Refusals, *, texts: bool = True) -> tuple[int, bytes]:
    """A kept outcome as (kind, bytes). `texts` of refusals are state at core format 1 only."""
    if outcome is ABANDONED:
        return KIND_ABANDONED, b""
    if outcome is DROPPED:
        return KIND_DROPPED, b""
    if isinstance(outcome, Refused):
        return KIND_REFUSAL, refusals.encode(outcome, texts=texts)
    if isinstance(outcome, RestoredResult):
        return KIND_RESULT, outcome.data
    return KIND_RESULT, _encoder.encode(outcome)


def outcome_size(outcome: Any, refusals: Refusals) -> int:
    """What an outcome counts in its session: its bytes without texts, at every core format.

    Texts are gone on a node that was restored after the raise, and all must count alike.
    """
    return len(encode_outcome(outcome, refusals, texts=False)[1])


def decode_outcome(kind: int, data: bytes, refusals: Refusals) -> Any:
    """The inverse; a result stays encoded. Raises LookupError for an unknown refusal or kind."""
    if kind == KIND_RESULT:
        return RestoredResult(data)
    if kind == KIND_REFUSAL:
        return refusals.decode(data)
    if kind == KIND_ABANDONED:
        return ABANDONED
    if kind == KIND_DROPPED:
        return DROPPED
    raise LookupError(f"unknown kind of outcome {kind}")


def _array() -> bytearray:
    """Begin a msgpack array, to which encoded items are added one by one."""
    return bytearray(b"\xdd\0\0\0\0")


def _counted(array: bytearray, count: int) -> bytes:
    """The array, once so many items are in it."""
    array[1:HEAD_BYTES] = count.to_bytes(4, "big")
    # A copy for the type's sake would be one of the whole state.
    return cast("bytes", array)


#: What `_array` begins with.
HEAD_BYTES: Final = 5
# What a piece adds to its data: an array of three, two of them small, and a length.
PIECE_HEAD_BYTES_MAX: Final = 16


class _Digest:
    """Hashes what the chunks contain, wherever they were cut."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._table = ("", "")
        self.rows = 0
        self.sessions = 0
        self.outcomes = 0

    def add(self, chunk: Header | Rows | Opened | Outcomes, count: int) -> None:
        update = self._hash.update
        if isinstance(chunk, Rows):
            if count and self._table != (chunk.plugin, chunk.table):
                self._table = (chunk.plugin, chunk.table)
                update(_encoder.encode(self._table))
            update(memoryview(chunk.rows)[HEAD_BYTES:])
            self.rows += count
        elif isinstance(chunk, Outcomes):
            update(memoryview(chunk.outcomes)[HEAD_BYTES:])
            self.outcomes += count
        else:
            update(_encoder.encode(chunk))
            self.sessions += count

    def end(self) -> End:
        return End(self.rows, self.sessions, self.outcomes, self._hash.digest())


class Frozen:
    """The state at one index, to be read while further commands are applied.

    Read it to the end or call `close`; until then, writes save what they overwrite.
    """

    def __init__(
        self,
        header: Header,
        tables: Sequence[tuple[str, str, FrozenTable]],
        sessions: FrozenSessions,
        refusals: Refusals,
    ) -> None:
        self.header = header
        self._tables = tables
        self._sessions = sessions
        self._refusals = refusals
        self._texts = dict(header.plugins).get("core", 1) < NO_TEXTS_SINCE
        self._digest = _Digest()
        self._hex = ""

    @property
    def index(self) -> int:
        """The index of the last entry that is contained."""
        return self.header.index

    @property
    def digest(self) -> str:
        """The digest, once all slices have been read; empty before."""
        return self._hex

    def slices(
        self, rows_max: int = 2000, bytes_max: int = UNDIVIDED_BYTES_MAX
    ) -> Generator[bytes, None, None]:
        """The chunks, once, each of at most `bytes_max` bytes.

        Each step reads at most `rows_max` rows and is short.
        """
        assert rows_max > 0
        assert bytes_max > PIECE_HEAD_BYTES_MAX
        try:
            for chunk, count in self.chunks(rows_max):
                self._digest.add(chunk, count)
                encoded = _encoder.encode(chunk)
                if len(encoded) <= bytes_max:
                    yield encoded
                else:
                    yield from _pieces(encoded, min(CHUNK_BYTES, bytes_max - PIECE_HEAD_BYTES_MAX))
            end = self._digest.end()
            self._hex = end.digest.hex()
            yield _encoder.encode(end)
        finally:
            self.close()

    def chunks(
        self, rows_max: int
    ) -> Generator[tuple[Header | Rows | Opened | Outcomes, int], None, None]:
        """What the stream consists of, and how much the digest counts of each. Close it after."""
        yield self.header, 0
        for plugin, name, table in self._tables:
            while (packed := self._pack_rows(table, rows_max)) is not None:
                count, rows = packed
                yield Rows(plugin, name, rows), count
        while (session := self._sessions.next()) is not None:
            yield _opened(session), 1
            todo = iter(sorted(session.done))
            while (packed := self._pack_outcomes(todo, session.done, rows_max)) is not None:
                count, outcomes = packed
                yield Outcomes(outcomes), count

    def close(self) -> None:
        """Let go of the state. Idempotent."""
        for _, _, table in self._tables:
            table.close()
        self._sessions.close()

    def _pack_rows(self, table: FrozenTable, rows_max: int) -> tuple[int, bytes] | None:
        """How many rows, and these. None: the table has no more."""
        rows = table.next_rows(rows_max)
        if rows is None:
            return None
        body, count, encode_into = _array(), 0, _encoder.encode_into
        for row in rows:
            encode_into(row, body, -1)
            count += 1
            if len(body) >= CHUNK_BYTES:
                break
        if count:
            table.passed(rows[count - 1][0])
        return count, _counted(body, count)

    def _pack_outcomes(
        self, todo: Iterator[int], done: dict[int, Any], rows_max: int
    ) -> tuple[int, bytes] | None:
        body, count = _array(), 0
        for seq in todo:
            outcome = encode_outcome(done[seq], self._refusals, texts=self._texts)
            _encoder.encode_into((seq, *outcome), body, -1)
            count += 1
            if count == rows_max or len(body) >= CHUNK_BYTES:
                break
        return (count, _counted(body, count)) if count else None


def _pieces(encoded: bytes, size: int) -> Generator[bytes, None, None]:
    """An encoded chunk as pieces of so many bytes."""
    whole = memoryview(encoded)
    for start in range(0, len(whole), size):
        last = start + size >= len(whole)
        yield _encoder.encode(Piece(last, cast("bytes", whole[start : start + size])))


def _opened(session: Session) -> Opened:
    return Opened(
        session.id,
        session.node,
        session.nonce,
        session.floor,
        session.used_ms,
        session.used_serial,
    )


class Image(msgspec.Struct, frozen=True):
    """A state that was read and verified, not yet in use. `counts`: what its counted rows count."""

    header: Header
    tables: Mapping[tuple[str, str], TableRows]
    sessions: Sequence[Session]
    counts: Mapping[tuple[str, str], int]


class Reader:
    """Takes the chunks of one stream, in order, and gives the `Image`.

    `decoders` maps (plugin, table) to a decoder of `list[tuple[key, value]]`; `versions` says which
    plugins this node has, in which version. Raises MissingPlugin when the state needs another,
    DamagedSnapshot when the stream is not what a `Frozen` wrote. `runs` are the tables that are
    logs (`TableSpec.run`), `sizes` tells what the rows of others count (quota.py).
    """

    def __init__(
        self,
        decoders: Mapping[tuple[str, str], Callable[[bytes], list[tuple[Any, Any]]]],
        versions: Mapping[str, int],
        refusals: Refusals,
        runs: Collection[tuple[str, str]] = (),
        sizes: Mapping[tuple[str, str], Callable[[Any, Any], int]] | None = None,
    ) -> None:
        self._decoders = decoders
        self._sizes = {} if sizes is None else sizes
        self._counts: dict[tuple[str, str], int] = {}
        self._runs = runs
        self._versions = versions
        self._refusals = refusals
        self._digest = _Digest()
        self._offset = 0
        self._header: Header | None = None
        self._rows: dict[tuple[str, str], TableRows] = {}
        self._sessions: list[Session] = []
        self._pieces = bytearray()
        self._ended = False

    def add(self, chunk: bytes) -> None:
        """Take the next chunk."""
        if len(chunk) > CHUNK_BYTES_MAX:
            raise self._damaged(f"a chunk of {len(chunk)} bytes exceeds {CHUNK_BYTES_MAX}")
        try:
            self._take(self._whole(_decode_chunk(chunk)))
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None
        self._offset += len(chunk)

    def finish(self) -> Image:
        """The state, if the stream was complete."""
        if self._header is None or not self._ended:
            raise self._damaged("the stream ends before its end marker")
        return Image(self._header, self._rows, self._sessions, self._counts)

    def discard(self, waste: Waste) -> None:
        """The state that was read will not be used."""
        for rows in self._rows.values():
            waste.add(rows)
        waste.add(self._sessions)
        self._rows, self._sessions, self._pieces = {}, [], bytearray()

    def _whole(
        self, chunk: Header | Rows | Opened | Outcomes | End | Piece
    ) -> Header | Rows | Opened | Outcomes | End | None:
        """The chunk, or the one that this piece completes; None while pieces are missing."""
        if not isinstance(chunk, Piece):
            if self._pieces:
                raise ValueError("a chunk follows a piece that is not the last one")
            return chunk
        if len(self._pieces) + len(chunk.data) > WHOLE_BYTES_MAX:
            raise ValueError(f"pieces exceed {WHOLE_BYTES_MAX} bytes together")
        self._pieces += chunk.data
        if not chunk.last:
            return None
        pieces, self._pieces = self._pieces, bytearray()
        whole: Header | Rows | Opened | Outcomes | End | Piece = _decode_chunk(pieces)
        if isinstance(whole, Piece):
            raise ValueError("pieces of a piece")
        return whole

    def _take(self, chunk: Header | Rows | Opened | Outcomes | End | None) -> None:
        if chunk is None:
            return
        if self._ended:
            raise ValueError("a chunk follows the end marker")
        if (self._header is None) != isinstance(chunk, Header):
            raise ValueError("the header must be the first chunk, and only that")
        count = 0
        if isinstance(chunk, Header):
            self._take_header(chunk)
        elif isinstance(chunk, Rows):
            key = (chunk.plugin, chunk.table)
            count = self._take_rows(key, self._decoders[key](chunk.rows))
        elif isinstance(chunk, Opened):
            session = Session(chunk.id, chunk.node, chunk.nonce, chunk.used_ms)
            session.floor, session.used_serial = chunk.floor, chunk.used_serial
            self._sessions.append(session)
            count = 1
        elif isinstance(chunk, Outcomes):
            outcomes = _decode_outcomes(chunk.outcomes)
            session = self._sessions[-1]
            for seq, kind, data in outcomes:
                session.done[seq] = decode_outcome(kind, data, self._refusals)
                if not session.node and kind in (KIND_RESULT, KIND_REFUSAL):
                    session.weigh(seq, outcome_size(session.done[seq], self._refusals))
            count = len(outcomes)
        else:
            self._take_end(chunk)
            return
        self._digest.add(chunk, count)

    def _take_rows(self, key: tuple[str, str], rows: list[tuple[Any, Any]]) -> int:
        """Rows come in key order, which is the quick way to add to sorted keys: behind the last."""
        table = self._rows.get(key)
        if table is None:
            table = self._rows[key] = RunRows() if key in self._runs else SmallRows()
        table.extend(rows)
        size = self._sizes.get(key)
        if size is not None:
            counted = sum(size(row, value) for row, value in rows)
            self._counts[key] = self._counts.get(key, 0) + counted
        if isinstance(table, SmallRows):
            self._rows[key] = grown(table)
        return len(rows)

    def _take_header(self, header: Header) -> None:
        if header.format != FORMAT:
            raise ValueError(f"format {header.format} is not {FORMAT}, the one this version reads")
        for name, version in header.plugins:
            require_plugin(name, version, self._versions)
        self._header = header

    def _take_end(self, end: End) -> None:
        if end != self._digest.end():
            raise ValueError("counts or digest differ from those in the end marker")
        self._ended = True

    def _damaged(self, reason: str) -> DamagedSnapshot:
        return DamagedSnapshot("the snapshot's state", self._offset, reason)


def require_plugin(name: str, version: int, versions: Mapping[str, int]) -> None:
    """Raise MissingPlugin unless this node has the plugin in that version or a newer one."""
    if name not in versions:
        raise MissingPlugin(
            f"the cluster runs the plugin {name!r}, which this node lacks: install it and name it "
            f"in the node's plugins, then start the node again"
        )
    if versions[name] < version and name == "core":
        raise MissingPlugin(
            f"the cluster runs core format {version}, this node knows {versions[name]} at most: "
            f"upgrade raftkv on it, then start the node again"
        )
    if versions[name] < version:
        raise MissingPlugin(
            f"the cluster runs version {version} of the plugin {name!r}, this node has "
            f"{versions[name]}: upgrade it, then start the node again"
        )
