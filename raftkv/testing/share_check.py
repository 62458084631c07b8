"""No command costs others more than its share: what is checked while work takes processor time.

1. Applying yields: no command is begun in a turn of the loop in which LATE_S of work was applied
   already. A turn applies for 5 ms, and then to the end of a slice of at most 2,000 rows.
2. In an entry, no cheap command stands behind a costly one of another session, and costly ones are
   a bounded share of it.
3. No node gets more rows of costly commands than another one that waits, but for a few commands.
4. A command takes effect whole: `Whole` compares what readers find at one revision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import msgspec

from raftkv.raft.composition import COSTLY_ROWS, SHARE_ROWS, Composition, _session
from raftkv.raft.engine import Engine
from raftkv.replicant.follower import Follower
from raftkv.state.machine import StateMachine
from raftkv.testing.current import running_host
from raftkv.testing.patching import around
from raftkv.testing.process import PROCESS, Process

__all__ = ["LATE_S", "Whole", "checked_shares"]

#: Twice what a turn takes at most before its last command, by the constants of charges.py.
LATE_S: Final = 0.02
#: Costly commands by which a node may be ahead of one that waits. By the rule two; the rest is for
#: commands whose estimate has changed while they waited.
AHEAD_MAX: Final = 6

Violated = Callable[[str, str], NoReturn]
_number = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw, msgspec.Raw, msgspec.Raw])


@contextlib.contextmanager
def checked_shares(violated: Violated) -> Iterator[None]:
    """While this is entered, the nodes are checked; see the module's text."""
    begun: dict[Process, float] = {}
    shared: WeakKeyDictionary[Composition, _Shared] = WeakKeyDictionary()

    def marking(apply: Callable[..., Any]) -> Callable[..., Any]:
        def marked(self: Any) -> Any:
            process = PROCESS.get()
            if process is not None:
                begun[process] = process.owed_s
            try:
                return apply(self)
            finally:
                if process is not None:
                    del begun[process]

        return marked

    with (
        around(Engine, "_SyncObj__applyLogEntries", marking),
        around(Follower, "_apply_due", marking),
        around(StateMachine, "_run", lambda run: _checked_run(run, begun, violated)),
        around(Composition, "add", lambda add: _noted_add(add, shared)),
        around(Composition, "take", lambda take: _checked_take(take, shared, violated)),
    ):
        yield


def _checked_run(
    run: Callable[..., Any], begun: dict[Process, float], violated: Violated
) -> Callable[..., Any]:
    def checked(machine: StateMachine, envelope: Any) -> Any:
        process = PROCESS.get()
        if process is not None and process in begun:
            spent_s = process.owed_s - begun[process]
            if spent_s > LATE_S:
                violated(
                    "applying yields",
                    f"{running_host()} begins a command after {spent_s * 1000:.0f} ms of others "
                    f"in one turn",
                )
        return run(machine, envelope)

    return checked


class _Shared:
    """What nodes have got on one leader while others waited."""

    def __init__(self) -> None:
        # By session; None: of more than one node.
        self.origins: dict[bytes, str | None] = {}
        # Of a node that waits, and has since then: rows that another one got more than it.
        self._more: dict[str, dict[str, int]] = {}
        self._rows_max = 0

    def took(self, composition: Composition, costly: list[tuple[bytes, int]]) -> str:
        """What is wrong with the order of what an entry has got, or ""."""
        got: dict[str, int] = {}
        for command, rows in costly:
            origin = self.origins.get(_session(command))
            if origin is not None:
                got[origin] = got.get(origin, 0) + rows
            self._rows_max = max(self._rows_max, rows)
        waiting = {
            self.origins.get(session)
            for each in composition._origins.values()
            for session in each.costly
        }
        wait = {origin for origin in waiting if origin is not None}
        former, self._more = self._more, {origin: {} for origin in wait}
        for origin in wait & former.keys():
            more = self._more[origin] = former[origin]
            for other, rows in got.items():
                if other == origin:
                    continue
                more[other] = more.get(other, 0) + rows
            for other in more:
                more[other] -= got.get(origin, 0)
                if more[other] > AHEAD_MAX * self._rows_max:
                    return f"{other!r} has got {more[other]} rows more than {origin!r}, which waits"
        return ""


def _noted_add(
    add: Callable[..., None], shared: WeakKeyDictionary[Composition, _Shared]
) -> Callable[..., None]:
    def noted(composition: Composition, commands: Any, origin: str = "") -> None:
        origins = shared.setdefault(composition, _Shared()).origins
        for command in commands:
            session = _session(command)
            if origins.setdefault(session, origin) != origin:
                origins[session] = None
        add(composition, commands, origin)

    return noted


def _checked_take(
    take: Callable[..., Any],
    shared: WeakKeyDictionary[Composition, _Shared],
    violated: Violated,
) -> Callable[..., Any]:
    def checked(composition: Composition, *arguments: Any) -> Any:
        batch = take(composition, *arguments)
        if composition.taken_rows or composition._costly:
            estimated = [(command, composition._estimate(command)) for command in batch]
            found = shared.setdefault(composition, _Shared()).took(
                composition, [each for each in estimated if each[1] > COSTLY_ROWS]
            )
            if found:
                violated("nodes have equal shares", f"on {running_host()} {found}")
        costly = [composition._estimate(command) > COSTLY_ROWS for command in batch]
        if not any(costly):
            return batch
        before: set[int] = set()
        for command, is_costly in zip(batch, costly, strict=True):
            session = _number.decode(command)[0]
            if is_costly:
                before.add(session)
            elif before - {session}:
                violated(
                    "costly commands stand behind cheap ones",
                    f"{running_host()} puts one before a cheap command of another session",
                )
        rows = sum(map(composition._estimate, batch))
        if sum(costly) > 1 and rows > 2 * SHARE_ROWS:
            violated("costly commands are a share", f"{running_host()} puts {rows} rows together")
        return batch

    return checked


class Whole:
    """What readers of the nodes find of some keys, by revision: the same, or a command was seen
    in part."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._counts: dict[int, int] = {}

    def look(self, name: str, view: Any, first: bytes, last: bytes) -> None:
        """Count the keys on a node as a reader does, between two turns of its loop."""
        revision = view.table("meta").get("revision", 1)
        count = view.table("keys").count(first, last)
        if self._counts.setdefault(revision, count) != count:
            self._violated(
                "commands take effect whole",
                f"{name} shows {count} keys at revision {revision}, which has "
                f"{self._counts[revision]}",
            )
