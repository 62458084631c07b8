"""What each plugin does beyond its quota: every command by name, and each kind of what must work.

Deletions, compaction, acknowledgements, commits and aborts of what was prepared, unregistration,
housekeeping of nodes and sessions, settings and expiry are never refused for a lack of space.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.errors import NoSpace, Refused
from raftkv.kv import KV, Compact, DeleteRange, Grant, Put, Revoke
from raftkv.kv.commands import ClaimLessor, DeleteRangeOp, Expire, Txn
from raftkv.state import NodeUp, OpenSession, PurePlugin, SetSetting, SettleOutcome
from raftkv.state.core import AnnounceFormats
from raftkv.state.deaths import DeclareDead
from raftkv.testing.made_commands import CommandMaker
from raftkv_cluster_call import Calls
from raftkv_cluster_call import commands as calls
from raftkv_lcr import LCR
from raftkv_lcr import commands as lcr
from raftkv_limbo import Limbo
from raftkv_limbo import commands as limbo
from raftkv_subscriptions import Subscriptions
from raftkv_txqueue import TxQueue
from raftkv_txqueue import commands as txqueue

from .raftkv_cluster_call.pure import CallLog
from .raftkv_lcr.one_log import Log as ChannelLog
from .raftkv_limbo.pure import LimboLog, put
from .raftkv_subscriptions.pure import RegionLog
from .raftkv_txqueue.pure import publish_to
from .raftkv_txqueue.test_branches import Dtx, X, Y
from .test_quotas import BODY, fill, with_quota

# Every command, by what it is; those of ADDS are refused beyond the quota.
ADDS, DECLARES = "adds data", "adds data unless it is there already"
KINDS: dict[type[PurePlugin], dict[str, str]] = {
    KV: {
        "adds data": "Put PutWith Txn Grant",
        "deletion": "DeleteRange",
        "compaction": "Compact",
        "expiry": "Revoke Expire",
        "housekeeping": "ClaimLessor",
    },
    Calls: {
        "adds data": "Reserve",
        "commit": "Commit Advance",
        "abort": "Abort Withdraw Failing Skip Force",
        "expiry": "Expire",
        "compaction": "Trim",
        "acknowledgement": "Acknowledge",
        "housekeeping": "Join Sync Leave Rejoin Reset",
    },
    LCR: {
        DECLARES: "Register Open",
        "unregistration": "Unregister Cleanup TrimPast",
        "housekeeping": "TakeTicket DrawTicket Adopt Announce SwitchMode",
    },
    Limbo: {
        "adds data": "Submit CreateSpace",
        "acknowledgement": "Ack Declare",
        "abort": "Veto RollBack",
        "housekeeping": "Promote Demote",
        "settings": "AlterSpace AlterFenced",
        "deletion": "DropSpace DropFenced Sweep",
    },
    Subscriptions: {
        "adds data": "Publish Deliver",
        DECLARES: "DeclareTopic EnsureTopic Subscribe",
        "deletion": "DeleteTopic Unsubscribe RemoveRegion",
        "acknowledgement": "Ack AckDelivered AckTo AckToDelivered Merge Update Release "
        "ReleaseDelivered Take Seek",
        "settings": "SetRegion PutRegion SetReplicate",
        "housekeeping": "Report Attach Detach SnapshotStart SnapshotAnswer SnapshotAnswered "
        "SnapshotAbandon",
        "expiry": "Sweep",
    },
    TxQueue: {
        "adds data": "Publish Stage Commit End",
        DECLARES: "DeclareQueue EnsureQueue",
        "deletion": "DeleteQueue Purge",
        "acknowledgement": "Acquire Settle PutBack ToBack Observe",
        "commit": "PrepareBranch CommitBranch Vote Heuristic",
        "abort": "Rollback RollbackBranch ForgetBranch",
        "housekeeping": "OpenSession CloseSession EndSession Select Start SetTimeout",
        "expiry": "Sweep",
    },
}


@pytest.mark.parametrize("plugin", list(KINDS))
def test_every_command_is_of_one_kind_and_only_the_first_ones_are_judged(
    plugin: type[PurePlugin],
) -> None:
    kinds = {name: kind for kind, names in KINDS[plugin].items() for name in names.split()}
    assert sorted(kinds) == sorted(command.__name__ for command in plugin.commands)
    quota = plugin.quota
    assert quota is not None
    maker = CommandMaker(plugin.commands, random.Random(1))
    judged: dict[str, set[str]] = {}
    for command in plugin.commands:
        for _ in range(200):
            made, _ = maker.make(command)
            declares = quota.declares is not None and quota.declares(made)
            found = ADDS if quota.adds(made) else DECLARES if declares else ""
            judged.setdefault(command.__name__, set()).add(found)
    for name, kind in kinds.items():
        if kind in (ADDS, DECLARES):
            assert kind in judged[name], f"{name} is never judged"
        else:
            assert judged[name] == {""}, f"{name} is refused beyond the quota"


# What must work, and is done beyond the quota ---------------------------------------------------

Act = Callable[[Any], object]


def kv_log() -> CallLog:
    log = CallLog()
    with_quota(log, "kv")
    log.run(log.sessions["n1"], "kv", Grant(60, 7))
    log.run(log.sessions["n1"], "kv", Grant(60, 8))
    fill(lambda: log.run(log.sessions["n1"], "kv", Put(b"k%d" % log.machine.index, BODY)))
    return log


def _kv(command: Any) -> Act:
    return lambda log: log.run(log.sessions["n1"], "kv", command)


def _expire(log: CallLog) -> object:
    epoch = _kv(ClaimLessor())(log).epoch
    log.now += 1_000_000
    done = _kv(Expire(epoch, (7, 8)))(log)
    assert not log.machine.view("kv").table("leases")
    return done


def call_log() -> CallLog:
    log = CallLog()
    with_quota(log, "calls")

    def one() -> None:
        log.catch_up()
        granted = log.send("n1", calls.Reserve("f", 1, BODY, log.last, 60_000, log.now))
        log.commit("n1", granted)

    fill(one)
    return log


def channel_log() -> ChannelLog:
    log = ChannelLog(("n1", "n2", "n3"))
    with_quota(log, "lcr")
    log.set("history_ms", 1_000)
    log.register("n1", "a")
    fill(lambda: log.send("n1", lcr.Register(f"c{log.machine.index}", "x", None, None)))
    return log


def _node_down(log: Any, name: str) -> object:
    """A verdict of death, in the term of the entries that these logs are made of."""
    incarnation = log.machine.members[name].incarnation
    reporter = log.sessions["n2" if name == "n1" else "n1"]
    done = log.run(reporter, "core", DeclareDead(name, incarnation, 0))
    assert not log.machine.members[name].up
    return done


def _after_its_node(log: ChannelLog) -> Any:
    _node_down(log, "n1")
    return log


def _revision(log: CallLog) -> int:
    revision: int = log.machine.view("kv").table("meta")["revision"]
    return revision


def _owner(log: ChannelLog) -> Any:
    return log.view().table("clients")["c"].owner


def limbo_log() -> LimboLog:
    log = LimboLog()
    with_quota(log, "limbo")
    keys = iter(range(1000))
    fill(lambda: log.submit("n1", put("s", b"k%d" % next(keys), BODY)))
    return log


def region_log() -> RegionLog:
    log = RegionLog()
    log.subscribe("t", "s", initial="earliest")
    with_quota(log, "subscriptions")
    fill(lambda: log.publish("t", BODY))
    return log


def queue_log() -> Dtx:
    log = Dtx()
    with_quota(log, "txqueue")
    log.dtx = log.open(kind="dtx")  # type: ignore[attr-defined]
    for xid in (X, Y):
        log.start(log.dtx, xid)  # type: ignore[attr-defined]
        log.stage(log.dtx, publish_to("q", BODY), counter=0)  # type: ignore[attr-defined]
        log.end(log.dtx, xid)  # type: ignore[attr-defined]
        log.prepare(xid)
    fill(lambda: log.publish("q", BODY))
    return log


def _core(command: Any) -> Act:
    return lambda log: log.run(next(iter(log.sessions.values())), "core", command)


def _node_up(log: Any) -> object:
    return log.run(0, "core", NodeUp(991, "n9", "core", "n9", "", None, ()), 991)


HOUSEKEEPING: dict[str, Act] = {
    "a client opens a session": lambda log: log.run(0, "core", OpenSession(77), 77),
    "a node comes": _node_up,
    "a node ends": lambda log: _node_down(log, "n2"),
    "formats are announced": lambda log: _core(
        AnnounceFormats("n1", log.machine.members["n1"].incarnation, ())
    )(log),
    "a number is settled": lambda log: _core(SettleOutcome(log.sessions["n1"], 1))(log),
}

WORKS: dict[tuple[Callable[[], Any], str], dict[str, Act]] = {
    (kv_log, "kv"): {
        "deletion": _kv(DeleteRange(b"k", b"l")),
        "deletion in a transaction": _kv(Txn(success=(DeleteRangeOp(b"k", b"l"),))),
        "compaction": lambda log: _kv(Compact(_revision(log)))(log),
        "revocation": _kv(Revoke(7)),
        "expiry": lambda log: _expire(log),
    },
    (call_log, "calls"): {
        "trim": lambda log: log.send("n1", calls.Trim(100)),
        "leave": lambda log: log.send("n3", calls.Leave("n3", False)),
        "execution": lambda log: log.catch_up(),
    },
    (channel_log, "lcr"): {
        "unregistration": lambda log: log.unregister("n1", _owner(log)),
        "the same connection asks again": lambda log: log.register("n1", "a"),
        "a client of a node that has ended registers": lambda log: _after_its_node(log).register(
            "n2", "a-longer-name"
        ),
        "a client of a node that has ended opens": lambda log: _after_its_node(log).open(
            "n2", "a-longer-name"
        ),
        "a client claims its session at another node": lambda log: log.register("n2", "b"),
        "a client takes its session over": lambda log: log.register("n2", "b", _owner(log)),
        "cleanup": lambda log: _after_its_node(log).send(
            "n2", lcr.Cleanup("n1", _owner(log).incarnation, ("c",), False)
        ),
        "ticket": lambda log: log.send("n1", lcr.TakeTicket()),
        "timed ticket": lambda log: log.send("n1", lcr.DrawTicket()),
    },
    (limbo_log, "limbo"): {
        "acknowledgements": lambda log: log.ack("n1", "n2", "n3"),
        "rollback": lambda log: log.send("n1", limbo.RollBack(1, log.state.term, "why")),
        "promotion": lambda log: log.promote("n1"),
        "deletion": lambda log: log.submit("n1", put("s", b"k0", None)),
        "sweep": lambda log: log.send("n1", limbo.Sweep(100)),
    },
    (region_log, "subscriptions"): {
        "consumer": lambda log: log.attach(),
        "acknowledgement": lambda log: log.ack(1, 2),
        "acknowledgement up to": lambda log: log.ack_to(3),
        "seek": lambda log: log.seek(1),
        "deletion of a topic": lambda log: log.delete("t"),
        "unsubscription": lambda log: log.unsubscribe("t", "s", force=True),
        "subscription that is there": lambda log: log.subscribe("t", "s"),
        "expiry": lambda log: log.sweep_all(),
    },
    (queue_log, "txqueue"): {
        "session": lambda log: log.open(),
        "session closed": lambda log: log.close(log.open()),
        "acquired and accepted": lambda log: (
            session := log.open(),
            log.accept(session, "q", *log.get(session).seqs),
        ),
        "commit": lambda log: log.commit_branch(X),
        "rollback": lambda log: log.roll_back(Y),
        "purge": lambda log: log.anywhere(txqueue.Purge("q", 100)),
        "queue that is there": lambda log: log.declare("q"),
        "sweep": lambda log: log.sweep_all(),
    },
}


@pytest.mark.parametrize(
    ("made", "plugin", "what"),
    [
        pytest.param(made, plugin, what, id=f"{plugin}: {what}")
        for (made, plugin), acts in WORKS.items()
        for what in (*acts, *HOUSEKEEPING, "a setting")
    ],
)
def test_it_works_beyond_the_quota(made: Callable[[], Any], plugin: str, what: str) -> None:
    log = made()
    assert log.machine.alarms == [("NOSPACE", plugin)]
    if what == "a setting":
        _core(SetSetting.of(plugin, "quota_bytes", 1 << 30))(log)
        return
    acts = {**WORKS[made, plugin], **HOUSEKEEPING}
    try:
        acts[what](log)
    except NoSpace as error:
        raise AssertionError(f"{what} was refused: {error}") from error
    except Refused as error:
        pytest.fail(f"the case is not what it should be: {error!r}")
