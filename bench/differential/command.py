"""`tools/differential`: random requests to real etcd and to raftkv, as many as wanted.

Exit codes: 0 every answer agreed or is a named difference; 1 one did not, and the shortest example
of it is printed; 2 it could not be run (etcd is missing, a node failed); 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyFailure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.arguments import positive_int
from bench.differential.both import both
from bench.differential.example import Mismatch, Pair
from bench.differential.words import Example, examples
from bench.peers import debian
from bench.peers.etcd import EtcdFailed
from raftkv.errors import RaftkvError

__all__ = ["main", "run_examples"]


def run_examples(
    pair: Pair, count: int, chance: int, *, until_s: float | None = None,
    done: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Draw and run examples; the same `chance` draws the same. Raises `Mismatch`, made small.

    After `until_s` (of the monotonic clock) no further one is begun. `done` is called after each.
    """

    @seed(chance)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(examples())
    def run(example: Example) -> None:
        if until_s is None or time.monotonic() < until_s:
            pair.run(example)
        done()

    try:
        run()
    except FlakyFailure as error:
        first = error.exceptions[0]
        if not isinstance(first, Mismatch):
            raise first from None  # the end of the program, say
        raise Mismatch(f"not every time, so it is a matter of time: {first}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text for the exit codes."""
    given_arguments = _parser().parse_args(argv)
    console = Console(stderr=given_arguments.json)
    try:
        with both() as pair, _bar(console) as bar:
            task = bar.add_task("examples", total=given_arguments.examples)
            began_s = time.monotonic()
            mismatch = ""
            try:
                run_examples(
                    pair, given_arguments.examples, given_arguments.seed,
                    done=lambda: bar.advance(task),
                )  # fmt: skip
            except Mismatch as error:
                mismatch = str(error)
            took_s = time.monotonic() - began_s
    except (debian.Missing, EtcdFailed, RaftkvError, OSError) as error:
        print(f"differential: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return _report(given_arguments, console, pair, mismatch, took_s)


def _report(
    given_arguments: argparse.Namespace, console: Console, pair: Pair, mismatch: str, took_s: float
) -> int:
    counts = pair.counts
    if given_arguments.json:
        document = {
            **msgspec.to_builtins(counts),
            "named": dict(counts.named),
            "seed": given_arguments.seed,
            "seconds": round(took_s, 1),
            "revision": pair.etcd.base,
            "mismatch": mismatch,
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        return 1 if mismatch else 0
    for name, count in sorted(counts.named.items()):
        console.print(f"{count:8,d}  {name}", highlight=False)
    if mismatch:
        console.print(f"[red]differs[/red] (seed {given_arguments.seed}):", highlight=False)
        console.print(mismatch, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{counts.examples:,} examples, {counts.requests:,} requests ({counts.refused:,} refused "
        f"by etcd), {counts.watches:,} watches with {counts.events:,} events: "
        f"{'they differ' if mismatch else 'all agree'}, {sum(counts.named.values()):,} named "
        f"differences, {took_s:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    return 1 if mismatch else 0


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/differential",
        description="Random requests to Debian's etcd 3.4 and to raftkv; the answers must agree.",
        epilog="docs/etcd-differences.md lists what may differ. "
        "Example: tools/differential --examples 5000 --seed 7",
    )
    parser.add_argument("--examples", type=positive_int, default=1000, help="default: 1000")
    parser.add_argument("--seed", type=int, default=1, help="draws the examples (default: 1)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
