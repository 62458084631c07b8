"""`raftkv member ...`: change the cores of a running cluster through the door of any node.

Every verb may be repeated, so a connection that is lost or a node that does not answer means asking
the next one, until the time is up. A verb is done once its change is committed; one that is still
pending then ends with exit code 3. While a copy catches up, what it lacks is shown on stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import (
    FormatRefused,
    MembershipRefused,
    NoLeader,
    NotApplied,
    RaftkvError,
    Refused,
    Timeout,
)

from .connecting import endpoints_of, tls_context
from .options import At, connected, examples, group

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

__all__ = ["LIST_TIMEOUT_S", "app", "ask_in_turn", "endpoints_of_members", "request"]

# Between two rounds over all endpoints.
ROUND_PAUSE_S: Final = 0.2
# How often the progress is asked for, and how long an answer may take.
LOOK_S: Final = 0.3
# A node has this long for a list; it asks the leader itself.
LIST_TIMEOUT_S: Final = 5.0

# A change of the members, by what it makes of one.
_CHANGES: Final = {"voter": "promotion", "copy": "addition", "removed": "removal"}

app = group("The nodes of a cluster: add, remove, promote, list.")


@app.command(
    epilog=examples(
        "raftkv member add d --endpoint http://10.0.0.1:7501",
        "raftkv member add d --address 10.0.0.4:7401 --endpoint http://10.0.0.1:7501",
    )
)
@connected("simple", "json", timeout_s=60.0)
def add(
    at: At,
    name: Annotated[str, typer.Argument(help="The new core, which runs already.")],
    address: Annotated[
        str | None,
        typer.Option("--address", help="HOST:PORT where it listens for nodes, if it is unknown."),
    ] = None,
) -> None:
    """Add a core: it copies the log first and votes once it has caught up.

    Start it before, with an empty data directory and the running cores under the key cores.
    """
    body = {"name": name, "address": address}
    _change("add", body, at)


@app.command(
    epilog=examples(
        "raftkv member remove b --endpoint http://10.0.0.1:7501",
        "raftkv member remove b --force --endpoint http://10.0.0.1:7501",
    )
)
@connected("simple", "json", timeout_s=60.0)
def remove(
    at: At,
    name: Annotated[str, typer.Argument(help="The core, alive or dead; the leader too.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if too few of the rest can be heard to go on."),
    ] = False,
) -> None:
    """Remove a core for good: its data directory is of no use afterwards."""
    body = {"name": name, "force": force}
    _change("remove", body, at)


@app.command(epilog=examples("raftkv member promote replicant1 --dir demo"))
@connected("simple", "json", timeout_s=60.0)
def promote(
    at: At,
    name: Annotated[str, typer.Argument(help="A replicant, or a copy that does not vote yet.")],
) -> None:
    """Make a running replicant a core, or a copy a voter, once it has caught up.

    A promoted replicant is a core by its data directory from then on: its configuration file need
    not be changed.
    """
    _change("promote", {"name": name}, at)


@app.command(epilog=examples("raftkv member forget pod-7f3a --dir demo"))
@connected("simple", "json", timeout_s=60.0)
def forget(
    at: At,
    name: Annotated[str, typer.Argument(help="A replicant, or a removed core, that is down.")],
) -> None:
    """Let a member that is gone hold no plugin format up any more.

    The leader does that by itself once a replicant has been down for an hour. A forgotten member
    may come back if it knows the active formats.
    """
    from .output import print_json

    context = tls_context(at)

    def ask(endpoint: str, left_s: float) -> Any:
        body = {"name": name, "timeout_s": left_s}
        # The node answers at its deadline; that must still arrive.
        path, patience_s = "/v1/members/forget", left_s + 2.0
        return request(endpoint, "POST", path, body, timeout_s=patience_s, context=context)

    found = ask_in_turn(endpoints_of(at), at.timeout_s, ask)
    if at.output == "json":
        print_json({"verb": "forget", **found})
    else:
        typer.echo(f"{name} holds no format up any more")


@app.command("list", epilog=examples("raftkv member list --dir demo --json"))
@connected("table", "json", timeout_s=10.0)
def list_members(
    at: At,
) -> None:
    """Show every node: what it is, where it is, and how far its log reaches."""
    from .output import print_json

    found = ask_in_turn(endpoints_of(at), at.timeout_s, partial(_list, context=tls_context(at)))
    if at.output == "json":
        print_json(found)
        return
    _print_members(found)
    if found["told_by"] != found["leader"]:
        typer.echo(f"no leader answers: this is what {found['told_by']} knows", err=True)


def endpoints_of_members(
    endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None
) -> list[str]:
    """The HTTP addresses of all nodes that have one, by the first of `endpoints` that answers.

    Raises NoLeader if that one knows none: it has applied nothing since its start.
    """
    found = ask_in_turn(endpoints, timeout_s, partial(_list, context=context))
    scheme = endpoints[0].partition("://")[0]
    doors = [row["http_address"] for row in found["members"] if row["standing"] != "removed"]
    known = [f"{scheme}://{address}" for address in doors if address is not None]
    if not known:
        raise NoLeader(
            f"{found['told_by']} knows no node's HTTP address: it has applied nothing since its "
            f"start, as without a quorum. Name the nodes with --endpoint instead of --cluster"
        )
    return known


def ask_in_turn(
    endpoints: Sequence[str], timeout_s: float, ask: Callable[[str, float], Any]
) -> Any:
    """Ask the nodes in turn until one answers; a refusal is an answer. Raises the last error.

    Raises Refused if no node serves what is asked, as during an upgrade.
    """
    from .door_client import NotServed

    deadline = time.monotonic() + timeout_s
    while True:
        serving = False
        for endpoint in endpoints:
            left_s = max(deadline - time.monotonic(), 0.05)
            try:
                return ask(endpoint, left_s)
            except (MembershipRefused, FormatRefused):
                raise
            except (NotApplied, Timeout) as error:
                last: RaftkvError = error
                serving |= not isinstance(error, NotServed)
        if not serving:
            raise Refused(str(last))
        if time.monotonic() + ROUND_PAUSE_S >= deadline:
            raise last
        time.sleep(ROUND_PAUSE_S)


def request(*arguments: Any, **options: Any) -> Any:
    """`door_client.request`, imported late with all that HTTP needs."""
    from . import door_client

    return door_client.request(*arguments, **options)


def _list(endpoint: str, left_s: float, *, context: ssl.SSLContext | None) -> Any:
    timeout_s = min(left_s, LIST_TIMEOUT_S)
    return request(endpoint, "GET", "/v1/members", timeout_s=timeout_s, context=context)


def _change(verb: str, body: dict[str, Any], at: At) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from .output import print_json

    endpoints, context = endpoints_of(at), tls_context(at)
    look = partial(_list, context=context)

    def ask(endpoint: str, left_s: float) -> Any:
        if look(endpoint, left_s)["leader"] is None:
            # It would wait for one until the time is up; the core that is to be added hears none.
            raise NoLeader(f"{endpoint} knows no leader")
        asked = {**body, "timeout_s": left_s}
        # The node answers at its deadline; that must still arrive.
        path, patience_s = f"/v1/members/{verb}", left_s + 2.0
        return request(endpoint, "POST", path, asked, timeout_s=patience_s, context=context)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(ask_in_turn, endpoints, at.timeout_s, ask)
        if verb != "remove":
            _show_progress(
                body["name"], partial(ask_in_turn, endpoints, LIST_TIMEOUT_S, look), done
            )
        done.result()
    found = _listing_after_change(endpoints, look)
    if at.output == "json":
        print_json({"verb": verb, "name": body["name"], **found})
        return
    typer.echo(_outcome(verb, body["name"], found))


def _listing_after_change(
    endpoints: Sequence[str], look: Callable[[str, float], Any]
) -> dict[str, Any]:
    """The members as the leader knows them; with a notice, as another node does if none answers.

    A core that was just removed may answer and still take itself for a voter.
    """

    def of_leader(endpoint: str, left_s: float) -> Any:
        found = look(endpoint, left_s)
        if found["told_by"] != found["leader"]:
            raise NoLeader(f"{endpoint} does not reach the leader")
        return found

    try:
        found: dict[str, Any] = ask_in_turn(endpoints, LIST_TIMEOUT_S, of_leader)
    except (NotApplied, Timeout):
        found = ask_in_turn(endpoints, LIST_TIMEOUT_S, look)
        notice = f"no leader answers, so the list may lack the change: {found['told_by']} gave it"
        typer.echo(notice, err=True)
    return found


def _outcome(verb: str, name: str, found: dict[str, Any]) -> str:
    voters = [row["name"] for row in found["members"] if row["standing"] == "voter"]
    done = f"{name} is no core any more" if verb == "remove" else f"{name} votes"
    may_fail = (len(voters) - 1) // 2
    text = f"{done}; the voters are {', '.join(voters)}"
    if len(voters) % 2 == 0:
        fewer = len(voters) - 1
        text += f". {len(voters)} voters survive the loss of {may_fail}, which {fewer} do as well"
    return text


def _show_progress(name: str, look: Callable[[], Any], done: Future[Any]) -> None:
    """What the new core lacks, until the verb has ended. On stderr: a bar, or lines for a file."""
    with _reporting(name) as report:
        while not done.done():
            with contextlib.suppress(RaftkvError):
                found = look()
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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

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


def _print_members(found: dict[str, Any]) -> None:
    """The nodes as a table, one a row; the leader's name is bold."""
    from .output import Row, Styled, cell, print_table

    def row_of(row: dict[str, Any]) -> Row:
        up: str | Styled = "yes" if row["up"] else Styled("no", "red")
        if row["connected"] is False and row["up"]:
            up = Styled("not connected", "yellow")
        return (
            Styled(row["name"], "bold") if row["leads"] else row["name"],
            _standing(row),
            *(cell(row[key]) for key in ("raft_id", "peer_address", "http_address")),
            up,
            *(cell(row[key]) for key in ("incarnation", "match_index", "lag_entries")),
        )

    def _standing(row: dict[str, Any]) -> str | Styled:
        # Nodes of release 0.1.0 do not tell what is pending.
        pending = row.get("pending")
        if pending is not None:
            return Styled(f"{row['standing']}, {_CHANGES[pending]} pending", "yellow")
        if row.get("distrusted"):
            return Styled(f"{row['standing']}, distrusted", "red")
        return Styled("leader", "green") if row["leads"] else row["standing"]

    numbers = ("INCARNATION", "MATCH", "LAG")
    headings = ("NODE", "STANDING", "RAFT ID", "ADDRESS", "HTTP", "UP", *numbers)
    print_table(headings, map(row_of, found["members"]), numbers)
