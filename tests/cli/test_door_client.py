"""One request of the command line to a door: what cannot be sent is told before anything is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from raftkv.cli import door_client, member
from raftkv.cli.door_client import in_turn, request
from raftkv.cli.member import ask_in_turn
from raftkv.errors import ConfigError, NoLeader, NotApplied, RaftkvError, Timeout
from raftkv.read_errors import ReadErrors


def test_an_argument_that_is_no_text_is_the_callers_mistake() -> None:
    """A shell passes any bytes; Python makes lone surrogates of those that are no UTF-8."""
    name = b"\xff".decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match="no valid UTF-8"):
        request("http://127.0.0.1:1", "POST", "/v1/x", {"name": name})


class Clock:
    """The time of the commands. An attempt takes all that it may; a pause passes at once."""

    def __init__(self, *errors: RaftkvError) -> None:
        self._now = 0.0
        self._errors = iter(errors)
        self._late = Timeout("timed out")

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def ask(self, endpoint: str, left_s: float) -> None:
        """Raise one error after the other at once, and then run out of time."""
        error = next(self._errors, self._late)
        if error is self._late:
            self._now += left_s
        raise error


Turns = Callable[..., object]
IN_TURN: list[Turns] = [partial(in_turn, repeat=True), ask_in_turn]


@pytest.mark.parametrize("turns", IN_TURN)
@pytest.mark.parametrize(("read", "reported"), [(True, NoLeader), (False, Timeout)])
def test_an_attempt_without_time_hides_no_answer_of_a_read(
    turns: Turns, read: bool, reported: type[RaftkvError], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(NoLeader("no leader"))
    for module in (door_client, member):
        monkeypatch.setattr(module, "time", clock)
    with pytest.raises(reported):
        turns(["http://a"], 5.0, clock.ask, read=read)
    assert clock.monotonic() >= 5.0


def test_only_an_answer_of_the_same_endpoint_is_reported() -> None:
    errors, late = ReadErrors(), Timeout("timed out")
    unreachable, no_leader = NotApplied("unreachable"), NoLeader("no leader")
    assert errors.latest("http://a", late) is late
    assert errors.latest("http://a", unreachable) is unreachable
    assert errors.latest("http://a", no_leader) is no_leader
    assert errors.latest("http://b", late) is late
    assert errors.latest("http://a", late) is no_leader
