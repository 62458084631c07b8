"""The order of connections as a connect storm judges it, in other words than `order.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftkv_lcr.commands import AheadAt, Channel, Open, Register, Registered, Restart

if TYPE_CHECKING:
    from .storm_check import Decision

__all__ = ["TimeAndTicket", "check_further_attempts", "newer", "placed"]


def newer(one: Channel, other: Channel, first: int | None = None) -> bool:
    """Whether `one` connected later: by its time, then by its ticket.

    A ticket below `first`, the first one of format 3, is of no time. None, before that format: by
    versions if both brought one, else by tickets.
    """
    if first is not None:
        times = [row.version if row.ticket >= first else 0 for row in (one, other)]
        return times[0] > times[1] or (times[0] == times[1] and one.ticket > other.ticket)
    if one.supplied and other.supplied:
        return (one.version, one.ticket) > (other.version, other.ticket)
    return one.ticket > other.ticket


def placed(decision: Decision, row: Channel) -> list[str]:
    """From format 3 on a connection has the time that it gave, if that can be, and its ticket."""
    command, first = decision.command, decision.first
    if first is None:
        return []
    given, oldest = command.version, max(0, decision.now - decision.age_max_ms)
    t = decision.now
    if given is not None and given < t:
        t = oldest if given < oldest and command.ticket < first else given
    ticket = decision.serial if command.ticket < first else command.ticket
    if (row.version, row.ticket) == (t, ticket):
        return []
    return [f"{row} has not the time {t} and the ticket {ticket} of {command} at {decision.now}"]


@dataclass(frozen=True, slots=True)
class TimeAndTicket:
    """What the log has said of a connection's time and ticket, for its further attempts."""

    t: int
    ticket: int


def check_further_attempts(
    places: dict[tuple[str, str], TimeAndTicket], decision: Decision
) -> list[str]:
    """A connection does not become newer by trying again. `places`: of those that have to."""
    command, result = decision.command, decision.result
    if not isinstance(command, Open | Register) or decision.first is None:
        return []
    key = (command.client_id, command.channel)
    found, place = [], places.get(key)
    row = result.channel if isinstance(result, Registered) and not result.repeated else None
    if isinstance(result, Restart):
        row = result.claim
    if row is not None and place is not None and place.ticket == row.ticket:
        if row.version != place.t:
            found = [f"index {decision.index}: {row} was {place} at a former attempt"]
    elif row is not None and place is not None and row.ticket > place.ticket >= decision.first:
        found = [f"index {decision.index}: {row} is newer than {place} of a former attempt"]
    if isinstance(result, AheadAt):
        places.setdefault(key, TimeAndTicket(result.at_ms, result.ticket))
    elif isinstance(result, Restart):
        places.setdefault(key, TimeAndTicket(result.claim.version, result.claim.ticket))
    return found
