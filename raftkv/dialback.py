"""Which accepted links count without certificates: those behind which the named core stands.

The core that bootstraps makes voters of the nodes that it has links to. A link counts if the other
end has proved its name (credibility.py): by its certificate, or, without certificates, because this
node dialled it at the address in its configuration file. Anything may claim a core's name on a link
that it dialled itself. So the core of that name is dialled back, at its address in the
configuration file, and the accepted link counts if the same process answers there: under the same
raft id, in the same role, with the same token (`wire.About.process`; a node of raftkv 0.1.0 sends
none, here and there). What the bootstrap then goes by is that answer, not what came in.

A core is dialled back for a call (`rpc`), which is answered before there is a cluster and leads to
no further dialling. At most one dial-back runs for each name. It takes at most ANSWER_S for each
address, and one that proves nothing is repeated after AGAIN_S, as long as all links are there.

A core that is added at an address (member_changes.py) is distinguished from other claims in the
same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from .addresses import AddressBook
from .credibility import Credibility
from .joining import AGAIN_S, ANSWER_S, handshake_at
from .raft import wire
from .raft.transport import Hub, Link
from .repeats import Repeats
from .twins import process_of

__all__ = ["DialBack", "same_process"]

log = logging.getLogger("raftkv.peering")


class DialBack:
    """What one core knows of the links that would count for its bootstrap.

    `links` gives those under a name that are up now, the newest last; `done` is called after each
    dial-back.
    """

    def __init__(
        self,
        hub: Hub,
        addresses: AddressBook,
        credibility: Credibility,
        repeats: Repeats,
        links: Callable[[str], Sequence[Link]],
        done: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._addresses = addresses
        self._credibility = credibility
        self._repeats = repeats
        self._links = links
        self._done = done
        self._dialling: set[str] = set()
        # What the core at its configured address has answered about an accepted link.
        self._answers: WeakKeyDictionary[Link, wire.Hello] = WeakKeyDictionary()

    def counted(self, name: str) -> wire.Hello | None:
        """The handshake of the core of this name, if one of its links counts.

        None: no link does (yet), and the core is dialled back.
        """
        # The newest first: an older one may be of a directory, and a machine, that is gone.
        for link in reversed(self._links(name)):
            if self._credibility.believes(name, link.proof):
                return link.peer
            if link in self._answers:
                return self._answers[link]
        if name not in self._dialling:
            self._dialling.add(name)
            self._hub.runtime.spawn(self._dial(name), f"dial {name} back")
        return None

    async def _dial(self, name: str) -> None:
        try:
            if not await self._prove(name):
                await self._hub.runtime.sleep(AGAIN_S)
        finally:
            self._dialling.discard(name)
        self._done()

    async def _prove(self, name: str) -> bool:
        """Whether the process behind a link under this name is the one at its own address."""
        found = False
        for address in self._addresses.vouched(name):
            answer = await handshake_at(self._hub, address, name, ANSWER_S)
            for link in self._links(name):
                if answer is not None and link.peer is not None and same_process(link.peer, answer):
                    self._answers[link] = answer
                    return True
                found = True
            what = "nothing answers" if answer is None else "another process answers"
            text = f"a node claims to be {name}, and {what} at {address}, where {name} would be"
            if found and self._repeats.left_out((name, "dial-back"), text) is not None:
                log.warning(
                    "%s: the cluster is not bootstrapped with it. If it is %s, see to it that this "
                    "node reaches it at its address under [cores]",
                    text,
                    name,
                )
        return False


def same_process(peer: wire.Hello, answer: wire.Hello) -> bool:
    """Whether one process has sent both handshakes, as far as they tell."""
    return (peer.raft_id, peer.role, process_of(peer)) == (
        answer.raft_id,
        answer.role,
        process_of(answer),
    )
