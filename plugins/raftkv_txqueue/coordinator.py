"""A small transaction manager: two-phase commit over several clusters.

    coordinator = Coordinator("billing", FileJournal(runtime, "data/coordinator"),
                              {"eu": NodeResource(eu), "us": DoorResource(client)}, runtime=runtime)
    await coordinator.recover()                          # finish what an earlier process left

    async with coordinator.begin() as gt:
        await gt.enlist("eu", eu_session)
        await gt.enlist("us", us_session)
        await eu_session.accept(*got)
        await us_session.publish("orders", body)
    # committed in both; an exception inside rolls both back

Theory. Every branch is prepared first: it promises that it can be committed. When all have, the
decision is written to the journal and forced to disk, and from that moment the global transaction
is committed, whoever crashes. Then the branches are told. What has no decision in the journal is
rolled back (presumed abort), so nothing is written before, nor for a rollback.

    crashed after                        recover() finds                   and
    some branches were prepared          prepared ones, no decision        rolls them back
    all were prepared                    the same                          rolls them back
    the decision was written             prepared ones, the decision       commits them
    some branches were committed         the others, the decision          commits the others

Rules of this file
1. A name has one coordinator at a time, with one journal: the names of global transactions begin
   with it, and `recover` touches no others.
2. Only an answer that is certain counts (`xa_resource.py`). Before the decision an uncertain one is
   a no; after it the branch is asked again, and "unknown xid" says that it had heard.
3. A prepare that was on its way when a process died may still arrive after the next one has called
   `recover`. So call it now and then, not only at the start; it leaves alone what runs.
4. An operator may have decided a branch otherwise (heuristically). Then nothing can be done but to
   say so: `GlobalHazard`. A branch that an operator decided alike is simply forgotten.

With one branch there is nothing to agree on: it is committed in one phase, without the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from .coordinated import (
    GlobalCommitted,
    GlobalHazard,
    GlobalInDoubt,
    GlobalRolledBack,
    Recovered,
)
from .journal import Decision, Done, FileJournal, Journal, JournalFailed, MemoryJournal, World
from .xa import XaError, XaStatus, Xid
from .xa_resource import InDoubt, NodeResource, XaResource, XaSession, xa_error

__all__ = [
    "Coordinator",
    "FileJournal",
    "GlobalCommitted",
    "GlobalHazard",
    "GlobalInDoubt",
    "GlobalRolledBack",
    "GlobalTransaction",
    "JournalFailed",
    "MemoryJournal",
    "NodeResource",
    "Recovered",
    "XaResource",
    "XaSession",
]

#: The format of the xids that are made here ("RKTM"): other transaction managers have others.
FORMAT: Final = 0x524B544D
#: Bytes of a coordinator's name; with the rest it must fit into a xid.
NAME_BYTES_MAX: Final = 40
_TOKEN_BYTES: Final = 16
#: Finished transactions in the journal before it is written anew.
FINISHED_MAX: Final = 1_000
#: How long `commit` goes on telling a branch that does not answer.
FINISH_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0

_ROLLED_BACK: Final = (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)
_HEURISTIC: Final = (
    XaStatus.HEURCOM,
    XaStatus.HEURRB,
    XaStatus.HEURMIX,
    XaStatus.HEURHAZ,
)


class _Told(msgspec.Struct, frozen=True):
    """What came of telling branches. `left`: not told; `hazards`: decided otherwise before."""

    left: tuple[str, ...] = ()
    hazards: tuple[tuple[str, str], ...] = ()


class Coordinator:
    """`name`: 1 to 40 bytes of UTF-8 without "/". `resources` by name: never rename one.

    `finish_s`: how long a commit goes on telling its decision; `recover` does the rest.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        resources: Mapping[str, XaResource],
        *,
        runtime: World,
        finish_s: float = FINISH_S,
    ) -> None:
        prefix = name.encode()
        if not 1 <= len(prefix) <= NAME_BYTES_MAX or b"/" in prefix:
            raise ValueError(f"a coordinator's name has 1 to {NAME_BYTES_MAX} bytes and no '/'")
        for each in resources:
            if not 1 <= len(each.encode()) <= 64:
                raise ValueError(f"the name of a resource has 1 to 64 bytes: {each!r}")
        self.name = name
        self.resources = dict(resources)
        self._prefix = prefix + b"/"
        self._journal = journal
        self._runtime = runtime
        self._finish_s = finish_s
        # Those that run in this process: `recover` leaves them alone.
        self._running: set[bytes] = set()
        # Of each recovery under way: what has run at any time since it began.
        self._spared: list[set[bytes]] = []
        self._finished = 0
        self._failed = False

    # --- transactions ---

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[GlobalTransaction]:
        """A global transaction: committed at the end, rolled back on an exception.

        Its end raises what `GlobalTransaction.commit` raises.
        """
        transaction = self.new()
        try:
            yield transaction
        except asyncio.CancelledError:
            # Who is cancelled has no time: the branches have time-outs, and `recover` comes.
            transaction.leave()
            raise
        except BaseException:
            if transaction.open:
                await transaction.rollback()
            raise
        if transaction.open:
            await transaction.commit()

    def new(self) -> GlobalTransaction:
        """The same to be committed or rolled back by hand. Raises JournalFailed."""
        self._require_journal()
        gtrid = self._prefix + self._runtime.token(_TOKEN_BYTES)
        for each in (self._running, *self._spared):
            each.add(gtrid)
        return GlobalTransaction(self, gtrid)

    def xid(self, gtrid: bytes, resource: str) -> Xid:
        """The name of a branch."""
        return Xid(FORMAT, gtrid, resource.encode())

    def _require_journal(self) -> None:
        """What could not be written may be on the disk or not: this process must not guess."""
        if self._failed:
            raise JournalFailed("the coordinator's journal has failed: start the coordinator anew")

    # --- recovery ---

    async def recover(self) -> Recovered:
        """Finish what is left of transactions that do not run in this process.

        Does what can be done: resources that do not answer, and branches that could not be told,
        are in `left`, and another call goes on. Raises JournalFailed.
        """
        self._require_journal()
        # What runs meanwhile may write its decision after the journal is read here.
        spared = set(self._running)
        self._spared.append(spared)
        try:
            return await self._recover(spared)
        finally:
            self._spared = [each for each in self._spared if each is not spared]

    async def _recover(self, spared: set[bytes]) -> Recovered:
        records = await self._journal.read()
        done = {record.gtrid for record in records if isinstance(record, Done)}
        decided = {one.gtrid: one for one in records if isinstance(one, Decision)}
        committed: dict[bytes, None] = {}
        rolled_back: dict[bytes, None] = {}
        hazards: list[tuple[str, str]] = []
        left: set[str] = set()
        for name, resource in self.resources.items():
            try:
                found = await resource.recover()
            except Exception:
                left.add(name)
                continue
            for branch in found:
                gtrid = branch.xid.gtrid
                if not self._is_mine(branch.xid, name) or gtrid in spared:
                    continue
                told = await self._recover_branch(name, branch, commits=gtrid in decided)
                hazards += told.hazards
                left.update(told.left)
                if not told.left:
                    (committed if gtrid in decided else rolled_back)[gtrid] = None
        for gtrid, record in decided.items():
            if gtrid in done or gtrid in spared:
                continue
            untold = {name for name in record.resources if name not in self.resources}
            left |= untold
            if not left.intersection(record.resources):
                await self._finish(gtrid)
                committed[gtrid] = None
        return Recovered(tuple(committed), tuple(rolled_back), tuple(hazards), tuple(sorted(left)))

    def _is_mine(self, xid: Xid, resource: str) -> bool:
        return (
            xid.format == FORMAT
            and xid.gtrid.startswith(self._prefix)
            and xid.bqual == resource.encode()
        )

    async def _recover_branch(self, name: str, branch: InDoubt, *, commits: bool) -> _Told:
        resource, xid = self.resources[name], branch.xid
        try:
            return await self._tell_once(name, resource, xid, commits=commits)
        except Exception:
            return _Told(left=(name,))  # the next recovery asks again

    # --- the two phases ---

    async def _tell_all(self, gtrid: bytes, names: Sequence[str], *, commits: bool) -> _Told:
        """Tell branches what was decided, for `finish_s` at most, all of them at the same time."""
        told = await asyncio.gather(
            *(self._tell(name, self.xid(gtrid, name), commits=commits) for name in names)
        )
        return _Told(
            tuple(name for each in told for name in each.left),
            tuple(hazard for each in told for hazard in each.hazards),
        )

    async def _tell(self, name: str, xid: Xid, *, commits: bool) -> _Told:
        deadline = self._runtime.monotonic() + self._finish_s
        delay_s = _RETRY_FIRST_S
        while True:
            try:
                return await self._tell_once(name, self.resources[name], xid, commits=commits)
            except Exception as error:
                late = self._runtime.monotonic() + delay_s >= deadline
                if late or xa_error(error) is not None:
                    return _Told(left=(name,))
            await self._runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    async def _tell_once(
        self, name: str, resource: XaResource, xid: Xid, *, commits: bool
    ) -> _Told:
        """Raises what leaves the branch untold."""
        try:
            status = await (resource.commit(xid) if commits else resource.rollback(xid))
        except Exception as error:
            if xa_error(error) is XaError.NOT_FOUND:
                return _Told()  # it has heard before
            raise
        if status not in _HEURISTIC:
            # A prepared branch that says it was rolled back broke its promise: that is no answer
            # which a resource of ours gives, and nobody should lose it.
            broken = commits and status in _ROLLED_BACK
            return _Told(hazards=((name, status.name),)) if broken else _Told()
        await _forget(resource, xid)
        alike = status is (XaStatus.HEURCOM if commits else XaStatus.HEURRB)
        return _Told() if alike else _Told(hazards=((name, status.name),))

    async def _decide(self, gtrid: bytes, names: tuple[str, ...]) -> None:
        """From here on it is committed."""
        try:
            await self._journal.append(Decision(gtrid, names))
        except Exception:
            self._failed = True
            raise

    async def _finish(self, gtrid: bytes) -> None:
        """All branches have heard. It does no harm when this record is lost."""
        try:
            await self._journal.append(Done(gtrid), sync=False)
            self._finished += 1
            if self._finished >= FINISHED_MAX:
                self._finished = 0
                await self._journal.compact()
        except JournalFailed:
            # What is committed stays so; but nothing can be decided here any more.
            self._failed = True


