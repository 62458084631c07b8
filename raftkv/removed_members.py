"""Ending what the state keeps of a core, once its removal has committed.

A removal is a configuration entry of Raft, which the state machine does not see. Without more, the
removed core would stay up in the state until the failure detector declares it dead, and plugins
would keep what it owned for that long. So the leader proposes `MemberRemoved(raft_id)` for each
core that the committed configuration names as removed and that the state does not know as such.

The condition is read from the log and the state alone, so a leader that dies before the command is
applied leaves it to its successor, and two proposals of it do what one does. It is looked at when
the configuration, the members or the leadership change, and costs nothing otherwise. Below core
format 2 nothing is proposed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .errors import RaftkvError
from .parts import CorePart
from .raft.membership import Configuration
from .state.contract import Change
from .state.core import SINCE_FORMAT, MemberRemoved

if TYPE_CHECKING:
    from .node import Node

__all__ = ["RemovedMembers"]

log = logging.getLogger("raftkv.node")

# A proposal that was not applied is made again after this time.
RETRY_S = 0.2


class RemovedMembers:
    """One per node; it proposes while the node leads."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # The configuration for which nothing is left to do, with the members as they are.
        self._seen: Configuration | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """The state is there: follow its members."""
        self._unsubscribe = self._node.machine.subscribe(self._changed, ("core",))

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()

    def restored(self) -> None:
        """A snapshot has replaced the state."""
        self._seen = None

    def look(self) -> None:
        """Entries were applied, or the leadership has changed: is there anything to propose?"""
        node, part = self._node, self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            self._seen = None
            return
        configurations = part.engine.configurations
        if self._task is not None or configurations.latest is self._seen:
            return
        committed = part.engine.commit >= configurations.latest_index
        if committed and node.machine.core_format >= SINCE_FORMAT[MemberRemoved]:
            self._task = node.runtime.spawn(self._end(part), "removed members")

    async def _end(self, part: CorePart) -> None:
        try:
            while part is self._node._part and part.leads:
                latest = part.engine.configurations.latest
                left = self._left(latest)
                if not left:
                    self._seen = latest
                    return
                for raft_id in left:
                    await self._propose(raft_id)
                if self._left(latest) == left:
                    await self._node.runtime.sleep(RETRY_S)
        finally:
            self._task = None

    def _left(self, configuration: Configuration) -> list[str]:
        """The removed cores that the state still has as members."""
        machine = self._node.machine
        known, gone = machine.removed_members, frozenset(configuration.removed)
        return [
            member.raft_id
            for member in machine.members.values()
            if member.role == "core"
            and member.raft_id in gone
            and not configuration.is_member(member.raft_id)
            and known.get(member.name) != member.raft_id
        ]

    async def _propose(self, raft_id: str) -> None:
        try:
            await self._node.propose("core", MemberRemoved(raft_id))
        except RaftkvError as error:
            log.debug("that %s was removed waits: %s", raft_id, error)

    def _changed(self, index: int, changes: Sequence[Change]) -> None:
        if any(change.table == "members" for change in changes):
            self._seen = None
