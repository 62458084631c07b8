"""The way into the queue: batches and their order, lost answers, deadlines, cancelled callers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv.errors import NoSpace, Overloaded, ReadTimeout, Stopped
from raftkv_limbo import Limbo
from raftkv_limbo.commands import Condition, Submit, Write
from raftkv_limbo.errors import NotSubmitted, RolledBack, StillPending, SubmitUnknown
from raftkv_limbo.options import LimboOptions
from raftkv_limbo.refusals import (
    ConditionFailed,
    EmptyTransaction,
    ForeignOwner,
    KeyPending,
    KeyTooLarge,
    QueueFull,
    StaleOwner,
    TransactionTooLarge,
    Unclaimed,
    UnknownSpace,
)
from raftkv_limbo.submission import Receipt, Submission
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, until


def wrong(value: Any) -> Any:
    """A value of a type that the type checker would not let through."""
    return value


def batches(cluster: Cluster) -> list[int]:
    """How many transactions each Submit of the log holds, in their order."""
    sizes = []
    for body in cluster.log:
        for envelope in msgspec.msgpack.decode(body)[1]:
            if envelope[3] == "limbo":
                command = msgspec.msgpack.decode(envelope[4])
                if command[0] == "submit":
                    sizes.append(len(command[1]))
    return sizes


# --- batches --------------------------------------------------------------------------------------


@story()
async def test_what_one_turn_submits_is_one_command(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    receipts = await asyncio.gather(*(limbo.submit(sync(f"k{n}")) for n in range(64)))
    assert batches(cluster) == [64]
    assert [one.position for one in receipts] == list(range(1, 65))
    assert {one.state for one in receipts} == {"confirmed"}
    assert {(one.index, one.term) for one in receipts} == {(cluster.state.confirmed_index, 1)}


@story()
async def test_the_next_batch_gathers_while_one_is_under_way(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    first = asyncio.ensure_future(limbo.submit(sync("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = []
    for n in range(5):
        later.append(asyncio.ensure_future(limbo.submit(sync(f"b{n}"))))
        await asyncio.sleep(0)
    await asyncio.gather(first, *later)
    assert batches(cluster) == [1, 5]


@story()
async def test_beyond_the_quota_deletions_do_not_fail_with_what_shares_their_batch(
    cluster: Cluster,
) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("a"))
    quota = Limbo.quota
    assert quota is not None

    def judged(apply: Any) -> Any:
        def full(command: Any, ctx: Any) -> Any:
            if quota.adds(command):
                raise NoSpace("limbo")
            return apply(command, ctx)

        return full

    with pytest.MonkeyPatch.context() as patch:
        for machine in (cluster.witness, *(node.machine for node in cluster.nodes.values())):
            routed = machine._all["limbo"]
            patch.setattr(routed, "apply", judged(routed.apply))
        put, deletion = await asyncio.gather(
            limbo.submit(sync("b")), limbo.submit(sync("a", None)), return_exceptions=True
        )
    assert isinstance(put, NoSpace)
    assert isinstance(deletion, Receipt)
    assert cluster.value("core1", "s", b"a") is None


@story()
async def test_a_batch_keeps_to_its_limits(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await asyncio.gather(*(limbo.submit(sync(f"k{n}")) for n in range(300)))
    assert batches(cluster) == [256, 44]
    many = [
        limbo.submit([Write("s", b"%d/%d" % (n, m), b"") for m in range(100)]) for n in range(11)
    ]
    await asyncio.gather(*many)
    assert batches(cluster)[2:] == [10, 1]
    large = [limbo.submit(sync(f"k{n}", "v" * 300_000)) for n in range(3)]
    await asyncio.gather(*large)
    assert batches(cluster)[4:] == [1, 1, 1]


@story(quorum="N")
async def test_calls_that_do_not_wait_keep_their_order(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    handles = []
    for n in range(600):
        order = "a" if n % 3 else "s"
        handles.append(await limbo.submit([Write(order, b"%d" % n, b"")], wait="none"))
        if n % 50 == 0:
            await asyncio.sleep(0.002)
    assert all(isinstance(handle, Submission) for handle in handles)
    receipts = [await handle.verdict() for handle in handles]
    assert [one.position for one in receipts] == list(range(1, 601))
    assert max(batches(cluster)) > 1


@story()
async def test_a_refused_transaction_does_not_touch_the_others(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("k", "old"))
    answers = await asyncio.gather(
        limbo.submit(sync("a")),
        limbo.submit(sync("k", "new"), [Condition("s", b"k", "value", b"other")]),
        limbo.submit([Write("nowhere", b"k", b"")]),
        limbo.submit(sync("b")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], ConditionFailed)
    assert (answers[1].space, answers[1].key, answers[1].position) == ("s", b"k", 1)
    assert isinstance(answers[2], UnknownSpace)
    assert [answers[0].position, answers[3].position] == [2, 3]
    assert batches(cluster) == [1, 4]
    assert cluster.value("core2", "s", b"k") == b"old"
    assert limbo.counters["rejected"] == 2


@story(quorum="N")
async def test_conditions_see_what_waits_before(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("k", "1"), wait="submit")
    t = limbo.transaction().expect("s", b"k", value=b"1").put("s", b"k", b"2")
    second = await t.submit(wait="submit")
    assert isinstance(second, Receipt)
    assert (second.position, second.state) == (2, "pending")
    with pytest.raises(ConditionFailed):
        await t.submit(wait="submit")
    t = limbo.transaction().expect("s", b"k", position=2).expect("s", b"z", exists=False)
    await t.delete("s", b"k").submit(wait="submit")
    cluster.heal("core3")
    await limbo.wait_confirmed(3)
    assert cluster.value("core1", "s", b"k") is None


@story(quorum="N")
async def test_independent_ones_do_not_wait(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    pending = await limbo.submit([Write("s", b"k", b"1"), Write("a", b"k", b"1")], wait="submit")
    done = await limbo.submit(asynchronous("free"), order="independent")
    assert (pending.state, done.state) == ("pending", "confirmed")
    with pytest.raises(KeyPending) as caught:
        await limbo.submit(asynchronous("k"), order="independent")
    assert caught.value.position == pending.position
    with pytest.raises(StillPending):
        await limbo.submit(asynchronous("behind"), timeout_s=1)
    assert cluster.value("core1", "a", b"free") == b"x"
    assert cluster.value("core1", "a", b"behind") is None
    cluster.heal("core3")


# --- what is refused at once ----------------------------------------------------------------------


@story()
async def test_what_cannot_be_sent_is_refused_in_the_call_at_fault(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    good = asyncio.ensure_future(limbo.submit(sync("good")))
    with pytest.raises(EmptyTransaction):
        await limbo.submit([])
    with pytest.raises(KeyTooLarge):
        await limbo.submit([Write("s", b"k" * 1025, b"")])
    with pytest.raises(TransactionTooLarge):
        await limbo.submit([Write("s", b"%d" % n, b"") for n in range(1001)])
    mistakes: list[Any] = [
        ("s", b"k", b""),
        Write("s", wrong("k"), b""),
        Write(wrong(1), b"k", b""),
    ]
    for mistake in mistakes:
        with pytest.raises(TypeError):
            await limbo.submit([mistake])
    with pytest.raises(TypeError, match="value"):
        await limbo.submit([Write("s", b"k", "text")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ASCII"):
        await limbo.submit([Write("\ud800", b"k", b"")])
    for condition in (
        Condition("s", b"k", "newer"),  # type: ignore[arg-type]
        Condition("s", b"k", "position", None, -1),
        Condition("s", b"k", "position", None, 2**64),
    ):
        with pytest.raises(ValueError, match="condition"):
            await limbo.submit(sync("k"), [condition])
    with pytest.raises(TypeError):
        await limbo.submit(sync("k"), [Condition("s", b"k", "value", 7)])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await limbo.submit(sync("k"), [("s", b"k")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="order"):
        await limbo.submit(sync("k"), order="first")  # type: ignore[call-overload]
    assert (await good).position == 1
    assert len(limbo.submitting) == 0


@story()
async def test_who_may_submit(cluster: Cluster) -> None:
    one, two = cluster.limbo("core1"), cluster.limbo("core2")
    with pytest.raises(Unclaimed):
        await one.submit(sync("k"))
    assert (await two.submit(asynchronous("k"))).state == "confirmed"
    await cluster.own("core1")
    with pytest.raises(ForeignOwner) as caught:
        await two.submit(sync("k"))
    assert (caught.value.owner, caught.value.term) == ("core1", 1)
    with pytest.raises(ForeignOwner):
        await two.submit(asynchronous("k"))


@story()
async def test_a_node_takes_a_bounded_number(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    limbo.submitting._options = LimboOptions(waiting_max=10)
    handles = [await limbo.submit(sync(f"k{n}"), wait="none") for n in range(10)]
    with pytest.raises(Overloaded):
        await limbo.submit(sync("k"), wait="none")
    for handle in handles:
        await handle.verdict()
    await limbo.submit(sync("k"))
    limbo.submitting._options = LimboOptions(waiting_bytes_max=10)
    await limbo.submit(sync("k", "v" * 20), wait="none")
    with pytest.raises(Overloaded):
        await limbo.submit(sync("k"), wait="none")


# --- answers that do not come ---------------------------------------------------------------------


@story()
async def test_a_lost_answer_is_asked_for(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.lose_answers("core1", "submit")
    receipts = await asyncio.gather(
        limbo.submit(sync("a"), timeout_s=60), limbo.submit(sync("b"), timeout_s=60)
    )
    assert [one.position for one in receipts] == [1, 2]
    assert batches(cluster) == [2]
    assert limbo.counters["unknown_outcomes"] == 1


@story()
async def test_a_lost_refusal_is_asked_for(cluster: Cluster) -> None:
    limbo = cluster.limbo("core1")
    cluster.lose_answers("core1", "submit")
    with pytest.raises(Unclaimed):
        await limbo.submit(sync("a"), timeout_s=60)


@story()
async def test_a_batch_that_never_came_is_sent_again(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core1")
    later = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(12)
    cluster.heal("core1")
    assert (await later).position == 1
    assert batches(cluster) == [1]


@story()
async def test_while_the_outcome_is_unknown_nothing_else_goes(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    lost = cluster.lose_answers("core1", "submit")
    first = asyncio.ensure_future(limbo.submit(sync("k", "1"), timeout_s=60))
    await until(lambda: len(lost) == 1)
    second = asyncio.ensure_future(limbo.submit(sync("k", "2"), timeout_s=60))
    await asyncio.sleep(2)
    assert batches(cluster) == [1]
    assert [(await first).position, (await second).position] == [1, 2]


@story()
async def test_a_caller_is_told_that_it_is_not_known(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    release = cluster.hold("core1", "submit")
    with pytest.raises(SubmitUnknown) as caught:
        await limbo.submit(sync("a"), timeout_s=1)
    handle = caught.value.submission
    assert handle is not None
    assert handle.now == Receipt(0, "submitting", 0, 0)
    with pytest.raises(SubmitUnknown):
        await handle.receipt(0.5)
    release()
    assert (await handle.verdict(60)).position == 1


@story()
async def test_what_waits_for_an_isolated_node_is_withdrawn_in_time(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core1")
    first = asyncio.ensure_future(limbo.submit(sync("sent"), timeout_s=1))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(limbo.submit(sync("gathered"), timeout_s=1))
    third = await limbo.submit(sync("nobody waits"), wait="none", timeout_s=1)
    with pytest.raises(SubmitUnknown):
        await first
    with pytest.raises(NotSubmitted):
        await second
    with pytest.raises(NotSubmitted):
        await third.receipt()
    cluster.heal("core1")
    await asyncio.sleep(20)
    assert cluster.state.last == 0
    assert len(limbo.submitting) == 0
    assert (await limbo.submit(sync("later"))).position == 1


@story()
async def test_the_leader_is_lost_and_another_comes(cluster: Cluster) -> None:
    limbo = await cluster.own("core2")
    cluster.filter = lambda node, envelope: cluster.leader is not None
    former, cluster.leader = cluster.leader, None
    waits = [asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=60)) for n in range(3)]
    await asyncio.sleep(8)
    cluster.leader = former
    cluster.lead("core3")
    assert [(await one).position for one in waits] == [1, 2, 3]


@story(quorum="N")
async def test_the_own_life_ends_in_between(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    kept = await limbo.submit(sync("kept"), wait="submit")
    cluster.isolate("core1")
    under_way = asyncio.ensure_future(limbo.submit(sync("lost"), timeout_s=60))
    await asyncio.sleep(0.1)
    gathered = asyncio.ensure_future(limbo.submit(sync("late"), timeout_s=60))
    cluster.declare_dead("core1")
    await asyncio.sleep(1)
    cluster.heal("core3")
    cluster.rejoin("core1")
    # Nothing of it was applied, so it is sent anew, and refused by name.
    with pytest.raises(StaleOwner):
        await under_way
    with pytest.raises(StaleOwner):
        await gathered
    # What was in the queue belongs to the queue, and not to the life.
    assert (await limbo.wait_verdict(kept.position)).fate == "confirmed"
    with pytest.raises(StaleOwner):
        await limbo.submit(sync("again"))
    await limbo.promote()
    assert (await limbo.submit(sync("again"))).term == 2


@story()
async def test_nobody_remembers_what_a_life_did_before_it_ended(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.lose_answers("core1", "submit")
    lost = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(0.1)
    assert cluster.state.last == 1
    cluster.declare_dead("core1")
    cluster.rejoin("core1")
    with pytest.raises(SubmitUnknown) as caught:
        await lost
    assert "look at what it writes" in str(caught.value)
    assert limbo.counters["lost"] == 1


# --- spoilt batches -------------------------------------------------------------------------------


@story()
async def test_a_transaction_that_spoils_its_batch_goes_alone(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    node = cluster.nodes["core1"]
    propose = node.propose

    async def picky(command: msgspec.Struct, *, timeout_s: float | None = None) -> object:
        if isinstance(command, Submit):
            keys = [one.writes[0].key for one in command.transactions]
            if b"bad" in keys:
                raise RuntimeError("cannot be encoded")
        return await propose(command, timeout_s=timeout_s)

    node.propose = picky  # type: ignore[method-assign]
    answers = await asyncio.gather(
        *(limbo.submit(sync(key)) for key in ("a", "bad", "b")), return_exceptions=True
    )
    assert [answers[0].position, answers[2].position] == [1, 2]
    assert isinstance(answers[1], RuntimeError)


@story(quorum="N")
async def test_who_goes_alone_does_not_overtake_who_finds_no_room(cluster: Cluster) -> None:
    """The limit is lowered just when a batch has been spoilt."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    node = cluster.nodes["core1"]
    propose = node.propose

    async def picky(command: msgspec.Struct, *, timeout_s: float | None = None) -> object:
        if isinstance(command, Submit) and len(command.transactions) > 1:
            cluster.configure(queue_bytes_max=50)
            node.propose = propose  # type: ignore[method-assign]
            raise RuntimeError("cannot be encoded")
        return await propose(command, timeout_s=timeout_s)

    node.propose = picky  # type: ignore[method-assign]
    large, small, larger = (
        asyncio.ensure_future(limbo.submit(sync(key, "v" * size), timeout_s=60))
        for key, size in (("b", 60), ("c", 1), ("d", 70))
    )
    await asyncio.sleep(0)
    impatient = await limbo.submit(sync("e"), wait="none")
    free = await limbo.submit(asynchronous("f"), order="independent")
    assert free.state == "confirmed"
    with pytest.raises(QueueFull):
        await impatient.receipt()
    await asyncio.sleep(1)
    assert cluster.state.pending == 1
    cluster.heal("core3")
    assert (await large).position < (await small).position < (await larger).position


