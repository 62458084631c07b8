"""raftkv beside others on the same machine in the same run: `python -m bench peers etcd`.

    debian.py     programs of Debian packages: found, or downloaded into a cache directory
    children.py   the processes that are started
    callers.py    callers inside a raftkv node that read, check and write
    etcd.py       etcd 3.4, one member or three
    mnesia.py     Mnesia on three Erlang nodes; mnesia_bench.erl has its callers
    tarantool.py  three instances of Tarantool; tarantool_node.lua has its writers
    rabbitmq.py   RabbitMQ on three Erlang nodes; amqp_client.py has its clients, door_client.py
                  those of raftkv's door
    zookeeper.py  three servers of ZooKeeper; store_client.py has clients of both sides
    erlang.py     what both of Erlang's need
    stock.py      PySyncObj without anything of raftkv's; stock_node.py has its callers

Each has a module `beside_*.py` that runs the same load against both in turns. Others follow in the
same form: such a module offers a `Peer` (peer.py) to the command.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; imported late, because tests need the processes only."""
    from bench.peers.command import main as run

    return run(argv)
