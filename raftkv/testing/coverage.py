"""Listens for events that a simulation should have seen sometimes, and hits their marks.

Wraps methods of the real classes while entered (patching.py); it checks nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from raftkv import bootstrap
from raftkv.corruption_check import CorruptionCheck
from raftkv.namesakes import Namesakes
from raftkv.node import Node
from raftkv.raft.following import Following
from raftkv.raft.free_space import FreeSpace
from raftkv.raft.installing import Installing
from raftkv.raft.snapshot import SnapshotWriter
from raftkv.raft.snapshotting import Snapshotting
from raftkv.raft.wal import Wal
from raftkv.replicant.follower import Follower
from raftkv.state.machine import StateMachine
from raftkv.testing.marks import Marks
from raftkv.testing.patching import around

__all__ = ["Coverage"]


class Coverage:
    """A context manager that hits marks while entered."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        enter = self._patches.enter_context
        enter(around(SnapshotWriter, "commit", self._counted("snapshot written")))
        enter(around(Installing, "_install", self._counted("snapshot installed")))
        enter(around(StateMachine, "_again", self._counted("command answered from the table")))
        enter(around(Node, "_reopen", self._counted("session reopened")))
        enter(around(FreeSpace, "_raised", self._counted("disk alarm raised")))
        enter(around(FreeSpace, "_ended", self._counted("disk alarm ended")))
        enter(around(FreeSpace, "_leave", self._counted("disk at its end")))
        enter(around(CorruptionCheck, "agreed", self._counted("states compared")))
        enter(around(Snapshotting, "no_room", self._counted("snapshot found no room")))
        enter(around(Following, "_decline", self._counted("entries declined")))
        enter(around(bootstrap, "judge", self._refusing("bootstrap refused over other cores")))
        enter(around(Namesakes, "judge", self._refusing("second node of a name refused")))
        enter(around(Wal, "compact", self._counted("log compacted")))
        enter(around(Follower, "_take_chunk", self._wrap_take_chunk))
        enter(around(Follower, "link_up", self._wrap_link_up))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patches.close()

    def _counted(self, mark: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **named: Any) -> Any:
                self._marks.hit(mark)
                return original(*arguments, **named)

            return counted

        return wrap

    def _refusing(self, mark: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Hits the mark when something is refused."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def judged(*arguments: Any) -> Any:
                refusal = original(*arguments)
                self._marks.hit(mark, times=refusal is not None)
                return refusal

            return judged

        return wrap

    def _wrap_take_chunk(self, original: Callable[..., None]) -> Callable[..., None]:
        def take_chunk(follower: Follower, message: Any) -> None:
            original(follower, message)
            if message.last:
                self._marks.hit("snapshot installed on a replicant")

        return take_chunk

    def _wrap_link_up(self, original: Callable[..., None]) -> Callable[..., None]:
        def link_up(follower: Follower, link: Any) -> None:
            if follower.applied > 1 and link.dialled is not None:
                self._marks.hit("replicant changed its upstream")
            original(follower, link)

        return link_up
