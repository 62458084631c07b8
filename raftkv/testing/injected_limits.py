"""Injected bugs of limits that differ between nodes, and of what a leader does not take.

They show where the limits of the nodes differ (varied.py) and clients write values near them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import raftkv.outbox
from raftkv.config import Limits
from raftkv.kv import keyspace
from raftkv.kv.commands import LimitExceeded
from raftkv.plugin import Context
from raftkv.proposals import Proposals
from raftkv.raft import wire
from raftkv.testing.current import running_host
from raftkv.testing.patching import around
from raftkv.testing.planting import BUGS, Bug, wrapping

__all__: list[str] = []


@wrapping(
    "messenger-punished",
    "a leader closes the link that brought a command which it does not take",
    Proposals,
    "fit",
    seeds_max=200,
)
def _messenger_punished(fit: Callable[..., Sequence[bytes]]) -> Callable[..., Sequence[bytes]]:
    def broken(proposals: Proposals, sender: str, commands: Sequence[bytes], *rest: Any) -> Any:
        if any(proposals._why_not(command) for command in commands):
            raise wire.ProtocolError("a proposal holds what is no command, or is too large")
        return fit(proposals, sender, commands, *rest)

    return broken


@wrapping(
    "rejection-is-verdict",
    "a node takes a rejection of one copy of a command for what became of the command",
    raftkv.outbox.Outbox,
    "rejected",
    seeds_max=200,
)
def _rejection_is_verdict(rejected: Callable[..., None]) -> Callable[..., None]:
    def broken(queue: raftkv.outbox.Outbox, seq: int, error: Any) -> None:
        waiter = queue._sent.get(seq)
        if waiter is not None:
            waiter.sends = min(waiter.sends, 1)
        rejected(queue, seq, error)

    return broken


@contextlib.contextmanager
def _limit_of_the_node() -> Iterator[None]:
    limits: dict[str, Limits] = {}

    def wrap_init(init: Callable[..., None]) -> Callable[..., None]:
        def noting(queue: Any, runtime: Any, given: Limits, *rest: Any) -> None:
            limits[running_host()] = given
            init(queue, runtime, given, *rest)

        return noting

    def wrap_put(put: Callable[..., Any]) -> Callable[..., Any]:
        def broken(key: bytes, value: bytes, ctx: Context) -> Any:
            most = limits[running_host()].value_bytes_max
            if len(value) > most:
                raise LimitExceeded(f"a value of {len(value)} bytes exceeds {most}")
            return put(key, value, ctx)

        return broken

    with around(raftkv.outbox.Outbox, "__init__", wrap_init), around(keyspace, "put", wrap_put):
        yield


BUGS["limit-of-the-node-applied"] = Bug(
    "each node applies a put by the value_bytes_max of its own configuration",
    _limit_of_the_node,
    seeds_max=200,
)
