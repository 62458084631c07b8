"""`raftkv cluster up`, `status` and `down`: a development cluster, all in one directory."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from raftkv.errors import RaftkvError

from .options import Directory, Format, examples, formatted, group

if TYPE_CHECKING:
    from .devcluster import DevCluster

__all__ = ["app"]

# How often the status table is drawn anew.
WATCH_INTERVAL_S: Final = 0.5

app = group("A development cluster on this machine, in one directory.")


@app.command(
    epilog=examples(
        "raftkv cluster up --cores 3 --replicants 3 --dir demo",
        "raftkv cluster up --dir demo --detach   (starts what is not running)",
    )
)
def up(
    directory: Directory,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Voters; a new cluster gets 3.")
    ] = None,
    replicants: Annotated[
        int | None, typer.Option("--replicants", min=0, help="Read copies; a new cluster gets 3.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once writes succeed.")] = False,
    fsync: Annotated[
        Literal["on", "off"] | None,
        typer.Option("--fsync", help="off loses acknowledged writes at a power cut; default on."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="A new cluster gets certificates for its nodes.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds until writes must succeed.")
    ] = 60.0,
) -> None:
    """Create a cluster, or start what is not running.

    Show it until Ctrl-C ends it, or return with --detach, once writes succeed.
    """
    from .devcluster import DevCluster
    from .output import print_status

    dev = DevCluster(directory)
    with _stop_on_sigterm() if not detach else contextlib.nullcontext():
        try:
            shape = dev.up(
                cores=cores,
                replicants=replicants,
                fsync=fsync,
                tls=True if tls else None,
                timeout_s=timeout_s,
                progress=lambda line: typer.echo(line, err=True),
            )
            size = f"{shape.cores} cores and {shape.replicants} replicants"
            typer.echo(f"{size} take writes; directory {dev.directory}", err=True)
            if not detach:
                _watch(dev)
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)
            dev.down()
        except RaftkvError:
            # In the foreground nothing outlives the command; detached nodes stay to be looked at.
            if not detach and dev.exists:
                dev.down()
            raise
    if detach:
        print_status(dev.status())


@contextlib.contextmanager
def _stop_on_sigterm() -> Any:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(dev: DevCluster) -> None:
    """Show the status until Ctrl-C, or until the last node has ended."""
    from .output import console, print_status, status_table

    found = dev.status()
    shown: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if sys.stdout.isatty():
        from rich.live import Live

        shown = Live(status_table(found), console=console(), auto_refresh=False)
    else:
        # Into a file or a pipe the table goes once: it cannot be drawn over there.
        print_status(found)
        sys.stdout.flush()
    with shown as live:
        while any(node.running for node in found.nodes):
            time.sleep(WATCH_INTERVAL_S)
            found = dev.status()
            if live is not None:
                live.update(status_table(found), refresh=True)
    typer.echo("no node is running any more", err=True)


@app.command(epilog=examples("raftkv cluster status --dir demo --json"))
@formatted("table", "json")
def status(form: Format, directory: Directory) -> None:
    """Show every node: role, leader, term, applied index, endpoint, process."""
    from .devcluster import DevCluster
    from .output import print_json, print_status

    found = DevCluster(directory).status()
    if form.output == "json":
        print_json(found)
    else:
        print_status(found)


@app.command(epilog=examples("raftkv cluster down --dir demo"))
@formatted("simple", "json")
def down(form: Format, directory: Directory) -> None:
    """Stop all nodes and leave their data."""
    from .devcluster import DevCluster
    from .output import print_json

    stopped = DevCluster(directory).down()
    if form.output == "json":
        print_json({"stopped": stopped})
    else:
        typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
