"""What may differ from etcd 3.4, each with its name: docs/etcd-differences.md has the reasons.

A difference is a predicate on a request and both answers. It says as exactly as it can what must be
so on both sides: a difference that explains too much would hide a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from bench.differential.doors import Answer
from bench.differential.words import Step

__all__ = ["DIFFERENCES", "NAMES", "OF_WATCHES", "named", "named_watch"]

Holds = Callable[[Step, Answer, Answer], bool]

INVALID_ARGUMENT: Final = 3
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12

# A watch from the compacted revision itself: etcd leaves out the deletions of that revision as soon
# as its compactor has come by, which nobody is told. raftkv gives them.
DELETED_WHEN_COMPACTED: Final = "deleted-when-compacted"
# A watch from the past, and a compaction right behind it: who has not caught up by then is
# cancelled. etcd looks after such watches ten times a second, raftkv at once.
COMPACTED_WHILE_BEHIND: Final = "compacted-while-behind"

Seen = dict[str, Any]


def named(step: Step, etcd: Answer, raftkv: Answer) -> str | None:
    """The name of the difference that these answers are, if it has one."""
    for name, holds in DIFFERENCES.items():
        if holds(step, etcd, raftkv):
            return name
    return None


def named_watch(
    first: int | None, compacted: int, later: int, etcd: Seen, raftkv: Seen
) -> str | None:
    """The name of what two streams differ by, if it has one.

    `first` is the revision that the watch asked for, `compacted` what was compacted when it began,
    `later` when it ended, all counted from the start of the example.
    """
    if first is None:
        return None
    if first == compacted and _without_deletions(etcd, first) == _without_deletions(raftkv, first):
        return DELETED_WHEN_COMPACTED
    cancelled = _is_compacted(etcd) or _is_compacted(raftkv)
    if first < later and later > compacted and cancelled:
        return COMPACTED_WHILE_BEHIND
    return None


def _without_deletions(seen: Seen, revision: int) -> Seen:
    """What a watch saw, without the deletions of one revision."""
    kept = [
        event
        for event in seen["events"]
        if event.get("type") != "DELETE" or event["kv"]["mod_revision"] != revision
    ]
    return {**seen, "events": kept}


def _is_compacted(seen: Seen) -> bool:
    return any(isinstance(each, dict) and "compact_revision" in each for each in seen["said"])


def _field(answer: Answer, name: str) -> Any:
    return answer.document.get(name) if isinstance(answer.document, dict) else None


def _malformed_text(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """Both refuse what they cannot read, in the words of their own parsers."""
    text = str(_field(etcd, "error"))
    parser = ("json:", "invalid character", "unexpected ", "illegal base64", "unknown value",
              "EOF", "strconv", "bad ")  # fmt: skip
    return (
        etcd.status == raftkv.status == 400
        and _field(etcd, "code") == _field(raftkv, "code") == INVALID_ARGUMENT
        and text.startswith(parser)
    )


def _unknown_path(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """etcd's plain text for a path or method that it does not have; a document here."""
    return (
        etcd.kind == "text/plain"
        and raftkv.kind == "application/json"
        and (etcd.status, raftkv.status) in ((404, 404), (404, 501), (405, 405), (405, 501))
        and isinstance(_field(raftkv, "error"), str)
    )


