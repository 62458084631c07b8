"""Digests that differ: who is taken for corrupt, and what a corrupt core does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from raftkv import Node
from raftkv.corruption import Report, Verdict, judge
from raftkv.corruption_check import (
    BYTE_S,
    CORRUPT,
    LOOP_PART,
    RESULT_PART,
    ROW_S,
    SLICE_S,
    CorruptionCheck,
)
from raftkv.errors import CorruptState, NoLeader, ReadTimeout
from raftkv.membership import CoreMember
from raftkv.parts import CorePart
from raftkv.raft.corrupt_marker import (
    FILE,
    REJOIN,
    empty_if_removed,
    is_emptied,
    known_cores,
    mark,
    marked_as,
    refuse_marked,
    was_removed,
)
from raftkv.raft.membership import Configuration
from raftkv.runtime import OsFiles
from raftkv.testing.damage import damage
from raftkv.testing.disk import SimDisk
from raftkv.testing.local_cluster import LocalCluster
from tests.upstreams import upstream_of

THREE = Configuration(("a-1", "b-1", "c-1"))


def report(damaged: str = "", code: str = "0.2", core_format: int = 2) -> Report:
    tables = {"kv.keys": b"k", "kv.history": b"h", "sessions": b"s"}
    if damaged:
        tables[damaged] = b"?"
    return Report(core_format, code, tables)


def test_what_all_that_reported_hold_is_agreed_once_a_majority_has() -> None:
    assert judge("a-1", THREE, {"a-1": report()}) == Verdict()
    assert judge("a-1", THREE, {"a-1": report(), "b-1": report()}).agreed


def test_the_minority_is_corrupt_and_the_table_is_named() -> None:
    reports = {"a-1": report(), "b-1": report(), "c-1": report("kv.keys")}
    expected = Verdict(tables=("kv.keys",), nodes=("c-1",))
    assert judge("a-1", THREE, reports) == expected
    assert judge("c-1", THREE, reports) == msgspec.structs.replace(expected, own=True)


def test_without_a_majority_of_all_voters_nothing_is_certain() -> None:
    reports = {"a-1": report(), "c-1": report("kv.keys")}
    for me in reports:
        verdict = judge(me, THREE, reports)
        assert (verdict.own, verdict.nodes) == (False, ("a-1", "c-1"))
    five = Configuration(("a-1", "b-1", "c-1", "d-1", "e-1"))
    two = {"a-1": report(), "b-1": report(), "c-1": report("sessions")}
    assert not judge("c-1", five, two).own


def test_three_states_are_an_alarm() -> None:
    reports = {"a-1": report(), "b-1": report("sessions"), "c-1": report("kv.keys")}
    assert not any(judge(me, THREE, reports).own for me in reports)


def test_different_software_is_an_alarm() -> None:
    reports = {"a-1": report(), "b-1": report(), "c-1": report("kv.keys", "0.3")}
    verdict = judge("c-1", THREE, reports)
    assert verdict.differs
    assert not verdict.own


def test_a_distrusted_voter_does_not_count_towards_the_majority() -> None:
    configuration = Configuration(("a-1", "b-1", "c-1"), distrusted=("b-1",))
    reports = {"a-1": report(), "b-1": report(), "c-1": report("kv.keys")}
    assert not judge("c-1", configuration, reports).own


def test_a_learner_that_differs_is_corrupt_and_does_not_count() -> None:
    reports = {"a-1": report(), "b-1": report(), "d-1": report("kv.keys")}
    assert judge("d-1", THREE, reports).own
    reports = {"a-1": report(), "d-1": report(), "c-1": report("kv.keys")}
    assert not judge("c-1", THREE, reports).own


def test_no_healthy_node_is_ever_certain_to_be_corrupt() -> None:
    """All reports of three voters, present or not, as long as a minority is corrupt."""
    kinds = [None, report(), report("kv.keys"), report("sessions"), report("kv.keys", "0.3")]
    for chosen in itertools.product(kinds, repeat=3):
        reports = dict(zip(THREE.voters, chosen, strict=True))
        known = {each: found for each, found in reports.items() if found is not None}
        corrupt = [each for each in known if known[each].state != report().state]
        if len(corrupt) > 1:
            continue
        for me in known:
            assert me in corrupt or not judge(me, THREE, known).own


def test_a_walk_on_a_busy_loop_ends_when_that_of_the_leader_does() -> None:
    """Else the next entry cancels it, each time, and this core is never compared."""
    now, lag_s, steps = 0.0, 0.03, [(200, 1000)] * 100

    async def sleep(delay_s: float) -> None:
        nonlocal now
        now += delay_s + lag_s

    runtime = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    about = SimpleNamespace(software="0.2", formats=())
    check = CorruptionCheck(SimpleNamespace(runtime=runtime, about=about))  # type: ignore[arg-type]
    walk = SimpleNamespace(index=7, tables={}, slices=lambda: (step for step in steps))
    engine = SimpleNamespace(me="a-1", links={})
    asyncio.run(check._walk(engine, walk, THREE, 2))  # type: ignore[arg-type]
    charged_s = sum(SLICE_S + rows * ROW_S + size * BYTE_S for rows, size in steps)
    assert charged_s / LOOP_PART <= now < charged_s / LOOP_PART * (1 + RESULT_PART / 2)


# Whole nodes --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def cluster_of(
    cores: int = 3, replicants: int = 0, **changes: object
) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(cores, replicants)
    for name, config in cluster.configs.items():
        cluster.configs[name] = msgspec.structs.replace(
            config, **{"corruption_check_s": 1.0, **changes}
        )
    async with cluster:
        yield cluster


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def break_a_row(node: Node) -> None:
    rows = dict(node.machine.view("kv").table("keys").scan())
    damage(node.machine, "kv", "keys", b"a", rows[b"b"])


def test_cores_agree_while_they_are_written_to() -> None:
    async def play() -> None:
        async with cluster_of(3, 1) as cluster:
            for number in itertools.count():
                await cluster.nodes[0].kv.put(b"k%d" % (number % 100), b"v%d" % number)
                if all(node.corruption.agreed_index for node in cluster.cores):
                    break
            assert not any(node.status().alarms for node in cluster.nodes)
            assert not any(node.fault.done() for node in cluster.nodes)
            await cluster.converge()
            assert cluster.replicants[0].machine.digest() == cluster.cores[0].machine.digest()

    asyncio.run(asyncio.wait_for(play(), 30))


def test_a_start_holds_on_to_no_state_for_the_digests_in_its_log() -> None:
    async def play() -> None:
        async with cluster_of() as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.converge()
            leader = cluster.leader()
            assert isinstance(leader, Node)
            assert isinstance(leader._part, CorePart)
            follower = next(node for node in cluster.cores if node is not leader)
            await cluster.kill(follower.name)
            for _ in range(5):
                assert leader._part.engine.ask_for_digests()
            await leader.kv.put(b"a", b"2")
            started = await cluster.start(follower.name)
            await until(lambda: started.corruption.agreed_index)
            assert len(started.machine._sessions.walks) <= 1

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_core_with_a_damaged_row_marks_its_directory_hands_over_and_stops(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    def alarm_of_others(corrupt: Node) -> bool:
        # The alarm itself may have ended: a later comparison is without the corrupt core.
        start = f"alarm {CORRUPT}: at index"
        logged = [text for text in caplog.messages if text.startswith(start)]
        return any("the states of" in text and corrupt.name in text for text in logged)

    async def play() -> None:
        async with cluster_of() as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.nodes[0].kv.put(b"b", b"2")
            await cluster.converge()
            leader = cluster.leader()
            assert leader is not None
            corrupt = next(
                node for node in cluster.cores if (node is leader) == (which == "leader")
            )
            break_a_row(corrupt)
            await until(lambda: corrupt.fault.done())
            fault = await corrupt.fault
            assert isinstance(fault, CorruptState)
            assert "kv.keys" in str(fault)
            assert f"holds another state than {corrupt.name}" in str(fault)
            healthy = [node for node in cluster.cores if node is not corrupt]
            assert not any(node.fault.done() for node in healthy)
            await healthy[0].kv.put(b"a", b"3")
            await until(lambda: alarm_of_others(corrupt))
            marker = Path(cluster.configs[corrupt.name].dir) / FILE
            assert "kv.keys" in marker.read_text()
            await cluster.kill(corrupt.name)
            with pytest.raises(CorruptState, match="raftkv member remove"):
                await cluster.start(corrupt.name)
            cluster.running.pop(corrupt.name)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_of_two_cores_none_is_certain() -> None:
    async def play() -> None:
        async with cluster_of(2) as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.nodes[0].kv.put(b"b", b"2")
            await cluster.converge()
            break_a_row(cluster.nodes[0])
            await until(lambda: all(CORRUPT in node.status().alarms for node in cluster.nodes))
            for node in cluster.nodes:
                assert "differ in kv.keys" in (node.status().corruption or "")
            assert not any(node.fault.done() for node in cluster.nodes)
            await cluster.nodes[0].kv.put(b"c", b"1")

    asyncio.run(asyncio.wait_for(play(), 60))


def test_replicants_of_a_corrupt_core_copy_the_state_again() -> None:
    async def play() -> None:
        async with cluster_of(3, 1) as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.nodes[0].kv.put(b"b", b"2")
            await cluster.converge()
            replicant = cluster.replicants[0]
            corrupt = cluster.running[await upstream_of(replicant)]
            break_a_row(corrupt)
            break_a_row(replicant)  # as if it had copied the row from there
            former = replicant.session
            await until(lambda: corrupt.fault.done())
            await cluster.kill(corrupt.name)
            await until(lambda: replicant.session not in (0, former))
            await replicant.kv.put(b"c", b"1")
            await cluster.converge()
            assert replicant.machine.digest() == cluster.cores[0].machine.digest()

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_core_that_is_to_be_rebuilt_comes_back_as_a_new_one(which: str) -> None:
    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.nodes[0].kv.put(b"b", b"2")
            await cluster.converge()
            leader = cluster.leader()
            corrupt = next(
                node for node in cluster.cores if (node is leader) == (which == "leader")
            )
            healthy = next(node for node in cluster.cores if node is not corrupt)
            former, directory = corrupt.raft_id, Path(cluster.configs[corrupt.name].dir)
            break_a_row(corrupt)
            await until(lambda: corrupt.fault.done())
            assert isinstance(await corrupt.fault, CorruptState)
            assert former not in [member.raft_id for member in healthy.membership.list()]
            await cluster.kill(corrupt.name)
            node = await cluster.start(corrupt.name)
            assert not (directory / FILE).exists()
            assert (directory / REJOIN).exists()
            assert node.raft_id != former
            await until(lambda: not (directory / REJOIN).exists())
            assert CoreMember(node.name, node.raft_id, True) in healthy.membership.list()
            await node.wait_ready()
            assert await node.kv.get(b"a") is not None
            await cluster.converge()
            assert node.machine.digest() == healthy.machine.digest()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_directory_whose_core_was_not_removed_is_never_emptied(tmp_path: Path) -> None:
    files = OsFiles()
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "1.wal").write_bytes(b"log")
    mark(files, str(tmp_path), "it differs\nin a table")
    empty_if_removed(files, str(tmp_path))
    assert (tmp_path / "wal" / "1.wal").exists()
    with pytest.raises(CorruptState, match="it differs in a table"):
        refuse_marked(files, str(tmp_path))
    mark(files, str(tmp_path), "it differs", removed=True)
    (tmp_path / "node.toml").touch()
    empty_if_removed(files, str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["node.toml", REJOIN, "wal"]
    refuse_marked(files, str(tmp_path))


def empty_by_hand(directory: Path) -> None:
    """As a core leaves it whose removal is noted in the marker."""
    mark(OsFiles(), str(directory), "it differs", removed=True)


def test_a_rebuilt_core_waits_for_cores_that_do_not_know_of_its_removal_yet() -> None:
    """One that was away still refuses the new raft id; a supervisor is not to end that."""

    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            leader = cluster.leader()
            name = next(node.name for node in cluster.cores if node is not leader)
            directory = Path(cluster.configs[name].dir)
            former = cluster.running[name].raft_id
            await cluster.kill(name)
            empty_by_hand(directory)
            node = await cluster.start(name)
            await until(lambda: node.hindrance.text)
            assert former in node.hindrance.text
            assert "does not vote yet" in node.hindrance.text
            assert not node.fault.done()
            assert leader is not None
            await leader.membership.remove(name)
            await until(lambda: not (directory / REJOIN).exists())
            assert not node.fault.done()
            await until(lambda: not node.hindrance.text)  # the file is gone a little before
            assert CoreMember(name, node.raft_id, True) in leader.membership.list()

    asyncio.run(asyncio.wait_for(play(), 60))


def name_one_follower(cluster: LocalCluster, name: str) -> None:
    """The node's configuration file names itself, if it did, and one core, which does not lead."""
    leader, config = cluster.leader(), cluster.configs[name]
    assert leader is not None
    follower = next(n.name for n in cluster.cores if n is not leader and n.name != name)
    cores = {core: at for core, at in config.cores.items() if core in (name, follower)}
    cluster.configs[name] = msgspec.structs.replace(config, cores=cores)


