"""`raftkv member ...`: change the cores of a running cluster through the door of any node.

Every verb may be repeated, so a connection that is lost or a node that does not answer means asking
the next one, until the time is up. While a copy catches up, what it lacks is shown on stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from raftkv.errors import ConfigError, MembershipRefused, NoLeader, NotApplied, RaftkvError, Timeout

from .devcluster import DevCluster
from .door_client import check_endpoint, request
from .output import console, print_json

__all__ = ["app", "members_table"]

# Between two rounds over all endpoints.
ROUND_PAUSE_S: Final = 0.2
# How often the progress is asked for, and how long an answer may take.
LOOK_S: Final = 0.3
# A node has this long for a list; it asks the leader itself.
LIST_TIMEOUT_S: Final = 5.0

app = typer.Typer(
    help="The cores of a running cluster: add, remove, promote, list.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Directory = Annotated[
    str | None, typer.Option("--dir", help="The directory of a development cluster.")
]
Endpoint = Annotated[
    list[str] | None,
    typer.Option("--endpoint", help="http://HOST:PORT of a node; may be given several times."),
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document instead.")]
Deadline = Annotated[
    float,
    typer.Option("--timeout", min=0.1, max=3600.0, help="Seconds to try for. Repeat it if short."),
]


@app.command(
    epilog="Examples: raftkv member add d --endpoint http://10.0.0.1:7501\n\n"
    "raftkv member add d --address 10.0.0.4:7401 --endpoint http://10.0.0.1:7501"
)
def add(
    name: Annotated[str, typer.Argument(help="The new core, which runs already.")],
    address: Annotated[
        str | None,
        typer.Option("--address", help="HOST:PORT where it listens for nodes, if it is unknown."),
    ] = None,
    directory: Directory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """Add a core: it copies the log first and votes once it has caught up.

    Start it before, with an empty data directory and the running cores under \\[cores].
    """
    body = {"name": name, "address": address}
    _change("add", body, _endpoints(directory, endpoint), timeout_s, as_json)


@app.command(
    epilog="Examples: raftkv member remove b --endpoint http://10.0.0.1:7501\n\n"
    "raftkv member remove b --force --endpoint http://10.0.0.1:7501"
)
def remove(
    name: Annotated[str, typer.Argument(help="The core, alive or dead; the leader too.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if too few of the rest can be heard to go on."),
    ] = False,
    directory: Directory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """Remove a core for good: its data directory is of no use afterwards."""
    body = {"name": name, "force": force}
    _change("remove", body, _endpoints(directory, endpoint), timeout_s, as_json)


@app.command(epilog="Example: raftkv member promote replicant1 --dir demo")
def promote(
    name: Annotated[str, typer.Argument(help="A replicant, or a copy that does not vote yet.")],
    directory: Directory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 60.0,
    as_json: Json = False,
) -> None:
    """Make a running replicant a core, or a copy a voter, once it has caught up.

    A promoted replicant is a core by its data directory from then on: its configuration file need
    not be changed.
    """
    _change("promote", {"name": name}, _endpoints(directory, endpoint), timeout_s, as_json)


@app.command("list", epilog="Example: raftkv member list --dir demo --json")
def list_members(
    directory: Directory = None,
    endpoint: Endpoint = None,
    timeout_s: Deadline = 10.0,
    as_json: Json = False,
) -> None:
    """Show every node: what it is, where it is, and how far its log reaches."""
    found = _round(_endpoints(directory, endpoint), timeout_s, _list)
    if as_json:
        print_json(found)
        return
    console().print(members_table(found))
    if found["told_by"] != found["leader"]:
        typer.echo(f"no leader answers: this is what {found['told_by']} knows", err=True)


def _endpoints(directory: str | None, endpoints: list[str] | None) -> list[str]:
    if (directory is None) == (not endpoints):
        raise ConfigError("say which cluster: either --dir DIR or --endpoint http://HOST:PORT")
    if directory is None:
        return [check_endpoint(endpoint) for endpoint in endpoints or []]
    dev = DevCluster(directory)
    return [dev.endpoint(name) for name in sorted(dev.names, key=lambda n: dev.pid(n) is None)]


def _round(endpoints: Sequence[str], timeout_s: float, ask: Callable[[str, float], Any]) -> Any:
    """Ask the nodes in turn until one answers; a refusal is an answer. Raises the last error."""
    deadline = time.monotonic() + timeout_s
    while True:
        for endpoint in endpoints:
            left_s = max(deadline - time.monotonic(), 0.05)
            try:
                return ask(endpoint, left_s)
            except MembershipRefused:
                raise
            except (NotApplied, Timeout) as error:
                last: RaftkvError = error
        if time.monotonic() + ROUND_PAUSE_S >= deadline:
            raise last
        time.sleep(ROUND_PAUSE_S)


def _list(endpoint: str, left_s: float) -> Any:
    return request(endpoint, "GET", "/v1/members", timeout_s=min(left_s, LIST_TIMEOUT_S))


def _change(
    verb: str, body: dict[str, Any], endpoints: list[str], timeout_s: float, as_json: bool
) -> None:
    def ask(endpoint: str, left_s: float) -> Any:
        if _list(endpoint, left_s)["leader"] is None:
            # It would wait for one until the time is up; the core that is to be added hears none.
            raise NoLeader(f"{endpoint} knows no leader")
        asked = {**body, "timeout_s": left_s}
        # The node answers at its deadline; that must still arrive.
        return request(endpoint, "POST", f"/v1/members/{verb}", asked, timeout_s=left_s + 2.0)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(_round, endpoints, timeout_s, ask)
        if verb != "remove":
            _show_progress(body["name"], endpoints, done)
        done.result()
    found = _round(endpoints, LIST_TIMEOUT_S, _list)
    if as_json:
        print_json({"verb": verb, "name": body["name"], **found})
        return
    typer.echo(_outcome(verb, body["name"], found))


def _outcome(verb: str, name: str, found: dict[str, Any]) -> str:
    voters = [row["name"] for row in found["members"] if row["standing"] == "voter"]
    done = f"{name} is no core any more" if verb == "remove" else f"{name} votes"
    may_fail = (len(voters) - 1) // 2
    text = f"{done}; the voters are {', '.join(voters)}"
    if len(voters) % 2 == 0:
        fewer = len(voters) - 1
        text += f". {len(voters)} voters survive the loss of {may_fail}, which {fewer} do as well"
    return text


def _show_progress(name: str, endpoints: list[str], done: Future[Any]) -> None:
    """What the new core lacks, until the verb has ended. On stderr: a bar, or lines for a file."""
    with _reporting(name) as report:
        while not done.done():
            with contextlib.suppress(RaftkvError):
                found = _round(endpoints, LIST_TIMEOUT_S, _list)
                row = next((row for row in found["members"] if row["name"] == name), None)
                report(row)
            until = time.monotonic() + LOOK_S
            while not done.done() and time.monotonic() < until:
                time.sleep(0.02)


@contextlib.contextmanager
def _reporting(name: str) -> Iterator[Callable[[dict[str, Any] | None], None]]:
    said = ""

    def line(row: dict[str, Any] | None) -> None:
        nonlocal said
        text = _stage(name, row)
        if text != said:
            said = text
            typer.echo(text, err=True)

    if not sys.stderr.isatty():
        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{name} connects", total=None)

        def bar(row: dict[str, Any] | None) -> None:
            lag = None if row is None else row["lag_entries"]
            if row is None or lag is None:
                progress.update(task, description=_stage(name, row))
            else:
                match = row["match_index"]
                progress.update(
                    task, description=f"{name} copies", total=match + lag, completed=match
                )

        yield bar


def _stage(name: str, row: dict[str, Any] | None) -> str:
    if row is None or row["standing"] in ("replicant", "removed"):
        return f"{name} becomes a copy"
    if row["standing"] == "voter":
        return f"{name} votes"
    if row["connected"] is False:
        return f"{name} is a copy and connects"
    return f"{name} catches up"


def members_table(found: dict[str, Any]) -> Table:
    """The nodes as a table, one a row; the leader's name is bold."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = ("INCARNATION", "MATCH", "LAG")
    for heading in ("NODE", "STANDING", "RAFT ID", "ADDRESS", "HTTP", "UP", *numbers):
        right = heading in numbers
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for row in found["members"]:
        up = "yes" if row["up"] else "[red]no[/red]"
        if row["connected"] is False and row["up"]:
            up = "[yellow]not connected[/yellow]"
        standing = "[green]leader[/green]" if row["leads"] else row["standing"]
        cells = (
            row["raft_id"],
            row["peer_address"],
            row["http_address"],
        )
        figures = (row["incarnation"], row["match_index"], row["lag_entries"])
        table.add_row(
            f"[bold]{row['name']}[/bold]" if row["leads"] else row["name"],
            standing,
            *map(_cell, cells),
            up,
            *map(_cell, figures),
        )
    return table


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
