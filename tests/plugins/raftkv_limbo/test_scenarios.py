"""The acceptance scenarios of the limbo on real nodes, by their numbers.

They come from a system whose log is one node's own and whose confirmations are records of their
own. What is another thing here, on one linearizable log:

- An acknowledgement is a command, so "the peer's ack arrives" is an entry of the log that a test
  can hold (`cluster.hold(Ack, ...)`), and so is every other race: one of two commands.
- There is no CONFIRM record that could be written twice or be under way: the entry that completes a
  quorum confirms. "Written once" is therefore counted in what every node was called back with.
- A node's limits, quorum and terms cannot differ from another's: they are replicated.
- All nodes have every entry, so "the new owner holds it" means that it has its quorum.

Words: a node that is *held* has not said what it would say (cluster.py). Zones, validators and the
fast path are in test_quorum_cluster.py, killed processes in test_killed_owner.py.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable

import pytest

from raftkv.config import Limits
from raftkv.errors import InvalidSetting
from raftkv_limbo.commands import (
    Ack,
    Demote,
    Promote,
    RollBack,
    RolledBackTo,
    Submit,
    Transaction,
    Write,
)
from raftkv_limbo.errors import (
    InAnotherPromote,
    NotSubmitted,
    PromoteTimedOut,
    RolledBack,
    StillPending,
)
from raftkv_limbo.hooks import Confirmed, Restored
from raftkv_limbo.quorum_expression import nodes_needed
from raftkv_limbo.refusals import (
    AlreadyConfirmed,
    AlreadyRolledBack,
    ForeignOwner,
    InterferingPromote,
    KeyPending,
    NotOwner,
    QueueFull,
    StaleOwner,
    StaleTerm,
    Unclaimed,
)
from raftkv_limbo.reports import warnings
from raftkv_limbo.submission import Receipt
from tests.plugins.raftkv_limbo.cluster import DEADLINE_S, LimboCluster, play, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

THREE = ["core1", "core2", "core3"]
# Long enough that the node has looked, short enough to wait for.
SHORT_S = 1.0


async def both(*awaited: Awaitable[object]) -> list[object]:
    """Await all at once; exceptions are among the results."""
    answers = asyncio.gather(*awaited, return_exceptions=True)
    return list(await answers)


# --- 1 and 2: quorum and acknowledgements ---------------------------------------------------------


@pytest.mark.parametrize("quorum", ["N / 2 + 1", "1"])
def test_1_a_quorum_that_raft_has_anyway_is_confirmed_in_the_entry_of_the_write(
    quorum: str,
) -> None:
    """Write and confirm are two records there, also with a quorum of 1; one entry here."""

    async def body(cluster: LimboCluster) -> None:
        done = await cluster.put("core1", b"k", b"v")
        assert (done.state, done.position, done.term) == ("confirmed", 1, 1)
        await cluster.converge()
        for name in ("core1", "core2"):
            assert cluster.row(name, b"k") == b"v"
            assert cluster.seats[name].confirmed == [1]
        # Its CONFIRM is where it was submitted, and nobody has said anything else.
        assert cluster.state().confirmed_index == done.index
        assert cluster.proposed["core1", Submit.__name__] == 1
        assert cluster.acks() == 0
        assert cluster.limbo("core2").status().quorum.fast

    play(body, cores=2, quorum=quorum)


def test_1_a_write_returns_after_the_peer_s_acknowledgement() -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "replicant1")
        writing = asyncio.ensure_future(cluster.put("core1", b"k", b"v"))
        await cluster.is_held(Ack, "replicant1")
        await cluster.acked_upto(1, "core1", "core2")
        assert not writing.done()
        assert [cluster.row(node.name, b"k") for node in cluster.nodes] == [None] * 3
        release()
        done = await writing
        assert done.state == "confirmed"
        await cluster.converge()
        state = cluster.state()
        assert state.confirmed_index > done.index
        assert (state.confirmed, state.confirms, state.head) == (1, 1, 0)
        for node in cluster.nodes:
            assert cluster.row(node.name, b"k") == b"v"
            assert cluster.seats[node.name].confirmed == [1]
        # One Submit and one Ack of each; the last of these is the CONFIRM.
        assert cluster.proposed["core1", Submit.__name__] == 1
        assert cluster.acks() == 3

    play(body, cores=2, replicants=1, quorum="N", quorum_over="members")


def test_2_early_acknowledgements() -> None:
    """The peers' come before the owner's own, some name what does not exist yet, some are repeated
    or late. There is one CONFIRM, and it is the owner's that completes the quorum."""

    async def body(cluster: LimboCluster) -> None:
        early = await cluster.raw("core2", Ack(1_000_000))
        assert early.confirmed == 0
        assert cluster.acked("core2", "core2") == 0
        release_peer = cluster.hold(Ack, "core2")
        release_owner = cluster.hold(Ack, "core1")
        writing = asyncio.ensure_future(cluster.put("core1", b"k"))
        await cluster.acked_upto(1, "core3")
        await cluster.is_held(Ack, "core2")
        release_peer()
        await cluster.acked_upto(1, "core2", "core3")
        for _ in range(2):
            assert (await cluster.raw("core3", Ack(1))).confirmed == 0
        assert not writing.done()
        release_owner()
        assert (await writing).state == "confirmed"
        for name in THREE:
            assert (await cluster.raw(name, Ack(1))).confirmed == 1
        await cluster.converge()
        assert cluster.state().confirms == 1
        assert all(cluster.seats[name].confirmed == [1] for name in THREE)

    play(body, quorum="N")


