"""`raftkv queue ...` and `raftkv dtx ...`: queues with their messages, and branches in doubt.

Each command is one or a few requests to `/v1/txqueue/...` (door.py); sheets.py turns the answers
into text. `queue get` works in a session, which belongs to the node that it was opened at: all its
requests go to the first endpoint that answers. It prints messages before it accepts them, so that
one that was printed may come again, and none is lost.

`dtx commit` and `dtx rollback` are the coordinator's own verbs: whoever types them is the
coordinator, and the xid is free afterwards. With `--heuristic` an operator decides in its stead,
and the branch stays until the coordinator has been told.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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

from .asked import bodies_of, header_pairs, messages_of, txid_of, xid_of
from .sheets import (
    Sheet,
    branches_sheet,
    browsed_sheet,
    content_sheet,
    declared_words,
    fate_words,
    outcome_words,
    queue_words,
    queues_sheet,
    some,
    status_words,
    text_of,
)

__all__ = ["groups"]

LIST_MAX: Final = 1_000

queue_app = group("Transactional queues and their messages.")
dtx_app = group("Distributed transactions: branches that are in doubt.")

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
XidText = Annotated[
    str, typer.Argument(metavar="XID", help="format:global:branch, the last two in hexadecimal.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
Local = Annotated[
    bool, typer.Option("--local", help="From the copy of the node that is asked: may be stale.")
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=LIST_MAX, help="At most so many.")
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="What whoever asks later is told.")
]
ByHand = Annotated[
    bool,
    typer.Option(
        "--heuristic", help="Instead of its coordinator, who is told so; then dtx forget."
    ),
]


def groups() -> Mapping[str, typer.Typer]:
    """The plugin's command groups by name."""
    return {"queue": queue_app, "dtx": dtx_app}


# --- queues ---------------------------------------------------------------------------------------


@queue_app.command("list", epilog=examples("raftkv queue list --dir demo"))
@connected("table", "json")
def list_queues(at: At, local: Local = False) -> None:
    """All queues with what is in them."""
    found = Ask(at)("GET", f"/v1/txqueue/queues{_query(local)}")
    if at.output == "json":
        print_json(found)
    else:
        _print(queues_sheet(found["queues"]))


@queue_app.command(epilog=examples("raftkv queue status --dir demo"))
@connected("simple", "json")
def status(at: At, local: Local = False) -> None:
    """All queues, sessions and transactions in a few figures."""
    found = Ask(at)("GET", f"/v1/txqueue/status{_query(local)}")
    if at.output == "json":
        print_json(found)
        return
    for line in status_words(found):
        say(shown(line))


@queue_app.command(
    epilog=examples(
        "raftkv queue declare orders --dir demo",
        "raftkv queue declare recent --depth-max 1000 --overflow drop_oldest --dir demo",
        "raftkv queue declare dead --dir demo",
        "raftkv queue declare orders --deliveries-max 5 --dead-letter dead --dir demo",
        "raftkv queue declare quotes --ttl-ms 60000 --dir demo",
        "raftkv queue declare orders --depth-max 5000 --change --dir demo",
    )
)
@connected("simple", "json")
def declare(
    at: At,
    queue: QueueName,
    depth_max: Annotated[
        int | None, typer.Option("--depth-max", metavar="N", min=0, help="Messages; 0: no limit.")
    ] = None,
    bytes_max: Annotated[
        int | None, typer.Option("--bytes-max", metavar="N", min=0, help="Bytes; 0: no limit.")
    ] = None,
    overflow: Annotated[
        str | None,
        typer.Option("--overflow", metavar="refuse|drop_oldest", help="What happens beyond them."),
    ] = None,
    deliveries_max: Annotated[
        int | None,
        typer.Option("--deliveries-max", metavar="N", min=0, help="Then it is dead; 0: never."),
    ] = None,
    dead_letter: Annotated[
        str | None,
        typer.Option("--dead-letter", metavar="QUEUE", help='Where dead ones go; "": away.'),
    ] = None,
    ack_timeout_ms: Annotated[
        int | None,
        typer.Option(
            "--ack-timeout-ms",
            metavar="MS",
            min=0,
            help="A session that holds a message for longer is ended; 0: off.",
        ),
    ] = None,
    ttl_ms: Annotated[
        int | None,
        typer.Option(
            "--ttl-ms",
            metavar="MS",
            min=0,
            help="Messages that are available for longer are dead; 0: off.",
        ),
    ] = None,
    change: Annotated[
        bool, typer.Option("--change", help="Give an existing queue these limits.")
    ] = False,
) -> None:
    """Make a queue, with no limit that is left out. One that exists keeps what is left out; other
    limits than it has are refused without --change."""
    body = {
        "depth_max": depth_max,
        "bytes_max": bytes_max,
        "overflow": overflow,
        "deliveries_max": deliveries_max,
        "dead_letter": dead_letter,
        "ack_timeout_ms": ack_timeout_ms,
        "ttl_ms": ttl_ms,
        "change": change,
    }
    done = Ask(at)("PUT", _queue(queue), body)
    _tell(at, done, declared_words(done))


