"""raftkv beside others on the same machine in the same run: `python -m bench peers etcd`.

    debian.py     programs of Debian packages: found, or downloaded into a cache directory
    children.py   the processes that are started
    etcd.py       etcd 3.4, one member or three

Others follow in the same form: a module that starts the peer, and a command that runs the same
load against both in turns.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; imported late, because tests need the processes only."""
    from bench.peers.command import main as run

    return run(argv)
