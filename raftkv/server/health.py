"""What an orchestrator asks: /health as etcd answers it, /livez and /readyz as Kubernetes expects.

    /health   may a client use this node? 200 with a leader, else 503 (for load balancers); 503
              too while the cluster does not count this core (raftkv/hindrance.py)
    /livez    is this process alive? Fails only when a restart would help: the node has stopped
              itself. A cluster without a quorum does not fail it, or all nodes would be restarted.
    /readyz   should traffic go here? It has a session, knows a leader, the cluster counts it, and a
              linearizable read is confirmed within `READ_TIMEOUT_S`.

`?verbose` lists each check, a failure always does; `?exclude=NAME` leaves one out.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from raftkv.errors import RaftkvError

from .answers import FAULT_TEXT
from .ports import DoorNode

__all__ = ["READ_TIMEOUT_S", "Health"]

# Kubernetes gives a probe one second by default; the answer should say what is wrong before that.
READ_TIMEOUT_S: Final = 0.8

#: None if all is well, else the reason.
Check = Callable[[], Awaitable[str | None]]


class Health:
    """The pages of one node."""

    def __init__(self, node: DoorNode) -> None:
        self._node = node
        self._live: dict[str, Check] = {"node": self._running}
        self._ready: dict[str, Check] = {
            "node": self._running,
            "standing": self._standing,
            "session": self._session,
            "leader": self._leader,
            "linearizable_read": self._read,
        }

    def health(self) -> tuple[int, bytes]:
        """`/health`, in etcd's form."""
        hindrance = self._node.status().hindrance
        if hindrance is not None:
            reason = msgspec.json.encode(hindrance)
            return 503, b'{"health":"false","reason":%b}' % reason
        if self._node.leader is not None:
            return 200, b'{"health":"true"}'
        return 503, b'{"health":"false","reason":"no leader is known to this node"}'

    async def livez(self, query: bytes) -> tuple[int, bytes]:
        """`/livez`."""
        return await _page("livez", self._live, query)

    async def readyz(self, query: bytes) -> tuple[int, bytes]:
        """`/readyz`."""
        return await _page("readyz", self._ready, query)

    async def _running(self) -> str | None:
        return None if self._node.status().fault is None else FAULT_TEXT

    async def _standing(self) -> str | None:
        return self._node.status().hindrance

    async def _session(self) -> str | None:
        return None if self._node.status().ready else "the node has no session in the cluster yet"

    async def _leader(self) -> str | None:
        return None if self._node.leader is not None else "no leader is known to this node"

    async def _read(self) -> str | None:
        try:
            await self._node.barrier("linearizable", timeout_s=READ_TIMEOUT_S)
        except RaftkvError as error:
            return str(error)
        return None


async def _page(name: str, checks: dict[str, Check], query: bytes) -> tuple[int, bytes]:
    words = urllib.parse.parse_qs(query.decode("ascii", "replace"), keep_blank_values=True)
    excluded = set(words.get("exclude", ()))
    lines, failed = [], False
    for label, check in checks.items():
        if label in excluded:
            lines.append(f"[+]{label} excluded: ok")
            continue
        reason = await check()
        failed = failed or reason is not None
        lines.append(f"[+]{label} ok" if reason is None else f"[-]{label} failed: {reason}")
    if not failed and "verbose" not in words:
        return 200, b"ok"
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return 503 if failed else 200, "\n".join(lines).encode() + b"\n"
