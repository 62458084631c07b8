"""The fault of a failing data directory names the remedy that fits its cause."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raftkv.disk_errors import disk_failed
from raftkv.errors import DiskFailed
from raftkv.runtime import OsFiles

DIRECTORY = "/srv/raftkv/a"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOENT, "was removed or moved while the node ran. Move it back"),
        (errno.ENOTDIR, "was removed or moved while the node ran"),
        (errno.ESTALE, "was removed or moved while the node ran"),
        (errno.ENOSPC, "Free space on its volume"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOMEM, "Free memory"),
        (errno.EROFS, "mount it for writing"),
        (errno.EACCES, "Give it to the user that runs the node"),
        (errno.EIO, "Check the disk and replace it if it is bad"),
    ],
)
def test_d5_a_failed_write_names_its_remedy(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number), DIRECTORY)
    fault = disk_failed("the data directory cannot be used", error, "Nothing was acknowledged.")
    assert type(fault) is DiskFailed
    assert str(fault).startswith(f"the data directory cannot be used: {error}. Nothing was ack")
    assert words in str(fault)
    assert ("replace it" in str(fault)) == (number == errno.EIO), "no other is the disk's"


def test_d5_a_directory_whose_parent_is_a_file_now_has_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lock = OsFiles().lock(str(tmp_path / "a" / "lock"))
    assert not lock.moved()
    (tmp_path / "a").rename(tmp_path / "b")
    assert lock.moved()
    (tmp_path / "a").write_bytes(b"")
    assert lock.moved()
    lock.release()
