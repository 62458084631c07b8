"""One core's identity in two processes: a data directory that was copied.

Two processes with one raft id may vote twice in a term. So a core lets no second process take part
in consensus under a raft id while the first one answers. What tells them apart is the token of the
process in the handshake (`wire.About.process`); a node of raftkv 0.1.0 sends none and is not
judged.

The first process is the one whose consensus link is up, or was up last; for a core that has met
none yet, the one that the log has at another address. It is dialled, and while it answers as
another process, the second one is refused (namesakes.py does the same for replicants). A check
takes at most PING_S; until it is done the answer is no, and the second one dials again. A core that
just restarted is let in at once: the link to its former process is down, and its address is the
same.

Every refusal raises the alarm IDENTITY on the core that refuses, and on the process that is refused
or meets its twin, until none has come for ALARM_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from .namesakes import First, Look
from .raft import wire
from .raft.membership import Configuration, name_of
from .raft.transport import Hub
from .repeats import Repeats
from .state import Member

__all__ = ["IDENTITY", "IN_USE", "Twins"]

log = logging.getLogger("raftkv.peering")

#: The name of the alarm.
IDENTITY: Final = "IDENTITY"
#: The codes of a refusal of a second process, and of one that has met its twin itself.
IN_USE: Final = "identity_in_use"
#: The code of a refusal until that is known: it dials again.
UNKNOWN: Final = "identity_unknown"
TWIN: Final = "identity_twice"
#: How long the alarm outlasts the last refusal: a core dials every half second.
ALARM_S: Final = 10.0


class _Met(msgspec.Struct):
    """A process that has taken part under a raft id, and how many of its links are up."""

    hello: wire.Hello
    links: int = 1


class Twins:
    """What one core knows of the processes behind raft ids. Bounded by the members."""

    def __init__(
        self,
        hub: Hub,
        about: Callable[[], wire.About | None],
        members: Callable[[], Mapping[str, Member]],
        configuration: Callable[[], Configuration],
    ) -> None:
        self._hub = hub
        self._about = about
        self._members = members
        self._configuration = configuration
        self._look = Look(hub)
        self._met: dict[str, _Met] = {}
        self._repeats = Repeats(hub.runtime.monotonic)
        self._alarm = self._refused = ""
        self._alarm_at = self._refused_at = 0.0
        #: For the metrics.
        self.refusals = 0

    # -- who has taken part

    def link_up(self, hello: wire.Hello) -> None:
        members = self._configuration().members
        self._met = {each: met for each, met in self._met.items() if each in members}
        if hello.raft_id in members:
            met = self._met.get(hello.raft_id)
            same = met is not None and process_of(met.hello) == process_of(hello)
            # A link that replaces another one of this process comes up before that one is down.
            links = met.links + 1 if met is not None and same else 1
            self._met[hello.raft_id] = _Met(hello, links)
            self._look.forget(name_of(hello.raft_id))

    def link_down(self, hello: wire.Hello | None) -> None:
        met = None if hello is None else self._met.get(hello.raft_id)
        if met is not None and hello is not None and process_of(met.hello) == process_of(hello):
            met.links = max(0, met.links - 1)

    # -- judging

    def own(self, hello: wire.Hello) -> wire.Refusal | None:
        """The handshake has this node's own raft id: is it another process?"""
        about = self._about()
        mine, other = "" if about is None else about.process, process_of(hello)
        if "" in (mine, other) or mine == other:
            return None
        text = (
            f"two processes run as {name_of(hello.raft_id)!r} out of copies of one data directory "
            f"({hello.raft_id}); one is at {hello.peer_address}"
        )
        return self._refuse(TWIN, text)

    def judge(self, hello: wire.Hello) -> wire.Refusal | None:
        """Whether this process may take part under its raft id."""
        first = self._first(hello)
        alive = None if first is None else self._look.alive(first, hello)
        if first is None or alive is False:
            return None
        if alive is None:
            return wire.Refusal(UNKNOWN, "it is not known yet whether another process runs as this")
        text = (
            f"another process runs as {first.name!r} at {first.peer_address} out of a copy of the "
            f"same data directory ({first.raft_id}), and answers"
        )
        return self._refuse(IN_USE, text)

    def _first(self, hello: wire.Hello) -> First | None:
        """Another process that may run under this raft id."""
        process = process_of(hello)
        if not process:
            return None
        met = self._met.get(hello.raft_id)
        if met is not None:
            if process_of(met.hello) in ("", process):
                return None
            moved = met.hello.peer_address != hello.peer_address
            if met.links or moved:
                return First(name_of(hello.raft_id), hello.raft_id, met.hello.peer_address)
            return None
        row = self._members().get(name_of(hello.raft_id))
        if row is None or not row.up or row.raft_id != hello.raft_id:
            return None
        moved = row.peer_address != hello.peer_address
        return First(row.name, row.raft_id, row.peer_address) if moved else None

    def _refuse(self, code: str, text: str) -> wire.Refusal:
        self.refusals += 1
        self._alarm, self._alarm_at = text, self._hub.runtime.monotonic()
        if self._repeats.left_out(IN_USE, text) is not None:
            log.error(
                "alarm %s: %s. Stop one of the two, and start it with an empty directory as a core "
                "of its own, if at all",
                IDENTITY,
                text,
            )
        return wire.Refusal(code, text)

    # -- being told

    def told(self, reason: str, address: str) -> None:
        """The core at this address refuses this process."""
        self._refused = (
            f"the core at {address} refuses this process: {reason}. Stop one of the two; start it "
            f"with an empty directory as a core of its own, if at all"
        )
        self._refused_at = self._hub.runtime.monotonic()

    def refused(self, now: float) -> str:
        """Why this process does not take part; empty if no core has refused it lately."""
        return self._refused if now - self._refused_at < ALARM_S else ""

    def alarm(self, now: float) -> str:
        """What the alarm IDENTITY is about; empty while it is off."""
        return self._alarm if now - self._alarm_at < ALARM_S else self.refused(now)


def process_of(hello: wire.Hello) -> str:
    return "" if hello.about is None else hello.about.process
