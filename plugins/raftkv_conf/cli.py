"""`raftkv conf ...`: look at the configuration, change it on all nodes, find and mend differences.

Each command is one request to `/v1/conf/...` (door.py). Values are JSON; a word that is no JSON
stands for itself, so that `raftkv conf set log.level debug` needs no quotes inside quotes.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    Stage,
    connected,
    examples,
    group,
    note,
    path_part,
    patient,
    print_json,
    print_table,
    say,
    shown,
    while_waiting,
)
from raftkv.errors import ConfigError, RaftkvError, Refused

__all__ = ["app"]

# Longer values are cut in tables; `get` and --json have them whole.
VALUE_CHARS: Final = 60

app = group("The cluster's configuration: checked once, in effect everywhere.")

Path = Annotated[str, typer.Argument(metavar="PATH", help="The dotted path.")]
Required = Annotated[
    str,
    typer.Option(
        "--required",
        metavar="all|N|NODE,NODE",
        help="Who must have it in effect before the command ends.",
    ),
]


@app.command(
    epilog=examples("raftkv conf get log.level --dir demo", "raftkv conf get user.mail --json")
)
@connected("simple", "json")
def get(at: At, path: Path) -> None:
    """The value of a path that is in effect on the node that answers, as JSON.

    Secrets are shown as "***". Exit code 1 if there is no such path.
    """
    found = Ask(at)("GET", _values(path))
    if at.output == "json":
        print_json(found)
        return
    say(_json(found["value"]))
    if found["source"] == "local":
        note(f"a local value of {found['node']}: its options.conf.local wins over the cluster's")


@app.command(
    "list",
    epilog=examples("raftkv conf list --dir demo", "raftkv conf list --json --dir demo"),
)
@connected("table", "json")
def list_values(at: At) -> None:
    """Every path that the node which answers knows, with what is in effect there."""
    found = Ask(at)("GET", "/v1/conf/values")
    if at.output == "json":
        print_json(found)
        return
    rows = []
    for each in found["values"]:
        doc = each["doc"] if each["known"] else "(no program here knows this path)"
        if each["failing"]:
            doc = f"NOT IN EFFECT: {each['failing']}"
        nothing = each["source"] == "default" and each["value"] is None
        value = "-" if nothing else _cut(each["value"])
        rows.append((shown(each["path"]), value, each["source"], shown(doc) or "-"))
    print_table(("PATH", "VALUE", "FROM", "WHAT IT IS"), rows)


@app.command(
    "set",
    epilog=examples(
        "raftkv conf set log.level debug --dir demo",
        """raftkv conf set user.limits '{"rate": 100}' --dir demo""",
        "raftkv conf set user.pin 007 --string --required 1 --dir demo",
        "raftkv conf set mail.password - --string --dir demo   (reads it from stdin)",
    ),
)
@connected("simple", "json", timeout_s=120.0)
def set_value(
    at: At,
    path: Path,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON, or a word; - reads it from stdin.")
    ],
    string: Annotated[
        bool, typer.Option("--string", help="Take the VALUE as text, also if it looks like JSON.")
    ] = False,
    required: Required = "all",
) -> None:
    """Set a path on all nodes, and wait for those that are required.

    The node that answers checks it first: exit code 1 if that refuses, and then nothing was changed
    anywhere. Exit code 3 if it is set, and required nodes do not have it in effect yet.
    """
    text = sys.stdin.read().removesuffix("\n") if value == "-" else value
    body = {
        "value": text if string else _value(text),
        "required": _required(required),
        "timeout_s": at.timeout_s,
    }
    _told(at, path, Ask(patient(at))("PUT", _values(path), body, repeat=False))


@app.command(epilog=examples("raftkv conf unset log.level --dir demo"))
@connected("simple", "json", timeout_s=120.0)
def unset(at: At, path: Path, required: Required = "all") -> None:
    """Let a path have its default again, on all nodes."""
    _required(required)
    query = f"?required={path_part(required)}&timeout_s={at.timeout_s:g}"
    _told(at, path, Ask(patient(at))("DELETE", _values(path) + query, repeat=False))


@app.command(epilog=examples("raftkv conf diff --dir demo", "raftkv conf diff --json --dir demo"))
@connected("table", "json", timeout_s=30.0)
def diff(at: At) -> None:
    """What is not in effect on all nodes alike, or is kept to itself by one.

    Exit code 1 if there is anything, 3 if a node did not answer.
    """
    found = Ask(at)("GET", "/v1/conf/diff")
    if at.output == "json":
        print_json(found)
    elif found["rows"]:
        rows = [
            (
                shown(row["path"]),
                row["cause"],
                each["node"],
                _compared(each, row["secret"]),
                each["source"],
            )
            for row in found["rows"]
            for each in row["values"]
        ]
        print_table(("PATH", "CAUSE", "NODE", "VALUE", "FROM"), rows)
    else:
        say(f"the same on {', '.join(found['nodes']) or 'no node'}")
    missing = [f"{node} ({shown(why)})" for node, why in found["unreachable"].items()]
    if missing:
        raise RaftkvError(f"not compared: {'; '.join(missing)}")
    if found["rows"]:
        if any(row["cause"] == "stored" for row in found["rows"]):
            note("cause stored: see raftkv calls status, or mend with raftkv conf sync")
        raise Refused(f"differing paths: {len(found['rows'])}")


@app.command(epilog=examples("raftkv conf sync --dir demo"))
@connected("simple", "json", timeout_s=120.0)
def sync(at: At) -> None:
    """Give all nodes the values of the most advanced one: the same as `raftkv calls fix`.

    A node that executed the same calls and has other values is reported and not changed: exit code
    1. Exit code 3 if nothing could be done: ask again.
    """
    ask = Ask(patient(at))
    found = while_waiting(
        lambda: ask("POST", "/v1/conf/sync", {"timeout_s": at.timeout_s}, repeat=False),
        lambda: Stage("comparing the nodes"),
    )
    if at.output == "json":
        print_json(found)
    else:
        say(_sentence(found))
    match found["verdict"]:
        case "differs":
            raise Refused(
                "what differs without a cause in the calls was not changed: mend it there"
            )
        case "moved" | "unreachable":
            raise RaftkvError(f"nothing was changed: {found['reason']}")
    if found["copying"]:
        raise RaftkvError(f"still copying: {', '.join(found['copying'])}")


# --- inside ---------------------------------------------------------------------------------------


def _values(path: str) -> str:
    if not path:
        raise ConfigError("the PATH is empty: name one, or see raftkv conf list")
    return f"/v1/conf/values/{path_part(path)}"


def _told(at: At, path: str, done: dict[str, Any]) -> None:
    if at.output == "json":
        print_json(done)
    elif done["outcome"] == "ok":
        say("OK")
    nodes = ", ".join(done["nodes"])
    match done["outcome"]:
        case "peers_lagging":
            raise RaftkvError(f"{shown(path)} is changed, but not in effect yet on {nodes}")
        case "stopped_nodes":
            raise RaftkvError(f"{shown(path)} is changed; down, and without it, are {nodes}")


def _required(text: str) -> str | int | list[str]:
    if text == "all":
        return text
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return int(text)
    names = text.split(",")
    if not all(names):
        raise ConfigError(f"--required is {text!r}: say all, a number, or names with commas")
    return names


def _value(text: str) -> Any:
    """JSON, or the text itself if it does not look like any."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        if text[:1] in ('"', "{", "["):
            raise ConfigError(
                "the VALUE begins like JSON and is none: quote it for the shell, or say --string"
            ) from None
        return text


def _json(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=False))


def _cut(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 3] + "..."


def _compared(value: dict[str, Any], secret: bool) -> str:
    """Of a secret: enough to see who agrees with whom. No digest: nothing is set there."""
    if not value["digest"]:
        return "-"
    return f"*** ({value['digest']})" if secret else _cut(value["value"])


def _sentence(found: dict[str, Any]) -> str:
    parts = [f"{found['verdict']}, by {found['lead'] or 'no node'} as of {found['id']}"]
    if found["synced"]:
        parts.append(f"copied to {', '.join(found['synced'])}")
    if found["forwarded"]:
        parts.append(f"moved on: {', '.join(found['forwarded'])}")
    for each in found["differing"]:
        more = f" and {each['more']} more" if each["more"] else ""
        parts.append(f"{each['node']} had other values of {', '.join(each['keys'])}{more}")
    return shown("; ".join(parts))
