"""What a coordinator must not forget: its decisions to commit, on disk before anybody is told.

Presumed abort: a global transaction without a decision here was not committed, so nothing is
written before the decision, and nothing ever for one that is rolled back. `Done` says that all
branches have heard; a journal with many of them is written anew with what is still open.

A file is a row of records: length, CRC-32 (both four bytes, little-endian), payload. Reading ends
at the first record that is cut off or does not match its sum: such a tail was never answered for,
since `append` returns after the fsync; it is cut off before anything is added. If whole records
come behind it, it is no tail, and they may be decisions that were acted upon: then nothing is read
and nothing changed (`JournalFailed`), and people must look. Damage to the very last records cannot
be told from a torn tail: the journal belongs on a disk that keeps its word, as the data of the
clusters does.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from raftkv.errors import NodeFault

__all__ = [
    "Decision",
    "Done",
    "FileJournal",
    "Journal",
    "JournalFailed",
    "MemoryJournal",
    "Record",
    "World",
]

_HEAD: Final = 8
#: No record is longer; a length beyond it is no length.
_RECORD_BYTES_MAX: Final = 1 << 20


class World(Protocol):
    """What a coordinator needs of a runtime: a node's (`host.runtime`, `node.runtime`) will do."""

    @property
    def files(self) -> Any:
        """The file system."""

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run it in a worker thread, in the order of the calls."""

    def monotonic(self) -> float: ...

    def token(self, count: int) -> bytes: ...

    async def sleep(self, delay_s: float) -> None: ...


class Decision(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The global transaction is committed, in these resources, by name."""

    gtrid: bytes
    resources: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """All of them have heard."""

    gtrid: bytes


Record = Decision | Done
_DECODER: Final = msgspec.msgpack.Decoder(Record)


class JournalFailed(NodeFault):
    """A write failed, and whether it is on the disk is not known: start the coordinator anew.

    Its `recover` reads what is there, and finishes accordingly.
    """

    code = "txqueue_journal_failed"


class Journal(Protocol):
    """Where a coordinator keeps its decisions. One coordinator uses it at a time."""

    async def read(self) -> list[Record]:
        """All records, oldest first."""

    async def append(self, record: Record, *, sync: bool = True) -> None:
        """Add one. With `sync` it is durable on return. Raises JournalFailed."""

    async def compact(self) -> None:
        """Drop what is done, without losing what is added meanwhile. Raises JournalFailed."""


class MemoryJournal:
    """A journal that lives as long as its object: for tests, and where crashes do not matter."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def read(self) -> list[Record]:
        return list(self.records)

    async def append(self, record: Record, *, sync: bool = True) -> None:
        self.records.append(record)

    async def compact(self) -> None:
        self.records = _open(self.records)


class FileJournal:
    """A journal in the file `name` of a directory, which is made; `<name>.lock` guards it.

    The disk is touched in the runtime's worker thread. `close` it to release the lock.
    """

    def __init__(self, runtime: World, directory: str, name: str = "coordinator") -> None:
        self._runtime = runtime
        self._files = runtime.files
        self._directory = directory
        self._path = f"{directory}/{name}"
        self._file: Any = None
        self._failed = False
        self._files.makedirs(directory)
        #: Raises BlockingIOError: another coordinator uses it.
        self._lock = self._files.lock(f"{self._path}.lock")

    async def read(self) -> list[Record]:
        return await self._run(self._read)

    async def append(self, record: Record, *, sync: bool = True) -> None:
        await self._run(self._append, record, sync)

    async def compact(self) -> None:
        await self._run(self._compact)

    def close(self) -> None:
        """Let another one use it."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    async def _run(self, work: Callable[..., list[Record]], *args: Any) -> list[Record]:
        if self._failed:
            raise JournalFailed("the coordinator's journal failed before: start it anew")
        try:
            done: list[Record] = await self._runtime.offload(work, *args)
            return done
        except OSError as error:
            self._failed = True
            raise JournalFailed(f"the coordinator's journal cannot be written: {error}") from error

    # --- in the worker thread ---

    def _opened(self) -> Any:
        if self._file is None:
            file = self._files.open(self._path, "a")
            try:
                self._files.sync_dir(self._directory)
                content = _content(file)
                end = _valid(content)[1]
                if _has_records(content, end + 1):
                    raise JournalFailed(
                        f"the coordinator's journal {self._path} is damaged at byte {end}, with "
                        f"records behind it: restore it, or cut it off there and look at every "
                        f"prepared branch of this coordinator by hand"
                    )
                file.truncate(end)
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file

    def _read(self) -> list[Record]:
        return _valid(_content(self._opened()))[0]

    def _append(self, record: Record, sync: bool) -> list[Record]:
        file = self._opened()
        file.write(_framed(record))
        if sync:
            file.datasync()
        return []

    def _compact(self) -> list[Record]:
        records = _open(self._read())
        other = f"{self._path}.new"
        file = self._files.open(other, "w")
        try:
            file.write(b"".join(_framed(record) for record in records))
            file.datasync()
        finally:
            file.close()
        self._files.rename(other, self._path)
        self._files.sync_dir(self._directory)
        if self._file is not None:
            self._file.close()
            self._file = None
        return []


def _open(records: list[Record]) -> list[Record]:
    """Those of transactions of which not all branches have heard."""
    done = {record.gtrid for record in records if isinstance(record, Done)}
    return [record for record in records if record.gtrid not in done]


def _framed(record: Record) -> bytes:
    payload = msgspec.msgpack.encode(record)
    head = len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little")
    return head + payload


def _content(file: Any) -> bytes:
    content: bytes = file.pread(0, file.size())
    return content


def _has_records(content: bytes, start: int) -> bool:
    """Whether a whole record begins anywhere from `start` on."""
    return any(_record(content, at) for at in range(start, len(content) - _HEAD))


def _record(content: bytes, at: int) -> tuple[Record, int] | None:
    """The record that begins there, and where it ends; None: there is no whole one."""
    size = int.from_bytes(content[at : at + 4], "little")
    start = at + _HEAD
    if not 0 < size <= min(_RECORD_BYTES_MAX, len(content) - start):
        return None
    payload = content[start : start + size]
    if zlib.crc32(payload) != int.from_bytes(content[at + 4 : start], "little"):
        return None
    try:
        return _DECODER.decode(payload), start + size
    except msgspec.MsgspecError:
        return None


def _valid(content: bytes) -> tuple[list[Record], int]:
    """The records, and how many bytes they take from the start."""
    records: list[Record] = []
    at = 0
    while (found := _record(content, at)) is not None:
        records.append(found[0])
        at = found[1]
    return records, at
