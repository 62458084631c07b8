"""Directories and files of this user alone: checked before they are used, never through links.

A command that works in a directory that another user prepared, in /tmp say, would follow the links
there, and overwrite with its own rights whatever they name.

Rules of this file
- A directory belongs to the user that runs the command, or to root, and is no link. Others must not
  be able to write to it; the members of a group may, if this process is one of them (a private
  group of the user, or the group of a volume in a container).
- Files are opened without following a link, and made for their owner alone.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from raftkv.errors import ConfigError

__all__ = ["make_directory", "open_own", "require_own"]

_ROOT: Final = 0


def make_directory(path: str) -> None:
    """Make a directory for its owner alone, or check the one that is there. Raises ConfigError."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a directory: {error.strerror}") from None
    require_own(path)


def require_own(path: str) -> None:
    """Raise ConfigError if another user may change what is in the directory, or where it leads.

    A directory that does not exist has no owner yet.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a directory: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path} is a link: name the directory that it leads to")
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise ConfigError(
            f"{path} belongs to the user with the number {found.st_uid}, who could change what is "
            f"in it: use a directory of your own (chown, or another path)"
        )
    others = found.st_mode & stat.S_IWOTH
    group = found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getegid(), *os.getgroups())
    if others or group:
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so others may change what is in "
            f"it: chmod go-w {path}, after a look at what it holds"
        )


def open_own(path: str, flags: int) -> int:
    """Open a file without following a link, made with mode 0600. Raises ConfigError for a link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        if os.path.islink(path):
            raise ConfigError(f"{path} is a link: remove it, after a look where it leads") from None
        raise
