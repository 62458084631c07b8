"""Digests of the whole state, one for each table, computed in slices beside the state.

Two nodes that have applied the same entries hold the same rows, so they come to the same digests at
the same index; where they do not, the name of the table tells what is damaged. The sessions with
their outcomes, the log's clock and the serial have one digest together, under `SESSIONS`.

What is hashed is what a snapshot consists of (snapshot.py): rows in key order, encoded one by one,
so a digest depends on the rows alone and not on where the slices were cut. The digests are computed
from the rows themselves each time. A sum that is kept up to date with each write would be cheaper
and would not notice a row that memory has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import Final

import msgspec

from .snapshot import HEAD_BYTES, Frozen, Header, Outcomes, Rows

__all__ = ["DIGEST_BYTES", "SESSIONS", "SLICE_ROWS", "DigestWalk"]

#: What stands for the sessions, the log's clock and the serial among the tables.
SESSIONS: Final = "sessions"
#: Of one digest: two different tables do not have the same one by accident.
DIGEST_BYTES: Final = 16
#: Rows or outcomes in one slice: about half a millisecond.
SLICE_ROWS: Final = 200

_encode = msgspec.msgpack.Encoder().encode


class DigestWalk:
    """Reads a frozen state once. `tables` is complete when `slices` has ended."""

    def __init__(self, frozen: Frozen) -> None:
        self.index = frozen.index
        #: Digests by "plugin.table", and the one of `SESSIONS`.
        self.tables: dict[str, bytes] = {}
        self._frozen = frozen

    def slices(self, rows_max: int = SLICE_ROWS) -> Generator[tuple[int, int], None, None]:
        """Each step is short, and gives the rows and bytes that it has looked at."""
        sessions = hashlib.blake2b(digest_size=DIGEST_BYTES)
        table, name = hashlib.blake2b(digest_size=DIGEST_BYTES), ""
        try:
            for chunk, count in self._frozen.chunks(rows_max):
                if isinstance(chunk, Rows):
                    if name != f"{chunk.plugin}.{chunk.table}":
                        self._take(name, table.digest())
                        name = f"{chunk.plugin}.{chunk.table}"
                        table = hashlib.blake2b(digest_size=DIGEST_BYTES)
                    content = memoryview(chunk.rows)[HEAD_BYTES:]
                    table.update(content)
                elif isinstance(chunk, Outcomes):
                    content = memoryview(chunk.outcomes)[HEAD_BYTES:]
                    sessions.update(content)
                else:
                    content = memoryview(_encode(_clock(chunk)))
                    sessions.update(content)
                yield count, len(content)
            self._take(name, table.digest())
            self.tables[SESSIONS] = sessions.digest()
        finally:
            self._frozen.close()

    def close(self) -> None:
        """Let go of the state: for a walk whose `slices` may never begin. Idempotent."""
        self._frozen.close()

    def _take(self, name: str, digest: bytes) -> None:
        if name:
            self.tables[name] = digest


def _clock(chunk: object) -> object:
    """Of the header only what is state: the rest is compared by name (`Header.plugins`)."""
    if isinstance(chunk, Header):
        return (chunk.index, chunk.now, chunk.serial, chunk.plugins)
    return chunk
