"""A client of one door, asyncio, in the shape that the history recorder wants (`KeyValueCalls`).

It speaks etcd's JSON words over one kept connection at a time and sorts every answer into what may
be said of it: done, `Refused` or `NotApplied` (nothing happened), or `Timeout` (nobody knows). Only
the `reason` of an answer decides; an answer without one is unknown. A request is never repeated.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from raftkv.errors import (
    NoLeader,
    NotApplied,
    Overloaded,
    RaftkvError,
    ReadTimeout,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.kv.commands import (
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    KeyValue,
    Operation,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    TxnResult,
)

__all__ = ["DoorClient", "Unreachable"]

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 64 << 20

_NOT_APPLIED: dict[str, type[RaftkvError]] = {
    error.code: error
    for error in (NotApplied, Overloaded, NoLeader, TooLarge, Stopped, ReadTimeout)
}


class Unreachable(NotApplied):
    """No connection could be made: nothing was sent."""

    code = "unreachable"


class DoorClient:
    """One client, one request at a time."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def put(self, key: bytes, value: bytes, *, timeout_s: float | None = None) -> PutResult:
        answer = await self._call("put", {"key": _b64(key), "value": _b64(value)}, timeout_s)
        return PutResult(_revision(answer))

    async def read(
        self, operation: RangeOp, *, timeout_s: float | None = None, local: bool = False
    ) -> RangeResult:
        """A linearizable range; `local` reads the node's own copy as it is."""
        body = {
            "key": _b64(operation.key),
            "range_end": _b64(operation.range_end),
            "limit": operation.limit,
            "serializable": local,
        }
        answer = await self._call("range", body, timeout_s)
        kvs = tuple(_key_value(each) for each in answer.get("kvs", ()))
        count = int(answer.get("count", 0))
        return RangeResult(_revision(answer), kvs, count, bool(answer.get("more")))

    async def delete(self, key: bytes, *, timeout_s: float | None = None) -> DeleteRangeResult:
        answer = await self._call("deleterange", {"key": _b64(key)}, timeout_s)
        return DeleteRangeResult(_revision(answer), int(answer.get("deleted", 0)))

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation],
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """Conditions on values and versions; puts and deletions. The results are left out."""
        body = {
            "compare": [_condition(each) for each in compare],
            "success": [_change(each) for each in success],
            "failure": [_change(each) for each in failure],
        }
        answer = await self._call("txn", body, timeout_s)
        return TxnResult(_revision(answer), bool(answer.get("succeeded")), ())

    async def page(self, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        """GET a JSON page."""
        async with self._turn:
            status, body = await self._request("GET", path, b"", timeout_s)
        if status != 200:
            raise Timeout(f"{path}: status {status}")
        return msgspec.json.decode(body)

    async def _call(self, word: str, body: dict[str, Any], timeout_s: float | None) -> Any:
        encoded = msgspec.json.encode(body)
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        async with self._turn:
            status, raw = await self._request("POST", f"/v3/kv/{word}", encoded, limit_s)
        try:
            answer = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            raise Timeout(f"status {status} and no JSON") from None
        if status == 200:
            return answer
        reason = str(answer.get("reason"))
        text = f"{status} {reason}: {answer.get('error')}"
        raise _NOT_APPLIED.get(reason, Timeout)(text)

    async def _request(
        self, method: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(timeout_s):
                if self._streams is not None and self._streams[0].at_eof():
                    self.close()  # the node has gone meanwhile: nothing was asked of it yet
                if self._streams is None:
                    await self._connect()
                return await self._exchange(method, path, body)
        except Unreachable:
            raise
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            # Whatever still comes on this connection answers a request that was given up.
            self.close()
            raise Timeout(f"no answer: {error!r}") from None
        except asyncio.CancelledError:
            self.close()
            raise

    async def _connect(self) -> None:
        try:
            self._streams = await asyncio.open_connection(*self._address, limit=ANSWER_BYTES_MAX)
        except OSError as error:
            raise Unreachable(f"not connected: {error}") from None

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: [::1]\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode("ascii") + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        answer = await reader.readexactly(int(fields["content-length"]))
        if fields.get("connection") == "close":
            self.close()
        return int(lines[0].split(" ")[1]), answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _revision(answer: Any) -> int:
    return int(answer["header"].get("revision", 0))


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(
        base64.b64decode(kv["key"]),
        base64.b64decode(kv.get("value", "")),
        int(kv["create_revision"]),
        int(kv["mod_revision"]),
        int(kv["version"]),
    )


def _condition(compare: Compare) -> dict[str, Any]:
    assert compare.op == "="
    body: dict[str, Any] = {"key": _b64(compare.key), "result": "EQUAL"}
    if isinstance(compare.operand, bytes):
        return {**body, "target": "VALUE", "value": _b64(compare.operand)}
    assert compare.target == "version"
    return {**body, "target": "VERSION", "version": str(compare.operand)}


def _change(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, PutOp):
        return {"request_put": {"key": _b64(operation.key), "value": _b64(operation.value)}}
    assert isinstance(operation, DeleteRangeOp)
    return {"request_delete_range": {"key": _b64(operation.key)}}