# --- 3: order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["confirmed", "rolled back"])
def test_3_an_async_transaction_behind_a_sync_one_shares_its_fate(ends: str) -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "core3")
        limbo = cluster.limbo("core1")
        ended: list[str] = []

        async def write(name: str, space: str) -> None:
            try:
                await cluster.put("core1", name.encode(), space=space)
            finally:
                ended.append(name)

        sync = asyncio.ensure_future(write("S", "sync"))
        behind = asyncio.ensure_future(write("A", "async"))
        await until(lambda: cluster.state().last == 2, "both are in the queue")
        await cluster.acked_upto(1, "core1", "core2")
        assert cluster.fates(1, 2) == ["pending", "pending"]
        assert cluster.row("core1", b"A", "async") is None
        assert cluster.pending_value("core1", b"A", "async") == b"v"
        # One that does not care for the order is confirmed at once; not on a key that waits.
        free = await limbo.submit([Write("async", b"B", b"v")], order="independent")
        assert (free.position, free.state) == (3, "confirmed")
        with pytest.raises(KeyPending):
            await limbo.submit([Write("async", b"A", b"x")], order="independent")
        assert not sync.done()
        assert not behind.done()
        if ends == "confirmed":
            release()
            await asyncio.gather(sync, behind)
            assert ended == ["S", "A"]
        else:
            await limbo.rollback(1, "as the test says")
            for failed in await both(sync, behind):
                assert isinstance(failed, RolledBack)
                assert (failed.reason, failed.by) == ("as the test says", "core1")
            assert ended == ["A", "S"]
            release()
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2, 3) == [ends, ends, "confirmed"]
        assert cluster.row("core2", b"B", "async") == b"v"
        left = b"v" if ends == "confirmed" else None
        assert [cluster.row("core2", b"S"), cluster.row("core2", b"A", "async")] == [left, left]

    play(body, quorum="N")


# --- 4 and 5: one verdict -------------------------------------------------------------------------


def test_4_one_confirm_per_position() -> None:
    """Acknowledgements arrive while the quorum is lowered, in no order that a test makes."""

    async def body(cluster: LimboCluster) -> None:
        for round_ in range(5):
            await cluster.configure(quorum="N")
            release = cluster.hold(Ack, "core2", "core3")
            handles = [await cluster.hand("core1", b"%d" % n) for n in range(4)]
            first = round_ * 4 + 1
            await until(
                lambda last=first + 3: cluster.state().last == last,  # type: ignore[misc]
                "all wait",
            )
            release()
            await asyncio.gather(
                cluster.configure(quorum="2"),
                *(cluster.raw(name, Ack(first + n)) for n in range(4) for name in THREE),
            )
            receipts = [await handle.verdict(DEADLINE_S) for handle in handles]
            assert [receipt.position for receipt in receipts] == list(range(first, first + 4))
        await cluster.converge()
        state = cluster.state()
        assert (state.confirms, state.rollbacks, state.confirmed) == (20, 0, 20)
        for seat in cluster.seats.values():
            assert seat.confirmed == list(range(1, 21))

    play(body, quorum="N")


def test_5_a_rollback_takes_all_that_came_before_it_and_nothing_behind() -> None:
    """It is on its way from another node while the owner submits; then all nodes restart."""

    async def body(cluster: LimboCluster) -> None:
        release_acks = cluster.hold(Ack, "core3")
        release = cluster.hold(RollBack, "core2")
        one = asyncio.ensure_future(cluster.put("core1", b"1"))
        await until(lambda: cluster.state().last == 1, "the first one waits")
        asked = asyncio.ensure_future(cluster.limbo("core2").rollback(1, "operator"))
        await cluster.is_held(RollBack, "core2")
        more = [asyncio.ensure_future(cluster.put("core1", b"%d" % n)) for n in (2, 3)]
        await until(lambda: cluster.state().last == 3, "they came while it was on its way")
        release()
        undone = await asked
        assert (undone.first, undone.last, undone.entries) == (1, 3, 3)
        for number, failed in enumerate(await both(one, *more), 1):
            assert isinstance(failed, RolledBack)
            assert (failed.position, failed.by) == (number, "core2")
        # Newest first, everywhere.
        await cluster.converge()
        assert all(cluster.seats[name].undone == [3, 2, 1] for name in THREE)
        # What comes behind it waits for its own quorum.
        behind = await cluster.enter("core1", b"4")
        assert (behind, cluster.fates(4)) == (4, ["pending"])
        for name in THREE:
            await cluster.kill(name)
        release_acks()
        for name in THREE:
            await cluster.start(name)
        await cluster.wait_ready(DEADLINE_S)
        verdict = await cluster.limbo("core2").wait_verdict(4, DEADLINE_S)
        assert verdict.fate == "confirmed"
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2, 3, 4) == ["rolled back"] * 3 + ["confirmed"]
        for name in THREE:
            keys = [key for _, key in cluster.table("rows", name)]
            assert keys == [b"4"]

    play(body, quorum="N")


