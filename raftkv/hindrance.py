"""Why a core cannot take its full part, as the others tell it: `node.hindrance`.

A core that lost entries which it had acknowledged (its directory is an older copy, or its disk was
rolled back) cannot know that by itself: the leader ignores it, its log gets no further, and its
reads time out as if a majority were gone. A core whose data directory was copied is refused by the
others while the first process answers (twins.py). Both are shown with the remedy: in the log, in
the status, in /health and /readyz, in the error of reads and in the metrics.

From core format 2 on the leader sends `LostEntries` once a second to each core whose
acknowledgements it does not believe, over its consensus link. What it told counts for VALID_S, or
for good once the own log has the flag (`Configuration.distrusted`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from .parts import CorePart
from .raft import wire
from .raft.membership import name_of

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from .node import Node
    from .raft.engine import Engine
    from .raft.transport import Link

__all__ = ["Hindrance"]

log = logging.getLogger("raftkv.node")

#: How often a leader tells a core that it is not believed.
PERIOD_S: Final = 1.0
#: How long a word of others counts that is not repeated: several periods.
VALID_S: Final = 5.0


class Hindrance:
    """What hinders one node. A replicant only as long as it is to become a core again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lost = ""
        self._lost_at = 0.0
        self._logged = ""
        self._running: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._running = self._node.runtime.spawn(self._run(), "look for hindrances")

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    @property
    def has_lost_entries(self) -> bool:
        """Whether the leader has told lately that this core lacks what it had acknowledged."""
        return bool(self._lost) and self._node.runtime.monotonic() - self._lost_at < VALID_S

    @property
    def text(self) -> str:
        """What hinders this node and what to do about it; empty if nothing does."""
        node, part = self._node, self._node._part
        if node.withdrawn is not None:
            return str(node.withdrawn)
        if node.rebuild.text:
            return node.rebuild.text
        if not isinstance(part, CorePart):
            return ""
        if self.has_lost_entries:
            return self._lost
        if part.engine.me in part.engine.configuration.distrusted:
            return self._text_of_loss("")
        return part.twins.refused(node.runtime.monotonic())

    async def _run(self) -> None:
        node = self._node
        while True:
            await node.runtime.sleep(PERIOD_S)
            if isinstance(node._part, CorePart):
                self._tell(node._part.engine)
            text = self.text
            if text and text != self._logged:
                log.error("%s", text)
            self._logged = text

    # -- lost entries

    def _tell(self, engine: Engine) -> None:
        """On a leader: to each core that lost what it had acknowledged."""
        if engine.leading is None or engine.application.core_format < 2:
            return
        for raft_id, index in engine.leading.lost().items():
            link = engine.links.get(raft_id)
            if link is not None and link.peer is not None and link.peer.core_format >= 2:
                link.send(wire.LostEntries(engine.term, index))

    def on_lost_entries(self, link: Link, message: wire.LostEntries) -> None:
        """The leader does not believe what this core has acknowledged."""
        part = self._node._part
        if not isinstance(part, CorePart) or link.peer_id != part.engine.leader:
            return
        if message.term == part.engine.term:
            up_to = f" up to {message.index}; its log ends at {part.engine.wal.last_index}"
            self._lost = self._text_of_loss(f" ({name_of(link.peer_id)} leads, and had it{up_to})")
            self._lost_at = self._node.runtime.monotonic()

    def _text_of_loss(self, details: str) -> str:
        name = self._node.name
        return (
            f"{name} has lost entries of the log that it had acknowledged{details}: its data "
            f"directory is an older copy, or its disk was rolled back. Its votes and "
            f"acknowledgements do not count. Replace it: raftkv member remove {name}, start it "
            f"with an empty directory, raftkv member add {name}"
        )
