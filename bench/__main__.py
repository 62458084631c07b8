"""`python -m bench run ...`, and its fellows `compare`, `profile`, `analyse` and `check`.

The commands share nothing but the formats of their files. Each is imported only when it is called:
`run` must not wait for Spark, and `analyse` must work where the cluster's packages are missing.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

COMMANDS = {
    "run": "drive a cluster of real processes and log every operation",
    "compare": "run the same on this working tree and on another revision, side by side",
    "turns": "two revisions at once, a second each in turns: for machines that others use, too",
    "profile": "show where a node's time goes while it is under load",
    "pauses": "show how long a node's loop is held up when the state is large",
    "analyse": "turn the log of a run into tables, a summary and a report",
    "check": "check recorded histories for linearizability",
    "chaos": "break real processes, links and disks under load, and check every promise",
    "deaths": "which nodes are declared dead when processes stand still or end",
    "failover": "how long nobody can write after the leader was killed, stopped or cut off",
    "keys": "what a large keyspace costs: memory, rates, a snapshot, a restart",
    "peers": "beside etcd, zookeeper, mnesia, tarantool, rabbitmq or stock pysyncobj",
    "differential": "random requests to real etcd and to raftkv: the answers must be equal",
    "worst": "the worst transactions that are allowed, and what other callers get meanwhile",
    "abuse": "hostile HTTP traffic against the leader, and what a bystander gets meanwhile",
    "steady": "full load for a long time: the rate, and elections that should not be",
}

USAGE = "\n".join(
    [
        "usage: python -m bench COMMAND ...",
        "",
        *(f"  {name:<12} {meaning}" for name, meaning in COMMANDS.items()),
        "",
        "`python -m bench COMMAND --help` lists the options of a command.",
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Hands the arguments to the command. Exit code 2 for an unknown one or a missing package."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        command = importlib.import_module(f"bench.{arguments[0]}")
    except ModuleNotFoundError as error:
        print(
            f"error: {error.name} is not installed here. From the checkout, run "
            f"`pip install -e .[bench]`, or use the .venv that tools/demo makes",
            file=sys.stderr,
        )
        return 2
    code: int | None = command.main(arguments[1:])
    return code or 0


def _terminated(number: int, frame: object) -> NoReturn:
    """An ordinary end, so that everything that was started is ended and removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
