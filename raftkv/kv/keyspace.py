"""The keyspace as a plugin: etcd's model on six tables.

    keys      key -> KeyValue                 what stands now
    meta      name -> int                     "revision", "compacted"; "lessor", "claimed_ms"
    history   revision -> Revision            what changed, back to the compacted revision
    leases    id -> LeaseRow
    attached  (lease, key) -> Attached        the keys of a lease, in order
    due       (due_ms, lease) -> None         leases in the order of the due time of their grant

Rules of this file
1. An empty keyspace has revision 1, as in etcd, so the first put gets 2.
2. The revision is a row like any other: it is undone, captured and restored with the rest.
3. Whatever a command may be large in (keys, values, operations, rows, result) has a replicated
   limit, checked here; the API checks the same before it proposes.
4. As long as the cluster's active format is 1, that of 0.1.0, a word that 0.1.0 did not have is
   answered as 0.1.0 answers it: it cannot be decoded.

`Put` is the hot path and is written out in plain.py; `Changing` does everything else. The rest by
idea: changing.py, transactions.py, history.py, compaction.py, leasing.py.
docs/internals/keyspace.md puts it together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from raftkv.errors import Refused, UnknownCommand
from raftkv.plugin import Context, Host, Plugin, Quota, Setting, Steps, TableSpec, View, at_once

from .api import KVApi
from .changing import (
    FORMAT_LEASES,
    KIB,
    LIMIT_MIN,
    Changing,
    check_ignored,
    check_sizes,
    require_key,
)
from .checking import violations
from .commands import (
    Attached,
    ClaimLessor,
    Compact,
    Compacted,
    DeleteRange,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    Expire,
    ExpireResult,
    FutureRevision,
    Grant,
    KeyNotFound,
    KeyValue,
    LeaseExists,
    LeaseGiven,
    LeaseNotFound,
    LeaseRow,
    LeaseTtlTooLarge,
    LimitExceeded,
    NotLessor,
    Put,
    PutResult,
    PutWith,
    Revision,
    Revoke,
    RevokeResult,
    Txn,
    TxnTooCostly,
    ValueGiven,
)
from .compaction import compact
from .cost import COSTLY, EXPIRE_LEASES_MAX, estimated
from .formats import in_format_1
from .leasing import claim, due_ms, grant, lessor_epoch, require_lease
from .plain import put
from .quota import QUOTA
from .service import KVService
from .transactions import apply_txn

__all__ = ["EXPIRE_LEASES_MAX", "KV"]

MIB: Final = 1024 * KIB
# With so many keys deleted it ends none any more: 10,000 deletions take about 50 ms.
EXPIRE_KEYS: Final = 10_000


def _between(lowest: int, highest: int) -> Callable[[int], str | None]:
    def check(value: int) -> str | None:
        if lowest <= value <= highest:
            return None
        return f"it must be between {lowest} and {highest}"

    return check


class KV(Plugin[KVApi]):
    """The keyspace. `node.kv` is its API."""

    name: ClassVar[str] = "kv"
    version: ClassVar[int] = 4
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (
        Put,
        PutWith,
        DeleteRange,
        Txn,
        Compact,
        Grant,
        Revoke,
        ClaimLessor,
        Expire,
    )
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec("keys", bytes, KeyValue),
        TableSpec("meta", str, int),
        TableSpec("history", int, Revision, run=True),
        TableSpec("leases", int, LeaseRow),
        TableSpec("attached", tuple[int, bytes], Attached),
        TableSpec("due", tuple[int, int], None),
    )
    quota: ClassVar[Quota | None] = QUOTA
    refusals: ClassVar[tuple[type[Refused], ...]] = (
        EmptyKey,
        LimitExceeded,
        DuplicateKey,
        KeyNotFound,
        ValueGiven,
        LeaseGiven,
        Compacted,
        FutureRevision,
        LeaseNotFound,
        LeaseExists,
        LeaseTtlTooLarge,
        NotLessor,
        TxnTooCostly,
    )
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("key_bytes_max", int, 64 * KIB, _between(LIMIT_MIN, MIB), "Bytes of one key."),
        Setting("value_bytes_max", int, MIB, _between(LIMIT_MIN, MIB), "Bytes of one value."),
        # etcd's --max-txn-ops has the same default.
        Setting(
            "txn_ops_max", int, 128, _between(1, 10_000), "Operations or comparisons of a txn."
        ),
        # They are looked at in about a tenth of a second, in which the node answers nothing.
        Setting(
            "rows_max",
            int,
            100_000,
            _between(1, 10**6),
            "Rows that comparisons and ranges of one transaction may look at, 4,096 bytes each.",
        ),
        # Results are kept until the caller has them; they share the limit of commands.
        Setting(
            "result_bytes_max",
            int,
            MIB + 512 * KIB,
            _between(64 * KIB, 4 * MIB),
            "Bytes of keys and values in the result of one command.",
        ),
        # How long a watcher may be away, or how old a read may be, in revisions and in memory.
        Setting(
            "history_revisions", int, 100_000, _between(1, 10**7), "Revisions kept in the history."
        ),
        Setting(
            "history_bytes_max",
            int,
            256 * MIB,
            _between(64 * KIB, 64 * KIB * MIB),
            "Bytes kept in the history: keys, values, and 256 for each event.",
        ),
        # etcd derives its shortest one from the election time-out: 2 s with its defaults.
        Setting("lease_ttl_min_s", int, 2, _between(1, 3600), "Shortest lease, in seconds."),
        # etcd's bound.
        Setting(
            "lease_ttl_max_s",
            int,
            9_000_000_000,
            _between(3600, 9_000_000_000),
            "Longest lease, in seconds.",
        ),
        # A lessor that hears from each of them every 20 s gets 5,000 keep-alives a second.
        Setting("leases_max", int, 100_000, _between(1, 10**7), "Leases in the cluster."),
        # They are deleted by one command.
        Setting("lease_keys_max", int, 10_000, _between(1, 100_000), "Keys attached to one lease."),
    )

    costly: ClassVar[tuple[type[msgspec.Struct], ...]] = COSTLY

    def open(self, host: Host) -> KVApi:
        return KVApi(host)

    def service(self, host: Host, api: KVApi) -> KVService:
        return KVService(host, api)

    def apply(self, command: Any, ctx: Context) -> Any:
        # The most frequent command first, and without a further call.
        if type(command) is Put:
            key, value = command.key, command.value
            if not key:
                raise EmptyKey("the key is empty")
            if len(key) + len(value) > LIMIT_MIN:
                check_sizes(key, value, ctx)
            revision, old = put(key, value, ctx)
            return PutResult(revision, old if command.prev_kv else None)
        if ctx.version < FORMAT_LEASES and not in_format_1(command):
            # In the machine's own words, so that every member keeps the same answer.
            raise UnknownCommand(f"the plugin {self.name!r} cannot decode the command")
        return _OTHERS[type(command)](command, ctx)

    def cost(self, command: Any, view: View) -> int:
        return estimated(command, view)

    def invariants(self, view: View) -> Sequence[str]:
        return violations(view)


def _put_with(command: PutWith, ctx: Context) -> PutResult:
    require_key(command.key)
    check_ignored(command)
    if command.lease:
        require_lease(ctx, command.lease)  # before the key is looked for, as etcd does
    change = Changing(ctx)
    result = change.put(command)
    change.finish()
    return result


def _delete(command: DeleteRange, ctx: Context) -> Any:
    change = Changing(ctx)
    steps = _delete_in_slices(command, change)
    return steps if change.deletes_many((command,)) else at_once(steps)


def _delete_in_slices(command: DeleteRange, change: Changing) -> Steps[DeleteRangeResult]:
    result = yield from change.delete(command)
    yield from change.finishing()
    return result


def _revoke(command: Revoke, ctx: Context) -> RevokeResult:
    change = Changing(ctx)
    deleted = change.revoke(command.id)
    change.finish()
    return RevokeResult(change.revision, deleted)


def _claim(command: ClaimLessor, ctx: Context) -> Any:
    return claim(ctx)


def _expire(command: Expire, ctx: Context) -> ExpireResult:
    epoch = lessor_epoch(ctx)
    if command.epoch != epoch:
        raise NotLessor(f"the lessor's epoch is {epoch}, not {command.epoch}: claim the leases")
    ended: list[int] = []
    deleted = 0
    for id in command.ids:
        if len(ended) >= EXPIRE_LEASES_MAX or deleted >= EXPIRE_KEYS:
            break
        due = due_ms(ctx, id)
        if due is not None and due <= ctx.now:
            change = Changing(ctx)
            deleted += change.revoke(id)
            change.finish()
            ended.append(id)
    return ExpireResult(tuple(ended))


_OTHERS: Final[dict[type, Callable[[Any, Context], Any]]] = {
    PutWith: _put_with,
    DeleteRange: _delete,
    Txn: apply_txn,
    Compact: compact,
    Grant: grant,
    Revoke: _revoke,
    ClaimLessor: _claim,
    Expire: _expire,
}