@queue_app.command(
    epilog=examples("raftkv queue delete old --if-empty", "raftkv queue delete old --yes")
)
@connected("simple", "json")
def delete(
    at: At,
    queue: QueueName,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only without messages.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if none is acquired.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a queue with its messages."""
    ask = Ask(at)
    if not yes and not if_empty:
        found = ask("GET", _queue(queue))
        confirm(f"what goes of {shown(queue)}: {some(found['depth'], 'message')}.", queue)
    flags = [f"{name}=true" for name, on in _flags(if_empty, if_unused) if on]
    query = f"?{'&'.join(flags)}" if flags else ""
    done = ask("DELETE", f"{_queue(queue)}{query}", repeat=False)
    _tell(at, done, f"{done['queue']}: deleted, with {some(done['messages'], 'message')}")


def _flags(if_empty: bool, if_unused: bool) -> tuple[tuple[str, bool], ...]:
    return (("if_empty", if_empty), ("if_unused", if_unused))


@queue_app.command(epilog=examples("raftkv queue purge orders --yes --dir demo"))
@connected("simple", "json", timeout_s=60.0)
def purge(at: At, queue: QueueName, yes: Yes = False) -> None:
    """Remove what is available; what sessions hold stays."""
    ask = Ask(at)
    if not yes:
        found = ask("GET", _queue(queue))
        confirm(f"what goes of {shown(queue)}: {some(found['ready'], 'message')}.", queue)
    done = ask("POST", f"{_queue(queue)}/purge", {})
    _tell(at, done, f"{done['queue']}: {some(done['purged'], 'message')} removed")


@queue_app.command(epilog=examples("raftkv queue depth orders --dir demo"))
@connected("simple", "json")
def depth(at: At, queue: QueueName, local: Local = False) -> None:
    """How many messages are in a queue (on stdout), and what else is known of it."""
    found = Ask(at)("GET", f"{_queue(queue)}{_query(local)}")
    _tell(at, found, str(found["depth"]))
    if at.output != "json":
        for line in queue_words(found):
            note(shown(line))


@queue_app.command(
    epilog=examples(
        "raftkv queue browse orders --dir demo",
        "raftkv queue browse orders --all --from 17 --limit 10 --json --dir demo",
    )
)
@connected("table", "json")
def browse(
    at: At,
    queue: QueueName,
    first: Annotated[
        int, typer.Option("--from", metavar="SEQ", min=1, help="From this number on.")
    ] = 1,
    limit: Limit = 100,
    everything: Annotated[
        bool, typer.Option("--all", help="Those that sessions hold, too, and which session does.")
    ] = False,
    local: Local = False,
) -> None:
    """Look at messages, oldest first, and take none."""
    more = ("all=true",) if everything else ()
    query = _query(local, f"from={first}", f"limit={limit}", *more)
    found = Ask(at)("GET", f"{_queue(queue)}/messages{query}")
    if at.output == "json":
        print_json(found)
        return
    _print(browsed_sheet(found["messages"], found["now_ms"], everything))
    if found["next"]:
        note(f"there are more: --from {found['next']}")


@queue_app.command(
    "end-session",
    epilog=examples(
        "raftkv queue browse orders --all --dir demo",
        "raftkv queue end-session 7 --reason 'it hangs since noon' --yes --dir demo",
    ),
)
@connected("simple", "json")
def end_session(
    at: At,
    session: Annotated[
        int, typer.Argument(metavar="SESSION", min=1, help="Its number, as browse --all shows it.")
    ],
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """End a session that hangs, on whatever node: what it holds goes back, counted as delivered.

    Its open transaction is rolled back; what was prepared stands. Exit code 1 if it has ended.
    """
    if not yes:
        confirm(f"what ends: session {session}, with its open transaction.", str(session))
    body = {"reason": reason, "timeout_s": at.timeout_s}
    path = f"/v1/txqueue/sessions/{session}/end"
    done = Ask(patient(at))("POST", path, body, repeat=False)
    back = f"{some(done['held'], 'message')} {'goes' if done['held'] == 1 else 'go'} back"
    tx = "; its transaction was rolled back" if done["rolled_back"] else ""
    _tell(at, done, f"session {done['session']}: ended; {back}{tx}")


# --- messages -------------------------------------------------------------------------------------


@queue_app.command(
    epilog=examples(
        "raftkv queue publish orders 'order 17' 'order 18' --dir demo",
        "raftkv queue publish orders --header kind=new --dir demo < order.json",
        "raftkv queue publish orders --lines --dir demo < orders.txt",
    )
)
@connected("simple", "json")
def publish(
    at: At,
    queue: QueueName,
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="[BODY]...", help="A message each; - is stdin.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Of each of them.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of stdin is a message.")
    ] = False,
    ttl_s: Annotated[
        float | None,
        typer.Option("--ttl", metavar="S", min=0.001, max=10**9, help="Then it is dead."),
    ] = None,
    delay_s: Annotated[
        float | None,
        typer.Option("--delay", metavar="S", min=0.001, max=10**9, help="Then it is available."),
    ] = None,
) -> None:
    """Publish messages: all of them, or none. Exit code 3 if that is not known.

    --delay is in seconds of the log's clock. After --ttl seconds more a message is dead.
    """
    times = {"ttl_s": ttl_s, "delay_s": delay_s}
    messages = messages_of(bodies_of(bodies or [], lines=lines), header_pairs(headers or []), times)
    body = {"messages": messages, "timeout_s": at.timeout_s}
    done = Ask(patient(at))("POST", f"{_queue(queue)}/publish", body, repeat=False)
    _tell(at, done, f"{done['queue']}: {_numbers(done['first'], done['last'])}")


@queue_app.command(
    epilog=examples(
        "raftkv queue get orders --dir demo",
        "raftkv queue get orders --count 10 --wait 5 --json --dir demo",
        "raftkv queue get orders --then release --dir demo",
    )
)
@connected("simple", "json")
def get(
    at: At,
    queue: QueueName,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=LIST_MAX, help="At most so many.")
    ] = 1,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, max=600.0, help="Wait for the first.")
    ] = 0.0,
    then: Annotated[
        str,
        typer.Option(
            "--then",
            metavar="accept|release|reject|to_back",
            help="What becomes of them when printed.",
        ),
    ] = "accept",
) -> None:
    """Take messages and print their bodies, a line each. Exit code 1 if there is none."""
    if then not in ("accept", "release", "reject", "to_back"):
        raise ConfigError(f"--then is {shown(then)}: say accept, release, reject, or to_back")
    ask = Ask(patient(_one_node(at), wait_s))
    session = ask("POST", "/v1/txqueue/sessions", {"timeout_s": at.timeout_s}, repeat=False)
    place = f"/v1/txqueue/sessions/{session['session']}"
    try:
        asked = {"queue": queue, "count": count, "wait_s": wait_s}
        found = ask("POST", f"{place}/get", asked, repeat=False)["messages"]
        _print_messages(at, found)
        if found:
            done = {"queue": queue, "seqs": [each["seq"] for each in found], "how": then}
            ask("POST", f"{place}/settle", done)
    finally:
        _close(ask, place)
    if not found:
        raise Refused(f"nothing is available in {shown(queue)}")


def _print_messages(at: At, found: list[dict[str, Any]]) -> None:
    """On stdout, and out of this process, before they are accepted."""
    for each in found:
        if at.output == "json":
            print_json(each)
        else:
            say(shown(text_of(each["body"])))
    sys.stdout.flush()


def _close(ask: Ask, place: str) -> None:
    try:
        ask("DELETE", place, repeat=False)
    except RaftkvError as error:
        note(f"the session is left to its time-out: {error}")


@queue_app.command(epilog=examples("raftkv queue outcome 12.7 --dir demo"))
@connected("simple", "json")
def outcome(
    at: At,
    txid: Annotated[str, typer.Argument(metavar="TXID", help="SESSION.COUNTER, like 12.7.")],
) -> None:
    """What became of a local transaction.

    Exit code 1 if it was rolled back or there is none; 3 if it is not decided, or forgotten.
    """
    found = Ask(at)("GET", f"/v1/txqueue/tx/{txid_of(txid)}")
    _tell(at, found, fate_words(found))
    match found["state"]:
        case "rolled back" | "unknown":
            raise Refused(shown(fate_words(found)))
        case "active" | "preparing" | "forgotten":
            raise RaftkvError(shown(fate_words(found)))


def _number(key: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        raise ConfigError(f"{shown(key)} is a number, not {shown(value)}; or say default")
    return int(value)


add_setting(queue_app, "txqueue", "raftkv queue", "message_bytes_max", "1048576", parse=_number)


# --- branches -------------------------------------------------------------------------------------


@dtx_app.command("list", epilog=examples("raftkv dtx list --dir demo"))
@connected("table", "json")
def list_branches(at: At, local: Local = False) -> None:
    """All branches: active, prepared, failed, and decided by hand."""
    _print_branches(at, Ask(at)("GET", f"/v1/txqueue/dtx{_query(local)}"))


@dtx_app.command(epilog=examples("raftkv dtx recover --dir demo"))
@connected("table", "json")
def recover(at: At) -> None:
    """Branches that wait for their coordinator, and those that were decided by hand."""
    _print_branches(at, Ask(at)("GET", "/v1/txqueue/dtx/recover"))


@dtx_app.command(
    epilog=examples(
        "raftkv dtx commit 1:6f72646572:01 --dir demo",
        "raftkv dtx commit 1:6f72646572:01 --heuristic --reason 'coordinator lost' --yes",
    )
)
@connected("simple", "json", timeout_s=20.0)
def commit(
    at: At,
    xid: XidText,
    heuristic: ByHand = False,
    one_phase: Annotated[
        bool, typer.Option("--one-phase", help="One that is ended and not prepared.")
    ] = False,
    reason: Reason = "an operator asked for it",
    yes: Yes = False,
) -> None:
    """Commit a prepared branch. Exit code 1 if it was rolled back."""
    if heuristic and one_phase:
        raise ConfigError("--heuristic is for prepared branches: leave out --one-phase")
    _ask_before(at, xid, "commit", heuristic, yes)
    if heuristic:
        _decide(at, xid, "heuristic", {"decide": "commit", "reason": reason})
    else:
        _decide(at, xid, "commit", {"one_phase": one_phase, "timeout_s": at.timeout_s})


@dtx_app.command(
    epilog=examples(
        "raftkv dtx rollback 1:6f72646572:01 --dir demo",
        "raftkv dtx rollback 1:6f72646572:01 --heuristic --reason 'coordinator lost' --yes",
    )
)
@connected("simple", "json")
def rollback(
    at: At,
    xid: XidText,
    heuristic: ByHand = False,
    reason: Reason = "an operator asked for it",
    yes: Yes = False,
) -> None:
    """Roll back a branch that no session works in, prepared or not."""
    _ask_before(at, xid, "rollback", heuristic, yes)
    if heuristic:
        _decide(at, xid, "heuristic", {"decide": "rollback", "reason": reason})
    else:
        _decide(at, xid, "rollback", {"timeout_s": at.timeout_s})


@dtx_app.command(epilog=examples("raftkv dtx forget 1:6f72646572:01 --dir demo"))
@connected("simple", "json")
def forget(at: At, xid: XidText) -> None:
    """Let go of a branch that was decided by hand: its coordinator knows, or never will."""
    _decide(at, xid, "forget", {"timeout_s": at.timeout_s})


@dtx_app.command(
    "outcome",
    epilog=examples(
        "raftkv dtx outcome 1:6f72646572:01 --dir demo",
        "raftkv dtx outcome 1:6f72646572:01 --queue orders --from 101 --json --dir demo",
    ),
)
@connected("simple", "json")
def branch_outcome(
    at: At,
    xid: XidText,
    queue: Annotated[
        str, typer.Option("--queue", metavar="QUEUE", help="Its content of this queue only.")
    ] = "",
    first: Annotated[
        int, typer.Option("--from", metavar="SEQ", min=1, help="Accepted ones from this on.")
    ] = 1,
    limit: Limit = 100,
) -> None:
    """What became of a branch, or what it is now and contains. Exit code 1 if it is unknown."""
    of = (f"queue={path_part(queue)}",) if queue else ()
    query = _query(False, *of, f"from={first}", f"limit={limit}")
    found = Ask(at)("GET", f"/v1/txqueue/dtx/{xid_of(xid)}{query}")
    _tell(at, found, outcome_words(found))
    if at.output != "json":
        _print(content_sheet(found["content"]))
    if found["state"] == "unknown":
        raise Refused(shown(outcome_words(found)))


def _decide(at: At, xid: str, verb: str, body: dict[str, Any]) -> None:
    """Once: a second commit of a branch that is gone would be told that there is none."""
    done = Ask(patient(at))("POST", f"/v1/txqueue/dtx/{xid_of(xid)}/{verb}", body, repeat=False)
    _tell(at, done, f"{done['xid']}: {done['name']}")
    wanted = {"commit": ("OK",), "rollback": ("OK", "RBROLLBACK", "RBTIMEOUT")}.get(verb, ("OK",))
    if done["name"] not in wanted:
        raise Refused(f"{done['xid']} was decided otherwise: {done['name']}")


def _ask_before(at: At, xid: str, verb: str, heuristic: bool, yes: bool) -> None:
    asked = xid_of(xid)
    if yes:
        return
    found = Ask(at)("GET", f"/v1/txqueue/dtx/{asked}")
    if found["state"] == "unknown":
        raise Refused(f"there is no branch {shown(outcome_words(found))}")
    if heuristic:
        what = f"{verb} without its coordinator: other branches may end otherwise."
    else:
        what = f"{verb} as its coordinator: one that still runs will not find it."
    confirm(what, verb)


def _print_branches(at: At, found: dict[str, Any]) -> None:
    if at.output == "json":
        print_json(found)
    else:
        _print(branches_sheet(found["branches"], found["now_ms"]))


# --- inside ---------------------------------------------------------------------------------------


def _print(sheet: Sheet) -> None:
    """A table, what cannot be printed escaped; no headings for nothing."""
    if sheet.rows:
        rows = [tuple(shown(each) or "-" for each in row) for row in sheet.rows]
        print_table(sheet.headings, rows, sheet.numbers)


def _tell(at: At, answer: dict[str, Any], text: str) -> None:
    if at.output == "json":
        print_json(answer)
    else:
        say(shown(text))


def _queue(name: str) -> str:
    return f"/v1/txqueue/queues/{path_part(name)}"


def _query(local: bool, *parts: str) -> str:
    said = [*parts, *(("consistency=local",) if local else ())]
    return f"?{'&'.join(said)}" if said else ""


def _numbers(first: int, last: int) -> str:
    return f"number {first}" if first == last else f"numbers {first} to {last}"


def _one_node(at: At) -> At:
    """The first endpoint that answers: a session lives at one node. Raises RaftkvError."""
    found, silent = first_answering(at, "/v1/txqueue/status?consistency=local")
    if found is None:
        raise silent[-1][1]
    return found
