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
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

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
from raftkv.read_errors import ReadErrors

from .connecting import endpoints_of, tls_context
from .options import At, connected, examples, group
from .quoting import printable
from .saying import note_line, say_line

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

__all__ = ["LIST_TIMEOUT_S", "Nodes", "app", "ask_in_turn", "endpoints_of_members", "request"]

# Between two rounds over all endpoints.
ROUND_PAUSE_S: Final = 0.2
# How long a listing waits for a leader's answer, if others have answered: an election is over then.
ELECTION_S: Final = 3.0
EXIT_FAULT: Final = 3
# How often the progress is asked for, and how long an answer may take.
LOOK_S: Final = 0.3
# A node has this long for a list; it asks the leader itself.
LIST_TIMEOUT_S: Final = 5.0
# While a change is on its way: a look that takes longer would hold up its result.
PROGRESS_TIMEOUT_S: Final = 1.0
ENDPOINTS_AT_ONCE_MAX: Final = 32
# How long a node that is to be added may be unknown before the command states what it waits for.
WAITS_S: Final = 1.0

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

    found = ask_in_turn(endpoints_of(at), at.timeout_s, ask, context=context)
    if at.output == "json":
        print_json({"verb": "forget", **found})
    else:
        say_line(f"{name} holds no format up any more")


@app.command("list", epilog=examples("raftkv member list --dir demo --json"))
@connected("table", "json", timeout_s=10.0)
def list_members(
    at: At,
) -> None:
    """Show every node: what it is, where it is, and how far its log reaches."""
    from .output import print_json

    context = tls_context(at)
    found, of_leader = _best_listing(
        endpoints_of(at), at.timeout_s, partial(_list, context=context)
    )
    if at.output == "json":
        print_json(found)
    else:
        _print_members(found)
    sys.stdout.flush()
    if not of_leader:
        note_line(f"no leader answers: this is what {found['told_by']} knows")
        raise typer.Exit(EXIT_FAULT)


def _best_listing(
    endpoints: Sequence[str], timeout_s: float, look: Callable[[str, float], Any]
) -> tuple[dict[str, Any], bool]:
    """The leader's listing and True; without a leader that of the first node that answers.

    Each endpoint is asked; an election has ELECTION_S to end. Raises the last error if none
    answers.
    """
    began = time.monotonic()
    first: dict[str, Any] | None = None
    while True:
        left_s = max(0.1, timeout_s - (time.monotonic() - began))
        for endpoint in endpoints:
            try:
                found: dict[str, Any] = look(endpoint, left_s / len(endpoints))
            except (NotApplied, Timeout) as error:
                last: RaftkvError = error
                continue
            if found["told_by"] == found["leader"]:
                return found, True
            first = first or found
        waited_s = time.monotonic() - began
        if first is not None and waited_s >= ELECTION_S:
            return first, False
        if waited_s + ROUND_PAUSE_S >= timeout_s:
            if first is None:
                raise last
            return first, False
        time.sleep(ROUND_PAUSE_S)


class Nodes(NamedTuple):
    """The endpoints to ask for all nodes, and the nodes of which no endpoint is known."""

    endpoints: list[str]
    unknown: list[str]


def endpoints_of_members(
    endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None
) -> Nodes:
    """Where all nodes of the cluster are asked, by the leader's listing or the best there is.

    A node that has applied nothing since its start knows the voters from its log, and no HTTP
    address: then `endpoints` are asked too, and the voters that none of them is are `unknown`.
    """
    deadline = time.monotonic() + timeout_s
    found, _ = _best_listing(endpoints, timeout_s, partial(_list, context=context))
    scheme = endpoints[0].partition("://")[0]
    rows = [row for row in found["members"] if row["standing"] != "removed"]
    known = {
        row["name"]: f"{scheme}://{row['http_address']}"
        for row in rows
        if row["http_address"] is not None
    }
    lost = [
        row["name"]
        for row in rows
        # Its row in the log is unknown. A node that has no HTTP API has one.
        if row["incarnation"] is None and row["standing"] in ("voter", "copy")
    ]
    if not lost and known:
        return Nodes(list(known.values()), [])
    left_s = max(deadline - time.monotonic(), 0.1)
    names = _names_at(endpoints, left_s, context)
    # A node is asked once, though its endpoint may have been given in another form.
    others = [url for name, url in known.items() if name not in names]
    every = list(dict.fromkeys([*endpoints, *others]))
    return Nodes(every, [name for name in lost if name not in names])


