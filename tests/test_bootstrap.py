"""Configuration files that disagree about the cores of a new cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv import bootstrap
from raftkv.dialback import DialBack
from raftkv.errors import MembershipRefused, NodeFault
from raftkv.formats import bootstrap_digest
from raftkv.raft import wire
from raftkv.raft.transport import Hub
from raftkv.runtime import Runtime
from raftkv.testing import current
from raftkv.testing.members import with_cores
from raftkv.testing.patching import replaced
from raftkv.testing.simulated import SimulatedCluster

THREE, TWO = ["core1", "core2", "core3"], ["core2", "core3"]
MINE = wire.About(bootstrap=bootstrap_digest(THREE))
OTHER = wire.Hello(
    1,
    "raft",
    "raftkv",
    "",
    "core2-aa",
    "core",
    "core2:1",
    about=wire.About(bootstrap=bootstrap_digest(TWO)),
)


def code(cluster_id: str = "", about: wire.About | None = MINE, **changes: object) -> str:
    hello = msgspec.structs.replace(OTHER, **changes)
    refusal = bootstrap.judge(hello, about, cluster_id, THREE)
    return "" if refusal is None else refusal.code


def test_only_nodes_without_a_cluster_compare_their_files() -> None:
    assert code() == "other_cores"
    assert code(about=MINE, purpose="rpc") == ""
    assert code("c1") == "", "this node belongs to a cluster"
    assert bootstrap.judge(msgspec.structs.replace(OTHER, cluster_id="c1"), MINE, "", THREE) is None


def test_the_same_names_and_unknown_names_are_no_difference() -> None:
    same = wire.About(bootstrap=bootstrap_digest(reversed(THREE)))
    assert bootstrap.judge(msgspec.structs.replace(OTHER, about=same), MINE, "", THREE) is None
    for unknown in (None, wire.About()):
        assert bootstrap.judge(OTHER, unknown, "", THREE) is None
        hello = msgspec.structs.replace(OTHER, about=unknown)
        assert bootstrap.judge(hello, MINE, "", THREE) is None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_files_that_disagree_bootstrap_no_two_clusters(seed: int, late: bool) -> None:
    """The file of core2 does not name core1, so two cores take themselves for the first one."""
    cluster = SimulatedCluster(
        seed=seed, cores=3, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    cluster.configs["core2"] = with_cores(cluster.configs["core2"], TWO, 7000)
    faults: list[NodeFault] = []
    cluster._judge_fault = lambda name, fault: faults.append(fault)  # type: ignore[method-assign]
    if late:
        cluster.names.remove("core3")
    with cluster:
        cluster.run(2.0)
        if late:
            cluster.employ("core3", THREE)
        cluster.run(4.0)
        ids = {node.status().cluster_id for node in cluster.nodes.values()}
        assert ids == {""}
        assert not faults
        # Once the file is corrected, there is one cluster.
        cluster.configs["core2"] = with_cores(cluster.configs["core2"], THREE, 7000)
        cluster.world.crash("core2", power_cut=False)
        cluster.start("core2")
        cluster.run(6.0)
        ids = {node.status().cluster_id for node in cluster.nodes.values()}
        assert len(ids) == 1
        assert ids != {""}
        assert any(node.leader for node in cluster.nodes.values())


class Claimant:
    """A program that is no core, and claims to be one: by default, one that is in a cluster."""

    def __init__(
        self,
        target: str,
        name: str,
        *,
        founded: bool = False,
        cluster_id: str = "forged",
        process: str | None = "forged",
    ) -> None:
        self._target = target
        self._founded = founded
        about = (
            None
            if process is None
            else wire.About("0.0.0", [("core", 2)], process, bootstrap_digest(THREE))
        )
        self._hello = wire.Hello(
            wire.PROTOCOL_VERSION,
            "raft",
            "raftkv",
            cluster_id,
            f"{name}-0badbad0",
            "core",
            f"{name}:7000",
            about=about,
        )
        self.answered = 0

    async def program(self, runtime: Runtime) -> None:
        while True:
            await runtime.sleep(0.4)
            await runtime.connect(self._stream, self._target, 7000)

    def _stream(self) -> asyncio.Protocol:
        claimant = self

        class Stream(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(wire.encode(claimant._hello))
                self._transport = transport

            def data_received(self, data: bytes) -> None:
                claimant.answered += 1
                if claimant._founded and claimant.answered == 1:
                    self._transport.write(wire.encode(wire.Founded("forged")))

        return Stream()


@pytest.mark.parametrize("founded", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_claim_on_an_accepted_link_names_no_cluster(seed: int, founded: bool) -> None:
    """Without certificates a core dials the core that is named, and takes the id from there."""
    cluster = SimulatedCluster(
        seed=seed, cores=3, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    claimant = Claimant("core2", "core1", founded=founded, cluster_id="" if founded else "forged")
    cluster.names.remove("core3")
    with cluster:
        cluster.world.start("stranger", claimant.program)
        cluster.run(3.0)
        assert claimant.answered
        assert cluster.nodes["core2"].status().cluster_id == ""
        cluster.world.crash("stranger", power_cut=False)
        cluster.employ("core3", THREE)
        cluster.run(6.0)
        (cluster_id,) = {node.status().cluster_id for node in cluster.nodes.values()}
        assert cluster_id not in ("", "forged")


@pytest.mark.parametrize("seed", range(3))
def test_a_core_that_could_only_be_dialled_joins_what_it_dials_itself(seed: int) -> None:
    """`Founded` comes over a link that the other side has dialled, which proves nothing."""
    cluster = SimulatedCluster(
        seed=seed, cores=3, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    keep_dialling = Hub.keep_dialling

    def only_the_first(hub: Hub, name: str, *rest: Any) -> None:
        if current.running_host() == "core1":
            keep_dialling(hub, name, *rest)

    with replaced(Hub, "keep_dialling", only_the_first), cluster:
        cluster.run(5.0)
        ids = {node.status().cluster_id for node in cluster.nodes.values()}
        assert len(ids) == 1
        assert ids != {""}


@pytest.mark.parametrize("process", ["forged", None])
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_claim_on_an_accepted_link_makes_no_voter(
    seed: int, present: bool, process: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without certificates the core of a name is the one at its address in the file.

    With `present` the core whose name is taken runs, too; else it starts later. `process` None is
    a handshake of raftkv 0.1.0.
    """
    cluster = SimulatedCluster(
        seed=seed, cores=3, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    claimants = [
        Claimant("core1", name, cluster_id="", process=process) for name in ("core2", "core3")
    ]
    for name in ("core3",) if present else ("core2", "core3"):
        cluster.names.remove(name)
    absent = [name for name in THREE if name not in cluster.names]
    with cluster:
        for number, claimant in enumerate(claimants):
            cluster.world.start(f"stranger{number}", claimant.program)
        cluster.run(4.0)
        assert all(claimant.answered for claimant in claimants)
        assert cluster.nodes["core1"].status().cluster_id == ""
        assert "the cluster is not bootstrapped with it" in caplog.text
        for name in absent:
            cluster.employ(name, THREE)
        # The programs go on, and keep no core from taking part.
        cluster.run(6.0)
        (cluster_id,) = {node.status().cluster_id for node in cluster.nodes.values()}
        assert cluster_id
        part = cluster.part("core1")
        assert part is not None
        ids = sorted(node.raft_id for node in cluster.nodes.values())
        assert sorted(part.engine.configuration.voters) == ids


@pytest.mark.parametrize("seed", range(3))
def test_each_core_is_dialled_back_at_most_once_for_an_honest_bootstrap(seed: int) -> None:
    cluster = SimulatedCluster(
        seed=seed, cores=5, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    dialled: list[tuple[str, str]] = []
    prove = DialBack._prove

    async def counted(dial_back: DialBack, name: str) -> bool:
        dialled.append((current.running_host(), name))
        return await prove(dial_back, name)

    with replaced(DialBack, "_prove", counted), cluster:
        cluster.world.wait(
            lambda: all(
                name in cluster.nodes and cluster.nodes[name].status().cluster_id
                for name in cluster.names
            ),
            1.0,
            "a cluster",
        )
        cluster.run(3.0)
    assert dialled
    assert len(dialled) == len(set(dialled))
    assert {host for host, _ in dialled} == {"core1"}, "a dial-back leads to no other"


def test_a_core_that_cannot_be_dialled_back_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once its address in the file is right, there is a cluster."""
    cluster = SimulatedCluster(
        seed=1, cores=3, replicants=0, rate_per_s=20.0, deliveries=False, early=True
    )
    given = cluster.configs["core1"]
    wrong = msgspec.structs.replace(given, cores={**given.cores, "core2": "nowhere:7000"})
    cluster.configs["core1"] = wrong
    with cluster:
        cluster.run(4.0)
        assert {node.status().cluster_id for node in cluster.nodes.values()} == {""}
        assert "nothing answers at nowhere:7000, where core2 would be" in caplog.text
        cluster.configs["core1"] = given
        cluster.world.crash("core1", power_cut=False)
        cluster.start("core1")
        cluster.run(4.0)
        (cluster_id,) = {node.status().cluster_id for node in cluster.nodes.values()}
        assert cluster_id


def test_a_core_is_added_at_its_address_whatever_else_claims_its_name() -> None:
    cluster = SimulatedCluster(seed=1, cores=3, replicants=0, rate_per_s=20.0, deliveries=False)
    claimants = [Claimant(target, "core4", cluster_id="") for target in THREE]
    with cluster:
        for number, claimant in enumerate(claimants):
            cluster.world.start(f"stranger{number}", claimant.program)
        cluster.run(2.0)
        assert all(claimant.answered for claimant in claimants)

        def add(timeout_s: float) -> None:
            membership = cluster.nodes["core1"].membership
            adding = membership.add("core4", address="core4:7000", timeout_s=timeout_s)
            added = cluster.world.call("core1", adding)
            cluster.world.wait(added.done, 30.0, "the end of the change")
            added.result()

        with pytest.raises(MembershipRefused, match="is not the one at core4:7000"):
            add(3.0)
        cluster.employ("core4", THREE)
        cluster.run(2.0)
        add(20.0)
        part = cluster.part("core4")
        assert part is not None
        ids = sorted(node.raft_id for node in cluster.nodes.values())
        assert sorted(part.engine.configuration.voters) == ids
