"""Who counts, what is needed, and up to where it is there."""

from __future__ import annotations

import pytest

from raftkv.errors import InvalidSetting
from raftkv_limbo.commands import Declare
from raftkv_limbo.views import holders, is_fast, needs, reached, status_rows
from tests.plugins.raftkv_limbo.pure import LimboLog, put


def test_the_default_is_the_majority_and_fast() -> None:
    log = LimboLog(quorum="N / 2 + 1")
    found = needs(log.view())
    assert (found.n, found.quorum, found.over, found.fast) == (3, 2, "cores", True)
    assert found.possible
    assert found.text == "N / 2 + 1"
    log.sync()
    assert log.fate(1) == "confirmed"
    assert log.table("nodes") == {}
    assert reached(log.view()) == 1


@pytest.mark.parametrize("cores", range(1, 6))
def test_fast_ends_where_the_quorum_exceeds_the_majority(cores: int) -> None:
    log = LimboLog(tuple(f"n{i}" for i in range(1, cores + 1)), quorum="N / 2 + 1")
    majority = cores // 2 + 1
    for quorum in range(1, cores + 1):
        log.set("quorum", str(quorum))
        assert is_fast(log.view()) == (quorum <= majority)


def test_zones_and_validators_are_never_fast() -> None:
    log = LimboLog(quorum="1")
    assert is_fast(log.view())
    log.set("quorum_zones", {"eu": 1})
    assert not is_fast(log.view())
    log.set("quorum_zones", {})
    log.set("quorum_validators", {"audit": 1})
    assert not is_fast(log.view())


def test_n_are_the_voters_and_not_every_core_that_was_ever_seen() -> None:
    log = LimboLog(("n1", "n2", "n3", "n4"), quorum="N")
    log.set_voters("n1", "n2", "n3")
    assert needs(log.view()).n == 3
    position = log.sync()
    log.ack("n1", "n2", "n4")
    assert log.fate(position) == "pending"  # n4 copies the log, or was removed
    log.ack("n3")
    assert log.fate(position) == "confirmed"


def test_a_core_that_is_down_counts_as_a_voter() -> None:
    log = LimboLog(("n1", "n2", "n3"), quorum="N / 2 + 1")
    log.node_down("n3")
    assert needs(log.view()).quorum == 2
    assert log.fate(log.sync()) == "confirmed"


def test_fewer_voters_complete_a_quorum_for_what_waits() -> None:
    log = LimboLog(("n1", "n2", "n3"), quorum="N")
    position = log.sync()
    log.ack("n1", "n2")
    assert log.fate(position) == "pending"
    log.set_voters("n1", "n2")
    assert log.fate(position) == "confirmed"


def test_without_announced_voters_nothing_is_fast() -> None:
    """A log of an older version: who votes is not known, so N are the cores, and all must ack."""
    log = LimboLog(("n1", "n2", "n3"), quorum="N / 2 + 1")
    log.set_voters()
    assert (needs(log.view()).n, is_fast(log.view())) == (3, False)
    position = log.sync()
    log.ack("n1")
    assert log.fate(position) == "pending"
    log.ack("n3")
    assert log.fate(position) == "confirmed"


def test_replicants_count_if_the_setting_says_so() -> None:
    log = LimboLog(quorum="4")
    log.node_up("r1", "replicant")
    assert needs(log.view()).n == 3
    assert not needs(log.view()).possible
    position = log.sync()
    log.ack("n1", "n2", "n3", "r1")
    assert log.fate(position) == "pending"
    log.set("quorum_over", "members")
    assert log.fate(position) == "confirmed"
    assert needs(log.view()).possible


def test_n_counts_members_that_are_down() -> None:
    log = LimboLog()
    position = log.sync()
    log.ack("n1", "n2", "n3")
    assert log.fate(position) == "confirmed"
    log.node_down("n3")
    assert needs(log.view()).n == 3
    position = log.sync()
    log.ack("n1", "n2")
    assert log.fate(position) == "pending"


def test_a_node_that_joins_raises_n_for_those_that_wait() -> None:
    log = LimboLog()
    position = log.sync()
    log.ack("n1", "n2")
    log.node_up("n4")
    log.ack("n3")
    assert log.fate(position) == "pending"
    log.ack("n4")
    assert log.fate(position) == "confirmed"


def test_a_lower_quorum_confirms_those_that_wait() -> None:
    log = LimboLog()
    first, second = log.sync(), log.sync()
    log.ack("n1")
    log.ack("n2", upto=first)
    log.set("quorum", "2")  # the majority: on so many it is as it stands in the log
    assert (log.fate(first), log.fate(second)) == ("confirmed", "confirmed")