def test_5_what_is_submitted_during_the_node_s_own_rollback_comes_behind_it() -> None:
    async def body(cluster: LimboCluster) -> None:
        release_acks = cluster.hold(Ack, "core3")
        first = await cluster.hand("core1", b"1")
        await first.receipt(DEADLINE_S)
        release = cluster.hold(RollBack, "core1")
        asked = asyncio.ensure_future(cluster.limbo("core1").rollback(1, "mine"))
        await cluster.is_held(RollBack, "core1")
        assert cluster.limbo("core1").busy
        second = await cluster.hand("core1", b"2")
        assert second.now.state == "submitting"
        release()
        await asked
        with pytest.raises(RolledBack):
            await first.verdict(DEADLINE_S)
        assert (await second.receipt(DEADLINE_S)).state == "pending"
        release_acks()
        assert (await second.verdict(DEADLINE_S)).state == "confirmed"
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2) == ["rolled back", "confirmed"]
        with pytest.raises(AlreadyRolledBack):
            await cluster.limbo("core2").rollback(1)
        with pytest.raises(AlreadyConfirmed):
            await cluster.limbo("core1").rollback(2)

    play(body, quorum="N")


# --- 6 and 7: who waits decides nothing -----------------------------------------------------------


def test_6_a_time_out_is_no_verdict() -> None:
    async def body(cluster: LimboCluster) -> None:
        await cluster.kill("core3")
        with pytest.raises(StillPending) as pending:
            await cluster.put("core1", b"k", b"v", timeout_s=SHORT_S)
        assert pending.value.position == 1
        await cluster.converge()
        for name in ("core1", "core2"):
            status = cluster.limbo(name).status()
            assert (status.queue.len, status.head, status.rollbacks) == (1, 1, 0)
            assert cluster.row(name, b"k") is None
        # It stays so however long nobody comes.
        await cluster.is_down("core3")
        assert cluster.fates(1) == ["pending"]
        waiting = asyncio.ensure_future(cluster.limbo("core2").wait_verdict(1, DEADLINE_S))
        await cluster.restart("core3")
        assert (await waiting).fate == "confirmed"
        assert pending.value.submission is not None
        assert (await pending.value.submission.verdict(DEADLINE_S)).position == 1
        await cluster.converge()
        assert cluster.row("core3", b"k") == b"v"

    play(body, quorum="N")


def test_6_a_rollback_that_races_with_the_last_acknowledgement_has_one_outcome() -> None:
    """The seed's rollback by time-out, as the request that it is: the log decides the race."""
    seed = 6
    print(f"seed {seed}")
    rounds = 24

    async def body(cluster: LimboCluster) -> None:
        rng = random.Random(seed)

        async def ask(position: int, ahead_s: float) -> object:
            await asyncio.sleep(ahead_s)
            try:
                return await cluster.raw("core1", RollBack(position, 1, "timed out"))
            except AlreadyConfirmed as error:
                return error

        found: Counter[str] = Counter()
        for position in range(1, rounds + 1):
            release = cluster.hold(Ack, "core3")
            writing = await cluster.hand("core1", b"%d" % position)
            await cluster.acked_upto(position, "core1", "core2")
            await cluster.is_held(Ack, "core3")
            asked = asyncio.ensure_future(ask(position, rng.uniform(0.0, 0.004)))
            await asyncio.sleep(rng.uniform(0.0, 0.004))
            release()
            answer, verdict = await both(asked, writing.verdict(DEADLINE_S))
            [fate] = cluster.fates(position)
            found[fate] += 1
            if fate == "confirmed":
                assert isinstance(answer, AlreadyConfirmed)
                assert isinstance(verdict, Receipt)
            else:
                assert isinstance(answer, RolledBackTo)
                assert (answer.first, answer.last) == (position, position)
                assert isinstance(verdict, RolledBack)
        print(f"outcomes of the race: {dict(found)}")
        assert set(found) <= {"confirmed", "rolled back"}
        await cluster.converge()
        fates = cluster.fates_everywhere(*range(1, rounds + 1))
        assert Counter(fates) == found
        # Who was rolled back acknowledges in vain.
        for position in range(1, rounds + 1):
            await cluster.raw("core3", Ack(position))
        await cluster.converge()
        assert cluster.fates_everywhere(*range(1, rounds + 1)) == fates

    play(body, quorum="N")


def test_6_rollback_by_time_out_where_the_setting_says_so() -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "core3")
        waiting = [asyncio.ensure_future(cluster.put("core1", b"%d" % n)) for n in (1, 2)]
        await until(lambda: cluster.state().pending == 2, "both wait")
        await cluster.configure(rollback_after_ms=200)
        for failed in await both(*waiting):
            assert isinstance(failed, RolledBack)
            assert (failed.reason, failed.by) == ("pending for 200 ms", "core1")
        release()
        # The acknowledgement that comes now is too late, and does no harm.
        assert (await cluster.put("core1", b"3")).position == 3
        assert cluster.fates(1, 2, 3) == ["rolled back", "rolled back", "confirmed"]

    play(body, quorum="N")


