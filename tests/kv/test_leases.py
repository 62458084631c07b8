"""Leases on one node: the lessor's judgement, on a virtual clock (memory_store.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv.errors import NoLeader, Timeout
from raftkv.kv import LeaseExists, LeaseNotFound, LeaseStatus, LeaseTtlTooLarge, lessor
from raftkv.kv.commands import ClaimLessor, Expire, Grant, Put, Revoke
from raftkv.kv.lessor import CALL_IDS_MAX, RENEW, TICK_S, Renewed, _ids
from tests.kv.memory_store import ROUND_S, MemoryStore, run

# What calls and the lessor's tick may add to a time.
SLACK_S = TICK_S + 0.05


def now() -> float:
    return asyncio.get_running_loop().time()


async def gone_at(store: MemoryStore, lease: int, until: float) -> float | None:
    """When the lease ends, None if it lives until then."""
    while now() < until:
        if lease not in store.view().table("leases"):
            return now()
        await asyncio.sleep(0.01)
    return None


def commands(store: MemoryStore, kind: type[msgspec.Struct]) -> int:
    return sum(isinstance(command, kind) for command in store.proposed)


def test_a_lease_takes_its_keys_along_when_nobody_keeps_it_alive() -> None:
    async def test(store: MemoryStore) -> None:
        granted_at = now()
        lease = (await store.leases.grant(10)).id
        await store.kv.put(b"a", b"1", lease=lease)
        await store.kv.put(b"b", b"2")
        ended = await gone_at(store, lease, 30)
        assert ended is not None
        assert 10 <= ended - granted_at <= 10 + SLACK_S
        assert await store.kv.get(b"a") is None
        assert await store.kv.get(b"b") is not None
        with pytest.raises(LeaseNotFound):
            await store.leases.keep_alive(lease)

    run(test)


def test_keep_alives_stay_out_of_the_log() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(5)).id
        proposed = len(store.proposed)
        for _ in range(100):
            await asyncio.sleep(3)
            assert await store.leases.keep_alive(lease) == 5
        assert len(store.proposed) <= proposed + 1, "the first claim, and nothing else"
        kept_at = now()
        ended = await gone_at(store, lease, kept_at + 20)
        assert ended is not None
        assert 5 <= ended - kept_at <= 5 + SLACK_S

    run(test)


def test_without_leases_nothing_is_proposed_and_nothing_ticks() -> None:
    async def test(store: MemoryStore) -> None:
        await store.kv.put(b"a", b"1")
        await asyncio.sleep(100)
        assert [type(command) for command in store.proposed] == [Put]
        lease = (await store.leases.grant(5)).id
        await store.leases.revoke(lease)
        await asyncio.sleep(10)
        loop: Any = asyncio.get_running_loop()
        callbacks = loop.callback_count
        proposed = len(store.proposed)
        await asyncio.sleep(1000)
        assert loop.callback_count - callbacks < 10
        assert len(store.proposed) == proposed
        assert commands(store, ClaimLessor) == 1

    run(test)


def test_a_new_lessor_gives_every_lease_its_whole_time_again() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await asyncio.sleep(9)
        store.set_leader(False)
        await asyncio.sleep(60)
        assert lease in store.view().table("leases"), "nobody may expire it without a lessor"
        store.set_leader(True)
        led_at = now()
        ended = await gone_at(store, lease, led_at + 30)
        assert ended is not None
        assert 10 <= ended - led_at <= 10 + SLACK_S
        assert commands(store, ClaimLessor) == 2
        assert commands(store, Expire) == 1, "it knew how long to wait"

    run(test)


def test_a_lease_does_not_become_due_while_its_keep_alive_is_being_confirmed() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        store.barrier_s = 0.9
        await asyncio.sleep(9.8)
        assert await store.leases.keep_alive(lease) == 10

    run(test)


def test_a_jump_of_the_logs_clock_expires_nothing() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await asyncio.sleep(1)
        store.jump_ms = 7 * 24 * 3600 * 1000
        await store.kv.put(b"a", b"1")
        await asyncio.sleep(5)
        kept_at = now()
        assert await store.leases.keep_alive(lease) == 10
        ended = await gone_at(store, lease, kept_at + 30)
        assert ended is not None
        assert 10 <= ended - kept_at <= 10 + SLACK_S

    run(test)


def test_time_in_which_the_lessor_stood_still_does_not_count() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await asyncio.sleep(2)
        loop: Any = asyncio.get_running_loop()
        # As SIGSTOP does it: nothing runs, and the clock has moved when it goes on.
        loop.now += 60.0
        woken_at = now()
        await asyncio.sleep(0)
        ended = await gone_at(store, lease, woken_at + 30)
        assert ended is not None
        assert 8 - TICK_S <= ended - woken_at <= 8 + SLACK_S

    run(test)


def test_a_lessor_that_another_has_followed_keeps_nothing_alive() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await store.leases.keep_alive(lease)
        office = store.service.lessor._office
        assert office is not None
        store.is_leader = False  # it has not heard of it yet
        store.apply(ClaimLessor())
        answer = await store.service.lessor.renew([lease])
        assert answer == Renewed(False)
        with pytest.raises(NoLeader):
            await store.leases.keep_alive(lease, timeout_s=0.5)
        await asyncio.sleep(60)
        assert lease in store.view().table("leases"), "its Expire is refused under another epoch"
        assert commands(store, Expire) >= 1

    run(test)


def test_a_leader_claims_back_what_another_has_claimed() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await asyncio.sleep(9)
        claimed_at = now()
        store.apply(ClaimLessor())
        assert await store.leases.keep_alive(lease) == 10
        ended = await gone_at(store, lease, claimed_at + 30)
        assert ended is not None
        assert 10 <= ended - claimed_at <= 10 + SLACK_S

    run(test)


@pytest.mark.parametrize("fault", ["answer_lost", "slow", "late", "lost"])
def test_a_keep_alive_that_crosses_an_expiry_waits_for_its_outcome(fault: str) -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(10)).id
        await asyncio.sleep(0.1)  # the claim
        store.faults.append(fault)  # type: ignore[arg-type]
        expiring_at = now() + 10
        while not commands(store, Expire):
            await asyncio.sleep(ROUND_S / 4)
        assert now() <= expiring_at + SLACK_S
        renewing = asyncio.ensure_future(store.leases.keep_alive(lease))
        if fault in ("answer_lost", "slow"):
            with pytest.raises(LeaseNotFound):
                await renewing
            assert lease not in store.view().table("leases")
            return
        # Settled as never to be applied, so that the answer can be relied on.
        assert await renewing == 10
        kept_at = now()
        ended = await gone_at(store, lease, kept_at + 30)
        assert ended is not None
        assert 10 <= ended - kept_at <= 10 + SLACK_S

    run(test)


def test_an_expiry_under_way_does_not_hit_a_lease_granted_anew() -> None:
    async def test(store: MemoryStore) -> None:
        await store.leases.grant(5, id=7)
        await asyncio.sleep(0.1)
        store.faults.append("late")
        while not commands(store, Expire):
            await asyncio.sleep(ROUND_S / 4)
        store.apply(Revoke(7))
        granted_at = now()
        store.apply(Grant(5, 7))
        assert await store.leases.keep_alive(7) == 5
        ended = await gone_at(store, 7, granted_at + 30)
        assert ended is not None
        assert ended - granted_at >= 5

    run(test)


def test_a_lease_granted_anew_does_not_inherit_what_was_kept_alive() -> None:
    async def test(store: MemoryStore) -> None:
        await store.leases.grant(3600, id=7)
        await store.leases.keep_alive(7)
        await store.leases.revoke(7)
        granted_at = now()
        await store.leases.grant(5, id=7)
        ended = await gone_at(store, 7, granted_at + 30)
        assert ended is not None
        assert 5 <= ended - granted_at <= 5 + SLACK_S

    run(test)


@pytest.mark.parametrize(("after_ms", "ttl_s", "lease"), [(10, 2, 9), (0, 1, 9), (0, 1, -9)])
def test_a_lease_whose_grant_was_applied_late_is_not_missed(
    after_ms: int, ttl_s: int, lease: int
) -> None:
    """Its row appears behind the place up to which the lessor has looked."""

    async def test(store: MemoryStore) -> None:
        store.set("lease_ttl_min_s", 1)
        await store.leases.grant(3600)
        await asyncio.sleep(5)
        stamp = store.machine.now
        real = store.now_ms
        store.now_ms = lambda: stamp + after_ms  # type: ignore[method-assign]
        store.apply(Grant(ttl_s, lease))
        store.now_ms = real  # type: ignore[method-assign]
        granted_at = now()
        assert store.view().table("leases")[lease].due_ms < store.now_ms()
        ended = await gone_at(store, lease, granted_at + 10)
        assert ended is not None
        assert ended - granted_at <= 2 + SLACK_S

    run(test)


def test_many_leases_expire_in_commands_of_bounded_size() -> None:
    async def test(store: MemoryStore) -> None:
        for number in range(1, 2501):
            store.apply(Grant(3, number))
        kept = list(range(1, 2501, 5))
        for _ in range(4):
            await asyncio.sleep(1)
            await asyncio.gather(*(store.leases.keep_alive(lease) for lease in kept))
        await asyncio.sleep(0.5)
        assert await store.leases.list() == tuple(kept)
        sizes = [len(c.ids) for c in store.proposed if isinstance(c, Expire)]
        assert sum(sizes) == 2000
        assert max(sizes) <= 1000
        calls = [payload for method, payload in store.rpc.calls if method == RENEW]
        assert len(calls) == 4, "what is kept alive in one turn goes in one call"
        await asyncio.sleep(4)
        assert await store.leases.list() == ()

    run(test)


def test_calls_are_bounded_too() -> None:
    async def test(store: MemoryStore) -> None:
        for number in range(1, CALL_IDS_MAX + 2):
            store.apply(Grant(60, number))
        ids = range(1, CALL_IDS_MAX + 2)
        await asyncio.gather(*(store.leases.keep_alive(lease) for lease in ids))
        sizes = [len(_ids(payload)) for _, payload in store.rpc.calls]
        assert sizes == [CALL_IDS_MAX, 1]
        with pytest.raises(ValueError, match="at most"):
            _ids(msgspec.msgpack.encode(list(range(CALL_IDS_MAX + 1))))
        with pytest.raises(ValueError, match="bytes"):
            _ids(b"\0" * 20_000)

    run(test)


def test_time_to_live_tells_what_is_left_and_what_is_attached() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(60)).id
        await store.kv.put(b"a", b"1", lease=lease)
        await store.kv.put(b"b", b"2", lease=lease)
        await asyncio.sleep(20)
        status = await store.leases.time_to_live(lease, keys=True)
        assert status == LeaseStatus(lease, 60, 39, (b"a", b"b"))
        await store.leases.keep_alive(lease)
        assert await store.leases.time_to_live(lease) == LeaseStatus(lease, 60, 59)
        assert await store.leases.time_to_live(12345) == LeaseStatus(12345, 0, -1)
        assert await store.leases.list() == (lease,)
        assert (await store.leases.revoke(lease)).deleted == 2
        assert await store.leases.time_to_live(lease, keys=True) == LeaseStatus(lease, 0, -1)

    run(test)


def test_what_was_granted_is_what_the_settings_allow() -> None:
    async def test(store: MemoryStore) -> None:
        assert (await store.leases.grant(1)).ttl_s == 2
        with pytest.raises(LeaseTtlTooLarge):
            await store.leases.grant(10**10)
        await store.leases.grant(5, id=3)
        with pytest.raises(LeaseExists):
            await store.leases.grant(5, id=3)
        with pytest.raises(LeaseNotFound):
            await store.leases.revoke(4)
        with pytest.raises(TypeError):
            await store.leases.grant(1.5)  # type: ignore[arg-type]

    run(test)


@pytest.mark.parametrize("bad", [2**70, 2**63, -(2**63) - 1])
def test_an_id_beyond_64_bits_is_refused_and_takes_nobody_with_it(bad: int) -> None:
    async def test(store: MemoryStore) -> None:
        await store.leases.grant(5, id=3)
        kept, refused = await asyncio.gather(
            store.leases.keep_alive(3), store.leases.keep_alive(bad), return_exceptions=True
        )
        assert kept == 5
        assert isinstance(refused, ValueError)
        for call in (store.leases.grant(5, id=bad), store.leases.revoke(bad)):
            with pytest.raises(ValueError, match="id = "):
                await call
        assert await store.leases.list() == (3,)

    run(test)


def test_without_a_lessor_a_keep_alive_says_so_and_may_be_repeated() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(60)).id
        await store.leases.keep_alive(lease)
        store.set_leader(False)
        begun = now()
        with pytest.raises(NoLeader, match="no lessor"):
            await store.leases.keep_alive(lease, timeout_s=1)
        assert now() - begun == pytest.approx(1)
        waiting = asyncio.ensure_future(store.leases.keep_alive(lease, timeout_s=5))
        await asyncio.sleep(2)
        store.set_leader(True)
        assert await waiting == 60

    run(test)


def test_a_leader_without_a_majority_keeps_nothing_alive() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(5)).id
        await store.leases.keep_alive(lease)
        store.has_quorum = False
        with pytest.raises((NoLeader, Timeout)):
            await store.leases.keep_alive(lease, timeout_s=4)
        await asyncio.sleep(20)
        store.has_quorum = True
        back_at = now()
        # Its Expire is settled as lost, and a keep-alive that waited may still win.
        ended = await gone_at(store, lease, back_at + 30)
        assert ended is not None

    run(test)


def test_a_claim_whose_outcome_is_unknown_is_made_again() -> None:
    async def test(store: MemoryStore) -> None:
        store.faults.extend(["none", "answer_lost", "no_leader"])
        lease = (await store.leases.grant(5)).id
        assert await store.leases.keep_alive(lease) == 5
        assert commands(store, ClaimLessor) == 2
        assert store.service.status()["is_lessor"] is True

    run(test)


def test_figures() -> None:
    async def test(store: MemoryStore) -> None:
        lease = (await store.leases.grant(5)).id
        await store.leases.keep_alive(lease)
        await asyncio.sleep(10)
        values = {metric.name: metric.value for metric in store.service.lessor.metrics()}
        assert values == {
            "leases": 0,
            "is_lessor": 1,
            "lessor_claims_total": 1,
            "lease_keep_alives_total": 1,
            "leases_expired_total": 1,
        }
        store.set_leader(False)
        values = {metric.name: metric.value for metric in store.service.lessor.metrics()}
        assert values["lease_keep_alives_total"] == 1
        assert values["is_lessor"] == 0

    run(test)


# Keeping ------------------------------------------------------------------------------------------


def test_keeping_holds_a_lease_as_long_as_it_is_used() -> None:
    async def test(store: MemoryStore) -> None:
        async with store.leases.keeping(6) as lease:
            await store.kv.put(b"here", b"", lease=lease.id)
            await asyncio.sleep(100)
            assert not lease.is_lost
            assert await store.kv.get(b"here") is not None
            lost = lease.lost
        assert lost.done()
        assert await store.kv.get(b"here") is None
        assert commands(store, Revoke) == 1

    run(test)


def test_keeping_hears_that_its_lease_is_gone() -> None:
    async def test(store: MemoryStore) -> None:
        async with store.leases.keeping(6) as lease:
            store.apply(Revoke(lease.id))
            async with asyncio.timeout(6):
                await lease.lost
            assert lease.is_lost
        assert commands(store, Revoke) == 0, "what is gone is not revoked again"

    run(test)


def test_keeping_takes_a_lease_for_lost_that_nobody_confirms() -> None:
    async def test(store: MemoryStore) -> None:
        async with store.leases.keeping(6) as lease:
            await asyncio.sleep(10)
            store.set_leader(False)
            begun = now()
            await lease.lost
            assert now() - begun <= 6
            assert lease.is_lost
            assert lease.id in store.view().table("leases"), "the cluster has not said so"
        # Leaving does not raise, although nothing can be revoked, either.

    run(test)


def test_keeping_survives_an_outage_shorter_than_the_lease() -> None:
    async def test(store: MemoryStore) -> None:
        async with store.leases.keeping(6) as lease:
            for _ in range(5):
                await asyncio.sleep(5)
                store.set_leader(False)
                await asyncio.sleep(2.5)
                store.set_leader(True)
            assert not lease.is_lost
            assert not lease.lost.done()

    run(test)


def test_keeping_that_breaks_down_tells_its_holder() -> None:
    async def test(store: MemoryStore) -> None:
        async def broken(id: int, *, timeout_s: float | None = None) -> int:
            raise RuntimeError("a defect")

        store.leases.keep_alive = broken  # type: ignore[method-assign]
        async with store.leases.keeping(6) as lease:
            async with asyncio.timeout(6):
                await lease.lost
            assert lease.is_lost

    run(test)


def test_keeping_is_used_once_and_opened_first() -> None:
    async def test(store: MemoryStore) -> None:
        keeping = store.leases.keeping(6)
        assert keeping.is_lost
        with pytest.raises(RuntimeError, match="granted"):
            _ = keeping.lost
        async with keeping:
            with pytest.raises(RuntimeError, match="once"):
                await keeping.open()
        await keeping.close()

    run(test)


def delay_ticks(store: MemoryStore) -> list[float]:
    """By how many seconds the lessor's ticks come late from now on: what is put in there."""
    late_s = [0.0]
    call_later = store.runtime.call_later

    def later(delay_s: float, callback: Any, *arguments: Any) -> Any:
        late = late_s[0] if callback.__name__ == "_tick" else 0.0
        return call_later(delay_s + late, callback, *arguments)

    store.runtime.call_later = later  # type: ignore[method-assign]
    return late_s


