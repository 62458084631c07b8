"""etcd's key-value words on a node's keyspace: from a request's body to the answer's.

Everything that etcd knows and this version does not serve is refused with `Unimplemented`, field by
field, because an option that is silently ignored is a wrong answer. What is allowed and means
nothing here (sorting by key, which ranges are anyway) is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from raftkv.kv import (
    FROM_KEY,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    Operation,
    OperationResult,
    PutOp,
    PutResult,
    RangeOp,
)

from . import messages
from .answers import BadRequest, Unserved
from .encoding import Head, deleted_answer, put_answer, range_answer, txn_answer, wire_id
from .ports import DoorNode

__all__ = ["Gateway"]

_KEY_TARGET: Final = messages.SORT_TARGETS.index("KEY")
_DESCENDING: Final = messages.SORT_ORDERS.index("DESCEND")

_OPERATORS: Final[tuple[Literal["=", ">", "<", "!="], ...]] = ("=", ">", "<", "!=")


class Gateway:
    """Each method takes a request's JSON body and returns the JSON of the answer.

    They raise `BadRequest`, `Unserved`, and whatever the node raises.
    """

    def __init__(self, node: DoorNode) -> None:
        self._node = node
        self._head: Head | None = None
        self._range_requests = msgspec.json.Decoder(messages.RangeRequest, strict=False)
        self._put_requests = msgspec.json.Decoder(messages.PutRequest, strict=False)
        self._delete_requests = msgspec.json.Decoder(messages.DeleteRangeRequest, strict=False)
        self._txn_requests = msgspec.json.Decoder(messages.TxnRequest, strict=False)

    async def range(self, body: bytes) -> bytes:
        """`POST /v3/kv/range`."""
        request = messages.decode(self._range_requests, body)
        operation = _range_op(request)
        consistency: Literal["local", "linearizable"] = (
            "local" if request.serializable else "linearizable"
        )
        found = await self._node.kv.read(operation, consistency=consistency)
        head = self._header(found.revision)
        return range_answer(head, found.kvs, found.more, found.count)

    async def put(self, body: bytes) -> bytes:
        """`POST /v3/kv/put`."""
        request = messages.decode(self._put_requests, body)
        _check_put(request)
        done = await self._node.kv.put(request.key, request.value, prev_kv=request.prev_kv)
        return put_answer(self._header(done.revision), done.prev)

    async def delete_range(self, body: bytes) -> bytes:
        """`POST /v3/kv/deleterange`."""
        request = messages.decode(self._delete_requests, body)
        key, end, prev_kv = request.key, request.range_end, request.prev_kv
        if end == FROM_KEY:
            # `delete` has no word for "from this key on"; a transaction of one operation does it.
            whole = await self._node.kv.txn(success=[DeleteRangeOp(key, end, prev_kv)])
            done = whole.results[0]
            assert isinstance(done, DeleteRangeResult)
        else:
            done = await self._node.kv.delete(key, end or None, prev_kv=prev_kv)
        return deleted_answer(self._header(done.revision), done.deleted, done.prev)

    async def txn(self, body: bytes) -> bytes:
        """`POST /v3/kv/txn`."""
        request = messages.decode(self._txn_requests, body)
        done = await self._node.kv.txn(
            compare=[_compare(condition) for condition in request.compare],
            success=_operations(request.success),
            failure=_operations(request.failure),
        )
        parts = [_operation_answer(result) for result in done.results]
        return txn_answer(self._header(done.revision), done.succeeded, parts)

    def _header(self, revision: int) -> bytes:
        head = self._head
        if head is None:
            status = self._node.status()
            cluster = status.cluster_id
            head = Head(wire_id(cluster), wire_id(cluster, status.name))
            if cluster:  # a node that has not found its cluster yet has no id to remember
                self._head = head
        return head.json(revision, self._node.term)


def _check_put(request: messages.PutRequest) -> None:
    if request.lease:
        raise Unserved("leases are not served by this version of raftkv: leave lease out")
    if request.ignore_value or request.ignore_lease:
        raise Unserved("ignore_value and ignore_lease are not served by this version of raftkv")


def _range_op(request: messages.RangeRequest) -> RangeOp:
    order = messages.enum_value(request.sort_order, messages.SORT_ORDERS, "sort_order")
    target = messages.enum_value(request.sort_target, messages.SORT_TARGETS, "sort_target")
    # etcd sorts whenever the target is not the key, ascending by default.
    if order == _DESCENDING or target != _KEY_TARGET:
        raise Unserved("ranges are given in ascending key order only by this version of raftkv")
    if request.revision > 0:
        raise Unserved("reading at an older revision is not served by this version of raftkv")
    if (
        request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    ):
        raise Unserved("filters by revision are not served by this version of raftkv")
    limit = max(request.limit, 0)  # to etcd a negative limit is none
    return RangeOp(request.key, request.range_end, limit, request.keys_only, request.count_only)


def _compare(given: messages.Compare) -> Compare:
    result = messages.enum_value(given.result, messages.COMPARE_RESULTS, "result")
    target = messages.enum_value(given.target, messages.COMPARE_TARGETS, "target")
    op = _OPERATORS[result]
    match messages.COMPARE_TARGETS[target]:
        case "VERSION":
            return Compare(given.key, "version", op, given.version, given.range_end)
        case "CREATE":
            return Compare(given.key, "create", op, given.create_revision, given.range_end)
        case "MOD":
            return Compare(given.key, "mod", op, given.mod_revision, given.range_end)
        case "VALUE":
            return Compare(given.key, "value", op, given.value, given.range_end)
        case _:
            raise Unserved("comparing leases is not served by this version of raftkv")


def _operations(given: Sequence[messages.RequestOp]) -> list[Operation]:
    return [_operation(each) for each in given]


def _operation(given: messages.RequestOp) -> Operation:
    found: list[Operation] = []
    if given.request_range is not None:
        found.append(_range_op(given.request_range))
    if (put := given.request_put) is not None:
        _check_put(put)
        found.append(PutOp(put.key, put.value, put.prev_kv))
    if (deletion := given.request_delete_range) is not None:
        found.append(DeleteRangeOp(deletion.key, deletion.range_end, deletion.prev_kv))
    if given.request_txn is not None:
        raise Unserved("a transaction inside a transaction is not served by this version of raftkv")
    if len(found) > 1:
        raise BadRequest("an operation of a transaction must have one request, not several")
    if not found:
        raise BadRequest("etcdserver: key not found")  # etcd's words for an empty operation
    return found[0]


def _operation_answer(result: OperationResult) -> bytes:
    """One `ResponseOp`; the headers inside a transaction hold nothing but the revision."""
    head = b'{"revision":"%d"}' % result.revision
    if isinstance(result, PutResult):
        return b'{"response_put":%b}' % put_answer(head, result.prev)
    if isinstance(result, DeleteRangeResult):
        answer = deleted_answer(head, result.deleted, result.prev)
        return b'{"response_delete_range":%b}' % answer
    answer = range_answer(head, result.kvs, result.more, result.count)
    return b'{"response_range":%b}' % answer
