"""How nodes come to take part: copies as of an id, gaps, wiped nodes, and whom to copy from.

A `Shelf` is a state in memory that outlives its node, as a file would; `stock` says which nodes get
one when they start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from raftkv.state.core import NodeRole
from raftkv_cluster_call.commands import Cursor
from raftkv_cluster_call.joining import RETRY_MAX_S, sources
from raftkv_cluster_call.transfer import OPEN, PAGE, PAGE_BYTES
from tests.plugins.raftkv_cluster_call.fakes import Cluster, FakeNode, Mishap, Note, tell, until
from tests.plugins.raftkv_cluster_call.lone_host import Hosts, LoneHost


class Shelf:
    """What the runs of `note` have made of one node: call -> what it said."""

    name = "shelf"

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.at = 0
        self.loads: list[int] = []
        #: Raised by the next loads.
        self.failures: list[Exception] = []

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        return dict(self.items)

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.items, self.at = dict(items), as_of
        self.loads.append(as_of)

    async def passed(self, id: int) -> None:
        assert id >= self.at or id == 0
        self.at = id


class Stock:
    """The shelves of a cluster's nodes, filled by what runs there."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}

    def __getitem__(self, name: str) -> Shelf:
        return self.shelves[name]

    def register(self, node: FakeNode) -> None:
        shelf = self.shelves.setdefault(node.name, Shelf())
        node.calls.state(shelf)

        def put(call: object) -> None:
            shelf.items[str(getattr(call, "id", 0))] = b"x" * 100

        node.cluster.seats[node.name].during = put

    def of(self, name: str) -> list[int]:
        """The ids whose effect is on this node, in their order."""
        return sorted(map(int, self[name].items))


async def make(cluster: Cluster, count: int, at: str = "core1") -> None:
    for number in range(count):
        done = await cluster.calls(at).call("note", Note(str(number)), required=1)
        assert done.outcome == "ok"


def play(body: Callable[[Cluster, Stock], object], cores: int = 3, replicants: int = 0) -> None:
    stock = Stock()

    async def told(cluster: Cluster) -> None:
        await body(cluster, stock)  # type: ignore[misc]

    tell(told, cores, replicants, None, stock.register)


# --- joining --------------------------------------------------------------------------------------


def test_a_new_node_copies_the_state_and_runs_exactly_what_follows() -> None:
    """Scenario 11: neither the history again, nor the latest one only."""

    async def body(cluster: Cluster, stock: Stock) -> None:
        cluster.set(history_max=50, cleanup_ms=1000)
        await make(cluster, 80)
        await asyncio.sleep(301)  # the cleaner has begun to wait with the default of the setting
        await until(lambda: min(cluster.table("records")) > 10)
        await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following")
        copied = stock["core4"].loads[-1]
        assert stock["core4"].loads == [copied]
        assert copied == 80
        await make(cluster, 3)
        await cluster.at(83)
        assert cluster.ran("core4") == [81, 82, 83]
        assert stock.of("core4") == stock.of("core1") == list(range(1, 84))

    play(body)


def test_a_node_that_joins_while_calls_go_on_misses_none_and_repeats_none() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 5)
        caller = asyncio.ensure_future(make(cluster, 60))
        await asyncio.sleep(0.02)
        await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following")
        [copied] = stock["core4"].loads
        assert 5 <= copied < 65
        await caller
        await cluster.at(65)
        assert cluster.ran("core4") == list(range(copied + 1, 66))
        assert stock.of("core4") == list(range(1, 66))

    play(body)


def test_the_first_node_of_all_follows_at_once() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        assert cluster.cursors() == {"core1": 0, "core2": 0, "core3": 0}
        assert [stock[name].loads for name in cluster.nodes] == [[], [], []]
        assert all(not node.rpc.made for node in cluster.nodes.values())

    play(body)


def test_a_replicant_takes_part_only_where_the_setting_says_so() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        await asyncio.sleep(10)
        assert "rep1" not in cluster.cursors()
        cluster.set(replicants_take_part=True)
        await make(cluster, 1)
        await until(lambda: cluster.state("rep1") == "following")
        await cluster.at(3, ["rep1"])
        assert stock.of("rep1") == [1, 2, 3]

    play(body, replicants=1)


def test_a_promoted_replicant_takes_part_without_waiting_for_the_next_call() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        await asyncio.sleep(10)
        node = cluster.nodes["rep1"]
        node.role = "core"
        cluster.append_core(NodeRole("rep1", node.incarnation, "core"))
        await until(lambda: cluster.state("rep1") == "following", 10)
        assert stock["rep1"].items == stock["core1"].items

    play(body, replicants=1)


