"""`raftkv watch`: print what happens to keys, or run a command for each event.

It goes on at another node when one fails, without a gap or a double (raftkv/client/watch.py), until
Ctrl-C, or until the history that it needs was compacted. A command is run for one event at a time,
in the order of the events; one that fails ends the watch, for the events behind it may rest on it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import ConfigError, RaftkvError, WatchCancelled

from .options import At, connected, examples
from .running import WithCommand, command_behind
from .saying import say_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raftkv.client import Client
    from raftkv.kv.commands import Event

    from .printing import Style

__all__ = ["event_environment", "register"]

# How often a mark is asked for with --progress-notify, when nothing happens.
PROGRESS_S: Final = 10.0
# Linux takes no single variable of 128 KiB or more; the event on stdin is always complete.
VARIABLE_BYTES_MAX: Final = 96 * 1024


def watch(
    at: At,
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, or the first of a range.")],
    range_end: Annotated[
        str | None,
        typer.Argument(metavar="RANGE_END", help="All keys from KEY up to, without, this one."),
    ] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="All keys that start with KEY.")] = False,
    from_key: Annotated[bool, typer.Option("--from-key", help="All keys from KEY on.")] = False,
    revision: Annotated[
        int, typer.Option("--rev", metavar="REVISION", min=0, help="From there on; 0: from now.")
    ] = 0,
    prev_kv: Annotated[
        bool, typer.Option("--prev-kv", help="Print what was there before, too.")
    ] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="WHAT", help="noput or nodelete: leave those out."),
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress-notify", help="Say how far it is when nothing happens.")
    ] = False,
    hexed: Annotated[bool, typer.Option("--hex", help="Print bytes as \\xHH.")] = False,
) -> None:
    """Print what happens to keys, until Ctrl-C.

    With -- COMMAND, run that for each event instead: RAFTKV_WATCH_EVENT_TYPE, _REVISION, _KEY and
    _VALUE are in its environment (ETCD_WATCH_..., quoted, too), and the event as a JSON document is
    its stdin.
    """
    from raftkv.kv.commands import FROM_KEY

    from .connecting import run
    from .printing import Style
    from .quoting import shown
    from .requests import bounds

    wrong = [name for name in filters or [] if name.lower() not in ("noput", "nodelete")]
    if wrong:
        raise ConfigError(f"--filter {wrong[0]} is neither noput nor nodelete")
    unwanted = {name.lower() for name in filters or []}
    end = None if range_end is None else os.fsencode(range_end)
    first, last = bounds(os.fsencode(key), end, prefix=prefix, from_key=from_key)
    if last and last != FROM_KEY and last <= first:
        raise ConfigError(f"there is no key between {shown(first)} and {shown(last)}")
    request: dict[str, Any] = {
        **_request(first, last),
        "start_revision": revision,
        "prev_kv": prev_kv,
        "put": "noput" not in unwanted,
        "delete": "nodelete" not in unwanted,
        "progress_s": PROGRESS_S if progress else 0.0,
    }
    command = command_behind(context)
    show = _show(at.output, Style(hexed=hexed))
    mark = _mark(at.output) if progress else None
    try:
        run(at, lambda client: _follow(client, request, show, mark, command))
    except WatchCancelled as error:
        raise RaftkvError(_ended(error)) from None


def _request(first: bytes, last: bytes) -> dict[str, Any]:
    """The words of `kv.watch` for a range in etcd's notation."""
    from raftkv.kv.commands import FROM_KEY

    if last == FROM_KEY:
        return {"first": first}
    return {"key": first, "last": last} if last else {"key": first}


async def _follow(
    client: Client,
    request: Mapping[str, Any],
    show: Callable[[Event], None],
    mark: Callable[[int], None] | None,
    command: Sequence[str] | None,
) -> None:
    async with client.kv.watch(**request) as watching:
        async for batch in watching:
            for event in batch.events:
                if command is None:
                    show(event)
                else:
                    await _run(command, event)
            if not batch.events and mark is not None:
                mark(batch.revision)


def _show(output: str, style: Style) -> Callable[[Event], None]:
    from . import printing
    from .output import print_json, write_bytes

    def json(event: Event) -> None:
        print_json(printing.event_document(event))
        sys.stdout.flush()

    def fields(event: Event) -> None:
        write_bytes(printing.fields_text(event).encode() + b"\n")

    def simple(event: Event) -> None:
        write_bytes(printing.event_text(event, style))

    return {"json": json, "fields": fields}.get(output, simple)


def _mark(output: str) -> Callable[[int], None]:
    from .output import print_json

    def mark(revision: int) -> None:
        if output == "json":
            print_json({"type": "PROGRESS", "revision": revision})
        else:
            say_line(f"progress notify: {revision}")
        sys.stdout.flush()

    return mark


async def _run(command: Sequence[str], event: Event) -> None:
    import msgspec

    from .printing import event_document
    from .running import exit_code, start

    child = await start(command, event_environment(event), piped=True)
    try:
        await child.communicate(msgspec.json.encode(event_document(event)) + b"\n")
    finally:
        if child.returncode is None:
            # Ctrl-C: the command is not to outlive the watch.
            child.terminate()
            await child.wait()
    if child.returncode:
        raise RaftkvError(
            f"{command[0]} ended with {exit_code(child.returncode)} at revision "
            f"{event.kv.mod_revision}: the watch ends here"
        )


def event_environment(event: Event) -> dict[bytes, bytes]:
    """The variables that tell a command of an event: raw bytes, and quoted as etcdctl does.

    One that an environment cannot hold (a zero byte, or too long) is left out.
    """
    from .quoting import quote

    kind = b"PUT" if event.kv.version else b"DELETE"
    revision = b"%d" % event.kv.mod_revision
    found = {
        b"RAFTKV_WATCH_EVENT_TYPE": kind,
        b"RAFTKV_WATCH_REVISION": revision,
        b"RAFTKV_WATCH_KEY": event.kv.key,
        b"RAFTKV_WATCH_VALUE": event.kv.value,
        b"ETCD_WATCH_EVENT_TYPE": quote(kind).encode(),
        b"ETCD_WATCH_REVISION": revision,
        b"ETCD_WATCH_KEY": quote(event.kv.key).encode(),
        b"ETCD_WATCH_VALUE": quote(event.kv.value).encode(),
    }
    return {
        name: value
        for name, value in found.items()
        if b"\0" not in value and len(value) <= VARIABLE_BYTES_MAX
    }


def _ended(error: WatchCancelled) -> str:
    if error.compact_revision:
        return f"{error}. The lowest revision is {error.compact_revision}"
    if error.resume_revision:
        return f"{error} (--rev {error.resume_revision})"
    return str(error)


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    text = examples(
        "raftkv watch greeting --dir demo",
        "raftkv watch jobs/ --prefix --rev 7 --prev-kv --json --dir demo",
        "raftkv watch jobs/ --prefix --dir demo -- sh -c 'echo $RAFTKV_WATCH_KEY'",
    )
    command = connected("simple", "json", "fields")(watch)
    app.command("watch", epilog=text, cls=WithCommand)(command)
