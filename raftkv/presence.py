"""Which nodes were heard, on one core, from core format 2 (rule 30).

A node is heard when a message that carries its current incarnation has arrived on its stream within
a report period; that a stream is open proves nothing, because the machine at its other end may be
gone. The name is that of the handshake. A node that has no session yet is known by the nonce with
which it asks for one: it may have to catch up before it learns its own incarnation.

A stream that has carried no `Presence` yet may belong to a node that has not applied the new
format. It counts as heard when it comes up, while the replicant applies what it is sent, and while
a snapshot is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from .raft import wire
from .raft.transport import Link
from .state import Member

__all__ = ["HEARD_S", "Identity", "Presences", "Stream"]

# A report period and half of one: timers and messages are not exact.
HEARD_S: Final = 1.5

#: (incarnation, nonce) of a node; see `wire.Presence`.
Identity = tuple[int, int]
SessionOf = Callable[[str, int], tuple[int, int] | None]


class Stream(msgspec.Struct, frozen=True):
    """A stream that is up now. `applied`: of a replicant; `copying`: a snapshot is under way."""

    name: str
    link: Link
    applied: int = 0
    copying: bool = False


class _Seen(msgspec.Struct):
    """`at`: when a `Presence` came last. `moved_at`: since when nothing else has shown life."""

    link: Link
    moved_at: float
    at: float | None = None
    identity: Identity = (0, 0)
    applied: int = 0

    @property
    def last(self) -> float:
        """When it was heard last."""
        return self.moved_at if self.at is None else self.at


class Presences:
    """What has arrived on the streams of this core."""

    def __init__(self, session_of: SessionOf) -> None:
        """`session_of(name, nonce)`: the session and incarnation that a `NodeUp` has opened."""
        self._session_of = session_of
        self._seen: dict[str, _Seen] = {}

    def arrived(self, link: Link, message: wire.Presence, now: float) -> None:
        """A node is there, in this incarnation."""
        seen = self._seen.get(link.peer_name)
        if seen is None or seen.link is not link:
            seen = self._seen[link.peer_name] = _Seen(link, now)
        seen.at, seen.identity = now, (message.incarnation, message.nonce)

    def spoke(self, link: Link) -> bool:
        """Whether a `Presence` has come on this very stream."""
        seen = self._seen.get(link.peer_name)
        return seen is not None and seen.link is link and seen.at is not None

    def update(self, streams: Iterable[Stream], now: float) -> None:
        """These streams are up; one that has ended counts for HEARD_S from when it was heard.

        A stream may have been reset a moment ago and be opened again in the next: a report made
        between the two must not call its node unheard. It delays no verdict, because a node is
        judged a whole `node_down_ms` after it was heard last.
        """
        up = {}
        for stream in streams:
            seen = self._seen.get(stream.name)
            if seen is None or seen.link is not stream.link:
                seen = _Seen(stream.link, now, applied=stream.applied)
            if stream.copying or seen.applied != stream.applied:
                seen.applied, seen.moved_at = stream.applied, now
            up[stream.name] = seen
        for name, seen in self._seen.items():
            if now - seen.last < HEARD_S:
                up.setdefault(name, seen)
        self._seen = up

    def heard(self, members: Mapping[str, Member], now: float) -> Iterator[tuple[str, float]]:
        """(name, seconds since it was heard) of the members whose streams are up, or just were."""
        for name, seen in self._seen.items():
            member = members.get(name)
            if member is None:
                continue
            if seen.at is None or self.is_current(member, *seen.identity):
                yield name, now - seen.last

    def report(self, members: Mapping[str, Member], now: float) -> list[tuple[str, int, int]]:
        """What goes to the leader, which may know better which incarnation is the current one."""
        found = []
        for name, seen in self._seen.items():
            if name in members and now - seen.last < HEARD_S:
                unnamed = (members[name].incarnation, 0)
                found.append((name, *(unnamed if seen.at is None else seen.identity)))
        return found

    def is_current(self, member: Member, incarnation: int, nonce: int) -> bool:
        """Whether this is the incarnation that the log knows."""
        if incarnation:
            return incarnation == member.incarnation
        opened = self._session_of(member.name, nonce) if nonce else None
        return opened is not None and opened[1] == member.incarnation
