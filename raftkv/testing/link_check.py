"""A check of the simulated world: no core closes another core's link over what came by it.

A core passes on what its replicants propose, and its limits may differ from the leader's. So what a
leader does not take is no reason to end the stream that brought it: a bad proposal is answered to
the node that made it. In the world every core runs the real code, so a link between two of them
that one end drops for what the other has sent is a violation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from raftkv.raft.link import Link
from raftkv.testing.current import running_host
from raftkv.testing.patching import around

__all__ = ["checked_links", "machine_of"]

CONSENSUS: Final = "raft"


def checked_links(
    violated: Callable[[str, str], NoReturn], is_node: Callable[[str], bool]
) -> contextlib.AbstractContextManager[None]:
    """While this is entered. `is_node` tells whether a machine runs a node of the cluster."""

    def wrap(drop: Callable[..., None]) -> Callable[..., None]:
        def checked(link: Link, reason: str) -> None:
            if link.purpose == CONSENSUS and link.up and is_node(machine_of(link)):
                violated(
                    "no core pays for what it passes on",
                    f"{running_host()} closes its link to {link.peer_name}: {reason}",
                )
            drop(link, reason)

        return checked

    return around(Link, "drop", wrap)


def machine_of(link: Link) -> str:
    """Which machine is at the other end, whatever name its handshake has claimed."""
    return link.peer_address.partition(":")[0]
