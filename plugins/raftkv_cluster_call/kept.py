"""A small file that a node keeps: wholly the old content or wholly the new one, whatever happens.

Rules of this file
1. A write goes into a temporary file, is brought to the disk, and takes the old one's place by a
   rename that is brought to the disk, too. When `write` has returned, a power cut takes nothing.
2. A file is believed only if its checksum fits. Anything else reads as None, like a file that is
   not there: who keeps something here must be able to go without it.
3. Reading and writing wait for the disk. Call them by `host.runtime.offload`.

An `OSError` in the middle of a write leaves the old content or the new one, and nobody knows which
until it is read again: write once more, or count as having neither.
"""

from __future__ import annotations

import os.path
import zlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from raftkv.plugin import Host

__all__ = ["KeptFile"]

FORMAT = 1
HEADER_BYTES_MAX = 256


class _Header(msgspec.Struct, frozen=True):
    """The first line, as JSON; behind it `bytes` bytes of content."""

    format: int
    bytes: int
    crc: int


class KeptFile:
    """One file of a plugin's own directory, replaced as a whole."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name

    @property
    def path(self) -> str:
        """Where the file is; the look makes the directory. Raises OSError."""
        return os.path.join(self._host.directory, self._name)

    def read(self) -> bytes | None:
        """The content; None if there is no file, or none that can be believed. Raises OSError."""
        files, path = self._host.runtime.files, self.path
        if not files.exists(path):
            return None
        file = files.open(path, "r")
        try:
            whole = file.pread(0, file.size())
        finally:
            file.close()
        first, newline, content = whole[:HEADER_BYTES_MAX].partition(b"\n")
        if not newline:
            return None
        try:
            header = msgspec.json.decode(first, type=_Header)
        except msgspec.DecodeError:
            return None
        content = whole[len(first) + 1 :]
        if header.format != FORMAT or len(content) != header.bytes:
            return None
        return content if zlib.crc32(content) == header.crc else None

    def write(self, content: bytes) -> None:
        """Replace the content, durably. Raises OSError: then it is the old one or the new one."""
        files, path = self._host.runtime.files, self.path
        header = _Header(FORMAT, len(content), zlib.crc32(content))
        file = files.open(path + ".new", "w")
        try:
            file.write(msgspec.json.encode(header) + b"\n" + content)
            file.datasync()
        finally:
            file.close()
        files.rename(path + ".new", path)
        files.sync_dir(os.path.dirname(path))
