"""`fix`: what is compared, what is made equal, what is only reported, and what stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.reports import KEYS_SHOWN_MAX, Differing, FixReport, Reachability, Skipped
from tests.plugins.raftkv_cluster_call.fakes import Cluster, FakeNode, Note, tell, until

# What no report may show.
SECRET = "s3cret"


class Item(msgspec.Struct, frozen=True):
    key: str
    value: str


class Shelf:
    """What calls make of a node here. It stands outside the node, as a file would."""

    name = "shelf"

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.at = 0
        self.broken = False
        # Runs while a dump is made.
        self.before_dump: Callable[[], Awaitable[None]] | None = None

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        if self.before_dump is not None:
            await self.before_dump()
        return dict(self.items)

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        self.items, self.at = dict(items), as_of

    async def passed(self, id: int) -> None:
        self.at = id

    async def store(self, args: Item, call: Call) -> None:
        if self.broken:
            raise OSError("the shelf is full")
        self.items[args.key] = args.value.encode()


class Shop:
    """A cluster with a shelf at every node."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.cluster: Cluster = None  # type: ignore[assignment]

    def register(self, node: FakeNode) -> None:
        shelf = self.shelves.setdefault(node.name, Shelf())
        node.calls.function("store", version=1)(shelf.store)
        node.calls.state(shelf)

    async def store(self, key: str, value: str = SECRET, *, by: str = "core1") -> int:
        """A call that every node executes whose shelf is not broken."""
        done = await self.cluster.calls(by).call("store", Item(key, value), required=1)
        assert done.outcome == "ok", done
        await self.cluster.at(
            done.id, [name for name, shelf in self.shelves.items() if not shelf.broken]
        )
        return done.id

    async def stick(self, name: str) -> None:
        """Let the node's shelf be broken, and a call stand on it."""
        self.shelves[name].broken = True
        id = await self.store("stuck")
        await until(lambda: self.cluster.row(name).failing == id)

    async def fix(self, by: str = "core1", **words: Any) -> FixReport:
        report = await self.cluster.calls(by).fix(**words)
        assert SECRET.encode() not in msgspec.json.encode(report)
        return report

    @property
    def everything(self) -> dict[str, dict[str, bytes]]:
        return {name: shelf.items for name, shelf in self.shelves.items()}