@pytest.mark.parametrize("knows_the_leader", [True, False])
def test_a_replicant_that_had_become_a_core_is_rebuilt_as_a_core(knows_the_leader: bool) -> None:
    async def play() -> None:
        async with cluster_of(3, 1, on_corruption="rebuild") as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.nodes[0].kv.put(b"b", b"2")
            corrupt = cluster.replicants[0]
            leader = cluster.leader()
            assert leader is not None
            await leader.membership.promote(corrupt.name)
            await cluster.converge()
            directory = Path(cluster.configs[corrupt.name].dir)
            break_a_row(corrupt)
            await until(lambda: corrupt.fault.done())
            await cluster.kill(corrupt.name)
            if not knows_the_leader:
                name_one_follower(cluster, corrupt.name)
            node = await cluster.start(corrupt.name)
            await until(lambda: not (directory / REJOIN).exists())
            assert CoreMember(node.name, node.raft_id, True) in leader.membership.list()
            await cluster.converge()
            assert node.machine.digest() == leader.machine.digest()

    asyncio.run(asyncio.wait_for(play(), 60))


def name_only_itself(cluster: LocalCluster, name: str) -> None:
    config = cluster.configs[name]
    own = {name: config.cores[name]}
    cluster.configs[name] = msgspec.structs.replace(config, cores=own)


