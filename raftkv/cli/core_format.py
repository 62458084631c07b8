"""`raftkv format ...`: show and raise the core format of a running cluster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .connecting import endpoints_of, tls_context
from .member import LIST_TIMEOUT_S, ask_in_turn, request
from .options import At, connected, examples, group
from .saying import say_line

if TYPE_CHECKING:
    import ssl

__all__ = ["app"]

app = group("The core format, raised after an upgrade: show, raise.")


@app.command("show", epilog=examples("raftkv format show --dir demo", "raftkv format show --json"))
@connected("table", "json", timeout_s=10.0)
def show(at: At) -> None:
    """Show the active core format and the newest one that every member knows."""
    from .output import Row, Styled, cell, print_json, print_table

    context = tls_context(at)
    found = ask_in_turn(
        endpoints_of(at),
        at.timeout_s,
        partial(_survey, context=context),
        read=True,
        context=context,
    )
    if at.output == "json":
        print_json(found)
        return

    def row_of(row: dict[str, Any]) -> Row:
        late = row["core_format"] is None or row["core_format"] < found["newest"]
        name = Styled(row["name"], "yellow") if late else row["name"]
        software = row["software"] if row["software"] is not None else "not connected"
        return (name, row["role"], software, cell(row["core_format"]))

    print_table(("NODE", "ROLE", "SOFTWARE", "CORE FORMAT"), map(row_of, found["members"]))
    say_line(_advice(found))


@app.command("raise", epilog=examples("raftkv format raise --dir demo"))
@connected("simple", "json", timeout_s=30.0)
def raise_format(at: At) -> None:
    """Raise the core format to the newest one, once every node is upgraded.

    There is no way back: nodes of the former release are refused from then on.
    """
    from .door_client import of_a_change
    from .output import print_json

    context = tls_context(at)

    def ask(endpoint: str, left_s: float) -> Any:
        # The node answers at its deadline; that must still arrive.
        return request(
            endpoint,
            "POST",
            "/v1/format/raise",
            {"timeout_s": left_s},
            timeout_s=left_s + 2.0,
            context=context,
        )

    with of_a_change(repeat=True):
        found = ask_in_turn(endpoints_of(at), at.timeout_s, ask, context=context)
    if at.output == "json":
        print_json(found)
    else:
        say_line(f"the core format is {found['active']}")


def _survey(endpoint: str, left_s: float, *, context: ssl.SSLContext | None) -> Any:
    timeout_s = min(left_s, LIST_TIMEOUT_S)
    return request(endpoint, "GET", "/v1/format", timeout_s=timeout_s, context=context)


def _advice(found: dict[str, Any]) -> str:
    text = f"core format {found['active']} is active"
    if found["active"] >= found["newest"]:
        return f"{text}, the newest that {found['leader']} knows"
    if found["missing"]:
        return f"{text}; {found['newest']} waits for {', '.join(found['missing'])}"
    return f"{text}; every member knows {found['newest']}: raftkv format raise"