def shop(
    cores: int = 3, replicants: int = 0
) -> Callable[[Callable[[Shop], Awaitable[None]]], Callable[[], None]]:
    def wrap(body: Callable[[Shop], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            made = Shop()

            async def whole(cluster: Cluster) -> None:
                made.cluster = cluster
                await body(made)

            tell(whole, cores=cores, replicants=replicants, register=made.register)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


@shop()
async def test_consistent_nodes_are_left_alone(shop: Shop) -> None:
    await shop.store("a")
    length = len(shop.cluster.log)
    report = await shop.fix()
    assert report == FixReport("consistent", "core1", 1)
    assert len(shop.cluster.log) == length


@shop()
async def test_no_call_at_all_is_consistent(shop: Shop) -> None:
    assert await shop.fix() == FixReport("consistent", "core1", 0)


@shop()
async def test_other_values_at_the_same_id_are_reported_and_not_changed(shop: Shop) -> None:
    await shop.store("a")
    await shop.store("b")
    shop.shelves["core2"].items["a"] = b"of its own, " + SECRET.encode()
    del shop.shelves["core3"].items["b"]
    shop.shelves["core3"].items["c"] = b"more"
    before = {name: dict(items) for name, items in shop.everything.items()}
    length = len(shop.cluster.log)
    report = await shop.fix(by="core3")
    assert report.verdict == "differs"
    assert (report.lead, report.id) == ("core1", 2)
    assert report.differing == (
        Differing("core2", ("shelf:a",)),
        Differing("core3", ("shelf:b", "shelf:c")),
    )
    assert (report.forwarded, report.synced) == ((), ())
    assert shop.everything == before
    assert len(shop.cluster.log) == length


@shop()
async def test_a_stuck_node_takes_a_copy_and_goes_on_behind_it(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core2")
    report = await shop.fix(by="core2")
    assert report.verdict == "fixed"
    # The new id is strictly above the old ones, and all stand there.
    assert (report.lead, report.id, report.synced) == ("core1", 3, ("core2",))
    assert report.differing == (Differing("core2", ("shelf:stuck",)),)
    assert report.copying == ()
    # B7: what the copy stands for is named. In the log it is not skipped: older data lacks it.
    assert report.copied == (Skipped("core2", (2,)),)
    assert report.skipped == shop.cluster.row("core2").skipped == ()
    assert set(shop.cluster.cursors().values()) == {3}
    assert len({str(items) for items in shop.everything.values()}) == 1
    assert shop.cluster.calls("core1").query(3).kind == "force"
    # It is not executed again, nor is the alarm left standing.
    assert shop.cluster.alarms("core3") == set()
    shop.shelves["core2"].broken = False
    assert await shop.store("b") == 4
    assert len({str(items) for items in shop.everything.values()}) == 1
    second = await shop.fix()
    assert (second.verdict, second.id) == ("consistent", 4)


@shop()
async def test_where_only_the_ids_differ_they_are_forwarded(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core3")
    # Somebody has done by hand what the call could not.
    shop.shelves["core3"].items["stuck"] = SECRET.encode()
    report = await shop.fix()
    assert (report.verdict, report.id) == ("fixed", 3)
    assert (report.forwarded, report.synced, report.differing) == (("core3",), (), ())
    # The log does not know what was done by hand, only what was never executed.
    assert report.skipped == (Skipped("core3", (2,)),)
    assert "core3 never executed" in report.reason
    assert shop.cluster.row("core3").skipped == (2,)
    assert set(shop.cluster.cursors().values()) == {3}
    assert (await shop.fix()).verdict == "consistent"


@shop()
async def test_what_can_be_fixed_is_also_beside_what_is_only_reported(shop: Shop) -> None:
    await shop.store("a")
    shop.shelves["core2"].items["a"] = b"of its own"
    await shop.stick("core3")
    report = await shop.fix()
    assert report.verdict == "differs"
    assert (report.synced, report.id) == (("core3",), 3)
    assert [each.node for each in report.differing] == ["core2", "core3"]
    assert shop.shelves["core2"].items["a"] == b"of its own"
    assert shop.shelves["core3"].items == shop.shelves["core1"].items


@shop()
async def test_a_call_that_comes_between_stops_it(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core2")
    calls = shop.cluster.calls("core1")

    async def meanwhile() -> None:
        shop.shelves["core3"].before_dump = None
        # It waits for this dump on core3; on core1 it runs.
        await calls.call("store", Item("late", "x"), required=1)

    shop.shelves["core3"].before_dump = meanwhile
    report = await shop.fix()
    assert report.verdict == "moved"
    assert "fix again" in report.reason
    assert (report.forwarded, report.synced) == ((), ())
    assert shop.cluster.row("core2").id == 1
    assert "late" not in shop.shelves["core2"].items
    again = await shop.fix()
    assert (again.verdict, again.synced) == ("fixed", ("core2",))


@shop()
async def test_states_of_different_ids_are_not_compared(shop: Shop) -> None:
    await shop.store("a")

    async def meanwhile() -> None:
        shop.shelves["core2"].before_dump = None
        # core2 executes nothing while it is asked; core3, which comes after it, does.
        done = await shop.cluster.calls("core1").call("store", Item("b", "x"), required=1)
        await shop.cluster.at(done.id, ["core1", "core3"])

    shop.shelves["core2"].before_dump = meanwhile
    report = await shop.fix()
    assert (report.verdict, report.differing) == ("moved", ())
    assert report.reason == "core3 went from 1 to 2 meanwhile; fix again"
    assert (await shop.fix()).verdict == "consistent"


@shop()
async def test_a_state_that_one_node_has_alone_is_reported(shop: Shop) -> None:
    extra = Shelf()
    extra.name = "extra"
    extra.items["k"] = SECRET.encode()
    shop.cluster.calls("core2").state(extra)
    await shop.store("a")
    report = await shop.fix()
    assert report.verdict == "differs"
    assert report.differing == (Differing("core2", ("extra:k",)),)


@shop()
async def test_a_skip_that_comes_between_stops_it(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core2")

    async def meanwhile() -> None:
        shop.shelves["core3"].before_dump = None
        # core2 has been compared at 1 already.
        await shop.cluster.calls("core1").skip("core2")

    shop.shelves["core3"].before_dump = meanwhile
    report = await shop.fix()
    assert report.verdict == "moved"
    assert shop.cluster.row("core2").id == 2
    # Skipped, it stands where the others stand, and has other data: not to be buried.
    assert (await shop.fix()).verdict == "differs"


@shop()
async def test_a_call_that_runs_on_is_waited_for_and_then_named(shop: Shop) -> None:
    await shop.store("a")
    shop.cluster.seats["core1"].takes_s = lambda call: 30.0
    running = asyncio.ensure_future(shop.cluster.calls("core1").call("note", Note("x")))
    await until(lambda: len(shop.cluster.seats["core1"].tries) == 1)
    report = await shop.fix()
    assert report.verdict == "moved"
    assert report.reason.startswith("call 2 (note) is running on core1")
    # A short one is over by the time that it looks.
    assert (await running).outcome == "ok"
    shop.cluster.seats["core1"].takes_s = lambda call: 3.0
    short = asyncio.ensure_future(shop.cluster.calls("core1").call("note", Note("y")))
    await until(lambda: len(shop.cluster.seats["core1"].tries) == 2)
    assert await shop.fix() == FixReport("consistent", "core1", 3)
    assert short.done()


@shop()
async def test_a_node_that_is_busy_is_not_forced(shop: Shop) -> None:
    await shop.store("a")
    shop.cluster.seats["core2"].takes_s = lambda call: 20.0
    await shop.cluster.calls("core1").call("note", Note("x"), required=["core1", "core3"])
    report = await shop.fix()
    assert report.verdict == "moved"
    assert report.reason.startswith("core2 is still executing calls: it stands at 1 of 2")
    assert shop.cluster.row("core2").state == "following"


@shop()
async def test_a_node_that_is_down_is_not_compared_and_catches_up_itself(shop: Shop) -> None:
    await shop.store("a")
    shop.cluster.kill("core3")
    shop.cluster.declare_dead("core3")
    shop.shelves["core2"].broken = True
    done = await shop.cluster.calls("core1").call("store", Item("b", "x"), required=1)
    assert done.outcome == "ok"
    await until(lambda: shop.cluster.row("core2").failing == 2)
    report = await shop.fix()
    assert (report.verdict, report.synced) == ("fixed", ("core2",))
    assert report.absent == (Reachability("core3", "down, its cursor is 1"),)
    await shop.cluster.restart("core3")
    await shop.cluster.at(3)
    assert shop.shelves["core3"].items == shop.shelves["core1"].items
    assert (await shop.fix()).verdict == "consistent"


@shop()
async def test_nothing_is_done_without_the_most_advanced_node(shop: Shop) -> None:
    await shop.store("a")
    for name in ("core2", "core3"):
        shop.shelves[name].broken = True
    done = await shop.cluster.calls("core1").call("store", Item("b", "x"), required=1)
    assert done.outcome == "ok"
    shop.cluster.lead("core2")
    shop.cluster.kill("core1")
    shop.cluster.declare_dead("core1")
    await until(lambda: {shop.cluster.row(name).failing for name in ("core2", "core3")} == {2})
    report = await shop.fix(by="core2")
    assert report.verdict == "unreachable"
    assert report.reason.startswith("core1 is the most advanced and is down: start it")
    # It is lost for good: then the others are equal, though nobody could do call 2.
    await shop.cluster.calls("core2").force_leave("core1")
    report = await shop.fix(by="core2")
    assert (report.verdict, report.lead, report.id) == ("consistent", "core2", 1)
    shop.shelves["core2"].items["more"] = b"x"
    shop.shelves["core3"].broken = False
    await until(lambda: shop.cluster.row("core3").id == 2)


@shop()
async def test_what_no_node_that_is_left_has_executed_is_passed_over_and_told(shop: Shop) -> None:
    await shop.store("a")
    shop.shelves["core2"].broken = True
    await shop.cluster.calls("core1").call("store", Item("b", "x"), required=["core1", "core3"])
    shop.shelves["core3"].broken = True
    await shop.cluster.calls("core1").call("store", Item("c", "x"), required=1)
    shop.cluster.lead("core2")
    shop.cluster.kill("core1")
    shop.cluster.declare_dead("core1")
    await until(lambda: shop.cluster.row("core3").failing == 3)
    await until(lambda: shop.cluster.row("core2").failing == 2)
    await shop.cluster.calls("core2").force_leave("core1")
    report = await shop.fix(by="core2")
    assert (report.verdict, report.lead, report.id) == ("fixed", "core3", 4)
    assert report.passed_over == (3,)
    assert (report.forwarded, report.synced) == (("core3",), ("core2",))
    assert shop.cluster.cursors() == {"core2": 4, "core3": 4}
    assert shop.shelves["core2"].items == shop.shelves["core3"].items


@shop()
async def test_a_node_that_does_not_show_its_state_stops_it(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core2")

    async def fail() -> None:
        raise OSError(f"cannot read {SECRET}")

    shop.shelves["core3"].before_dump = fail
    report = await shop.fix()
    assert report.verdict == "unreachable"
    assert report.reason.startswith("core3 did not show its state")
    shop.shelves["core3"].before_dump = None
    shop.cluster.isolate("core3")
    report = await shop.fix(timeout_s=5)
    assert report.verdict == "unreachable"
    assert shop.cluster.row("core2").id == 1
    shop.cluster.heal("core3")
    assert (await shop.fix()).verdict == "fixed"


@shop()
async def test_a_copy_that_does_not_get_ready_in_time_is_told(shop: Shop) -> None:
    await shop.store("a")
    await shop.stick("core2")
    opened = []

    def mishap(sender: str, receiver: str, method: str) -> str:
        # The comparison gets through, the copy does not.
        if sender == "core2" and method.startswith("state."):
            opened.append(method)
            return "request lost"
        return "none"

    shop.cluster.mishap = mishap  # type: ignore[assignment]
    report = await shop.fix(timeout_s=20)
    assert (report.verdict, report.synced, report.copying) == ("fixed", ("core2",), ("core2",))
    assert shop.cluster.state("core2") == "gap"
    busy = await shop.fix(timeout_s=20)
    assert (busy.verdict, [each.node for each in busy.absent]) == ("consistent", ["core2"])
    shop.cluster.mishap = lambda sender, receiver, method: "none"
    await until(lambda: shop.cluster.state("core2") == "following")
    assert opened
    assert shop.shelves["core2"].items == shop.shelves["core1"].items


@shop()
async def test_many_differing_keys_are_counted(shop: Shop) -> None:
    await shop.store("a")
    for number in range(KEYS_SHOWN_MAX + 7):
        shop.shelves["core2"].items[f"k{number:04}"] = b"x"
    [found] = (await shop.fix()).differing
    assert (len(found.keys), found.more) == (KEYS_SHOWN_MAX, 7)
    assert found.keys[0] == "shelf:k0000"


@shop(cores=2)
async def test_nobody_who_takes_part_is_a_verdict_too(shop: Shop) -> None:
    for name in ("core1", "core2"):
        await shop.cluster.calls(name).leave()
    report = await shop.fix()
    assert (report.verdict, report.lead) == ("unreachable", "")


@shop(cores=1, replicants=1)
async def test_the_last_core_that_could_be_copied_is_not_made_to_copy(shop: Shop) -> None:
    """Copies come from cores only, so it would wait for one for ever."""
    shop.cluster.set(replicants_take_part=True)
    await until(lambda: shop.cluster.state("rep1") == "following")
    await shop.store("a")
    shop.shelves["core1"].broken = True
    id = await shop.store("b", by="rep1")
    await until(lambda: shop.cluster.row("core1").failing == id)
    report = await shop.fix()
    assert (report.verdict, report.lead) == ("unreachable", "rep1")
    assert "core1 would need a copy" in report.reason
    assert shop.cluster.state("core1") == "following"
    shop.shelves["core1"].broken = False
    await shop.cluster.at(id)
    assert shop.shelves["core1"].items == shop.shelves["rep1"].items
