"""The rows of one table: a mapping in key order: small, sharded, or a run of numbers.

Rules of this file
1. Order comes from the sorted keys alone. Hashes choose a shard and nothing else, so it makes no
   difference that they are not the same on every node.
2. No single operation takes time in proportion to the number of rows.

Why two kinds. A dict that grows is copied into one twice as large, at once: with 350,000 rows that
stops the process for 60 ms, with 700,000 for 120 ms. So a large table is spread over SHARDS dicts,
each of which grows by itself, at another moment and in less than a millisecond. But the look-up in
a dict is a C function, the most frequent operation of all, and a shard has to be chosen in Python.
So a table stays one dict as long as copying it goes unnoticed, and most tables stay so for ever.
`grown` makes the change; that copies once, at a size where it takes some milliseconds.

A second reason: the values of most tables are structs that the garbage collector does not track,
and a plain dict of such is not tracked either, as long as its keys are texts, bytes or numbers. A
dict of a subclass, such as `SortedDict`, always is.

Keys that are tuples spoil that: a tuple is tracked until the first collection that sees it. So each
full collection finds a shard that need not be tracked (and looks at every row to find that out),
and the next new row has it tracked again, among the youngest: each of the many small collections
looks at all rows then, and `gc.freeze` never gets hold of the shard. With 700,000 rows that was
more than half of a node's time. So such shards have a PIN, which keeps them tracked for good: after
one full collection they are frozen (collector.py), and never looked at again.

The third kind is for tables that are a log (`TableSpec.run`): consecutive numbers, added behind the
last and removed from the front. They need no sorted keys and no hashes, just a list, which makes a
write to them cost a third. A list grows by an eighth at a time, by moving one pointer per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import ge
from typing import Any, ClassVar, Final

from sortedcontainers import SortedDict, SortedList

__all__ = ["Rows", "RunRows", "ShardedRows", "SmallRows", "grown"]

# Growing over this size takes a dict 1 ms, building the shards 3 to 5 ms.
SMALL_ROWS_MAX: Final = 16_384
# With 10^7 rows a shard grows in 7 ms; an empty shard costs 64 bytes.
SHARDS: Final = 64

#: A key that no table has, and a value that the garbage collector tracks as long as it lives.
PIN: Final = object()
PINNED: Final[list[Any]] = []


def _check_ascend(keys: Sequence[Any]) -> None:
    if any(map(ge, keys, keys[1:])):
        raise ValueError("a row is not behind the one before it")


def _append(sorted_keys: SortedList, keys: list[Any]) -> None:
    """Add keys, each behind the last one. Raises ValueError for one that is not.

    A SortedList is a list of short lists. Its own methods find the place of each key anew, which
    takes a third of the time that reading a snapshot takes; so the short lists are filled here.
    """
    lists, maxes, size = sorted_keys._lists, sorted_keys._maxes, sorted_keys._load
    _check_ascend([*maxes[-1:], *keys])
    room = max(0, size - len(lists[-1])) if lists else 0
    if room and keys:
        lists[-1].extend(keys[:room])
        maxes[-1] = lists[-1][-1]
    for first in range(room, len(keys), size):
        lists.append(keys[first : first + size])
        maxes.append(lists[-1][-1])
    sorted_keys._len += len(keys)
    del sorted_keys._index[:]


class SmallRows(SortedDict):  # type: ignore[misc, unused-ignore]
    """Up to SMALL_ROWS_MAX rows, or a few more: one dict. `get` is C."""

    # SortedDict would look the key up once more before it does just this.
    replace: ClassVar[Any] = dict.__setitem__

    def pick(self, keys: Iterable[Any], default: Any) -> list[tuple[Any, Any]]:
        """Each key with its value, or with `default`."""
        get = self.get
        return [(key, get(key, default)) for key in keys]

    def values_of(self, keys: Iterable[Any]) -> list[Any]:
        """The values of keys that are there."""
        return list(map(self.__getitem__, keys))

    def extend(self, rows: Sequence[tuple[Any, Any]]) -> None:
        """Add rows, each behind the last one. Raises ValueError for one that is not."""
        _check_ascend([*self._list._maxes[-1:], *(key for key, _ in rows)])
        for key, value in rows:
            self[key] = value

    def drop_some(self, count: int) -> None:
        """Forget so many rows. For freeing only."""
        for _ in range(min(count, len(self))):
            self.popitem()


class ShardedRows:
    """Any number of rows. The methods are those that tables use of a SortedDict."""

    __slots__ = ("_keys", "_shards", "bisect_left", "irange")

    def __init__(self) -> None:
        self._shards: tuple[dict[Any, Any], ...] = tuple({} for _ in range(SHARDS))
        self._bind(SortedList())

    def _bind(self, keys: SortedList) -> None:
        self._keys = keys
        self.irange = keys.irange
        self.bisect_left = keys.bisect_left

    @classmethod
    def of(cls, rows: SmallRows) -> ShardedRows:
        """The same rows, spread. The keys are sorted already, which makes it quick."""
        sharded = cls()
        shards = sharded._shards
        items: Iterable[tuple[Any, Any]] = dict.items(rows)
        for key, value in items:
            shards[hash(key) % SHARDS][key] = value
        if isinstance(next(iter(rows), None), tuple):
            for shard in shards:
                shard[PIN] = PINNED
        sharded._bind(SortedList(rows))
        return sharded

    def values_of(self, keys: Iterable[Any]) -> list[Any]:
        """The values of keys that are there."""
        shards = self._shards
        return [shards[hash(key) % SHARDS][key] for key in keys]

    def pick(self, keys: Iterable[Any], default: Any) -> list[tuple[Any, Any]]:
        """Each key with its value, or with `default`."""
        shards = self._shards
        return [(key, shards[hash(key) % SHARDS].get(key, default)) for key in keys]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._shards[hash(key) % SHARDS].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) % SHARDS]

    def __getitem__(self, key: Any) -> Any:
        return self._shards[hash(key) % SHARDS][key]

    def __setitem__(self, key: Any, value: Any) -> None:
        shard = self._shards[hash(key) % SHARDS]
        if key not in shard:
            self._keys.add(key)
        shard[key] = value

    def extend(self, rows: Sequence[tuple[Any, Any]]) -> None:
        """Add rows, each behind the last one. Raises ValueError for one that is not."""
        _append(self._keys, [key for key, _ in rows])
        shards = self._shards
        for key, value in rows:
            shards[hash(key) % SHARDS][key] = value

    def replace(self, key: Any, value: Any) -> None:
        """Set the value of a key that is there."""
        self._shards[hash(key) % SHARDS][key] = value

    def __delitem__(self, key: Any) -> None:
        del self._shards[hash(key) % SHARDS][key]
        self._keys.remove(key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def drop_some(self, count: int) -> None:
        """Forget so many rows. For freeing only."""
        for _ in range(min(count, len(self._keys))):
            key = self._keys.pop()
            del self._shards[hash(key) % SHARDS][key]


# Removed rows at the front of a run that are let go together.
RUN_SLACK: Final = 1024


class RunRows:
    """Rows whose keys are consecutive ints. Raises ValueError for a key that is not next to them.

    `_values` holds them in order, behind `_head` places of removed ones; the first place of all is
    that of the key `_base`.
    """

    __slots__ = ("_base", "_head", "_values")

    def __init__(self) -> None:
        self._base = 0
        self._head = 0
        self._values: list[Any] = []

    def get(self, key: Any, default: Any = None) -> Any:
        place = key - self._base
        if self._head <= place < len(self._values):
            return self._values[place]
        return default

    def pick(self, keys: Iterable[Any], default: Any) -> list[tuple[Any, Any]]:
        """Each key with its value, or with `default`."""
        get = self.get
        return [(key, get(key, default)) for key in keys]

    def values_of(self, keys: Iterable[Any]) -> list[Any]:
        """The values of keys that are there."""
        values, base = self._values, self._base
        return [values[key - base] for key in keys]

    def __contains__(self, key: Any) -> bool:
        return bool(self._head <= key - self._base < len(self._values))

    def __getitem__(self, key: Any) -> Any:
        place = key - self._base
        if self._head <= place < len(self._values):
            return self._values[place]
        raise KeyError(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        values = self._values
        place = key - self._base
        if place == len(values) and place > self._head:
            values.append(value)
        elif self._head <= place < len(values):
            values[place] = value
        elif len(values) == self._head:
            self._base, self._head = key, 0
            values[:] = [value]
        elif place == self._head - 1:  # an undone removal
            if self._head == 0:
                self._base, self._head = self._base - RUN_SLACK, RUN_SLACK
                values[:0] = [None] * RUN_SLACK
            self._head -= 1
            values[self._head] = value
        else:
            raise ValueError(f"{key!r} is not next to the rows of a run")

    @property
    def first(self) -> int:
        """The key of the first row; without rows a number that means nothing."""
        return self._base + self._head

    def replace(self, key: Any, value: Any) -> None:
        """Set the value of a key that is there."""
        self._values[key - self._base] = value

    def __delitem__(self, key: Any) -> None:
        values, place = self._values, key - self._base
        if not self._head <= place < len(values):
            raise KeyError(key)
        if place == len(values) - 1:
            values.pop()
        elif place == self._head:
            values[place] = None
            self._head += 1
            self._let_go()
        else:
            raise ValueError(f"{key!r} is at neither end of a run")

    def extend(self, rows: Sequence[tuple[Any, Any]]) -> None:
        """Add rows, each behind the last one. Raises ValueError for one that is not."""
        for key, value in rows:
            if key in self:
                raise ValueError(f"{key!r} is not behind the last row")
            self[key] = value

    def take_first(self, count: int) -> list[Any]:
        """Remove the first `count` rows, of which there must be more; their values."""
        head, values = self._head, self._values
        assert 0 < count < len(values) - head
        taken = values[head : head + count]
        values[head : head + count] = [None] * count
        self._head += count
        self._let_go()
        return taken

    def put_first(self, taken: list[Any]) -> None:
        """Undo `take_first`."""
        if self._head < len(taken):
            more = max(RUN_SLACK, len(taken))
            self._base, self._head = self._base - more, self._head + more
            self._values[:0] = [None] * more
        self._values[self._head - len(taken) : self._head] = taken
        self._head -= len(taken)

    def _let_go(self) -> None:
        if self._head >= RUN_SLACK and 2 * self._head >= len(self._values):
            del self._values[: self._head]
            self._base, self._head = self._base + self._head, 0

    def __len__(self) -> int:
        return len(self._values) - self._head

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._base + self._head, self._base + len(self._values)))

    def irange(
        self,
        low: Any = None,
        high: Any = None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[int]:
        first, end = self._base + self._head, self._base + len(self._values)
        if low is not None:
            first = max(first, low if inclusive[0] else low + 1)
        if high is not None:
            end = min(end, high + 1 if inclusive[1] else high)
        keys = range(first, end)
        return reversed(keys) if reverse else iter(keys)

    def bisect_left(self, key: Any) -> int:
        place: int = key - self._base - self._head
        return max(0, min(place, len(self)))

    def drop_some(self, count: int) -> None:
        """Forget so many rows. For freeing only."""
        if count > 0:
            del self._values[max(self._head, len(self._values) - count) :]


Rows = SmallRows | ShardedRows | RunRows


def grown(rows: Rows) -> Rows:
    """The rows in the form that suits their number: `rows` itself, or a sharded copy."""
    if len(rows) > SMALL_ROWS_MAX and isinstance(rows, SmallRows):
        return ShardedRows.of(rows)
    return rows
