"""The history: what every revision leaves, reading the past, compaction by hand and by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from raftkv.errors import Refused, UnknownCommand
from raftkv.kv import (
    FROM_KEY,
    ClaimLessor,
    Compact,
    Compacted,
    CompactResult,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    Event,
    FutureRevision,
    Grant,
    KeyValue,
    KVApi,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    Revision,
    Txn,
    TxnOp,
    compaction,
    events_of,
)
from raftkv.kv.history import EVENT_BYTES, Past, lowest_revision, require_readable, row_bytes
from raftkv.kv.transactions import flatten
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost
from tests.kv.small_work import bounded_work

T = TypeVar("T")
EVERYTHING = (b"\0", FROM_KEY)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def history(host: FakeHost) -> dict[int, Revision]:
    assert host.machine.invariants() == []
    return dict(host.machine.view("kv").table("history").scan())


def lowest(host: FakeHost) -> int:
    return lowest_revision(host.machine.view("kv"))


def test_each_revision_leaves_a_row(host: FakeHost) -> None:
    host.apply(Put(b"a", b"1"))
    host.apply(Put(b"a", b"22"))
    host.apply(DeleteRange(b"x"))
    host.apply(Txn(success=(PutOp(b"b", b"3"), DeleteRangeOp(b"a"))))
    one, two = KeyValue(b"a", b"1", 2, 2, 1), KeyValue(b"a", b"22", 2, 3, 2)
    assert history(host) == {
        2: Revision(one, None, 0),
        3: Revision(two, one, EVENT_BYTES + 2),
        4: Revision(
            KeyValue(b"b", b"3", 4, 4, 1),
            None,
            2 * EVENT_BYTES + 2 + 5,
            (Event(KeyValue(b"a", b"", 0, 4, 0), two),),
        ),
    }


def test_the_versions_of_a_key_share_one_key_object(host: FakeHost) -> None:
    for value in (b"1", b"2"):
        host.apply(Put(b"key", value))
    host.apply(Txn(success=(PutOp(b"key", b"3"),)))
    keys = {id(event.kv.key) for row in history(host).values() for event in events_of(row)}
    assert len(keys) == 1


def test_reading_the_past(host: FakeHost, kv: KVApi) -> None:
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")):
        run(kv.put(key, value))
    run(kv.delete(b"b"))  # at 6

    def at(revision: int) -> dict[bytes, bytes]:
        return {k.key: k.value for k in run(kv.range(revision=revision)).kvs}

    assert at(1) == {}
    assert at(2) == {b"a": b"1"}
    assert at(3) == {b"a": b"1", b"b": b"1"}
    assert at(4) == {b"a": b"2", b"b": b"1"}
    assert at(5) == {b"a": b"2", b"b": b"1", b"c": b"1"}
    assert at(6) == at(0) == {b"a": b"2", b"c": b"1"}
    found = run(kv.range(b"b", revision=5, limit=1))
    assert ([k.key for k in found.kvs], found.count, found.more, found.revision) == (
        [b"b"],
        2,
        True,
        6,
    )
    assert run(kv.get(b"b", revision=4)) == KeyValue(b"b", b"1", 3, 3, 1)
    assert run(kv.get(b"a", revision=3)) == KeyValue(b"a", b"1", 2, 2, 1)
    assert run(kv.get(b"c", revision=4)) is None
    run(kv.put(b"b", b"anew"))
    assert run(kv.get(b"b", revision=4)) == KeyValue(b"b", b"1", 3, 3, 1)
    assert run(kv.get(b"b", revision=6)) is None
    assert run(kv.range(revision=4, count_only=True)).count == 2
    with pytest.raises(FutureRevision) as caught:
        run(kv.get(b"a", revision=8))
    assert caught.value.args[1] == 7


def test_a_long_past_is_read_in_slices(
    host: FakeHost, kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAST_EVENTS", "FEW_EVENTS"):
        monkeypatch.setattr(f"raftkv.kv.past_reads.{name}", 3)
    bounded_work(kv, monkeypatch, 3)
    run(kv.put(b"k0", b"old"))
    for number in range(10):
        run(kv.put(b"k%d" % (number % 4), b"new"))

    async def read() -> Any:
        reading = asyncio.ensure_future(kv.range(revision=2))
        for number in range(3):  # the keyspace goes on in between
            await asyncio.sleep(0)
            await kv.put(b"k%d" % (7 + number), b"newer")
        assert not reading.done()
        return await reading

    found = run(read())
    assert [k.value for k in found.kvs] == [b"old"]
    assert found.revision > 12


def test_a_compaction_while_the_past_is_read(kv: KVApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAST_EVENTS", "FEW_EVENTS"):
        monkeypatch.setattr(f"raftkv.kv.past_reads.{name}", 1)
    bounded_work(kv, monkeypatch, 1)
    for _ in range(5):
        run(kv.put(b"k", b"v"))

    async def read() -> None:
        reading = asyncio.ensure_future(kv.range(revision=2))
        await asyncio.sleep(0)
        await kv.compact(4)
        await reading

    with pytest.raises(Compacted) as caught:
        run(read())
    assert caught.value.args[1] == 4


def test_pages(host: FakeHost, kv: KVApi) -> None:
    for number in range(7):
        run(kv.put(b"p/%d" % number, b"v"))
    run(kv.put(b"q", b"v"))

    async def walk(**arguments: Any) -> list[tuple[int, list[bytes], int, bool]]:
        pages = []
        async for page in kv.pages(prefix=b"p/", page_keys=3, **arguments):
            pages.append((page.revision, [k.key[2:] for k in page.kvs], page.count, page.more))
            await kv.delete(b"p/4")
            await kv.put(b"p/9", b"")
        return pages

    assert run(walk()) == [
        (9, [b"0", b"1", b"2"], 7, True),
        (9, [b"3", b"4", b"5"], 4, True),
        (9, [b"6"], 1, False),
    ]
    assert [len(page[1]) for page in run(walk(revision=3))] == [2]
    assert [page[1] for page in run(walk(revision=2, keys_only=True))] == [[b"0"]]

    async def none() -> list[Any]:
        return [page async for page in kv.pages(prefix=b"none/")]

    assert [(page.kvs, page.more) for page in run(none())] == [((), False)]
    with pytest.raises(ValueError, match="page_keys"):
        run(walk_one(kv, page_keys=0))


async def walk_one(kv: KVApi, **arguments: Any) -> Any:
    async for page in kv.pages(**arguments):
        return page


@pytest.mark.parametrize("version", [2, 3, 4])
def test_compact(version: int) -> None:
    host = FakeHost(version)
    kv = KVApi(cast(Host, host))
    # Since format 3 a few rows stay, and still nobody may look at them.
    kept = 2 if version >= 3 else 0
    for number in range(5):
        run(kv.put(b"k", b"%d" % number))
    assert lowest(host) == -1
    assert run(kv.compact(4)) == CompactResult(6)
    assert list(history(host)) == list(range(4 - kept, 7))
    assert lowest(host) == 4
    found = run(kv.get(b"k", revision=4))
    assert found is not None
    assert found.value == b"2"
    for revision in (4, 3):
        with pytest.raises(Compacted) as caught:
            run(kv.compact(revision))
        assert caught.value.args[1] == 4
    with pytest.raises(Compacted):
        run(kv.get(b"k", revision=3))
    with pytest.raises(FutureRevision):
        run(kv.compact(7))
    run(kv.compact(6))
    assert list(history(host)) == list(range(6 - 2 * kept, 7))
    assert lowest(host) == 6
    run(kv.put(b"k", b"x"))
    assert list(history(host)) == list(range(6 - 2 * kept, 8))


def test_compacting_an_empty_keyspace(host: FakeHost) -> None:
    assert host.apply(Compact(0)) == CompactResult(1)
    assert host.apply(Compact(1)) == CompactResult(1)
    assert isinstance(host.apply(Compact(1)), Compacted)
    host.apply(Put(b"a", b""))
    assert list(history(host)) == [2]
    assert lowest(host) == 1


def test_a_compaction_frees_a_bounded_number_of_rows_the_rest_later(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COMPACT_ROWS_MAX", 10)
    monkeypatch.setattr(compaction, "GRACE_ROWS", 2)
    for _ in range(400):
        host.apply(Put(b"k", b""))
    host.apply(Compact(400))
    assert lowest(host) == 400
    assert min(history(host)) == 12
    for _ in range(64):
        host.apply(Put(b"k", b""))
    assert min(history(host)) == 12 + compaction.TRIM_ROWS_MAX
    for _ in range(64):
        host.apply(Put(b"k", b""))
    assert min(history(host)) == 400
    assert lowest(host) == 400


def test_the_newest_rows_outlive_their_compaction_until_there_are_newer_ones(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "GRACE_ROWS", 100)
    for _ in range(398):
        host.apply(Put(b"k", b""))
    host.apply(Compact(399))
    assert list(history(host)) == list(range(300, 400))
    assert lowest(host) == 399
    require_readable(host.machine.view("kv"), 399)
    with pytest.raises(Compacted):
        require_readable(host.machine.view("kv"), 398)
    for _ in range(64):
        host.apply(Put(b"k", b""))
    # At revision 448, the last multiple of TRIM_REVISIONS.
    assert list(history(host)) == list(range(349, 464))
    for _ in range(64):
        host.apply(Put(b"k", b""))
    assert (min(history(host)), lowest(host)) == (399, 399)


def test_the_grace_of_compacted_rows_is_bounded_in_bytes_as_well(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        host.apply(Put(b"%02d" % number, b"v" * 1000))
    size = row_bytes(history(host)[21])
    monkeypatch.setattr(compaction, "GRACE_BYTES", 5 * size)
    host.apply(Compact(10))
    assert min(history(host)) == 10
    host.apply(Compact(21))
    assert list(history(host)) == [17, 18, 19, 20, 21]
    monkeypatch.setattr(compaction, "GRACE_BYTES", size - 1)
    host.apply(Put(b"k", b""))
    host.apply(Compact(22))
    # The newest one always stays, and what fits beside it.
    assert list(history(host)) == [22]


def test_no_grace_beyond_what_the_settings_keep(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "GRACE_ROWS", 100)
    host.set("history_revisions", 10)
    for number in range(500):
        host.apply(Put(b"k", b""))
        if number % 50 == 7:
            host.apply(Compact(number + 2))
    assert len(history(host)) < 10 + compaction.TRIM_REVISIONS


def test_the_history_keeps_so_many_revisions(host: FakeHost) -> None:
    host.set("history_revisions", 100)
    most = 0
    for number in range(500):
        host.apply(Put(b"k%d" % (number % 3), b""))
        most = max(most, len(host.machine.view("kv").table("history")))
    rows = history(host)
    assert 100 <= len(rows) < 100 + compaction.TRIM_REVISIONS
    assert most < 100 + compaction.TRIM_REVISIONS
    assert lowest(host) == min(rows)
    require_readable(host.machine.view("kv"), min(rows))
    with pytest.raises(Compacted):
        require_readable(host.machine.view("kv"), min(rows) - 1)


def test_a_smaller_bound_is_reached_bit_by_bit(host: FakeHost) -> None:
    for _ in range(1000):
        host.apply(Put(b"k", b""))
    host.set("history_revisions", 10)
    sizes = []
    for _ in range(64 * 6):
        before = len(host.machine.view("kv").table("history"))
        host.apply(Put(b"k", b""))
        sizes.append(before - len(host.machine.view("kv").table("history")))
    assert max(sizes) <= compaction.TRIM_ROWS_MAX
    assert len(history(host)) < 10 + compaction.TRIM_REVISIONS


@pytest.mark.parametrize(("size", "puts"), [(1000, 1000), (70_000, 200)])
def test_the_history_keeps_so_many_bytes(host: FakeHost, size: int, puts: int) -> None:
    limit = 1024 * 1024
    host.set("history_bytes_max", limit)
    for number in range(puts):
        # Both the hot path and the other.
        put = Put if number % 2 else PutWith
        host.apply(put(b"k", b"v" * size))
    rows = history(host)
    total = sum(map(row_bytes, rows.values()))
    slack = compaction.TRIM_REVISIONS * row_bytes(rows[max(rows)])
    assert total <= limit + min(slack, compaction.TRIM_REVISIONS * compaction.TRIM_BYTES)
    assert total > limit // 2
    assert lowest(host) == min(rows) > 2


@pytest.mark.parametrize("put", [Put, PutWith])
def test_a_small_value_in_place_of_a_large_one_counts_as_large(host: FakeHost, put: Any) -> None:
    limit = 1024 * 1024
    host.set("history_bytes_max", limit)
    for number in range(40):
        host.apply(put(b"%d" % number, b"v" * 500_000))
    for number in range(40):
        host.apply(put(b"%d" % number, b""))
        total = sum(map(row_bytes, history(host).values()))
        assert total <= limit + compaction.TRIM_REVISIONS * compaction.TRIM_BYTES


def test_the_newest_row_stays_however_large_it_is(host: FakeHost) -> None:
    host.set("history_bytes_max", 64 * 1024)
    for _ in range(3):
        host.apply(Put(b"k", b"v" * 1_000_000))
        assert list(history(host)) == [host.machine.view("kv").table("meta")["revision"]]


def test_reading_the_past_inside_a_txn(host: FakeHost) -> None:
    for value in (b"1", b"2"):
        host.apply(Put(b"a", value))
    outcome = host.apply(
        Txn(
            success=(
                PutOp(b"a", b"3"),
                PutOp(b"b", b"1"),
                RangeOp(*EVERYTHING, revision=2),
                RangeOp(*EVERYTHING, revision=3),
                RangeOp(*EVERYTHING),
            )
        )
    )
    values = [[kv.value for kv in result.kvs] for result in outcome.results[2:]]
    assert values == [[b"1"], [b"2"], [b"3", b"1"]]
    assert {result.revision for result in outcome.results} == {4}


def test_a_txn_that_reads_what_is_not_there_is_refused_whole(host: FakeHost) -> None:
    for _ in range(4):
        host.apply(Put(b"a", b""))
    host.apply(Compact(3))
    put = PutOp(b"b", b"")
    # 6 is the revision that the transaction itself would take.
    for revision, kind in ((2, Compacted), (-1, Compacted), (6, FutureRevision)):
        command = Txn(success=(put, RangeOp(b"a", revision=revision)))
        assert isinstance(host.apply(command), kind)
    nested = flatten((), (put, TxnOp((), (RangeOp(b"a", revision=2),))), ())
    assert isinstance(host.apply(nested), Compacted)
    not_taken = flatten((), (TxnOp((), (), (RangeOp(b"a", revision=2),)),), (RangeOp(b"a"),))
    assert host.apply(not_taken).succeeded
    assert host.machine.view("kv").table("keys").get(b"b") is None


def test_the_past_inside_a_txn_counts_as_rows(host: FakeHost) -> None:
    for _ in range(30):
        host.apply(Put(b"a", b""))
    host.set("rows_max", 20)
    refused = host.apply(Txn(success=(RangeOp(b"b", revision=5),)))
    assert "rows_max" in str(refused)
    assert host.apply(Txn(success=(RangeOp(b"b", revision=20),))).succeeded


def test_a_past_goes_on_with_the_keyspace(host: FakeHost) -> None:
    host.apply(Put(b"a", b"1"))
    past = Past(*EVERYTHING, 2)
    view = host.machine.view("kv")
    assert not past.is_behind(view)
    for command in (Put(b"a", b"2"), DeleteRange(b"a"), Put(b"b", b""), Put(b"a", b"3")):
        host.apply(command)
        assert past.is_behind(view)
        assert past.catch_up(view, 1) == 1
        assert not past.is_behind(view)
        assert [kv.value for kv in past.scan(view.table("keys"), *EVERYTHING)] == [b"1"]
        assert past.count(view.table("keys"), *EVERYTHING) == 1


# Format 1, that of 0.1.0 -------------------------------------------------------------------------


def test_under_format_1_there_is_no_history() -> None:
    host = FakeHost(version=1)
    for _ in range(3):
        host.apply(Put(b"a", b"x"))
    host.apply(Txn(success=(PutOp(b"b", b""),)))
    assert history(host) == {}
    assert lowest(host) == 5


def upgrade(host: FakeHost, version: int = 2) -> None:
    """The last member comes back with the newer version."""
    host.up(nonce=2, version=version)


@pytest.mark.parametrize("version", [2, 3])
def test_the_history_begins_with_the_first_change_under_a_later_format(version: int) -> None:
    host = FakeHost(version=1)
    kv = KVApi(cast(Host, host))
    for value in (b"1", b"2"):
        host.apply(Put(b"a", value))
    upgrade(host, version)
    assert lowest(host) == 3
    assert run(kv.get(b"a", revision=3)) == KeyValue(b"a", b"2", 2, 3, 2)
    with pytest.raises(Compacted):
        run(kv.get(b"a", revision=2))
    assert isinstance(host.apply(Compact(3)), Compacted)
    host.apply(Put(b"a", b"3"))
    assert list(history(host)) == [4]
    assert lowest(host) == 4
    host.apply(Put(b"a", b"4"))
    found = run(kv.get(b"a", revision=4))
    assert found is not None
    assert found.value == b"3"


@pytest.mark.parametrize(
    "command",
    [
        PutWith(b"a", b"x"),
        Compact(1),
        Grant(5),
        ClaimLessor(),
        Txn(success=(PutOp(b"a", b"", lease=3),)),
        Txn(failure=(PutOp(b"a", b"", ignore_value=True),)),
        Txn(success=(RangeOp(b"a", revision=1),)),
        Txn(success=(RangeOp(b"a", descending=True),)),
        Txn((Compare(b"a", "lease", "=", 0),)),
        flatten((), (TxnOp(),), ()),
    ],
)
def test_under_format_1_newer_words_are_not_understood(command: Any) -> None:
    old, new = FakeHost(version=1), FakeHost()
    refused = old.apply(command)
    assert type(refused) is UnknownCommand
    # Word for word what the machine itself says of what it cannot decode.
    nonsense = Txn((Compare(b"a", "what", "=", 1),))  # type: ignore[arg-type]
    assert refused.args == old.apply(nonsense).args
    outcome = new.apply(command)
    assert type(outcome) is not UnknownCommand
    assert isinstance(outcome, Refused) == (command.__class__ is Txn and "lease=3" in repr(command))
