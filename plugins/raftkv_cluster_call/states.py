"""What calls have made of a node, and how it is told apart from what a node has lost.

The log says what was called, but not what came of it: a call may have changed a file, a process, a
table in memory. A `NodeState` is that effect as data. It makes three things possible: a node that
joins copies it instead of running a history that is trimmed; `fix` compares it; and a node that was
wiped is noticed, because its state is as of less than its cursor says.

Rules of this file
1. `lock` is held by the worker from the start of a call until the cursor has moved, and by whoever
   dumps, loads or checks a state. So a dump lies between two calls: it is as of the cursor.
2. A state never knows less than the cursor: before the worker moves the cursor to an id (also when
   it skips one) it awaits `passed(id)`, which is durable when it returns. A crash in between leaves
   a state that is ahead by one call, which is executed again; that must do no harm anyhow.
3. A state that was not *admitted* takes no part: nobody tells it what has passed, and this node
   gives no dump. It is admitted once it was found to cover the cursor, or was copied.

Theory. Wiped or new? A state that is as of less than the cursor has lost something, unless its
plugin runs here for the first time and has had no call yet. Taking the second for the first would
put every node of a cluster into a gap, with nobody to copy from, just because a plugin was added.
So the node keeps the names of the states that it has admitted, in a file of its own (`known`). Who
is behind and stands there was wiped. Where the file itself is missing, so was everything, and all
count as known.

What is ugly: after a forced recovery of the cluster ids are given a second time, and a file may be
as of an id of the history that was given up. It is noticed while the id is higher than the last of
the log; later it is not. Nodes that took part then differ under one cursor: `fix` reports it, and
`leave` with `rejoin` copies such a node anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Host, View

from .commands import Cursor, Record
from .kept import KeptFile

__all__ = ["STATE_BYTES_MAX", "Dump", "NodeState", "StateTooLarge", "States", "StatesNotReady"]

#: All states of one node, as they travel. A copy is held in memory on both sides; configuration is
#: some hundred KiB, and what is larger belongs into the keyspace, which every node has anyhow.
STATE_BYTES_MAX = 64 * 1024 * 1024

Dump = dict[str, dict[str, bytes]]


class NodeState(Protocol):
    """What calls have made of a node. Register it with `calls.state(...)` when the node starts."""

    @property
    def name(self) -> str:
        """Unique on the node, the same on all nodes."""

    async def as_of(self) -> int | None:
        """The id up to which all calls are in this node's data, durably.

        0 if nothing was kept (a state in memory after a start). None if the data lies where no id
        can be kept with it: such a state is copied to joiners, but its loss is not noticed.
        """

    async def dump(self) -> Mapping[str, bytes]:
        """All items. Two nodes that executed the same calls give the same items."""

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        """Replace everything by these items, durably, and be as of this id."""

    async def passed(self, id: int) -> None:
        """All calls up to this id are in the data: be as of it, durably, when this returns.

        Ids rise, but for the rare case that the log of calls has begun anew under kept data.
        """


class StatesNotReady(RaftkvError):
    """This node's states are not settled yet (it has just started): ask again, or another."""

    code: ClassVar[str] = "calls_states_not_ready"


class StateTooLarge(RaftkvError):
    """The states of a node exceed what is copied between nodes: keep such data in the keyspace."""

    code: ClassVar[str] = "calls_state_too_large"


