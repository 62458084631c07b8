"""How the recipes wait, and how they try again.

Rules of this package
1. *Decide on state, wait on changes.* A recipe reads (linearizably), decides, and if it must wait
   does so for a change after the revision that it has read. Then it reads again. So a lost watch, a
   compaction or another node after a failure can delay it, but never mislead it.
2. *Wait for one thing.* Whoever stands in a queue watches its predecessor, so that a release wakes
   one waiter and not all of them.
3. *Every write may be sent twice.* A write of a recipe is a transaction that compares what it is
   built on. Before it is repeated, the former one is settled where the store can do that
   (`Settling`), and not repeated if it was applied: otherwise a late one could do its work behind
   the back of the next. Where nobody can tell, it is repeated (`txn`) or the caller is told
   (`once`). The latter is for what another one may undo meanwhile, as a consumer does with an
   entry of a queue: the comparison would hold again.
4. *No clock.* How long a thing is held is the lease's affair, which the cluster decides. Who wants
   to wait no longer than so long puts `asyncio.timeout` around the call: cancelling cleans up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from raftkv.errors import (
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
    RaftkvError,
    ReadTimeout,
    RemoteFailed,
    WatchCancelled,
)
from raftkv.kv import (
    Compare,
    KeyValue,
    Operation,
    OperationResult,
    RangeResult,
    TxnOutcome,
    TxnResult,
)
from raftkv.kv.transactions import unflatten
from raftkv.plugin import Outcome

from .ports import KvPort, Settling, Store

__all__ = ["Done", "changed", "insist", "once", "settle", "shrunk", "txn"]

T = TypeVar("T")

# Between attempts; a leader is elected within a second or so.
RETRY_S = 0.1

#: What passes by itself: the cluster elects a leader, a queue drains, a connection comes back.
TRANSIENT = (NoLeader, Overloaded, PeerUnreachable, ReadTimeout, RemoteFailed, OutcomeUnknown)


async def insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Attempts until one is answered. For what may be done twice; the caller bounds the time."""
    while True:
        try:
            return await attempt()
        except TRANSIENT:
            await asyncio.sleep(RETRY_S)


async def settle(store: Store, unknown: OutcomeUnknown) -> Outcome | None:
    """What became of a write whose answer was not heard; None if the store cannot tell.

    When it returns an outcome, the write is not on its way any more.
    """
    session, seq = unknown.session, unknown.seq
    if not session or not isinstance(store, Settling):
        return None
    try:
        return await insist(lambda: store.outcome(session, seq))
    except RaftkvError:
        return None


class Done(NamedTuple):
    """A transaction that was answered, or settled later.

    `repeated`: an earlier attempt may have been applied too, and nobody can tell.
    """

    revision: int
    succeeded: bool
    results: tuple[OperationResult, ...]
    repeated: bool

    def rows(self, number: int = 0) -> tuple[KeyValue, ...]:
        """The keys that one of its reads gave; there must be results."""
        result = self.results[number]
        assert isinstance(result, RangeResult)
        return result.kvs


def _settled(outcome: Outcome, *, repeated: bool) -> Done | None:
    """What an attempt did that is known to have been applied; None if that is not kept."""
    result = outcome.result
    if isinstance(result, TxnOutcome):
        result = unflatten(result)
    if not isinstance(result, TxnResult):
        return None
    return Done(result.revision, result.succeeded, result.results, repeated)


async def txn(
    store: Store,
    compare: Iterable[Compare] = (),
    success: Iterable[Operation] = (),
    failure: Iterable[Operation] = (),
) -> Done:
    """A transaction that may be done twice (rule 3), until it is answered.

    Twice means: at two moments, between which others may have acted on what it did. Where that
    could do harm, use `once`.
    """
    compare, success, failure = tuple(compare), tuple(success), tuple(failure)
    repeated = False
    while True:
        try:
            done = await store.kv.txn(compare, success, failure)
            return Done(done.revision, done.succeeded, done.results, repeated)
        except OutcomeUnknown as error:
            outcome = await settle(store, error)
            if outcome is None or outcome.verdict == "expired":
                repeated = True
            elif outcome.verdict == "applied":
                known = _settled(outcome, repeated=repeated)
                if known is not None:
                    return known
                repeated = True
        except TRANSIENT:
            await asyncio.sleep(RETRY_S)


async def once(
    store: Store,
    compare: Iterable[Compare],
    success: Iterable[Operation],
    failure: Iterable[Operation] = (),
) -> Done:
    """A transaction that must not be done twice, until it is answered or settled.

    Raises OutcomeUnknown if nobody can tell whether it was done.
    """
    compare, success, failure = tuple(compare), tuple(success), tuple(failure)
    while True:
        try:
            done = await store.kv.txn(compare, success, failure)
            return Done(done.revision, done.succeeded, done.results, repeated=False)
        except OutcomeUnknown as error:
            outcome = await settle(store, error)
            if outcome is None or outcome.verdict == "expired":
                raise
            if outcome.verdict == "refused":
                raise outcome.result from None
            if outcome.verdict == "applied":
                known = _settled(outcome, repeated=False)
                if known is None:
                    raise
                return known
        except TRANSIENT:
            await asyncio.sleep(RETRY_S)


async def changed(
    kv: KvPort,
    since: int,
    *,
    key: bytes | None = None,
    prefix: bytes | None = None,
    put: bool = True,
    delete: bool = True,
) -> None:
    """Return once something has changed after the revision `since`, or perhaps has: read again."""
    try:
        async with kv.watch(
            key, prefix=prefix, start_revision=since + 1, put=put, delete=delete
        ) as watch:
            async for batch in watch:
                if batch.events:
                    return
    except WatchCancelled:
        # A node that stops ends its watches; whether that is the end of us, the next read tells.
        await asyncio.sleep(0)
    except TRANSIENT:
        await asyncio.sleep(RETRY_S)


async def shrunk(kv: KvPort, since: int, prefix: bytes, keys: Iterable[bytes], below: int) -> None:
    """Return once fewer than `below` of `keys` exist, or perhaps do: read again.

    They all start with `prefix`, and existed at the revision `since`.
    """
    left = set(keys)
    if len(left) == 1 and below == 1:
        await changed(kv, since, key=left.pop(), put=False)
        return
    try:
        async with kv.watch(prefix=prefix, start_revision=since + 1, put=False) as watch:
            async for batch in watch:
                left.difference_update(event.kv.key for event in batch.events)
                if len(left) < below:
                    return
    except WatchCancelled:
        await asyncio.sleep(0)
    except TRANSIENT:
        await asyncio.sleep(RETRY_S)