def test_7_a_cancelled_caller_is_detached() -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "core3")
        waiting = asyncio.ensure_future(cluster.put("core1", b"1"))
        await until(lambda: cluster.state().last == 1, "it is in the queue")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cluster.fates(1) == ["pending"]
        # One that was not written yet is withdrawn, and nothing else is.
        await cluster.configure(queue_entries_max=1)
        withdrawn = asyncio.ensure_future(cluster.put("core1", b"2"))
        stays = asyncio.ensure_future(cluster.put("core1", b"3"))
        await until(
            lambda: cluster.limbo("core1").status().queue.waiting_for_room == 2, "no room for two"
        )
        withdrawn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await withdrawn
        release()
        done = await stays
        assert (done.position, done.state) == (2, "confirmed")
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2) == ["confirmed", "confirmed"]
        assert [cluster.row("core2", b"%d" % n) for n in (1, 2, 3)] == [b"v", None, b"v"]

    play(body, quorum="N")


# --- 8 to 11: the owner ---------------------------------------------------------------------------


def test_8_ownership_is_claimed_and_given_away_and_never_moves_by_itself() -> None:
    async def body(cluster: LimboCluster) -> None:
        everybody = [node.name for node in cluster.nodes]
        for name in everybody:
            with pytest.raises(Unclaimed):
                await cluster.put(name, b"k")
            done = await cluster.put(name, name.encode(), space="async")
            assert (done.state, done.term) == ("confirmed", 0)
        assert (await cluster.limbo("core1").promote(DEADLINE_S)).term == 1
        assert (await cluster.put("core1", b"k", b"1")).term == 1
        for name in ("core2", "replicant1"):
            for space in ("sync", "async"):
                with pytest.raises(ForeignOwner) as refused:
                    await cluster.put(name, b"k", space=space)
                assert (refused.value.owner, refused.value.term) == ("core1", 1)
            with pytest.raises(NotOwner):
                await cluster.limbo(name).demote(DEADLINE_S)
        # By the owner: nothing changes. By another one: that is the owner, and the former is not.
        assert (await cluster.limbo("core1").promote(DEADLINE_S)).term == 1
        assert (await cluster.limbo("replicant1").promote(DEADLINE_S)).term == 2
        with pytest.raises(ForeignOwner):
            await cluster.put("core1", b"k")
        assert (await cluster.put("replicant1", b"k", b"2")).term == 2
        assert (await cluster.limbo("replicant1").demote(DEADLINE_S)).term == 3
        await cluster.converge()
        assert [cluster.state(name).owner for name in everybody] == [""] * 4
        with pytest.raises(Unclaimed):
            await cluster.put("core1", b"k")
        assert (await cluster.put("core2", b"a", space="async")).state == "confirmed"

    play(body, replicants=1, owner="")


def test_8_the_owner_s_death_moves_nothing() -> None:
    async def body(cluster: LimboCluster) -> None:
        assert (await cluster.put("core1", b"k")).position == 1
        await cluster.kill("core1")
        await cluster.is_down("core1")
        await cluster.converge()
        status = cluster.limbo("core2").status()
        assert (status.owner, status.term, status.live) == ("core1", 1, False)
        with pytest.raises(ForeignOwner):
            await cluster.put("core2", b"k")
        await cluster.restart("core1")
        # The name is the same and the life is not.
        for space in ("sync", "async"):
            with pytest.raises(StaleOwner):
                await cluster.put("core1", b"k", space=space)
        assert (await cluster.limbo("core1").promote(DEADLINE_S)).term == 2
        assert (await cluster.put("core1", b"k")).state == "confirmed"

    play(body)


