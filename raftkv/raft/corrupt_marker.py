"""The file `corrupt` in a data directory: the state that came from it is not the cluster's.

A core writes it, durably, when a majority of the voters holds another state than it does at the
same index (raftkv/corruption.py), and stops. Its snapshot may hold what was damaged, and its log
was applied to it; so nothing starts from the directory while the file is there. A second line tells
that the cluster has removed the core since (raftkv/rebuild.py).

Lines of the form `core NAME ADDRESS` tell where the other cores are: nothing else in the directory
may be read, and the configuration file need not name one that is still there. The file `rejoin`
takes these lines over. Files without them are read as well.

What is read is acted on (a directory is emptied), so the directory is synced first: a process that
died may have given a file its name and not synced that.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterable, Sequence
from typing import Final

from raftkv.errors import CorruptState
from raftkv.runtime import Files

__all__ = [
    "FILE",
    "REJOIN",
    "empty_if_removed",
    "is_emptied",
    "known_cores",
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
_CORE: Final = "core"
_BYTES_MAX: Final = 64 * 1024
# Parts of it: the reason, and the addresses, several for each of more cores than a cluster has.
_TEXT_BYTES_MAX: Final = 24 * 1024
_CORES_BYTES_MAX: Final = 32 * 1024
# What a node writes into its directory, besides its lock and these notes. An operator may keep the
# configuration file there, too.
_FILES: Final = ("identity.json", "identity.json.new")
_DIRECTORIES: Final = ("wal", "snapshots", "plugins")


def mark(
    files: Files,
    directory: str,
    text: str,
    *,
    removed: bool = False,
    cores: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the file, durably. Blocking. Raises OSError.

    `cores`: (name, address) of the other cores, the likeliest address of each one first.
    """
    path = os.path.join(directory, FILE)
    line = " ".join(text.split()).encode()[:_TEXT_BYTES_MAX]
    file = files.open(path + ".new", "w")
    try:
        file.write(line + b"\n" + (_REMOVED.encode() + b"\n" if removed else b""))
        file.write(_core_lines(cores))
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
    return _lines_of(files, directory, FILE) or []


def _lines_of(files: Files, directory: str, name: str) -> list[str] | None:
    path = os.path.join(directory, name)
    if not files.exists(path):
        return None
    files.sync_dir(directory)
    file = files.open(path, "r")
    try:
        return file.pread(0, _BYTES_MAX).decode(errors="replace").splitlines() or [""]
    finally:
        file.close()


def known_cores(files: Files, directory: str) -> list[tuple[str, str]]:
    """(name, address) of the other cores, as the marker has them or `rejoin`. Blocking."""
    lines = _lines(files, directory)[1:] or _lines_of(files, directory, REJOIN) or []
    found = [line.split() for line in lines]
    return [(parts[1], parts[2]) for parts in found if len(parts) == 3 and parts[0] == _CORE]


def _core_lines(cores: Iterable[tuple[str, str]]) -> bytes:
    lines, room = [], _CORES_BYTES_MAX
    for name, address in cores:
        line = f"{_CORE} {name} {address}\n".encode()
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    return b"".join(lines)


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
    try:
        file.write(_core_lines(known_cores(files, directory)))
        file.datasync()
    finally:
        file.close()
    files.sync_dir(directory)
    _unmark(files, directory)


def is_emptied(files: Files, directory: str) -> bool:
    """Whether the directory was emptied and the core in it does not vote yet. Blocking."""
    return _lines_of(files, directory, REJOIN) is not None


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
