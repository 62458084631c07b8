"""`raftkv sub ...`: subscriptions, and consuming by hand.

`sub consume` opens a consumer, which belongs to the node that it was opened at: all its requests go
to the first endpoint that answers. It prints messages before it acknowledges them, so that one that
was printed may come again, and none is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import (
    Ask,
    At,
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
from raftkv.errors import ConfigError, RaftkvError, Refused

from .asked import place_of, seconds_of
from .cli_common import Local, Yes, one_node, path, print_sheet, query, tell
from .sheets import consumers_sheet, some, sub_words, subs_sheet, text_of

__all__ = ["sub_app"]

# Messages of one request: what is printed before it is acknowledged.
BATCH: Final = 100
WAIT_MAX_S: Final = 600.0
MS: Final = 1_000

sub_app = group("Subscriptions of topics, and consuming.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
SubName = Annotated[str, typer.Argument(metavar="SUB", help="The name of the subscription.")]
Kinds = Annotated[
    str,
    typer.Option("--kind", metavar="exclusive|failover|shared", help="Who gets the messages."),
]
Initial = Annotated[
    str,
    typer.Option("--initial", metavar="earliest|latest", help="Where a new one begins."),
]
Replicate = Annotated[
    bool | None,
    typer.Option(
        "--replicate/--no-replicate", help="Its state goes to other regions. Default: as it is."
    ),
]


@sub_app.command("list", epilog=examples("raftkv sub list orders --dir demo/a"))
@connected("table", "json")
def list_subs(at: At, topic: TopicName, local: Local = False) -> None:
    """A topic's subscriptions with what they have to do."""
    found = Ask(at)("GET", f"{path('topics', topic, 'subs')}{query(local)}")
    if at.output == "json":
        print_json(found)
    else:
        print_sheet(subs_sheet(found["subs"]))


@sub_app.command(
    epilog=examples(
        "raftkv sub create orders billing --replicate --dir demo/a",
        "raftkv sub create orders audit --kind shared --initial earliest --dir demo/a",
    )
)
@connected("simple", "json")
def create(
    at: At,
    topic: TopicName,
    sub: SubName,
    kind: Kinds = "exclusive",
    initial: Initial = "latest",
    replicate: Replicate = None,
) -> None:
    """Make a subscription; one that is there goes on where it is."""
    body = {"kind": kind, "initial": initial, "replicate": replicate}
    done = Ask(at)("PUT", path("topics", topic, "subs", sub), body)
    what = "created" if done["created"] else "was there"
    tell(at, done, f"{done['sub']}: {what}; goes on after position {done['mark']}")


