"""`python -m bench worst`: the worst transactions that are allowed, and what others get meanwhile.

A cluster of real processes holds 100,000 keys. First legitimate callers have it for themselves:
transactions of 100 puts, and transactions that read ranges of 10,000 keys. Then, beside them and
beside one that puts a key every 10 ms, many callers send transactions that look at almost 100,000
rows each and write: compared by version, compared by value, sorted by value. What counts is that
there is no election, how long the bystander's puts took, and how many of the worst ones were
executed.

`--code` runs the nodes from another checkout or revision, under the same load: its rates are what
the legitimate callers' are compared with. Run it on a quiet machine.

Exit codes: 0 the aims are met (or `--code` was given), 1 they are not, 2 it could not be measured,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.arguments import positive, positive_int
from bench.conditions import conditions
from bench.sides import ROOT, CompareError, Side, check_imports, prepare
from bench.worst_callers import KEYS, Figures, Load, Role, fill
from raftkv import Client
from raftkv.cli.devcluster import DevCluster
from raftkv.errors import RaftkvError

__all__ = ["BYSTANDER_P99_MS", "Nodes", "Report", "WorstError", "in_process", "main", "words_of"]

WordsT = TypeVar("WordsT", bound=msgspec.Struct)

#: The bystander's aim: 99 of 100 puts take no longer.
BYSTANDER_P99_MS: Final = 500.0
UP_S: Final = 120.0
LAST_WORDS_CHARS: Final = 1500
#: How much longer than asked for the callers may take, for the calls that they have begun.
GRACE_S: Final = 90.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `alone` and `together` are what the callers of each role got."""

    code: str
    elections: int
    alone: list[Figures]
    together: list[Figures]
    conditions: dict[str, Any]

    @property
    def aims_met(self) -> bool:
        bystander = next(each for each in self.together if each.role == "bystander")
        return self.elections == 0 and 0 < bystander.p99_ms < BYSTANDER_P99_MS


class WorstError(Exception):
    """It could not be measured. The message has the reason."""


class Nodes:
    """A development cluster that runs one side's code; a context in which it is up."""

    def __init__(self, side: Side, cores: int, replicants: int) -> None:
        self._side = side
        self._shape = ("--cores", str(cores), "--replicants", str(replicants))
        #: Of the cluster, as `DevCluster` takes it.
        self.directory = str(side.out / "cluster")
        self.endpoints: list[str] = []

    async def __aenter__(self) -> Nodes:
        try:
            timeout = ("--timeout", f"{UP_S:g}")
            await asyncio.to_thread(self._cluster, "up", *self._shape, "--detach", *timeout)
            self.endpoints = list(DevCluster(self.directory).endpoints())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._cluster, "down")

    def _cluster(self, verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "raftkv", "cluster", verb, "--dir", self.directory]
        done = subprocess.run(
            [*command, *options], cwd=self._side.code, env=self._side.environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-LAST_WORDS_CHARS:]
            raise WorstError(f"raftkv cluster {verb} of {self._side.code} failed: {words}")

    async def term(self) -> int:
        """The newest term that a node knows."""
        async with Client(self.endpoints) as client:
            # Not `client.status`: nodes of other releases have other fields.
            answers = [await client.call("GET", "/v1/status", at=at) for at in self.endpoints]
        return max(int(answer.body["term"]) for answer in answers)


async def measure(given: argparse.Namespace, place: Path, step: Callable[[str], None]) -> Report:
    """All of it. Raises WorstError, CompareError, RaftkvError."""
    side = Side("nodes", place / "code", place)
    step("copying the code")
    prepare(side.code, given.code or str(ROOT))
    check_imports(side)
    step("starting the nodes")
    async with Nodes(side, given.cores, given.replicants) as nodes:
        step(f"writing {given.keys} keys")
        async with Client(nodes.endpoints) as client:
            await fill(client, given.keys)
        legitimate: dict[Role, int] = {
            "transactions": given.legitimate,
            "ranges": given.legitimate,
        }
        step("the legitimate callers alone")
        alone = await _run(given, nodes, legitimate, given.alone)
        before = await nodes.term()
        step("all callers together")
        everything: dict[Role, int] = {"worst": given.callers, "bystander": 1, **legitimate}
        together = await _run(given, nodes, everything, given.seconds)
        elections = await nodes.term() - before
    found = conditions(place, fsync=True, arguments=vars(given))
    return Report(
        code=given.code or "the working tree",
        elections=elections,
        alone=alone,
        together=together,
        conditions=found,
    )


