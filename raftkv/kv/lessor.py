"""The lessor: the leader's part in keeping leases alive and in ending those that nobody keeps.

Theory. A lease is a row with a time to live; it ends when `Expire` names it, and nothing but the
lessor proposes that. Keep-alives never enter the log: the lessor counts them in its memory (etcd's
design). Two facts make up for memory being lost with its node:

- *Claim.* A new leader proposes `ClaimLessor`, which extends every live lease by its whole time to
  live and gives the leader an epoch. It proposes no `Expire` before that has been applied.
- *Fence.* `Expire` carries the epoch and is refused under another one. So no lessor can expire a
  lease whose keep-alives another one counts.

Never early. Let a keep-alive be sent at time t and be answered. Then the lease lives until t + ttl:

1. The lessor answers only after a linearizable barrier, begun when the question had come, at whose
   end the epoch in the state is still its own. So no later claim was applied before t; one that
   comes after t extends the lease from then on.
2. Its own `Expire` names only leases that are due in its memory, where the answer put t + ttl.
3. An `Expire` that names the lease and is on its way when the keep-alive comes must be settled
   first, through the log if need be. Until then the keep-alive waits. This holds for the id, not
   for the row: an id may be granted again while an old command still travels.

Time. The lessor counts on the monotonic clock, set by the log's clock when it took office: the
log's clock itself may jump by days when a leader with another date is elected, and a deposed leader
must not judge by that. Apply compares `due_ms` with the log's clock again; that bound alone would
not know of keep-alives, and only keeps a faulty lessor from ending a lease that was just granted.

Time in which the lessor stood still (a stopped process, a suspended machine) does not count: the
keep-alives of that time lie unread in its sockets. So leases live longer after it, never shorter;
but only those that were there: the time of a row is the log's clock, which went on meanwhile, so
one that was granted after the stall is due by as much earlier on the lessor's own clock.

Cost. Nothing is proposed and no timer runs while there are no leases. With leases there is a tick
of `TICK_S`, so that is how late an expiry may be. It looks into the table `due`, which is ordered
by time, from where it stopped last; what lies in the future is never read.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from raftkv.errors import NotApplied, RaftkvError, Refused, Timeout
from raftkv.plugin import Host, Metric, View

from .commands import ClaimLessor, ClaimLessorResult, Expire, ExpireResult, LeaseRow, NotLessor
from .dues import Dues, Identity
from .leasing import lessor_epoch

__all__ = ["CALL_IDS_MAX", "LEFT", "RENEW", "Left", "Lessor", "Renewed"]

#: Methods of calls to the lessor.
RENEW: Final = "lease_renew"
LEFT: Final = "lease_left"

#: Leases in one call; more are sent in several. Encoded they stay far below the limit of bytes.
CALL_IDS_MAX: Final = 1000
CALL_BYTES_MAX: Final = 16 * 1024

# How often the lessor looks for leases that are due: how late an expiry may be.
TICK_S = 0.5
# A tick that comes so much late means that the process stood still.
STALL_S = 0.25
# So many are told apart; older ones count as none. At most a few in a minute are to be expected.
STALLS_MAX = 1024
# A lessor that cannot reach a majority for so long lets its callers look for another.
BARRIER_S = 1.0
# A proposal of the lessor is given up, or asked after, when it was not applied for so long.
PROPOSAL_S = 5.0
RETRY_S = 0.2
# After a refusal that should not be, so that the log is not filled with it.
REFUSED_RETRY_S = 10.0

# Rows that one `Expire` may delete, leases and keys; a lease with more keys goes alone.
EXPIRE_ROWS_MAX = 1000
# Rows of `due` that one tick reads; the next follows at once if there are more.
COLLECT_ROWS_MAX = 2000
# The shortest time to live that can be granted.
TTL_MIN_MS = 1000
# The lowest id that a client may choose: a signed 64-bit number, as in etcd.
ID_MIN = -(1 << 63)


class Renewed(msgspec.Struct, frozen=True, array_like=True):
    """The lessor's answer: of each lease the seconds it lives from now, 0 if there is none.

    `lessor` False: this node is not the lessor (any more), and the rest says nothing.
    """

    lessor: bool
    ttls_s: tuple[int, ...] = ()


class Left(msgspec.Struct, frozen=True, array_like=True):
    """Of one lease: what was granted, and what is left of it; `granted_s` 0 if there is none."""

    lessor: bool
    granted_s: int = 0
    left_ms: int = 0


_decode_ids = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_encode = msgspec.msgpack.Encoder().encode


class Office:
    """One epoch of one lessor: what was kept alive, what is due, what is being expired."""

    def __init__(self, host: Host, epoch: int, lost: Callable[[], None]) -> None:
        """`lost` is called when the log says that another lessor has followed."""
        self.epoch = epoch
        self.ended = False
        self.renewals = 0
        self.expired = 0
        self._host = host
        self._lost = lost
        self._dues = Dues()
        self._offset_ms = host.now_ms() - self._monotonic_ms()
        self._stalled_ms = 0
        # Of each stall: the log's clock at its end, and how much there had been until then.
        self._stalls: list[tuple[int, int]] = []
        self._claimed_ms = self.now_ms()
        # Where the next look into `due` begins, and the state that the last one was of.
        self._from = (0, 0)
        self._collected_index = -1
        self._safe_ms = 0
        self._timer: Any = None
        self._tick_at_ms = 0
        # Leases in an Expire whose fate is not known, and who waits for that.
        self._expiring: frozenset[int] = frozenset()
        self._settled: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._dues)

    def _monotonic_ms(self) -> int:
        return int(self._host.runtime.monotonic() * 1000)

    def now_ms(self) -> int:
        """This lessor's clock: see the module's text."""
        return self._monotonic_ms() + self._offset_ms - self._stalled_ms

    def end(self) -> None:
        """Another lessor follows, or none."""
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
        self._release()

    # -- keep-alives

    def due_ms(self, lease: int, row: LeaseRow) -> int:
        """When the lease is due, as far as this lessor knows now."""
        known = self._dues.due_ms(lease, Identity(row.due_ms, row.ttl_s))
        # The claim has extended what was there before it by the whole time to live.
        return known or max(self._granted_due_ms(row), self._claimed_ms + row.ttl_s * 1000)

    def _granted_due_ms(self, row: LeaseRow) -> int:
        """When the row is due that nobody has kept alive, on this lessor's clock."""
        granted_ms = row.due_ms - row.ttl_s * 1000
        before = bisect.bisect_right(self._stalls, granted_ms, key=_ended_ms)
        return row.due_ms - (self._stalls[before - 1][1] if before else 0)

    def extend(self, leases: Iterable[int]) -> list[int]:
        """Each of them lives for its time to live from now on. Returns these, 0 if it is gone."""
        rows = self._host.view().table("leases")
        now_ms = self.now_ms()
        ttls_s = []
        for lease in leases:
            row: LeaseRow | None = rows.get(lease)
            if row is None:
                ttls_s.append(0)
                continue
            due_ms = max(now_ms + row.ttl_s * 1000, self.due_ms(lease, row))
            self._dues.extend(lease, Identity(row.due_ms, row.ttl_s), due_ms)
            ttls_s.append(row.ttl_s)
        return ttls_s

    async def settled(self, leases: Sequence[int]) -> None:
        """Return once it is known what became of every `Expire` that names one of these."""
        while not self._expiring.isdisjoint(leases):
            assert self._settled is not None
            await asyncio.shield(self._settled)

    # -- the timer

    def wake(self) -> None:
        """There are leases: see to it that somebody looks when they are due."""
        if self._timer is None and not self.ended:
            self._arm(TICK_S)

    def _arm(self, delay_s: float) -> None:
        self._tick_at_ms = self._monotonic_ms() + int(delay_s * 1000)
        self._timer = self._host.runtime.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        late_ms = self._monotonic_ms() - self._tick_at_ms
        if late_ms > STALL_S * 1000:
            self._note_stall(late_ms)
        self._tick_at_ms = self._monotonic_ms()
        view = self._host.view()
        if not len(view.table("leases")):
            return
        more = self._collect(view)
        if self._task is None:
            batch = self._next_batch()
            if batch:
                self._task = self._host.spawn(self._expire(batch), "expire leases")
        self._arm(0.0 if more else TICK_S)

    def _note_stall(self, late_ms: int) -> None:
        self._stalled_ms += late_ms
        if len(self._stalls) == STALLS_MAX:
            # Rows from before the second one live longer than they must.
            del self._stalls[0]
        self._stalls.append((self._monotonic_ms() + self._offset_ms, self._stalled_ms))

    def _collect(self, view: View) -> bool:
        """Take up the leases whose rows have become due. Whether there are more.

        A row that appears behind the place where the last look ended would be missed. Entries that
        were not applied then have stamps of at least `view.now`, and grant at least TTL_MIN_MS: so
        their rows lie at `_safe_ms` or later, and the look begins there if anything was applied.
        """
        if view.index != self._collected_index:
            self._from = min(self._from, (self._safe_ms, ID_MIN))
        self._collected_index = view.index
        self._safe_ms = view.now + TTL_MIN_MS
        # Keys are times of the log's clock, which stalls do not hold up.
        end = (self._monotonic_ms() + self._offset_ms + 1, ID_MIN)
        if end <= self._from:
            return False
        leases = view.table("leases")
        count = 0
        for key, _ in view.table("due").scan(self._from, end, limit=COLLECT_ROWS_MAX):
            count += 1
            self._from = (key[0], key[1] + 1)
            row = leases.get(key[1])
            if row is not None:
                identity = Identity(row.due_ms, row.ttl_s)
                self._dues.extend(key[1], identity, self.due_ms(key[1], row))
        if count == COLLECT_ROWS_MAX:
            return True
        self._from = end
        return False

    # -- expiry

    def _next_batch(self) -> tuple[int, ...]:
        """Leases that are due, as many as one command may delete.

        None before a tick that is late: it has to say first that the process stood still.
        """
        if self._monotonic_ms() - self._tick_at_ms > STALL_S * 1000:
            return ()
        view = self._host.view()
        leases = view.table("leases")
        now_ms = self.now_ms()
        batch: list[int] = []
        rows_left = EXPIRE_ROWS_MAX
        while popped := self._dues.pop(now_ms, 1):
            lease = popped[0]
            row: LeaseRow | None = leases.get(lease)
            if row is None:
                self._dues.forget(lease)
            elif self.due_ms(lease, row) > now_ms:
                # Granted anew under the same id.
                self._dues.extend(lease, Identity(row.due_ms, row.ttl_s), self.due_ms(lease, row))
            elif batch and 1 + row.keys > rows_left:
                self._dues.put_back(lease, now_ms)
                break
            else:
                batch.append(lease)
                rows_left -= 1 + row.keys
        return tuple(batch)

    async def _expire(self, batch: tuple[int, ...]) -> None:
        """One command at a time, until nothing is due."""
        try:
            while batch and not self.ended:
                self._expiring = frozenset(batch)
                self._settled = self._host.runtime.future()
                pause_s = await self._propose(batch)
                not_before_ms = self.now_ms() + int(pause_s * 1000)
                leases = self._host.view().table("leases")
                for lease in batch:
                    row: LeaseRow | None = leases.get(lease)
                    if row is None:
                        self._dues.forget(lease)
                    else:
                        self._dues.put_back(lease, max(not_before_ms, self._granted_due_ms(row)))
                self._release()
                batch = self._next_batch()
        finally:
            self._task = None
            self._release()

    def _release(self) -> None:
        self._expiring = frozenset()
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def _propose(self, batch: tuple[int, ...]) -> float:
        """Have these expired. Returns once the outcome is known: when to try again, in seconds."""
        host = self._host
        try:
            try:
                result = await host.propose(Expire(self.epoch, batch), timeout_s=PROPOSAL_S)
            except Timeout as error:
                result = await self._ask(error)
            if isinstance(result, ExpireResult):
                self.expired += len(result.ids)
            return RETRY_S
        except NotLessor:
            self._lost()
        except NotApplied:
            return RETRY_S
        except Refused as error:
            host.log.error("leases could not be expired: %s", error)
        return REFUSED_RETRY_S

    async def _ask(self, unknown: Timeout) -> Any:
        """The result of a command whose outcome is unknown, None if it was not applied.

        Raises the refusal. Nobody knows what to tell a keep-alive before this is answered.
        """
        host = self._host
        while True:
            try:
                outcome = await host.outcome(unknown.session, unknown.seq, timeout_s=PROPOSAL_S)
            except RaftkvError:
                await host.runtime.sleep(RETRY_S)
                continue
            if outcome.verdict == "refused":
                raise outcome.result
            return outcome.result


