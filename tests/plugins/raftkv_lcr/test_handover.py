"""Hand-overs: freezing, ending, failing, forgetting. The cluster is faked, time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from raftkv_lcr.commands import Channel, Registered
from raftkv_lcr.old_calls import speaks_old
from raftkv_lcr.options import LcrOptions
from raftkv_lcr.owner import ChannelGone, Failure, Message, merge_pendings
from raftkv_lcr.takeover import NotSuccessor
from raftkv_lcr.testing.broker import decode_content
from raftkv_lcr.wire import END, FETCH, Handed
from tests.plugins.raftkv_lcr.fakes import (
    Cluster,
    FakeNode,
    Mishap,
    live,
    message,
    story,
    tell,
    texts,
)

KINDS: tuple[Failure, ...] = get_args(Failure)
MOMENT_S = 0.01


def now() -> float:
    return asyncio.get_running_loop().time()


async def row_of(node: FakeNode, channel: str, client: str = "c") -> Channel:
    """Connect there; the row."""
    opened = await node.broker.connect(client, channel)
    assert opened.channel is not None
    return opened.channel


async def registered_over(node: FakeNode, channel: str, row: Channel) -> Registered:
    """Register a channel over `row` in the log, and nothing else."""
    answer = await node.lcr.register(row.client_id, channel, predecessor=row)
    assert isinstance(answer, Registered)
    return answer


def gauge(node: FakeNode, name: str) -> float:
    return {metric.name: metric.value for metric in node.manager.handover.metrics()}[name]


# --- messages -------------------------------------------------------------------------------------


def test_merged_messages_are_in_order_and_once() -> None:
    pendings = [message(1), message(2)]
    received = [message(2), message(3), message(1)]
    assert texts(merge_pendings(pendings, received)) == ["m1", "m2", "m3"]
    assert merge_pendings((), ()) == ()


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_messages_between_begin_and_end(lost: int) -> None:
    """In order, none lost, none doubled; also when answers to `end` get lost."""

    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
        await a.connect("c", "a")
        assert a.publish("c", message(0))
        left = lost

        def mishap(sender: str, receiver: str, method: str) -> Mishap:
            nonlocal left
            if method != END or left == 0:
                return "none"
            left -= 1
            return "reply lost"

        cluster.mishap = mishap
        release = cluster.hold("core2")
        connecting = asyncio.ensure_future(b.connect("c", "b"))
        await asyncio.sleep(MOMENT_S)
        assert a.sessions[("c", "a")].frozen
        # To a frozen channel, and by routes to the one that is opening, too.
        assert a.publish("c", message(1))
        for broker in (a, b):
            assert broker.route("c", message(2))
        assert b.route("c", message(3))
        release()
        opened = await connecting
        assert opened.handover == "complete"
        assert texts(opened.pendings) == ["m1", "m2"]
        assert texts(b.sessions[("c", "b")].content) == ["m0", "m1", "m2", "m3"]
        assert a.calls.count(("end", "a")) == 1
        assert left == 0

    tell(body)


@story(options=LcrOptions(page_bytes=1024))
async def test_content_larger_than_a_page(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")
    for number in range(50):
        assert a.publish("c", Message(f"m{number}", bytes(200)))
    fetched: list[str] = []

    def mishap(sender: str, receiver: str, method: str) -> Mishap:
        fetched.append(method)
        # Some pages need more than one question.
        return "reply lost" if method == FETCH and len(fetched) % 4 == 0 else "none"

    cluster.mishap = mishap
    release = cluster.hold("core2")
    connecting = asyncio.ensure_future(b.connect("c", "b"))
    await asyncio.sleep(9.0)
    for number in range(50, 100):
        assert a.publish("c", Message(f"m{number}", bytes(200)))
    release()
    opened = await connecting
    assert opened.handover == "complete"
    assert len(opened.pendings) == 50
    assert texts(b.sessions[("c", "b")].content) == [f"m{number}" for number in range(100)]
    assert fetched.count(FETCH) > 20


@story(options=LcrOptions(session_bytes_max=2048))
async def test_session_beyond_the_limit_is_not_handed_over(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")
    assert a.publish("c", Message("m0", bytes(4096)))
    opened = await b.connect("c", "b")
    assert (opened.outcome, opened.present) == ("ok", False)
    assert (opened.handover, opened.failure) == ("lost", "shutdown_reason")
    assert gauge(cluster.nodes["core1"], "sessions_too_large_total") == 1
    await asyncio.sleep(MOMENT_S)
    assert [session.channel for _, session in live(cluster)] == ["b"]


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_begin_fails(kind: Failure, remote: bool) -> None:
    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"], cluster.nodes["core2" if remote else "core1"]
        await a.broker.connect("c", "a")
        a.broker.failing[("begin", "a")] = kind
        opened = await b.broker.connect("c", "b")
        assert (opened.outcome, opened.present) == ("ok", False)
        assert (opened.handover, opened.failure, opened.session) == ("lost", kind, None)
        assert b.lcr.counters[f"takeover_failed_begin_{kind}"] == 1
        await asyncio.sleep(MOMENT_S)
        assert [session.channel for _, session in live(cluster)] == ["b"]

    tell(body)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_end_fails(kind: Failure, remote: bool) -> None:
    """The log has given the session away by then, and what was copied is all that is left."""

    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"], cluster.nodes["core2" if remote else "core1"]
        await a.broker.connect("c", "a")
        assert a.broker.publish("c", message(0))
        a.broker.failing[("end", "a")] = kind
        opened = await b.broker.connect("c", "b")
        assert (opened.outcome, opened.present) == ("ok", True)
        assert (opened.handover, opened.failure) == ("lost", kind)
        assert texts(b.broker.sessions[("c", "b")].content) == ["m0"]
        assert b.lcr.counters[f"takeover_failed_end_{kind}"] == 1
        await asyncio.sleep(MOMENT_S)
        assert [session.channel for _, session in live(cluster)] == ["b"]

    tell(body)


@pytest.mark.parametrize("kind", KINDS)
def test_discard_fails(kind: Failure) -> None:
    """A clean start does not wait for it. What hangs loses its channel when the grace is over."""

    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"], cluster.nodes["core2"]
        await a.broker.connect("c", "a")
        a.broker.failing[("discard", "a")] = kind
        opened = await b.broker.connect("c", "b", clean_start=True)
        assert (opened.outcome, opened.present, opened.handover) == ("ok", False, "none")
        await asyncio.sleep(MOMENT_S)
        assert b.lcr.counters[f"takeover_failed_discard_{kind}"] == 1
        if kind == "timeout":
            assert a.broker.sessions[("c", "a")].live
            await asyncio.sleep(20.0)
            assert a.broker.sessions[("c", "a")].closed_for == "taken over"
        assert [session.channel for _, session in live(cluster)] == ["b"]

    tell(body)


@pytest.mark.parametrize("kind", KINDS)
def test_kick_fails(kind: Failure) -> None:
    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"], cluster.nodes["core2"]
        await a.broker.connect("c", "a")
        a.broker.failing[("kick", "a")] = kind
        if kind == "timeout":
            with pytest.raises(ChannelGone) as caught:
                await b.manager.kick("c", "because")
            assert caught.value.kind == "timeout"
            assert a.broker.sessions[("c", "a")].live
        else:
            assert not await b.manager.kick("c", "because")
            assert not live(cluster)
            await asyncio.sleep(MOMENT_S)
            assert b.lcr.lookup_local("c") is None
        assert b.lcr.counters[f"takeover_failed_kick_{kind}"] == 1

    tell(body)


@pytest.mark.parametrize("call", ["begin", "end", "discard", "kick"])
def test_hanging_calls_fail_in_time(call: str) -> None:
    async def body(cluster: Cluster) -> None:
        a, b = cluster.nodes["core1"], cluster.nodes["core2"]
        await a.broker.connect("c", "a")
        release = a.broker.hanging[(call, "a")] = asyncio.Event()
        before = now()
        if call == "kick":
            with pytest.raises(ChannelGone) as caught:
                await b.manager.kick("c", "because")
            assert caught.value.kind == "timeout"
        else:
            opened = await b.broker.connect("c", "b", clean_start=call == "discard")
            assert opened.outcome == "ok"
            assert opened.handover == ("none" if call == "discard" else "lost")
        assert now() - before < 5.5
        await asyncio.sleep(6.0)
        assert b.lcr.counters[f"takeover_failed_{call}_timeout"] == 1
        release.set()
        await asyncio.sleep(20.0)
        assert [s.channel for _, s in live(cluster)] == ([] if call == "kick" else ["b"])

    tell(body)


@story()
async def test_handler_that_raises_anything_else(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")

    async def broken(channel: Channel) -> bytes:
        raise ZeroDivisionError("a defect of the broker")

    a.begin = broken  # type: ignore[method-assign]
    opened = await b.connect("c", "b")
    assert (opened.outcome, opened.failure) == ("ok", "shutdown_reason")


@story()
async def test_unreachable_node_of_the_predecessor(cluster: Cluster) -> None:
    """It is a member still: "timeout". Its channel ends when it hears of its successor."""
    a, b = cluster.nodes["core2"].broker, cluster.nodes["core3"].broker
    await a.connect("c", "a")
    cluster.isolate("core2")
    opened = await b.connect("c", "b")
    assert (opened.handover, opened.failure) == ("lost", "timeout")
    assert len(live(cluster)) == 2
    cluster.heal("core2")
    await asyncio.sleep(20.0)
    assert [session.channel for _, session in live(cluster)] == ["b"]


@story()
async def test_item_b2_node_that_refuses_connections_is_not_waited_for(cluster: Cluster) -> None:
    """It has not been declared dead yet."""
    a, b = cluster.nodes["core2"].broker, cluster.nodes["core3"].broker
    await a.connect("c", "a")
    cluster.kill("core2")
    cluster.refusing.add("core2")
    before = now()
    opened = await b.connect("c", "b")
    assert now() - before < 0.2
    assert (opened.outcome, opened.handover, opened.failure) == ("ok", "lost", "noproc")


@story()
async def test_item_b2_channel_of_a_node_that_refused_under_the_begin_goes_on(
    cluster: Cluster,
) -> None:
    """A firewall refused the second call: the freeze ends, and so does what lost its row."""
    a, b = cluster.nodes["core2"].broker, cluster.nodes["core3"].broker
    await a.connect("c", "a")
    a.hanging[("begin", "a")] = asyncio.Event()
    connecting = asyncio.ensure_future(b.connect("c", "b"))
    await asyncio.sleep(0.5)
    cluster.isolate("core2")
    cluster.refusing.add("core2")
    opened = await connecting
    assert (opened.outcome, opened.failure) == ("ok", "noproc")
    cluster.heal("core2")
    cluster.refusing.clear()
    a.hanging.clear()
    await asyncio.sleep(20.0)
    assert [session.channel for _, session in live(cluster)] == ["b"]


@story()
async def test_node_that_dies_under_a_begin_is_not_waited_for(cluster: Cluster) -> None:
    a, b = cluster.nodes["core2"].broker, cluster.nodes["core3"].broker
    await a.connect("c", "a")
    cluster.kill("core2")
    connecting = asyncio.ensure_future(b.connect("c", "b"))
    await asyncio.sleep(1.0)
    assert not connecting.done()
    cluster.declare_dead("core2")
    before = now()
    opened = await connecting
    assert now() - before < 0.2
    assert (opened.outcome, opened.present) == ("ok", False)
    # Its row is fenced with its node: for the log there is no predecessor any more.
    assert (opened.handover, opened.attempts) == ("none", 2)


@story(options=LcrOptions(page_bytes=1024))
async def test_content_that_does_not_come_leaves_time_for_the_log(cluster: Cluster) -> None:
    """The first page is there, the others are not: the connection gets in within its time."""
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")
    for number in range(50):
        assert a.publish("c", Message(f"m{number}", bytes(200)))
    cluster.mishap = lambda sender, receiver, method: "request lost" if method == FETCH else "none"
    before = now()
    opened = await b.connect("c", "b", timeout_s=1.0)
    assert now() - before < 1.0
    assert (opened.outcome, opened.present) == ("ok", False)
    assert (opened.handover, opened.failure) == ("lost", "timeout")


@story()
async def test_kick_by_a_row_from_before_it_was_entered_anew(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    row = await row_of(a, "a")
    cluster.isolate("core1")
    cluster.declare_dead("core1")
    cluster.rejoin("core1")
    await asyncio.sleep(1.0)
    again = b.lcr.lookup_local("c")
    assert again is not None
    assert again.incarnation > row.incarnation
    assert await b.manager.takeovers.kick(row, "because")
    await asyncio.sleep(MOMENT_S)
    assert b.lcr.lookup_local("c") is None


# --- freezes --------------------------------------------------------------------------------------


@story()
async def test_a_channel_never_takes_over_itself(cluster: Cluster) -> None:
    node = cluster.nodes["core1"]
    row = await row_of(node, "a")
    takeovers = node.manager.takeovers
    with pytest.raises(ChannelGone, match="itself"):
        await takeovers.begin(row, takeovers.contender("a"), now() + 10.0)
    assert node.broker.calls == []


@story()
async def test_contenders_share_one_freeze_and_the_last_to_go_ends_it(cluster: Cluster) -> None:
    a = cluster.nodes["core1"]
    row = await row_of(a, "a")
    others = [cluster.nodes["core2"], cluster.nodes["core3"]]
    begun = [
        await node.manager.takeovers.begin(row, node.manager.takeovers.contender("x"), now() + 10.0)
        for node in others
    ]
    assert begun[0].content == begun[1].content
    assert begun[0].freeze == begun[1].freeze
    assert a.broker.calls == [("begin", "a")]
    assert a.broker.publish("c", message(0))
    for node, one in zip(others, begun, strict=True):
        assert a.broker.sessions[("c", "a")].frozen
        node.manager.takeovers.abort(row, one.contender)
        await asyncio.sleep(MOMENT_S)
    assert not a.broker.sessions[("c", "a")].frozen
    assert texts(a.broker.sessions[("c", "a")].content) == ["m0"]


@story()
async def test_end_after_the_freeze_was_over_gives_everything(cluster: Cluster) -> None:
    """The way through the log took longer than `begin_ttl_s`."""
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")
    assert a.publish("c", message(0))
    release = cluster.hold("core2")
    connecting = asyncio.ensure_future(b.connect("c", "b", timeout_s=30.0))
    await asyncio.sleep(MOMENT_S)
    assert a.publish("c", message(1))
    await asyncio.sleep(12.0)
    assert not a.sessions[("c", "a")].frozen
    assert a.publish("c", message(2))
    # What the client got meanwhile is in its session no more.
    a.sessions[("c", "a")].content.pop(0)
    release()
    opened = await connecting
    assert opened.handover == "complete"
    assert texts(b.sessions[("c", "b")].content) == ["m1", "m2"]
    assert cluster.nodes["core1"].lcr.counters["takeover_resumed"] == 1


@story()
async def test_a_channel_that_is_being_opened_is_waited_for(cluster: Cluster) -> None:
    """W is registered over P and fetches P's session, while X begins on W already."""
    p, w, x = (cluster.nodes[name].broker for name in cluster.nodes)
    await p.connect("c", "p")
    assert p.publish("c", message(0))
    slow = p.hanging[("end", "p")] = asyncio.Event()
    opening = asyncio.ensure_future(w.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    assert p.publish("c", message(1))
    third = asyncio.ensure_future(x.connect("c", "x"))
    await asyncio.sleep(4.0)
    assert not opening.done()
    assert not third.done()
    slow.set()
    assert (await opening).handover == "complete"
    opened = await third
    assert (opened.handover, opened.attempts) == ("complete", 1)
    assert texts(x.sessions[("c", "x")].content) == ["m0", "m1"]
    assert [name for name, _ in live(cluster)] == ["core3"]


@story()
async def test_one_that_leaves_while_its_begin_waits_freezes_nothing(
    cluster: Cluster,
) -> None:
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    row = await row_of(a, "a")
    key = (row.client_id, row.channel)
    # As if the broker had not installed the session yet.
    opening = a.manager.opening[key] = asyncio.get_running_loop().create_future()
    candidate = b.manager.takeovers.contender("b")
    begin = asyncio.ensure_future(b.manager.takeovers.begin(row, candidate, now() + 10.0))
    await asyncio.sleep(MOMENT_S)
    b.manager.takeovers.abort(row, candidate)
    await asyncio.sleep(MOMENT_S)
    del a.manager.opening[key]
    opening.set_result(None)
    with pytest.raises(ChannelGone, match="left meanwhile"):
        await begin
    assert a.broker.calls == []
    assert not a.broker.sessions[("c", "a")].frozen


@story()
async def test_of_two_calls_that_wait_for_a_former_one_a_single_one_opens(
    cluster: Cluster,
) -> None:
    manager: Any = cluster.nodes["core1"].manager
    key = ("c", "a")
    # A call whose caller has gone, and which comes to nothing.
    former = manager.opening[key] = asyncio.get_running_loop().create_future()
    manager._behind[key] = None
    both = [asyncio.ensure_future(manager.open_session("c", False, "a")) for _ in range(2)]
    await asyncio.sleep(MOMENT_S)
    del manager._behind[key], manager.opening[key]
    former.set_result(None)
    found = await asyncio.gather(*both, return_exceptions=True)
    assert found[0].outcome == "ok"
    assert (type(found[1]), "opened already" in str(found[1])) == (ValueError, True)
    assert manager.opening == {}
    await manager.close(found[0].channel)


@story()
async def test_a_broker_may_wrap_open_session_in_a_task(cluster: Cluster) -> None:
    """Then something comes between its end and the broker's installing; `begin` has to wait."""
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    open_session = a.manager.open_session

    async def slowly(*args: object, **words: object) -> object:
        opened = await open_session(*args, **words)  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        return opened

    a.manager.open_session = slowly  # type: ignore[method-assign, assignment]
    first = asyncio.ensure_future(a.connect("c", "a"))
    await asyncio.sleep(MOMENT_S)
    assert (await b.connect("c", "b")).handover == "complete"
    assert (await first).outcome == "ok"


# --- who may end ----------------------------------------------------------------------------------


@story()
async def test_only_the_successor_ends(cluster: Cluster) -> None:
    a, b, c = (cluster.nodes[name] for name in cluster.nodes)
    row = await row_of(a, "a")
    winner = await registered_over(b, "b", row)
    contender = c.manager.takeovers.contender("x")
    begun = await c.manager.takeovers.begin(row, contender, now() + 10.0)
    handed = await b.manager.takeovers.end(row, winner, 0, now() + 5.0)
    assert handed.content is not None
    rival = Registered(
        Channel("c", "x", "core3", c.incarnation, 1, 1), row, True, False, winner.index
    )
    with pytest.raises(NotSuccessor):
        await c.manager.takeovers.end(row, rival, begun.freeze, now() + 5.0)
    await b.manager.close(winner.channel)


@story()
async def test_a_second_winner_while_the_first_is_at_work(cluster: Cluster) -> None:
    a, b, c = (cluster.nodes[name] for name in cluster.nodes)
    row = await row_of(a, "a")
    slow = a.broker.hanging[("end", "a")] = asyncio.Event()
    winner = await registered_over(b, "b", row)
    ending = asyncio.ensure_future(b.manager.takeovers.end(row, winner, 0, now() + 5.0))
    await asyncio.sleep(MOMENT_S)
    rival = Registered(
        Channel("c", "x", "core3", c.incarnation, 1, 1), row, True, False, winner.index
    )
    with pytest.raises(NotSuccessor):
        await c.manager.takeovers.end(row, rival, 0, now() + 5.0)
    slow.set()
    assert (await ending).content is not None
    await b.manager.close(winner.channel)


@story()
async def test_late_end_of_a_successor_that_left(cluster: Cluster) -> None:
    """P lost its row to W, got it back, and lost it to X: W's `end` comes only now."""
    p, w, x = (cluster.nodes[name] for name in cluster.nodes)
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    row = p.manager.held[("c", "p")]
    former = await registered_over(w, "w", row)
    await w.lcr.unregister(former.channel)
    await asyncio.sleep(1.0)
    assert p.lcr.lookup_local("c") == row
    latter = await registered_over(x, "x", row)
    with pytest.raises(NotSuccessor):
        await w.manager.takeovers.end(row, former, 0, now() + 5.0)
    handed = await x.manager.takeovers.end(row, latter, 0, now() + 5.0)
    assert texts(decode_content(handed.content)) == ["m0"]
    await x.manager.close(latter.channel)


@story()
async def test_an_owner_is_not_ended(cluster: Cluster) -> None:
    """Whoever claims a registration that this node knows to be older than the channel's own."""
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    former = await row_of(a, "former")
    stale = await registered_over(b, "b", former)
    await b.lcr.unregister(stale.channel)
    row = await row_of(a, "a")
    with pytest.raises(NotSuccessor):
        await b.manager.takeovers.end(row, stale, 0, now() + 5.0)
    assert a.broker.sessions[("c", "a")].live


@story()
async def test_abort_that_overtakes_its_end(cluster: Cluster) -> None:
    """The connection was given up; its delayed `end` must not end the channel for nobody."""
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    row = await row_of(a, "a")
    contender = b.manager.takeovers.contender("b")
    begun = await b.manager.takeovers.begin(row, contender, now() + 10.0)
    winner = await registered_over(b, "b", row)
    b.manager.takeovers.abort(row, contender)
    await asyncio.sleep(MOMENT_S)
    with pytest.raises(NotSuccessor):
        await b.manager.takeovers.end(row, winner, begun.freeze, now() + 5.0)
    await b.lcr.unregister(winner.channel)
    await asyncio.sleep(1.0)
    again = a.lcr.lookup_local("c")
    assert again == row
    assert a.broker.sessions[("c", "a")].live


@story(replicants=1)
async def test_successors_node_dies_before_it_ends(cluster: Cluster) -> None:
    """The content comes back to life where it is, and W's late `end` does not get it."""
    p, w, x = cluster.nodes["core2"], cluster.nodes["rep1"], cluster.nodes["core3"]
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    cluster.mishap = lambda sender, receiver, method: (
        "request lost" if method == END and sender == "rep1" else "none"
    )
    opening = asyncio.ensure_future(w.broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    assert p.lcr.lookup_local("c") == w.lcr.lookup_local("c")
    assert p.broker.publish("c", message(1))
    cluster.isolate("rep1")
    cluster.declare_dead("rep1")
    await asyncio.sleep(1.0)
    again = p.lcr.lookup_local("c")
    assert again is not None
    assert (again.channel, again.node) == ("p", "core2")
    # The node lives after all and hears the others: its channel asks once more.
    cluster.mishap = lambda sender, receiver, method: "none"
    cluster.rejoin("rep1")
    assert (await opening).outcome == "outdated_late"
    assert [name for name, _ in live(cluster)] == ["core2"]
    opened = await x.broker.connect("c", "x")
    assert opened.handover == "complete"
    assert texts(x.broker.sessions[("c", "x")].content) == ["m0", "m1"]


@story(replicants=1)
async def test_successors_node_dies_and_another_was_faster(cluster: Cluster) -> None:
    """It found no owner and began an empty session; the old content goes to nobody."""
    p, x = cluster.nodes["core2"], cluster.nodes["core3"]
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    cluster.mishap = lambda sender, receiver, method: (
        "request lost" if method == END and sender == "rep1" else "none"
    )
    opening = asyncio.ensure_future(cluster.nodes["rep1"].broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    cluster.kill("rep1")
    opening.cancel()
    cluster.declare_dead("rep1")
    opened = await x.broker.connect("c", "x")
    assert (opened.outcome, opened.present) == ("ok", False)
    await asyncio.sleep(20.0)
    assert p.broker.sessions[("c", "p")].closed_for == "taken over"
    assert [(name, texts(s.content)) for name, s in live(cluster)] == [("core3", [])]


@story(replicants=1)
async def test_clean_start_is_not_undone_by_its_nodes_death(cluster: Cluster) -> None:
    p = cluster.nodes["core2"]
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    cluster.mishap = lambda sender, receiver, method: "request lost"
    assert (await cluster.nodes["rep1"].broker.connect("c", "w", clean_start=True)).outcome == "ok"
    cluster.kill("rep1")
    cluster.declare_dead("rep1")
    await asyncio.sleep(20.0)
    assert p.broker.sessions[("c", "p")].closed_for is not None
    assert p.lcr.lookup_local("c") is None


@story()
async def test_what_was_begun_is_ended_although_the_node_looks_old_by_then(
    cluster: Cluster,
) -> None:
    """P's node was declared dead between the two, is back, and has not announced itself."""
    p, w = cluster.nodes["core2"], cluster.nodes["core3"]
    row = await row_of(p, "p")
    assert p.broker.publish("c", message(0))
    begun = await w.manager.takeovers.begin(row, w.manager.takeovers.contender("w"), now() + 10.0)
    winner = await registered_over(w, "w", row)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    cluster.filter = lambda node, envelope: node is not p
    cluster.rejoin("core2")
    assert speaks_old(w, "core2")
    handed = await w.manager.takeovers.end(row, winner, begun.freeze, now() + 5.0)
    assert handed == Handed(None, ())
    assert texts(decode_content(begun.content)) == ["m0"]
    cluster.filter = lambda node, envelope: True
    await w.manager.close(winner.channel)


# --- memory ---------------------------------------------------------------------------------------


@story(options=LcrOptions(handover_bytes_max=4096, session_bytes_max=4096))
async def test_memory_of_kept_hand_overs_is_bounded(cluster: Cluster) -> None:
    """No acknowledgement arrives: the oldest go, and the next begins find room."""
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    cluster.mishap = lambda sender, receiver, method: (
        "request lost" if method == "session.ack" else "none"
    )
    for number in range(20):
        client = f"c{number}"
        row = await row_of(a, "a", client)
        assert a.broker.publish(client, Message("m0", bytes(1500)))
        winner = await registered_over(b, "b", row)
        handed = await b.manager.takeovers.end(row, winner, 0, now() + 5.0)
        assert len(handed.content or b"") > 1500
        assert gauge(a, "handover_bytes") < 4096 + 2 * 1600
        await b.manager.close(winner.channel)
    assert gauge(a, "handovers_kept") == 2
    assert gauge(a, "handovers_dropped_total") == 18


@story(options=LcrOptions(handover_bytes_max=4096, session_bytes_max=4096))
async def test_begins_wait_for_memory(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    begun = []
    for number in range(3):
        client = f"c{number}"
        await a.broker.connect(client, "a")
        assert a.broker.publish(client, Message("m0", bytes(2500)))
        begin = b.manager.takeovers.begin(
            a.manager.held[(client, "a")], b.manager.takeovers.contender("b"), now() + 30.0
        )
        begun.append(asyncio.ensure_future(begin))
        await asyncio.sleep(MOMENT_S)
    assert [one.done() for one in begun] == [True, True, False]
    assert gauge(a, "handover_bytes") > 4096
    first = await begun[0]
    b.manager.takeovers.abort(first.channel, first.contender)
    assert len((await begun[2]).content) > 2500


# --- channels that hang -------------------------------------------------------------------------


def test_a_channel_that_hangs_locks_out_no_impatient_client() -> None:
    """VerneMQ 893: its candidates give up before `begin_timeout_s`, and come again."""

    async def body(cluster: Cluster) -> None:
        old = cluster.nodes["core3"].broker
        await old.connect("c", "old")
        for call in ("begin", "end", "discard", "kick", "resume"):
            old.hanging[(call, "old")] = asyncio.Event()
        began = now()
        for number in range(1, 10):
            node = cluster.nodes["core1" if number % 2 else "core2"]
            try:
                opened = await asyncio.wait_for(node.broker.connect("c", f"try{number}"), 3.0)
            except TimeoutError:
                await asyncio.sleep(0.2)
                continue
            assert (opened.outcome, opened.present, opened.failure) == ("ok", False, "timeout")
            break
        else:
            pytest.fail("the client never gets in")
        # One that comes when the channel has hung for longer than that is answered at once.
        assert now() - began < LcrOptions().begin_timeout_s + 3.5
        for each in old.hanging.values():
            each.set()

    tell(body)


@story()
async def test_a_node_ends_although_calls_wait_behind_one_that_hangs(cluster: Cluster) -> None:
    """They are not made any more: a stop waited for them for ever."""
    node = cluster.nodes["core3"]
    await node.broker.connect("c", "old")
    node.broker.hanging[("begin", "old")] = asyncio.Event()
    for number in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cluster.nodes["core1"].broker.connect("c", f"try{number}"), 1.0)
    cluster.kill("core3")
    await asyncio.sleep(0.1)
    assert node.broker.calls.count(("begin", "old")) == 1
    assert not node.runtime._tasks


def test_a_slow_answer_gives_the_next_call_its_whole_time() -> None:
    async def body(cluster: Cluster) -> None:
        old = cluster.nodes["core3"].broker
        await old.connect("c", "old")
        slow = old.hanging[("begin", "old")] = asyncio.Event()
        first = asyncio.ensure_future(cluster.nodes["core1"].broker.connect("c", "one"))
        await asyncio.sleep(4.5)
        first.cancel()
        await asyncio.sleep(MOMENT_S)
        second = asyncio.ensure_future(cluster.nodes["core2"].broker.connect("c", "two"))
        await asyncio.sleep(0.2)
        slow.set()
        opened = await second
        assert (opened.outcome, opened.present) == ("ok", True)

    tell(body)


# --- sessions that end with their connection ---------------------------------------------------


@pytest.mark.parametrize("there", ["core1", "core2"])
def test_a_session_that_ends_with_its_connection_is_not_taken_over(there: str) -> None:
    """EMQX 18583: in both orders the newer connection begins without a session."""

    async def body(cluster: Cluster) -> None:
        old, new = cluster.nodes["core1"].broker, cluster.nodes[there]

        async def close(node: FakeNode, channel: str) -> None:
            session = node.broker.sessions["c", channel]
            node.broker._close(session, "the connection has ended")
            assert session.row is not None
            await node.manager.close(session.row)

        for closed_first in (False, True):
            await old.connect("c", "old")
            old.ephemeral.add("old")
            old.publish("c", message(1))
            if closed_first:
                await close(cluster.nodes["core1"], "old")
            opened = await new.broker.connect("c", "new")
            assert (opened.outcome, opened.present) == ("ok", False)
            assert (opened.handover, opened.failure, opened.session) == ("none", None, None)
            await asyncio.sleep(1)
            assert [session.channel for _, session in live(cluster)] == ["new"]
            assert new.broker.sessions["c", "new"].content == []
            await close(new, "new")
        assert new.lcr.counters["takeover_failed_begin_normal"] == 0

    tell(body)