async def stall(late_s: list[float], by_s: float) -> None:
    await asyncio.sleep(2 * TICK_S)
    late_s[0] = by_s
    await asyncio.sleep(TICK_S)
    late_s[0] = 0.0
    await asyncio.sleep(by_s + 2 * TICK_S)


def test_a_stall_is_given_to_those_that_were_there_and_to_no_others() -> None:
    async def test(store: MemoryStore) -> None:
        late_s = delay_ticks(store)
        begun_at = now()
        before = (await store.leases.grant(20)).id
        await stall(late_s, 8)
        granted_at = now()
        after = (await store.leases.grant(5)).id
        assert (await store.leases.time_to_live(after)).ttl_s in (4, 5)
        ended = await gone_at(store, after, granted_at + 20)
        assert ended is not None
        assert 5 <= ended - granted_at <= 5 + SLACK_S
        ended = await gone_at(store, before, begun_at + 60)
        assert ended is not None
        assert 28 - 2 * TICK_S <= ended - begun_at <= 28 + 2 * TICK_S

    run(test)


@pytest.mark.parametrize("told_apart", [1024, 3])
def test_many_stalls_do_not_add_up(monkeypatch: pytest.MonkeyPatch, told_apart: int) -> None:
    async def test(store: MemoryStore) -> None:
        monkeypatch.setattr(lessor, "STALLS_MAX", told_apart)
        late_s = delay_ticks(store)
        async with store.leases.keeping(10):
            for _ in range(30):
                await stall(late_s, 1)
            granted_at = now()
            lease = (await store.leases.grant(5)).id
            ended = await gone_at(store, lease, granted_at + 60)
            assert ended is not None
            assert 5 <= ended - granted_at <= 5 + SLACK_S

    run(test)


def test_a_stall_before_the_late_tick_was_heard_of_is_none_of_the_leases_time() -> None:
    """The loop is held up between the answer to an Expire and the lessor's next turn."""

    async def test(store: MemoryStore) -> None:
        loop: Any = asyncio.get_running_loop()
        propose = store.propose
        stalled = False

        async def holding_up(command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
            nonlocal stalled
            result = await propose(command, timeout_s=timeout_s)
            if isinstance(command, Expire) and not stalled:
                stalled = True
                loop.now += 15
            return result

        store.propose = holding_up  # type: ignore[method-assign]
        kept = (await store.leases.grant(10)).id
        await store.leases.grant(2)
        while not stalled:
            await store.leases.keep_alive(kept)
            await asyncio.sleep(0.5)
        assert await store.leases.keep_alive(kept) == 10
        # Afterwards leases end as ever.
        kept_at = now()
        ended = await gone_at(store, kept, kept_at + 60)
        assert ended is not None
        assert 10 <= ended - kept_at <= 10 + SLACK_S

    run(test)
