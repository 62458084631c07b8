"""The fault of a running node whose data directory fails: its cause, and the remedy for that cause.

The remedy follows from the system's error number. For the errors of a start see start_errors.py.
"""

from __future__ import annotations

import errno
from typing import Final

from .errors import DiskFailed

__all__ = ["directory_gone", "disk_failed"]

_AGAIN: Final = "then start the node again"

_GONE: Final = (
    "Move it back if it was moved; else start the node with an empty directory as a new node: a "
    "core's old member is removed first (raftkv member remove), then the new one is added"
)

_REMEDIES: Final = {
    errno.ENOSPC: f"Free space on its volume, {_AGAIN}",
    errno.EDQUOT: f"Free space within the quota, or raise the quota, {_AGAIN}",
    errno.EFBIG: f"Raise the limit on the size of files (ulimit -f, or LimitFSIZE= in a unit of "
    f"systemd), {_AGAIN}",
    errno.EMFILE: f"Raise the limit on file descriptors (ulimit -n, or LimitNOFILE= in a unit of "
    f"systemd), {_AGAIN}",
    errno.ENFILE: f"Raise the limit on the system's open files (sysctl fs.file-max), {_AGAIN}",
    errno.ENOMEM: f"Free memory, or raise the limit on it, {_AGAIN}",
    errno.EROFS: f"Its file system is mounted read-only, which often follows an error of the disk: "
    f"check the disk, mount it for writing, {_AGAIN}",
    errno.EACCES: f"Give it to the user that runs the node, {_AGAIN}",
    errno.EPERM: f"Give it to the user that runs the node, {_AGAIN}",
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ESTALE),
        f"The data directory, or a file in it, was removed or moved while the node ran. {_GONE}",
    ),
}
_OTHER: Final = f"Check the disk and replace it if it is bad, {_AGAIN}"


def disk_failed(text: str, error: Exception, more: str = "") -> DiskFailed:
    """The fault for an error of the data directory, which is an OSError as a rule.

    `text` states what failed; `more` is a sentence about what follows from it.
    """
    remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, _OTHER)
    return DiskFailed(" ".join(filter(None, (f"{text}: {error}.", more, remedy))))


def directory_gone(path: str) -> DiskFailed:
    """The fault for a data directory that is no longer at its path, or is another one now."""
    return DiskFailed(
        f"the data directory {path} was removed or replaced while the node ran. {_GONE}"
    )