class Lessor:
    """The lessor's part of one node: takes office when this node leads and there are leases."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._office: Office | None = None
        self._claim: asyncio.Task[None] | None = None
        self._renewals = 0
        self._expired = 0
        self.claims = 0

    # -- what the service passes on

    def start(self) -> None:
        self._host.rpc.register(RENEW, self._on_renew)
        self._host.rpc.register(LEFT, self._on_left)

    def on_leader(self) -> None:
        self.progressed()

    def on_follower(self) -> None:
        if self._claim is not None:
            self._claim.cancel()
            self._claim = None
        self._resign()

    def stop(self) -> None:
        self.on_follower()

    def progressed(self) -> None:
        """Entries were applied: are there leases, and is this leader still their lessor?"""
        if not self._host.is_leader:
            return
        view = self._host.view()
        if not len(view.table("leases")):
            return
        office = self._office
        if office is not None and office.epoch == lessor_epoch(view):
            office.wake()
        elif self._claim is None:
            self._resign()
            self._claim = self._host.spawn(self._take_office(), "claim the leases")

    def _resign(self) -> None:
        office, self._office = self._office, None
        if office is not None:
            self._renewals += office.renewals
            self._expired += office.expired
            office.end()

    async def _take_office(self) -> None:
        """Claim until it succeeds; `on_follower` ends it."""
        host = self._host
        me = asyncio.current_task()
        try:
            while host.is_leader:
                try:
                    claimed: ClaimLessorResult = await host.propose(
                        ClaimLessor(), timeout_s=PROPOSAL_S
                    )
                except Refused as error:
                    host.log.error("the leases could not be claimed: %s", error)
                    await host.runtime.sleep(REFUSED_RETRY_S)
                    continue
                except RaftkvError:
                    # Unknown is as good as not applied: a claim does no harm, and the next one
                    # gives another epoch.
                    await host.runtime.sleep(RETRY_S)
                    continue
                if self._holds(claimed.epoch):
                    self.claims += 1
                    self._office = Office(host, claimed.epoch, self._superseded)
                    self._office.wake()
                    return
        finally:
            if self._claim is me:
                self._claim = None

    def _holds(self, epoch: int) -> bool:
        return self._host.is_leader and epoch == lessor_epoch(self._host.view())

    def _superseded(self) -> None:
        """The log says that another lessor has claimed the leases; claim them back if we lead."""
        self._host.runtime.call_soon(self._after_superseded, self._office)

    def _after_superseded(self, office: Office | None) -> None:
        if office is not None and office is self._office:
            self._resign()
            self.progressed()

    # -- answers

    async def _in_office(self) -> Office | None:
        """The office, once a claim under way has ended."""
        if self._office is None and self._claim is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BARRIER_S):
                    await asyncio.wait([self._claim])
        return self._office

    async def _confirm(self, office: Office | None) -> bool:
        """Whether this node was the lessor when this was called: rule 1 of the module's text."""
        await self._host.barrier("linearizable", timeout_s=BARRIER_S)
        return (
            office is not None
            and office is self._office
            and office.epoch == lessor_epoch(self._host.view())
        )

    async def renew(self, leases: Sequence[int]) -> Renewed:
        """Keep these alive, if this node is the lessor."""
        office = await self._in_office()
        if office is not None:
            office.extend(leases)  # so that none becomes due while we ask
        confirmed = await self._confirm(office)
        rows = self._host.view().table("leases")
        if not any(lease in rows for lease in leases):
            return Renewed(True, (0,) * len(leases))  # to know that, one need not be the lessor
        if not confirmed:
            return Renewed(False)
        assert office is not None
        await office.settled(leases)
        if office is not self._office:
            return Renewed(False)
        office.renewals += len(leases)
        return Renewed(True, tuple(office.extend(leases)))

    async def left(self, lease: int) -> Left:
        """How long the lease lives if nobody keeps it alive."""
        office = await self._in_office()
        confirmed = await self._confirm(office)
        row: LeaseRow | None = self._host.view().table("leases").get(lease)
        if row is None:
            return Left(True)
        if not confirmed:
            return Left(False)
        assert office is not None
        return Left(True, row.ttl_s, max(0, office.due_ms(lease, row) - office.now_ms()))

    async def _on_renew(self, sender: str, payload: bytes) -> bytes:
        return _encode(await self.renew(_ids(payload)))

    async def _on_left(self, sender: str, payload: bytes) -> bytes:
        (lease,) = _ids(payload)
        return _encode(await self.left(lease))

    # -- figures

    def status(self) -> Mapping[str, Any]:
        """For the node's status."""
        office = self._office
        return {
            "leases": len(self._host.view().table("leases")),
            "lessor": lessor_epoch(self._host.view()),
            "is_lessor": office is not None,
        }

    def metrics(self) -> Sequence[Metric]:
        office = self._office
        renewals = self._renewals + (0 if office is None else office.renewals)
        expired = self._expired + (0 if office is None else office.expired)
        leases = len(self._host.view().table("leases"))
        return (
            Metric("leases", "gauge", leases, "Leases that exist."),
            Metric("is_lessor", "gauge", int(office is not None), "1 on the node that counts them"),
            Metric("lessor_claims_total", "counter", self.claims, "Times this node became lessor."),
            Metric("lease_keep_alives_total", "counter", renewals, "Keep-alives answered here."),
            Metric("leases_expired_total", "counter", expired, "Leases this lessor has expired."),
        )


def _ended_ms(stall: tuple[int, int]) -> int:
    return stall[0]


def _ids(payload: bytes) -> tuple[int, ...]:
    if len(payload) > CALL_BYTES_MAX:
        raise ValueError(f"a call about leases has {len(payload)} bytes, not over {CALL_BYTES_MAX}")
    leases = _decode_ids(payload)
    if len(leases) > CALL_IDS_MAX:
        raise ValueError(f"a call names {len(leases)} leases, at most {CALL_IDS_MAX} go into one")
    return leases
