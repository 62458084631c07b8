"""`raftkv topic ...`: topics and their messages, and the group of all three.

Each command is one or a few requests to `/v1/subscriptions/...` (door.py); sheets.py turns the
answers into text. `raftkv sub ...` is in cli_subs.py, `raftkv region ...` in cli_regions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    add_setting,
    confirm,
    connected,
    examples,
    group,
    note,
    patient,
    print_json,
    say,
    shown,
)

from .asked import bodies_of, headers_of, messages_of, seconds_of, value_of
from .cli_common import LIST_MAX, Local, Yes, path, print_sheet, query, tell
from .cli_regions import region_app
from .cli_subs import sub_app
from .sheets import (
    declared_words,
    messages_sheet,
    some,
    topic_words,
    topics_sheet,
)

__all__ = ["groups"]

# A request to a door waits no longer.
WAIT_MAX_S: Final = 600.0

topic_app = group("Topics of messages, replicated between regions.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]


def groups() -> Mapping[str, typer.Typer]:
    """The plugin's command groups by name."""
    return {"topic": topic_app, "sub": sub_app, "region": region_app}


@topic_app.command("list", epilog=examples("raftkv topic list --dir demo/a"))
@connected("table", "json")
def list_topics(at: At, local: Local = False) -> None:
    """All topics with what is in them."""
    found = Ask(at)("GET", f"{path('topics')}{query(local)}")
    if at.output == "json":
        print_json(found)
    else:
        print_sheet(topics_sheet(found["topics"]))


@topic_app.command(epilog=examples("raftkv topic status orders --dir demo/a"))
@connected("simple", "json")
def status(at: At, topic: TopicName, local: Local = False) -> None:
    """What is known of a topic: what it has of each region, its limits."""
    found = Ask(at)("GET", f"{path('topics', topic)}{query(local)}")
    if at.output == "json":
        print_json(found)
        return
    for line in topic_words(found):
        say(shown(line))


@topic_app.command(
    epilog=examples(
        "raftkv topic declare orders --dir demo/a",
        "raftkv topic declare clicks --retention-s 86400 --retention-bytes 100000000",
        "raftkv topic declare prices --compacted --dir demo/a",
    )
)
@connected("simple", "json")
def declare(
    at: At,
    topic: TopicName,
    replicated: Annotated[
        bool | None, typer.Option("--replicated/--not-replicated", help="Whether links carry it.")
    ] = None,
    compacted: Annotated[
        bool | None,
        typer.Option("--compacted/--not-compacted", help="Keep the last message of each key."),
    ] = None,
    retention_s: Annotated[
        float | None,
        typer.Option("--retention-s", metavar="S", min=0, help="Seconds; 0: no limit."),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option("--retention-bytes", metavar="N", min=0, help="Bytes; 0: no limit."),
    ] = None,
    backlog_bytes_max: Annotated[
        int | None,
        typer.Option(
            "--backlog-bytes-max",
            metavar="N",
            min=0,
            help="Bytes that subscriptions and regions have still to take: then refuse to publish; "
            "0: never.",
        ),
    ] = None,
    change: Annotated[
        bool, typer.Option("--change", help="Give an existing topic these limits.")
    ] = False,
) -> None:
    """Make a topic, replicated and with no limit that is left out. One that exists keeps what is
    left out; other limits than it has are refused without --change."""
    body = {
        "replicated": replicated,
        "compacted": compacted,
        "retention_s": None if retention_s is None else seconds_of("--retention-s", retention_s),
        "retention_bytes": retention_bytes,
        "backlog_bytes_max": backlog_bytes_max,
        "change": change,
    }
    done = Ask(at)("PUT", path("topics", topic), body)
    tell(at, done, declared_words(done))


@topic_app.command(epilog=examples("raftkv topic delete old --yes --dir demo/a"))
@connected("simple", "json")
def delete(at: At, topic: TopicName, yes: Yes = False) -> None:
    """Delete a topic with its messages and its subscriptions, in this region."""
    ask = Ask(at)
    if not yes:
        found = ask("GET", path("topics", topic))
        subs = some(found["subscriptions"], "subscription")
        what = f"{some(found['messages'], 'message')}, {subs}"
        confirm(f"what goes of {shown(topic)}: {what}.", topic)
    done = ask("DELETE", path("topics", topic), repeat=False)
    tell(at, done, f"{done['topic']}: deleted, with {some(done['messages'], 'message')}")


@topic_app.command(
    epilog=examples(
        "raftkv topic publish orders 'order 17' 'order 18' --dir demo/a",
        "raftkv topic publish prices 3.20 --message-key apples --header kind=fruit --dir demo/a",
        "raftkv topic publish orders --lines --dir demo/a < orders.txt",
    )
)
@connected("simple", "json")
def publish(
    at: At,
    topic: TopicName,
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="[BODY]...", help="A message each; - is stdin.")
    ] = None,
    key: Annotated[str, typer.Option("--message-key", metavar="KEY", help="Of each of them.")] = "",
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Of each of them.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of stdin is a message.")
    ] = False,
) -> None:
    """Publish messages: all of them, or none. Exit code 3 if that is not known."""
    messages = messages_of(bodies_of(bodies or [], lines=lines), key, headers_of(headers or []))
    body = {"messages": messages, "timeout_s": at.timeout_s}
    done = Ask(patient(at))("POST", path("topics", topic, "publish"), body, repeat=False)
    where = _numbers("position", done["first"], done["last"])
    of_origin = _numbers(done["origin"], done["seq"], done["seq"] + done["last"] - done["first"])
    tell(at, done, f"{done['topic']}: {where} ({of_origin})")


@topic_app.command(
    epilog=examples(
        "raftkv topic read orders --dir demo/b",
        "raftkv topic read orders --from 17 --limit 10 --json --dir demo/b",
        "raftkv topic read orders --from 18 --wait 60 --dir demo/b",
    )
)
@connected("table", "json")
def read(
    at: At,
    topic: TopicName,
    first: Annotated[
        int, typer.Option("--from", metavar="POSITION", min=1, help="From this position on.")
    ] = 1,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=LIST_MAX, help="At most so many.")
    ] = 100,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, max=WAIT_MAX_S, help="For the first.")
    ] = 0.0,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="Only the last message of each key.")
    ] = False,
    local: Local = False,
) -> None:
    """Look at messages in the order of this region, without a subscription."""
    parts = [f"from={first}", f"limit={limit}"]
    parts += ["compacted=true"] if compacted else []
    parts += [f"wait_s={seconds_of('--wait', wait_s):g}"] if wait_s else []
    ask = Ask(patient(at, wait_s))
    found = ask("GET", f"{path('topics', topic, 'messages')}{query(local, *parts)}")
    if at.output == "json":
        print_json(found)
        return
    print_sheet(messages_sheet(found["messages"], found["now_ms"]))
    if found["next"]:
        note(f"there are more: --from {found['next']}")


add_setting(topic_app, "subscriptions", "raftkv topic", "ranges_max", "20000", parse=value_of)


def _numbers(what: str, first: int, last: int) -> str:
    if what != "position":
        return f"{what}:{first}" if first == last else f"{what}:{first} to {what}:{last}"
    return f"position {first}" if first == last else f"positions {first} to {last}"
