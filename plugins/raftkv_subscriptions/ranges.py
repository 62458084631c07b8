"""Sets of acknowledged messages: ranges of numbers, as values and as the rows of a subscription.

As values, ranges are sorted tuples (origin, first, last), disjoint and not adjacent: the normal
form, in which equal sets are equal tuples.

As rows, the set of one origin is what is below a floor, and what is in ranges above it:

    1 ..... base ..... floor         first..last     first..last
    not wanted  acknowledged   gap   acknowledged    acknowledged       (then: wanted)

The rows of `acks` are in normal form too, and their first number is above floor + 1. So one row
tells whether a number is covered: the last range that begins at or before it. And what is added is
united with the range before it, those that begin inside, and the one that begins right behind.

What is ugly: adding may swallow many rows in one entry, more than the thousand that a command is
allowed otherwise: all that a subscription has, at worst, which the setting ranges_max bounds, at
less than 20 microseconds each. Each of these rows was written by an acknowledgement of its own, so
on the whole nothing is lost by it. To leave some for later would mean ranges inside of ranges, and
each question whether a number is covered would have to look behind the row in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from .rows import Floor, Ranges
from .scope import Tables

__all__ = [
    "NOTHING",
    "add",
    "clear",
    "covers",
    "grows",
    "highest",
    "normal",
    "runs_of",
    "span_over",
    "without",
]

#: What a subscription has of an origin that it was never told of.
NOTHING: Final = Floor()


# --- as values ------------------------------------------------------------------------------------


def normal(ranges: Iterable[tuple[str, int, int]]) -> Ranges:
    """The same set in normal form. Empty ranges (last < first) are left out."""
    found: list[tuple[str, int, int]] = []
    for origin, first, last in sorted(ranges):
        if last < first:
            continue
        if found and found[-1][0] == origin and first <= found[-1][2] + 1:
            if last > found[-1][2]:
                found[-1] = (origin, found[-1][1], last)
        else:
            found.append((origin, first, last))
    return tuple(found)


def without(ranges: Ranges, removed: Ranges) -> Ranges:
    """What is in `ranges` and not in `removed`; both in normal form, and so is the answer."""
    found: list[tuple[str, int, int]] = []
    at = 0
    for origin, first, last in ranges:
        while at < len(removed) and (removed[at][0], removed[at][2]) < (origin, first):
            at += 1
        # The last one that reaches into this range may reach into the next one, too.
        cut = at
        while cut < len(removed) and removed[cut][0] == origin and removed[cut][1] <= last:
            _, low, high = removed[cut]
            if low > first:
                found.append((origin, first, low - 1))
            first = high + 1
            cut += 1
        if first <= last:
            found.append((origin, first, last))
    return tuple(found)


def runs_of(numbers: Iterable[tuple[str, int]]) -> Ranges:
    """Single (origin, seq) as ranges in normal form."""
    return normal((origin, seq, seq) for origin, seq in numbers)


# --- as rows --------------------------------------------------------------------------------------


def span_over(view: Tables, sub_id: int, origin: str, seq: int) -> tuple[int, int] | None:
    """The covered numbers around `seq`, first to last; None: it is wanted.

    Of what is below the floor it begins with 1, the base included.
    """
    floor: Floor = view.table("floors").get((sub_id, origin), NOTHING)
    if seq <= floor.floor:
        return 1, floor.floor
    before = view.table("acks").scan(
        (sub_id, origin, floor.floor), (sub_id, origin, seq + 1), reverse=True, limit=1
    )
    for key, last in before:
        if last >= seq:
            return key[2], last
    return None


def covers(view: Tables, sub_id: int, origin: str, seq: int) -> bool:
    """Whether the subscription does not want this message: acknowledged, or not above the base."""
    return span_over(view, sub_id, origin, seq) is not None


def highest(view: Tables, sub_id: int, origin: str) -> int:
    """The highest covered number, 0: none."""
    last = view.table("acks").scan(
        (sub_id, origin, 0), (sub_id, origin + "\0", 0), reverse=True, limit=1
    )
    for _, seq in last:
        return int(seq)
    floor: Floor = view.table("floors").get((sub_id, origin), NOTHING)
    return floor.floor


def grows(view: Tables, sub_id: int, origin: str, first: int, last: int) -> bool:
    """Whether `add` of these would make a row more: they touch nothing that is there."""
    floor: Floor = view.table("floors").get((sub_id, origin), NOTHING)
    if first <= floor.floor + 1:
        return False
    before = view.table("acks").scan(
        (sub_id, origin, 0), (sub_id, origin, last + 2), reverse=True, limit=1
    )
    return all(end < first - 1 for _, end in before)


def add(
    ctx: Context, sub_id: int, origin: str, first: int, last: int, *, some: bool = True
) -> tuple[int, int]:
    """Unite the set with `first` to `last`.

    How many of them were not covered before, and by how many rows `acks` has grown (it may have
    shrunk). `some`: false spares looking for ranges, for who knows that there are none.
    """
    floors, key = ctx.table("floors"), (sub_id, origin)
    floor: Floor = floors.get(key, NOTHING)
    first = max(first, floor.floor + 1)
    if last < first:
        return 0, 0
    start, end, covered, rows = first, last, 0, 0
    acks = ctx.table("acks")
    if some:
        for before, upto in acks.scan((*key, 0), (*key, first), reverse=True, limit=1):
            if upto >= last:
                return 0, 0
            if upto >= first - 1:
                start, covered = before[2], upto - first + 1
        for inside, upto in list(acks.scan((*key, first), (*key, last + 2))):
            covered += max(0, min(upto, last) - inside[2] + 1)
            end = max(end, upto)
            acks.delete(inside)
            rows -= 1
    if start == floor.floor + 1:
        floors.put(key, replace(floor, floor=end))
    else:
        rows += start == first
        acks.put((*key, start), end)
    return last - first + 1 - covered, rows


def clear(ctx: Context, sub_id: int) -> int:
    """Remove all ranges beyond the floors; how many rows."""
    acks = ctx.table("acks")
    keys = [key for key, _ in acks.scan((sub_id, "", 0), (sub_id + 1, "", 0))]
    for key in keys:
        acks.delete(key)
    return len(keys)