async def is_a_new_core(
    cluster: LocalCluster, node: Node, former_raft_id: str, healthy: Node
) -> None:
    """It votes under another raft id, and has the state that the healthy one has."""
    assert node.raft_id != former_raft_id
    assert CoreMember(node.name, node.raft_id, True) in healthy.membership.list()
    await cluster.converge()
    assert node.machine.digest() == healthy.machine.digest()


@pytest.mark.parametrize("noted", [True, False])
def test_a_core_whose_file_names_only_itself_is_rebuilt(noted: bool) -> None:
    """Others stop dialling a removed core, and its emptied directory has no addresses.

    `noted`: it has lived to note its removal.
    """

    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            if noted:
                await cluster.nodes[0].kv.put(b"a", b"1")
                await cluster.nodes[0].kv.put(b"b", b"2")
                await cluster.converge()
                healthy = cluster.leader()
                assert healthy is not None
                corrupt = next(node for node in cluster.cores if node is not healthy)
                break_a_row(corrupt)
                await until(lambda: corrupt.fault.done())
                await cluster.kill(corrupt.name)
                name_only_itself(cluster, corrupt.name)
                node = await cluster.start(corrupt.name)
                directory = Path(cluster.configs[node.name].dir)
                await until(lambda: not (directory / REJOIN).exists())
            else:
                healthy, corrupt = await kill_before_removal(cluster)
                await healthy.membership.remove(corrupt.name)
                name_only_itself(cluster, corrupt.name)
                node = await start_until_rebuilt(cluster, corrupt.name)
            await is_a_new_core(cluster, node, corrupt.raft_id, healthy)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_rebuilt_core_that_knows_no_other_one_tells_what_to_do() -> None:
    """As one whose files are of a release that kept no addresses."""

    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            leader = cluster.leader()
            name = next(node.name for node in cluster.cores if node is not leader)
            await cluster.kill(name)
            assert leader is not None
            await leader.membership.remove(name)
            empty_by_hand(Path(cluster.configs[name].dir))
            name_only_itself(cluster, name)
            node = await cluster.start(name)
            await until(lambda: "knows no core: name a running core" in node.hindrance.text)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_addresses_go_from_the_marker_to_the_note_of_the_emptied_directory(tmp_path: Path) -> None:
    files, directory = OsFiles(), str(tmp_path)
    assert known_cores(files, directory) == []
    cores = [("b", "10.0.0.2:7000"), ("b", "10.0.1.2:7000"), ("c", "[fe80::1]:7000")]
    mark(files, directory, "it differs", cores=cores)
    assert known_cores(files, directory) == cores
    mark(files, directory, "core b differs", cores=cores)
    assert known_cores(files, directory) == cores
    empty_if_removed(files, directory)
    assert (tmp_path / FILE).exists(), "its removal is not noted"
    mark(files, directory, "it differs", removed=True, cores=cores)
    empty_if_removed(files, directory)
    assert not (tmp_path / FILE).exists()
    assert is_emptied(files, directory)
    assert known_cores(files, directory) == cores
    many = [(f"core{number}", "host.example:7000") for number in range(5000)]
    mark(files, directory, "x" * 100_000, removed=True, cores=many)
    assert was_removed(files, directory)
    kept = known_cores(files, directory)
    assert 64 < len(kept) < len(many)
    assert kept == many[: len(kept)]