@pytest.mark.parametrize("comes_back", [False, True], ids=["old owner stays", "old owner restarts"])
@pytest.mark.parametrize("confirmed", [2, 1, 0], ids=["both", "one", "none"])
def test_9_a_promotion_settles_what_the_old_owner_left(confirmed: int, comes_back: bool) -> None:
    """Of two entries both, one or none have their quorum: these are confirmed, the rest is not."""

    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "core2")
        handles = [await cluster.hand("core1", b"%d" % n) for n in (1, 2)]
        await cluster.acked_upto(2, "core1", "core3")
        await cluster.converge()
        await cluster.is_held(Ack, "core2")
        if comes_back:
            await cluster.kill("core1")
        if confirmed == 1:
            assert (await cluster.raw("core2", Ack(1))).confirmed == 1
        limbo = cluster.limbo("core2")
        if confirmed == 2:
            promoting = asyncio.ensure_future(limbo.promote(DEADLINE_S, rest="wait"))
            await until(lambda: limbo.busy, "it waits for what the old owner left")
            assert cluster.fates(1, 2, at="core3") == ["pending", "pending"]
            release()
            promoted = await promoting
        else:
            promoted = await limbo.promote(DEADLINE_S, rest="roll back")
            release()
        assert (promoted.term, promoted.rolled_back) == (2, 2 - confirmed)
        if comes_back:
            await cluster.restart("core1")
        else:
            answers = await both(*(handle.verdict(DEADLINE_S) for handle in handles))
            lost = [isinstance(answer, RolledBack) for answer in answers]
            assert lost == [False] * confirmed + [True] * (2 - confirmed)
        await cluster.converge()
        fates = ["confirmed"] * confirmed + ["rolled back"] * (2 - confirmed)
        assert cluster.fates_everywhere(1, 2) == fates
        for node in cluster.nodes:
            rows = [cluster.row(node.name, b"%d" % n) for n in (1, 2)]
            assert rows == [b"v"] * confirmed + [None] * (2 - confirmed)
        # What the old owner says now is too late: harmless, or refused by name.
        late = Submit((Transaction((Write("sync", b"late", b"v"),)),), 1)
        answer = await cluster.raw("core1", late)
        assert [rejected.code for rejected in answer.rejected] == [ForeignOwner.code]
        assert (await cluster.raw("core1", Ack(2))).confirmed == confirmed
        with pytest.raises(StaleTerm):
            await cluster.raw("core1", RollBack(1, 1, "late"))
        for late_change in (Promote(1, 0), Demote(1, 0)):
            with pytest.raises(InterferingPromote):
                await cluster.raw("core1", late_change)
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2) == fates
        assert (await cluster.put("core2", b"new")).term == 2

    # What the old owner has acknowledged is to count until it is back.
    play(body, quorum="N", node_down_ms=60_000)


def test_10_of_two_promotions_at_once_one_wins() -> None:
    async def body(cluster: LimboCluster) -> None:
        for term in range(1, 6):
            release = cluster.hold(Promote, "core2", "core3")
            # The owner itself would keep its term.
            await cluster.limbo("core1").promote(DEADLINE_S)
            now = cluster.state("core1").term
            promoting = [
                asyncio.ensure_future(cluster.limbo(name).promote(DEADLINE_S))
                for name in ("core2", "core3")
            ]
            for name in ("core2", "core3"):
                await cluster.is_held(Promote, name)
            with pytest.raises(InAnotherPromote):
                await cluster.limbo("core2").promote(DEADLINE_S)
            with pytest.raises(InAnotherPromote):
                await cluster.limbo("core3").demote(DEADLINE_S)
            release()
            answers = await both(*promoting)
            lost = [answer for answer in answers if isinstance(answer, InterferingPromote)]
            assert len(lost) == 1, (term, answers)
            await cluster.converge()
            winner = ("core2", "core3")[1 - answers.index(lost[0])]
            assert (lost[0].owner, lost[0].term) == (winner, now + 1)
            for node in cluster.nodes:
                state = cluster.state(node.name)
                assert (state.owner, state.term) == (winner, now + 1)

    play(body)


def test_10_a_promotion_without_quorum_changes_nothing_until_the_quorum_is_lowered() -> None:
    async def body(cluster: LimboCluster) -> None:
        cluster.hold(Ack, "core3")
        left = await cluster.hand("core1", b"left")
        await cluster.acked_upto(1, "core1", "core2")
        await cluster.converge()
        before = cluster.state("core2")
        limbo = cluster.limbo("core2")
        with pytest.raises(PromoteTimedOut) as late:
            await limbo.promote(SHORT_S)
        assert (late.value.term, late.value.head) == (1, 1)
        assert cluster.state("core2") == before
        assert cluster.proposed["core2", Promote.__name__] == 0
        promoting = asyncio.ensure_future(limbo.promote(DEADLINE_S))
        await until(lambda: limbo.busy, "it waits")
        await cluster.configure(quorum="2")
        promoted = await promoting
        assert (promoted.term, promoted.rolled_back) == (2, 0)
        assert (await left.verdict(DEADLINE_S)).state == "confirmed"
        await cluster.converge()
        assert cluster.fates_everywhere(1) == ["confirmed"]

    play(body, quorum="N")


def test_11_a_write_during_a_promotion_is_not_left_hanging() -> None:
    """On the old owner, before and behind the change; and on the new one, which gets it through."""

    async def body(cluster: LimboCluster) -> None:
        release_acks = cluster.hold(Ack, "core3")
        release_promote = cluster.hold(Promote, "core2")
        promoting = asyncio.ensure_future(cluster.limbo("core2").promote(DEADLINE_S))
        await cluster.is_held(Promote, "core2")
        # Behind the last position that the promotion has seen settled.
        before = asyncio.ensure_future(cluster.put("core1", b"before"))
        await until(lambda: cluster.state().pending == 1, "it got into the queue")
        release_submit = cluster.hold(Submit, "core1")
        behind = asyncio.ensure_future(cluster.put("core1", b"behind"))
        await cluster.is_held(Submit, "core1")
        mine = asyncio.ensure_future(cluster.put("core2", b"mine"))
        release_promote()
        promoted = await promoting
        assert (promoted.term, promoted.rolled_back) == (2, 1)
        release_submit()
        [undone, refused] = await both(before, behind)
        assert isinstance(undone, RolledBack)
        assert (undone.reason, undone.by) == ("promotion of core2 in term 2", "core2")
        assert isinstance(refused, ForeignOwner)
        release_acks()
        done = await mine
        assert (done.term, done.position, done.state) == (2, 2, "confirmed")
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2) == ["rolled back", "confirmed"]

    play(body, quorum="N")


