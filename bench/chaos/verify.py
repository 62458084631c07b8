"""What must hold at the end of a chaos run: everything has healed, the clients have stopped.

1. Every node takes writes, and nobody has ended without being asked to.
2. At an equal index all nodes have an equal digest: of the whole state, sessions included.
3. Read through every node, linearizably: each acknowledged ledger write is there, no denied one is,
   and nothing that nobody wrote.
4. Each register's history, with one more read through every node at the end, is linearizable: by
   the search, which trusts no revision, and by the replay in the order of revisions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from bench.chaos.cluster import ChaosCluster, ChaosError
from bench.chaos.load import RUN, Load
from bench.history import FOLDER, operation, write_history
from raftkv.errors import RaftkvError
from raftkv.testing.histories import Operation, by_key
from raftkv.testing.linearizability import Budget, check
from raftkv.testing.models import KeyValueStore
from raftkv.testing.revision_order import check_by_revision

__all__ = ["Histories", "check_histories", "digests", "read_everything"]

SETTLE_S = 30.0
READ_ATTEMPTS = 20
SECONDS_PER_KEY = 60.0


class Histories(msgspec.Struct, frozen=True):
    """What the checkers said: of so many keys, the findings and the keys without a verdict."""

    keys: int
    operations: int
    findings: tuple[str, ...]
    undecided: tuple[str, ...]


async def digests(cluster: ChaosCluster, timeout_s: float = SETTLE_S) -> list[str]:
    """Compare all nodes at one index; the findings."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            found = await asyncio.gather(
                *(cluster.page(name, "/v1/chaos/digest") for name in cluster.names)
            )
        except RaftkvError as error:
            found, why = [], str(error)
        else:
            why = f"indexes {[one['index'] for one in found]}"
            if len({one["index"] for one in found}) == 1:
                break
        if asyncio.get_running_loop().time() > deadline:
            return [f"the nodes did not come to an equal index within {timeout_s:g} s ({why})"]
        await asyncio.sleep(0.1)
    digest_of = {name: one["digest"] for name, one in zip(cluster.names, found, strict=True)}
    if len(set(digest_of.values())) == 1:
        return []
    return [f"digests differ at index {found[0]['index']}: {digest_of}"]


async def read_everything(
    cluster: ChaosCluster, load: Load, out: Path | None, progress: Callable[[], None]
) -> list[str]:
    """Read every slice through every node: the ledger's findings; the reads join the histories."""
    findings: list[str] = []
    finals: list[Operation] = []
    for one in load.slices:
        for node in cluster.names:
            for attempt in range(READ_ATTEMPTS):
                try:
                    reads, ledger = await load.read_back(node, one)
                except RaftkvError as error:
                    if attempt == READ_ATTEMPTS - 1:
                        raise ChaosError(f"{node} cannot be read at the end: {error}") from None
                    await asyncio.sleep(0.1)
                else:
                    finals += reads
                    findings += one.ledger_findings(node, ledger)
                    break
        progress()
    if out is not None and finals:
        write_history(out, RUN, "final", finals)
    return findings


def check_histories(out: Path, progress: Callable[[int, int], None], jobs: int = 0) -> Histories:
    """Check DIR/history, one slice after the other in each of `jobs` processes (0: all cores)."""
    folder = out / FOLDER
    paths = sorted(folder.glob(f"{RUN}-slice-*.parquet"))
    final = by_key(_read(folder / f"{RUN}-final.parquet"))
    keys, operations = 0, 0
    findings: list[str] = []
    undecided: list[str] = []
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        tasks = []
        for path in paths:
            prefix = path.stem.rpartition("-")[2].encode()
            mine = [one for key in final for one in final[key] if _slice_of(key) == prefix]
            tasks.append(pool.submit(_check_slice, path, mine))
        for number, task in enumerate(tasks, 1):
            found = task.result()
            keys += found.keys
            operations += found.operations
            findings += found.findings
            undecided += found.undecided
            progress(number, len(tasks))
    return Histories(keys, operations, tuple(findings), tuple(undecided))


def _slice_of(key: object) -> bytes:
    assert isinstance(key, bytes)
    return key[1:].partition(b"/")[0]


def _read(path: Path) -> list[Operation]:
    import pyarrow.parquet

    if not path.exists():
        return []
    return [operation(row) for row in pyarrow.parquet.read_table(path).to_pylist()]


def _check_slice(path: Path, final: Sequence[Operation]) -> Histories:
    parts = by_key([*_read(path), *final])
    findings, undecided = [], []
    for key, history in parts.items():
        assert isinstance(key, bytes)
        name = key.decode()
        verdict = check(history, KeyValueStore(), Budget(seconds_max=SECONDS_PER_KEY))
        other = check_by_revision(history, KeyValueStore())
        if verdict.violation is not None:
            findings.append(f"{name} is not linearizable:\n{verdict.violation.text()}")
        elif verdict.outcome == "unknown":
            undecided.append(f"{name}: {verdict.limit} used up")
        if other.outcome == "violation":
            findings.append(f"{name}, in the order of revisions: {other.reason}")
    count = sum(len(history) for history in parts.values())
    return Histories(len(parts), count, tuple(findings), tuple(undecided))
