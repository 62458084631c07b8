"""Telling the state which cores vote, so that it never takes more for voters than there are.

Raft's configuration is in force on a node as soon as it stands in its log; the state knows only
what is applied. Who concludes in `apply` on how many disks an entry is must not believe in a core
that did not vote on it. So the leader keeps a row of the state (`SetVoters`, `ctx.voters`):

1. A core that is to go is struck off, and that is applied, before the configuration without it is
   appended. What comes before in the log was committed by voters among whom it still was.
2. A core that was added is entered once the configuration with it is committed.

So for every entry, the voters that the state knows there are among the voters of whichever
configuration committed it.

Why a version. A command may be late: one that enters a core again, proposed by a leader of before,
must not arrive behind the one that has struck it off. Each says which version it has seen, and is
not taken when that is no longer the last one; whoever strikes a core off does so with a command of
its own that was taken, so everything that was on its way before is void. On one node, a lock keeps
the leader's correcting (`look`) apart from a removal between its two steps; a forced removal, which
waits for no lock, suspends it. A leader that loses its office in between appends nothing more, and
what it had appended is either in the log of the next one, who then corrects nothing, or nowhere: a
node leads here once an entry of its own term is committed, and with it everything before, so no
older log can win again.

A removal may be given up when what strikes the core off is on its way already. It takes effect
later, or never; so the leader compares again whenever the row has another version.

What is not covered: what an operator forces. A forced removal does not wait until the state knows
of it, for it may be what lets anything be committed again; entries that were under way then may
have been committed without the core that is gone. A forced recovery (`raftkv recover`) makes a
configuration by decree, and the state learns of it from the first leader after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import RaftkvError, Refused
from .parts import CorePart
from .raft.membership import Configuration
from .state.core import SetVoters, VotersResult

if TYPE_CHECKING:
    from .node import Node

__all__ = ["VoterNews"]

log = logging.getLogger("raftkv.node")

# A proposal that found no majority is made again after this time.
RETRY_S = 0.2
# How long a forced removal goes on telling of itself.
FORCED_S = 5.0


class VoterNews:
    """One per node; it speaks while the node leads."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: Held from striking a core off until the configuration without it is appended.
        self.lock = asyncio.Lock()
        #: Forced removals under way: nothing is corrected between their two steps.
        self._forced = 0
        #: The configuration and the version of the row that were found to agree.
        self._seen: tuple[Configuration, int] | None = None
        self._telling: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Entries were applied, or the office has changed: is there anything to correct?"""
        part = self._node._part
        if not isinstance(part, CorePart) or not part.leads:
            self._seen = None
            return
        if self._forced:
            return
        configurations, seen = part.engine.configurations, self._seen
        latest, version = configurations.latest, self._node.machine.voters[0]
        if seen is not None and seen[0] is latest and seen[1] == version:
            return
        if self._telling is None and part.engine.commit >= configurations.latest_index:
            self._telling = self._node.runtime.spawn(self._correct(part), "voters")

    def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    async def _correct(self, part: CorePart) -> None:
        try:
            async with self.lock:
                await self._agree(part)
        finally:
            self._telling = None
        self.look()  # at what has come meanwhile

    async def _agree(self, part: CorePart) -> None:
        node, engine = self._node, part.engine
        while part is node._part and part.leads and not self._forced:
            configurations = engine.configurations
            if engine.commit < configurations.latest_index:
                return  # its commit is looked at
            latest = configurations.latest
            version, known = node.machine.voters
            if known == tuple(sorted(latest.voters)):
                self._seen = (latest, version)
                return
            try:
                await node.propose("core", SetVoters(latest.voters, version))
            except Refused:
                log.exception("the state does not take the list of voters")
                self._seen = (latest, version)
                return
            except RaftkvError as error:
                log.debug("the list of voters waits: %s", error)
                await node.runtime.sleep(RETRY_S)

    async def strike_off(self, raft_id: str, timeout_s: float) -> None:
        """Have the state know that this core votes no more. The caller holds `lock`.

        Raises what `propose` raises; it may be called again.
        """
        runtime = self._node.runtime
        deadline = runtime.monotonic() + timeout_s
        while True:
            version, known = self._node.machine.voters
            left = tuple(other for other in known if other != raft_id)
            result: VotersResult = await self._node.propose(
                "core",
                SetVoters(left, version),
                timeout_s=max(RETRY_S, deadline - runtime.monotonic()),
            )
            if result.accepted:
                return

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Correct nothing meanwhile: for a forced removal, which does not wait for `lock`."""
        self._forced += 1
        try:
            yield
        finally:
            self._forced -= 1
            self.look()

    async def try_strike_off(self, raft_id: str, timeout_s: float) -> None:
        """`strike_off` for a removal that may not wait. What is on its way goes on."""
        telling = self._node.runtime.spawn(self._struck_off(raft_id), "voters")
        await asyncio.wait([telling], timeout=timeout_s)

    async def _struck_off(self, raft_id: str) -> None:
        try:
            await self.strike_off(raft_id, FORCED_S)
        except RaftkvError as error:
            log.warning("the state does not know yet that %s votes no more: %s", raft_id, error)
