"""`python -m bench peers PEER`: raftkv beside another on this machine, in this run.

Exit codes: 0 measured; 2 it could not be (a program is missing, a node failed); 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import wrk
from bench.arguments import positive_int
from bench.conditions import conditions
from bench.layouts import WorkerFailed
from bench.peers import debian
from bench.peers.beside_etcd import ETCD
from bench.peers.beside_mnesia import MNESIA
from bench.peers.beside_rabbitmq import RABBITMQ
from bench.peers.beside_stock import STOCK
from bench.peers.beside_tarantool import TARANTOOL
from bench.peers.beside_zookeeper import ZOOKEEPER
from bench.peers.figures import Comparison
from bench.peers.peer import Peer, PeerFailed, Step
from bench.peers.report import plot, show

__all__ = ["PEERS", "main"]

PEERS: Final = (ETCD, MNESIA, TARANTOOL, RABBITMQ, STOCK, ZOOKEEPER)

_WIDTH: Final = 190
"""Columns of the table where there is no terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given = _parser().parse_args(argv)
    peer: Peer = given.peer
    console = Console(stderr=given.json)
    if not console.is_terminal:
        console = Console(stderr=given.json, width=_WIDTH)
    try:
        with tempfile.TemporaryDirectory(prefix="raftkv-peers-", dir=given.dir) as place:
            found = asyncio.run(_compare(peer, given, Path(place), console))
        if given.plot is not None:
            plot(found, given.plot)
    except (debian.Missing, PeerFailed, wrk.WrkFailed, WorkerFailed, OSError) as error:
        print(f"bench peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        show(console, found)
        for note in [*_notes(found), *peer.notes(found)]:
            console.print(note, highlight=False)
    return 0


async def _compare(
    peer: Peer, given: argparse.Namespace, place: Path, console: Console
) -> Comparison:
    known = conditions(place, fsync=True, arguments=_arguments(given))
    with _steps(console, peer.steps(given)) as step:
        return await peer.compare(given, place, step, known)


@contextlib.contextmanager
def _steps(console: Console, total: int) -> Iterator[Step]:
    """A bar; the function advances it and names what comes next."""
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
        console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=total, completed=-1)

        def step(text: str) -> None:
            progress.update(task, advance=1, description=text)

        yield step


def _notes(found: Comparison) -> list[str]:
    """What is said of every peer."""
    sync = found.conditions["fdatasync"]
    bad = [each for each in found.samples if each.refused or each.failed]
    median_ms, p99_ms = sync["median_us"] / 1000, sync["p99_us"] / 1000
    notes = [f"One fdatasync here: {median_ms:.2f} ms, p99 {p99_ms:.2f} ms."]
    if bad:
        notes.append(f"{len(bad)} of {len(found.samples)} measurements had requests that failed.")
    return notes


def _arguments(given: argparse.Namespace) -> dict[str, object]:
    named = {**vars(given), "peer": given.peer.name}
    return {key: value if isinstance(value, int | float | list) else str(value)
            for key, value in named.items() if value is not None}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench peers",
        description="raftkv beside another on this machine, in turns in one run.",
        epilog="Example: python -m bench peers etcd --json --plot etcd.png > etcd.json",
    )
    peers = parser.add_subparsers(required=True, metavar="PEER", title="peers")
    for peer in PEERS:
        one = peers.add_parser(peer.name, help=peer.summary, description=f"{peer.summary}.")
        one.set_defaults(peer=peer)
        peer.add_arguments(one)
        one.add_argument("--seconds", type=positive_int, default=5, help="of each (default: 5)")
        one.add_argument("--rounds", type=positive_int, default=3, help="default: 3")
        one.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates (PNG, SVG)")
        one.add_argument("--dir", help="directory for the nodes' data (default: a temporary one)")
        one.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser
