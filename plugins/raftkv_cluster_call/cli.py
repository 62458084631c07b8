"""`raftkv calls ...`: see where every node stands, make a call, and mend what is stuck.

Each command is one or a few requests to `/v1/calls/...` (door.py); sheets.py turns the answers into
text. A node is always named where one is meant: which endpoint answers must not decide which node
is skipped.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    Stage,
    add_setting,
    confirm,
    connected,
    examples,
    group,
    note,
    patient,
    print_json,
    print_table,
    say,
    shown,
    while_waiting,
)
from raftkv.errors import ConfigError, RaftkvError, Refused

from .sheets import (
    Sheet,
    advice,
    attempts_sheet,
    call_sheet,
    calls_sheet,
    functions_sheet,
    keys_sheet,
    log_words,
    nodes_sheet,
    operated_words,
    result_sheet,
    unchanged,
    verdicts_sheet,
)

__all__ = ["app"]

# One answer of the door has at most so many calls.
CALLS_MAX: Final = 1_000

app = group("Cluster calls: every node runs every call, in one order.")

add_setting(app, "calls", "raftkv calls", "history_max", "200")

Node = Annotated[str, typer.Argument(metavar="NODE", help="The name of the node.")]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, help="The id of the call.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]


# --- looking --------------------------------------------------------------------------------------


@app.command(
    epilog=examples(
        "raftkv calls status --dir demo",
        "raftkv calls status --all --limit 100 --json --endpoint http://10.0.0.1:7501",
    )
)
@connected("table", "json")
def status(
    at: At,
    every: Annotated[bool, typer.Option("--all", help="Aborted calls, too.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=CALLS_MAX, help="At most so many.")
    ] = 10,
    local: Annotated[
        bool, typer.Option("--local", help="From the copy of the node that is asked: may be stale.")
    ] = False,
) -> None:
    """Where every node stands, the newest calls, and what is wrong.

    The node that was asked comes first.
    """
    found = Ask(at)("GET", f"/v1/calls/status?{_query(every, limit, local)}")
    if at.output == "json":
        print_json(found)
        return
    _print(nodes_sheet(found["nodes"]))
    if found["calls"]:
        say("")
        _print(calls_sheet(found["calls"], found["now_ms"]))
    note(log_words(found))
    for line in advice(found):
        note(shown(line))


@app.command(epilog=examples("raftkv calls query 17 --dir demo"))
@connected("table", "json")
def query(at: At, id: Id) -> None:
    """One call, and the nodes that have yet to execute it.

    Exit code 1 if it was never made, or is trimmed from the history.
    """
    ask = Ask(at)
    found = ask("GET", f"/v1/calls/calls/{id}")
    if at.output == "json":
        print_json(found)
        return
    _print(call_sheet(found))


@app.command(epilog=examples("raftkv calls functions --dir demo"))
@connected("table", "json")
def functions(at: At) -> None:
    """The functions that are registered, at every endpoint.

    A node that lacks one that is called fails that call until it has it. Exit code 3 if an endpoint
    does not answer.
    """
    answers = list(Ask(at).each("GET", "/v1/calls/functions"))
    failed = next((error for _, _, error in answers if error is not None), None)
    known = [answer for _, answer, error in answers if error is None]
    if at.output == "json":
        print_json(
            [
                {
                    "endpoint": place,
                    "answer": answer,
                    "error": None if error is None else str(error),
                }
                for place, answer, error in answers
            ]
        )
    elif known:
        _print(functions_sheet(known))
    if failed is not None:
        raise failed


# --- calling --------------------------------------------------------------------------------------


@app.command(
    "call",
    epilog=examples(
        """raftkv calls call conf.set '{"path": "log.level", "value": "debug"}' --dir demo""",
        "raftkv calls call cache.clear --required 2 --timeout 30 --dir demo",
        "raftkv calls call cache.clear --required n1,n2 --json --dir demo",
    ),
)
@connected("table", "json", timeout_s=120.0)
def call_function(
    at: At,
    function: Annotated[str, typer.Argument(metavar="FUNCTION", help="Its registered name.")],
    args: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="The arguments; null if left out.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", min=1, help="Default: the newest registered one."),
    ] = None,
    required: Annotated[
        str,
        typer.Option(
            "--required",
            metavar="all|N|NODE,NODE",
            help="Who must have executed it before the command ends.",
        ),
    ] = "all",
) -> None:
    """Call a function on all nodes, and wait for those that are required.

    The node that is asked runs it first; if it fails there, nobody else runs it: exit code 1. Exit
    code 3 if it was committed and required nodes have not executed it in time, or are down; they
    will when they can.
    """
    body = {
        "function": function,
        "args": _json(args),
        "version": version,
        "required": _required(required),
        "timeout_s": at.timeout_s,
    }
    done = Ask(patient(at))("POST", "/v1/calls/call", body, repeat=False)
    if at.output == "json":
        print_json(done)
    else:
        _print(result_sheet(done))
    nodes = ", ".join(done["nodes"])
    match done["outcome"]:
        case "init_failure":
            raise Refused(
                f"the function failed on its initiator, nobody else runs it: {_failure(done)}"
            )
        case "peers_lagging":
            raise RaftkvError(f"call {done['id']} is committed, not executed yet by {nodes}")
        case "stopped_nodes":
            raise RaftkvError(f"call {done['id']} is committed; down, and pending, are {nodes}")


# --- mending --------------------------------------------------------------------------------------


@app.command(epilog=examples("raftkv calls skip n2 --dir demo"))
@connected("table", "json", timeout_s=120.0)
def skip(at: At, node: Node) -> None:
    """Let a node run its next call once more, then pass it, whatever comes out.

    Its data may differ from the others' afterwards: `raftkv calls fix` compares.
    """
    body = {"node": node, "timeout_s": at.timeout_s}
    _print_skipped(at, Ask(patient(at))("POST", "/v1/calls/skip", body, repeat=False))


@app.command("fast-forward", epilog=examples("raftkv calls fast-forward n2 17 --dir demo"))
@connected("table", "json", timeout_s=120.0)
def fast_forward(at: At, node: Node, id: Id) -> None:
    """Skip a node's calls up to an id, each after one more attempt.

    At most to the last id there is; nothing happens if the node is there already. A node in state
    gap goes on at the id with the data that it has.
    """
    body = {"node": node, "id": id, "timeout_s": at.timeout_s}
    # To send it twice does no harm: the second time there is nothing left to do.
    _print_skipped(at, Ask(patient(at))("POST", "/v1/calls/fast-forward", body))


@app.command(epilog=examples("raftkv calls fix --dir demo", "raftkv calls fix --json --dir demo"))
@connected("table", "json", timeout_s=120.0)
def fix(at: At) -> None:
    """Compare what calls have made of the nodes, and make them equal to the most advanced one.

    Nodes with its data get its place; others take a copy. Never changed are nodes that have its
    place and other data: exit code 1, and their keys (no values) are listed. Exit code 3 if the log
    moved meanwhile, or a node did not answer; then nothing was changed.
    """
    ask = Ask(patient(at))
    found = while_waiting(
        lambda: ask("POST", "/v1/calls/fix", {"timeout_s": at.timeout_s}, repeat=False),
        lambda: _stage(ask),
    )
    if at.output == "json":
        print_json(found)
    else:
        _print_fixed(found)
    match found["verdict"]:
        case "differs":
            names = ", ".join(each["node"] for each in unchanged(found))
            raise Refused(
                f"other data than on {found['lead']}, and no call is pending: {names}. Mend it "
                f"there, or let the node copy all anew: raftkv calls leave, then rejoin"
            )
        case "moved" | "unreachable":
            raise RaftkvError(f"nothing was changed: {found['reason']}")
    if found["copying"]:
        raise RaftkvError(f"still copying: {', '.join(found['copying'])}; see raftkv calls status")


@app.command(epilog=examples("raftkv calls reset --yes --dir demo"))
@connected("simple", "json", timeout_s=15.0)
def reset(at: At, yes: Yes = False) -> None:
    """Forget all records and let every node follow from the last id on. Ids go on.

    What a node has not executed by then, it never will.
    """
    ask = Ask(at)
    if not yes:
        found = ask("GET", "/v1/calls/status?limit=1")
        behind = [each["name"] for each in found["nodes"] if each["lag"]]
        whom = f"{', '.join(behind)} will never execute" if behind else "no node misses"
        confirm(f"{whom} what is pending; all records up to {found['last']} go.", "reset")
    _print_operated(at, ask("POST", "/v1/calls/reset", {}, repeat=False))


# --- coming and going -----------------------------------------------------------------------------


@app.command(epilog=examples("raftkv calls leave n3 --dir demo"))
@connected("simple", "json", timeout_s=30.0)
def leave(at: At, node: Node) -> None:
    """Take a running node out of the calls: it executes none and makes none, until rejoin.

    It stays a member of the cluster. Nobody waits for it.
    """
    _print_operated(at, Ask(at)("POST", "/v1/calls/leave", {"node": node}))


@app.command(epilog=examples("raftkv calls rejoin n3 --dir demo"))
@connected("simple", "json", timeout_s=30.0)
def rejoin(at: At, node: Node) -> None:
    """Let a node that has left take part again, as a new one: it copies the others' state."""
    _print_operated(at, Ask(at)("POST", "/v1/calls/rejoin", {"node": node}))


@app.command("force-leave", epilog=examples("raftkv calls force-leave n3 --yes --dir demo"))
@connected("simple", "json", timeout_s=15.0)
def force_leave(at: At, node: Node, yes: Yes = False) -> None:
    """Take the place of a node that is down and will not be back soon.

    The history can be trimmed then. When it comes back it joins anew, with a copy of the others'
    state. Refused while it is up.
    """
    ask = Ask(at)
    if not yes:
        nodes = ask("GET", "/v1/calls/status?limit=1")["nodes"]
        up = {each["name"]: each["up"] for each in nodes}
        if up.get(node) is not False:
            raise Refused(
                f"{node} is up: let it leave by itself"
                if node in up
                else f"{node} is no node of this cluster: its nodes are {', '.join(up)}"
            )
        confirm(f"{node} loses its place; what only it had executed is lost with it.", node)
    _print_operated(at, ask("POST", "/v1/calls/force-leave", {"node": node}))


@app.command(epilog=examples("raftkv calls acknowledge 17 --dir demo"))
@connected("simple", "json", timeout_s=30.0)
def acknowledge(at: At, id: Id) -> None:
    """Clear the alarm of a call that was aborted though its initiator may have run it.

    Do it when its effect there has been looked after. Exit code 1 if there is no such alarm.
    """
    ask = Ask(at)
    found = ask("GET", "/v1/calls/status?limit=1")
    node = next((row["node"] for row in found["lost"] if row["id"] == id), None)
    if node is None:
        known = ", ".join(str(row["id"]) for row in found["lost"]) or "none"
        raise Refused(f"call {id} waits for no acknowledgement; those that do: {known}")
    _print_operated(at, ask("POST", "/v1/calls/acknowledge", {"id": id, "node": node}))


