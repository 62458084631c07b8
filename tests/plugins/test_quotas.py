"""The quotas of the plugins: what adds is refused beyond them, what ends or frees never is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftkv.errors import NoSpace
from raftkv.kv import KV, Put
from raftkv.state import DisarmAlarm, PurePlugin, SetSetting, StateMachine
from raftkv_cluster_call import Calls
from raftkv_lcr import LCR
from raftkv_lcr.commands import Register
from raftkv_limbo import Limbo
from raftkv_limbo.commands import Submit
from raftkv_subscriptions import Subscriptions
from raftkv_subscriptions import commands as subscriptions
from raftkv_txqueue import TxQueue
from raftkv_txqueue import commands as txqueue

from .raftkv_cluster_call.pure import CallLog
from .raftkv_lcr.one_log import Log
from .raftkv_limbo.pure import LimboLog, put
from .raftkv_subscriptions.pure import RegionLog
from .raftkv_txqueue.pure import TxLog, accept_of, publish_to
from .raftkv_txqueue.test_branches import Dtx

LIMIT = 32 * 1024
BODY = b"b" * 1000


def with_quota(log: Any, plugin: str, limit: int = LIMIT) -> None:
    """Raise the core format of a log and give one plugin a small quota."""
    machine: StateMachine = log.machine
    if machine.core_format < 2:
        machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
    command = SetSetting.of(plugin, "quota_bytes", limit)
    log.run(next(iter(log.sessions.values())), "core", command)


def disarm(log: Any) -> tuple[str, ...]:
    ended: tuple[str, ...] = log.run(
        next(iter(log.sessions.values())), "core", DisarmAlarm("NOSPACE")
    )
    return ended


def fill(write: Callable[[], Any]) -> int:
    """Write until the quota refuses; how often it was taken."""
    for number in range(1000):
        try:
            write()
        except NoSpace:
            return number
    raise AssertionError("the quota never refused")


def used(log: Any, plugin: str) -> int:
    usage = log.machine.usages[plugin]
    assert usage.bytes == usage.recount()
    size: int = usage.bytes
    return size


@pytest.mark.parametrize("plugin", [KV, Calls, LCR, Limbo, Subscriptions, TxQueue])
def test_every_plugin_with_user_data_has_a_quota(plugin: type[PurePlugin]) -> None:
    assert plugin.quota is not None
    assert plugin.quota.default_bytes == 2 * 1024**3
    assert set(plugin.quota.sizes) <= {spec.name for spec in plugin.tables}
    assert "quota_bytes" not in {setting.key for setting in plugin.settings}


def test_messages_are_acknowledged_beyond_the_quota_and_published_after_a_disarm() -> None:
    log = TxLog()
    with_quota(log, "txqueue")
    assert fill(lambda: log.publish("q", BODY)) > 10
    assert used(log, "txqueue") <= LIMIT
    with pytest.raises(NoSpace):
        log.declare("other")
    # Who takes messages away may declare the queue first, as ever.
    log.declare("q", deliveries_max=3)
    session = log.open()
    seqs = log.of(session, txqueue.Acquire(session, "q", 20)).seqs
    log.of(session, txqueue.Settle(session, "q", "accept", seqs))
    log.anywhere(txqueue.Purge("q", 1000))
    assert used(log, "txqueue") < LIMIT // 8
    with pytest.raises(NoSpace):
        log.publish("q", BODY)
    assert disarm(log) == ("txqueue",)
    log.publish("q", BODY)


def test_what_is_prepared_can_be_committed_beyond_the_quota() -> None:
    log = Dtx()
    with_quota(log, "txqueue")
    session = log.open(kind="dtx")
    log.start(session)
    staged = fill(lambda: log.stage(session, publish_to("q", BODY), counter=0))
    assert staged > 10
    log.end(session)
    log.prepare()
    before = used(log, "txqueue")
    assert before <= LIMIT  # it was reserved while it was staged
    with pytest.raises(NoSpace):
        log.publish("q", BODY)
    log.commit_branch()
    log.sweep_all()
    assert log.table("queues")["q"].depth == staged
    assert used(log, "txqueue") == before


def test_a_prepare_that_does_not_reserve_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TxQueue.quota is not None
    sizes = {name: size for name, size in TxQueue.quota.sizes.items() if name != "staged"}
    broken = msgspec.structs.replace(TxQueue.quota, sizes=sizes)
    monkeypatch.setattr(TxQueue, "quota", broken)
    with pytest.raises(AssertionError, match="the quota never refused"):
        test_what_is_prepared_can_be_committed_beyond_the_quota()


def test_a_transaction_that_only_accepts_is_committed_beyond_the_quota() -> None:
    log = TxLog()
    with_quota(log, "txqueue")
    fill(lambda: log.publish("q", BODY))
    session = log.open(kind="tx")
    [seq] = log.of(session, txqueue.Acquire(session, "q", 1)).seqs
    done = log.of(session, txqueue.Commit(session, 1, (accept_of("q", seq),)))
    assert done.verdict == "committed"


def test_pending_transactions_are_confirmed_beyond_the_quota() -> None:
    log = LimboLog()
    with_quota(log, "limbo")
    keys = iter(range(1000))
    taken = fill(lambda: log.submit("n1", put("s", b"k%d" % next(keys), BODY)))
    assert taken > 5
    before = used(log, "limbo")
    assert before <= LIMIT
    assert log.ack("n1", "n2", "n3") == taken
    assert log.value("s", b"k0") == BODY
    assert used(log, "limbo") == before  # it was reserved while it was pending
    with pytest.raises(NoSpace):
        log.submit("n1", put("s", b"k", b""))
    # A transaction that only deletes is taken.
    log.send("n1", Submit((put("s", b"k0", None),), log.state.term))


def test_a_call_is_not_reserved_while_the_keyspace_has_no_space() -> None:
    log = CallLog()
    with_quota(log, "kv")
    granted = log.granted("n1")
    session = log.sessions["n1"]
    fill(lambda: log.run(session, "kv", Put(b"k%d" % log.machine.index, BODY)))
    with pytest.raises(NoSpace):
        log.granted("n2")
    # What has its place is committed, with its effect.
    log.commit("n1", granted, Put(b"effect", b"1"))
    assert log.kv(b"effect") == b"1"
    assert disarm(log) == ("kv",)


def test_an_effect_beyond_the_quota_of_the_keyspace_raises_its_alarm() -> None:
    log = CallLog()
    with_quota(log, "kv")
    granted = log.granted("n1")
    log.commit("n1", granted, Put(b"effect", b"v" * LIMIT))
    assert log.machine.alarms == [("NOSPACE", "kv")]
    with pytest.raises(NoSpace):
        log.run(log.sessions["n1"], "kv", Put(b"a", b""))


def test_topics_refuse_what_is_published_and_what_arrives() -> None:
    log = RegionLog()
    with_quota(log, "subscriptions")
    assert fill(lambda: log.publish("t", BODY)) > 10
    assert used(log, "subscriptions") <= LIMIT
    with pytest.raises(NoSpace):
        log.anywhere(subscriptions.Deliver("t", "elsewhere", ()))
    log.anywhere(subscriptions.DeleteTopic("t"))
    assert disarm(log) == ("subscriptions",)


def test_acknowledgements_of_messages_work_beyond_the_quota() -> None:
    log = RegionLog()
    log.subscribe("t", "s", initial="earliest")
    with_quota(log, "subscriptions")
    taken = fill(lambda: log.publish("t", BODY))
    with pytest.raises(NoSpace):
        log.subscribe("t", "other")
    with pytest.raises(NoSpace):
        log.declare("other")
    # A consumer that starts again subscribes first, as ever; less retention frees space.
    log.subscribe("t", "s")
    log.attach()
    log.declare("t", retention_bytes=1)
    log.ack(1, 3)
    log.ack_to(taken)
    log.unsubscribe("t", "s", force=True)


def test_channels_leave_the_registry_beyond_the_quota() -> None:
    log = Log()
    with_quota(log, "lcr")
    taken = fill(lambda: log.send("n1", Register(f"c{log.machine.index}", "channel", None, None)))
    assert taken > 10
    before = used(log, "lcr")
    assert before <= LIMIT
    owners = [entry.owner for _, entry in log.view().table("clients").scan(limit=1)]
    assert log.unregister("n1", owners[0])
    assert used(log, "lcr") <= before
    log.node_up("n1")  # again: the former incarnation has ended
    with pytest.raises(NoSpace):
        log.register("n1", "other")
    assert disarm(log) == ("lcr",)
