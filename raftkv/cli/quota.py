"""`raftkv quota ...`: what the keyspace and the plugins use of their quotas, and how to raise them.

Beyond its quota a plugin refuses what adds data, and the alarm NOSPACE is on until
`raftkv alarm disarm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import ConfigError

from .connecting import endpoints_of, tls_context
from .kit import path_part
from .member import ask_in_turn, request
from .options import At, connected, examples, group
from .saying import note_line, say_line

if TYPE_CHECKING:
    from .output import Row

__all__ = ["app"]

_DEFAULT: Final = "default"

app = group("The quotas of the keyspace and of plugins: list, set.")


def _ask(at: At, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    context = tls_context(at)

    def ask(endpoint: str, left_s: float) -> Any:
        return request(endpoint, method, path, body, timeout_s=left_s, context=context)

    return ask_in_turn(endpoints_of(at), at.timeout_s, ask, read=method == "GET", context=context)


@app.command("list", epilog=examples("raftkv quota list --dir demo", "raftkv quota list --json"))
@connected("table", "json")
def list_(at: At) -> None:
    """Show what each plugin uses of its quota."""
    from .output import Styled, print_json, print_table

    found = _ask(at, "GET", "/v1/quotas")["quotas"]
    if at.output == "json":
        print_json(found)
        return
    rows: list[Row] = [
        (
            each["plugin"],
            str(each["logical_bytes"]),
            str(each["quota_bytes"]),
            Styled("NOSPACE", "red") if each["nospace"] else "",
        )
        for each in found
    ]
    print_table(("PLUGIN", "LOGICAL BYTES", "QUOTA BYTES", "ALARM"), rows, ("LOGICAL BYTES",))
    if not found:
        note_line("the cluster runs core format 1, which has no quotas")


@app.command(
    "set",
    epilog=examples(
        "raftkv quota set kv 8589934592 --dir demo", "raftkv quota set kv default --dir demo"
    ),
)
@connected("table", "json")
def set_(
    at: At,
    plugin: Annotated[str, typer.Argument(help="kv for the keyspace, or a plugin.")],
    quota_bytes: Annotated[str, typer.Argument(help="Bytes, or `default`.")],
) -> None:
    """Set the quota of one plugin, on all nodes.

    The data of every node is in its memory: see that all have enough. NOSPACE does not end by it.
    """
    from .door_client import of_a_change
    from .output import print_json

    if quota_bytes != _DEFAULT and not (quota_bytes.isascii() and quota_bytes.isdigit()):
        raise ConfigError(f"QUOTA_BYTES is a number of bytes or default, not {quota_bytes!r}")
    value = None if quota_bytes == _DEFAULT else int(quota_bytes)
    with of_a_change(repeat=True):
        found = _ask(at, "PUT", f"/v1/quotas/{path_part(plugin)}", {"quota_bytes": value})
    if at.output == "json":
        print_json(found)
    else:
        say_line(f"the quota of {plugin} is {quota_bytes}")
