"""A change of the members is done only if the entry that carries it is committed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.errors import MembershipRefused
from raftkv.member_changes import MemberChange, Request
from raftkv.raft.changing import add_learner
from tests.test_voter_news import FakeNode, on_a_clock, rounds


def adding(node: Any) -> asyncio.Future[bool]:
    """A configuration with c-1 is appended and waited for."""
    change = MemberChange(node, node._part, Request("add", "c", False, 60.0), 60.0)
    return asyncio.ensure_future(change._append(lambda now: add_learner(now, "c-1")))


@on_a_clock
async def test_a_change_is_done_once_its_entry_is_committed() -> None:
    node = FakeNode("a-1", "b-1")
    engine = node._part.engine
    done = adding(node)
    await asyncio.sleep(1.0)
    assert engine.configurations.latest_index == 11
    assert not done.done()
    engine.commit = 11
    assert await done


@pytest.mark.parametrize("back", [False, True])
def test_a_change_that_another_leader_cut_off_is_not_reported_as_done(back: bool) -> None:
    """While the change slept, another leader committed an entry of its own at that index.

    With `back` this node leads again, in a later term, when the change wakes.
    """

    @on_a_clock
    async def story() -> None:
        node = FakeNode("a-1", "b-1")
        engine = node._part.engine
        done = adding(node)
        await rounds()
        assert engine.configurations.latest_index == 11
        engine.term, engine.commit = 3, 12
        if not back:
            engine.leading = None
        assert not await done

    story()


@pytest.mark.parametrize(("known", "ahead"), [(1, 1), (2, 2), (None, 1), (1, 2), (None, 2)])
def test_a_core_that_cannot_apply_what_is_in_the_log_is_not_added(
    known: int | None, ahead: int
) -> None:
    """Its handshake was judged before the raise of the core format came into the log.

    None: its connection was lost while another change was waited for.
    """
    node = FakeNode("a-1", "b-1")
    engine = node._part.engine
    peer = SimpleNamespace(core_format=known)
    engine.links = {} if known is None else {"c-1": SimpleNamespace(peer=peer)}
    engine.application = SimpleNamespace(core_format=1)
    engine.core_format_ahead = lambda: ahead
    request = Request("add", "c", False, 60.0)
    change = MemberChange(node, node._part, request, 60.0)  # type: ignore[arg-type]
    if known != 2 and ahead == 2:
        remedy = "then add it again" if known is None else "upgrade raftkv there, then add it"
        with pytest.raises(MembershipRefused, match=remedy):
            change._admit(engine.configuration, "c-1")
    else:
        assert change._admit(engine.configuration, "c-1").learners == ("c-1",)