@sub_app.command(epilog=examples("raftkv sub delete orders billing --yes --dir demo/a"))
@connected("simple", "json")
def delete(
    at: At,
    topic: TopicName,
    sub: SubName,
    force: Annotated[bool, typer.Option("--force", help="Its consumers end.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a subscription, in this region. Others that replicate it may bring it back."""
    ask = Ask(at)
    if not yes:
        found = ask("GET", path("topics", topic, "subs", sub))
        what = f"a backlog of {some(found['backlog'], 'message')}"
        confirm(f"what goes of {shown(sub)}: {what}.", sub)
    flags = query(False, *(("force=true",) if force else ()))
    done = ask("DELETE", f"{path('topics', topic, 'subs', sub)}{flags}", repeat=False)
    tell(at, done, f"{done['sub']}: deleted")


@sub_app.command(epilog=examples("raftkv sub status orders billing --dir demo/b"))
@connected("simple", "json")
def status(at: At, topic: TopicName, sub: SubName, local: Local = False) -> None:
    """How far a subscription is, what it has acknowledged beyond, and who consumes."""
    found = Ask(at)("GET", f"{path('topics', topic, 'subs', sub)}{query(local)}")
    if at.output == "json":
        print_json(found)
        return
    for line in sub_words(found):
        say(shown(line))
    print_sheet(consumers_sheet(found["consumers"]))


@sub_app.command(
    epilog=examples(
        "raftkv sub replicate orders billing --dir demo/a",
        "raftkv sub replicate orders billing --off --dir demo/b",
    )
)
@connected("simple", "json")
def replicate(
    at: At,
    topic: TopicName,
    sub: SubName,
    off: Annotated[bool, typer.Option("--off", help="No longer, in this region.")] = False,
) -> None:
    """Let its state go to other regions, and take theirs."""
    done = Ask(at)("PUT", path("topics", topic, "subs", sub, "replicate"), {"replicate": not off})
    what = "is replicated" if done["replicate"] else "is of this region only"
    tell(at, done, f"{done['sub']}: {what}")


@sub_app.command(
    epilog=examples(
        "raftkv sub seek orders billing 17 --dir demo/a   (the next one is 18)",
        "raftkv sub seek orders billing earliest --dir demo/a",
        "raftkv sub seek orders billing --ago 3600 --dir demo/a",
    )
)
@connected("simple", "json")
def seek(
    at: At,
    topic: TopicName,
    sub: SubName,
    to: Annotated[
        str | None,
        typer.Argument(metavar="[POSITION|earliest|latest]", help="It goes on after this one."),
    ] = None,
    ago_s: Annotated[
        float | None,
        typer.Option("--ago", metavar="S", min=0, help="The first that came in the last S s."),
    ] = None,
) -> None:
    """Go on somewhere else, in this region. Other regions are not moved."""
    if (to is None) == (ago_s is None):
        raise ConfigError("say where to: a position, earliest, latest, or --ago S")
    ask = Ask(at)
    if ago_s is None:
        body: dict[str, Any] = {"position": place_of(to or "")}
    else:
        ago_ms = int(seconds_of("--ago", ago_s) * MS)
        now_ms = ask("GET", path("topics", topic))["now_ms"]
        body = {"at_ms": max(0, now_ms - ago_ms)}
    done = ask("POST", path("topics", topic, "subs", sub, "seek"), body)
    tell(at, done, f"{done['sub']}: goes on after position {done['mark']}")


@sub_app.command(
    epilog=examples(
        "raftkv sub ack orders billing 17 19 --dir demo/a",
        "raftkv sub ack orders billing --to 17 --yes --dir demo/a",
    )
)
@connected("simple", "json")
def ack(
    at: At,
    topic: TopicName,
    sub: SubName,
    positions: Annotated[
        list[int] | None, typer.Argument(metavar="[POSITION]...", min=1, help="Each of these.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="POSITION", min=0, help="Everything up to it.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Acknowledge messages in the consumers' stead, in all regions that replicate it."""
    if bool(positions) == (to is not None):
        raise ConfigError("say which: positions, or --to POSITION")
    ask, place = Ask(at), path("topics", topic, "subs", sub)
    if to is None:
        done = ask("POST", f"{place}/ack", {"positions": positions})
    else:
        if not yes:
            found = ask("GET", place)
            left = some(found["backlog"], "message")
            what = f"what is left up to position {to}; {left} to go in all"
            confirm(f"what {shown(sub)} will never deliver: {what}.", sub)
        done = ask("POST", f"{place}/ack_to", {"position": to})
    new = some(done["done"], "message")
    tell(at, done, f"{done['sub']}: {new} acknowledged; done up to position {done['mark']}")


@sub_app.command(
    epilog=examples(
        "raftkv sub consume orders billing --dir demo/b",
        "raftkv sub consume orders billing --replicate --count 10 --wait 5 --json --dir demo/a",
        "raftkv sub consume orders billing --then leave --dir demo/a",
    )
)
@connected("simple", "json")
def consume(
    at: At,
    topic: TopicName,
    sub: SubName,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="At most so many.")] = 1,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, max=WAIT_MAX_S, help="For each of them.")
    ] = 0.0,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="exclusive|failover|shared", help="Default: as the subscription is."
        ),
    ] = None,
    initial: Initial = "latest",
    replicate: Replicate = None,
    then: Annotated[
        str, typer.Option("--then", metavar="ack|leave", help="What becomes of them when printed.")
    ] = "ack",
) -> None:
    """Receive messages and print their bodies, a line each. Exit code 1 if there is none."""
    if then not in ("ack", "leave"):
        raise ConfigError(f"--then is {shown(then)}: say ack, or leave")
    ask = Ask(patient(one_node(at), seconds_of("--wait", wait_s)))
    opened = _opened(ask, at, topic, sub, kind, initial, replicate)
    place = path("consumers", str(opened["consumer"]))
    printed, active = 0, True
    try:
        while printed < count:
            asked = {"count": min(BATCH, count - printed), "wait_s": wait_s}
            answer = ask("POST", f"{place}/receive", asked, repeat=False)
            found, active = answer["messages"], answer["active"]
            if not found:
                break
            _print_messages(at, found)
            if then == "ack":
                ask("POST", f"{place}/ack", {"positions": [each["position"] for each in found]})
            printed += len(found)
    finally:
        _close(ask, place)
    if not printed:
        why = "" if active else ": another consumer is active"
        raise Refused(f"nothing to receive in {shown(sub)}{why}")


def _opened(
    ask: Ask,
    at: At,
    topic: str,
    sub: str,
    kind: str | None,
    initial: str,
    replicate: bool | None,
) -> Any:
    """A consumer. Where no kind is said, an existing subscription stays what it is."""
    if kind is None:
        subs = ask("GET", path("topics", topic, "subs"))["subs"]
        known = [each["kind"] for each in subs if each["name"] == sub]
        kind = known[0] if known else "exclusive"
    body = {
        "topic": topic,
        "sub": sub,
        "kind": kind,
        "initial": initial,
        "replicate": replicate,
        "timeout_s": at.timeout_s,
    }
    return ask("POST", path("consumers"), body, repeat=False)


def _print_messages(at: At, found: Sequence[Any]) -> None:
    """On stdout, and out of this process, before they are acknowledged."""
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
        note(f"the consumer is left to its time-out: {error}")
