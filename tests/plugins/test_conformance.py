"""The plugins of this repository keep the contract, on logs of chance and on those of their tests.

Made-up commands get far into the keyspace and the registry. Of longer protocols they reach the
beginnings; what they do not reach is named here, and is judged in the logs that the plugins' own
random tests write, which know the next step of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from raftkv.kv.keyspace import KV
from raftkv.plugin import Plugin, View
from raftkv.testing import check_log, check_plugin
from raftkv_cluster_call import Calls
from raftkv_cluster_call import commands as calls
from raftkv_lcr import LCR
from raftkv_lcr.commands import Cleanup
from raftkv_limbo import Limbo
from raftkv_limbo import commands as limbo
from raftkv_subscriptions import Subscriptions
from raftkv_subscriptions import commands as subscriptions
from raftkv_txqueue import TxQueue
from raftkv_txqueue import commands as txqueue
from raftkv_txqueue.deciding import ENTRY_ROWS
from raftkv_txqueue.xa import Xid

from .raftkv_cluster_call import test_calls_model
from .raftkv_limbo import test_limbo_model
from .raftkv_subscriptions import test_subscriptions_model
from .raftkv_txqueue import test_random_commands
from .raftkv_txqueue.pure import publish_to

#: What made-up commands do not get applied.
UNREACHED: Mapping[str, Sequence[type[msgspec.Struct]]] = {
    "calls": [calls.Advance, calls.Commit, calls.Failing, calls.Force, calls.Skip],
    "limbo": [limbo.RollBack, limbo.Veto],
    "subscriptions": [
        subscriptions.Release,
        subscriptions.ReleaseDelivered,
        subscriptions.Take,
    ],
    "txqueue": [
        txqueue.Commit,
        txqueue.CommitBranch,
        txqueue.End,
        txqueue.ForgetBranch,
        txqueue.Heuristic,
        txqueue.PrepareBranch,
        txqueue.RollbackBranch,
        txqueue.Rollback,
        txqueue.SetTimeout,
        txqueue.Stage,
    ],
}


def honest_cleanup(rng: random.Random, view: View) -> Cleanup | None:
    """As the leader sends it: `done` is its word that there are no other rows."""
    ended = [key for key, _ in view.table("ended").scan()]
    if not ended or rng.random() < 0.9:
        return None
    node, incarnation = life = rng.choice(ended)
    held = [
        client
        for client, entry in view.table("clients").scan()
        for channel in (entry.owner, *((entry.claim.channel,) if entry.claim else ()))
        if (channel.node, channel.incarnation) == life
    ]
    some = held[: rng.randint(0, len(held))]
    return Cleanup(node, incarnation, tuple(some), len(some) == len(held))


@pytest.mark.parametrize("seed", range(3))
def test_the_registry(seed: int) -> None:
    check_plugin(LCR, honest_cleanup, by_hand=[Cleanup], steps=120, seed=seed)


@pytest.mark.parametrize("plugin", [KV, Calls, Limbo, Subscriptions, TxQueue])
def test_made_up_logs(plugin: type[Plugin[Any]]) -> None:
    beside = [KV] if "kv" in plugin.uses else []
    check_plugin(plugin, beside=beside, unreached=UNREACHED.get(plugin.name, ()), steps=120)


def log_of_calls(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    beside = test_calls_model.Beside()
    for _ in range(300):
        action = chance.choice(test_calls_model.ACTIONS)
        node, other = chance.choices(test_calls_model.NODES, k=2)
        beside.act(action, node, other, chance.randrange(256), chance.random() < 0.5)
    return beside.log.entries


def log_of_the_limbo(seed: int) -> list[bytes]:
    beside = test_limbo_model.Beside(seed)
    for _ in range(200):
        beside.step()
    return beside.log.entries


def log_of_subscriptions(seed: int) -> list[bytes]:
    run = test_subscriptions_model.Run(seed)
    run.run(200)
    return run.log.entries


def log_of_queues(seed: int) -> list[bytes]:
    walk = test_random_commands.Walk(seed, ENTRY_ROWS)
    walk.run()
    # An operator's decision over a branch in doubt: seldom met by chance.
    node, xid = walk.up(), Xid(1, b"g", b"in doubt")
    session = walk.log.open(node, "dtx")
    walk.log.send(node, txqueue.Start(session, xid))
    for name, member in list(walk.log.machine.members.items()):
        if member.up:
            walk.log.send(name, txqueue.Observe(False))  # nobody votes
    walk.log.declare("work")
    work = (publish_to("work", "m"),)
    walk.log.send(node, txqueue.End(session, xid, operations=work))
    for command in (
        txqueue.PrepareBranch(xid),
        txqueue.Heuristic(xid, True, "the coordinator is lost"),
        txqueue.ForgetBranch(xid),
    ):
        walk.log.anywhere(command)
    return walk.log.entries


@pytest.mark.parametrize(
    ("plugin", "beside", "write"),
    [
        (test_calls_model.SmallCalls, [KV], log_of_calls),
        (Limbo, [], log_of_the_limbo),
        (Subscriptions, [], log_of_subscriptions),
        (TxQueue, [], log_of_queues),
    ],
)
def test_logs_of_their_own_tests(
    plugin: type[Plugin[Any]],
    beside: Sequence[type[Plugin[Any]]],
    write: Callable[[int], list[bytes]],
) -> None:
    found = [check_log(plugin, write(seed), beside=beside) for seed in range(8)]
    applied = {name for checked in found for name in checked.applied}
    assert {each.__name__ for each in UNREACHED[plugin.name]} <= applied
