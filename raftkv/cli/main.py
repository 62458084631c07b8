"""The `raftkv` command.

Exit codes: 0 done; 1 the key does not exist, or the cluster refused; 2 wrong usage or
configuration; 3 a node or the cluster could not do it. Errors are one line on stderr, never a
traceback: a traceback from this command is a bug.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Annotated, Any, Final, NoReturn

import typer

from raftkv.config import load_config
from raftkv.errors import ConfigError, MembershipRefused, RaftkvError, Refused

from . import certs, member
from .devcluster import DevCluster
from .door_client import DoorClient
from .groups import add_plugin_groups
from .layout import Fsync
from .output import console, found_document, print_json, status_table, write_line
from .recover import recover

__all__ = ["app", "main"]

EXIT_NEGATIVE: Final = 1
EXIT_CONFIG: Final = 2
EXIT_FAULT: Final = 3

# How often the status table is drawn anew.
WATCH_INTERVAL_S: Final = 0.5

app = typer.Typer(
    name="raftkv",
    help="raftkv: an embeddable, Raft-replicated key-value module.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
)
cluster = typer.Typer(
    help="A development cluster: real processes on this machine, all in one directory.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(cluster, name="cluster")
app.add_typer(certs.app, name="certs")
app.add_typer(member.app, name="member")

Directory = Annotated[str, typer.Option("--dir", help="The directory of the cluster.")]
SomeDirectory = Annotated[
    str | None, typer.Option("--dir", help="The directory of a development cluster.")
]
Endpoint = Annotated[
    list[str] | None,
    typer.Option("--endpoint", help="http://HOST:PORT of a node; may be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document instead.")]
Deadline = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to try for.")]


def main() -> None:
    """The entry point: run the command and turn errors into one line and an exit code."""
    try:
        add_plugin_groups(app)
        app()
    except ConfigError as error:
        _fail(error, EXIT_CONFIG)
    except (Refused, MembershipRefused) as error:
        _fail(error, EXIT_NEGATIVE)
    except RaftkvError as error:
        _fail(error, EXIT_FAULT)
    except BrokenPipeError:
        # The reader of our output has gone (`raftkv ... | head`). Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAULT)
    except OSError as error:
        # A directory without permission, a full disk: the system's words name the file.
        _fail(error, EXIT_FAULT)


def _fail(error: Exception, code: int) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(code)


# ---- nodes --------------------------------------------------------------------------------------


@app.command(epilog="Example: raftkv serve --config /etc/raftkv/node.toml")
def serve(
    config: Annotated[str, typer.Option("--config", help="The node's TOML file.")],
    verbose: Annotated[bool, typer.Option("--verbose", help="Log debugging lines, too.")] = False,
) -> None:
    """Run one node until SIGTERM or SIGINT. Logs JSON lines to stderr."""
    import logging

    from . import logs

    loaded = load_config(config)
    logs.configure(loaded.name, logging.DEBUG if verbose else logging.INFO)
    # Imported late: the other commands start faster without the engine.
    from .serve import run

    run(loaded)


@cluster.command(
    epilog="Examples: raftkv cluster up --cores 3 --replicants 3 --dir demo\n\n"
    "raftkv cluster up --dir demo --detach (starts again what is not running)"
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
        Fsync | None,
        typer.Option("--fsync", help="off loses acknowledged writes at a power cut; default on."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="A new cluster gets certificates for its nodes.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds until writes must succeed.")
    ] = 60.0,
) -> None:
    """Create a cluster or start again what is not running; return or show it once it writes."""
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
        console().print(status_table(dev.status()))


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
    from rich.live import Live

    found = dev.status()
    shown: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if sys.stdout.isatty():
        shown = Live(status_table(found), console=console(), auto_refresh=False)
    else:
        # Into a file or a pipe the table goes once: it cannot be drawn over there.
        console().print(status_table(found))
        sys.stdout.flush()
    with shown as live:
        while any(node.running for node in found.nodes):
            time.sleep(WATCH_INTERVAL_S)
            found = dev.status()
            if live is not None:
                live.update(status_table(found), refresh=True)
    typer.echo("no node is running any more", err=True)


@cluster.command(epilog="Example: raftkv cluster status --dir demo --json")
def status(directory: Directory, as_json: Json = False) -> None:
    """Show every node: role, leader, term, applied index, endpoint, process."""
    found = DevCluster(directory).status()
    if as_json:
        print_json(found)
    else:
        console().print(status_table(found))


@cluster.command(epilog="Example: raftkv cluster down --dir demo")
def down(directory: Directory) -> None:
    """Stop all nodes and leave their data."""
    stopped = DevCluster(directory).down()
    typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


app.command(
    "recover",
    epilog="Examples: raftkv recover --dir /var/lib/raftkv/a --dry-run\n\n"
    "raftkv recover --dir /var/lib/raftkv/a --force-new-cluster",
)(recover)


# ---- keys ---------------------------------------------------------------------------------------


def _client(directory: str | None, endpoints: list[str] | None, timeout_s: float) -> DoorClient:
    if (directory is None) == (not endpoints):
        raise ConfigError("say which cluster: either --dir DIR or --endpoint http://HOST:PORT")
    if directory is not None:
        return DevCluster(directory).client(timeout_s=timeout_s)
    return DoorClient(endpoints or [], timeout_s=timeout_s)


@app.command(
    epilog="Examples: raftkv put greeting hello --dir demo\n\n"
    "echo -n hello | raftkv put greeting --endpoint http://127.0.0.1:2379"
)
def put(
    key: str,
    value: Annotated[str | None, typer.Argument(help="Read from stdin if left out.")] = None,
    directory: SomeDirectory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 5.0,
    as_json: Json = False,
) -> None:
    """Write a key; prints OK once the cluster has it on disk."""
    client = _client(directory, endpoint, timeout_s)
    data = sys.stdin.buffer.read() if value is None else os.fsencode(value)
    revision = client.put(os.fsencode(key), data)
    if as_json:
        print_json({"revision": revision})
    else:
        typer.echo("OK")


@app.command(
    epilog="Examples: raftkv get greeting --dir demo\n\n"
    "raftkv get greeting --dir demo --consistency local --json"
)
def get(
    key: str,
    directory: SomeDirectory = None,
    endpoint: Endpoint = None,
    consistency: Annotated[
        str, typer.Option(help="linearizable, or local: at once, may be stale.")
    ] = "linearizable",
    timeout_s: Deadline = 5.0,
    as_json: Json = False,
) -> None:
    """Print the value of a key; exit code 1 if there is none."""
    if consistency not in ("linearizable", "local"):
        raise ConfigError("--consistency is either linearizable or local")
    client = _client(directory, endpoint, timeout_s)
    found = client.get(os.fsencode(key), "local" if consistency == "local" else "linearizable")
    if found is None:
        sys.stderr.write(f"there is no key {key}\n")
        raise typer.Exit(EXIT_NEGATIVE)
    if as_json:
        print_json(found_document(found))
    else:
        write_line(found.value)


@app.command("del", epilog="Example: raftkv del greeting --dir demo")
def delete(
    key: str,
    directory: SomeDirectory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 5.0,
    as_json: Json = False,
) -> None:
    """Delete a key; prints how many there were."""
    deleted = _client(directory, endpoint, timeout_s).delete(os.fsencode(key))
    if as_json:
        print_json({"deleted": deleted})
    else:
        typer.echo(str(deleted))
