"""What must be true: the driver's own record of who is connected, kept beside the registry.

The driver plays the clients, so it knows from their side what a registry has to answer: which
channel a client got last, and whether a session was there. This file turns that knowledge into the
two things that are logged: `expected_present` of a connect, and the outcome of an audit.

Rules of this file:

- Pure: no clock, no registry, no I/O. It judges answers, it never asks.
- It never accuses falsely. Where the history does not determine the right answer (two connects of
  one client in flight at once, an outcome that is unknown after a timeout), the expectation is
  None and every answer that the unknown could explain is accepted.
- It does not count. It gives the outcome of one audit; sums belong to the Spark job.

Two kinds of history. A `History` follows one client that does one thing at a time, through
whatever node: its next answer is determined. A `Race` follows one client id that many clients use
at once: what is determined is only the end. Each successful connect names the predecessor whose
session it took over, so the successes form a chain, and exactly one channel is at its end. A
registry that loses track shows it as two chains: two channels that nobody took over are two live
sessions of one client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

__all__ = [
    "UNKNOWN_OUTCOMES",
    "Expectation",
    "History",
    "Race",
    "RaceFacts",
    "audit_outcome",
    "is_unknown",
    "merged",
    "without_discarded",
]

AuditOutcome = Literal[
    "ok", "duplicate_session", "lost_registration", "wrong_owner", "leaked_registration"
]

UNKNOWN_OUTCOMES = frozenset({"timeout"})
"""Outcomes after which the operation may or may not have taken effect."""

_NEVER_APPLIED = frozenset(
    {
        *("restart", "outdated_early", "outdated_late", "ahead", "in_progress"),
        *("retries_exhausted", "no_leader", "overloaded", "error:too_large", "error:stopped"),
        *("error:read_timeout", "error:not_applied"),
    }
)


def is_unknown(outcome: str) -> bool:
    """Whether an operation with this outcome may have taken effect although it did not say ok.

    Anything that is not known to have changed nothing counts as unknown, errors of the driver's
    own making included: an expectation that is too strict would accuse a registry falsely.
    """
    return outcome != "ok" and outcome not in _NEVER_APPLIED


class Expectation(msgspec.Struct, frozen=True):
    """What every node's registry must show for one client id once nothing is under way.

    `owner`: the channel that holds the session, None when the client left. `maybe`: channels that
    may own it instead, because their own outcome is unknown. `live`: all channels that were
    answered ok and never told that another took over, or that they ended.
    """

    client: str
    owner: str | None
    maybe: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class History(msgspec.Struct):
    """One client that does one thing at a time. Travels between drivers with its client.

    `present` is what the next connect must be told: True, False, or None when an unknown outcome
    left it open. `connects` counts the successful ones.
    """

    client: str
    connects: int = 0
    owner: str | None = None
    present: bool | None = False
    maybe: list[str] = []
    live: list[str] = []

    def connected(self, channel: str, predecessor: str | None) -> None:
        """A connect was answered ok; `predecessor` is the channel it says it took over."""
        if self.maybe:
            # An unknown one may have taken the others over without telling anybody.
            self.live = []
        elif predecessor in self.live:
            self.live.remove(predecessor)
        self.live.append(channel)
        self.owner = channel
        self.present = True
        self.maybe = []
        self.connects += 1

    def connect_failed(self, channel: str, outcome: str) -> None:
        """A connect got another answer than ok, or none."""
        if not is_unknown(outcome):
            return
        # It may have taken the session over, and its node may have removed it again since.
        self.maybe.append(channel)
        self.present = None

    def disconnected(self, channel: str, outcome: str) -> None:
        """The client said goodbye on `channel`: its session ends with it."""
        if outcome != "ok" and not is_unknown(outcome):
            return
        if channel in self.live:
            self.live.remove(channel)
        if channel == self.owner:
            self.owner = None
            if outcome != "ok":
                self.maybe.append(channel)
            self.present = None if self.maybe else False

    def expectation(self) -> Expectation:
        """What an audit must find if nothing more happens to this client."""
        return Expectation(self.client, self.owner, tuple(self.maybe), tuple(self.live))


class RaceFacts(msgspec.Struct, frozen=True):
    """What one driver saw of a race. `alive`: version and channel of those answered ok there."""

    client: str
    alive: tuple[tuple[int, str], ...]
    ended: tuple[str, ...]
    maybe: tuple[str, ...]


class Race:
    """One client id that many clients use at once, as seen by one driver."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._alive: dict[str, int] = {}
        self._ended: set[str] = set()
        self._maybe: list[str] = []

    def connected(self, channel: str, version: int, predecessor: str | None) -> None:
        """A connect was answered ok, with `version`, and took `predecessor` over."""
        self._alive[channel] = version
        if predecessor is not None:
            self._ended.add(predecessor)

    def connect_failed(self, channel: str, outcome: str) -> None:
        """A connect got another answer than ok, or none."""
        if is_unknown(outcome):
            self._maybe.append(channel)

    def discarded(self, channels: Iterable[str]) -> None:
        """The registry ended these channels, so they are no live sessions, whoever did it."""
        self._ended.update(channels)

    def facts(self) -> RaceFacts:
        """What to tell the coordinator when the race is over."""
        alive = [(version, channel) for channel, version in self._alive.items()]
        both = self._ended & self._alive.keys()
        return RaceFacts(
            client=self.client,
            alive=tuple(sorted(pair for pair in alive if pair[1] not in both)),
            ended=tuple(sorted(self._ended - both)),
            maybe=tuple(self._maybe),
        )