def test_who_has_left_stays_away_until_it_rejoins_and_then_copies() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        await cluster.calls("core3").leave()
        await until(lambda: "core3" not in cluster.cursors())
        await make(cluster, 2)
        await asyncio.sleep(3 * RETRY_MAX_S)
        assert "core3" not in cluster.cursors()
        await cluster.restart("core3")
        await asyncio.sleep(3 * RETRY_MAX_S)
        assert "core3" not in cluster.cursors()
        await cluster.calls("core3").rejoin()
        await until(lambda: cluster.state("core3") == "following")
        assert stock["core3"].loads == [4]
        assert stock.of("core3") == [1, 2, 3, 4]
        assert cluster.ran("core3") == [1, 2]

    play(body)


# --- whom to copy from ----------------------------------------------------------------------------


def test_the_source_is_the_most_advanced_core_that_is_up_and_follows() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        cluster.seats["core1"].broken.add("*")
        cluster.seats["core3"].broken.add("*")
        for _ in range(2):
            done = await cluster.calls("core2").call("note", Note("x"), required=1)
            assert done.outcome == "ok"
        node = await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following")
        asked = {name for name, method in node.rpc.made if method == OPEN}
        assert asked == {"core2"}
        assert cluster.row("core4").id == 2
        cluster.seats["core1"].broken.clear()
        cluster.seats["core3"].broken.clear()
        await cluster.at(2)

    play(body)


def view_of(rows: dict[str, Cursor], down: str = "", replicants: str = "") -> LoneHost:
    from raftkv.plugin import Member

    host = LoneHost(Hosts(), "me")
    host.state.tables["cursors"].update(rows)
    for name in rows:
        role = "replicant" if name in replicants.split() else "core"
        up = name not in down.split()
        host.state.members[name] = Member(name, role, name, "", None, 1, up, 0)
    return host


def test_sources_are_ordered_by_cursor_and_then_by_name() -> None:
    def at(id: int, state: str = "following") -> Cursor:
        return Cursor(id, state)  # type: ignore[arg-type]

    rows = {
        "a": at(5),
        "b": at(7),
        "c": at(7),
        "d": at(9, "gap"),
        "e": at(9, "joining"),
        "me": at(8),
        "r": at(9),
        "x": at(9),
    }
    view = view_of(rows, down="x", replicants="r").view()
    assert sources(view, "me", 0) == ("b", "c", "a")
    assert sources(view, "me", 6) == ("b", "c")
    assert sources(view, "me", 8) == ()


def test_a_source_that_dies_in_the_middle_is_replaced_by_the_next() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 3)
        await cluster.at(3)
        for name in ("core1", "core2", "core3"):
            stock[name].items["99"] = b"y" * (3 * PAGE_BYTES)
        pages = 0

        def kill_at_the_second_page(sender: str, receiver: str, method: str) -> Mishap:
            nonlocal pages
            if method == PAGE and receiver == "core1":
                pages += 1
                if pages == 2:
                    cluster.kill("core1")
                    return "request lost"
            return "none"

        cluster.mishap = kill_at_the_second_page
        node = await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following")
        opened = [name for name, method in node.rpc.made if method == OPEN]
        assert opened == ["core1", "core2"]
        assert stock["core4"].loads == [3]
        assert stock["core4"].items == stock["core2"].items
        cluster.mishap = lambda sender, receiver, method: "none"
        await cluster.restart("core1")

    play(body)


def test_without_anybody_to_copy_from_it_waits_and_tells_why() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 3)
        await cluster.at(3)
        cluster.lead("core3")
        for name in ("core1", "core2"):
            cluster.isolate(name)
        await cluster.calls("core3").leave()
        for name in ("core2", "core1"):
            cluster.declare_dead(name)
        node = await cluster.add("core4")
        await asyncio.sleep(20)
        trouble = node.calls.joining.trouble
        assert trouble is not None
        assert "nobody to copy from" in trouble.cause
        assert trouble.attempts > 3
        assert cluster.state("core4") == "joining"
        # It does not wait for its next try when somebody comes back.
        cluster.rejoin("core1")
        began = asyncio.get_running_loop().time()
        await until(lambda: cluster.state("core4") == "following")
        assert asyncio.get_running_loop().time() - began < 1.0
        await until(lambda: node.calls.joining.trouble is None)
        cluster.rejoin("core2")
        await cluster.calls("core3").rejoin()
        await until(lambda: cluster.state("core3") == "following")

    play(body)