def test_files_without_addresses_are_read(tmp_path: Path) -> None:
    files, directory = OsFiles(), str(tmp_path)
    (tmp_path / REJOIN).touch()
    assert is_emptied(files, directory)
    assert known_cores(files, directory) == []
    (tmp_path / FILE).write_text("it differs\nremoved from the cluster\n")
    assert was_removed(files, directory)
    assert known_cores(files, directory) == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("name", "is_there"), [(FILE, marked_as), (REJOIN, is_emptied)])
def test_what_a_start_reads_of_the_marker_survives_a_power_failure(
    seed: int, name: str, is_there: Callable[[SimDisk, str], object]
) -> None:
    """A process that died had given the file its name, and had not synced that."""
    disk = SimDisk(random.Random(seed))
    disk.makedirs("data")
    disk.sync_dir("data")
    file = disk.open(f"data/{name}", "w")
    file.write(b"it differs\n")
    file.datasync()
    file.close()
    known = is_there(disk, "data")
    assert known
    disk.crash()
    assert is_there(disk, "data") == known


def test_a_core_that_is_to_be_rebuilt_begins_no_cluster_of_its_own() -> None:
    """Its configuration file names no other core, as it may for one that was added by address."""

    async def play() -> None:
        async with cluster_of(1, on_corruption="rebuild") as cluster:
            await cluster.kill("core1")
            empty_by_hand(Path(cluster.configs["core1"].dir))
            node = await cluster.start("core1")
            with pytest.raises(NoLeader):
                await node.wait_ready(0.5)
            await cluster.kill("core1")

    asyncio.run(asyncio.wait_for(play(), 30))


