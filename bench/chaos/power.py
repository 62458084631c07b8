"""A power cut, for the directory of a node whose process is dead.

kill -9 leaves behind what the kernel had been given. A power cut takes whatever was not synced:
the unsynced end of every file, all of it or torn somewhere, and what was done in directories since
their last sync (creations vanish, renames and removals are undone), newest first and, because a
file system may have written some of it in its own time, not always all of it.

The node's own layer of files has kept the books (files.py).
"""

from __future__ import annotations

import os
import random

import msgspec

from bench.chaos.files import Books, DirectoryChange

__all__ = ["Loss", "cut_power"]

TORN_SHARE = 0.5
"""Of the files with an unsynced end: torn inside it. The others lose all of it."""


class Loss(msgspec.Struct, frozen=True):
    """What a power cut took."""

    files: int
    bytes: int
    changes: int

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.files + other.files, self.bytes + other.bytes, self.changes + other.changes
        )


def cut_power(directory: str, books_directory: str, rng: random.Random) -> Loss:
    """Take from `directory` what was not synced. The process that wrote it must be dead."""
    books = Books(books_directory)
    try:
        pending = books.pending()
        # What a directory's journal wrote by itself survives; the order of changes is kept.
        kept = rng.randrange(len(pending) + 1) if pending and rng.random() < TORN_SHARE else 0
        undone = 0
        for change in reversed(pending[kept:]):
            undone += _undo(change, books)
        files, lost = 0, 0
        for folder, _, names in sorted(os.walk(directory)):
            for name in sorted(names):
                taken = _cut(os.path.join(folder, name), books, rng)
                files += taken > 0
                lost += taken
        books.start_over()
    finally:
        books.close()
    return Loss(files, lost, undone)


def _undo(change: DirectoryChange, books: Books) -> bool:
    if change.kind == "create":
        if not os.path.exists(change.path):
            return False
        os.remove(change.path)
        books.forget(change.path)
    elif change.kind == "rename":
        done = not os.path.exists(change.source)
        if done:
            os.rename(change.path, change.source)
            books.moved(change.path, change.source)
        # Else the process died between the note and the deed.
        _bring_back(change, books)
        return done
    else:
        _bring_back(change, books)
    return True


def _bring_back(change: DirectoryChange, books: Books) -> None:
    if change.aside and os.path.exists(change.aside):
        os.rename(change.aside, change.path)
        books.moved(change.aside, change.path)


def _cut(path: str, books: Books, rng: random.Random) -> int:
    """How many bytes the file has lost."""
    synced = books.synced_size(path)
    size = os.path.getsize(path)
    if synced is None or synced >= size:
        return 0
    keep = synced
    if rng.random() < TORN_SHARE:
        keep += rng.randrange(size - synced)
    os.truncate(path, keep)
    return size - keep
