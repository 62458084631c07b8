"""Divergence in production: the cores compare digests of their states, at the same index.

1. Once in `corruption_check_s` the leader appends an entry of a kind of its own (`engine.DIGEST`),
   from core format 2 on. Each core freezes its state at that index, which is short, and computes
   the digests of its tables in slices while it goes on (state/digests.py).
2. It sends them to every core that it has a consensus link to, and again every REPORT_S: a link may
   have been down. Every core judges for itself what it has received (corruption.py).
3. A core that is certain to be corrupt answers nothing from its state any more (withdrawal.py),
   tells the replicants that follow it to copy the state again, marks its data directory, hands
   leadership over, and stops with `CorruptState`. A difference that is not certain to be its own
   raises the alarm CORRUPT, until a later comparison agrees.

What it costs. A slice is charged with ROW_S for each of its rows, BYTE_S for each of its bytes and
SLICE_S for itself. Measured were 0.5 us for a small row and 1.3 ns for a byte, a quarter of that.
The walk sleeps until the charge is LOOP_PART of the time that has passed: half a percent of the
loop, and twice that at most while it makes up for a loop that woke it late. So 10^6 small rows take
about 8 minutes. The counters of rows and bytes show what was charged.

Until the walk has passed a row, a write to it keeps its former value, as during a snapshot.

How soon a difference is noticed: a check that is under way ends, the next begins
`corruption_check_s` after the former one, or a tenth of its walk after its end if that is later,
and takes as long as its walk. Each core counts that time from the last entry that it has applied,
or from its start, so a change of leader delays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
import platform
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .corruption import Report, Verdict, judge
from .errors import CorruptState, DiskFailed
from .parts import CorePart
from .raft import corrupt_marker, wire
from .raft.membership import Configuration, name_of
from .state.digests import DigestWalk
from .withdrawal import withdraw

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .node import Node
    from .raft.engine import Engine
    from .raft.transport import Link

__all__ = ["CORRUPT", "CorruptionCheck"]

log = logging.getLogger("raftkv.node")

#: The name of the alarm.
CORRUPT: Final = "CORRUPT"

#: The part of the loop's time that a walk takes, by its charges.
LOOP_PART: Final = 0.005
#: Seconds that are charged for one row, one byte, one slice.
ROW_S: Final = 2e-6
BYTE_S: Final = 4e-9
SLICE_S: Final = 50e-6
# How much faster a walk goes at most that a busy loop has held up.
HASTE: Final = 2
# How often a leader looks whether a check is due.
LOOK_S: Final = 1.0
# Between two sendings of the newest report.
REPORT_S: Final = 5.0
# The next check begins when the other nodes' walks have ended, too: these may take longer than the
# leader's by such a part, and at least so many seconds.
RESULT_PART: Final = 0.1
RESULT_MIN_S: Final = 2.0
# Indexes of which a node keeps the reports: the last one, and the one that may begin elsewhere.
ROUNDS_KEPT: Final = 2
# Tables in one report. Every plugin has a handful.
TABLES_MAX: Final = 4096


class _Round(msgspec.Struct):
    """One index at which digests were taken; `configuration` was in force there."""

    index: int
    configuration: Configuration
    reports: dict[str, Report]


class CorruptionCheck:
    """See the module's text. On a replicant it does nothing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: Why the alarm CORRUPT is on; empty while it is off.
        self.alarm = ""
        #: The index of the last comparison in which a majority of the voters agreed.
        self.agreed_index = 0
        #: For the metrics.
        self.rows, self.bytes, self.taken = 0, 0, 0
        # Reports of others by index: they may be ahead of this node's own.
        self._received: dict[str, dict[int, Report]] = {}
        self._round: _Round | None = None
        self._walking: asyncio.Task[Any] | None = None
        self._walk_now: DigestWalk | None = None
        self._running: asyncio.Task[Any] | None = None
        self._leaving: asyncio.Task[Any] | None = None
        # Not before the next check is due; and when the newest report was sent last.
        self._due_at = 0.0
        self._sent_at = 0.0
        self._logged: tuple[int, tuple[str, ...]] | None = None

    def start(self) -> None:
        node = self._node
        if node.config.corruption_check_s > 0:
            self._due_at = node.runtime.monotonic() + node.config.corruption_check_s
            self._running = node.runtime.spawn(self._run(), "compare digests")

    def stop(self) -> None:
        for task in (self._running, self._walking):
            if task is not None:
                task.cancel()

    @property
    def _code(self) -> str:
        """What decides what `apply` does: raftkv, its formats, the decoder, the interpreter."""
        about = self._node.about
        formats = ",".join(f"{name}:{version}" for name, version in about.formats)
        parts = (about.software, formats, msgspec.__version__, platform.python_version())
        return " ".join(parts)

    # -- one round

    async def _run(self) -> None:
        node = self._node
        while True:
            await node.runtime.sleep(LOOK_S)
            part, now = node._part, node.runtime.monotonic()
            if not isinstance(part, CorePart):
                continue
            if self._round is not None and now - self._sent_at >= REPORT_S:
                self._send(part.engine)
            idle = self._walking is None or self._walking.done()
            compares = len(part.engine.configuration.voters) > 1
            if part.leads and idle and compares and now >= self._due_at:
                part.engine.ask_for_digests()
                self._due_at = now + node.config.corruption_check_s

    def point(self) -> None:
        """The state is at an index at which all cores take digests."""
        node, part = self._node, self._node._part
        period_s = node.config.corruption_check_s
        if not isinstance(part, CorePart) or period_s <= 0:
            return
        self._due_at = node.runtime.monotonic() + period_s
        if self._walking is not None and self._walk_now is not None:
            # A task that is cancelled before its first step never closes what it was given, and the
            # log that is read at a start has many such entries in a row.
            self._walking.cancel()
            self._walk_now.close()
        walk = self._walk_now = DigestWalk(node.machine.freeze())
        configuration = part.engine.configurations.at(walk.index)
        core_format = node.machine.core_format
        walking = self._walk(part.engine, walk, configuration, core_format)
        self._walking = node.runtime.spawn(walking, f"digests of index {walk.index}")

    async def _walk(
        self, engine: Engine, walk: DigestWalk, configuration: Configuration, core_format: int
    ) -> None:
        runtime = self._node.runtime
        began = due = runtime.monotonic()
        slices = walk.slices()
        try:
            for rows, size in slices:
                self.rows += rows
                self.bytes += size
                pause_s = (SLICE_S + rows * ROW_S + size * BYTE_S) / LOOP_PART
                due += pause_s
                # A busy loop wakes it late. That is made up for: the next entry ends a walk that is
                # longer than the leader's by RESULT_PART, and it would never get to its end.
                await runtime.sleep(max(due - runtime.monotonic(), pause_s / HASTE))
        finally:
            slices.close()
        self.taken += 1
        ended = runtime.monotonic()
        later_s = max(RESULT_MIN_S, (ended - began) * RESULT_PART)
        self._due_at = max(self._due_at, ended + later_s)
        mine = Report(core_format, self._code, walk.tables)
        known = {each: by[walk.index] for each, by in self._received.items() if walk.index in by}
        self._round = _Round(walk.index, configuration, {**known, engine.me: mine})
        self._send(engine)
        self._judge(engine)

    def _send(self, engine: Engine) -> None:
        """To every core: each judges for itself."""
        assert self._round is not None
        self._sent_at = self._node.runtime.monotonic()
        mine = self._round.reports[engine.me]
        message = wire.Digests(
            self._round.index, mine.core_format, mine.code, sorted(mine.tables.items())
        )
        for link in list(engine.links.values()):
            link.send(message)

    def on_digests(self, link: Link, message: wire.Digests) -> None:
        """Another core's report."""
        part = self._node._part
        if link.purpose != "raft" or len(message.tables) > TABLES_MAX:
            raise wire.ProtocolError("these digests are none of a core's state")
        if not isinstance(part, CorePart) or not part.engine.configuration.is_member(link.peer_id):
            return
        self._keep(part.engine.configuration.members, link.peer_id, message)
        current = self._round
        if current is not None and current.index == message.index:
            current.reports[link.peer_id] = self._received[link.peer_id][message.index]
            self._judge(part.engine)

    def _keep(self, members: Iterable[str], sender: str, message: wire.Digests) -> None:
        """The newest reports of each member."""
        for gone in [each for each in self._received if each not in members]:
            del self._received[gone]
        kept = self._received.setdefault(sender, {})
        kept[message.index] = Report(message.core_format, message.code, dict(message.tables))
        for index in sorted(kept)[:-ROUNDS_KEPT]:
            if index != message.index:
                del kept[index]

    # -- what follows

    def _judge(self, engine: Engine) -> None:
        current = self._round
        assert current is not None
        verdict = judge(engine.me, current.configuration, current.reports)
        if verdict.agreed:
            self.agreed(current.index)
        elif verdict.own:
            self._leave(verdict, current.index)
        elif verdict.differs:
            self._raise_alarm(verdict, current.index)

    def agreed(self, index: int) -> None:
        """A majority of the voters holds one state at this index, and so does every other node."""
        self.agreed_index = index
        if self.alarm:
            log.warning("the alarm %s has ended: index %d agrees", CORRUPT, index)
        self.alarm = ""

    def _raise_alarm(self, verdict: Verdict, index: int) -> None:
        names = ", ".join(name_of(each) for each in verdict.nodes)
        tables = ", ".join(verdict.tables)
        self.alarm = f"at index {index} the states of {names} differ in {tables}"
        if self._logged != (index, verdict.nodes):
            self._logged = (index, verdict.nodes)
            log.error(
                "alarm %s: %s. See the part on corrupt state of docs/operations.md",
                CORRUPT,
                self.alarm,
            )

    def _leave(self, verdict: Verdict, index: int) -> None:
        node = self._node
        tables = ", ".join(verdict.tables)
        self.alarm = (
            f"at index {index} a majority of the voters holds another state than {node.name}: "
            f"it differs in {tables}"
        )
        if self._leaving is None:
            log.error("alarm %s: %s. This node stops", CORRUPT, self.alarm)
            marker = os.path.join(node.config.dir, corrupt_marker.FILE)
            fault = CorruptState(f"{self.alarm}. {marker} marks its data directory. {_REMEDY}")
            withdraw(node, fault)
            self._leaving = node.runtime.spawn(self._end(self.alarm, fault), "stop as corrupt")

    async def _end(self, text: str, fault: CorruptState) -> None:
        """Whatever becomes of the preparations: a corrupt node stops."""
        try:
            await self._prepare_end(text)
        except Exception:
            log.exception("%s stops as corrupt without all preparations", self._node.name)
        self._node._faulted(fault)

    async def _prepare_end(self, text: str) -> None:
        """Mark the directory, hand leadership over, and ask for the removal if it is rebuilt."""
        node, part = self._node, self._node._part
        assert isinstance(part, CorePart)
        files, directory = node.runtime.files, node.config.dir
        cores = node.rebuild.known_cores(part.engine.configuration)
        try:
            await node.runtime.offload(
                lambda: corrupt_marker.mark(files, directory, text, cores=cores)
            )
        except OSError as error:
            node._faulted(
                DiskFailed(f"{text}, and the data directory cannot be marked: {error}. {_REMEDY}")
            )
            return
        await part.hand_over(node.config.raft.election_timeout_min_ms / 1000)
        if node.config.on_corruption == "rebuild" and await node.rebuild.ask_for_removal():
            with contextlib.suppress(OSError):  # then it is not rebuilt
                await node.runtime.offload(
                    lambda: corrupt_marker.mark(files, directory, text, removed=True, cores=cores)
                )


_REMEDY: Final = (
    "Replace the node: raftkv member remove, start it with an empty directory, raftkv member add"
)