async def kill_before_removal(cluster: LocalCluster) -> tuple[Node, Node]:
    """(a healthy core, one that died after it had marked its directory as corrupt)."""
    for key in (b"a", b"b"):
        await cluster.nodes[0].kv.put(key, key)
    await cluster.converge()
    leader = cluster.leader()
    assert leader is not None
    corrupt = next(node for node in cluster.cores if node is not leader)
    marker = Path(cluster.configs[corrupt.name].dir) / FILE

    async def never() -> bool:
        await asyncio.Event().wait()
        return False

    corrupt.rebuild.ask_for_removal = never  # type: ignore[method-assign]
    break_a_row(corrupt)
    await until(marker.exists)
    await cluster.kill(corrupt.name)
    return leader, corrupt


async def start_until_rebuilt(cluster: LocalCluster, name: str) -> Node:
    with pytest.raises(CorruptState, match="Start it again"):
        await cluster.start(name)
    cluster.running.pop(name, None)
    node = await cluster.start(name)
    await until(lambda: not (Path(cluster.configs[name].dir) / REJOIN).exists())
    return node


@pytest.mark.parametrize(
    ("removed", "knows_the_leader"), [(False, True), (True, True), (False, False)]
)
def test_a_core_that_died_before_the_note_of_its_removal_is_rebuilt_all_the_same(
    removed: bool, knows_the_leader: bool
) -> None:
    """Whether the cluster has removed it meanwhile or not, wherever the leader is."""

    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            healthy, corrupt = await kill_before_removal(cluster)
            if removed:
                await healthy.membership.remove(corrupt.name)
            if not knows_the_leader:
                name_one_follower(cluster, corrupt.name)
            node = await start_until_rebuilt(cluster, corrupt.name)
            await is_a_new_core(cluster, node, corrupt.raft_id, healthy)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_marked_core_does_not_remove_the_one_that_has_replaced_it(tmp_path: Path) -> None:
    """The operator was faster: the name is another core's by now."""

    async def play() -> None:
        async with cluster_of(on_corruption="rebuild") as cluster:
            healthy, corrupt = await kill_before_removal(cluster)
            former = cluster.configs[corrupt.name]
            await healthy.membership.remove(corrupt.name)
            cluster.configs[corrupt.name] = msgspec.structs.replace(former, dir=str(tmp_path))
            successor = await cluster.start(corrupt.name)
            await healthy.membership.add(corrupt.name)
            with pytest.raises(CorruptState, match="Start it again"):
                await Node(former).start()
            assert CoreMember(corrupt.name, successor.raft_id, True) in healthy.membership.list()
            assert not successor.fault.done()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_no_read_shows_the_state_that_a_replicant_has_discarded_meanwhile() -> None:
    """The read was confirmed, and its caller had not run yet, when the upstream turned corrupt."""

    async def play() -> None:
        async with cluster_of(3, 1) as cluster:
            await cluster.nodes[0].kv.put(b"a", b"1")
            await cluster.converge()
            replicant = cluster.replicants[0]
            confirm = replicant.reader.answered

            def confirmed(number: int, index: int) -> None:
                replicant.reader.answered = confirm  # type: ignore[method-assign]
                confirm(number, index)
                replicant._copy_again()

            replicant.reader.answered = confirmed  # type: ignore[method-assign]
            with pytest.raises(ReadTimeout, match="discarded"):
                await replicant.kv.get(b"a")
            found = await replicant.kv.get(b"a")
            assert found is not None
            assert found.value == b"1"

    asyncio.run(asyncio.wait_for(play(), 30))