def test_11_the_leader_promotes_itself_where_the_setting_says_so() -> None:
    async def body(cluster: LimboCluster) -> None:
        for _ in range(2):
            leader = cluster.leader()
            assert leader is not None
            name = leader.name
            await until(
                lambda name=name: cluster.limbo(name).status().mine,  # type: ignore[misc]
                f"{name} leads, so it owns the queue",
            )
            assert (await cluster.put(name, b"k", name.encode())).state == "confirmed"
            await cluster.kill(name)
            await until(lambda: cluster.leader() is not None, "another one leads")
            new = cluster.leader()
            assert new is not None
            await until(
                lambda other=new.name: cluster.limbo(other).status().mine,  # type: ignore[misc]
                f"{new.name} leads now, so it owns the queue",
            )
            await cluster.restart(name)

    play(body, owner="", leader_promotes=True)


# --- 12: the quorum -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "N - 1",
        "N + 1",
        "aaa",
        "",
        "9" * 400,
        "N ** 9",
        "2 ^ N",
        "random()",
        "__import__('os').getpid()",
        "N if N else 1",
        "(" * 500 + "N" + ")" * 500,
        "N / (N - N)",
        "32",
        "0",
    ],
    ids=lambda text: text[:24] or "empty",
)
def test_12_expressions_that_are_refused(expression: str) -> None:
    async def body(cluster: LimboCluster) -> None:
        with pytest.raises(InvalidSetting):
            await cluster.configure(quorum=expression)
        assert cluster.limbo("core1").status().quorum.text == "N / 2 + 1"

    play(body, cores=1)


@pytest.mark.parametrize(("cores", "needed"), [(1, 1), (2, 2), (3, 2)])
def test_12_the_default_is_a_majority_rounded_down(cores: int, needed: int) -> None:
    async def body(cluster: LimboCluster) -> None:
        quorum = cluster.limbo("core1").status().quorum
        assert (quorum.n, quorum.quorum, quorum.text) == (cores, needed, "N / 2 + 1")
        assert (await cluster.put("core1", b"k")).state == "confirmed"
        assert nodes_needed(quorum.text, 7) == 4

    play(body, cores=cores)


def test_12_below_the_quorum_a_write_waits_until_a_node_comes_back() -> None:
    async def body(cluster: LimboCluster) -> None:
        assert (await cluster.put("core1", b"1")).state == "confirmed"
        await cluster.kill("replicant1")
        await cluster.kill("core3")
        with pytest.raises(StillPending):
            await cluster.put("core1", b"2", timeout_s=SHORT_S)
        status = cluster.limbo("core1").status()
        assert (status.quorum.n, status.quorum.quorum) == (5, 4)
        await cluster.restart("replicant1")
        assert (await cluster.limbo("core1").wait_verdict(2, DEADLINE_S)).fate == "confirmed"
        # More than there are: allowed, and said.
        await cluster.configure(quorum="7")
        await cluster.converge()
        status = cluster.limbo("core2").status()
        assert (status.quorum.quorum, status.quorum.possible) == (7, False)
        [told, *_] = warnings(cluster.limbo("core2").host.view())
        assert "7 members are needed, and there are 5" in told
        # A change counts for those that wait, too.
        waiting = await cluster.hand("core1", b"3")
        await cluster.acked_upto(3, "core1", "core2", "replicant1", "replicant2")
        assert cluster.fates(3) == ["pending"]
        await cluster.configure(quorum="min(4, ceil(9 * N / 10))")
        assert (await waiting.verdict(DEADLINE_S)).state == "confirmed"

    # The replicant is to count while it is away.
    play(
        body,
        replicants=2,
        node_down_ms=60_000,
        quorum="max(1, N * 4 / 5)",
        quorum_over="members",
    )


def test_12_a_member_more_counts_when_its_membership_is_in_the_log() -> None:
    """N grows with the joiner, for those that wait already; its acknowledgement is needed then."""

    async def body(cluster: LimboCluster) -> None:
        cluster.hold(Ack, "core2")
        waiting = await cluster.hand("core1", b"1")
        await cluster.acked_upto(1, "core1", "core3")
        release = cluster.hold(Ack, "core4")
        await cluster.start_new_core("core4")
        await cluster.nodes[0].membership.add("core4")
        await cluster.running["core4"].wait_ready()
        await until(
            lambda: cluster.limbo("core1").status().quorum.n == 4, "the fourth one is counted"
        )
        assert (await cluster.raw("core2", Ack(1))).confirmed == 0
        await cluster.is_held(Ack, "core4")
        assert cluster.fates(1) == ["pending"]
        release()
        assert (await waiting.verdict(DEADLINE_S)).state == "confirmed"
        await cluster.converge()
        assert cluster.row("core4", b"1") == b"v"
        cluster.open_gates()

    play(body, quorum="N")


