"""Leases on one node: `node.leases`.

Granting and revoking are commands in the log. Keep-alives are not: they go by a call to the lessor,
the leader's part that counts them (lessor.py says why that is safe). What one node's users keep
alive within a turn of the loop goes in one call.

A call that finds no lessor is made again until its deadline, because the next leader is the lessor
as soon as it has claimed the leases; a keep-alive may be repeated at will.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from raftkv.errors import (
    NoLeader,
    PeerUnreachable,
    RaftkvError,
    RemoteFailed,
    Stopped,
    Timeout,
)
from raftkv.plugin import Host
from raftkv.validation import checked

from .arguments import check_grant, check_id
from .commands import Grant, GrantResult, LeaseNotFound, LeaseRow, Revoke, RevokeResult
from .keeping import Keeping, LeaseStatus
from .leasing import keys_of
from .lessor import CALL_IDS_MAX, LEFT, RENEW, Left, Renewed
from .walk import require_kept_state
from .work_budget import WorkBudget

__all__ = ["LeaseApi"]

T = TypeVar("T")

# Those who keep one lease alive in one turn of the loop.
_Waiters = list[asyncio.Future[int]]

# How long a call looks for the lessor if its caller has not said: several elections.
TIMEOUT_S = 5.0
# One attempt: a lessor that is cut off answers nothing, and another one may exist by then.
ATTEMPT_S = 1.5
# Of the list of all leases, which is read at once: a hundred thousand take two milliseconds.
IDS_PER_UNIT = 100
# Before the next attempt.
RETRY_S = 0.05

_decode_renewed = msgspec.msgpack.Decoder(Renewed).decode
_decode_left = msgspec.msgpack.Decoder(Left).decode
_encode = msgspec.msgpack.Encoder().encode


class Searches:
    """Calls that look for the lessor, so that they end with their node."""

    def __init__(self) -> None:
        # In their order, so that they end in it: a simulated run can be replayed.
        self._looking: dict[asyncio.Task[Any], None] = {}
        # Those of them that were ended with the node.
        self._ended: set[asyncio.Task[Any]] = set()

    @contextlib.contextmanager
    def until_end(self) -> Iterator[None]:
        """Cancel the body when the node stops or faults, and raise Stopped in its place."""
        task = asyncio.current_task()
        assert task is not None
        self._looking[task] = None
        try:
            yield
        except asyncio.CancelledError:
            if task in self._ended and task.uncancel() == 0:
                raise Stopped("the node has stopped") from None
            raise
        finally:
            self._looking.pop(task, None)
            self._ended.discard(task)

    def end(self) -> None:
        """The node stops or has faulted: end what looks for the lessor."""
        for task in self._looking:
            if task not in self._ended:
                self._ended.add(task)
                task.cancel()


@checked
class LeaseApi:
    """Grant leases, keep them alive, end them; keys attached to a lease end with it.

    Works on every node, replicants too. `grant` and `revoke` raise a `NotApplied` when nothing
    happened, a `Refused` when the keyspace refused, `Timeout` when the outcome is unknown. The
    others raise `LeaseNotFound` for a lease that is gone (never for one that merely could not be
    asked about), `NoLeader` when no lessor was found in time, and `Timeout` when the last attempt
    was not answered: both may be called again.
    """

    def __init__(self, host: Host, budget: WorkBudget) -> None:
        self._host = host
        self._budget = budget
        # Keep-alives of this turn of the loop, by lease.
        self._waiting: dict[int, _Waiters] = {}
        #: The node's service ends these.
        self.searches = Searches()

    async def grant(
        self, ttl_s: int, *, id: int = 0, timeout_s: float | None = None
    ) -> GrantResult:
        """Make a lease that lives for `ttl_s` seconds after the last keep-alive.

        The result says what was granted, at least `lease_ttl_min_s`. With `id` 0 the cluster
        chooses one. Raises `LeaseExists`, or `LeaseTtlTooLarge` beyond `lease_ttl_max_s`. A grant
        that ended in `Timeout` may have left a lease, which ends by itself.
        """
        check_grant(ttl_s, id)
        result: GrantResult = await self._host.propose(Grant(ttl_s, id), timeout_s=timeout_s)
        return result

    async def revoke(self, id: int, *, timeout_s: float | None = None) -> RevokeResult:
        """End the lease and delete the keys attached to it, in one revision.

        Raises `LeaseNotFound`.
        """
        check_id(id)
        result: RevokeResult = await self._host.propose(Revoke(id), timeout_s=timeout_s)
        return result

    async def keep_alive(self, id: int, *, timeout_s: float | None = None) -> int:
        """Let the lease live for its whole time to live again; the seconds it now has.

        They count from the moment of this call, not from its answer. Raises `LeaseNotFound`.
        """
        check_id(id)
        ttl_s = await self._insist(lambda: self._join(id), timeout_s)
        if ttl_s == 0:
            raise LeaseNotFound(f"there is no lease {id}: it was revoked, or has expired")
        return ttl_s

    async def time_to_live(
        self, id: int, *, keys: bool = False, timeout_s: float | None = None
    ) -> LeaseStatus:
        """What is left of the lease, asked of the lessor, and with `keys` what is attached to it.

        A lease that does not exist has `ttl_s` -1 and no keys, as in etcd.
        """
        check_id(id)
        left = await self._insist(lambda: self._left(id), timeout_s)
        if left.granted_s and keys:
            await self._host.barrier(timeout_s=timeout_s)
            row = self._row(id)
            await self._wait(0 if row is None else row.keys)
        row = self._row(id)
        if not left.granted_s or (keys and row is None):
            return LeaseStatus(id, 0, -1)
        attached = keys_of(self._host.view(), id) if keys else ()
        self._budget.spend(len(attached))
        return LeaseStatus(id, left.granted_s, left.left_ms // 1000, attached)

    async def _wait(self, units: int) -> None:
        """For a turn of the loop with room to read, behind a barrier. May raise ReadTimeout."""
        discards = self._host.view().discards
        await self._budget.rows(units)
        require_kept_state(self._host.view(), discards)

    def _row(self, id: int) -> LeaseRow | None:
        row: LeaseRow | None = self._host.view().table("leases").get(id)
        return row

    async def list(self, *, timeout_s: float | None = None) -> tuple[int, ...]:
        """The ids of all leases, in order; the read is linearizable."""
        await self._host.barrier(timeout_s=timeout_s)
        units = len(self._host.view().table("leases")) // IDS_PER_UNIT
        await self._wait(units)
        found = tuple(self._host.view().table("leases").keys())
        self._budget.spend(units)
        return found

    def keeping(self, ttl_s: int, *, id: int = 0) -> Keeping:
        """`async with`: a lease that is kept alive in the background and revoked at the end."""
        return Keeping(self, ttl_s, id=id)

    # -- calls to the lessor

    async def _insist(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        """Attempts until one is answered. Raises NoLeader or Timeout when the time is up.

        Raises Stopped, or the fault, when the node ends.
        """
        try:
            with self.searches.until_end():
                return await self._attempts(attempt, timeout_s)
        except Stopped:
            await self._host.barrier("local")  # raises the fault, if that is why
            raise

    async def _attempts(self, attempt: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        reason: RaftkvError = Timeout("it was not asked")
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                while True:
                    try:
                        # Raises Stopped, or the fault, on a node that does not run.
                        await self._host.barrier("local")
                        reason = Timeout("it has not answered yet")
                        return await attempt()
                    except (NoLeader, PeerUnreachable, RemoteFailed, Timeout) as error:
                        reason = error
                    await self._host.runtime.sleep(RETRY_S)
        except TimeoutError:
            if not scope.expired():
                raise
        if isinstance(reason, Timeout):
            raise Timeout(f"the lessor did not answer in {limit_s:g} s ({reason}); ask again")
        raise NoLeader(
            f"no lessor in {limit_s:g} s ({reason}). If it lasts, the cluster has lost its quorum"
        )

    async def _call(self, method: str, leases: tuple[int, ...]) -> bytes:
        leader = self._host.leader
        if leader is None:
            raise NoLeader("no leader is known")
        payload = _encode(leases)
        return await self._host.rpc.call(leader, method, payload, ATTEMPT_S)

    async def _left(self, lease: int) -> Left:
        left = _decode_left(await self._call(LEFT, (lease,)))
        if not left.lessor:
            raise NoLeader("the leader has not claimed the leases yet")
        return left

    def _join(self, lease: int) -> asyncio.Future[int]:
        """This turn's call, for one lease: done with its seconds, or with why there is none."""
        future: asyncio.Future[int] = self._host.runtime.future()
        if not self._waiting:
            self._host.runtime.call_soon(self._flush)
        self._waiting.setdefault(lease, []).append(future)
        return future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        leases = tuple(waiting)
        for start in range(0, len(leases), CALL_IDS_MAX):
            chosen = leases[start : start + CALL_IDS_MAX]
            futures = [waiting[lease] for lease in chosen]
            self._host.spawn(self._renew(chosen, futures), "keep leases alive")

    async def _renew(self, leases: tuple[int, ...], waiting: Sequence[_Waiters]) -> None:
        try:
            renewed = _decode_renewed(await self._call(RENEW, leases))
            if not renewed.lessor:
                raise NoLeader("the leader has not claimed the leases yet")
        except Exception as error:
            known = isinstance(error, RaftkvError)
            for futures in waiting:
                for future in futures:
                    if not future.done():
                        # Each is raised where its caller waits, with a trace of its own.
                        future.set_exception(type(error)(*error.args) if known else error)
            if not known:
                raise
            return
        for ttl_s, futures in zip(renewed.ttls_s, waiting, strict=True):
            for future in futures:
                if not future.done():
                    future.set_result(ttl_s)
