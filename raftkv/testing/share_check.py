"""No command costs others more than its share: what is checked while work takes processor time.

1. Applying yields: no command is begun in a turn of the loop in which LATE_S of work was applied
   already. A turn applies for 5 ms, and then to the end of a slice of at most 2,000 rows.
2. In an entry, no cheap command stands behind a costly one of another session, and costly ones are
   a bounded share of it.
3. A command takes effect whole: `Whole` compares what readers find at one revision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import msgspec

from raftkv.raft.composition import COSTLY_ROWS, SHARE_ROWS, Composition
from raftkv.raft.engine import Engine
from raftkv.replicant.follower import Follower
from raftkv.state.machine import StateMachine
from raftkv.testing.current import running_host
from raftkv.testing.patching import around
from raftkv.testing.process import PROCESS, Process

__all__ = ["LATE_S", "Whole", "checked_shares"]

#: Twice what a turn takes at most before its last command, by the constants of charges.py.
LATE_S: Final = 0.02

Violated = Callable[[str, str], NoReturn]
_session = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw, msgspec.Raw, msgspec.Raw])


@contextlib.contextmanager
def checked_shares(violated: Violated) -> Iterator[None]:
    """While this is entered, the nodes are checked; see the module's text."""
    begun: dict[Process, float] = {}

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
        around(Composition, "take", lambda take: _checked_take(take, violated)),
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


def _checked_take(take: Callable[..., Any], violated: Violated) -> Callable[..., Any]:
    def checked(composition: Composition, *arguments: Any) -> Any:
        batch = take(composition, *arguments)
        costly = [composition._estimate(command) > COSTLY_ROWS for command in batch]
        if not any(costly):
            return batch
        before: set[int] = set()
        for command, is_costly in zip(batch, costly, strict=True):
            session = _session.decode(command)[0]
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
