"""`raftkv alarm list`: what each node raises an alarm about.

DISK is one node's own: its disk lacks the room for the next snapshot. CORRUPT is raised by each
core that has found the states of cores to differ. So each node is asked itself, as `raftkv
endpoint` does it. Both end by themselves; there is nothing to clear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .endpoint import Cluster, ask_all, fail_if_any
from .options import At, connected, examples, group

if TYPE_CHECKING:
    from .output import Row

__all__ = ["app"]

app = group("What nodes raise an alarm about.")


@app.callback()
def _alarm() -> None:
    """Keep `list` a command of its own: typer runs a lone command without its name."""


@app.command(
    "list",
    epilog=examples(
        "raftkv alarm list --cluster --dir demo",
        "raftkv alarm list --cluster --endpoint http://10.0.0.1:7501 --json",
    ),
)
@connected("table", "json")
def list_(at: At, cluster: Cluster = False) -> None:
    """The alarms that are on. Each node knows its own.

    Exit code 3 if one does not answer.
    """
    from .output import Styled, cell, print_json, print_table

    found = ask_all(at, cluster, lambda request: request("GET", "/v1/status"))
    if at.output == "json":
        print_json(
            [
                {
                    "endpoint": each.endpoint,
                    "error": each.error,
                    "node": each.answer and each.answer["name"],
                    # A node of an older release does not know of alarms.
                    "alarms": each.answer and each.answer.get("alarms", []),
                }
                for each in found
            ]
        )
    else:
        rows: list[Row] = []
        for each in found:
            if each.error is not None:
                rows.append([each.endpoint, cell(None), cell(None), Styled(each.error, "red")])
                continue
            for alarm in each.answer.get("alarms", []):
                rows.append([each.endpoint, each.answer["name"], Styled(alarm, "red"), cell(None)])
        print_table(("ENDPOINT", "NODE", "ALARM", "ERROR"), rows)
    fail_if_any(found)