def test_12_a_core_less_counts_no_more_for_those_that_wait_either() -> None:
    async def body(cluster: LimboCluster) -> None:
        leader = cluster.leader()
        assert leader is not None
        gone = next(name for name in THREE if name not in ("core1", leader.name))
        await cluster.kill(gone)
        with pytest.raises(StillPending) as pending:
            await cluster.put("core1", b"1", timeout_s=SHORT_S)
        await cluster.is_down(gone)
        # However dead: a core counts until it is removed.
        quorum = cluster.limbo("core1").status().quorum
        assert (quorum.n, quorum.quorum, quorum.fast) == (3, 3, False)
        assert cluster.fates(1) == ["pending"]
        await cluster.running["core1"].membership.remove(gone)
        assert pending.value.submission is not None
        assert (await pending.value.submission.verdict(DEADLINE_S)).state == "confirmed"
        await cluster.converge()
        # Of two, both are Raft's own majority.
        quorum = cluster.limbo("core1").status().quorum
        assert (quorum.n, quorum.quorum, quorum.fast) == (2, 2, True)
        assert (await cluster.put("core1", b"2")).state == "confirmed"

    play(body, quorum="N")


# --- 13 and 14: limits, figures -------------------------------------------------------------------


def test_13_room_in_the_queue() -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "core3")
        limbo = cluster.limbo("core1")
        # Into an empty queue something always enters.
        first = await cluster.enter("core1", b"1", b"a large value")
        assert first == 1
        with pytest.raises(QueueFull) as full:
            await cluster.hand("core1", b"2")
        assert (full.value.what, full.value.limit) == ("bytes", 1)
        waiting = [asyncio.ensure_future(cluster.enter("core1", b"%d" % n)) for n in (3, 4, 5)]
        await until(lambda: limbo.status().queue.waiting_for_room == 3, "three wait for room")
        # Who would wait behind others for room is refused as well.
        with pytest.raises(QueueFull):
            await cluster.hand("core1", b"6")
        with pytest.raises(NotSubmitted):
            await cluster.put("core1", b"7", timeout_s=SHORT_S)
        assert cluster.state().last == 1
        await cluster.configure(queue_bytes_max=1 << 20)
        assert await asyncio.gather(*waiting) == [2, 3, 4]
        # Lowered again it takes nothing more, and what is in stays in.
        await cluster.configure(queue_bytes_max=1)
        with pytest.raises(QueueFull):
            await cluster.hand("core1", b"8")
        later = asyncio.ensure_future(cluster.put("core1", b"9"))
        await until(lambda: limbo.status().queue.waiting_for_room == 1, "one waits for room")
        flushing = asyncio.ensure_future(limbo.flush(DEADLINE_S))
        release()
        await flushing
        assert (await later).position == 5
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2, 3, 4, 5) == ["confirmed"] * 5

    play(body, quorum="N", queue_bytes_max=1)


def test_13_a_restart_takes_up_a_queue_that_is_longer_than_its_limit() -> None:
    async def body(cluster: LimboCluster) -> None:
        count = 1_000
        release = cluster.hold(Ack, "core3")
        limbo = cluster.limbo("core1")
        for n in range(count):
            await cluster.hand("core1", b"%04d" % n)
        await limbo.flush(DEADLINE_S)
        await until(lambda: cluster.state().pending == count, "all wait")
        with pytest.raises(QueueFull):
            await cluster.hand("core1", b"one more")
        await cluster.configure(queue_entries_max=1, queue_bytes_max=1, queue_writes_max=1)
        for name in THREE:
            await cluster.kill(name)
        await asyncio.gather(*(cluster.start(name) for name in THREE))
        await cluster.wait_ready(DEADLINE_S)
        for name in THREE:
            assert cluster.state(name).pending == count
            assert cluster.table("rows", name) == {}
        release()
        await cluster.limbo("core2").wait_confirmed(count, DEADLINE_S)
        await cluster.converge()
        for name in THREE:
            assert len(cluster.table("rows", name)) == count
            told = cluster.seats[name].confirmed
            assert told == list(range(1, count + 1))

    play(body, quorum="N", entries_kept=1_000)


def test_14_figures() -> None:
    async def body(cluster: LimboCluster) -> None:
        limbo = cluster.limbo("core1")
        queue = limbo.status().queue
        assert (queue.len, queue.bytes, queue.age_ms, queue.confirm_lag_ms) == (0, 0, 0, 0)
        # Async ones that are confirmed at once leave no trace in the lag.
        await cluster.put("core1", b"a", space="async")
        assert cluster.state().confirm_lag_ms == 0
        release = cluster.hold(Ack, "core3")
        await cluster.enter("core1", b"first", b"12345")
        await until(lambda: limbo.status().queue.age_ms >= 20, "it grows older")
        await cluster.enter("core1", b"second", b"12345")
        one = limbo.status().queue
        assert (one.len, one.writes, one.bytes) == (2, 2, 21)
        await until(lambda: limbo.status().queue.age_ms > one.age_ms, "by the oldest one")
        assert limbo.status().queue.age_ms >= 20
        assert not limbo.status().queue.busy
        release()
        await limbo.wait_confirmed(3, DEADLINE_S)
        await cluster.converge()
        lag_ms = cluster.state().confirm_lag_ms
        assert lag_ms >= 0
        # With nothing waiting the figures are 0, on every node.
        for name in THREE:
            queue = cluster.limbo(name).status().queue
            assert (queue.len, queue.bytes, queue.age_ms, queue.confirm_lag_ms) == (0, 0, 0, 0)
        # While something waits, the lag is that of the last sync one.
        cluster.hold(Ack, "core3")
        await cluster.enter("core1", b"third")
        await cluster.put("core1", b"free", space="async", order="independent")
        assert limbo.status().queue.confirm_lag_ms == lag_ms
        await limbo.rollback(cluster.state().head)

    play(body, quorum="N")


