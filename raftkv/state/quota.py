"""Quotas: how many logical bytes of user data a plugin may keep, on every node the same.

A plugin declares what its rows count (`Quota`), and which of its commands add user data. The count
is a function of the rows alone: it is kept beside the tables as they are written, and made again
from the rows of a snapshot as they are read. So two nodes at one index have the same count, and it
does not need to stand in the state.

Rules of this file
1. Only commands that add user data are judged. Deletions, acknowledgements, commits, whatever
   ends or expires something, and all commands of the core are applied beyond the quota, too.
2. A command that leaves more than `quota_bytes` is undone and refused as `NoSpace`, and in the same
   step the alarm NOSPACE of its plugin is written to the core's table of alarms. While it stands
   there, the plugin's adding commands are refused before they are applied, and so are those of the
   plugins that use it. Only `DisarmAlarm` ends it; the next command that is beyond raises it again.
   One that declares something is applied first: what was there already adds nothing.
3. What one plugin does by a command of another (`Context.call`) is not refused: it is the effect
   of something that was promised before. It raises the alarm.
4. All of it is in force from core format 2 on. The count is kept at any format.
5. What cannot be beyond the quota is not judged: commands of a `modest` kind, while twice the count
   at the last look and GROWTH_FACTOR times the bytes of all entries with such commands since then
   are within it. That is an upper bound of the count, so the decision is the same; most puts are
   applied like this. Whatever else may have been done makes another look necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftkv.errors import NoSpace

from .contract import Quota, Setting, TableSpec
from .runs import _FIRST, RunTable
from .slicing import Steps, at_once
from .tables import ABSENT, Table, TableView, UndoLog

if TYPE_CHECKING:
    from raftkv.waste import Waste

    from .contract import Context, PurePlugin
    from .costs import Work
    from .rows import Rows

__all__ = [
    "GROWTH_FACTOR",
    "NOSPACE",
    "QUOTA_FORMAT",
    "QUOTA_KEY",
    "CountedRun",
    "CountedTable",
    "Gate",
    "Usage",
    "made_table",
    "quota_setting",
]

K = TypeVar("K")
V = TypeVar("V")

#: The alarm, as etcd names it.
NOSPACE: Final = "NOSPACE"
#: The core format from which on quotas are kept.
QUOTA_FORMAT: Final = 2
QUOTA_KEY: Final = "quota_bytes"
#: Logical bytes that `modest` commands add at most for each byte of their encodings.
GROWTH_FACTOR: Final = 256
# Below this a single large value could not be written at all.
QUOTA_MIN: Final = 16 * 1024
QUOTA_MAX: Final = 1 << 50

Apply = Callable[[Any, "Context"], Any]
Size = Callable[[Any, Any], int]


def _check_quota(value: int) -> str | None:
    if QUOTA_MIN <= value <= QUOTA_MAX:
        return None
    return f"it must be between {QUOTA_MIN} and {QUOTA_MAX} bytes"


def quota_setting(quota: Quota) -> Setting:
    """The replicated setting that a plugin with a quota has."""
    return Setting(
        QUOTA_KEY,
        int,
        quota.default_bytes,
        _check_quota,
        "Logical bytes of user data; beyond them what adds to it is refused (alarm NOSPACE).",
        core_format=QUOTA_FORMAT,
    )


# Counting -----------------------------------------------------------------------------------------


class CountedTable(Table[K, V]):
    """A table that knows what its rows count. `bytes`: now, within a command too."""

    __slots__ = ("_size", "bytes")

    def __init__(
        self, plugin: str, name: str, undo: UndoLog, waste: Waste | None, size: Size
    ) -> None:
        super().__init__(plugin, name, undo, waste)
        self._size = size
        self.bytes = 0

    def put(self, key: K, value: V) -> None:
        old = self._rows.get(key, ABSENT)
        super().put(key, value)
        self.bytes += self._size(key, value) - self._of(key, old)

    def replace(self, key: K, old: V, value: V) -> None:
        # As `Table` does it, written out: one of the most frequent writes.
        self._record((self, key, old))
        if self._frozen:
            for frozen in self._frozen:
                frozen._save(key, old, False)
        self._rows.replace(key, value)
        size = self._size
        self.bytes += size(key, value) - size(key, old)

    def delete(self, key: K) -> bool:
        old = self._rows.get(key, ABSENT)
        found = super().delete(key)
        if found:
            self.bytes -= self._of(key, old)
        return found

    def replace_all(self, rows: Rows | None) -> None:
        """The caller sets `bytes` of a snapshot's rows: it has counted them as it read them."""
        super().replace_all(rows)
        self.bytes = 0

    def recount(self) -> int:
        """What the rows count, by looking at all of them."""
        return sum(self._size(key, value) for key, value in self.scan())

    def _of(self, key: Any, value: Any) -> int:
        return 0 if value is ABSENT else self._size(key, value)

    def _revert(self, key: Any, old: Any) -> None:
        self.bytes += self._of(key, old) - self._of(key, self._rows.get(key, ABSENT))
        super()._revert(key, old)


class CountedRun(CountedTable[int, V], RunTable[V]):
    """The same of a table that is a log."""

    __slots__ = ()

    def delete_first(self, count: int) -> None:
        rows = self._rows
        if self.captured or count >= len(rows):
            super().delete_first(count)  # one by one: each is counted
            return
        taken = sum(self._size(key, rows[key]) for key in islice(rows, max(0, count)))
        super().delete_first(count)
        self.bytes -= taken

    def _revert(self, key: Any, old: Any) -> None:
        if key is not _FIRST:
            super()._revert(key, old)
            return
        RunTable._revert(self, key, old)
        first = self._rows.first
        self.bytes += sum(self._size(first + place, value) for place, value in enumerate(old))


