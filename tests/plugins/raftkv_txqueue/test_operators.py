"""What an operator sees and does: who holds a message, what a branch contains, ending sessions."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv_txqueue import BranchContent, BranchPart, XaStatus, Xid
from raftkv_txqueue.refusals import UnknownXid
from raftkv_txqueue.reports import LISTED_PARTS_MAX, branches_report
from raftkv_txqueue.sheets import branches_sheet, content_sheet
from tests.plugins.raftkv_txqueue.fakes import Cluster, messages, story
from tests.plugins.raftkv_txqueue.test_txqueue_door import (
    XID,
    Stand,
    accepts,
    doors,
    publishes,
)

X = Xid(1, b"global", b"1")
#: What a message of one letter counts: its body and 64 bytes.
LETTER = 65


# --- what a prepared branch contains --------------------------------------------------------------


async def prepared(cluster: Cluster, count: int) -> None:
    """A branch that accepts all of a but the first, and publishes two to b."""
    txq = cluster.txq("core1")
    await txq.publish("a", messages(*"x" * (count + 1)))
    session = await txq.session("dtx")
    await session.get("a")
    held = await session.get("a", count)
    assert await session.start(X) is XaStatus.OK
    await session.accept(*held)
    await session.publish("b", messages("p", "q"))
    assert await session.end(X) is XaStatus.OK
    await session.close()
    assert await txq.dtx.prepare(X) is XaStatus.OK


@story()
async def test_a_prepared_branch_shows_what_it_contains(cluster: Cluster) -> None:
    await prepared(cluster, 5)
    dtx = cluster.txq("core2").dtx
    parts = (BranchPart("a", 0, 0, 5, 5 * LETTER), BranchPart("b", 2, 2 * LETTER, 0, 0))
    [shown] = await dtx.recover()
    assert (shown.content, shown.rows) == (parts, 7)
    assert [each.content for each in dtx.branches()] == [parts]
    assert await dtx.content(X) == (
        BranchContent("a", 0, 0, 5, 5 * LETTER, (2, 3, 4, 5, 6)),
        BranchContent("b", 2, 2 * LETTER, 0, 0),
    )
    [part] = await dtx.content(X, queue="a", limit=2)
    assert (part.seqs, part.next) == ((2, 3), 4)
    [part] = await dtx.content(X, queue="a", first=part.next, limit=3)
    assert (part.seqs, part.next) == ((4, 5, 6), 0)
    assert await dtx.content(X, queue="c") == ()
    for limit in (0, 1_001):
        with pytest.raises(ValueError, match="limit is 1 to 1000"):
            await dtx.content(X, limit=limit)


@story()
async def test_what_an_operator_has_decided_keeps_its_figures(cluster: Cluster) -> None:
    await prepared(cluster, 2)
    dtx = cluster.txq("core3").dtx
    assert await dtx.heuristic_commit(X, "by hand") is XaStatus.OK
    first, second = await dtx.content(X)
    assert (first.accepts, first.seqs, second.publishes) == (2, (), 2)
    assert await dtx.forget(X) is XaStatus.OK
    with pytest.raises(UnknownXid):
        await dtx.content(X)


@doors()
async def test_the_http_api_shows_what_a_branch_contains(stand: Stand) -> None:
    opened = (await stand.open("dtx"))[1]["session"]
    await stand.get(f"sessions/{opened}", "a", 3)
    await stand.good("POST", f"dtx/{XID}/start", {"session": opened})
    asked = {"session": opened, "operations": [publishes("p"), accepts(1, 2, 3)]}
    await stand.good("POST", f"dtx/{XID}/stage", asked)
    await stand.good("POST", f"dtx/{XID}/end", {"session": opened})
    await stand.good("POST", f"dtx/{XID}/prepare")
    figures = {"publishes": 0, "publish_bytes": 0, "accepts": 3, "accept_bytes": 225}
    for path in ("dtx", "dtx/recover"):
        [found] = (await stand.good("GET", path, at="core2"))["branches"]
        assert found["content"][1] == {"queue": "a", **figures}
    one = await stand.good("GET", f"dtx/{XID}", limit="2")
    assert one["content"][1] == {"queue": "a", **figures, "seqs": [1, 2], "next": 3}
    rest = {"queue": "a", "from": "3"}
    [part] = (await stand.good("GET", f"dtx/{XID}", **rest))["content"]
    assert (part["seqs"], part["next"]) == ([3], 0)
    for query in ({"limit": "0"}, {"limit": "1001"}, {"from": "0"}, {"until": "3"}):
        assert (await stand.ask("GET", f"dtx/{XID}", **query))[0] == 400
    await stand.good("POST", f"dtx/{XID}/rollback")
    assert (await stand.good("GET", f"dtx/{XID}"))["content"] == []


@story()
async def test_a_list_of_branches_shows_a_bounded_content(cluster: Cluster) -> None:
    await prepared(cluster, 1)
    [branch] = await cluster.txq("core1").dtx.recover()
    count = LISTED_PARTS_MAX // 2
    found = branches_report([branch] * (count + 1))
    assert [each["content"] is None for each in found] == [False] * count + [True]
    assert found[-1]["queues"] == 2


def test_tables_of_what_a_branch_contains() -> None:
    part = {"queue": "a", "publishes": 2, "publish_bytes": 130, "accepts": 4, "accept_bytes": 260}
    [cells] = content_sheet([{**part, "seqs": [1, 2, 3, 7], "next": 9}]).rows
    assert cells == ("a", "2", "130", "4", "260", "1-3,7,and more from 9")
    shown: dict[str, Any] = {
        "xid": "1:61:", "state": "prepared", "queues": 2, "rows": 7, "bytes": 130, "opened_ms": 0,
        "sessions": [], "waits_for": [], "why": "",
        "content": [part, {**part, "queue": "b", "publishes": 0, "accepts": 1}],
    }  # fmt: skip
    [row] = branches_sheet([shown], 1_000).rows
    assert row[5] == "a +2 -4, b -1"
    [row] = branches_sheet([{**shown, "content": None}], 1_000).rows
    assert row[5] == "..."