def test_a_source_without_the_joiners_state_is_passed_over() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        extra = Shelf()
        extra.name = "extra"
        original = cluster.register

        def with_extra(node: FakeNode) -> None:
            stock.register(node)
            node.calls.state(extra)

        cluster.register = with_extra
        node = await cluster.add("core4")
        await until(lambda: node.calls.joining.trouble is not None)
        assert "has no state extra" in str(node.calls.joining.trouble)
        assert cluster.state("core4") == "joining"
        cluster.register = original
        await cluster.restart("core4")
        await until(lambda: cluster.state("core4") == "following")

    play(body)


# --- what is lost on the way ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_lost_calls_between_nodes_only_delay_it(seed: int) -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 4)
        await cluster.at(4)
        stock["core1"].items["98"] = stock["core2"].items["98"] = b"z" * (2 * PAGE_BYTES)
        stock["core3"].items["98"] = b"z" * (2 * PAGE_BYTES)
        count = seed

        def some(sender: str, receiver: str, method: str) -> Mishap:
            nonlocal count
            count += 1
            if method not in (OPEN, PAGE):
                return "none"
            turns: tuple[Mishap, ...] = ("none", "request lost", "none", "reply lost", "none")
            return turns[(count * 7) % 5]

        cluster.mishap = some
        await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following", 300)
        assert stock["core4"].items == stock["core1"].items
        assert stock["core4"].loads == [4]

    play(body)


def test_an_answer_of_the_log_that_is_lost_is_looked_up() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        await cluster.at(2)
        lost = cluster.lose_answers("core4", "join", "sync", times=2)
        await cluster.add("core4")
        await until(lambda: cluster.state("core4") == "following")
        await make(cluster, 1)
        await cluster.at(3)
        assert len(lost) == 2
        assert cluster.ran("core4") == [3]

    play(body)


def test_a_node_that_dies_while_it_joins_begins_again() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        await cluster.at(2)
        release = cluster.hold("core4", "sync")
        await cluster.add("core4")
        await until(lambda: stock.shelves["core4"].loads == [2])
        cluster.kill("core4")
        release()
        await make(cluster, 1)
        await cluster.restart("core4")
        await cluster.at(3)
        assert stock.of("core4") == [1, 2, 3]
        assert cluster.state("core4") == "following"

    play(body)


def test_a_state_that_cannot_be_loaded_is_tried_again_without_its_words() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        stock.shelves["core4"] = Shelf()
        stock["core4"].failures = [ValueError("the password is hunter2") for _ in range(3)]
        node = await cluster.add("core4")
        await until(lambda: node.calls.joining.trouble is not None)
        trouble = str(node.calls.joining.trouble)
        assert "ValueError in" in trouble
        assert "hunter2" not in trouble
        await until(lambda: cluster.state("core4") == "following")
        assert node.calls.joining.failures == 3

    play(body)


# --- gaps and wiped nodes -------------------------------------------------------------------------


def test_a_node_that_was_away_past_the_trim_point_is_in_a_gap_and_copies() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        cluster.set(history_max=10, history_hard_max=1000, cleanup_ms=1000)
        await make(cluster, 2)
        await cluster.at(2)
        cluster.kill("core3")
        cluster.declare_dead("core3")
        await make(cluster, 1020)
        await until(lambda: cluster.state("core3") == "gap")
        assert cluster.ran("core3") == [1, 2]
        await cluster.restart("core3")
        await until(lambda: cluster.state("core3") == "following")
        await make(cluster, 1)
        await cluster.at(1023)
        assert cluster.ran("core3") == [1, 2, 1023]
        assert stock.of("core3") == list(range(1, 1024))

    play(body)


def test_a_node_whose_state_was_wiped_is_in_a_gap_before_it_runs_anything() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 3)
        await cluster.at(3)
        cluster.kill("core3")
        await make(cluster, 1)
        stock["core3"].items, stock["core3"].at = {}, 0

        def slow(node: FakeNode) -> None:
            """It has its log, and a session, long before it knows how fresh they are."""
            stock.register(node)

            async def barrier(*_: object, **__: object) -> None:
                await asyncio.sleep(2.0)

            node.barrier = barrier  # type: ignore[method-assign]

        cluster.register = slow
        await cluster.restart("core3")
        await until(lambda: cluster.state("core3") == "gap")
        await until(lambda: cluster.state("core3") == "following")
        await cluster.at(4)
        assert stock["core3"].loads == [4]
        # It never ran call 4 on a state without the first three.
        assert cluster.ran("core3") == [1, 2, 3]
        assert stock.of("core3") == [1, 2, 3, 4]

    play(body)


