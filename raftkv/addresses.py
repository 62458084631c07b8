"""Where other nodes may be reached: five sources, none of which is always right.

- *Greetings*: what a node has said of itself on a stream to this one. Newest; lost at a restart.
- *Hearsay*: what another core was told in a greeting. Two cores that both moved while the other was
  away learn of each other from a third one.
- *Members*: what the log says, since the node's last start. Survives, but a node that moved while
  this one was away stands there with its old address.
- *Remembered*: what the log had, in a core that is rebuilt and has no log yet (rebuild.py).
- *Configuration*: what the file says. Right when everybody moved at once and the files were
  edited; stale after every other change.

So nobody is dialled at one address: all that are known are tried in turn, and the greeting names
who is meant, because a node's old address may be another's today (`Hello.wanted`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping

from .address_rules import is_wildcard, parse_address
from .errors import ConfigError
from .state import Member

__all__ = ["AddressBook", "usable"]

# More cores than this are not believed in.
HEARSAY_MAX = 64
# Names whose own word is kept, far more than a cluster has nodes: without certificates a program
# can greet under any number of names. The oldest is forgotten first; the other sources have it.
GREETED_MAX = 4096


class AddressBook:
    """The addresses that one node knows, by name. `members` is set once there is a state."""

    def __init__(self, configured: Mapping[str, str]) -> None:
        self._configured = dict(configured)
        self._greeted: dict[str, str] = {}
        self._heard: dict[str, str] = {}
        self._remembered: dict[str, list[str]] = {}
        self.members: Callable[[], Mapping[str, Member]] = dict

    def greeted(self, name: str, address: str) -> None:
        """The node has just said where it is."""
        self._greeted.pop(name, None)
        if usable(address):
            self._greeted[name] = address
        if len(self._greeted) > GREETED_MAX:
            del self._greeted[next(iter(self._greeted))]

    def heard(self, name: str, address: str) -> bool:
        """Another core says where the node is. False: that is no address, or too much hearsay."""
        if not usable(address) or (len(self._heard) >= HEARSAY_MAX and name not in self._heard):
            return False
        self._heard[name] = address
        return True

    def remember(self, cores: Iterable[tuple[str, str]]) -> None:
        """(name, address) of the cores as the log of this node's former directory had them."""
        self._remembered = {}
        for name, address in cores:
            if usable(address):
                self._remembered.setdefault(name, []).append(address)

    @property
    def remembered(self) -> list[str]:
        """The names of the remembered cores."""
        return sorted(self._remembered)

    def of(self, name: str) -> list[str]:
        """Where the node may be, the likeliest first; empty if nothing is known."""
        member = self.members().get(name)
        known = (
            self._greeted.get(name),
            self._heard.get(name),
            None if member is None else member.peer_address,
            *self._remembered.get(name, ()),
            self._configured.get(name),
        )
        return list(dict.fromkeys(address for address in known if address and usable(address)))

    def vouched(self, name: str) -> list[str]:
        """Where the node is by this node's own configuration file and log, not by hearsay.

        What is remembered comes from a log of its own, too.
        """
        member = self.members().get(name)
        known = (
            None if member is None else member.peer_address,
            *self._remembered.get(name, ()),
            self._configured.get(name),
        )
        return list(dict.fromkeys(address for address in known if address))

    def cores(self, name: str) -> list[tuple[str, str]]:
        """(core, address) pairs that the replicant of this name may try, in its own order.

        The log's live cores come first, each replicant beginning with another one, the same at
        every start. Those that the log knows as down come last, not never: this node may have
        been away while the others moved on.
        """
        members = self.members()
        known = {core for core, member in members.items() if member.role == "core"}
        down = {core for core in known if not members[core].up}
        named = {*self._configured, *self._remembered}
        unknown = {core for core in named if core not in members}
        first = sorted((known - down) | unknown)
        start = zlib.crc32(name.encode()) % max(1, len(first))
        ordered = first[start:] + first[:start] + sorted(down)
        return [(core, address) for core in ordered for address in self.of(core)]


def usable(address: str) -> bool:
    """Whether an address that another node names can be dialled: not every address of a machine."""
    try:
        host, port = parse_address(address)
    except ConfigError:
        return False
    return port > 0 and not is_wildcard(host)