# --- what is printed ------------------------------------------------------------------------------


def _print(sheet: Sheet) -> None:
    """A table, what cannot be printed escaped; no headings for nothing."""
    if sheet.rows:
        rows = [tuple(shown(each) or "-" for each in row) for row in sheet.rows]
        print_table(sheet.headings, rows, sheet.numbers)


def _print_skipped(at: At, found: dict[str, Any]) -> None:
    if at.output == "json":
        print_json(found)
        return
    _print(attempts_sheet(found["attempts"]))
    note(f"{found['node']} stands at {found['cursor']}, the last id is {found['last']}")
    if not all(each["ok"] for each in found["attempts"]):
        note("its data may differ now: raftkv calls fix compares the nodes")


def _print_fixed(found: dict[str, Any]) -> None:
    _print(verdicts_sheet(found))
    keys = keys_sheet(found)
    if keys.rows:
        say("")
        _print(keys)
    if found["verdict"] in ("moved", "unreachable"):
        # The error says why.
        return
    if found["copying"]:
        note(f"{found['verdict']}: all others that were compared stand at {found['id']}")
    else:
        note(f"{found['verdict']}: all that was compared stands at {found['id']}")
    for each in found["skipped"]:
        ids = ", ".join(map(str, each["ids"]))
        note(f"{each['node']} never executed and passed over: {ids}")
    if found["skipped"]:
        note(found["reason"])
    for each in found.get("copied", ()):  # a node of an earlier release does not tell
        ids = ", ".join(map(str, each["ids"]))
        note(f"{each['node']} has a copy of what these calls did to the states only: {ids}")
    if found["passed_over"]:
        ids = ", ".join(map(str, found["passed_over"]))
        note(f"committed, executed by no node that is left, and passed over: {ids}")


def _print_operated(at: At, found: dict[str, Any]) -> None:
    if at.output == "json":
        print_json(found)
    else:
        say(operated_words(found))


# --- inside ---------------------------------------------------------------------------------------


def _stage(ask: Ask) -> Stage:
    found = ask("GET", "/v1/calls/status?consistency=local&limit=1")
    nodes = [each for each in found["nodes"] if each["up"] and each["cursor"] is not None]
    copying = [each["name"] for each in nodes if each["state"] != "following"]
    if copying:
        return Stage(f"copying: {', '.join(copying)}", len(nodes) - len(copying), len(nodes))
    return Stage("comparing the nodes")


def _query(every: bool, limit: int, local: bool) -> str:
    parts = [f"limit={limit}"]
    parts += ["all=true"] if every else []
    parts += ["consistency=local"] if local else []
    return "&".join(parts)


def _required(text: str) -> str | int | list[str]:
    if text == "all":
        return text
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return int(text)
    names = text.split(",")
    if not all(names):
        raise ConfigError(f"--required is {text!r}: say all, a number, or names with commas")
    return names


def _json(text: str | None) -> Any:
    if text is None:
        return None
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the arguments are not JSON ({error}): quote them for the shell, as in "
            f"""'{{"path": "log.level"}}'"""
        ) from None


def _failure(done: dict[str, Any]) -> str:
    error = done["error"] or {"kind": "unknown", "reason": ""}
    return f"{error['kind']}: {shown(error['reason'])}" if error["reason"] else str(error["kind"])
