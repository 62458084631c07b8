"""What a core reports to have heard while streams end and begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftkv.presence import HEARD_S, Presences, Stream
from raftkv.raft import wire
from raftkv.state import Member

MEMBERS = {"n": Member("n", "core", "n-1", "n:1", None, 3, True, 0)}


@dataclass(eq=False)
class FakeLink:
    peer_name: str = "n"


def just_heard() -> Presences:
    """The node has spoken at 0.0 on a stream that is gone right after."""
    link: Any = FakeLink()
    presences = Presences(lambda name, nonce: None)
    presences.update([Stream("n", link)], 0.0)
    presences.arrived(link, wire.Presence(3, 0, 0, 0), 0.0)
    return presences


def test_a_node_whose_stream_is_being_opened_again_was_heard() -> None:
    presences = just_heard()
    presences.update([], 0.01)
    assert presences.report(MEMBERS, 0.01) == [("n", 3, 0)]
    presences.update([], HEARD_S)
    assert presences.report(MEMBERS, HEARD_S) == []


def test_its_next_stream_takes_the_place_of_the_former() -> None:
    """And has shown nothing yet but that it came up."""
    presences, link = just_heard(), FakeLink()
    stream = Stream("n", link)  # type: ignore[arg-type]
    presences.update([stream], 0.02)
    assert not presences.spoke(stream.link)
    assert presences.report(MEMBERS, 0.02) == [("n", 3, 0)]


def test_a_stream_that_is_reset_twice_in_a_moment_was_heard() -> None:
    presences, link = just_heard(), FakeLink()
    presences.update([Stream("n", link)], 0.02)  # type: ignore[arg-type]
    presences.update([], 0.03)
    assert presences.report(MEMBERS, 0.03) == [("n", 3, 0)]
