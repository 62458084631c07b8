"""`raftkv cluster up`, `status` and `down`: a development cluster, all in one directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from .options import Directory, Format, examples, formatted, group
from .saying import say_line

__all__ = ["app"]

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
    from .foreground import bring_up

    dev = DevCluster(directory)

    def start(progress: Callable[[str], None]) -> list[str]:
        shape = dev.up(
            cores=cores,
            replicants=replicants,
            fsync=fsync,
            tls=True if tls else None,
            timeout_s=timeout_s,
            progress=progress,
        )
        size = f"{shape.cores} cores and {shape.replicants} replicants"
        return [f"{size} take writes; directory {dev.directory}"]

    bring_up(dev, start, detach=detach)


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
        say_line(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
