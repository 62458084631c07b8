"""Real processes under real faults: `tools/chaos`, which is `python -m bench chaos`.

    node.py      what runs instead of `raftkv serve`: the same node over a disk that can fail
    files.py     that disk: errors, a full and a slow one, and the books for a power cut
    power.py     a power cut: takes from a dead node's directory what was not synced
    proxy.py     the network: every link between two nodes goes through it, each direction apart
    cluster.py   the processes of one cluster
    door.py      a client of the door, in the shape that the history recorder wants
    load.py      the clients: a mixed load that is recorded, and a ledger of single writes
    faults.py    what can go wrong, how it is undone, and what shows that it happened
    soak.py      minutes of faults, one after the other, under load
    rounds.py    many quick rounds of kills and power cuts
    verify.py    what must hold in the end
    report.py    the table, the summary, the exit code
    command.py   the command line

Nothing here is imported by a node in production, and `node.py` imports little, because it is
started thousands of times.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; imported late, so that a node does not load what only the command needs."""
    from bench.chaos.command import main as run

    return run(argv)
