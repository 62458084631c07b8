"""`raftkv lease ...`: grant, revoke, look at and keep alive leases, as etcdctl does.

A lease's id is hexadecimal everywhere, in arguments as in output.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, RemoteFailed

from .options import At, connected, examples, group
from .saying import say

if TYPE_CHECKING:
    from raftkv.client import Client

__all__ = ["app"]

# Three keep-alives in the time that a lease lives, as etcd's client does: two may be lost.
KEEP_ALIVES_PER_TTL: Final = 3
# After one that failed; a leader is elected within a second or so.
RETRY_S: Final = 0.2

app = group("Leases: keys that disappear with their owner.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The lease, hexadecimal.")]


@app.command(epilog=examples("raftkv lease grant 60 --dir demo"))
@connected("simple", "json")
def grant(
    at: At,
    ttl_s: Annotated[int, typer.Argument(metavar="TTL", min=1, help="Seconds to live.")],
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id to use, if it is free.")
    ] = None,
) -> None:
    """Make a lease: it lives for TTL seconds from its last keep-alive."""
    from .connecting import run
    from .requests import lease_id, lease_text

    number = 0 if id is None else lease_id(id)
    made = run(at, lambda client: client.leases.grant(ttl_s, id=number))
    name = lease_text(made.id)
    document = {"id": name, "ttl_s": made.ttl_s, "revision": made.revision}
    _say(at, f"lease {name} granted with TTL({made.ttl_s}s)", document)


@app.command(epilog=examples("raftkv lease revoke 694d8a1b --dir demo"))
@connected("simple", "json")
def revoke(at: At, id: Id) -> None:
    """End a lease; its keys are deleted."""
    from .connecting import run
    from .requests import lease_id, lease_text

    number = lease_id(id)
    done = run(at, lambda client: client.leases.revoke(number))
    document = {"id": lease_text(number), "deleted": done.deleted, "revision": done.revision}
    _say(at, f"lease {lease_text(number)} revoked", document)


@app.command(
    epilog=examples(
        "raftkv lease timetolive 694d8a1b --dir demo",
        "raftkv lease timetolive 694d8a1b --keys --json --dir demo",
    )
)
@connected("simple", "json")
def timetolive(
    at: At,
    id: Id,
    keys: Annotated[bool, typer.Option("--keys", help="The keys that are attached, too.")] = False,
) -> None:
    """What is left of a lease."""
    from .connecting import run
    from .printing import text_or_none
    from .quoting import shown
    from .requests import lease_id, lease_text

    number = lease_id(id)
    found = run(at, lambda client: client.leases.time_to_live(number, keys=keys))
    name = lease_text(number)
    gone = found.ttl_s < 0
    document: dict[str, Any] = {"id": name, "granted_s": found.granted_s, "ttl_s": found.ttl_s}
    text = f"lease {name} granted with TTL({found.granted_s}s), remaining({found.ttl_s}s)"
    if keys:
        document["keys"] = [{"key": text_or_none(k), "key_base64": k} for k in found.keys]
        text += f", attached keys([{' '.join(map(shown, found.keys))}])"
    _say(at, f"lease {name} already expired" if gone else text, document)


@app.command("list", epilog=examples("raftkv lease list --dir demo"))
@connected("simple", "json")
def list_leases(at: At) -> None:
    """The ids of all leases."""
    from .connecting import run
    from .requests import lease_text

    names = [lease_text(number) for number in run(at, lambda client: client.leases.list())]
    _say(at, "\n".join([f"found {len(names)} leases", *names]), {"leases": names})


@app.command(
    "keep-alive",
    epilog=examples(
        "raftkv lease keep-alive 694d8a1b --dir demo",
        "raftkv lease keep-alive 694d8a1b --once --dir demo",
    ),
)
@connected("simple", "json")
def keep_alive(
    at: At,
    id: Id,
    once: Annotated[bool, typer.Option("--once", help="Only one time.")] = False,
) -> None:
    """Keep a lease alive until Ctrl-C, or until it is gone (exit code 1)."""
    from .connecting import run
    from .requests import lease_id

    number = lease_id(id)
    run(at, lambda client: _keep(client, at, number, once=once))


async def _keep(client: Client, at: At, number: int, *, once: bool) -> None:
    import asyncio

    from raftkv.kv.commands import LeaseNotFound

    from .requests import lease_text

    name = lease_text(number)
    loop = asyncio.get_running_loop()
    valid_until = 0.0
    while True:
        sent_at = loop.time()
        left_s = valid_until - sent_at
        try:
            # An attempt that hangs leaves time for another one.
            timeout_s = min(at.timeout_s, left_s / 2) if left_s > 0 else at.timeout_s
            ttl_s = await client.leases.keep_alive(number, timeout_s=max(0.05, timeout_s))
        except LeaseNotFound:
            raise Refused(f"lease {name} expired or revoked") from None
        except (NotApplied, OutcomeUnknown, RemoteFailed):
            if once or loop.time() >= valid_until:
                raise
            await asyncio.sleep(RETRY_S)
            continue
        valid_until = sent_at + ttl_s
        _say(at, f"lease {name} keepalived with TTL({ttl_s})", {"id": name, "ttl_s": ttl_s})
        if once:
            return
        await asyncio.sleep(ttl_s / KEEP_ALIVES_PER_TTL)


def _say(at: At, text: str, document: Any) -> None:
    from .output import print_json

    if at.output == "json":
        print_json(document)
    else:
        say(text)
    sys.stdout.flush()
