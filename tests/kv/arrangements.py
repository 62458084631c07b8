"""All small arrangements of puts and deletions of one key in nested transactions, and an oracle.

A branch is a tuple of items: an operation by its name, or an inner transaction, a pair of branches.
An arrangement is the branch of the outermost transaction. The oracle knows nothing of shapes: it
runs every outcome of all comparisons, and looks at what was done in each execution.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, Final, NamedTuple

__all__ = ["KEY", "RANGE", "all_arrangements", "overlooked_by_etcd", "refused"]

KEY: Final = b"k"
#: A range that holds the key.
RANGE: Final = (b"j", b"l")

Branch = tuple[Any, ...]


class Done(NamedTuple):
    """An operation that an execution has done, and the inner transactions around it."""

    name: str
    path: tuple[int, ...]


def all_arrangements() -> Iterator[Branch]:
    """One and two operations in all places of up to three levels, and three in two levels.

    In those of three an inner transaction with one empty branch has only its success branch
    filled, and deletions are of the range.
    """
    for count in (1, 2):
        for branch in _branches(count, 3, mirrored=True):
            for names in product(("put", "delete", "range"), repeat=count):
                yield _filled(branch, iter(names))
    for branch in _branches(3, 2, mirrored=False):
        for names in product(("put", "range"), repeat=3):
            yield _filled(branch, iter(names))


def _branches(count: int, depth: int, *, mirrored: bool) -> Iterator[Branch]:
    """All branches with `count` operations in at most `depth` levels of inner transactions."""
    if count == 0:
        yield ()
    for first in range(1, count + 1):
        for rest in _branches(count - first, depth, mirrored=mirrored):
            for item in _items(first, depth, mirrored=mirrored):
                yield (item, *rest)


def _items(count: int, depth: int, *, mirrored: bool) -> Iterator[Any]:
    if count == 1:
        yield "?"
    if depth > 0:
        for then in range(0 if mirrored else 1, count + 1):
            yield from product(
                _branches(then, depth - 1, mirrored=mirrored),
                _branches(count - then, depth - 1, mirrored=mirrored),
            )


def _filled(branch: Branch, names: Iterator[str]) -> Branch:
    return tuple(
        next(names) if item == "?" else tuple(_filled(part, names) for part in item)
        for item in branch
    )


def refused(branch: Branch) -> bool:
    """Whether some execution puts the key twice, or both puts and deletes it."""
    for done in _executions(branch, ()):
        names = [each.name for each in done]
        if "put" in names and (names.count("put") > 1 or len(set(names)) > 1):
            return True
    return False


def _executions(branch: Branch, path: tuple[int, ...]) -> Iterator[tuple[Done, ...]]:
    """What is done, in order, in each outcome of the comparisons of all inner transactions."""
    if not branch:
        yield ()
        return
    *before, item = branch
    for done in _executions(tuple(before), path):
        if isinstance(item, str):
            yield (*done, Done(item, path))
        else:
            for taken in item:
                for inner in _executions(taken, (*path, len(before))):
                    yield (*done, *inner)


def overlooked_by_etcd(branch: Branch) -> bool:
    """Whether all that is wrong is a deletion in a later inner transaction than the put.

    Both must be in inner transactions of one branch: etcd looks a put of an inner transaction up
    in the deletions of the branch and of the inner transactions before it, but not behind it.
    """
    return refused(branch) and all(
        _is_overlooked(one, other)
        for done in _executions(branch, ())
        for one, other in combinations(done, 2)
        if "put" in (one.name, other.name)
    )


def _is_overlooked(earlier: Done, later: Done) -> bool:
    shared = 0
    for one, other in zip(earlier.path, later.path, strict=False):
        if one != other:
            break
        shared += 1
    in_two = len(earlier.path) > shared and len(later.path) > shared
    return earlier.name == "put" and later.name != "put" and in_two
