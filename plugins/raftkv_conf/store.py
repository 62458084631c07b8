"""The cluster-wide values on one node, in a file, with the call that they are as of.

Rules of this file
1. What has been written is there after a crash, or the old content is, never anything between:
   `KeptFile` replaces a file as a whole, and believes none whose checksum is wrong.
2. A change and the id of the call that made it stand in one file. An id that has passed without a
   change is written alone, into a second small file that names the first one's checksum: a values
   file that was lost, or brought back from a copy, is then not taken for what it was.
3. A change that this node made first keeps, in the same file, what was there before (`Undo`), for
   the cluster may yet abort it: when the node dies before the commit, or its time is up.
4. Where nothing can be believed the store is empty and as of 0. The calls then see that this node's
   data is behind its cursor, and have it copied.

In memory stands what is in the files. After a write that failed nobody knows which content the file
has, so the next write is a whole one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec

from raftkv.plugin import Host
from raftkv_cluster_call import KeptFile

__all__ = ["Store", "Undo"]


class Undo(msgspec.Struct, frozen=True):
    """What the path held before call `id`: `before` has one item, or none if nothing was set."""

    id: int
    path: str
    before: dict[str, msgspec.Raw]

    @classmethod
    def of(cls, id: int, path: str, values: Mapping[str, bytes]) -> Undo:
        """How to undo a change of the path in these values."""
        return cls(id, path, {path: msgspec.Raw(values[path])} if path in values else {})

    def undone(self, values: Mapping[str, bytes]) -> dict[str, bytes]:
        """The values without the change."""
        found = {path: value for path, value in values.items() if path != self.path}
        return {**found, **{path: bytes(raw) for path, raw in self.before.items()}}


class _Content(msgspec.Struct, frozen=True):
    as_of: int
    values: dict[str, msgspec.Raw]
    undo: Undo | None = None


class _Passed(msgspec.Struct, frozen=True):
    as_of: int
    crc: int


class Store:
    """Path -> JSON, on this node's disk. Everything may raise OSError; nothing changed then."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._file = KeptFile(host, "values")
        self._passed = KeptFile(host, "as_of")
        self._values: dict[str, bytes] = {}
        self._crc: int | None = None
        self._as_of = 0
        #: Of the last change, if this node made it first and its fate was open.
        self.undo: Undo | None = None
        self.loaded = False

    @property
    def values(self) -> Mapping[str, bytes]:
        """Path -> JSON. Loaded before."""
        assert self.loaded
        return self._values

    @property
    def as_of(self) -> int:
        """All calls up to this id are in the values."""
        assert self.loaded
        return self._as_of

    async def load(self) -> None:
        """Read the files, the first time that it is called."""
        if not self.loaded:
            content, self._crc = await self._host.runtime.offload(self._read)
            self._values = {path: bytes(value) for path, value in content.values.items()}
            self._as_of, self.undo = content.as_of, content.undo
            self.loaded = True

    async def write(
        self, values: Mapping[str, bytes], as_of: int, undo: Undo | None = None
    ) -> None:
        """Replace all values, durably."""
        raw = {path: msgspec.Raw(values[path]) for path in sorted(values)}
        content = msgspec.json.encode(_Content(as_of, raw, undo))
        self._crc = None
        await self._host.runtime.offload(self._file.write, content)
        self._values, self._as_of, self._crc = dict(values), as_of, zlib.crc32(content)
        self.undo = undo

    async def passed(self, as_of: int) -> None:
        """The values are those of another id, too, durably."""
        if as_of == self._as_of:
            return
        if as_of < self._as_of:
            # Only where ids begin anew: what could be undone is of the history that was given up.
            await self.write(self._values, as_of)
            return
        if self._crc is None:
            await self.write(self._values, as_of, self.undo)
            return
        content = msgspec.json.encode(_Passed(as_of, self._crc))
        await self._host.runtime.offload(self._passed.write, content)
        self._as_of = as_of

    def _read(self) -> tuple[_Content, int | None]:
        whole = self._file.read()
        if whole is None:
            return _Content(0, {}), None
        content, crc = msgspec.json.decode(whole, type=_Content), zlib.crc32(whole)
        alone = self._passed.read()
        if alone is not None:
            passed = msgspec.json.decode(alone, type=_Passed)
            if passed.crc == crc and passed.as_of > content.as_of:
                content = msgspec.structs.replace(content, as_of=passed.as_of)
        return content, crc
