"""`raftkv endpoint status`, `health` and `hashkv`, and `raftkv health`: each node, asked itself.

Unlike the commands on keys, which take the first endpoint that answers, these ask every endpoint
that they were given, all at the same time. With --cluster they ask one for the others.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import NoLeader, RaftkvError

from .options import At, connected, examples, group
from .saying import note_line, say_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .output import Row

__all__ = ["Cluster", "app", "ask_all", "fail_if_any", "register_health"]

EXIT_FAULT: Final = 3
ENDPOINTS_AT_ONCE_MAX: Final = 32
# How often nodes that lag are looked at again.
LAG_POLL_S: Final = 0.1

# What a request has of --timeout at least.
LEFT_S_MIN: Final = 0.05

# And a look at nodes that lag, for one that answers slowly does not lag.
LOOK_S_MIN: Final = 1.0

# The index of a node that has applied nothing since its start.
NOTHING_APPLIED: Final = 1

# `health` reads this key, which need not exist, as etcdctl does.
HEALTH_KEY: Final = "aGVhbHRo"

app = group("The nodes at the endpoints, each asked itself.")

Cluster = Annotated[
    bool, typer.Option("--cluster", help="All nodes of the cluster, not only those given.")
]

_STATUS: Final = (
    ("NODE", "name"),
    ("ROLE", "role"),
    ("LEADER", "leader"),
    ("TERM", "term"),
    ("COMMIT", "commit_index"),
    ("APPLIED", "applied_index"),
    ("READY", "ready"),
)
_NUMBERS: Final = ("TERM", "COMMIT", "APPLIED")


@app.command(
    epilog=examples(
        "raftkv endpoint status --dir demo",
        "raftkv endpoint status --cluster --endpoint http://10.0.0.1:7501 --json",
    )
)
@connected("table", "json")
def status(at: At, cluster: Cluster = False) -> None:
    """What each node tells of itself.

    Exit code 3 if one does not answer.
    """
    from .output import Styled, cell, print_json, print_table

    found = ask_all(at, cluster, lambda request: request("GET", "/v1/status"))
    if at.output == "json":
        print_json(
            [
                {"endpoint": each.endpoint, "error": each.error, "status": each.answer}
                for each in found
            ]
        )
    else:
        rows: list[Row] = []
        for each in found:
            answer = each.answer or {}
            leads = answer.get("role") == "leader"
            cells: list[str | Styled] = [each.endpoint]
            cells += [_shown(answer.get(key)) for _, key in _STATUS]
            if leads:
                cells[2] = Styled("leader", "green")
            cells.append(Styled(each.error, "red") if each.error else cell(None))
            rows.append(cells)
        headings = ("ENDPOINT", *(heading for heading, _ in _STATUS), "ERROR")
        print_table(headings, rows, _NUMBERS)
    fail_if_any(found)


@connected("simple", "table", "json")
def health(at: At, cluster: Cluster = False) -> None:
    """Whether each node answers a linearizable read.

    Exit code 3 if one does not in time.
    """
    from .output import Styled, cell, print_json, print_table

    found = ask_all(
        at, cluster, lambda request: request("POST", "/v3/kv/range", {"key": HEALTH_KEY})
    )
    if at.output == "json":
        print_json(
            [
                {
                    "endpoint": each.endpoint,
                    "health": each.error is None,
                    "took_s": each.took_s,
                    "error": each.error,
                }
                for each in found
            ]
        )
    elif at.output == "table":
        print_table(
            ("ENDPOINT", "HEALTH", "TOOK", "ERROR"),
            [
                (
                    each.endpoint,
                    "true" if each.error is None else Styled("false", "red"),
                    _took(each.took_s),
                    cell(each.error),
                )
                for each in found
            ],
            ("TOOK",),
        )
    else:
        for each in found:
            if each.error is None:
                took = _took(each.took_s)
                say_line(f"{each.endpoint} is healthy: confirmed a linearizable read in {took}")
            else:
                note_line(f"{each.endpoint} is unhealthy: {each.error}")
    fail_if_any(found)


_HASH: Final = (("HASH", "hash"), ("REVISION", "hash_revision"), ("KEYS", "keys"))


@app.command(
    epilog=examples(
        "raftkv endpoint hashkv --cluster --dir demo",
        "raftkv endpoint hashkv --cluster --rev 1200 --endpoint http://10.0.0.1:7501 --json",
    )
)
@connected("table", "json")
def hashkv(
    at: At,
    cluster: Cluster = False,
    rev: Annotated[
        int,
        typer.Option(min=0, help="The revision. 0: the newest that one of the nodes has."),
    ] = 0,
) -> None:
    """Whether the nodes hold the same keys: a hash of each one's own, as of one revision.

    A node that lags has until --timeout to get there; one that does not is named as not compared.
    Then the others have as long again for their hashes.
    Exit code 3 then, if one does not answer, or if they differ. It reads all keys of every node:
    about two seconds for a million.
    """
    from .output import Styled, cell, print_json, print_table

    nodes = _Nodes(at, cluster)
    revision, behind = (rev, {}) if rev else _newest_revision(nodes)
    if not revision:
        raise NoLeader(
            "no node that was asked has applied anything since its start, as without a quorum, or "
            "none answers: there is nothing to compare"
        )
    found = nodes.ask(
        lambda request: request("POST", "/v3/maintenance/hashkv", {"revision": str(revision)}),
        at.timeout_s,
        known=behind,
    )
    digests = {each.answer["digest"] for each in found if each.error is None}
    if at.output == "json":
        print_json(
            {
                "revision": revision,
                "same": len(digests) == 1 and all(each.error is None for each in found),
                "nodes": [
                    {
                        "endpoint": each.endpoint,
                        "error": each.error,
                        "digest": each.answer and each.answer["digest"],
                        "keys": each.answer and int(each.answer["keys"]),
                    }
                    for each in found
                ],
            }
        )
    else:
        rows: list[Row] = []
        for each in found:
            answer = each.answer or {}
            cells: list[str | Styled] = [each.endpoint]
            cells += [_shown(answer.get(key)) for _, key in _HASH]
            cells.append(Styled(each.error, "red") if each.error else cell(None))
            rows.append(cells)
        headings = ("ENDPOINT", *(heading for heading, _ in _HASH), "ERROR")
        print_table(headings, rows, tuple(heading for heading, _ in _HASH))
    if len(digests) > 1:
        sys.stdout.flush()
        note_line(f"error: the nodes differ at revision {revision}: see docs/operations.md")
        raise typer.Exit(EXIT_FAULT)
    fail_if_any(found)


def _has_state(answer: Any) -> bool:
    """Whether the node with this maintenance status has applied anything since its start."""
    applied = answer.get("raftAppliedIndex")
    return applied is None or int(applied) > NOTHING_APPLIED


def _newest_revision(nodes: _Nodes) -> tuple[int, dict[str, str]]:
    """The newest revision that one of them has, once all others have it, or at --timeout.

    Also the endpoints that have not reached it by then, or do not answer, each with what to show.
    """
    newest, seen = 0, set[str]()
    while True:
        # One that hangs must leave time for another look at those that lag.
        look_s = max(nodes.left_s / 2, min(nodes.timeout_s, LOOK_S_MIN))
        found = nodes.ask(lambda request: request("POST", "/v3/maintenance/status", {}), look_s)
        reached = {
            each.endpoint: int(each.answer["header"]["revision"])
            for each in found
            if each.error is None and _has_state(each.answer)
        }
        # Not that of the first look alone: a node that answers later may have a newer one. A newer
        # one of a node that has answered does not count, or writes would never let this end.
        newest = max(newest, *(reached[each] for each in reached if each not in seen), 0, 0)
        seen.update(reached)
        late = {endpoint: at_most for endpoint, at_most in reached.items() if at_most < newest}
        if not late or nodes.left_s <= LAG_POLL_S:
            silent = {each.endpoint: each.error for each in found if each.error is not None}
            return newest, silent | {
                endpoint: f"not compared: it is at revision {at_most}, not at {newest}, after "
                f"{nodes.timeout_s:g} s. Compare it there (--rev {at_most}), or find out why it "
                f"lags"
                for endpoint, at_most in late.items()
            }
        time.sleep(LAG_POLL_S)


class _Answer:
    """What came back from one endpoint, or why nothing did."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.answer: Any = None
        self.error: str | None = None
        self.took_s = 0.0


