"""`raftkv alarm list`: what each node raises an alarm about; `raftkv alarm disarm`.

DISK is one node's own: its disk lacks the room for the next snapshot. CORRUPT is raised by each
core that has found the states of cores to differ, IDENTITY by what has met two processes with one
identity, EPOCH by a node at which a newer epoch was claimed that no core proved. So each node is
asked itself, as `raftkv endpoint` does it. They end by themselves; there is nothing to clear.

NOSPACE is the cluster's: the quota of a plugin was used up. It ends by `disarm` only, once there is
room, as etcd's does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .connecting import endpoints_of, tls_context
from .endpoint import Cluster, ask_all, fail_if_any
from .member import ask_in_turn, request
from .options import At, connected, examples, group
from .saying import say_line

if TYPE_CHECKING:
    from .output import Row

__all__ = ["app"]

app = group("What nodes raise an alarm about.")


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


@app.command(epilog=examples("raftkv alarm disarm --dir demo"))
@connected("table", "json")
def disarm(at: At) -> None:
    """End the alarm NOSPACE, after data was deleted or the quota was raised.

    A plugin that is still beyond its quota raises it again with its next write. Exit code 0 also
    if the alarm was not on.
    """
    from .door_client import of_a_change
    from .output import print_json

    context = tls_context(at)

    def ask(endpoint: str, left_s: float) -> Any:
        body = {"action": "DEACTIVATE", "alarm": "NOSPACE"}
        path = "/v3/maintenance/alarm"
        return request(endpoint, "POST", path, body, timeout_s=left_s, context=context)

    with of_a_change(repeat=True):
        found = ask_in_turn(endpoints_of(at), at.timeout_s, ask, context=context)
    ended = [each["alarm"] for each in found.get("alarms", [])]
    if at.output == "json":
        print_json({"disarmed": ended})
    else:
        say_line("NOSPACE is disarmed" if ended else "NOSPACE was not on")