def test_zones_are_counted_besides_the_quorum() -> None:
    log = LimboLog(quorum="1")
    log.set("quorum_zones", {"eu": 1, "us": 1})
    assert not needs(log.view()).possible
    log.send("n2", Declare("eu"))
    log.send("n3", Declare("us"))
    assert needs(log.view()).possible
    first, second = log.sync(), log.sync()
    log.ack("n1", "n2")
    assert log.fate(first) == "pending"
    log.ack("n3", upto=first)
    assert (log.fate(first), log.fate(second)) == ("confirmed", "pending")
    log.send("n1", Declare("us"))  # it holds both already
    assert log.fate(second) == "confirmed"


def test_a_replicant_may_stand_for_its_zone() -> None:
    log = LimboLog(quorum="1")
    log.node_up("r1", "replicant")
    log.send("r1", Declare("far"))
    log.set("quorum_zones", {"far": 1})
    position = log.sync()
    log.ack("r1")
    assert log.fate(position) == "pending"  # none of the cores counts yet
    log.ack("n1")
    assert log.fate(position) == "confirmed"


def test_a_replicant_that_becomes_a_core_counts_with_what_it_holds() -> None:
    log = LimboLog(quorum="3")
    log.node_up("r1", "replicant")
    log.set("quorum_zones", {"far": 1})
    log.send("r1", Declare("far"))
    position = log.sync()
    log.ack("n1", "n2", "r1")
    assert log.fate(position) == "pending"
    log.node_role("r1", "core")
    assert log.fate(position) == "pending"  # it copies the log, and votes later
    log.set_voters("n1", "n2", "r1")
    assert log.fate(position) == "confirmed"


@pytest.mark.parametrize("over", ["cores", "members"])
def test_a_voter_is_counted_once_while_its_row_still_says_replicant(over: str) -> None:
    log = LimboLog(quorum="N")
    log.set("quorum_over", over)
    log.node_up("r1", "replicant")
    log.set_voters("n1", "n2", "n3", "r1")  # the log hears of that before it hears of its role
    position = log.sync()
    log.ack("n1", "n2", "n3")
    assert log.fate(position) == "pending"
    log.ack("r1")
    assert log.fate(position) == "confirmed"


def test_status_and_holders() -> None:
    log = LimboLog()
    log.node_up("r1", "replicant")
    log.send("n2", Declare("eu", ("audit",)))
    position = log.sync()
    log.sync()
    log.ack("n2", upto=position)
    assert holders(log.view(), position) == ("n2",)
    rows = {row.name: row for row in status_rows(log.view())}
    assert list(rows) == ["n1", "n2", "n3", "r1"]
    assert (rows["n2"].acked, rows["n2"].lag, rows["n2"].zone) == (1, 1, "eu")
    assert rows["n2"].validators == ("audit",)
    assert (rows["n1"].lag, rows["n1"].counts, rows["r1"].counts) == (2, True, False)
    assert rows["r1"].lag == 0  # nobody asks it
    for _ in range(5):
        log.taken("n1", put("a", b"k"))
    rows = {row.name: row for row in status_rows(log.view())}
    assert (rows["n1"].lag, rows["n2"].lag) == (2, 1)  # async ones are not acknowledged
    log.ack("n1", "n2", "n3")
    assert {row.lag for row in status_rows(log.view())} == {0}  # nothing is pending


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quorum", "N - 1"),
        ("quorum", "__import__('os').system('true')"),
        ("quorum_over", "all"),
        ("quorum_zones", {"": 1}),
        ("quorum_zones", {"eu": 0}),
        ("quorum_zones", {"eu": 32}),
        ("quorum_zones", {"z" * 65: 1}),
        ("quorum_zones", {f"z{i}": 1 for i in range(17)}),
        ("quorum_validators", {f"v{i}": 1 for i in range(17)}),
        ("queue_bytes_max", 0),
        ("queue_entries_max", 3_001),
        ("queue_writes_max", 0),
        ("queue_writes_max", 5_001),
        ("transaction_writes_max", 1_001),
        ("rollback_after_ms", 99),
        ("entries_kept", -1),
        ("rollbacks_kept", 0),
    ],
)
def test_bad_settings_are_refused_and_change_nothing(key: str, value: object) -> None:
    log = LimboLog()
    before = log.view().settings[key]
    with pytest.raises(InvalidSetting):
        log.set(key, value)
    assert log.view().settings[key] == before


def test_an_impossible_quorum_is_allowed_and_seen() -> None:
    log = LimboLog(quorum="5")
    assert not needs(log.view()).possible
    position = log.sync()
    log.ack("n1", "n2", "n3")
    assert log.fate(position) == "pending"
    assert log.taken("n1", put("a", b"k")) == position + 1
    assert log.state.pending == 2
