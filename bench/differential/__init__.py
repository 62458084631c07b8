"""raftkv's door beside real etcd: the same requests to both, and the answers compared.

    words.py         what is asked: hypothesis strategies for requests, good and bad ones
    doors.py         how it is asked: one connection to each of the two, streams of watches
    normal.py        what is left out of a comparison: ids, terms, the seconds of a lease
    differences.py   what may differ, each with its name and its reason
    example.py       one example: a fresh start, watches, requests; what did not agree
    command.py       many of them: `tools/differential`, which is `python -m bench differential`

Both sides begin an example with no keys, no leases and the same revision, and get the same
requests in the same order, so every answer must be the same, revisions included.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; imported late, because tests need the rest only."""
    from bench.differential.command import main as run

    return run(argv)
