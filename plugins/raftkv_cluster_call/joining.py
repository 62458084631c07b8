"""How a node comes to take part: its first cursor, a copy of another's state, and out of a gap.

Rules of this file
1. Nothing runs here before it is known that this node's data is what its cursor says. The worker's
   lock is taken when the service starts, and kept until the states are admitted (`states.py`), or
   until the node turns out to have no cursor, or one that does not follow.
2. A cursor never jumps over what was not executed. It begins behind a copy of a node that had
   executed all of it (`Sync`), and a copy older than what is trimmed is refused by the log
   (`TooOld`) and made again. Only an operator may declare that what is here will do.
3. Whom to copy from follows from replicated rows: cores that are up and follow, the highest cursor
   first, by name among equals. Never from a replicant: it might be far behind the log itself.
4. Nothing here is a decision of its own; whatever fails is tried again, for ever, and told.

The steps, each of which may be repeated after a crash:

    no cursor   --Join-->  joining, or following at once if nobody follows
    joining, gap  --copy, load, Sync(as_of)-->  following
    following, but a state lost its data  --Join(wiped)-->  gap

What is ugly: a node without any state has nothing to copy and joins at the highest cursor. If its
program registers a state later, that one is new there and is taken to be as of the cursor, because
nobody can know better. So register states before the first `await` behind `node.start()`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Protocol

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError, RemoteFailed
from raftkv.plugin import Host, Metric, View

from .commands import Cursor, Join, Sync
from .functions import cause_of
from .states import States
from .transfer import Copied, CopyFailed, Transfer
from .views import cursor_of, oldest_id

__all__ = ["Joining", "NothingToCopy", "Trouble", "sources"]

# Pauses between two tries double from the one to the other. One ends early when another source
# turns up, or this node's own cursor changes.
RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
# One copy from one source: `state_bytes_max` at 2 MiB a second.
FETCH_TIMEOUT_S = 32.0
BARRIER_S = 5.0


class Trouble(msgspec.Struct, frozen=True):
    """Why this node does not take part yet: since when, after how many tries. For the alarms."""

    since_ms: int
    attempts: int
    cause: str


class Parts(Protocol):
    """What is needed of the node's calls (`CallsApi` has it)."""

    states: States
    transfer: Transfer


class NothingToCopy(RaftkvError):
    """A node in a gap has no state that could be copied: an operator decides how it goes on."""

    code: ClassVar[str] = "calls_nothing_to_copy"


