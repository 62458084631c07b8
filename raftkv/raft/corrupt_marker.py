"""The file `corrupt` in a data directory: the state that came from it is not the cluster's.

A core writes it, durably, when a majority of the voters holds another state than it does at the
same index (raftkv/corruption.py), and stops. Its snapshot may hold what was damaged, and its log
was applied to it; so nothing starts from the directory while the file is there.
"""

from __future__ import annotations

import os.path

from raftkv.errors import CorruptState
from raftkv.runtime import Files

__all__ = ["FILE", "mark", "refuse_marked"]

#: The name of the file. It holds text for people.
FILE = "corrupt"
_BYTES_MAX = 64 * 1024


def mark(files: Files, directory: str, text: str) -> None:
    """Write the file, durably. Blocking. Raises OSError."""
    path = os.path.join(directory, FILE)
    file = files.open(path + ".new", "w")
    try:
        file.write(text.encode()[:_BYTES_MAX])
        file.datasync()
    finally:
        file.close()
    files.rename(path + ".new", path)
    files.sync_dir(directory)


def refuse_marked(files: Files, directory: str) -> None:
    """Raise CorruptState if the directory is marked. Blocking."""
    path = os.path.join(directory, FILE)
    if not files.exists(path):
        return
    file = files.open(path, "r")
    try:
        text = file.pread(0, _BYTES_MAX).decode(errors="replace")
    finally:
        file.close()
    raise CorruptState(
        f"{path} marks this data directory as corrupt: {text.strip()}. Keep a copy of it for "
        f"inspection, then replace the node: raftkv member remove, start it with an empty "
        f"directory, raftkv member add. Only if no other node has the data: remove the file"
    )
