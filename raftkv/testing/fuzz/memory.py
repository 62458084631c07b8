"""Files in a dict: nothing but contents, for millions of recoveries.

The simulated disk (raftkv/testing/disk.py) knows power failures; here a directory is damaged by
hand, recovered once and thrown away.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Literal

from raftkv.runtime import Lock, Space

__all__ = ["MemoryFiles"]


class _MemoryFile:
    __slots__ = ("content",)

    def __init__(self, content: bytearray) -> None:
        self.content = content

    def write(self, data: bytes) -> None:
        self.content += data

    def pread(self, offset: int, count: int) -> bytes:
        return bytes(self.content[offset : offset + count])

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def datasync(self) -> None:
        """Nothing here outlives the process."""

    def size(self) -> int:
        return len(self.content)

    def close(self) -> None:
        """Nothing is open."""


class _MemoryLock:
    def moved(self) -> bool:
        return False

    def release(self) -> None:
        """One process, one node."""


class MemoryFiles:
    """`raftkv.runtime.Files` over the contents given; directories come into being by use."""

    def __init__(self, contents: Mapping[str, bytes] | None = None) -> None:
        self._contents = {path: bytearray(data) for path, data in (contents or {}).items()}

    def contents(self, directory: str) -> dict[str, bytes]:
        """Path to content of every file in the directory."""
        prefix = directory + "/"
        return {p: bytes(c) for p, c in sorted(self._contents.items()) if p.startswith(prefix)}

    def makedirs(self, path: str) -> None:
        """Directories exist."""

    def listdir(self, path: str) -> list[str]:
        prefix = path + "/"
        names = {p[len(prefix) :].partition("/")[0] for p in self._contents if p.startswith(prefix)}
        return sorted(names)

    def exists(self, path: str) -> bool:
        return path in self._contents

    def open(self, path: str, mode: Literal["r", "a", "w"]) -> _MemoryFile:
        content = self._contents.get(path)
        if content is None:
            if mode == "r":
                raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
            content = self._contents[path] = bytearray()
        elif mode == "w":
            content.clear()
        return _MemoryFile(content)

    def rename(self, source: str, target: str) -> None:
        self._contents[target] = self._contents.pop(source)

    def remove(self, path: str) -> None:
        del self._contents[path]

    def sync_dir(self, path: str) -> None:
        """Nothing here outlives the process."""

    def space(self, path: str) -> Space:
        return Space(1 << 40, 1 << 40)

    def lock(self, path: str) -> Lock:
        return _MemoryLock()