def ask_all(at: At, cluster: bool, ask: Callable[[Callable[..., Any]], Any]) -> list[_Answer]:
    """What `ask` gets from each endpoint, or with `cluster` from each node; all at the same time.

    `ask` is given a function that sends one request to the endpoint. Finding the nodes takes half
    of --timeout at most, and their answers have what is left of it.
    """
    nodes = _Nodes(at, cluster)
    return nodes.ask(ask, nodes.left_s)


class _Nodes:
    """The nodes that a command asks, each itself. --timeout begins when it is made."""

    def __init__(self, at: At, cluster: bool) -> None:
        from .connecting import endpoints_of, tls_context

        self.timeout_s = at.timeout_s
        self._deadline = time.monotonic() + at.timeout_s
        self._endpoints, self._context = endpoints_of(at), tls_context(at)
        self._unknown: list[str] = []
        if cluster:
            from .member import endpoints_of_members

            self._endpoints, self._unknown = endpoints_of_members(
                self._endpoints, at.timeout_s / 2, self._context
            )

    @property
    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), LEFT_S_MIN)

    def ask(
        self,
        ask: Callable[[Callable[..., Any]], Any],
        timeout_s: float,
        known: Mapping[str, str] | None = None,
    ) -> list[_Answer]:
        """As `ask_all`. An endpoint in `known` is not asked: its error is known."""
        from concurrent.futures import ThreadPoolExecutor
        from functools import partial

        from .door_client import request

        def one(endpoint: str) -> _Answer:
            found = _Answer(endpoint)
            found.error = (known or {}).get(endpoint)
            if found.error is not None:
                return found
            began = time.monotonic()
            try:
                found.answer = ask(
                    partial(request, endpoint, timeout_s=timeout_s, context=self._context)
                )
            except RaftkvError as error:
                # The endpoint stands beside it.
                found.error = str(error).removeprefix(f"{endpoint}: ").removeprefix(f"{endpoint} ")
            found.took_s = time.monotonic() - began
            return found

        with ThreadPoolExecutor(min(len(self._endpoints), ENDPOINTS_AT_ONCE_MAX)) as pool:
            found = list(pool.map(one, self._endpoints))
        return found + [_not_asked(name) for name in self._unknown]


def _not_asked(name: str) -> _Answer:
    """The row of a voter of whose HTTP address nothing is known."""
    found = _Answer(name)
    found.error = (
        "its HTTP address is unknown: the node asked has applied nothing since its start, as "
        "without a quorum; name it with --endpoint"
    )
    return found


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def fail_if_any(found: list[_Answer]) -> None:
    """Exit with code 3 if an endpoint did not answer."""
    sys.stdout.flush()
    if any(each.error is not None for each in found):
        raise typer.Exit(EXIT_FAULT)


_HEALTH_EXAMPLES = examples(
    "raftkv endpoint health --dir demo",
    "raftkv health --cluster --endpoint http://10.0.0.1:7501 --json",
)
app.command("health", epilog=_HEALTH_EXAMPLES)(health)


def register_health(top: typer.Typer) -> None:
    """Add `raftkv health`, which is `raftkv endpoint health`."""
    top.command("health", epilog=_HEALTH_EXAMPLES)(health)