# --- 15: restart, snapshot ------------------------------------------------------------------------


async def a_queue(cluster: LimboCluster) -> None:
    """Something that is confirmed, and three pending transactions of several keys."""
    limbo = cluster.limbo("core1")
    await cluster.put("core1", b"a", b"confirmed")
    cluster.hold(Ack, "core3")
    writes = [
        [Write("sync", b"a", b"1"), Write("async", b"x", b"1")],
        [Write("async", b"x", b"2"), Write("async", b"y", b"2")],
        [Write("sync", b"a", None), Write("sync", b"b", b"3")],
    ]
    for each in writes:
        receipt = await limbo.submit(each, wait="submit", timeout_s=DEADLINE_S)
        assert receipt.state == "pending"
    await cluster.acked_upto(4, "core1", "core2")


def is_pending_as_it_was(cluster: LimboCluster, name: str) -> None:
    """Whole transactions, in their order, and nothing of them for confirmed readers."""
    assert cluster.row(name, b"a") == b"confirmed"
    assert [cluster.row(name, key, "async") for key in (b"x", b"y")] == [None, None]
    assert cluster.pending_value(name, b"a") is None
    assert cluster.pending_value(name, b"x", "async") == b"2"
    assert cluster.fates(1, 2, 3, 4, at=name) == ["confirmed", *["pending"] * 3]
    entries = cluster.table("entries", name)
    assert [len(entries[position].writes) for position in (2, 3, 4)] == [2, 2, 2]


def is_all_confirmed(cluster: LimboCluster, name: str) -> None:
    assert cluster.row(name, b"a") is None
    assert cluster.row(name, b"b") == b"3"
    assert [cluster.row(name, key, "async") for key in (b"x", b"y")] == [b"2", b"2"]


def test_15_a_restart_with_a_pending_queue() -> None:
    async def body(cluster: LimboCluster) -> None:
        await a_queue(cluster)
        for name in THREE:
            await cluster.kill(name)
        await asyncio.gather(*(cluster.start(name) for name in THREE))
        await cluster.wait_ready(DEADLINE_S)
        await cluster.acked_upto(4, "core1", "core2")
        await cluster.converge()
        for name in THREE:
            is_pending_as_it_was(cluster, name)
            row = await cluster.limbo(name).get("sync", b"a", view="linearizable")
            assert row is not None
            assert (row.value, row.position) == (b"confirmed", 1)
        with pytest.raises(StaleOwner):
            await cluster.put("core1", b"k")
        with pytest.raises(PromoteTimedOut):
            await cluster.limbo("core1").promote(SHORT_S)
        promoting = asyncio.ensure_future(cluster.limbo("core1").promote(DEADLINE_S))
        cluster.open_gates()
        promoted = await promoting
        assert (promoted.term, promoted.confirmed, promoted.rolled_back) == (2, 4, 0)
        assert (await cluster.put("core1", b"k")).position == 5
        await cluster.converge()
        for name in THREE:
            is_all_confirmed(cluster, name)
            assert cluster.seats[name].confirmed[-4:] == [2, 3, 4, 5]

    play(body, quorum="N")


def test_15_a_snapshot_holds_the_queue_as_it_is() -> None:
    """Nodes restart from one, and a fourth core joins from one; the queue is settled afterwards."""

    async def body(cluster: LimboCluster) -> None:
        await a_queue(cluster)
        for n in range(60):
            await cluster.nodes[0].kv.put(b"filler", b"%d" % n)
        await cluster.converge()
        for name in THREE:
            node = cluster.running[name]
            await until(
                lambda node=node: (node.status().snapshot_index or 0) > 20,  # type: ignore[misc]
                f"{name} has written a snapshot",
            )
            await cluster.restart(name)
            await cluster.converge()
            is_pending_as_it_was(cluster, name)
        await cluster.start_new_core("core4")
        await cluster.nodes[0].membership.add("core4")
        await cluster.running["core4"].wait_ready()
        await cluster.converge()
        is_pending_as_it_was(cluster, "core4")
        assert any(isinstance(event, Restored) for event in cluster.seats["core4"].events)
        assert not any(isinstance(event, Confirmed) for event in cluster.seats["core4"].events)
        cluster.open_gates()
        await cluster.limbo("core4").wait_confirmed(4, DEADLINE_S)
        await cluster.converge()
        for node in cluster.nodes:
            is_all_confirmed(cluster, node.name)
        assert cluster.seats["core4"].confirmed == [2, 3, 4]

    play(body, quorum="N", limits=Limits(snapshot_log_entries=20, log_tail_entries=5))
