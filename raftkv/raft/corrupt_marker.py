"""The file `corrupt` in a data directory: the state that came from it is not the cluster's.

A core writes it, durably, when a majority of the voters holds another state than it does at the
same index (raftkv/corruption.py), and stops. Its snapshot may hold what was damaged, and its log
was applied to it; so nothing starts from the directory while the file is there. A second line tells
that the cluster has removed the core since (raftkv/rebuild.py).
"""

from __future__ import annotations

import logging
import os.path
from typing import Final

from raftkv.errors import CorruptState
from raftkv.runtime import Files

__all__ = [
    "FILE",
    "REJOIN",
    "empty_if_removed",
    "is_emptied",
    "mark",
    "marked_as",
    "refuse_marked",
    "rejoined",
    "was_removed",
]

log = logging.getLogger("raftkv.node")

#: The name of the file. It holds text for people.
FILE: Final = "corrupt"
#: Another one, in the directory of a removed core that was emptied: until the new one votes.
REJOIN: Final = "rejoin"
_REMOVED: Final = "removed from the cluster"
_BYTES_MAX: Final = 64 * 1024
# What a node writes into its directory, besides its lock and these notes. An operator may keep the
# configuration file there, too.
_FILES: Final = ("identity.json", "identity.json.new")
_DIRECTORIES: Final = ("wal", "snapshots", "plugins")


def mark(files: Files, directory: str, text: str, *, removed: bool = False) -> None:
    """Write the file, durably. Blocking. Raises OSError."""
    path = os.path.join(directory, FILE)
    line = " ".join(text.split()).encode()[: _BYTES_MAX - 100]
    file = files.open(path + ".new", "w")
    try:
        file.write(line + b"\n" + (_REMOVED.encode() + b"\n" if removed else b""))
        file.datasync()
    finally:
        file.close()
    files.rename(path + ".new", path)
    files.sync_dir(directory)


def _unmark(files: Files, directory: str) -> None:
    """Remove the file, durably. Blocking."""
    files.remove(os.path.join(directory, FILE))
    files.sync_dir(directory)


def was_removed(files: Files, directory: str) -> bool:
    """Whether the directory is that of a corrupt core which the cluster has removed. Blocking."""
    return _REMOVED in _lines(files, directory)[1:]


def marked_as(files: Files, directory: str) -> str | None:
    """What the marker has as the reason; None if there is no marker. Blocking."""
    lines = _lines(files, directory)
    return lines[0] if lines else None


def refuse_marked(files: Files, directory: str) -> None:
    """Raise CorruptState if the directory is marked. Blocking."""
    lines = _lines(files, directory)
    if lines:
        raise CorruptState(
            f"{os.path.join(directory, FILE)} marks this data directory as corrupt: {lines[0]}. "
            f"Keep a copy of it for inspection, then replace the node: raftkv member remove, start "
            f"it with an empty directory, raftkv member add. Only if no other node has the data: "
            f"remove the file"
        )


def _lines(files: Files, directory: str) -> list[str]:
    """Of the file; none if there is no file, an empty first one if it holds nothing."""
    path = os.path.join(directory, FILE)
    if not files.exists(path):
        return []
    file = files.open(path, "r")
    try:
        return file.pread(0, _BYTES_MAX).decode(errors="replace").splitlines() or [""]
    finally:
        file.close()


def empty_if_removed(files: Files, directory: str) -> None:
    """Empty the directory of a corrupt core that the cluster has removed, durably. Blocking."""
    if not was_removed(files, directory):
        return
    log.warning("%s is the directory of a corrupt core that was removed: it is emptied", directory)
    for name in _DIRECTORIES:
        _empty(files, os.path.join(directory, name))
    for name in _FILES:
        if files.exists(os.path.join(directory, name)):
            files.remove(os.path.join(directory, name))
    file = files.open(os.path.join(directory, REJOIN), "w")
    file.datasync()
    file.close()
    files.sync_dir(directory)
    _unmark(files, directory)


def is_emptied(files: Files, directory: str) -> bool:
    """Whether the directory was emptied and the core in it does not vote yet. Blocking."""
    return files.exists(os.path.join(directory, REJOIN))


def rejoined(files: Files, directory: str) -> None:
    """The new core votes, durably. Blocking. Raises OSError."""
    files.remove(os.path.join(directory, REJOIN))
    files.sync_dir(directory)


def _empty(files: Files, directory: str) -> None:
    if not files.exists(directory):
        return
    for name in files.listdir(directory):
        path = os.path.join(directory, name)
        try:
            files.listdir(path)
        except OSError:  # a file
            files.remove(path)
        else:
            _empty(files, path)
    files.sync_dir(directory)
