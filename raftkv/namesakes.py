"""Two nodes under one name: the second may not follow while the first one answers.

A name stands for one node. A second one under it, started from a copied configuration file say,
would end the first one's incarnation with its own `NodeUp`, and the other way round, without end.
So a core asks before it takes a replicant whose name the log has as up under another data
directory, or that follows this very core out of another process: it dials the first one's address
and looks whether that still is the first one. While it answers, the second is refused and tries
again, with growing pauses; a first one that does not answer within PING_S gives way.

Two that come at once are both let in: the log has none of them yet. So a core also looks at
standing streams: one whose name another node holds in the log by now is ended, and judged when it
comes back (replicant/upstream.py).

Every core judges for itself. A check takes at most PING_S; until it is done the answer is no, and
the replicant comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from .joining import handshake_at
from .raft import wire
from .raft.membership import name_of
from .raft.transport import Hub
from .replicant.follower import NAME_IN_USE
from .state import Member

__all__ = ["PING_S", "First", "Look", "Namesakes"]

log = logging.getLogger("raftkv.peering")

# How long the first node may take for a handshake: a few round trips and a turn of its loop.
PING_S: Final = 1.0
# How long a result counts. The second node comes back sooner than that: but for "the first one is
# gone" it may have up to seven cores, or old addresses where nothing answers, to try in between.
VALID_S: Final = 3.0
GONE_VALID_S: Final = 20.0


class First(msgspec.Struct, frozen=True):
    """The node, or process, that was there before."""

    name: str
    raft_id: str
    peer_address: str


class _Check(msgspec.Struct):
    """One look at a first node. `alive` is None until it is done."""

    subject: tuple[str, str]
    alive: bool | None = None
    at: float = 0.0


class Look:
    """Looks whether first nodes still answer. At most one check for each name."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._checks: dict[str, _Check] = {}

    def forget(self, name: str) -> None:
        self._checks.pop(name, None)

    def alive(self, first: First, hello: wire.Hello) -> bool | None:
        """Whether the first node answers and is not the one that greets now; None until known."""
        now = self._hub.runtime.monotonic()
        subject = (first.raft_id, _process(hello) or hello.raft_id)
        check = self._checks.get(first.name)
        if check is not None and check.alive is not None:
            valid_s = VALID_S if check.alive else GONE_VALID_S
            check = check if now - check.at < valid_s else None
        if check is None or check.subject != subject:
            check = self._checks[first.name] = _Check(subject)
            looking = self._look(first, hello, check)
            self._hub.runtime.spawn(looking, f"look for {first.name}")
        return check.alive

    async def _look(self, first: First, hello: wire.Hello, check: _Check) -> None:
        """Dial the first node; what answers there may be the second one itself."""
        found = await handshake_at(self._hub, first.peer_address, first.name, PING_S)
        alive = found is not None and _other(found, first, hello)
        check.alive, check.at = alive, self._hub.runtime.monotonic()
        if alive:
            log.warning(
                "a second node called %s, at %s, is refused: the one at %s answers",
                first.name,
                hello.peer_address,
                first.peer_address,
            )


class Namesakes:
    """What one core knows of names that replicants follow it under."""

    def __init__(
        self,
        hub: Hub,
        members: Callable[[], Mapping[str, Member]],
        fed: Callable[[str], wire.Hello | None],
    ) -> None:
        """`fed` gives the handshake of the replicant that follows under this raft id."""
        self._members = members
        self._fed = fed
        self._look = Look(hub)

    def judge(self, hello: wire.Hello) -> wire.Refusal | None:
        """Whether this replicant may follow, as far as its name goes."""
        name = name_of(hello.raft_id)
        first = self._members().get(name)
        if first is None or not self._differs(first, hello):
            self._look.forget(name)
            return None
        if self._look.alive(First(name, first.raft_id, first.peer_address), hello) is False:
            return None
        return wire.Refusal(
            NAME_IN_USE,
            f"another node called {name!r} runs at {first.peer_address} (data directory "
            f"{first.raft_id}): give each node a name of its own, or stop the other one",
        )

    def holder(self, name: str) -> str | None:
        """The raft id of the node of this name that is up by the log, if one is."""
        member = self._members().get(name)
        return None if member is None or not member.up else member.raft_id

    def _differs(self, first: Member, hello: wire.Hello) -> bool:
        """Whether the log or this core's own stream speaks of another node than this one."""
        if not first.up:
            return False
        if first.raft_id != hello.raft_id:
            return True
        fed = self._fed(hello.raft_id)
        former = "" if fed is None else _process(fed)
        return "" not in (former, _process(hello)) and former != _process(hello)


def _process(hello: wire.Hello) -> str:
    return "" if hello.about is None else hello.about.process


def _other(found: wire.Hello, first: First, hello: wire.Hello) -> bool:
    """Whether it is the first node that answered, and not the one that wants to follow."""
    if found.raft_id != first.raft_id:
        return False
    return found.raft_id != hello.raft_id or _process(found) != _process(hello)
