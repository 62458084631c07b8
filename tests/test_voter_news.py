"""What the leader tells the state of who votes, and when: `VoterNews` over a log in our hand.

The log is the state machine's own; what was proposed lies in `under_way` until the test lets it be
applied, or lose its answer, on whatever leader. Rounds of the loop replace waiting.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.errors import MembershipRefused, RaftkvError, Refused, Timeout
from raftkv.member_changes import MemberChange, Request
from raftkv.parts import CorePart
from raftkv.raft.changing import add_learner, promote, remove
from raftkv.raft.membership import Configuration, ConfigurationLog
from raftkv.state import SetVoters, StateMachine
from raftkv.testing.clock import run
from raftkv.voters import VoterNews

from .state.harness import Driver


class FakeEngine:
    """The numbers that are read, and a log of configurations; the test commits."""

    me = "a-1"
    term = 1
    commit = 10

    def __init__(self, configuration: Configuration) -> None:
        self.configurations = ConfigurationLog(1, configuration)
        self.leading = SimpleNamespace(
            first_index=1,
            alive=lambda _: self.configuration.members,
            able=lambda now: self.leading.alive(now),
        )
        self.changed: list[Configuration] = []

    @property
    def configuration(self) -> Configuration:
        return self.configurations.latest

    def change_configuration(self, proposed: Configuration, *, force: bool) -> int:
        self.configurations.append(self.commit + 1, proposed)
        self.changed.append(proposed)
        return self.commit + 1


class Part(CorePart):
    """The office."""

    leads = True

    def __init__(self, configuration: Configuration) -> None:
        self.engine: Any = FakeEngine(configuration)


class Clock:
    """The part of a runtime that is used, on the virtual clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeNode:
    def __init__(self, *voters: str) -> None:
        self._part = Part(Configuration(voters=voters))
        self.driver = Driver(StateMachine([]))
        self.driver.start("n1")
        self.machine = self.driver.machine
        self.runtime = Clock()
        self.under_way: list[tuple[SetVoters, asyncio.Future[Any]]] = []
        self.voters = VoterNews(self)  # type: ignore[arg-type]  # the part of a node that it uses

    async def propose(self, plugin: str, command: SetVoters, **more: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.under_way.append((command, answer))
        return await answer

    # --- what the test does

    def another_leads(self, term: int) -> None:
        """The office goes, and comes back in another term: another node's, say."""
        self._part.leads = False
        self.voters.look()
        self._part.leads, self._part.engine.term = True, term

    @property
    def announced(self) -> tuple[str, ...]:
        return self.machine.voters[1]

    def apply(self, command: SetVoters) -> Any:
        return self.driver.send(command, plugin="core")

    async def settle(self, *, look: bool = True) -> None:
        """Apply whatever is proposed until nothing is."""
        await rounds()
        while self.under_way:
            self.answer()
            if look:
                self.voters.look()
            await rounds()

    def answer(self) -> None:
        """The oldest proposal is applied, and its sender hears of it."""
        command, answer = self.under_way.pop(0)
        outcome = self.apply(command)
        if answer.done():
            return
        if isinstance(outcome, Refused):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def lose(self, error: RaftkvError) -> SetVoters:
        """The oldest proposal's sender gives up; the proposal is still on its way."""
        command, answer = self.under_way.pop(0)
        answer.set_exception(error)
        return command

    def change(self, index: int, make: Callable[[Configuration], Configuration]) -> None:
        configurations = self._part.engine.configurations
        configurations.append(index, make(configurations.latest))

    def remove(self, name: str, *, force: bool = False) -> asyncio.Future[bool]:
        """Somebody asks for a removal."""
        request = Request("remove", name, force, 60.0)
        node: Any = self
        return asyncio.ensure_future(MemberChange(node, self._part, request, 60.0).carry_out())


async def rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def announced(*voters: str) -> FakeNode:
    """A node that leads, and whose state knows the voters."""
    node = FakeNode(*voters)
    node.voters.look()
    await node.settle()
    return node


def on_a_clock(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def story() -> None:
        run(test())

    return story


@on_a_clock
async def test_the_first_leader_announces_the_voters_and_then_is_silent() -> None:
    node = await announced("a-1", "b-1", "c-1")
    assert node.machine.voters == (1, ("a-1", "b-1", "c-1"))
    node.voters.look()
    await rounds()
    assert not node.under_way


@on_a_clock
async def test_a_core_is_announced_once_it_is_committed_that_it_votes() -> None:
    node = FakeNode("a-1", "b-1")
    node.voters.look()
    await node.settle()
    node.change(11, lambda now: add_learner(now, "c-1"))
    node.change(12, lambda now: promote(now, "c-1"))
    node._part.engine.commit = 11
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1")
    node._part.engine.commit = 12
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1", "c-1")


@on_a_clock
async def test_what_is_committed_while_it_still_tells_is_told_without_another_entry() -> None:
    node = FakeNode("a-1")
    node.voters.look()
    await rounds()
    node.change(11, lambda now: promote(add_learner(now, "b-1"), "b-1"))
    node._part.engine.commit = 11
    node.voters.look()
    await node.settle(look=False)
    assert node.announced == ("a-1", "b-1")


@on_a_clock
async def test_a_strike_that_was_given_up_and_comes_late_is_corrected() -> None:
    node = await announced("a-1", "b-1", "c-1")
    striking = asyncio.ensure_future(node.voters.strike_off("c-1", 1.0))
    await rounds()
    late = node.lose(Timeout("nobody knows"))
    await asyncio.gather(striking, return_exceptions=True)
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1", "c-1")
    node.apply(late)
    assert node.announced == ("a-1", "b-1")
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1", "c-1")


@on_a_clock
async def test_a_correction_that_failed_is_not_repeated_over_a_removal_that_is_under_way() -> None:
    """A forced removal waits for nobody, and is not committed yet."""
    node = await announced("a-1", "b-1", "c-1")
    version, _ = node.machine.voters
    node.apply(SetVoters(("a-1", "b-1"), version))
    node.another_leads(2)
    node.voters.look()
    await rounds()
    node.lose(Timeout("nobody knows"))
    node.change(11, lambda now: remove(now, "c-1"))
    await asyncio.sleep(1.0)
    assert not node.under_way
    await node.settle()
    assert node.announced == ("a-1", "b-1")


@on_a_clock
async def test_a_state_that_takes_no_list_is_asked_once() -> None:
    many = tuple(sorted(f"core{i}-1" for i in range(256)))
    node = FakeNode(*many)
    node.voters.look()
    await node.settle()
    assert node.machine.voters == (0, ())
    node.voters.look()
    await rounds()
    assert not node.under_way


@on_a_clock
async def test_a_strike_is_repeated_when_somebody_else_was_faster() -> None:
    node = await announced("a-1", "b-1", "c-1")
    striking = asyncio.ensure_future(node.voters.strike_off("c-1", 1.0))
    await rounds()
    version, known = node.machine.voters
    node.apply(SetVoters(known, version))
    await node.settle(look=False)
    await striking
    assert node.announced == ("a-1", "b-1")


@on_a_clock
async def test_a_copy_that_votes_by_the_time_it_is_removed_is_struck_off_first() -> None:
    """Removed and promoted at once: while the removal waits for its turn, the copy is promoted."""
    node = FakeNode("a-1", "b-1")
    engine = node._part.engine
    node.change(11, lambda now: add_learner(now, "c-1"))
    removal = node.remove("c")
    await rounds()
    node.change(12, lambda now: promote(now, "c-1"))
    engine.commit = 12
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1", "c-1")
    while not engine.changed:
        assert not removal.done()
        await asyncio.sleep(0.01)
        await node.settle()
    assert "c-1" not in engine.changed[0].members
    assert node.announced == ("a-1", "b-1")
    engine.commit = 13
    assert await removal


@on_a_clock
async def test_a_forced_removal_waits_for_no_other_change() -> None:
    node = await announced("a-1", "b-1", "c-1")
    engine = node._part.engine
    other = node.remove("b")  # what it proposes is never answered
    await rounds()
    removal = node.remove("c", force=True)
    await asyncio.sleep(1.0)
    assert engine.configuration.voters == ("a-1", "b-1")
    engine.commit = 11
    assert await removal
    other.cancel()
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1")


@on_a_clock
async def test_the_last_voter_is_not_struck_off_by_force_either() -> None:
    node = FakeNode("a-1")
    node.voters.look()
    await node.settle()
    removal = node.remove("a", force=True)
    await rounds()
    assert not node.under_way
    with pytest.raises(MembershipRefused, match="last voter"):
        await removal


@on_a_clock
async def test_a_removal_that_would_leave_too_few_strikes_nobody_off() -> None:
    node = FakeNode("a-1", "b-1", "c-1")
    node._part.engine.leading.alive = lambda now: ("a-1", "c-1")
    with pytest.raises(MembershipRefused, match="too few"):
        await node.remove("c")
    assert not node.under_way


@on_a_clock
async def test_nothing_is_corrected_between_the_two_steps_of_a_forced_removal() -> None:
    """The state knows that the core is gone, the configuration is not appended yet."""
    node = await announced("a-1", "b-1", "c-1")
    engine = node._part.engine
    engine.commit = 0  # the entry of another change: the removal waits for it
    removal = node.remove("c", force=True)
    await node.settle()
    assert node.announced == ("a-1", "b-1")
    assert not engine.changed
    engine.commit = 10
    node.voters.look()
    await rounds()
    assert not node.under_way
    await asyncio.sleep(1.0)
    assert engine.configuration.voters == ("a-1", "b-1")
    engine.commit = 11
    assert await removal
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1")


@on_a_clock
async def test_a_forced_removal_that_ends_without_a_change_is_corrected() -> None:
    node = await announced("a-1", "b-1", "c-1")
    node._part.engine.commit = 0
    removal = node.remove("c", force=True)
    await node.settle()
    assert node.announced == ("a-1", "b-1")
    removal.cancel()
    await asyncio.gather(removal, return_exceptions=True)
    node._part.engine.commit = 10
    node.voters.look()
    await node.settle()
    assert node.announced == ("a-1", "b-1", "c-1")