class Joining:
    """The task of one node that lets it take part. `start` it before the worker."""

    def __init__(self, host: Host, node: Parts) -> None:
        self._host = host
        self._states = node.states
        self._transfer = node.transfer
        self._woken = asyncio.Event()
        self._holds = False
        self._stopped = False
        self._fresh = False
        # Seen without a following cursor: whatever makes it follow again has looked at its data.
        self._apart = False
        #: What is wrong; None while all is well.
        self.trouble: Trouble | None = None
        self.failures = 0

    async def start(self) -> None:
        """Take the lock and begin. The service's `start` awaits this first."""
        self._transfer.register()
        self._states.on_added = self.wake
        await self._states.lock.acquire()
        self._holds = True
        self._host.spawn(self._run(), "joining")

    def wake(self) -> None:
        """Look again: a cursor, a setting or a member may have changed, or a snapshot came."""
        self._woken.set()

    def stop(self) -> None:
        """The node stops. The lock is not given back: what was held up runs no more."""
        self._stopped = True

    def metrics(self) -> Sequence[Metric]:
        return (
            Metric("joining_failed", "counter", self.failures, "Failed tries to take part."),
            Metric(
                "joining_trouble",
                "gauge",
                int(self.trouble is not None),
                "1 while this node cannot take part although it should.",
            ),
        )

    # --- the task ---

    async def _run(self) -> None:
        pause_s = RETRY_MIN_S
        while not self._stopped:
            self._woken.clear()
            situation = self._situation()
            try:
                done = await self._step()
            except Exception as error:
                self._failed(error)
                await self._pause(pause_s, situation)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            pause_s = RETRY_MIN_S
            if done:
                self._succeeded()
                await self._woken.wait()

    async def _pause(self, pause_s: float, situation: object) -> None:
        """Wait, but not when the situation has changed: what failed may succeed now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self._situation() == situation:
                    self._woken.clear()
                    await self._woken.wait()

    def _situation(self) -> object:
        """What a try depends on, but for the other nodes' answers."""
        view, name = self._host.view(), self._host.name
        cursor = cursor_of(view, name)
        least = 0 if cursor is None else cursor.as_of
        left = view.table("left").get(name)
        return cursor, left, sources(view, name, least), self._states.names

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        ours = isinstance(error, RaftkvError)
        cause = f"{type(error).__name__}: {error}" if ours else cause_of(error)
        before = self.trouble
        if before is None or before.cause != cause:
            self._host.log.info("calls: %s does not take part yet: %s", self._host.name, cause)
        since_ms = self._host.now_ms() if before is None else before.since_ms
        self.trouble = Trouble(since_ms, 1 if before is None else before.attempts + 1, cause)

    def _succeeded(self) -> None:
        if self.trouble is not None:
            self._host.log.info("calls: %s takes part again", self._host.name)
            self.trouble = None

    # --- one step ---

    async def _step(self) -> bool:
        """Do what is next; whether there is nothing to do until something changes."""
        if not self._fresh:
            # A copy of the log from before a restart may not know this node's cursor.
            await self._host.barrier(timeout_s=BARRIER_S)
            self._fresh = True
        cursor = cursor_of(self._host.view(), self._host.name)
        if cursor is not None and cursor.state == "following":
            return await self._settle()
        self._release()
        self._apart = True
        if cursor is not None:
            await self._copy(cursor)
            return False
        if not self._may_join():
            return True
        joined = await self._host.propose(Join())
        self._host.log.info("calls: %s is %s from call %d on", *self._joined(joined))
        return False

    def _joined(self, joined: object) -> tuple[str, str, int]:
        state: str = getattr(joined, "state", "")
        id: int = getattr(joined, "cursor", 0)
        return self._host.name, state, id

    def _may_join(self) -> bool:
        view = self._host.view()
        left = view.table("left").get(self._host.name)
        if left is not None and not left.forced:
            return False
        return self._host.role == "core" or bool(view.settings["replicants_take_part"])

    async def _settle(self) -> bool:
        """This node follows: see to it that its states know, and that they have lost nothing."""
        states = self._states
        cursor = self._cursor()
        if cursor is None:
            return False
        up_to_date = states.settled and states.remembered and cursor.id <= states.told
        if up_to_date and not self._holds:
            return True
        async with self._locked():
            cursor = self._cursor()
            if cursor is None:
                return False
            if self._apart and not states.settled:
                # Nobody followed, or an operator said so: what is here is what the others copy.
                await states.adopt(cursor.id)
            lost = await states.admit(self._host.view, cursor)
            if not lost:
                self._apart = False
                return False
            self._host.log.warning(
                "calls: what calls had made of %s is lost (%s): it needs a copy of another node",
                self._host.name,
                ", ".join(lost),
            )
            await self._host.propose(Join(wiped=True))
        return False

    def _cursor(self) -> Cursor | None:
        """This node's cursor, if it follows."""
        cursor = cursor_of(self._host.view(), self._host.name)
        return cursor if cursor is not None and cursor.state == "following" else None

    async def _copy(self, cursor: Cursor) -> None:
        """Copy another node's states, load them, and follow from there."""
        view = self._host.view()
        names = self._states.names
        candidates = sources(view, self._host.name, cursor.as_of)
        if not names and cursor.state == "gap":
            raise NothingToCopy(
                f"{self._host.name} has missed calls that are trimmed, and has no state that could "
                f"be copied: see to it by hand, then let it go on with "
                f"`raftkv calls fast-forward {self._host.name} {cursor.as_of}`"
            )
        if not candidates:
            raise CopyFailed("no core that is up follows the calls: there is nobody to copy from")
        if not names:
            source = cursor_of(view, candidates[0])
            assert source is not None
            await self._host.propose(Sync(source.id))
            return
        copied = await self._fetch(candidates, max(cursor.as_of, oldest_id(view) - 1))
        async with self._locked():
            now = cursor_of(self._host.view(), self._host.name)
            if now is None or now.state == "following":
                return
            await self._states.load(copied.states, copied.as_of)
            await self._host.propose(Sync(copied.as_of))
        self._host.log.info(
            "calls: %s holds a copy as of call %d and follows", self._host.name, copied.as_of
        )

    async def _fetch(self, candidates: Sequence[str], least: int) -> Copied:
        """A copy from the first of these that has one for all states of this node."""
        failure: RaftkvError | None = None
        for node in candidates:
            try:
                copied = await self._transfer.fetch(
                    node, timeout_s=FETCH_TIMEOUT_S, fresh=False, least=least
                )
            except (NotApplied, OutcomeUnknown, RemoteFailed) as error:
                failure = error
                continue
            missing = [name for name in self._states.names if name not in copied.states]
            if not missing and copied.as_of >= least:
                return copied
            what = f"has no state {', '.join(missing)}" if missing else "is too far behind"
            failure = CopyFailed(f"{node} {what}: it cannot be copied from")
        assert failure is not None
        raise failure

    # --- the lock ---

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the lock; after a failure it stays held, for until a next try nothing may run."""
        if not self._holds:
            await self._states.lock.acquire()
            self._holds = True
        yield
        self._release()

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            self._states.lock.release()


def sources(view: View, name: str, least: int) -> tuple[str, ...]:
    """Whom a node copies from, the best first; see the rules above."""
    found: list[tuple[int, str]] = []
    for node, cursor in view.table("cursors").scan():
        member = view.members.get(node)
        if node == name or member is None or not member.up or member.role != "core":
            continue
        if cursor.state == "following" and cursor.id >= least:
            found.append((-cursor.id, node))
    return tuple(node for _, node in sorted(found))
