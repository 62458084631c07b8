"""The order of connections: which of two is the newer one.

Rules of this file: pure, but for `Times`, which no decision uses. What it reads is replicated, so
all nodes order alike.

From format 3 on the version of a connection is the pair (t, ticket), and all versions are compared
as pairs. `t` is the time at which the connection was made, in milliseconds of the log's clock: the
connect time that the caller gave, moved into the `connect_age_max_ms` before the stamp of the entry
with which the connection first reached the log, or that stamp if none was given. `ticket` is the
serial of that command, unique in a log. Pairs of numbers are totally ordered, so three connections
cannot form a cycle. A row has t in its field `version`, with `supplied` true.

A connection that tries again gives the t and the ticket of the first answer (`carried`), so that it
does not become newer by trying. `connect_age_max_ms` therefore does not bound a time that comes
with a ticket: a low one only makes its own connection older. A caller that gives a time of its own
with a ticket that it drew has it bounded by the node that drew it (`Times`).

Before format 3, versions were compared only where both callers had supplied one, else tickets,
which is no order. The table `order` has the first ticket of format 3. A row with a ticket below it
was written before: its version is in no unit that is known here, and it counts as (0, ticket),
older than every connection that registers later. A ticket that was drawn before is replaced by the
serial of the command that presents it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from raftkv.plugin import Context, View

from .commands import FORMAT_TIMES, VERSION_MAX, Ahead, AheadAt, Channel, Restart

__all__ = ["Times", "adopted", "begin", "carried", "first_ticket", "guess", "is_newer", "place"]

# Far more connections than a node opens at one time; a few hundred KiB.
TIMES_MAX: Final = 10_000

_FIRST: Final = "first"


def is_newer(one: Channel, other: Channel, first: int | None) -> bool:
    """Whether `one` is the newer connection. `first` is that of `first_ticket`.

    Before format 3: where both callers supplied a version, versions decide and tickets break ties;
    otherwise only tickets are compared.
    """
    if first is not None:
        return _version(one, first) > _version(other, first)
    if one.supplied and other.supplied and one.version != other.version:
        return one.version > other.version
    return one.ticket > other.ticket


def _version(row: Channel, first: int) -> tuple[int, int]:
    return (row.version if row.ticket >= first else 0, row.ticket)


def first_ticket(tables: View | Context) -> int | None:
    """The first ticket of format 3, above all present ones if there is none; None before it."""
    if tables.version < FORMAT_TIMES:
        return None
    first: int = tables.table("order").get(_FIRST, VERSION_MAX)
    return first


def begin(ctx: Context) -> int:
    """The first ticket of format 3, which begins with the present command if not before."""
    order = ctx.table("order")
    first: int | None = order.get(_FIRST)
    if first is None:
        first = ctx.serial
        order.put(_FIRST, first)
    return first


def place(given: int | None, ticket: int, ctx: Context) -> tuple[int, int]:
    """(t, ticket) of a connection that gives this connect time and ticket. 0: it has no ticket."""
    first = begin(ctx)
    age_max_ms = ctx.settings["connect_age_max_ms"] if ticket < first else ctx.now
    t = ctx.now if given is None else _between(given, ctx.now, age_max_ms)
    return t, ticket if ticket >= first else ctx.serial


def _between(given: int, latest: int, age_max_ms: int) -> int:
    return max(0, latest - age_max_ms, min(given, latest))


def adopted(channel: Channel, ticket: int, own: bool, ctx: Context) -> Channel:
    """The row of a living channel that is entered with that ticket, `own` by its own node.

    It keeps its time, and has 0 if it was opened without one: older than every connection that
    the log has seen. A channel of an old node without a time has just been opened.
    """
    if ticket < begin(ctx):
        version = channel.version if channel.supplied else ticket
        return msgspec.structs.replace(channel, ticket=ticket, version=version)
    unknown = 0 if own else ctx.now
    t = min(channel.version, ctx.now) if channel.supplied else unknown
    return msgspec.structs.replace(channel, ticket=ticket, version=t, supplied=True)


def carried(version: int | None, answer: Restart | Ahead) -> int | None:
    """The version to give at the next attempt, after one that gave `version`."""
    if isinstance(answer, AheadAt):
        return answer.at_ms
    if isinstance(answer, Restart) and answer.claim.supplied:
        return answer.claim.version
    return version


class Times:
    """On one node: the times of the latest tickets that the log gave its connections.

    A caller may give the ticket alone, which is enough before format 3.
    """

    def __init__(self) -> None:
        # (time, whether it is that of a connection).
        self._times: dict[int, tuple[int, bool]] = {}

    def note(self, ticket: int, at_ms: int | None, connected: bool = False) -> None:
        """Remember the time of a ticket, if it has one, and forget the oldest beyond TIMES_MAX.

        `connected`: the log gave it to a connection, in an answer to its first attempt.
        """
        if at_ms is not None:
            self._times[ticket] = (at_ms, connected)
            if len(self._times) > TIMES_MAX:
                del self._times[next(iter(self._times))]

    def note_answer(self, answer: object) -> None:
        """Remember what the next attempt is to give."""
        if isinstance(answer, AheadAt):
            self.note(answer.ticket, answer.at_ms, connected=True)
        elif isinstance(answer, Restart) and answer.claim.supplied:
            self.note(answer.claim.ticket, answer.claim.version, connected=True)

    def of(self, version: int | None, ticket: int, age_max_ms: int) -> int | None:
        """The version to give: that of the caller, moved between the time of its ticket and
        `age_max_ms` before that, if this is known; without one the time of its ticket. After a
        first attempt it is the time of the connection, whatever the caller gives: moved again it
        would become older with each attempt."""
        if ticket not in self._times:
            return version
        at_ms, connected = self._times[ticket]
        if version is None or connected:
            return at_ms
        return _between(version, at_ms, age_max_ms)


def guess(me: Channel, view: View, now_ms: int) -> Channel:
    """A connection as the log would order it at `now_ms`, as new as it can be.

    `me` has the version and the ticket that were given, `VERSION_MAX` where none was. A time ahead
    of the log's clock may have come when the log looks at it.
    """
    first = first_ticket(view)
    if first is None:
        return me
    if first <= me.ticket < VERSION_MAX:
        ticket, oldest = me.ticket, 0
    else:
        ticket, oldest = VERSION_MAX, now_ms - int(view.settings["connect_age_max_ms"])
    version = max(me.version, oldest) if me.supplied else VERSION_MAX
    return msgspec.structs.replace(me, ticket=ticket, version=version, supplied=True)