def test_a_power_cut_of_all_nodes_at_once_makes_no_gap() -> None:
    """The state is told before the cursor moves, so no crash leaves it behind."""

    async def body(cluster: Cluster, stock: Stock) -> None:
        caller = asyncio.ensure_future(make(cluster, 50))
        for round in range(12):
            await asyncio.sleep(0.011 + 0.0007 * round)
            for name in list(cluster.nodes):
                cluster.kill(name)
            caller.cancel()
            for name in list(cluster.nodes):
                await cluster.restart(name)
            assert set(map(cluster.state, cluster.nodes)) == {"following"}
            caller = asyncio.ensure_future(make(cluster, 50))
        await caller
        await asyncio.sleep(1)
        assert set(map(cluster.state, cluster.nodes)) == {"following"}
        assert all(not shelf.loads for shelf in stock.shelves.values())

    play(body)


def test_aborted_calls_do_not_make_a_state_look_old() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        cluster.set(history_max=5, cleanup_ms=1000)
        await make(cluster, 1)
        cluster.seats["core1"].broken.add("*")
        for _ in range(20):
            done = await cluster.calls("core1").call("note", Note("x"))
            assert done.outcome == "init_failure"
        # The states are told of ids that nobody executes, before their records are trimmed.
        await until(lambda: all(shelf.at == 21 for shelf in stock.shelves.values()))
        cluster.seats["core1"].broken.clear()
        # The history keeps the newest completed calls; those that failed before them may go.
        await make(cluster, 6)
        await asyncio.sleep(301)  # the cleaner has begun to wait with the default of the setting
        await until(lambda: min(cluster.table("records"), default=28) > 21)
        for name in list(cluster.nodes):
            await cluster.restart(name)
        await make(cluster, 1)
        await cluster.at(28)
        assert set(map(cluster.state, cluster.nodes)) == {"following"}
        assert all(not shelf.loads for shelf in stock.shelves.values())

    play(body)


def test_a_gap_without_any_state_waits_for_an_operator() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.set(history_max=10, history_hard_max=1000, cleanup_ms=1000)
        cluster.kill("core3")
        await make(cluster, 1020)
        await until(lambda: cluster.state("core3") == "gap")
        node = await cluster.restart("core3")
        await asyncio.sleep(30)
        assert cluster.state("core3") == "gap"
        assert "fast-forward" in str(node.calls.joining.trouble)
        assert ("gap", "core3") in {(name, at) for name, at, _ in cluster.alarms("core1")}
        await cluster.calls("core1").fast_forward("core3", 1020)
        await until(lambda: cluster.state("core3") == "following")
        await make(cluster, 1)
        await cluster.at(1021)
        assert cluster.ran("core3") == [1021]
        await until(lambda: node.calls.joining.trouble is None)

    tell(body)


def test_an_operator_may_declare_a_wiped_state_to_be_right() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        await make(cluster, 2)
        stock["core1"].items, stock["core1"].at = {}, 0
        node = await cluster.restart("core1")
        await until(lambda: cluster.state("core1") == "gap")
        await asyncio.sleep(5)
        assert "nobody to copy from" in str(node.calls.joining.trouble)
        await cluster.calls("core1").fast_forward("core1", 2)
        await until(lambda: cluster.state("core1") == "following")
        await make(cluster, 1)
        await asyncio.sleep(5)
        assert cluster.state("core1") == "following"
        assert stock["core1"].at == 3
        # And it is still right after a restart.
        await cluster.restart("core1")
        await asyncio.sleep(5)
        assert (cluster.state("core1"), stock["core1"].loads) == ("following", [])

    play(body, cores=1)


def test_a_state_that_is_added_to_a_running_cluster_makes_no_gap() -> None:
    async def body(cluster: Cluster) -> None:
        await make(cluster, 3)
        await cluster.at(3)
        stock = Stock()
        cluster.register = stock.register
        for name in list(cluster.nodes):
            await cluster.restart(name)
        await make(cluster, 1)
        await cluster.at(4)
        assert set(map(cluster.state, cluster.nodes)) == {"following"}
        assert [stock[name].at for name in cluster.nodes] == [4, 4, 4]
        assert all(not shelf.loads for shelf in stock.shelves.values())

    tell(body)


def test_a_cluster_that_was_founded_anew_keeps_what_its_nodes_have() -> None:
    async def body(cluster: Cluster, stock: Stock) -> None:
        for name in list(cluster.nodes):
            stock[name].items, stock[name].at = {"50": b"old"}, 50
            await cluster.restart(name)
        await asyncio.sleep(5)
        joins = sum(node.proposed.count("join") for node in cluster.nodes.values())
        assert joins == 0
        await make(cluster, 1)
        await cluster.at(1)
        assert set(map(cluster.state, cluster.nodes)) == {"following"}
        assert [stock[name].at for name in cluster.nodes] == [1, 1, 1]
        assert stock.of("core3") == [1, 50]

    play(body)