def made_table(
    plugin: str, spec: TableSpec, undo: UndoLog, waste: Waste, quota: Quota | None
) -> Table[Any, Any]:
    """A table of a plugin, counted if its quota has it."""
    size = None if quota is None else quota.sizes.get(spec.name)
    if size is not None:
        counted: type[CountedTable[Any, Any]] = CountedRun if spec.run else CountedTable
        return counted(plugin, spec.name, undo, waste, size)
    plain: type[Table[Any, Any]] = RunTable if spec.run else Table
    return plain(plugin, spec.name, undo, waste)


# Judging ------------------------------------------------------------------------------------------


class Usage:
    """What one plugin uses of its quota."""

    def __init__(
        self,
        plugin: str,
        quota: Quota,
        tables: Mapping[str, Table[Any, Any]],
        settings: Mapping[str, Any],
        alarms: TableView[tuple[str, str], int],
    ) -> None:
        self.plugin = plugin
        self._counted = [t for t in tables.values() if isinstance(t, CountedTable)]
        self._derived = quota.derived
        self._tables: Callable[[str], TableView[Any, Any]] = tables.__getitem__
        self._settings = settings
        self._alarms = alarms

    @property
    def bytes(self) -> int:
        """The logical bytes of the plugin's user data."""
        total = 0
        for table in self._counted:
            total += table.bytes
        derived = self._derived
        return total if derived is None else total + derived(self._tables)

    def recount(self) -> int:
        """The same, by looking at every row: for tests and invariants."""
        total = sum(table.recount() for table in self._counted)
        return total if self._derived is None else total + self._derived(self._tables)

    @property
    def quota_bytes(self) -> int:
        limit: int = self._settings[QUOTA_KEY]
        return limit

    def exceeds(self, quota_bytes: int) -> bool:
        """Whether it is more than a quota allows."""
        return self.bytes > quota_bytes

    @property
    def alarm(self) -> bool:
        """Whether NOSPACE is on."""
        return (NOSPACE, self.plugin) in self._alarms


class Gate:
    """`apply` of one plugin, judged by its quota.

    `overrun` gets the name of a plugin that a command has taken beyond its quota: the machine
    writes the alarm once the command has ended. `used`: of the plugins that this one uses.
    """

    def __init__(
        self,
        plugin: PurePlugin,
        own: Usage,
        used: Sequence[Usage],
        overrun: list[str],
        work: Work,
    ) -> None:
        assert plugin.quota is not None
        self._apply: Apply = plugin.apply
        self._adds = plugin.quota.adds
        self._declares = plugin.quota.declares
        self._own = own
        self._all = (own, *used)
        self._overrun = overrun
        self._work = work
        #: Kinds of commands that rule 5 is about.
        self.modest = plugin.quota.modest
        # The entry in which modest commands are known to need the judgement, or not to (`ample`).
        self._looked_at = 0
        # Logical bytes that modest commands may still add, at most, before the next look.
        self._room = 0
        #: The entry whose modest commands need not be judged from here on; 0 if there is none.
        self.ample = 0

    def apply(self, command: Any, ctx: Context) -> Any:
        """`Plugin.apply`, judged."""
        if type(command) not in self.modest:
            self.forget()  # it may add more than rule 5 allows for
        elif self._is_ample(ctx.index):
            return self._apply(command, ctx)
        if not self._is_judged(command):
            if self._is_declaring(command):
                return self._declared(command, ctx)
            return self._apply(command, ctx)
        self._require_disarmed()
        result = self._apply(command, ctx)
        if type(result) is GeneratorType:
            return self._judged(result)
        self._require_room()
        return result

    def forget(self) -> None:
        """Something else than a modest command was done: rule 5 needs another look."""
        self._looked_at = self.ample = self._room = 0

    def _is_ample(self, index: int) -> bool:
        """Whether modest commands are within the quota, however many are left in the entry."""
        if self._looked_at != index:
            growth = GROWTH_FACTOR * self._work.entry_bytes
            if growth > self._room:
                own, alarm = self._own, any(usage.alarm for usage in self._all)
                self._room = 0 if alarm else own.quota_bytes - 2 * own.bytes
            ample = growth <= self._room
            # Without a deduction nothing is left: what is judged now adds to the count as well.
            self._room = self._room - growth if ample else 0
            self._looked_at, self.ample = index, index if ample else 0
        return self.ample == index

    def _declared(self, command: Any, ctx: Context) -> Any:
        before = self._own.bytes
        result = self._apply(command, ctx)
        if type(result) is GeneratorType:
            result = at_once(result)
        if self._own.bytes > before:
            self._require_disarmed()
            self._require_room()
        return result

    def _judged(self, steps: Steps[Any]) -> Steps[Any]:
        """A command in slices: judged at its end."""
        result = yield from steps
        self._require_room()
        return result

    def _require_room(self) -> None:
        own = self._own
        if own.exceeds(own.quota_bytes):
            self._overrun.append(own.plugin)
            raise NoSpace(own.plugin)

    def called(self, command: Any, ctx: Context) -> Any:
        """By another plugin: see rule 3."""
        self.forget()
        result = self._apply(command, ctx)
        if type(result) is GeneratorType:
            result = at_once(result)
        own = self._own
        adds = self._is_judged(command) or self._is_declaring(command)
        if adds and own.exceeds(own.quota_bytes):
            self._overrun.append(own.plugin)
        return result

    def _is_judged(self, command: Any) -> bool:
        return self._adds(command)

    def _is_declaring(self, command: Any) -> bool:
        return self._declares is not None and self._declares(command)

    def _require_disarmed(self) -> None:
        for usage in self._all:
            if usage.alarm:
                raise NoSpace(usage.plugin)
