"""A client of the simulated cluster whose transactions look at much, about as much as they may.

The limit is made small (`rows_max`, a setting of the cluster), so that a keyspace of a simulated
run reaches it. Then transactions come that look at one row more or less, and deletions of more
rows than that. What must hold: a transaction that would look at more is refused, and what it would
have written is not there; one that is within the limit is not refused; a deletion never is. That
all nodes decide alike, the comparison of their states sees (simulated.py).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from raftkv.errors import NodeFault, NoSpace, NotApplied, OutcomeUnknown
from raftkv.kv.budget import FORMAT_COST
from raftkv.kv.commands import (
    FROM_KEY,
    Compare,
    DeleteRangeOp,
    Operation,
    PutOp,
    RangeOp,
    TxnTooCostly,
    prefix_end,
)
from raftkv.testing.host import HostCrashed

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["ROWS_MAX", "Costly"]

#: The limit while the client is at work. Other clients look at one or two rows at a time.
ROWS_MAX: Final = 20
#: Keys that one deletion ends, put by one transaction before.
DELETED_KEYS: Final = 30
TIMEOUT_S: Final = 3.0
# Between two transactions, on average.
PAUSE_S: Final = 0.1
# Of the transactions, those that delete; and those of the rest that compare.
DELETE_SHARE: Final = 0.2
COMPARE_SHARE: Final = 0.4
# The single writes of other clients (workload.py): they are never deleted.
LOWEST, HIGHEST = b"0", b":"


class Costly:
    """`storm` runs until it is cancelled; the keys that it puts are judged with the others."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._sent = 0

    async def storm(self) -> None:
        limited = False
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            found = self._cluster.some_node(self._rng)
            if found is None:
                continue
            if not limited:
                counts = found[1].machine.active_versions.get("kv", 0) >= FORMAT_COST
                limited = counts and await self._set_limit(*found)
            else:
                self._sent += 1
                one = self._delete if self._rng.random() < DELETE_SHARE else self._look
                self._cluster.world.spawn(one(*found), "costly transaction")

    async def _set_limit(self, name: str, node: Node) -> bool:
        setting = node.kv._host.set_setting("rows_max", ROWS_MAX, timeout_s=TIMEOUT_S)
        try:
            await self._cluster.world.call(name, setting)
        except (NotApplied, OutcomeUnknown, HostCrashed, NodeFault):
            return False
        return True

    async def _look(self, name: str, node: Node) -> None:
        """A write that looks at the limit, one row more, or all single writes."""
        key = b"costly/%d" % self._sent
        compare: list[Compare] = []
        operations: list[Operation] = [PutOp(key, b"")]
        if self._rng.random() < COMPARE_SHARE:
            compare.append(Compare(LOWEST, "version", ">", 0, HIGHEST))
            rows = node.machine.view("kv").table("keys").count(LOWEST, HIGHEST)
        else:
            rows = self._rng.choice((ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1))
            operations.append(RangeOp(b"\0", FROM_KEY, limit=rows, keys_only=True))
        verdict = await self._judged(name, node, key, compare, operations)
        if verdict is None:
            return
        if isinstance(verdict, TxnTooCostly):
            if not compare and rows <= ROWS_MAX:
                self._violated(f"a transaction that looks at {rows} rows was refused: {verdict}")
            return
        # More rows may have come meanwhile, but none goes.
        looked = rows if compare else len(verdict.results[1].kvs)
        if looked > ROWS_MAX:
            self._violated(f"a transaction has looked at {looked} rows")

    async def _delete(self, name: str, node: Node) -> None:
        key = b"costly/%d" % self._sent
        prefix = b"gone/%d/" % self._sent
        puts: list[Operation] = [
            PutOp(prefix + b"%02d" % each, b"") for each in range(DELETED_KEYS)
        ]
        put = await self._judged(name, node, b"", [], puts)
        if put is None:
            return
        deletion: list[Operation] = [DeleteRangeOp(prefix, prefix_end(prefix)), PutOp(key, b"")]
        verdict = await self._judged(name, node, key, [], deletion)
        if isinstance(put, TxnTooCostly) or isinstance(verdict, TxnTooCostly):
            self._violated("puts or a deletion counted against the limit")
        if verdict is None:
            return
        deleted = verdict.results[0].deleted
        if deleted != DELETED_KEYS:
            self._violated(f"a deletion of {DELETED_KEYS} keys has deleted {deleted}")
        self._cluster.marks.hit("deletion beyond the limit of rows")

    async def _judged(
        self, name: str, node: Node, key: bytes, compare: list[Compare], success: list[Operation]
    ) -> Any:
        """The result, or TxnTooCostly; None: not applied, or unknown. `key` is one that is put."""
        load, txn = self._cluster.load, node.kv.txn(compare, success, timeout_s=TIMEOUT_S)
        try:
            result = await self._cluster.world.call(name, txn)
        except TxnTooCostly as refused:
            self._cluster.marks.hit("transaction too costly")
            load.refused.add(key)
            return refused
        except (NotApplied, NoSpace):
            load.refused.add(key)
            return None
        except (OutcomeUnknown, HostCrashed, NodeFault):
            return None  # it may take effect once, now or later
        if key:
            load.acknowledged.add(key)
        return result

    def _violated(self, what: str) -> None:
        self._cluster.violated("only the setting limits what a transaction looks at", what)