class GlobalTransaction:
    """One unit of work over several resources; made by `Coordinator.begin` or `new`."""

    def __init__(self, coordinator: Coordinator, gtrid: bytes) -> None:
        self.gtrid = gtrid
        #: Whether neither commit nor rollback was called.
        self.open = True
        #: What came of it, once it is committed.
        self.committed: GlobalCommitted | None = None
        self._coordinator = coordinator
        # By resource: the sessions that work in its branch.
        self._sessions: dict[str, list[XaSession]] = {}

    def xid(self, resource: str) -> Xid:
        """The name of its branch in a resource."""
        return self._coordinator.xid(self.gtrid, resource)

    async def enlist(
        self, resource: str, session: XaSession, *, timeout_s: float | None = None
    ) -> Xid:
        """From now on what the session does belongs to this transaction.

        Further sessions of one resource join its branch. `timeout_s` is the branch's, and of its
        first session only. Raises LookupError for a resource that the coordinator does not know,
        ValueError when it is not open, and what `session.start` raises.
        """
        if not self.open:
            raise ValueError("this global transaction is over: begin another one")
        if resource not in self._coordinator.resources:
            raise LookupError(f"the coordinator has no resource {resource!r}")
        xid = self.xid(resource)
        joins = resource in self._sessions
        # Before it starts: whether it did may remain unknown, and then it has to be ended.
        sessions = self._sessions.setdefault(resource, [])
        sessions.append(session)
        status = (
            await session.start(xid, join=True)
            if joins
            else await session.start(xid, timeout_s=timeout_s)
        )
        if status is not XaStatus.OK:
            raise GlobalRolledBack(self.gtrid, f"{resource}: {status.name}")
        return xid

    async def commit(self) -> GlobalCommitted:
        """Commit in all resources, or in none.

        Raises `GlobalRolledBack` (nothing is visible anywhere), `GlobalInDoubt` (nobody knows yet;
        `Coordinator.recover` finishes it) and `GlobalHazard` (operators have decided some branches
        otherwise). A resource that has not heard of the decision yet is in the result's `left`.
        """
        self._close()
        try:
            names = tuple(self._sessions)
            problem = await self._end_all(fail=False)
            if problem:
                await self._roll_back(problem)
            if len(names) == 1:
                return await self._commit_one(names[0])
            return await self._commit_all(names)
        finally:
            self.leave()

    async def rollback(self) -> None:
        """Roll back in all resources. What cannot be reached has a time-out, or is recovered.

        Raises GlobalHazard: an operator has committed a branch before.
        """
        self._close()
        try:
            await self._end_all(fail=True)
            await self._roll_back_all()
        finally:
            self.leave()

    def leave(self) -> None:
        """Do nothing more about it here: it is left to `Coordinator.recover`, and to time-outs."""
        self.open = False
        self._coordinator._running.discard(self.gtrid)

    def _close(self) -> None:
        if not self.open:
            raise ValueError("this global transaction is over: begin another one")
        self.open = False

    async def _end_all(self, *, fail: bool) -> str:
        """Take the sessions off their branches; "" or why it can only be rolled back."""
        problem = ""
        for name, sessions in self._sessions.items():
            for session in sessions:
                try:
                    status = await session.end(self.xid(name), fail=fail)
                except Exception as error:
                    problem = problem or f"{name}: {type(error).__name__} at the end of its work"
                else:
                    if status is not XaStatus.OK:
                        problem = problem or f"{name}: {status.name}"
        return problem

    async def _commit_one(self, name: str) -> GlobalCommitted:
        resource, xid = self._coordinator.resources[name], self.xid(name)
        try:
            status = await resource.commit(xid, one_phase=True)
        except Exception as error:
            code = xa_error(error)
            if code in (None, XaError.NOT_FOUND):
                raise GlobalInDoubt(self.gtrid, f"{name}: {type(error).__name__}") from error
            await self._roll_back_all()
            raise GlobalRolledBack(self.gtrid, f"{name}: {type(error).__name__}") from error
        if status in _HEURISTIC:
            try:
                await _forget(resource, xid)
            except Exception as error:
                raise GlobalInDoubt(self.gtrid, f"{name}: {status.name}") from error
        if status in _ROLLED_BACK or status is XaStatus.HEURRB:
            raise GlobalRolledBack(self.gtrid, f"{name}: {status.name}")
        if status in (XaStatus.HEURMIX, XaStatus.HEURHAZ):
            raise GlobalHazard(self.gtrid, "committed", ((name, status.name),))
        self.committed = GlobalCommitted(self.gtrid)
        return self.committed

    async def _commit_all(self, names: tuple[str, ...]) -> GlobalCommitted:
        coordinator = self._coordinator
        statuses = await asyncio.gather(
            *(self._prepare(name) for name in names), return_exceptions=True
        )
        prepared, problems = [], []
        for name, status in zip(names, statuses, strict=True):
            if isinstance(status, BaseException):
                if not isinstance(status, Exception):
                    raise status
                problems.append(f"{name}: {type(status).__name__}")
            elif status is XaStatus.OK:
                prepared.append(name)
            elif status is not XaStatus.RDONLY:
                problems.append(f"{name}: {status.name}")
        if problems:
            await self._roll_back("; ".join(problems))
        if prepared:
            try:
                await coordinator._decide(self.gtrid, tuple(prepared))
            except Exception as error:
                why = str(error) if isinstance(error, JournalFailed) else type(error).__name__
                raise GlobalInDoubt(self.gtrid, why) from error
            told = await coordinator._tell_all(self.gtrid, prepared, commits=True)
            if not told.left:
                await coordinator._finish(self.gtrid)
            if told.hazards:
                raise GlobalHazard(self.gtrid, "committed", told.hazards)
            self.committed = GlobalCommitted(self.gtrid, told.left)
        else:
            self.committed = GlobalCommitted(self.gtrid)
        return self.committed

    def _prepare(self, name: str) -> Coroutine[Any, Any, XaStatus]:
        return self._coordinator.resources[name].prepare(self.xid(name))

    async def _roll_back(self, why: str) -> None:
        """Roll back everywhere, and say so. Raises GlobalRolledBack or GlobalHazard."""
        await self._roll_back_all()
        raise GlobalRolledBack(self.gtrid, why)

    async def _roll_back_all(self) -> None:
        names = tuple(self._sessions)
        told = await self._coordinator._tell_all(self.gtrid, names, commits=False)
        if told.hazards:
            raise GlobalHazard(self.gtrid, "rolled back", told.hazards)


async def _forget(resource: XaResource, xid: Xid) -> None:
    """Let a branch go that an operator has decided. Raises what leaves it there."""
    try:
        await resource.forget(xid)
    except Exception as error:
        if xa_error(error) is not XaError.NOT_FOUND:
            raise