async def _run(
    given: argparse.Namespace, nodes: Nodes, callers: dict[Role, int], seconds: float
) -> list[Figures]:
    """All roles at once, each in a process of its own."""
    loads = [
        Load(
            role=role,
            endpoints=nodes.endpoints,
            callers=count,
            seconds=seconds,
            keys=given.keys,
            seed=given.seed,
        )
        for role, count in callers.items()
    ]
    return list(await asyncio.gather(*(in_process(each) for each in loads)))


async def in_process(load: Load) -> Figures:
    """The callers of one role, in a process of their own. Raises WorstError."""
    return await words_of("bench.worst_callers", load, Figures, load.seconds)


async def words_of(
    module: str, given: msgspec.Struct, kind: type[WordsT], seconds: float
) -> WordsT:
    """What a module prints that is run with `given` for some seconds. Raises WorstError."""
    words = msgspec.json.encode(given).decode()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, words, cwd=ROOT, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(seconds + GRACE_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise WorstError(f"{module} did not come to an end: {words[:200]}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        text = err.decode(errors="replace").strip()[-LAST_WORDS_CHARS:]
        raise WorstError(f"{module} failed, {words[:200]}: {text}")
    return msgspec.json.decode(out, type=kind)


def _show(console: Console, report: Report) -> None:
    table = Table(title=f"the worst transactions, on {report.code}", title_justify="left")
    table.add_column("callers")
    for name in ("done", "/s", "p50 ms", "p99 ms", "worst ms"):
        table.add_column(name, justify="right")
    table.add_column("errors")
    for title, part in (("alone", report.alone), ("together", report.together)):
        for each in part:
            errors = ", ".join(f"{name} {count}" for name, count in each.errors.items())
            table.add_row(
                f"{each.role}, {title}",
                f"{each.done:,}",
                f"{each.per_s:,.1f}",
                f"{each.p50_ms:,.1f}",
                f"{each.p99_ms:,.1f}",
                f"{each.worst_ms:,.1f}",
                errors,
            )
    console.print(table)
    aim = f"aims: no election, bystander's p99 below {BYSTANDER_P99_MS:g} ms"
    console.print(f"{report.elections} elections; {aim}: {'met' if report.aims_met else 'NOT met'}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    console = Console(stderr=given.json)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-worst-", dir=given.dir) as place:
            path = Path(place).resolve()
            report = uvloop.run(measure(given, path, lambda text: console.print(text, style="dim")))
    except (CompareError, WorstError, RaftkvError, OSError) as error:
        print(f"bench worst: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    else:
        _show(console, report)
    return 0 if report.aims_met or given.code else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench worst",
        description="The worst transactions that are allowed, and what other callers get.",
        epilog="Example: python -m bench worst --json > now.json; "
        "python -m bench worst --code v0.1.0 --json > before.json",
    )
    parser.add_argument(
        "--code", metavar="REV|DIR", help="the nodes' code: a git revision, or a checkout"
    )
    parser.add_argument("--cores", type=positive_int, default=3, help="default: 3")
    parser.add_argument("--replicants", type=int, default=3, help="default: 3")
    parser.add_argument("--keys", type=positive_int, default=KEYS, help=f"default: {KEYS:,}")
    parser.add_argument(
        "--callers", type=positive_int, default=40, help="of worst transactions (default: 40)"
    )
    parser.add_argument(
        "--legitimate", type=positive_int, default=4, help="callers of each kind (default: 4)"
    )
    parser.add_argument("--seconds", type=positive, default=30.0, help="together (default: 30)")
    parser.add_argument(
        "--alone", type=positive, default=10.0, help="seconds of the legitimate ones (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the callers' choices (default: 1)")
    parser.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
