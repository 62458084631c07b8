"""`python -m bench abuse`: hostile traffic against the leader, and what a bystander gets meanwhile.

A cluster of real processes is under load: callers that put 100 keys in each transaction, and a
bystander that puts one key every 10 ms. Beside them each kind of bench/abuse_traffic.py runs
against the leader's HTTP API for some seconds. What counts is that the leader stays the leader, how
long the bystander's puts took, and how much memory the leader held at most: `request_bytes_max`,
`answer_bytes_max` and `watch_bytes_max` (832 MiB together), 64 KiB for each connection, and 256 MiB
for the node itself (docs/http-api.md, "Memory"): 1,120 MiB. The history of the keyspace is bounded
to 32 MiB.

Run it on a quiet machine: the traffic's own processes need their share of it.

Exit codes: 0 the aims are met, 1 they are not, 2 it could not be measured, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.abuse_traffic import KINDS, Made, Traffic
from bench.arguments import positive, positive_int
from bench.conditions import conditions
from bench.sides import ROOT, CompareError, Side, check_imports, prepare
from bench.worst import BYSTANDER_P99_MS, Nodes, WorstError, in_process, words_of
from bench.worst_callers import Figures, Load, Role, fill
from raftkv import Client
from raftkv.cli.devcluster import DevCluster
from raftkv.config import HttpLimits
from raftkv.errors import RaftkvError
from raftkv.server.incoming import SMALL_BYTES

__all__ = ["MEMORY_MIB", "Kind", "Report", "clients_bytes_max", "main", "requests_in_flight"]

#: The node itself: the program (80 MiB), a small state, its history, the log in memory.
NODE_MIB: Final = 256
#: A node that counts so many bytes of its history takes about as much memory for it. By default it
#: keeps eight times as much, which would be most of what is measured.
HISTORY_BYTES_MAX: Final = 32 * 1024 * 1024


def clients_bytes_max(limits: HttpLimits, connections: int) -> int:
    """What a node may hold at most for its clients (docs/http-api.md, "Memory")."""
    each = max(limits.head_bytes_max, SMALL_BYTES)
    whole = limits.request_bytes_max + limits.answer_bytes_max + limits.watch_bytes_max
    return whole + min(connections, limits.connections_max) * each


CONNECTIONS: Final = max(connections for _, connections in KINDS.values())
#: The default of --memory: what the leader may hold at most.
MEMORY_MIB: Final = NODE_MIB + -(-clients_bytes_max(HttpLimits(), CONNECTIONS) // (1 << 20))
#: Keys of which the kind `ranges` reads all.
KEYS: Final = 20_000
TRANSACTION_CALLERS: Final = 2
SAMPLE_S: Final = 0.05
# After a kind, until the leader has answered what it was sent, so that kinds are measured apart.
REST_S: Final = 60.0
LOOK_S: Final = 1.0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of traffic came to. `elections`: newer terms; `memory_mib`: at most."""

    traffic: Made
    elections: int
    leader_changed: bool
    bystander: Figures
    transactions: Figures
    memory_mib: float

    def met(self, memory_mib: float) -> bool:
        """Whether the aims are."""
        return (
            self.elections == 0
            and not self.leader_changed
            and 0 < self.bystander.p99_ms < BYSTANDER_P99_MS
            and self.memory_mib <= memory_mib
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    kinds: list[Kind]
    memory_mib_max: float
    conditions: dict[str, Any]

    @property
    def aims_met(self) -> bool:
        return all(each.met(self.memory_mib_max) for each in self.kinds)


async def measure(given: argparse.Namespace, place: Path, step: Callable[[str], None]) -> Report:
    """All kinds, one after the other. Raises WorstError, CompareError, RaftkvError."""
    side = Side("nodes", place / "code", place)
    step("copying the code")
    prepare(side.code, str(ROOT))
    check_imports(side)
    step("starting the nodes")
    kinds = []
    async with Nodes(side, given.cores, 0) as nodes:
        async with Client(nodes.endpoints) as client:
            await _bound_history(client)
            await fill(client, KEYS)
        for name in given.only or KINDS:
            step(f"{name} for {given.seconds:g} s")
            kinds.append(await _one(given, nodes, name))
            step(_line(kinds[-1], given.memory))
            leader, _ = await _leader(nodes)
            await _rest(DevCluster(nodes.directory).endpoint(leader))
    found = conditions(place, fsync=True, arguments=vars(given))
    return Report(kinds=kinds, memory_mib_max=given.memory, conditions=found)


async def _bound_history(client: Client) -> None:
    body = {"value": HISTORY_BYTES_MAX}
    answer = await client.call("PUT", "/v1/kv/settings/history_bytes_max", body)
    if not answer.good:
        raise WorstError(f"the history cannot be bounded: {answer.status} {answer.body}")


async def _rest(endpoint: str) -> None:
    """Wait until the node answers nothing but this. Raises WorstError after REST_S."""
    for look in range(int(REST_S / LOOK_S)):
        await asyncio.sleep(LOOK_S if look else 0)
        with contextlib.suppress(OSError):  # 429 while there are many
            if requests_in_flight(await asyncio.to_thread(_metrics_of, endpoint)) <= 1:
                return
    raise WorstError(f"{endpoint} still answers {REST_S:g} s after the traffic's end")


def _metrics_of(endpoint: str) -> str:
    with urllib.request.urlopen(f"{endpoint}/metrics", timeout=REST_S) as answer:
        text: bytes = answer.read()
    return text.decode("utf-8")


def requests_in_flight(page: str) -> float:
    """What a page of `/metrics` gives for `raftkv_door_requests_in_flight`."""
    found = re.search(r"^raftkv_door_requests_in_flight(?:\{[^}]*\})? (\S+)", page, re.MULTILINE)
    if found is None:
        raise WorstError("/metrics lacks raftkv_door_requests_in_flight")
    return float(found[1])


async def _one(given: argparse.Namespace, nodes: Nodes, name: str) -> Kind:
    leader, term = await _leader(nodes)
    cluster = DevCluster(nodes.directory)
    pid = await asyncio.to_thread(cluster.pid, leader)
    if pid is None:
        raise WorstError(f"the leader {leader} does not run")
    traffic = Traffic(
        kind=name,
        endpoint=cluster.endpoint(leader),
        seconds=given.seconds,
        share=given.share,
    )
    callers: dict[Role, int] = {"bystander": 1, "transactions": TRANSACTION_CALLERS}
    loads = [
        Load(
            role=role,
            endpoints=nodes.endpoints,
            callers=count,
            seconds=given.seconds,
            keys=KEYS,
            seed=given.seed,
        )
        for role, count in callers.items()
    ]
    most = _Memory(pid)
    sampling = asyncio.create_task(most.sample())
    try:
        made, bystander, transactions = await asyncio.gather(
            words_of("bench.abuse_traffic", traffic, Made, given.seconds),
            in_process(loads[0]),
            in_process(loads[1]),
        )
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    after, newest = await _leader(nodes)
    return Kind(
        traffic=made,
        elections=newest - term,
        leader_changed=after != leader,
        bystander=bystander,
        transactions=transactions,
        memory_mib=most.mib,
    )


async def _leader(nodes: Nodes) -> tuple[str, int]:
    """The leader and the newest term, as the nodes know them."""
    async with Client(nodes.endpoints) as client:
        answers = [await client.call("GET", "/v1/status", at=at) for at in nodes.endpoints]
    newest = max((answer.body for answer in answers), key=lambda body: int(body["term"]))
    return str(newest["leader"]), int(newest["term"])


class _Memory:
    """The most that a process was seen to hold."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/status"
        self.mib = 0.0

    async def sample(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            self._look()
            await asyncio.sleep(SAMPLE_S)

    def _look(self) -> None:
        with contextlib.suppress(OSError), open(self._path, encoding="ascii") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    self.mib = max(self.mib, int(line.split()[1]) / 1024)


def _line(kind: Kind, memory_mib: float) -> str:
    """What is shown as soon as a kind has ended: a run that fails later has shown it."""
    return (
        f"{kind.traffic.kind}: {kind.traffic.requests:,} requests, {kind.elections} elections, "
        f"put {kind.bystander.p99_ms:,.1f} ms at p99, {kind.memory_mib:,.0f} MiB: "
        f"{_judged(kind.met(memory_mib))}"
    )


def _judged(met: bool) -> str:
    return "met" if met else "NOT met"


def _show(console: Console, report: Report) -> None:
    table = Table(title="hostile traffic against the leader", title_justify="left")
    table.add_column("traffic", no_wrap=True)
    for name in ("requests", "elections", "p50 ms", "p99 ms", "worst ms", "txn/s", "MiB"):
        table.add_column(name, justify="right")
    table.add_column("aims")
    for each in report.kinds:
        figures = each.bystander
        table.add_row(
            each.traffic.kind,
            f"{each.traffic.requests:,}",
            str(each.elections),
            f"{figures.p50_ms:,.1f}",
            f"{figures.p99_ms:,.1f}",
            f"{figures.worst_ms:,.1f}",
            f"{each.transactions.per_s:,.1f}",
            f"{each.memory_mib:,.0f}",
            _judged(each.met(report.memory_mib_max)),
        )
    console.print(table)
    console.print(
        f"aims: the leader stays, a bystander's put below {BYSTANDER_P99_MS:g} ms at p99, at most "
        f"{report.memory_mib_max:g} MiB: {_judged(report.aims_met)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-abuse-", dir=given.dir) as place:
            path = Path(place).resolve()
            report = uvloop.run(measure(given, path, lambda text: console.print(text, style="dim")))
    except (CompareError, WorstError, RaftkvError, OSError) as error:
        print(f"bench abuse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    else:
        _show(console, report)
    return 0 if report.aims_met else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench abuse",
        description="Hostile HTTP traffic against the leader of a cluster under load.",
        epilog="Example: python -m bench abuse --seconds 30 --json > abuse.json",
    )
    parser.add_argument("--cores", type=positive_int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=positive, default=30.0, help="of each kind (default: 30)")
    parser.add_argument(
        "--only", nargs="+", choices=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--share", type=positive, default=1.0, help="of each kind's connections (default: 1)"
    )
    parser.add_argument(
        "--memory", type=positive, default=float(MEMORY_MIB), metavar="MIB",
        help=f"the leader may hold at most (default: {MEMORY_MIB})",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the callers' choices (default: 1)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