def _health_type(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """The same health, and called JSON."""
    same = etcd.status == raftkv.status and etcd.document == raftkv.document
    return step.path == "/health" and same and raftkv.kind == "application/json"


_DUPLICATE: Final = "etcdserver: duplicate key given in txn request"

_CHECKS: Final = {
    "etcdserver: key is not provided",
    "etcdserver: key not found",
    "etcdserver: value is provided",
    "etcdserver: lease is provided",
    _DUPLICATE,
    "etcdserver: too many operations in txn request",
    "etcdserver: invalid sort option",
}


def _which_error(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """A transaction with several faults: each side names another one of them."""
    return (
        step.path == "/v3/kv/txn"
        and etcd.status == raftkv.status == 400
        and {_field(etcd, "error"), _field(raftkv, "error")} <= _CHECKS
    )


def _malformed_stream(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """A stream that cannot be read to its end: the client's fault to raftkv.

    Both answer what came before. For the rest raftkv gives an error in a last line, etcd nothing.
    """
    if step.path not in ("/v3/lease/keepalive", "/v3/watch"):
        return False
    if (etcd.status, raftkv.status) == (200, 200):
        theirs, ours = _lines(etcd), _lines(raftkv)
        last = ours[-1] if ours else None
        error = last.get("error") if isinstance(last, dict) else None
        code = error.get("grpc_code") if isinstance(error, dict) else None
        return code == INVALID_ARGUMENT and theirs[: len(ours) - 1] == ours[:-1]
    return etcd.status in (200, 500) and (raftkv.status, _field(raftkv, "code")) == (
        400,
        INVALID_ARGUMENT,
    )


def _lines(answer: Answer) -> list[Any]:
    """The documents of a stream's answer."""
    found: list[Any]
    found = answer.document if isinstance(answer.document, list) else [answer.document]
    return found


_TOO_LARGE: Final = "etcdserver: request is too large"


def _size_limits(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """raftkv limits keys, values, transactions and their answers each; etcd the whole request."""
    return (
        step.path in ("/v3/kv/put", "/v3/kv/txn")
        and (etcd.status == 200 or _field(etcd, "code") == RESOURCE_EXHAUSTED)
        and raftkv.status in (400, 413)
        and _field(raftkv, "error") == _TOO_LARGE
    )


def _from_key_overlap(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """A put and a deletion "from this key on" of the same key: etcd does not see that they meet."""
    if step.path != "/v3/kv/txn" or etcd.status != 200 or not isinstance(step.body, dict):
        return False
    return _field(raftkv, "error") == _DUPLICATE and any(
        each.get("request_delete_range", {}).get("range_end") == b"\0"
        for each in _operations(step.body)
    )


def _operations(txn: Any) -> Iterator[Any]:
    """The operations of a transaction and of those inside of it."""
    for each in (*txn.get("success", []), *txn.get("failure", [])):
        if "request_txn" in each:
            yield from _operations(each["request_txn"])
        else:
            yield each


Changes = tuple[set[bytes], list[tuple[bytes, bytes]]]


def _put_then_delete(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """One inner transaction puts a key, and a later one of the same branch deletes it."""
    if step.path != "/v3/kv/txn" or not isinstance(step.body, dict):
        return False
    met: list[bytes] = []
    _changes(step.body, met)
    refused = (_field(raftkv, "error"), _field(etcd, "error") == _DUPLICATE)
    return refused == (_DUPLICATE, False) and bool(met)


def _changes(txn: Any, met: list[bytes]) -> Changes:
    """What a transaction may put and delete; `met` takes the keys that etcd overlooks."""
    puts: set[bytes] = set()
    deletions: list[tuple[bytes, bytes]] = []
    for branch in ("success", "failure"):
        before: set[bytes] = set()
        for each in txn.get(branch, []):
            if "request_txn" in each:
                inner_puts, inner_deletions = _changes(each["request_txn"], met)
                met += [key for key in before if any(_in(key, *one) for one in inner_deletions)]
                before |= inner_puts
                deletions += inner_deletions
            elif "request_put" in each:
                puts.add(each["request_put"].get("key", b""))
            elif "request_delete_range" in each:
                deletion = each["request_delete_range"]
                deletions.append((deletion.get("key", b""), deletion.get("range_end", b"")))
        puts |= before
    return puts, deletions


def _in(key: bytes, start: bytes, end: bytes) -> bool:
    """Whether a range holds a key, as the API writes ranges."""
    return key == start if not end else start <= key and (end == b"\0" or key < end)


NOT_SERVED: Final = (
    "/v3/auth/", "/v3/cluster/member/add", "/v3/cluster/member/promote",
    "/v3/cluster/member/remove", "/v3/cluster/member/update", "/v3/election/", "/v3/lock/",
    "/v3/maintenance/defragment", "/v3/maintenance/hash",
    "/v3/maintenance/snapshot", "/v3/maintenance/transfer-leadership",
)  # fmt: skip


def _not_served(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """What raftkv does not have, or has under its own words, it says loudly."""
    refused = (raftkv.status, _field(raftkv, "code")) == (501, UNIMPLEMENTED)
    return refused and step.path.startswith(NOT_SERVED)


def _database_size(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """The size of etcd's database file; all else of the status agrees."""
    if step.path != "/v3/maintenance/status" or not isinstance(etcd.document, dict):
        return False
    rest = {key: value for key, value in etcd.document.items() if not key.startswith("dbSize")}
    return etcd.status == raftkv.status and rest == raftkv.document


def _enum_number(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """A number for an enum that has no such value: etcd 3.4 looks at names only."""
    return raftkv.status == 400 and " is not one of " in str(_field(raftkv, "error"))


def _spaced_number(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """Blanks around a number in a string."""
    text = str(_field(raftkv, "error"))
    return (
        isinstance(step.body, dict)
        and any(isinstance(each, str) and each != each.strip() for each in step.body.values())
        and raftkv.status == 400
        and text.startswith("the request cannot be understood")
    )


def _more_pages(step: Step, etcd: Answer, raftkv: Answer) -> bool:
    """Pages of later etcds."""
    later = ("/livez", "/readyz", "/v3/maintenance/hashkv")
    return step.path in later and (etcd.status, raftkv.status) == (404, 200)


DIFFERENCES: Final[dict[str, Holds]] = {
    "malformed-text": _malformed_text,
    "malformed-stream": _malformed_stream,
    "which-error": _which_error,
    "unknown-path": _unknown_path,
    "health-type": _health_type,
    "size-limits": _size_limits,
    "from-key-overlap": _from_key_overlap,
    "put-then-delete": _put_then_delete,
    "not-served": _not_served,
    "database-size": _database_size,
    "enum-number": _enum_number,
    "spaced-number": _spaced_number,
    "more-pages": _more_pages,
}

#: Differences of watches, which are a matter of time.
OF_WATCHES: Final = (DELETED_WHEN_COMPACTED, COMPACTED_WHILE_BEHIND)
#: All names, as docs/etcd-differences.md lists them.
NAMES: Final = (*DIFFERENCES, *OF_WATCHES)
