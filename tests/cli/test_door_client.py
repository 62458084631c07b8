"""One request of the command line to a door: what cannot be sent is told before anything is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from raftkv.cli.door_client import in_turn, request
from raftkv.errors import ConfigError, NoLeader, RaftkvError, Timeout


def test_an_argument_that_is_no_text_is_the_callers_mistake() -> None:
    """A shell passes any bytes; Python makes lone surrogates of those that are no UTF-8."""
    name = b"\xff".decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match="no valid UTF-8"):
        request("http://127.0.0.1:1", "POST", "/v1/x", {"name": name})


def _answers(*errors: RaftkvError) -> tuple[Callable[[str, float], None], list[RaftkvError]]:
    """An endpoint that raises these one after the other, and the last one from then on."""
    waiting: Iterator[RaftkvError] = iter(errors)
    raised: list[RaftkvError] = []

    def ask(endpoint: str, left_s: float) -> None:
        raised.append(next(waiting, errors[-1]))
        raise raised[-1]

    return ask, raised


def test_the_answer_of_a_node_is_said_and_not_that_the_last_attempt_had_no_time() -> None:
    no_leader, late = NoLeader("no leader"), Timeout("timed out")
    ask, raised = _answers(no_leader, late)
    with pytest.raises(NoLeader):
        in_turn(["http://a"], 1.0, ask, repeat=True, read=True)
    assert late in raised


def test_what_may_have_changed_something_is_said_to_be_unknown() -> None:
    ask, _ = _answers(NoLeader("no leader"), Timeout("timed out"))
    with pytest.raises(Timeout):
        in_turn(["http://a"], 1.0, ask, repeat=True)
