"""`raftkv check perf`: whether the cluster takes a named load, as etcdctl asks it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer

from raftkv.errors import ConfigError

from .options import At, connected, examples, group
from .saying import note_line, say_line

__all__ = ["app"]

EXIT_FAULT: Final = 3

PREFIX: Final = "/raftkv-check-perf/"

app = group("Checks of a running cluster.")


@app.command(
    epilog=examples(
        "raftkv check perf --dir demo",
        "raftkv check perf --load m --duration 10 --json --dir demo",
    )
)
@connected("simple", "json")
def perf(
    at: At,
    load: Annotated[
        str, typer.Option("--load", metavar="LOAD", help="s, m, l or xl: 150 to 15,000 puts/s.")
    ] = "s",
    duration_s: Annotated[
        float, typer.Option("--duration", metavar="S", min=0.1, max=3600.0, help="Seconds to run.")
    ] = 60.0,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Where the keys are written; must be empty.")
    ] = PREFIX,
) -> None:
    """Whether the cluster takes a load of puts.

    They come at a fixed rate, and their keys are deleted again. Exit code 3 if it does not.
    """
    from . import measuring
    from .connecting import run
    from .output import print_json

    chosen = measuring.LOADS.get(load.lower())
    if chosen is None:
        raise ConfigError(f"--load {load} is not one of {', '.join(measuring.LOADS)}")
    if not prefix:
        raise ConfigError("--prefix must not be empty: all keys below it are deleted afterwards")
    with _progress(duration_s) as show:
        measured = run(
            at, lambda client: measuring.measure(client, chosen, duration_s, prefix.encode(), show)
        )
    found = measuring.verdicts(measured, chosen)
    if at.output == "json":
        print_json(measuring.document(load.lower(), chosen, measured, found))
    else:
        for verdict in found:
            say_line(f"{'PASS' if verdict.passed else 'FAIL'}: {verdict.text}")
        if measured.took_s:
            p50, p99 = (1000 * measuring.percentile(measured.took_s, part) for part in (0.5, 0.99))
            say_line(f"p50 is {p50:.2f} ms, p99 is {p99:.2f} ms")
        if measured.first_error is not None:
            note_line(f"the first error was: {measured.first_error}")
        say_line("PASS" if all(verdict.passed for verdict in found) else "FAIL")
    if not all(verdict.passed for verdict in found):
        raise typer.Exit(EXIT_FAULT)


@contextlib.contextmanager
def _progress(duration_s: float) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda elapsed_s: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("putting keys", total=duration_s)
        yield lambda elapsed_s: bar.update(task, completed=elapsed_s)