def _names_at(
    endpoints: Sequence[str], timeout_s: float, context: ssl.SSLContext | None
) -> set[str | None]:
    """The names of the nodes at these endpoints, asked at the same time; None for a silent one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(endpoints), ENDPOINTS_AT_ONCE_MAX)) as pool:
        return set(pool.map(partial(_name_at, timeout_s=timeout_s, context=context), endpoints))


def _name_at(endpoint: str, *, timeout_s: float, context: ssl.SSLContext | None) -> str | None:
    """The name of the node at an endpoint, if it answers."""
    with contextlib.suppress(RaftkvError):
        patience_s = min(timeout_s, LIST_TIMEOUT_S)
        found = request(endpoint, "GET", "/v1/status", timeout_s=patience_s, context=context)
        return str(found.get("name"))
    return None


def ask_in_turn(
    endpoints: Sequence[str],
    timeout_s: float,
    ask: Callable[[str, float], Any],
    *,
    read: bool = False,
    context: ssl.SSLContext | None = None,
) -> Any:
    """Ask the nodes in turn until one answers; a refusal is an answer. Raises the last error.

    `ask` gets an endpoint and the seconds that it may take: all that are left for a node that is
    known to work, a share for another, so that one that hangs leaves time for the rest. `read` is
    that of `in_turn`. Raises Refused if no node serves what is asked, as during an upgrade.
    """
    from .door_client import NotServed, working_first

    errors = ReadErrors()
    deadline, works = time.monotonic() + timeout_s, len(endpoints) == 1
    if not works:
        endpoints, works = working_first(endpoints, timeout_s / 2, context)
    while True:
        serving = False
        for position, endpoint in enumerate(endpoints):
            share = 1 if works and position == 0 else len(endpoints)
            left_s = max((deadline - time.monotonic()) / share, 0.05)
            try:
                return ask(endpoint, left_s)
            except (MembershipRefused, FormatRefused):
                raise
            except (NotApplied, Timeout) as error:
                last = errors.latest(endpoint, error) if read else error
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
    deadline = time.monotonic() + at.timeout_s

    def ask(endpoint: str, left_s: float) -> Any:
        listed = look(endpoint, left_s)
        if listed["told_by"] != listed["leader"]:
            # It would wait for one until the time is up; the core that is to be added hears none.
            raise NoLeader(f"{endpoint} does not reach the leader")
        left_s = max(deadline - time.monotonic(), 0.05)  # that one works: all the time is its own
        asked = {**body, "timeout_s": left_s}
        # The node answers at its deadline; that must still arrive.
        path, patience_s = f"/v1/members/{verb}", left_s + 2.0
        return request(endpoint, "POST", path, asked, timeout_s=patience_s, context=context)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(ask_in_turn, endpoints, at.timeout_s, ask, context=context)
        if verb != "remove":
            _show_progress(
                body["name"],
                partial(ask_in_turn, endpoints, PROGRESS_TIMEOUT_S, look, context=context),
                done,
            )
        done.result()
    found = _listing_after_change(endpoints, look)
    if at.output == "json":
        print_json({"verb": verb, "name": body["name"], **found})
        return
    say_line(_outcome(verb, body["name"], found))


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
        found: dict[str, Any] = ask_in_turn(endpoints, LIST_TIMEOUT_S, of_leader, read=True)
    except (NotApplied, Timeout):
        found = ask_in_turn(endpoints, LIST_TIMEOUT_S, look, read=True)
        notice = f"no leader answers, so the list may lack the change: {found['told_by']} gave it"
        note_line(notice)
    return found


def _outcome(verb: str, name: str, found: dict[str, Any]) -> str:
    voters = [row["name"] for row in found["members"] if row["standing"] == "voter"]
    done = f"{name} is no core any more" if verb == "remove" else f"{name} votes"
    may_fail = (len(voters) - 1) // 2
    if len(voters) == 1:
        return f"{done}; the voter is {voters[0]}"
    text = f"{done}; the voters are {', '.join(voters)}"
    if len(voters) == 2:
        text += ". 2 voters do not survive the loss of one, and neither does 1"
    elif len(voters) % 2 == 0:
        text += (
            f". {len(voters)} voters survive the loss of {may_fail}, and so do {len(voters) - 1}"
        )
    return text


def _show_progress(name: str, look: Callable[[], Any], done: Future[Any]) -> None:
    """What the new core lacks, until the verb has ended. On stderr: a bar, or lines for a file."""
    began = time.monotonic()
    with _reporting(name) as report:
        while not done.done():
            with contextlib.suppress(RaftkvError):
                found = look()
                row = next((row for row in found["members"] if row["name"] == name), None)
                if not done.done():
                    report(row, waits=row is None and time.monotonic() - began >= WAITS_S)
            until = time.monotonic() + LOOK_S
            while not done.done() and time.monotonic() < until:
                time.sleep(0.02)


@contextlib.contextmanager
def _reporting(name: str) -> Iterator[Callable[..., None]]:
    said = ""

    def line(row: dict[str, Any] | None, *, waits: bool) -> None:
        nonlocal said
        text = _stage(name, row, waits=waits)
        if text is not None and text != said:
            said = text
            note_line(text)

    if not sys.stderr.isatty():
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        shown_name = printable(name)
        asking = f"{shown_name}: asking"
        task = progress.add_task(asking, total=None)

        def bar(row: dict[str, Any] | None, *, waits: bool) -> None:
            lag = None if row is None else row["lag_entries"]
            if row is None or lag is None:
                progress.update(task, description=_stage(shown_name, row, waits=waits) or asking)
            else:
                match = row["match_index"]
                progress.update(
                    task, description=f"{shown_name} copies", total=match + lag, completed=match
                )

        yield bar


def _stage(name: str, row: dict[str, Any] | None, *, waits: bool) -> str | None:
    """How far the change is; None before there is any: it may still be refused.

    `waits`: the leader has waited for the node for a while.
    """
    if waits:
        return f"the leader waits for {name} to connect, 10 s at most: is it started?"
    if row is None or row["standing"] in ("replicant", "removed"):
        return None
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
