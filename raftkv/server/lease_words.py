"""etcd's lease words on a node's leases. See gateway.py for the key-value words.

Keep-alive is a stream of requests and one of answers, an answer each, in order. Clients of the
gateway mostly send one request and end their body: then the stream ends with its answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from raftkv.kv import LeaseNotFound

from . import messages
from .encoding import Headers, b64
from .large_answer import ANSWER_BYTES_MAX, LargeAnswer
from .outgoing import Outgoing
from .ports import DoorNode, Writer

__all__ = ["LeaseWords"]

T = TypeVar("T")


class LeaseWords:
    """Each method takes a request's JSON body and returns the JSON of the answer."""

    def __init__(self, node: DoorNode, headers: Headers, outgoing: Outgoing | None = None) -> None:
        self._node = node
        self._outgoing = Outgoing(2 * ANSWER_BYTES_MAX) if outgoing is None else outgoing
        self._header = headers.json
        self._grants = messages.decoder_of(messages.GrantRequest)
        self._revocations = messages.decoder_of(messages.RevokeRequest)
        self._keep_alives = messages.decoder_of(messages.KeepAliveRequest)
        self._times = messages.decoder_of(messages.TimeToLiveRequest)
        self._lists = messages.decoder_of(messages.LeasesRequest)

    async def grant(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/lease/grant`."""
        request = messages.decode(self._grants, body)
        done = await (writer or self._node).leases.grant(request.TTL, id=request.ID)
        form = b'{"header":%b,"ID":"%d","TTL":"%d"}'
        return form % (self._header(done.revision), done.id, done.ttl_s)

    async def revoke(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/lease/revoke`. `deleted`, the number of keys, is raftkv's addition."""
        request = messages.decode(self._revocations, body)
        done = await (writer or self._node).leases.revoke(request.ID)
        deleted = b',"deleted":"%d"' % done.deleted if done.deleted else b""
        return b'{"header":%b%b}' % (self._header(done.revision), deleted)

    async def time_to_live(self, body: bytes) -> bytes:
        """`POST /v3/lease/timetolive`."""
        request = messages.decode(self._times, body)
        found = await self._node.leases.time_to_live(request.ID, keys=request.keys)
        answer = b'{"header":%b' % self._header(self._node.kv.revision)
        if request.ID:
            answer += b',"ID":"%d"' % request.ID
        if found.ttl_s:
            answer += b',"TTL":"%d"' % found.ttl_s
        if found.granted_s:
            answer += b',"grantedTTL":"%d"' % found.granted_s
        if not found.keys:
            return answer + b"}"
        return await self._listed(answer + b',"keys":[', found.keys, _key_json, len)

    async def list(self, body: bytes) -> bytes:
        """`POST /v3/lease/leases`."""
        messages.decode(self._lists, body)
        leases = await self._node.leases.list()
        answer = b'{"header":%b' % self._header(self._node.kv.revision)
        if not leases:
            return answer + b"}"
        return await self._listed(answer + b',"leases":[', leases, _lease_json, _lease_bytes)

    async def _listed(
        self,
        head: bytes,
        items: Sequence[T],
        write: Callable[[T], bytes],
        size_of: Callable[[T], int],
    ) -> bytes:
        """An answer that ends in a list, which may be long."""
        budget = self._node.kv.budget
        with LargeAnswer(self._outgoing, budget, head, write, size_of) as answer:
            await answer.add(items)
            return answer.end(b"]}")

    async def keep_alive(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """`POST /v3/lease/keepalive`: an answer to each request, without a TTL if it is gone."""
        async for body in requests:
            lease = messages.decode(self._keep_alives, body).ID
            del body  # it counts no more when the next one is waited for
            try:
                ttl_s = await self._node.leases.keep_alive(lease)
            except LeaseNotFound:
                ttl_s = 0
            answer = b'{"header":%b' % self._header(self._node.kv.revision)
            if lease:
                answer += b',"ID":"%d"' % lease
            if ttl_s:
                answer += b',"TTL":"%d"' % ttl_s
            yield answer + b"}"


def _key_json(key: bytes) -> bytes:
    return b'"%b"' % b64(key, newline=False)


def _lease_json(lease: int) -> bytes:
    return b'{"ID":"%d"}' % lease


def _lease_bytes(lease: int) -> int:
    return len(b'{"ID":""}') + 8
