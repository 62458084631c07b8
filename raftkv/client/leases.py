"""Leases over the network: `client.leases`, with the names, results and errors of `node.leases`."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from raftkv.kv.arguments import check_grant, check_id
from raftkv.kv.commands import GrantResult, LeaseNotFound, RevokeResult
from raftkv.kv.keeping import Keeping, LeaseStatus
from raftkv.validation import checked

from . import words
from .calls import Caller, Decode

__all__ = ["ClientLeases"]

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

_kept_alive = msgspec.json.Decoder(words.KeepAliveAnswer, strict=False).decode
_ttl = msgspec.json.Decoder(words.TtlAnswer, strict=False).decode
_listed = msgspec.json.Decoder(words.LeasesAnswer, strict=False).decode


@checked
class ClientLeases:
    """Grant, keep alive, revoke and look at leases, through any door of the cluster.

    The same as `node.leases`, method by method. A lease belongs to the cluster, not to the
    connection: a client that has changed its endpoint goes on keeping it alive.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def grant(
        self, ttl_s: int, *, id: int = 0, timeout_s: float | None = None
    ) -> GrantResult:
        """A new lease that lives `ttl_s` seconds from its last keep-alive. `id` 0: any.

        Raises `LeaseExists` or `LeaseTtlTooLarge`.
        """
        check_grant(ttl_s, id)
        body = _encode({"TTL": str(ttl_s), "ID": str(id)})
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.write(words.GRANT, body, words.granted, deadline=deadline)

    async def revoke(self, id: int, *, timeout_s: float | None = None) -> RevokeResult:
        """End a lease and delete its keys. Raises `LeaseNotFound`."""
        check_id(id)
        body = _encode({"ID": str(id)})
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.write(words.REVOKE, body, words.revoked, deadline=deadline)

    async def keep_alive(self, id: int, *, timeout_s: float | None = None) -> int:
        """Extend a lease to its whole time to live; the seconds it has now.

        Raises `LeaseNotFound` when it is gone.
        """
        check_id(id)
        answer = await self._read(words.KEEP_ALIVE, {"ID": str(id)}, _kept_alive, timeout_s)
        if answer.result.TTL <= 0:
            # etcd's word for a lease that is gone.
            raise LeaseNotFound(f"there is no lease {id}: it was revoked, or has expired")
        return answer.result.TTL

    async def time_to_live(
        self, id: int, *, keys: bool = False, timeout_s: float | None = None
    ) -> LeaseStatus:
        """What is left of a lease, `ttl_s` -1 if it is gone; with `keys`, what is attached."""
        check_id(id)
        request: dict[str, Any] = {"ID": str(id)}
        if keys:
            request["keys"] = True
        answer = await self._read(words.TIME_TO_LIVE, request, _ttl, timeout_s)
        return LeaseStatus(id, answer.granted, answer.TTL, tuple(answer.keys))

    async def list(self, *, timeout_s: float | None = None) -> tuple[int, ...]:
        """The ids of all leases."""
        answer = await self._read(words.LEASES, {}, _listed, timeout_s)
        return tuple(lease.ID for lease in answer.leases)

    def keeping(self, ttl_s: int, *, id: int = 0) -> Keeping:
        """`async with`: a lease that is kept alive in the background and revoked at the end."""
        return Keeping(self, ttl_s, id=id)

    async def _read(
        self, path: bytes, request: Any, decode: Decode[T], timeout_s: float | None
    ) -> T:
        deadline = self._caller.deadline(timeout_s)
        return await self._caller.read(path, _encode(request), decode, deadline=deadline)
