"""The rows of one table: a mapping in key order, small or sharded.

Rules of this file
1. Order comes from the sorted keys alone. Hashes choose a shard and nothing else, so it makes no
   difference that they are not the same on every node.
2. No single operation takes time in proportion to the number of rows.

Why two kinds. A dict that grows is copied into one twice as large, at once: with 350,000 rows that
stops the process for 60 ms, with 700,000 for 120 ms. So a large table is spread over SHARDS dicts,
each of which grows by itself, at another moment and in less than a millisecond. But the look-up in
a dict is a C function, the most frequent operation of all, and a shard has to be chosen in Python.
So a table stays one dict as long as copying it goes unnoticed, and most tables stay so for ever.
`grown` makes the change; that copies once, at a size where it takes about 5 ms.

A second reason: the values of most tables are structs that the garbage collector does not track,
and a plain dict of such is not tracked either. A dict of a subclass, such as `SortedDict`, always
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from sortedcontainers import SortedDict, SortedList

__all__ = ["Rows", "ShardedRows", "SmallRows", "grown"]

# Growing over this size takes a dict 2 ms, building the shards 5 ms.
SMALL_ROWS_MAX: Final = 32_768
# With 10^7 rows a shard grows in 7 ms; an empty shard costs 64 bytes.
SHARDS: Final = 64


class SmallRows(SortedDict):  # type: ignore[misc, unused-ignore]
    """Up to SMALL_ROWS_MAX rows, or a few more: one dict. `get` is C."""

    # SortedDict would look the key up once more before it does just this.
    replace: ClassVar[Any] = dict.__setitem__

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
        sharded._bind(SortedList(rows))
        return sharded

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


Rows = SmallRows | ShardedRows


def grown(rows: Rows) -> Rows:
    """The rows in the form that suits their number: `rows` itself, or a sharded copy."""
    if len(rows) > SMALL_ROWS_MAX and isinstance(rows, SmallRows):
        return ShardedRows.of(rows)
    return rows
