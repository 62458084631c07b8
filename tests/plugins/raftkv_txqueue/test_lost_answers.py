"""Proposals whose answer is lost: settled first, and never done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, StaleIncarnation, TooLarge
from raftkv.plugin import Lost, Outcome
from raftkv_txqueue.commands import Declared, DeclareQueue, Message, Publish, Published
from raftkv_txqueue.refusals import SessionEnded, UnknownQueue
from tests.plugins.raftkv_txqueue.fakes import Cluster, story, tag_of, until

HELLO = Publish("a", (Message(b"hello"),))


def deadline(cluster: Cluster, seconds: float) -> float:
    now: float = cluster.nodes["core2"].runtime.monotonic()
    return now + seconds


@story()
async def test_a_lost_answer_is_fetched(cluster: Cluster) -> None:
    proposer = cluster.txq("core2").proposer
    cluster.lose_answers("core2", "publish")
    done = await proposer.until_verdict(HELLO, deadline(cluster, 20))
    assert done == Published(1, 1)
    assert cluster.everywhere("a") == ["hello"]
    assert cluster.txq("core2").counters["unknown_outcomes"] == 1
    assert cluster.nodes["core2"].proposals == ["publish"]


@story()
async def test_a_lost_refusal_too(cluster: Cluster) -> None:
    proposer = cluster.txq("core2").proposer
    cluster.lose_answers("core2", "publish")
    with pytest.raises(UnknownQueue):
        await proposer.once(Publish("none", (Message(b""),)), deadline(cluster, 20))


@story()
async def test_a_lost_proposal_is_given_up_before_it_is_sent_again(cluster: Cluster) -> None:
    proposer = cluster.txq("core2").proposer
    lost: list[Any] = []

    def lose(node: Any, envelope: Any) -> bool:
        if tag_of(envelope) == "publish" and not lost:
            lost.append(envelope)
            return False
        return True

    cluster.filter = lose
    with pytest.raises(NotApplied, match="lost"):
        await proposer.once(HELLO)
    # It arrives after all, and its number was given up.
    cluster.append(lost)
    assert cluster.everywhere("a") == []
    assert await proposer.until_verdict(HELLO, deadline(cluster, 5)) == Published(1, 1)


@story()
async def test_without_the_log_the_outcome_stays_unknown(cluster: Cluster) -> None:
    proposer = cluster.txq("core2").proposer
    cluster.isolate("core2")
    began = cluster.nodes["core2"].runtime.monotonic()
    with pytest.raises(OutcomeUnknown):
        await proposer.until_verdict(HELLO, deadline(cluster, 3))
    assert 3 <= cluster.nodes["core2"].runtime.monotonic() - began < 4
    # Without a deadline it goes on until there is a verdict.
    task = asyncio.ensure_future(proposer.once(HELLO))
    await asyncio.sleep(100)
    assert not task.done()
    cluster.heal("core2")
    with pytest.raises(NotApplied):
        await task
    assert cluster.everywhere("a") == []


@story()
async def test_a_life_that_ended_takes_its_answers_with_it(cluster: Cluster) -> None:
    proposer = cluster.txq("core2").proposer
    cluster.lose_answers("core2", "publish")
    task = asyncio.ensure_future(proposer.once(HELLO))
    await until(lambda: len(cluster.table("messages")) == 1)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    await asyncio.sleep(10)
    cluster.rejoin("core2")
    with pytest.raises(Lost):
        await task


@story()
async def test_a_number_of_an_ended_life_was_not_applied(cluster: Cluster) -> None:
    """Refused for its life, not for what it says: the next life may do it."""
    proposer = cluster.txq("core2").proposer
    release = cluster.hold("core2", "publish")
    task = asyncio.ensure_future(proposer.until_verdict(HELLO, deadline(cluster, 4)))
    await asyncio.sleep(1)
    cluster.isolate("core2")
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    release()
    assert await task == Published(1, 1)
    assert cluster.everywhere("a") == ["hello"]


@story()
async def test_what_can_never_be_sent_is_not_tried_again(cluster: Cluster) -> None:
    node: Any = cluster.nodes["core2"]
    tries = []

    async def too_large(command: Any, *, timeout_s: float | None = None) -> Any:
        tries.append(timeout_s)
        raise TooLarge("command_bytes_max")

    node.propose = too_large
    with pytest.raises(TooLarge):
        await cluster.txq("core2").proposer.until_verdict(HELLO, deadline(cluster, 5))
    assert tries == [5.0]
    # What is late is tried once.
    with pytest.raises(TooLarge):
        await cluster.txq("core2").proposer.until_verdict(HELLO, deadline(cluster, -1))
    assert len(tries) == 2


@story()
async def test_a_settled_result_has_its_type(cluster: Cluster) -> None:
    """A node that has started anew has forgotten which command had the number."""
    node: Any = cluster.nodes["core2"]
    proposer = cluster.txq("core2").proposer

    async def plain(session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        return Outcome("applied", [3, True, False])

    async def refused(session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        return Outcome("refused", SessionEnded(7))

    async def silent(command: Any, *, timeout_s: float | None = None) -> Any:
        raise OutcomeUnknown("no answer", session=1, seq=1)

    node.propose, node.outcome = silent, plain
    assert await proposer.once(DeclareQueue("c")) == Declared(3, True, False)
    node.outcome = refused
    with pytest.raises(SessionEnded):
        await proposer.once(DeclareQueue("c"))

    # Refused for the life that sent it: the next one may.
    async def stale(session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        return Outcome("refused", StaleIncarnation("core2"))

    node.outcome = stale
    with pytest.raises(NotApplied, match="new life"):
        await proposer.once(DeclareQueue("c"))


@story()
async def test_what_nobody_remembers_is_unknown_to_programs(cluster: Cluster) -> None:
    """`Lost` is for callers in here, who can look at the state; its word is documented nowhere."""
    node: Any = cluster.nodes["core2"]

    async def silent(command: Any, *, timeout_s: float | None = None) -> Any:
        raise OutcomeUnknown("no answer", session=1, seq=1)

    async def expired(session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        return Outcome("expired", None)

    node.propose, node.outcome = silent, expired
    with pytest.raises(OutcomeUnknown, match="nobody remembers") as caught:
        await cluster.txq("core2").publish("a", b"x")
    assert caught.value.code == OutcomeUnknown.code