# --- time-outs and cancelled callers --------------------------------------------------------------


@story(quorum="N")
async def test_a_time_out_is_no_verdict(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    with pytest.raises(StillPending) as caught:
        await limbo.submit(sync("k", "v"), timeout_s=1)
    assert caught.value.position == 1
    assert cluster.state.pending == 1
    assert limbo.verdict(1).fate == "pending"
    assert cluster.value("core1", "s", b"k") is None
    cluster.heal("core3")
    assert caught.value.submission is not None
    assert (await caught.value.submission.verdict()).state == "confirmed"
    assert cluster.value("core1", "s", b"k") == b"v"


@story(quorum="N")
async def test_every_caller_has_its_own_deadline(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    loop = asyncio.get_running_loop()
    began = loop.time()
    ended: dict[float, float] = {}

    async def wait(timeout_s: float) -> None:
        with pytest.raises(StillPending):
            await limbo.submit(sync(str(timeout_s)), timeout_s=timeout_s)
        ended[timeout_s] = loop.time() - began

    await asyncio.gather(*(wait(seconds) for seconds in (3.0, 0.5, 1.0, 0.7, 2.0)))
    assert list(ended) == [0.5, 0.7, 1.0, 2.0, 3.0]
    assert all(abs(took - seconds) < 0.02 for seconds, took in ended.items())
    cluster.heal("core3")


@story(quorum="N")
async def test_a_cancelled_caller_is_detached(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("k", "v")))
    await until(lambda: cluster.state.last == 1)
    await asyncio.sleep(0.01)
    waits.cancel()
    await asyncio.sleep(0.01)
    assert waits.cancelled()
    cluster.heal("core3")
    await until(lambda: cluster.value("core1", "s", b"k") == b"v")
    assert limbo.counters["detached"] == 1


@story()
async def test_a_cancelled_caller_takes_back_what_was_not_written(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    release = cluster.hold("core1", "submit")
    first = asyncio.ensure_future(limbo.submit(sync("first")))
    await asyncio.sleep(0.01)
    taken_back = asyncio.ensure_future(limbo.submit(sync("taken back")))
    last = asyncio.ensure_future(limbo.submit(sync("last")))
    await asyncio.sleep(0.01)
    taken_back.cancel()
    await asyncio.sleep(0.01)
    release()
    assert [(await first).position, (await last).position] == [1, 2]
    assert limbo.counters["withdrawn"] == 1
    assert cluster.value("core1", "s", b"taken back") is None


@story(quorum="N")
async def test_rolled_back_callers_hear_newest_first(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    heard: list[int] = []

    async def wait(n: int) -> None:
        with pytest.raises(RolledBack) as caught:
            await limbo.submit(sync(f"k{n}"), timeout_s=60)
        assert (caught.value.reason, caught.value.by) == ("enough", "core1")
        heard.append(caught.value.position)

    tasks = [asyncio.ensure_future(wait(n)) for n in range(5)]
    await until(lambda: cluster.state.pending == 5)
    await limbo.rollback(1, "enough")
    await asyncio.gather(*tasks)
    assert heard == [5, 4, 3, 2, 1]
    cluster.heal("core3")


# --- flush and stop -------------------------------------------------------------------------------


@story()
async def test_flush_waits_for_what_was_submitted_before(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    release = cluster.hold("core1", "submit")
    handles = [await limbo.submit(sync(f"k{n}"), wait="none", timeout_s=60) for n in range(300)]
    with pytest.raises(Exception, match="not in the queue"):
        await limbo.flush(0.1)
    flushed = asyncio.ensure_future(limbo.flush(60))
    await asyncio.sleep(0.01)
    release()
    await flushed
    assert all(handle.now.state == "confirmed" for handle in handles)
    await limbo.flush(0.1)


@story(quorum="N")
async def test_a_node_that_stops_tells_its_callers_what_is_known(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    pending = asyncio.ensure_future(limbo.submit(sync("pending"), timeout_s=None))
    await until(lambda: cluster.state.last == 1)
    cluster.hold("core1", "submit")
    under_way = asyncio.ensure_future(limbo.submit(sync("under way"), timeout_s=None))
    await asyncio.sleep(0.01)
    gathered = asyncio.ensure_future(limbo.submit(sync("gathered"), timeout_s=None))
    asked = asyncio.ensure_future(limbo.wait_verdict(9, timeout_s=None))
    await asyncio.sleep(0.01)
    await cluster.stop("core1")
    with pytest.raises(StillPending):
        await pending
    with pytest.raises(SubmitUnknown):
        await under_way
    with pytest.raises(Stopped):
        await gathered
    with pytest.raises(Stopped):
        await asked
    with pytest.raises(Stopped):
        await limbo.submit(sync("late"))
    # The stop has decided nothing: its quorum comes all the same.
    assert cluster.state.pending == 1
    cluster.heal("core3")
    await until(lambda: cluster.state.confirmed == 1)


@story(quorum="N")
async def test_a_node_that_stops_tells_who_holds_a_handle(cluster: Cluster) -> None:
    """No caller waits for it, but somebody may, and nobody else would tell him."""
    limbo = await cluster.own("core1")
    cluster.hold("core1", "submit")
    under_way = await limbo.submit(sync("under way"), wait="none", timeout_s=None)
    asked = [asyncio.ensure_future(under_way.receipt()), asyncio.ensure_future(under_way.verdict())]
    with pytest.raises(SubmitUnknown) as caught:
        await limbo.submit(sync("beside"), timeout_s=0.1)
    assert caught.value.submission is not None
    asked.append(asyncio.ensure_future(caught.value.submission.verdict()))
    await asyncio.sleep(0.1)
    await cluster.stop("core1")
    await asyncio.wait(asked, timeout=60)
    for one in asked:
        assert one.done()
        assert isinstance(one.exception(), SubmitUnknown)
    with pytest.raises(SubmitUnknown):
        await under_way.receipt()


@story(quorum="N")
async def test_who_asks_a_handle_again_and_again_leaves_nothing_behind(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    handle = await limbo.submit(sync("a"), wait="none", timeout_s=None)
    for _ in range(20):
        with pytest.raises(StillPending):
            await handle.verdict(timeout_s=0.1)
    leaving = asyncio.ensure_future(handle.verdict())
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.sleep(0.1)
    assert not handle._watchers
    await limbo.rollback(handle.now.position)
    depths = []
    for _ in range(20):
        with pytest.raises(RolledBack) as caught:
            assert handle.now
        trace, depth = caught.value.__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        depths.append(depth)
    assert depths[-1] == depths[0]
    cluster.heal("core3")


@story(quorum="N", queue_entries_max=1)
async def test_a_flush_that_gives_up_leaves_nothing_behind(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit", timeout_s=None)
    waits = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=None))
    await asyncio.sleep(0.1)
    for _ in range(20):
        with pytest.raises(ReadTimeout):
            await limbo.flush(0.1)
    assert not limbo.submitting._landings
    cluster.heal("core3")
    await waits


@story()
async def test_another_has_lost_his_answer_forever_but_not_the_batch(cluster: Cluster) -> None:
    """A node that has forgotten the kind of the command hands out a plain list."""
    limbo = await cluster.own("core1")
    cluster.lose_answers("core1", "submit")
    cluster.nodes["core1"]._kinds = _Forgetful()  # type: ignore[assignment]
    assert (await limbo.submit(sync("a"), timeout_s=60)).position == 1


class _Forgetful(dict[object, object]):
    def get(self, key: object, default: object = None) -> object:  # type: ignore[override]
        return None
