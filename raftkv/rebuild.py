"""`on_corruption = "rebuild"`: a corrupt core comes back by itself, as a new one.

A core that was found corrupt (corruption_check.py) cannot mend its state: its snapshot may hold the
damage, and only a member with an empty directory is sent everything. So it goes the way on which an
operator replaces a core (docs/operations.md), and nothing else:

1. It asks the leader to remove it, and notes in the marker of its directory that this is committed.
   Where that is refused (too few of the other voters could go on), it only stops.
2. It stops. Whatever supervises the process starts it again.
3. It finds the marker with that note, empties its directory, and begins as a new node: under a new
   raft id, as one that was never a member. Its log, its votes and its state are gone.
4. It asks the cores that it knows, and the leader, to add it, until it votes. A learner first, it
   gets a snapshot and catches up. A replicant that had become a core asks to be promoted again.
   Until it votes it begins no cluster, and a core that has not learned of the removal yet does not
   stop it. The marker has taken the addresses of the cores over from the log, and the emptied
   directory keeps them: others stop dialling a core that was removed, and its configuration file
   need not name one that is still there.

A crash after the note in the marker repeats a step. Without the note (a crash before it, a removal
that was refused or took too long, a full disk) the next start asks again, reading nothing from the
directory and taking no part: until it is removed, or has been, which other cores tell at the
handshake. A directory whose core was not removed is never emptied: its log may be the last copy of
something.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from .errors import CorruptState, RaftkvError, again
from .member_changes import Request
from .parts import CorePart
from .raft import corrupt_marker
from .raft.membership import name_of
from .repeats import Repeats

if TYPE_CHECKING:
    import asyncio

    from .membership import Listing
    from .node import Node
    from .raft.membership import Configuration

__all__ = ["Rebuild"]

log = logging.getLogger("raftkv.node")

#: How long the removal may take, and one request to be added.
REMOVE_S: Final = 30.0
ADD_S: Final = 30.0
# And one request to be removed, at a start: another core may lead by then.
ASK_S: Final = 5.0
# Beyond that, the answer is on its way.
GRACE_S: Final = 0.5
LOOK_S: Final = 0.05
RETRY_S: Final = 1.0
# After so many seconds without an answer from any core that is the reason. An election is over.
SILENCE_S: Final = 10.0


class Rebuild:
    """The rebuilding of one core, before its end and after its next start."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: The core has asked for its removal.
        self.leaving = False
        #: The cluster has told that it is done.
        self.removed = False
        self._joining: asyncio.Task[Any] | None = None
        # Cores that another one has named, of which one may lead: the file need not name it.
        self._named: set[str] = set()
        # Why it does not vote yet, as others told.
        self._reason = ""
        self._repeats = Repeats(node.runtime.monotonic)
        if node._directory is not None:
            node._peering.addresses.remember(node._directory.known_cores)
        self._answered_at = node.runtime.monotonic()

    def known_cores(self, configuration: Configuration) -> list[tuple[str, str]]:
        """(name, address) of the other cores, by the log and the configuration file."""
        names = {name_of(member) for member in configuration.members} - {self._node.name}
        vouched = self._node._peering.addresses.vouched
        return [(name, address) for name in sorted(names) for address in vouched(name)]

    async def ask_for_removal(self) -> bool:
        """Whether the removal is committed. It is tried for REMOVE_S."""
        node, runtime = self._node, self._node.runtime
        self.leaving = True
        removing = runtime.spawn(
            node.membership.remove(node.name, timeout_s=REMOVE_S), "ask for the own removal"
        )
        until = runtime.monotonic() + REMOVE_S + GRACE_S
        while not (removing.done() or self.removed) and runtime.monotonic() < until:
            await runtime.sleep(LOOK_S)
        if not removing.done():
            removing.cancel()
        elif not removing.cancelled():
            error = removing.exception()
            self.removed = self.removed or error is None
            if not self.removed:
                log.error("%s cannot be rebuilt, because it was not removed: %s", node.name, error)
        return self.removed

    async def leave_marked(self) -> None:
        """At a start from a marked directory without the note: the core leaves the cluster yet.

        Nothing is read from the directory, and the node takes no part. Always raises CorruptState,
        or the fault for which another core refuses this one.
        """
        node, files, directory = self._node, self._node.runtime.files, self._node.config.dir
        self.leaving = True
        until = node.runtime.monotonic() + REMOVE_S
        while not self.removed and not node._fault.done() and node.runtime.monotonic() < until:
            for core in self._others():
                if not self.removed and await self._asked_to_remove(core, until):
                    self.removed = True
            await node.runtime.sleep(LOOK_S)
        if node._fault.done():
            raise again(node._fault.result())
        if not self.removed:
            corrupt_marker.refuse_marked(files, directory)
        reason = corrupt_marker.marked_as(files, directory) or ""
        cores = corrupt_marker.known_cores(files, directory)
        await node.runtime.offload(
            lambda: corrupt_marker.mark(files, directory, reason, removed=True, cores=cores)
        )
        raise CorruptState(
            f"{node.name} was removed from the cluster, because its state is corrupt: {reason}. "
            f"Start it again: it empties its directory and comes back as a new core"
        )

    async def _asked_to_remove(self, core: str, until: float) -> bool:
        """Ask this core, which may not lead. By the name, so only while it is this very core's."""
        node = self._node
        left_s = max(LOOK_S, min(ASK_S, until - node.runtime.monotonic()))
        request = Request("remove", node.name, False, left_s)
        try:
            listing = await node.membership.listing_of(core, left_s)
            self._learn(listing)
            if node.raft_id not in [member.raft_id for member in listing.members]:
                return False
            answer = await node.membership.answer_of(core, request)
        except (RaftkvError, msgspec.MsgspecError) as error:
            log.debug("%s does not remove %s: %s", core, node.name, error)
            return False
        if answer.outcome in ("refused", "pending"):
            self._note(answer.text)
        return answer.outcome == "done"

    def _learn(self, listing: Listing) -> None:
        """Where the leader is, by the word of a core."""
        for row in listing.members:
            address = row.peer_address or ""
            if row.name == listing.leader and self._node._peering.addresses.heard(
                row.name, address
            ):
                self._named.add(row.name)

    def start(self) -> None:
        """After the start of a node: if its directory was emptied, see to it that it votes."""
        node = self._node
        if node._directory is not None and node._directory.rejoins:
            if isinstance(node._part, CorePart):
                for name in node._peering.addresses.remembered:
                    node._peering.dial(name)
            self._joining = node.runtime.spawn(self._rejoin(), "rejoin the cluster")

    def stop(self) -> None:
        if self._joining is not None:
            self._joining.cancel()

    @property
    def text(self) -> str:
        """Why the rebuilt core does not vote yet; empty if that is not known, or over."""
        if not self._reason:
            return ""
        return (
            f"{self._node.name} was rebuilt, because its state was corrupt, and does not vote yet: "
            f"{self._reason}"
        )

    def on_wiped(self, text: str) -> bool:
        """A core knows this node under its former raft id. True: that will end.

        The removal of the former one is committed, but not every core has learned of it: one that
        was away, or whose log is behind. Each does as soon as its log goes on, so nothing here
        depends on how long that takes.
        """
        directory = self._node._directory
        if directory is None or not directory.rejoins:
            return False
        self._note(text)
        return True

    def _note(self, reason: str) -> None:
        """Log a reason that is new, or that has lasted."""
        self._reason = reason
        if self._repeats.left_out("reason", reason) is not None:
            log.warning("%s", self.text)

    async def _rejoin(self) -> None:
        node, directory = self._node, self._node._directory
        assert directory is not None
        while not self._votes():
            for core in self._others():
                if await self._ask_to_add(core):
                    break
            self._note_silence()
            await node.runtime.sleep(RETRY_S)
        files = node.runtime.files
        await node.runtime.offload(lambda: corrupt_marker.rejoined(files, directory.path))
        directory.rejoins, self._reason = False, ""
        node._peering.addresses.remember(())
        log.warning("%s is rebuilt: it votes as %s", node.name, node.raft_id)

    def _note_silence(self) -> None:
        """No core answers: its operator can name one that does."""
        name, cores = self._node.name, ", ".join(self._others())
        if cores and self._node.runtime.monotonic() - self._answered_at < SILENCE_S:
            return
        known = (
            f"none of the cores that it knows answers ({cores})" if cores else "it knows no core"
        )
        self._note(f"{known}: name a running core under [cores] of {name} and start it again")

    def _others(self) -> list[str]:
        """The cores to ask, of which one may lead.

        By the configuration file, remembered ones, those that are linked, and the leader.
        """
        node, part = self._node, self._node._part
        linked = list(part.engine.links) if isinstance(part, CorePart) else []
        leader = [] if node.leader is None else [node.leader]
        remembered = node._peering.addresses.remembered
        known = {*node.config.cores, *remembered, *map(name_of, linked), *leader, *self._named}
        return sorted(known - {node.name})

    def _votes(self) -> bool:
        part = self._node._part
        return isinstance(part, CorePart) and part.engine.me in part.engine.configuration.voters

    async def _ask_to_add(self, core: str) -> bool:
        """Ask this core, which may not lead.

        A replicant that had become a core is a replicant again, as its configuration file has it.
        """
        node = self._node
        verb: Literal["add", "promote"] = "promote" if node.role == "replicant" else "add"
        request = Request(verb, node.name, False, ADD_S, node.config.peer_address)
        try:
            answer = await node.membership.answer_of(core, request)
        except (RaftkvError, msgspec.MsgspecError) as error:
            log.debug("%s does not add %s: %s", core, node.name, error)
            return False
        self._answered_at = node.runtime.monotonic()
        if answer.outcome in ("refused", "pending"):
            self._note(answer.text)
        return answer.outcome == "done"
