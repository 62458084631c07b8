"""`raftkv lock` and `raftkv elect`: hold a lock, or an office, for as long as the command runs.

Both are the recipes of raftkv/recipes over a client. What is printed, and given to a command, is a
fencing token: whatever the lock protects should refuse a smaller one than it has seen.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftkv.errors import ConfigError

from .options import At, connected, examples
from .running import WithCommand, command_behind
from .saying import note_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftkv.client import Client
    from raftkv.recipes import Lock

__all__ = ["register"]

Ttl = Annotated[
    int,
    typer.Option("--ttl", metavar="S", min=1, help="Others go on so long after a crash of this."),
]


def lock(
    at: At,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock: the prefix of its keys.")],
    ttl_s: Ttl = 10,
    at_once: Annotated[
        bool, typer.Option("--try", help="Do not wait: exit code 1 if another holds it.")
    ] = False,
) -> None:
    """Hold a lock until Ctrl-C or while a command runs.

    Once it is held its key and its fencing token are printed. With -- COMMAND, run that while it
    is held, with RAFTKV_LOCK_KEY and RAFTKV_FENCING_TOKEN in its environment, and end with its
    exit code.
    """
    from .connecting import run

    if not name:
        raise ConfigError("the lock needs a NAME")
    command = command_behind(context)
    code = run(
        at,
        lambda client: _lock(client, at, name, ttl_s, command, at_once=at_once),
        exactly_once=True,
    )
    raise typer.Exit(code)


async def _lock(
    client: Client,
    at: At,
    name: str,
    ttl_s: int,
    command: Sequence[str] | None,
    *,
    at_once: bool,
) -> int:
    from raftkv.recipes import Lock, Session

    from .holding import Signals, hold
    from .quoting import shown

    catching = Signals.caught(command=command is not None)
    async with Session(client, ttl_s) as session, catching as signals:
        held = Lock(session, os.fsencode(name), b"%d" % os.getpid())
        if at_once:
            tried = await signals.unless(_tried(held))
            if tried is None:
                return signals.code
            (token,) = tried
            if token is None:
                note_line(f"the lock {shown(os.fsencode(name))} is held by another")
                return 1
        else:
            waited = await signals.unless(held.acquire())
            if waited is None:
                return signals.code
            token = waited
        key = held.guard().key
        if command is None:
            _say(at, [key], {"token": token}, f"fencing token {token}")
        environment = {b"RAFTKV_LOCK_KEY": key, b"RAFTKV_FENCING_TOKEN": b"%d" % token}
        code = await hold(session, signals, command, environment)
        # Another signal ends waiting for a cluster that cannot be reached; the lease ends it then.
        await signals.unless(held.release())
        return code


async def _tried(lock: Lock) -> tuple[int | None]:
    """In a tuple, for None means that a signal came."""
    return (await lock.try_acquire(),)


def elect(
    at: At,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The election.")],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="What the leader is known by.")
    ] = None,
    listen: Annotated[
        bool, typer.Option("--listen", "-l", help="Only show who leads, and each change.")
    ] = False,
    ttl_s: Ttl = 10,
) -> None:
    """Be elected and lead until Ctrl-C, or show who leads.

    Once elected the key, VALUE and the fencing token are printed.
    """
    from .connecting import run

    if not name:
        raise ConfigError("the election needs a NAME")
    if listen:
        if value is not None:
            raise ConfigError("--listen only looks on: leave VALUE out")
        run(at, lambda client: _listen(client, at, name))
        return
    if value is None:
        raise ConfigError("say with VALUE what the leader is to be known by, or --listen")
    proposal = os.fsencode(value)
    code = run(at, lambda client: _lead(client, at, name, proposal, ttl_s), exactly_once=True)
    raise typer.Exit(code)


async def _lead(client: Client, at: At, name: str, value: bytes, ttl_s: int) -> int:
    from raftkv.recipes import Election, Session

    from .holding import Signals, hold

    async with Session(client, ttl_s) as session, Signals.caught() as signals:
        election = Election(session, os.fsencode(name))
        token = await signals.unless(election.campaign(value))
        if token is None:
            return signals.code
        key = election.guard().key
        _say(at, [key, value], {"token": token}, f"fencing token {token}")
        code = await hold(session, signals, None, {})
        await signals.unless(election.resign())
        return code


async def _listen(client: Client, at: At, name: str) -> None:
    from raftkv.recipes import observe

    async for leader in observe(client, os.fsencode(name)):
        if leader is not None:
            _say(at, [leader.key, leader.value], {"token": leader.token})
        elif at.output == "json":
            _say(at, [], {"token": None})
        else:
            note_line("there is no leader")


def _say(at: At, lines: Sequence[bytes], more: dict[str, Any], last: str | None = None) -> None:
    """Print a key, what goes with it, and a last line; or one JSON document."""
    from .output import print_json, write_bytes
    from .printing import text_or_none

    if at.output == "json":
        document: dict[str, Any] = {}
        for name, data in zip(("key", "value"), lines, strict=False):
            document |= {name: text_or_none(data), f"{name}_base64": data}
        print_json(document | more)
        sys.stdout.flush()
    else:
        text = [*lines, *([] if last is None else [last.encode()])]
        write_bytes(b"".join(line + b"\n" for line in text))


def register(app: typer.Typer) -> None:
    """Add the commands to the top level."""
    text = examples(
        "raftkv lock report --dir demo",
        "raftkv lock report --dir demo -- ./make-report --all",
    )
    app.command("lock", epilog=text, cls=WithCommand)(connected("simple", "json")(lock))
    text = examples(
        "raftkv elect report host-7 --dir demo",
        "raftkv elect report --listen --json --dir demo",
    )
    app.command("elect", epilog=text)(connected("simple", "json")(elect))