class States:
    """The states of one node. Everything but `add` is awaited while `lock` is held."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known = KeptFile(host, "states")
        self._states: dict[str, NodeState] = {}
        self._admitted: set[str] = set()
        self.lock = asyncio.Lock()
        #: The id up to which the admitted ones have been told that calls have passed.
        self.told = 0
        #: The file of known names is as it should be.
        self.remembered = False
        #: Called when a state was added, so that it is admitted soon.
        self.on_added: Callable[[], None] = lambda: None

    def add(self, state: NodeState) -> None:
        """Register a state. Raises ValueError for a name that is taken."""
        if state.name in self._states:
            raise ValueError(f"this node has a state {state.name!r} already: choose another name")
        self._states[state.name] = state
        self.on_added()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._states))

    @property
    def settled(self) -> bool:
        """Every state that is registered has been admitted."""
        return len(self._admitted) == len(self._states)

    async def dump(self, bytes_max: int = STATE_BYTES_MAX) -> Dump:
        """All items of all states. Raises StatesNotReady, StateTooLarge."""
        if not self.settled:
            waiting = ", ".join(sorted(set(self._states) - self._admitted))
            raise StatesNotReady(f"{self._host.name} has not settled the state of {waiting} yet")
        found: Dump = {}
        size = 0
        for name in self.names:
            items = await self._states[name].dump()
            found[name] = {key: bytes(items[key]) for key in sorted(items)}
            size += sum(len(key) + len(value) for key, value in found[name].items())
            if size > bytes_max:
                raise StateTooLarge(
                    f"the states of {self._host.name} exceed {bytes_max} bytes at {name!r}: keep "
                    f"large data in the keyspace"
                )
        return found

    async def load(self, dump: Dump, as_of: int) -> None:
        """Replace all states by a copy that has all of their names. They are admitted by that."""
        self._admitted.clear()
        names = self.names
        for name in names:
            await self._states[name].load(dump[name], as_of)
        await self._all_admitted(names, as_of)

    async def adopt(self, id: int) -> None:
        """Count what is here as of `id`: an operator says so, or nobody knows better."""
        names = self.names
        for name in names:
            await self._states[name].passed(id)
        await self._all_admitted(names, id)

    async def passed(self, id: int) -> None:
        """Tell the admitted ones, durably: before the cursor moves to `id`."""
        for name in sorted(self._admitted):
            await self._states[name].passed(id)
        self.told = max(self.told, id)

    # --- admission ---

    async def admit(self, view: Callable[[], View], cursor: Cursor) -> tuple[str, ...]:
        """Admit what covers this node's following cursor; the names of the states that do not.

        They have lost what they were, and this node needs a copy. If there are none, all states
        know, durably, that calls have passed up to the cursor.
        """
        known = await self._read_known()
        before = sorted(self._admitted)
        lost: list[str] = []
        for name in sorted(set(self._states) - self._admitted):
            state = self._states[name]
            as_of = await state.as_of()
            if as_of is not None and not covers(view(), cursor, as_of):
                if not cursor.id:
                    # The log of calls has begun anew under kept data. Nothing of it could have been
                    # lost, and nobody has anything else to copy: it counts as the beginning.
                    self._host.log.warning(
                        "calls: the state %s of %s is as of call %d of an earlier history: it is "
                        "kept as it is",
                        name,
                        self._host.name,
                        as_of,
                    )
                    await state.passed(0)
                elif known is None or name in known:
                    lost.append(name)
                    continue
                else:
                    self._host.log.info("calls: the state %s is new on this node", name)
            if as_of is not None and as_of < cursor.id:
                await state.passed(cursor.id)
            self._admitted.add(name)
        if not lost:
            if cursor.id > self.told:
                for name in before:
                    await self._states[name].passed(cursor.id)
                self.told = cursor.id
            if known is None or not self._admitted <= known:
                await self._remember(known or frozenset())
            self.remembered = True
        return tuple(lost)

    async def _read_known(self) -> frozenset[str] | None:
        content: bytes | None = await self._host.runtime.offload(self._known.read)
        return None if content is None else frozenset(msgspec.json.decode(content, type=list[str]))

    async def _all_admitted(self, names: Iterable[str], id: int) -> None:
        """Admit these. A state that was added meanwhile has neither a copy nor been judged."""
        self._admitted = set(names)
        self.told = id
        await self._remember()

    async def _remember(self, also: frozenset[str] | None = None) -> None:
        if also is None:
            also = await self._read_known() or frozenset()
        content = msgspec.json.encode(sorted(also | self._admitted))
        await self._host.runtime.offload(self._known.write, content)
        self.remembered = True


def covers(view: View, cursor: Cursor, as_of: int) -> bool:
    """Whether data as of this id has all that the cursor says was executed.

    Between the two there may be ids that nobody executes: aborted ones, those that `fix` took, and
    those that were skipped here.
    """
    last: int = view.table("meta").get("last", 0)
    if as_of > last:
        # Of a history that the cluster has given up.
        return False
    records = view.table("records")
    for passed in range(as_of + 1, cursor.id + 1):
        record: Record | None = records.get(passed)
        if record is None:
            return False
        counts = record.state != "aborted" and record.kind == "call"
        if counts and passed not in cursor.skipped:
            return False
    return True
