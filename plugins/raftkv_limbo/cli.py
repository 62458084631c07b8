"""`raftkv limbo ...`: see the queue and its quorum, change its owner, read and write.

Each command is one or a few requests to `/v1/limbo/...` (door.py); sheets.py turns the answers into
text. A node is promoted and demoted by itself, so its endpoint is looked for among those that are
known: which endpoint answers first must not decide which node owns the queue.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    add_setting,
    confirm,
    connected,
    examples,
    first_answering,
    group,
    note,
    path_part,
    patient,
    print_json,
    print_table,
    say,
    shown,
)
from raftkv.errors import ConfigError, RaftkvError, Refused

from .asked import base64_of, longer_s, named_counts, submit_body
from .sheets import (
    Sheet,
    changed_owner,
    lack_words,
    nodes_sheet,
    queue_sheet,
    quorum_words,
    receipt_words,
    results_sheet,
    rows_sheet,
    spaces_sheet,
    status_words,
    text_of,
    verdict_words,
    verdicts_sheet,
)

__all__ = ["app"]

LIST_MAX: Final = 1_000

app = group("The limbo: transactions that wait for a quorum of your choice.")
spaces_app = group("Spaces: synchronous or not, with their keys.")
app.add_typer(spaces_app, name="space")

Node = Annotated[str, typer.Argument(metavar="NODE", help="The name of the node.")]
SpaceName = Annotated[str, typer.Argument(metavar="SPACE", help="The name of the space.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
Local = Annotated[
    bool, typer.Option("--local", help="From the copy of the node that is asked: may be stale.")
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=LIST_MAX, help="At most so many.")
]
Sight = Annotated[
    str,
    typer.Option(
        "--view",
        metavar="VIEW",
        help="confirmed (of the node that is asked), pending (as if all were confirmed), or "
        "linearizable.",
    ),
]
Kind = Annotated[
    bool | None,
    typer.Option("--sync/--async", help="Whether what writes it waits for the quorum."),
]
GiveUp = Annotated[
    bool,
    typer.Option("--roll-back", help="Do not wait for what is pending: roll it back."),
]


# --- looking --------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "raftkv limbo status --dir demo",
        "raftkv limbo status --json --endpoint http://10.0.0.1:7501",
    )
)
@connected("table", "json")
def status(at: At, local: Local = False) -> None:
    """Owner, queue, quorum, nodes and spaces, and what is wrong."""
    found = Ask(at)("GET", f"/v1/limbo/status{_consistency(local)}")
    if at.output == "json":
        print_json(found)
        return
    _print(nodes_sheet(found["nodes"], found["owner"]))
    if found["spaces"]:
        say("")
        _print(spaces_sheet(found["spaces"]))
    for line in [*status_words(found), *found["advice"]]:
        note(shown(line))


@app.command(epilog=examples("raftkv limbo queue --dir demo"))
@connected("table", "json")
def queue(
    at: At,
    first: Annotated[
        int, typer.Option("--from", metavar="POSITION", min=1, help="From this position on.")
    ] = 1,
    limit: Limit = 100,
    local: Local = False,
) -> None:
    """What is pending, oldest first, and what the oldest one waits for."""
    found = Ask(at)("GET", f"/v1/limbo/queue{_consistency(local, f'from={first}', limit)}")
    if at.output == "json":
        print_json(found)
        return
    _print(queue_sheet(found["entries"]))
    if not found["pending"]:
        note("nothing is pending")
    for line in lack_words(found["lacks"], found["head"]):
        note(shown(line))
    if found["next"]:
        note(f"there are more: --from {found['next']}")


@app.command(
    epilog=examples("raftkv limbo verdicts --dir demo", "raftkv limbo verdicts 17 --wait 10")
)
@connected("table", "json")
def verdicts(
    at: At,
    position: Annotated[
        int | None, typer.Argument(metavar="[POSITION]", min=1, help="Only this one.")
    ] = None,
    wait_s: Annotated[
        float | None,
        typer.Option("--wait", metavar="S", min=0.1, max=600.0, help="Wait for its verdict."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """What became of positions, newest first; or of one, and wait for that.

    With a POSITION: exit code 1 if it was rolled back, or never given; 3 if it is still pending, or
    its verdict is no longer known.
    """
    if position is None:
        if wait_s is not None:
            raise ConfigError("--wait waits for one POSITION: name it")
        found = Ask(at)("GET", f"/v1/limbo/verdicts{_consistency(False, '', limit)}")
        if at.output == "json":
            print_json(found)
        else:
            _print(verdicts_sheet(found["verdicts"], found["now_ms"]))
        return
    query = "" if wait_s is None else f"?wait_s={wait_s}"
    ask = Ask(patient(at, wait_s or 0.0))
    # The door waits; to ask the next one when it has waited in vain would wait anew.
    found = ask("GET", f"/v1/limbo/verdicts/{position}{query}", repeat=wait_s is None)
    _tell_verdict(at, found)


def _tell_verdict(at: At, found: dict[str, Any]) -> None:
    if at.output == "json":
        print_json(found)
    else:
        say(shown(verdict_words(found)))
    match found["fate"]:
        case "rolled back" | "unknown":
            raise Refused(shown(verdict_words(found)))
        case "pending" | "forgotten":
            raise RaftkvError(shown(verdict_words(found)))


# --- the owner ------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "raftkv limbo promote n2 --dir demo", "raftkv limbo promote n2 --roll-back --timeout 30"
    )
)
@connected("simple", "json", timeout_s=15.0)
def promote(at: At, node: Node, roll_back: GiveUp = False) -> None:
    """Make a node the owner of the queue: from now on, it submits.

    Waits until what is pending has its quorum. If it does not get it in time, nothing has changed:
    exit code 3.
    """
    done = Ask(patient(_at_node(at, node)))(
        "POST", "/v1/limbo/promote", _claim(at, node, roll_back), repeat=False
    )
    if at.output == "json":
        print_json(done)
    else:
        say(shown(changed_owner(done, f"{node} owns the queue")))


@app.command(epilog=examples("raftkv limbo demote --dir demo"))
@connected("simple", "json", timeout_s=15.0)
def demote(at: At, roll_back: GiveUp = False) -> None:
    """Let nobody own the queue: synchronous writes are refused until a node is promoted.

    Waits like promote. The owner must be up: if it is not, promote another node.
    """
    owner = Ask(at)("GET", "/v1/limbo/status")["owner"]
    if not owner:
        raise Refused("nobody owns the queue: there is nothing to do")
    done = Ask(patient(_at_node(at, owner)))(
        "POST", "/v1/limbo/demote", _claim(at, owner, roll_back), repeat=False
    )
    if at.output == "json":
        print_json(done)
    else:
        say(shown(changed_owner(done, "nobody owns the queue")))


@app.command(epilog=examples("raftkv limbo rollback 17 --reason 'n3 is lost' --yes --dir demo"))
@connected("simple", "json")
def rollback(
    at: At,
    position: Annotated[int, typer.Argument(metavar="POSITION", min=1, help="The first one.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="What callers and the records are told.")
    ] = "an operator asked for it",
    yes: Yes = False,
) -> None:
    """Roll back a pending transaction and all that wait behind it, newest first.

    Exit code 1 if it is confirmed by then: a confirmed one stays so.
    """
    ask = Ask(patient(at))
    found = ask("GET", f"/v1/limbo/queue?from={position}&limit=1")
    if not yes:
        if not found["entries"]:
            raise Refused(f"nothing is pending from {position} on")
        last = found["last"]
        confirm(f"what is pending from {position} to {last} is undone, for ever.", "rollback")
    body = {
        "position": position,
        # What was decided on what was seen is not done to what came after.
        "term": found["term"],
        "reason": reason,
        "timeout_s": at.timeout_s,
    }
    done = ask("POST", "/v1/limbo/rollback", body, repeat=False)
    if at.output == "json":
        print_json(done)
    else:
        say(f"rolled back {done['entries']}, from {done['first']} to {done['last']}")


# --- quorum and settings --------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "raftkv limbo quorum --dir demo",
        "raftkv limbo quorum N --over members --dir demo",
        "raftkv limbo quorum 'max(2, ceil(N * 2 / 3))' --zone eu=1 --zone us=1 --dir demo",
        "raftkv limbo quorum --validator audit=1 --clear-zones --dir demo",
    )
)
@connected("table", "json")
def quorum(
    at: At,
    expression: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXPRESSION]", help="How many of N nodes: N, + - * / ( ) floor ceil min max."
        ),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option("--over", metavar="cores|members", help="N counts replicants, too: members."),
    ] = None,
    zones: Annotated[
        list[str] | None,
        typer.Option("--zone", metavar="ZONE=N", help="N nodes of a zone, too. 0: no more."),
    ] = None,
    validators: Annotated[
        list[str] | None,
        typer.Option("--validator", metavar="NAME=N", help="N approvals, too. 0: no more."),
    ] = None,
    clear_zones: Annotated[bool, typer.Option("--clear-zones", help="No zones.")] = False,
    clear_validators: Annotated[
        bool, typer.Option("--clear-validators", help="No validators.")
    ] = False,
) -> None:
    """Show the quorum, or change it. A change counts for what is pending, too."""
    ask = Ask(at)
    found = ask("GET", "/v1/limbo/quorum")
    need = found["quorum"]
    body: dict[str, Any] = {}
    if expression is not None:
        body["quorum"] = expression
    if over is not None:
        body["over"] = over
    if zones or clear_zones:
        body["zones"] = named_counts("--zone", need["zones"], zones or [], clear=clear_zones)
    if validators or clear_validators:
        body["validators"] = named_counts(
            "--validator", need["validators"], validators or [], clear=clear_validators
        )
    if body:
        found = ask("PUT", "/v1/limbo/quorum", body)
    if at.output == "json":
        print_json(found)
        return
    _print(results_sheet(found["results"], found["quorum"]["n"]))
    note(shown(quorum_words(found["quorum"])))
    for line in found["warnings"]:
        note(shown(f"warning: {line}"))


add_setting(app, "limbo", "raftkv limbo", "leader_promotes", "true")


# --- spaces ---------------------------------------------------------------------------------------


@spaces_app.command("list", epilog=examples("raftkv limbo space list --dir demo"))
@connected("table", "json")
def list_spaces(at: At) -> None:
    """All spaces."""
    found = Ask(at)("GET", "/v1/limbo/spaces")
    if at.output == "json":
        print_json(found)
    else:
        _print(spaces_sheet(found["spaces"]))


@spaces_app.command(
    "create", epilog=examples("raftkv limbo space create accounts --sync --dir demo")
)
@connected("simple", "json")
def create_space(at: At, name: SpaceName, sync: Kind = None) -> None:
    """Create a space."""
    if sync is None:
        raise ConfigError("say --sync (what writes it waits for the quorum) or --async")
    done = Ask(at)("POST", "/v1/limbo/spaces", {"name": name, "sync": sync}, repeat=False)
    _told_space(at, done, "created")


@spaces_app.command("alter", epilog=examples("raftkv limbo space alter log --async --dir demo"))
@connected("simple", "json")
def alter_space(at: At, name: SpaceName, sync: Kind = None) -> None:
    """Make a space synchronous, or not; what is pending stays what it is."""
    if sync is None:
        raise ConfigError("say --sync or --async")
    done = Ask(_at_owner(at))("PUT", f"/v1/limbo/spaces/{path_part(name)}", {"sync": sync})
    _told_space(at, done, "changed")


@spaces_app.command("drop", epilog=examples("raftkv limbo space drop log --yes --dir demo"))
@connected("simple", "json")
def drop_space(at: At, name: SpaceName, yes: Yes = False) -> None:
    """Drop a space with all its rows."""
    if not yes:
        spaces = Ask(at)("GET", "/v1/limbo/spaces")["spaces"]
        rows = {each["name"]: each["keys"] for each in spaces}
        if name not in rows:
            known = f"the spaces are {', '.join(sorted(rows))}" if rows else "there is none"
            raise Refused(f"there is no space {shown(name)}: {known}")
        confirm(f"{rows[name]} keys of {shown(name)} go.", name)
    ask = Ask(_at_owner(at))
    done = ask("DELETE", f"/v1/limbo/spaces/{path_part(name)}", repeat=False)
    _told_space(at, done, "dropped")


def _told_space(at: At, done: dict[str, Any], what: str) -> None:
    if at.output == "json":
        print_json(done)
    else:
        say(shown(f"{done['name']}: {what}"))


# --- data -----------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "raftkv limbo submit accounts/alice=90 accounts/bob=110 --dir demo",
        "raftkv limbo submit accounts/bob=0 --expect accounts/bob=110 --wait submit --dir demo",
        "raftkv limbo submit --delete accounts/bob --expect-some accounts/bob --dir demo",
        "raftkv limbo submit - --dir demo < transaction.json",
    )
)
@connected("simple", "json", timeout_s=15.0)
def submit(
    at: At,
    writes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPACE/KEY=VALUE]...", help="What is set; - reads JSON."),
    ] = None,
    deletes: Annotated[
        list[str] | None, typer.Option("--delete", metavar="SPACE/KEY", help="A key to delete.")
    ] = None,
    expected: Annotated[
        list[str] | None,
        typer.Option("--expect", metavar="SPACE/KEY=VALUE", help="Only if it has this value."),
    ] = None,
    some: Annotated[
        list[str] | None,
        typer.Option("--expect-some", metavar="SPACE/KEY", help="Only if there is a value."),
    ] = None,
    none: Annotated[
        list[str] | None,
        typer.Option("--expect-none", metavar="SPACE/KEY", help="Only if there is none."),
    ] = None,
    at_position: Annotated[
        list[str] | None,
        typer.Option(
            "--expect-position", metavar="SPACE/KEY=N", help="Only if it was written there."
        ),
    ] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="ordered|independent", help="See docs/limbo.md.")
    ] = "ordered",
    wait: Annotated[
        str,
        typer.Option("--wait", metavar="complete|submit", help="For the verdict, or the queue."),
    ] = "complete",
) -> None:
    """Submit one transaction, on the node that owns the queue.

    Exit code 1 if it was refused or rolled back, 3 if that is not decided yet: then
    `raftkv limbo verdicts POSITION` tells later.
    """
    body = submit_body(
        writes or [],
        deletes=deletes or [],
        values=expected or [],
        some=some or [],
        none=none or [],
        positions=at_position or [],
    )
    if "order" not in body:
        body["order"] = order
    if "wait" not in body:
        body["wait"] = wait
    if "timeout_s" not in body:
        body["timeout_s"] = at.timeout_s
    ask = Ask(patient(_at_owner(at), longer_s(body, at.timeout_s)))
    done = ask("POST", "/v1/limbo/submit", body, repeat=False)
    if at.output == "json":
        print_json(done)
    else:
        say(receipt_words(done))


@app.command(epilog=examples("raftkv limbo get accounts alice --view linearizable --dir demo"))
@connected("simple", "json")
def get(at: At, space: SpaceName, key: Key, view: Sight = "confirmed") -> None:
    """The value of one key. Exit code 1 if there is none."""
    body = {"space": space, "key": base64_of(key), "view": view, "timeout_s": at.timeout_s}
    row = Ask(patient(at))("POST", "/v1/limbo/get", body)["row"]
    if at.output == "json":
        print_json({"row": row})
    elif row is not None:
        say(shown(text_of(row["value"])))
    if row is None:
        raise Refused(f"there is no such key in {shown(space)}")


@app.command(
    "range", epilog=examples("raftkv limbo range accounts --limit 10 --view pending --dir demo")
)
@connected("table", "json")
def range_(
    at: At,
    space: SpaceName,
    start: Annotated[str, typer.Argument(metavar="[START]", help="The first key.")] = "",
    end: Annotated[
        str | None, typer.Argument(metavar="[END]", help="Up to this key, without it.")
    ] = None,
    limit: Limit = 100,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the end.")] = False,
    view: Sight = "confirmed",
) -> None:
    """Keys in order, with their values and where they were written."""
    body = {
        "space": space,
        "start": base64_of(start),
        "end": None if end is None else base64_of(end),
        "limit": limit,
        "reverse": reverse,
        "view": view,
        "timeout_s": at.timeout_s,
    }
    found = Ask(patient(at))("POST", "/v1/limbo/range", body)
    if at.output == "json":
        print_json(found)
        return
    _print(rows_sheet(found["rows"]))
    if found["next"] is not None:
        where = "before" if reverse else "at"
        note(f"there are more: go on {where} {shown(text_of(found['next']))}")


@app.command(epilog=examples("raftkv limbo flush --dir demo"))
@connected("simple", "json", timeout_s=15.0)
def flush(at: At) -> None:
    """Wait until all that was submitted on the owner before is in the queue, or refused."""
    body = {"timeout_s": at.timeout_s}
    done = Ask(patient(_at_owner(at)))("POST", "/v1/limbo/flush", body, repeat=False)
    if at.output == "json":
        print_json(done)
    else:
        say(shown(f"{done['node']}: flushed"))


# --- inside ---------------------------------------------------------------------------------------


def _print(sheet: Sheet) -> None:
    """A table, what cannot be printed escaped; no headings for nothing."""
    if sheet.rows:
        rows = [tuple(shown(each) or "-" for each in row) for row in sheet.rows]
        print_table(sheet.headings, rows, sheet.numbers)


def _consistency(local: bool, first: str = "", limit: int = 0) -> str:
    parts = [first, f"limit={limit}" if limit else "", "consistency=local" if local else ""]
    query = "&".join(part for part in parts if part)
    return f"?{query}" if query else ""


def _claim(at: At, node: str, roll_back: bool) -> dict[str, Any]:
    rest = "roll back" if roll_back else "wait"
    return {"node": node, "rest": rest, "timeout_s": at.timeout_s}


def _at_owner(at: At) -> At:
    """The endpoint of the owner of the queue; as given if no node owns it."""
    owner = Ask(at)("GET", "/v1/limbo/status?consistency=local")["owner"]
    return _at_node(at, owner) if owner else at


def _at_node(at: At, node: str) -> At:
    """The endpoint of one node. Raises RaftkvError if none of those that are known is it."""
    path = "/v1/limbo/status?consistency=local"
    found, silent = first_answering(at, path, lambda answer: answer["node"] == node)
    if found is not None:
        return found
    text = f"{shown(node)} has to be asked itself, and none of the endpoints that answer is it"
    if silent:
        raise RaftkvError(f"{text}; silent: {', '.join(place for place, _ in silent)}")
    raise ConfigError(f"{text}: name its endpoint with --endpoint")
