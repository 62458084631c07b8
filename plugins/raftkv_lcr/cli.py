"""`raftkv lcr ...`: look at the registry, end sessions, and move the cluster between its modes.

Each command is one or a few requests to `/v1/lcr/...` (door.py). A client id may hold any letters:
it is percent-encoded on the way, and escaped in tables where it cannot be printed.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    Stage,
    add_setting,
    cell,
    connected,
    examples,
    group,
    note,
    path_part,
    print_json,
    print_table,
    say,
    shown,
    while_waiting,
)
from raftkv.errors import ConfigError

__all__ = ["app"]

# One answer of the door has at most so many channels.
PAGE_MAX: Final = 1_000

MODES: Final = ("disabled", "migration", "dual", "enabled")

app = group("Whose connection is the one: the Linear Channel Registry.")

Client = Annotated[str, typer.Argument(metavar="CLIENT", help="The client id.")]
Local = Annotated[
    bool, typer.Option("--local", help="From the copy of the node that is asked: may be stale.")
]

add_setting(app, "lcr", "raftkv lcr", "claim_ms", "20000")

_HEADINGS: Final = ("CLIENT", "CHANNEL", "NODE", "INCARNATION", "VERSION", "TICKET")
_NUMBERS: Final = ("INCARNATION", "VERSION", "TICKET")


@app.command(
    epilog=examples(
        "raftkv lcr lookup sensor-17 --dir demo", "raftkv lcr lookup sensor-17 --local --json"
    )
)
@connected("table", "json")
def lookup(at: At, client: Client, local: Local = False) -> None:
    """The channel of a client, and the node that has it.

    Exit code 1 if it has none.
    """
    found = Ask(at)("GET", _of(client) + ("?consistency=local" if local else ""))
    if at.output == "json":
        print_json(found)
    else:
        print_table(_HEADINGS, [_row(found)], _NUMBERS)


@app.command(
    "list",
    epilog=examples(
        "raftkv lcr list --dir demo",
        "raftkv lcr list --from sensor- --limit 0 --json --endpoint http://10.0.0.1:7501",
    ),
)
@connected("table", "json")
def list_channels(
    at: At,
    first: Annotated[
        str, typer.Option("--from", metavar="CLIENT", help="The first client id to show.")
    ] = "",
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only the channels of this node.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="At most so many; 0: all.")
    ] = 100,
) -> None:
    """The registered channels, ordered by client id."""
    ask = Ask(at)
    channels: list[Any] = []
    after: str | None = first
    total = 0
    while after is not None and (limit == 0 or len(channels) < limit):
        size = PAGE_MAX if limit == 0 else min(PAGE_MAX, limit - len(channels))
        query = f"limit={size}&from={path_part(after)}"
        if node is not None:
            query += f"&node={path_part(node)}"
        page = ask("GET", f"/v1/lcr/clients?{query}")
        channels += page["channels"]
        after, total = page["next"], page["total"]
    if at.output == "json":
        print_json({"channels": channels, "next": after, "total": total})
        return
    print_table(_HEADINGS, map(_row, channels), _NUMBERS)
    note(f"{len(channels)} shown; clients with a row: {total}")


@app.command(epilog=examples('raftkv lcr kick sensor-17 --reason "moved to tenant b" --dir demo'))
@connected("simple", "json", timeout_s=15.0)
def kick(
    at: At,
    client: Client,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="What its broker may tell the client.")
    ] = "kicked by an operator",
) -> None:
    """End a client's connection and its session, on whichever node they are.

    Exit code 1 if it has none.
    """
    _end(at, client, "kick", {"reason": reason})


@app.command(epilog=examples("raftkv lcr discard sensor-17 --dir demo"))
@connected("simple", "json", timeout_s=15.0)
def discard(at: At, client: Client) -> None:
    """End a client's session as a clean start of it would: nothing of it is handed over.

    Exit code 1 if it has none.
    """
    _end(at, client, "discard", {})


def _end(at: At, client: str, verb: str, body: dict[str, Any]) -> None:
    # Not repeated: the second time it could meet the connection that the client made since.
    found = Ask(at)("POST", f"{_of(client)}/{verb}", body, repeat=False)
    if at.output == "json":
        print_json(found)
    else:
        say(f"{shown(client)}: {'kicked' if verb == 'kick' else 'discarded'}")


@app.command(
    epilog=examples(
        "raftkv lcr mode --dir demo",
        "raftkv lcr mode enabled --dir demo   (takes the steps, and waits for all nodes)",
    )
)
@connected("table", "json", timeout_s=60.0)
def mode(
    at: At,
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="[disabled|migration|dual|enabled]", help="The mode to switch to."),
    ] = None,
) -> None:
    """Show the mode that the cluster works in, or switch it.

    disabled: the old registry with its lock. migration: reads the newest of both registries, writes
    both. dual: reads the linear registry, writes both. enabled: the linear registry alone. A switch
    takes the steps in between, and returns when all nodes have entered their channels.
    """
    ask = Ask(at)
    if wanted is not None:
        if wanted not in MODES:
            raise ConfigError(f"{wanted!r} is no mode: say one of {', '.join(MODES)}")
        body = {"mode": wanted, "timeout_s": at.timeout_s}
        while_waiting(lambda: ask("PUT", "/v1/lcr/mode", body), lambda: _stage(ask, wanted))
    found = ask("GET", "/v1/lcr/mode?consistency=linearizable")
    if at.output == "json":
        print_json(found)
        return
    print_table(
        ("NODE", "UP", "PROTOCOL", "ADOPTED"),
        [
            (
                each["name"],
                "yes" if each["up"] else "no",
                "old" if each["protocol"] is None else str(each["protocol"]),
                "yes" if each["adopted"] else "no",
            )
            for each in found["nodes"]
        ],
        ("PROTOCOL",),
    )
    note(_sentence(found))


def _stage(ask: Ask, wanted: str) -> Stage:
    found = ask("GET", "/v1/lcr/mode?consistency=local")
    up = [each for each in found["nodes"] if each["up"]]
    late = [each["name"] for each in up if not each["adopted"]]
    text = str(found["mode"])
    if text != wanted:
        text += f", on the way to {wanted}"
    text += (
        f": waiting for {', '.join(late)}" if late else ": all nodes have entered their channels"
    )
    return Stage(text, len(up) - len(late), len(up))


def _sentence(found: dict[str, Any]) -> str:
    text = f"mode {found['mode']} since log index {found['epoch']}"
    if found["effective"] != found["mode"]:
        old = ", ".join(found["old_nodes"])
        text += f"; acting as {found['effective']} while {old} know only the old registry"
    return text


@app.command(
    epilog=examples("raftkv lcr stats --dir demo", "raftkv lcr stats --sweep --json --dir demo")
)
@connected("table", "json")
def stats(
    at: At,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Only what the sweep for orphaned rows has done.")
    ] = False,
) -> None:
    """Counters and sizes of every endpoint, one column each.

    Exit code 3 if one of them does not answer.
    """
    path = "/v1/lcr/sweep" if sweep else "/v1/lcr/stats"
    answers = list(Ask(at).each("GET", path))
    failed = next((error for _, _, error in answers if error is not None), None)
    if at.output == "json":
        print_json(
            [
                {"endpoint": place, "stats": answer, "error": None if error is None else str(error)}
                for place, answer, error in answers
            ]
        )
    else:
        columns = [(place, answer) for place, answer, error in answers if error is None]
        names = list(dict.fromkeys(name for _, answer in columns for name in answer))
        places = [place for place, _ in columns]
        if columns:
            rows = [(name, *(cell(answer.get(name)) for _, answer in columns)) for name in names]
            print_table(("FIGURE", *places), rows, places)
    if failed is not None:
        raise failed


@app.command(epilog=examples("raftkv lcr history sensor-17 --dir demo"))
@connected("table", "json")
def history(at: At, client: Client, local: Local = False) -> None:
    """When the last channel of a client left, and which it was.

    Kept for as long as the replicated setting history_ms says; its default, 0, keeps nothing. Exit
    code 1 if nothing is known.
    """
    found = Ask(at)("GET", f"{_of(client)}/history" + ("?consistency=local" if local else ""))
    if at.output == "json":
        print_json(found)
        return
    row = (*_row(found["channel"]), f"{found['age_ms'] / 1000:.1f}")
    print_table((*_HEADINGS, "LEFT, S AGO"), [row], (*_NUMBERS, "LEFT, S AGO"))


def _of(client: str) -> str:
    if not client:
        raise ConfigError("the CLIENT is empty: name a client id")
    return f"/v1/lcr/clients/{path_part(client)}"


def _row(channel: dict[str, Any]) -> tuple[str, ...]:
    named = (shown(channel["client_id"]), shown(channel["channel"]), channel["node"])
    return (*named, *(cell(channel[key]) for key in ("incarnation", "version", "ticket")))
