"""Two Patroni members and their etcd3 client classes, as Patroni uses them; run as a program.

    python patroni_story.py HOST:PORT,HOST:PORT,...

Prints a JSON line for each thing that happened. A program of its own, because Patroni's watching
threads never end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from patroni.dcs.etcd3 import Etcd3
from patroni.postgresql.mpp import get_mpp

# The shortest that leaves room for a slow machine between two keep-alives.
TTL_S = 4
PATIENCE_S = 20.0


def member(name: str, hosts: str) -> Etcd3:
    config = {
        "name": name, "scope": "demo", "namespace": f"/patroni-{os.getpid()}/", "hosts": hosts,
        "ttl": TTL_S, "loop_wait": 1, "retry_timeout": 5,
    }  # fmt: skip
    return Etcd3(config, get_mpp({}))


def say(what: str, found: Any) -> None:
    print(json.dumps([what, found]), flush=True)


def leader_seen_by(dcs: Etcd3) -> str | None:
    cluster = dcs.get_cluster()
    return cluster.leader.name if cluster.leader is not None else None


def woken(dcs: Etcd3, leader: str | None) -> bool:
    """Whether the member learns of this leader by its watch; it looks only when it is woken."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if leader_seen_by(dcs) == leader:
            return True
        dcs.watch(None, 1.0)
    return False


def main() -> None:
    first, second = (member(name, sys.argv[1]) for name in ("alice", "bob"))
    say("initialize", [bool(first.initialize(sysid="1")), bool(second.initialize(sysid="2"))])
    for name, dcs in (("alice", first), ("bob", second)):
        say(f"touch {name}", dcs.touch_member({"state": "running", "conn_url": name}))
    won = [first.attempt_to_acquire_leader(), second.attempt_to_acquire_leader()]
    say("acquire", [bool(each) for each in won])
    say("seen", woken(second, "alice"))
    cluster = first.get_cluster()
    say("members", sorted(each.name for each in cluster.members))
    say("update", first.update_leader(cluster, 1000))
    say("config", [first.set_config_value('{"ttl":4}'), second.set_config_value("{}", version="1")])
    print("READY", flush=True)
    sys.stdin.readline()  # meanwhile a core of raftkv is killed
    say("update after the kill", first.update_leader(first.get_cluster(), 2000))
    say("status", woken_status(second, 2000))
    cluster = first.get_cluster()
    say("give up", first.delete_leader(cluster.leader))
    say("seen", woken(second, None))
    say("acquire", bool(second.attempt_to_acquire_leader()))
    say("seen", woken(first, "bob"))
    # Nobody refreshes bob's lease any more: his lock ends with it, and not before.
    began_s = time.monotonic()
    say("expired", woken(first, None))
    say("expired after s", time.monotonic() - began_s)
    say("delete", bool(first.delete_cluster()))
    sys.stdout.flush()
    os._exit(0)


def woken_status(dcs: Etcd3, last_lsn: int) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if dcs.get_cluster().status.last_lsn == last_lsn:
            return True
        dcs.watch(None, 0.5)
    return False


if __name__ == "__main__":
    main()