def without_discarded(expected: Expectation, discarded: Collection[str]) -> Expectation:
    """The same expectation, when the registry ended some of the surplus channels itself.

    The owner stays what it is: a registry that throws out the right channel is wrong about it.
    """
    live = tuple(
        channel
        for channel in expected.live
        if channel == expected.owner or channel not in discarded
    )
    return msgspec.structs.replace(expected, live=live)


def merged(drivers: Sequence[RaceFacts]) -> Expectation:
    """The end of a race from what all drivers saw of it.

    A connect with an unknown outcome may have taken over one channel without telling anybody, so
    each of them excuses one surplus survivor; no more.
    """
    (client,) = {facts.client for facts in drivers}
    alive: set[tuple[int, str]] = set()
    ended: set[str] = set()
    maybe: list[str] = []
    for facts in drivers:
        alive.update(facts.alive)
        ended.update(facts.ended)
        maybe.extend(facts.maybe)
    survivors = sorted(pair for pair in alive if pair[1] not in ended)
    if not survivors:
        return Expectation(client, None, tuple(maybe), ())
    owner = survivors[-1][1]
    live = tuple(channel for _, channel in survivors)
    if len(live) <= 1 + len(maybe):
        live = (owner,)
    return Expectation(client, owner, tuple(maybe), live)


def audit_outcome(expected: Expectation, registered: Collection[str]) -> AuditOutcome:
    """Compares what one node's registry shows for a client with what is true.

    In this order, as one row holds one finding:

    - lost_registration: the owner is there, and the registry shows nobody;
    - duplicate_session: two channels of the client are alive, or registered as if they were;
    - wrong_owner: the registry shows somebody else instead of the owner;
    - leaked_registration: the registry shows a channel that has ended.
    """
    found = set(registered)
    allowed = {*expected.maybe} | ({expected.owner} if expected.owner is not None else set())
    if expected.owner is None:
        if len(found & allowed) > 1:
            return "duplicate_session"
        return "leaked_registration" if found - allowed else "ok"
    # An unknown goodbye or takeover may have removed the owner: then nobody is right too.
    if not found and not expected.maybe:
        return "lost_registration"
    if len({expected.owner, *expected.live}) > 1 or len(found & allowed) > 1:
        return "duplicate_session"
    if not found:
        return "ok"
    if not found & allowed:
        return "wrong_owner"
    return "leaked_registration" if found - allowed else "ok"
