"""A node with a certificate for replicants only, and the calls that it must not make.

The simulated world encrypts nothing, so what a certificate would prove is given to the link itself:
a call that the hostile program (hostile.py) makes in the role of a replicant counts as one under a
certificate issued with `--replicant-only`. It then asks for what only other members may ask for:
that a core is removed by force, that a core begins a log of its own, that the format is raised.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from raftkv import core_format, membership, promotion
from raftkv.member_changes import Request
from raftkv.raft import wire
from raftkv.raft.link import Link
from raftkv.security.proof import Kind, Proof
from raftkv.testing.link_check import machine_of
from raftkv.testing.patching import around

__all__ = ["calls", "certified"]

_CALL: Final = "rpc"
CALL_S: Final = 1.0

_encode = msgspec.msgpack.Encoder().encode


def certified(machine: str) -> contextlib.AbstractContextManager[None]:
    """While this is entered, links on which this machine calls prove a replicant and no more."""

    def wrap(original: Any) -> Any:
        def proof(link: Link) -> Proof:
            proved: Proof = original.fget(link)
            calls_here = link.purpose == _CALL and link.dialled is None and link.peer is not None
            if not calls_here or machine_of(link) != machine:
                return proved
            return proved._replace(kind=Kind.REPLICANT_ONLY, name=link.peer_name)

        return property(proof)

    return around(Link, "proof", wrap)


def calls(
    rng: random.Random, cores: Sequence[str], raft_ids: Sequence[str]
) -> Sequence[Callable[[], wire.Message]]:
    """Calls that such a node must not make, about these members."""

    def call(method: str, payload: bytes) -> wire.Message:
        return wire.RpcRequest(rng.randrange(1, 1 << 20), method, payload)

    def change() -> wire.Message:
        method = rng.choice((membership.METHOD, membership.METHOD_2))
        name = rng.choice(cores)
        return call(method, _encode(Request("remove", name, force=True, timeout_s=CALL_S)))

    def become_core() -> wire.Message:
        raft_id = rng.choice(raft_ids) if raft_ids else cores[0]
        return call(promotion.METHOD, _encode((raft_id, 1)))

    def raise_format() -> wire.Message:
        return call(core_format.METHOD_RAISE, b"\xc0")

    return (change, change, become_core, raise_format)
