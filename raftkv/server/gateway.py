"""etcd's key-value words on a node's keyspace: from a request's body to the answer's.

These words are the measured path of the door. Each is one coroutine that awaits nothing but the
node's own futures and a turn of the loop, so that `hot.py` can run it without a task.

A range that is large is read and written in pages, all as of one revision, so that no turn of the
loop is as long as the answer. However many are under way, one page is read or written in each turn
(work_budget.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from raftkv.kv import (
    Compacted,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    KeyValue,
    Operation,
    OperationResult,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    TxnOp,
)

from . import large_answer, messages
from .answers import BadRequest
from .encoding import (
    Headers,
    deleted_answer,
    kv_json,
    put_answer,
    range_answer,
    txn_answer,
)
from .large_answer import ANSWER_BYTES_MAX, Given, LargeAnswer
from .outgoing import Outgoing
from .ports import DoorNode, Walk, Writer

__all__ = ["BARE_ROW_BYTES", "PAGE_KEYS", "ROW_BYTES", "Gateway"]

# Of a range, read in one turn of the loop.
PAGE_KEYS: Final = 1000
# Of a row that is held to be sorted, beside the state's own: its places in the lists; and if values
# are left out, a row of its own.
ROW_BYTES: Final = 24
BARE_ROW_BYTES: Final = 128
_RANGE_HEAD: Final = b'{"header":%b,"kvs":['

_DESCENDING: Final = messages.SORT_ORDERS.index("DESCEND")
_SORTS: Final[tuple[Literal["key", "version", "create", "mod", "value"], ...]] = (
    "key", "version", "create", "mod", "value",
)  # fmt: skip
_OPERATORS: Final[tuple[Literal["=", ">", "<", "!="], ...]] = ("=", ">", "<", "!=")


class Gateway:
    """Each method takes a request's JSON body and returns the JSON of the answer.

    The writing words also take what to write to. All raise `BadRequest`, and whatever the node
    raises. They let go of the body once it is decoded: it counts until the answer (incoming.py),
    for what was made of it, which is smaller.
    """

    def __init__(
        self,
        node: DoorNode,
        headers: Headers | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._node = node
        self._outgoing = Outgoing(2 * ANSWER_BYTES_MAX) if outgoing is None else outgoing
        self._budget = node.kv.budget
        self._header = (headers or Headers(node)).json
        self._range_requests = messages.decoder_of(messages.RangeRequest)
        self._put_requests = messages.decoder_of(messages.PutRequest)
        self._delete_requests = messages.decoder_of(messages.DeleteRangeRequest)
        self._txn_requests = messages.decoder_of(messages.TxnRequest)
        self._compactions = messages.decoder_of(messages.CompactionRequest)

    async def range(self, body: bytes) -> bytes:
        """`POST /v3/kv/range`."""
        request = messages.decode(self._range_requests, body)
        del body
        operation = _range_op(request)
        consistency: Literal["local", "linearizable"] = (
            "local" if request.serializable else "linearizable"
        )
        if operation.range_end and _may_be_paged(operation):
            return await self._paged(operation, consistency)
        if operation.range_end and not operation.count_only and _looks_at_all(operation):
            return await self._sorted(operation, consistency)
        found = await self._node.kv.read(operation, consistency=consistency)
        if _is_large(found.kvs):
            return await self._in_parts(found)
        return range_answer(self._header(found.revision), found.kvs, found.more, found.count)

    async def put(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/kv/put`."""
        request = messages.decode(self._put_requests, body)
        del body
        kv = (writer or self._node).kv
        if request.lease or request.ignore_value or request.ignore_lease:
            done = await kv.put(
                request.key,
                request.value,
                lease=request.lease,
                prev_kv=request.prev_kv,
                ignore_value=request.ignore_value,
                ignore_lease=request.ignore_lease,
            )
        else:
            done = await kv.put(request.key, request.value, prev_kv=request.prev_kv)
        return put_answer(self._header(done.revision), done.prev)

    async def delete_range(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/kv/deleterange`."""
        request = messages.decode(self._delete_requests, body)
        del body
        operation = DeleteRangeOp(request.key, request.range_end, request.prev_kv)
        done = await (writer or self._node).kv.delete_range(operation)
        with Given(self._outgoing, self._budget) as given:
            return await _deleted_answer(self._header(done.revision), done, given)

    async def txn(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/kv/txn`."""
        request = messages.decode(self._txn_requests, body)
        del body
        done = await (writer or self._node).kv.txn(
            compare=[_compare(condition) for condition in request.compare],
            success=_operations(request.success),
            failure=_operations(request.failure),
        )
        with Given(self._outgoing, self._budget) as given:
            parts = [await _operation_answer(result, given) for result in done.results]
            return txn_answer(self._header(done.revision), done.succeeded, parts)

    async def compaction(self, body: bytes, writer: Writer | None = None) -> bytes:
        """`POST /v3/kv/compaction`. `physical` is accepted: nothing is left to be done later."""
        request = messages.decode(self._compactions, body)
        del body
        kv = (writer or self._node).kv
        if request.revision < 0:  # before any that may be compacted: always refused by etcd, too
            lowest = self._node.kv.lowest_revision
            raise Compacted(
                f"revision {request.revision} has been compacted, the lowest that is kept is "
                f"{lowest}",
                lowest,
            )
        done = await kv.compact(request.revision)
        return b'{"header":%b}' % self._header(done.revision)

    async def _paged(
        self, operation: RangeOp, consistency: Literal["local", "linearizable"]
    ) -> bytes:
        kv = self._node.kv
        await self._node.barrier(consistency)
        # Only now the copy shows how large the range is.
        if kv.rows(operation) <= PAGE_KEYS:
            return await self._all_pages(kv.walk(operation), operation.revision)
        async with kv.place(operation):
            return await self._all_pages(kv.walk(operation), operation.revision)

    async def _all_pages(self, walk: Walk, revision: int) -> bytes:
        """Needs no barrier: the caller has waited for one."""
        page = await walk.page(PAGE_KEYS, consistency="local")
        # In the header stands the newest revision, whichever one is read.
        revision = self._node.kv.revision if revision > 0 else page.revision
        count = page.count
        if walk.done() and not _is_large(page.kvs):
            return range_answer(self._header(revision), page.kvs, page.more, count)
        with self._rows_after(self._header(revision)) as rows:
            await rows.add(page.kvs)
            while not walk.done():
                page = await walk.page(PAGE_KEYS)
                await rows.add(page.kvs)
            return rows.end(_tail(page.more, count))

    async def _sorted(
        self, operation: RangeOp, consistency: Literal["local", "linearizable"]
    ) -> bytes:
        """All rows are held from their reading on: they count as under way until they are written.

        Many of them wait for the first turn before.
        """
        await self._node.barrier(consistency)
        if self._node.kv.rows(operation) > PAGE_KEYS:
            await self._budget.room()
        else:
            consistency = "local"  # the state is still that of the barrier
        count = self._node.kv.rows_max(operation)
        held = count * (BARE_ROW_BYTES if operation.keys_only else ROW_BYTES)
        self._outgoing.require_room(held)
        self._outgoing.moved(held)
        try:
            found = await self._node.kv.read(operation, consistency=consistency)
            if not _is_large(found.kvs):
                head = self._header(found.revision)
                return range_answer(head, found.kvs, found.more, found.count)
            return await self._in_parts(found, held)
        finally:
            self._outgoing.moved(-held)

    async def _in_parts(self, found: RangeResult, held: int = 0) -> bytes:
        """What was read at once is written in parts. Its rows count `held` bytes already."""
        with self._rows_after(self._header(found.revision), held) as rows:
            await rows.add(found.kvs)
            return rows.end(_tail(found.more, found.count))

    def _rows_after(self, header: bytes, held: int = 0) -> LargeAnswer[KeyValue]:
        head = _RANGE_HEAD % header
        return LargeAnswer(self._outgoing, self._budget, head, kv_json, _row_bytes, held)


def _is_large(kvs: Sequence[KeyValue]) -> bool:
    """Whether writing them takes more than one turn of the loop should."""
    if len(kvs) <= 1:
        return False
    if len(kvs) > large_answer.SLICE_ITEMS:
        return True
    return sum([len(row.value) for row in kvs]) > large_answer.SLICE_BYTES


def _row_bytes(row: KeyValue) -> int:
    return len(row.key) + len(row.value)


def _tail(more: bool, count: int) -> bytes:
    """What follows the rows of a range."""
    return b']%b,"count":"%d"}' % (b',"more":true' if more else b"", count)


def _may_be_paged(operation: RangeOp) -> bool:
    """A read in key order that leaves nothing out."""
    return (
        not _looks_at_all(operation)
        and not operation.count_only
        and not 0 < operation.limit <= PAGE_KEYS
    )


def _looks_at_all(operation: RangeOp) -> bool:
    """A read that holds its whole range, to sort it or to leave rows out."""
    return bool(
        operation.sort_by != "key"
        or operation.descending
        or operation.min_mod_revision
        or operation.max_mod_revision
        or operation.min_create_revision
        or operation.max_create_revision
    )


def _range_op(request: messages.RangeRequest) -> RangeOp:
    order = messages.enum_value(request.sort_order, messages.SORT_ORDERS, "sort_order")
    target = messages.enum_value(request.sort_target, messages.SORT_TARGETS, "sort_target")
    limit = max(request.limit, 0)  # to etcd a negative limit is none
    if not (
        order
        or target
        or request.revision
        or request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    ):
        return RangeOp(request.key, request.range_end, limit, request.keys_only, request.count_only)
    return RangeOp(
        request.key,
        request.range_end,
        limit,
        request.keys_only,
        request.count_only,
        request.revision,
        _SORTS[target],
        order == _DESCENDING,
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    )


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
            return Compare(given.key, "lease", op, given.lease, given.range_end)


def _operations(given: Sequence[messages.RequestOp]) -> list[Operation]:
    return [_operation(each) for each in given]


def _operation(given: messages.RequestOp) -> Operation:
    found: list[Operation] = []
    if given.request_range is not None:
        found.append(_range_op(given.request_range))
    if (put := given.request_put) is not None:
        found.append(
            PutOp(put.key, put.value, put.prev_kv, put.lease, put.ignore_value, put.ignore_lease)
        )
    if (deletion := given.request_delete_range) is not None:
        found.append(DeleteRangeOp(deletion.key, deletion.range_end, deletion.prev_kv))
    if (inner := given.request_txn) is not None:
        compare = tuple([_compare(condition) for condition in inner.compare])
        success, failure = _operations(inner.success), _operations(inner.failure)
        found.append(TxnOp(compare, tuple(success), tuple(failure)))
    if len(found) > 1:
        raise BadRequest("an operation of a transaction must have one request, not several")
    if not found:
        raise BadRequest("etcdserver: key not found")  # etcd's words for an empty operation
    return found[0]


async def _operation_answer(result: OperationResult, given: Given) -> bytes:
    """One `ResponseOp`; the headers inside a transaction hold nothing but the revision."""
    if isinstance(result, PutResult):
        answer = put_answer(_inner_head(result.revision), result.prev)
        return b'{"response_put":%b}' % answer
    if isinstance(result, DeleteRangeResult):
        answer = await _deleted_answer(_inner_head(result.revision), result, given)
        return b'{"response_delete_range":%b}' % answer
    if isinstance(result, RangeResult):
        head = _inner_head(result.revision)
        if _is_large(result.kvs):
            tail = _tail(result.more, result.count)
            answer = await _given_rows(_RANGE_HEAD % head, result.kvs, tail, given)
        else:
            await given.room(len(result.kvs))
            answer = range_answer(head, result.kvs, result.more, result.count)
            given.count(len(answer))
        return b'{"response_range":%b}' % answer
    parts = [await _operation_answer(inner, given) for inner in result.results]
    # etcd leaves the header of an inner transaction empty.
    return b'{"response_txn":%b}' % txn_answer(b"{}", result.succeeded, parts)


async def _deleted_answer(head: bytes, done: DeleteRangeResult, given: Given) -> bytes:
    if _is_large(done.prev):
        begin = b'{"header":%b,"deleted":"%d","prev_kvs":[' % (head, done.deleted)
        return await _given_rows(begin, done.prev, b"]}", given)
    await given.room(len(done.prev))
    answer = deleted_answer(head, done.deleted, done.prev)
    if done.prev:
        given.count(len(answer))
    return answer


async def _given_rows(head: bytes, rows: Sequence[KeyValue], tail: bytes, given: Given) -> bytes:
    """Of a write. `result_bytes_max` bounds it, so `given` counts it alone."""
    room = Outgoing(2 * ANSWER_BYTES_MAX)
    answer = LargeAnswer(room, given.budget, head, kv_json, _row_bytes)
    await answer.add(rows, given)
    return answer.end(tail)


def _inner_head(revision: int) -> bytes:
    return b'{"revision":"%d"}' % revision
