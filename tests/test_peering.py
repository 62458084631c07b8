"""peering.py: whom a node talks to, and what it does about what others say of it."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftkv.config import NodeConfig
from raftkv.credibility import ALARM_S
from raftkv.errors import (
    DiskFailed,
    NodeFault,
    OutdatedData,
    RemovedNode,
    WipedNode,
    WrongCluster,
)
from raftkv.peering import Peering
from raftkv.raft import wire
from raftkv.raft.epoch import FOUNDED, Epoch, Standing, standing
from raftkv.raft.identity import DataDirectory
from raftkv.raft.membership import Configuration
from raftkv.security.proof import Kind, Proof
from raftkv.state import Member
from tests.fakes import FakeRuntime

CORES = {"core1": "core1:1", "core2": "core2:1"}

# What stands behind what core2 claims: its own certificate, the address that this node dialled, or
# nothing.
CERTIFIED = Proof(Kind.CORE, "core2")
DIALLED = Proof(Kind.NONE, "", "core2:1", "core2")
DIALLED_IN = Proof(Kind.NONE)


def test_a_full_disk_at_the_moment_of_joining_stops_the_node() -> None:
    runtime: Any = FakeRuntime()
    config = NodeConfig(name="core2", dir="/d", peer_address="core2:1", cores=CORES, insecure=True)
    directory = DataDirectory(config, runtime)
    faults: list[NodeFault] = []
    peering = Peering(config, directory, runtime, faults.append)
    runtime.files.fail_writes = True
    hello = wire.Hello(1, "raft", "raftkv", "c1", "core1-aa", "core", "core1:1")
    peering._joining.met(hello, Proof(Kind.CORE, "core1"))
    assert [type(fault) for fault in faults] == [DiskFailed]
    assert "no space left" in str(faults[0])
    assert directory.identity.cluster_id == ""


def test_a_lack_of_descriptors_at_the_moment_of_joining_is_passed() -> None:
    runtime: Any = FakeRuntime()
    config = NodeConfig(name="core2", dir="/d", peer_address="core2:1", cores=CORES, insecure=True)
    directory = DataDirectory(config, runtime)
    faults: list[NodeFault] = []
    peering = Peering(config, directory, runtime, faults.append)
    opened = runtime.files.open

    def lacks(path: str, mode: str) -> Any:
        raise OSError(errno.EMFILE, "too many open files", path)

    runtime.files.open = lacks
    hello = wire.Hello(1, "raft", "raftkv", "c1", "core1-aa", "core", "core1:1")
    peering._joining.met(hello, Proof(Kind.CORE, "core1"))
    assert (faults, directory.identity.cluster_id) == ([], "")
    runtime.files.open = opened
    peering._joining.met(hello, Proof(Kind.CORE, "core1"))
    assert directory.identity.cluster_id == "c1"


OLD, NEW, RIVAL = Epoch(1, "aa"), Epoch(2, "bb"), Epoch(1, "cc")


class Met:
    """A node of epoch OLD in the cluster c1, and what it makes of greetings."""

    def __init__(self, role: str = "core") -> None:
        runtime: Any = FakeRuntime()
        name = "core1" if role == "core" else "replicant1"
        config = msgspec.convert(
            {
                "name": name,
                "role": role,
                "dir": "/d",
                "peer_address": f"{name}:1",
                "cores": CORES,
                "insecure": True,
            },
            NodeConfig,
        )
        directory = DataDirectory(config, runtime)
        directory.join("c1", OLD)
        self.faults: list[NodeFault] = []
        self.adopted: list[Epoch] = []
        self.stores = True
        self.peering = Peering(config, directory, runtime, self.faults.append)
        self.peering.on_newer_epoch = self._adopt
        for purpose in ("raft", "follow", "rpc"):
            self.peering.purpose(purpose, lambda link: None, lambda link: None)

    def _adopt(self, epoch: Epoch) -> bool:
        self.adopted.append(epoch)
        return self.stores

    def code(self, proof: Proof = DIALLED, **changes: Any) -> str:
        """What the handshake is refused for; "" if it is accepted."""
        hello = wire.Hello(1, "raft", "raftkv", "c1", "core2-aa", "core", "core2:1", OLD)
        refusal = self.peering.judge(msgspec.structs.replace(hello, **changes), proof)
        return "" if refusal is None else refusal.code


@pytest.mark.parametrize("votes", [True, False])
def test_a_copy_goes_on_dialling_a_name_that_its_log_removed(votes: bool) -> None:
    """The name may have come back and lead, behind the end of the copy's log."""
    runtime: Any = FakeRuntime()
    cores = {**CORES, "core3": "core3:1"}
    config = NodeConfig(name="core3", dir="/d", peer_address="core3:1", cores=cores, insecure=True)
    directory = DataDirectory(config, runtime)
    me = directory.identity.raft_id
    peering = Peering(config, directory, runtime, lambda fault: None)
    left: list[str] = []
    peering.hub.stop_dialling = left.append  # type: ignore[method-assign]
    peering.hub.keep_dialling = lambda *given: None  # type: ignore[method-assign]
    voters = ("core2-aa", me) if votes else ("core2-aa",)
    learners = () if votes else (me,)
    peering.follow_configuration(Configuration(voters, learners, ("core1-aa",)))
    assert left == (["core1"] if votes else [])


def test_a_node_that_was_wiped_is_told_from_one_that_has_replaced_its_old_self() -> None:
    """The latter may lead, and this node, whose log lags, could never catch up without it."""
    met = Met()
    met.peering.engine = SimpleNamespace(  # type: ignore[assignment]
        configuration=Configuration(("core1-aa", "core2-old")),
        configurations=SimpleNamespace(at=lambda index: Configuration()),
        commit=1,
    )
    assert met.code(raft_id="core2-new") == WipedNode.code
    assert met.code(raft_id="core2-new", member=True) == ""
    assert met.code(raft_id="core2-old") == ""


def test_the_greeting_says_whether_the_own_log_has_this_node() -> None:
    met = Met()
    me = met.peering.hello("raft").raft_id
    assert met.peering.hello("raft").member is False
    for voters, member in (((me, "core2-aa"), True), (("core1-old", "core2-aa"), False)):
        met.peering.engine = SimpleNamespace(  # type: ignore[assignment]
            configuration=Configuration(voters)
        )
        assert met.peering.hello("raft").member is member


def test_epochs_are_ordered_by_number_and_told_apart_by_token() -> None:
    assert standing(OLD, OLD) is Standing.SAME
    assert standing(NEW, OLD) is Standing.OUTDATED
    assert standing(OLD, NEW) is Standing.NEWER
    assert standing(OLD, RIVAL) is Standing.RIVAL
    assert (str(FOUNDED), str(NEW)) == ("0", "2-bb")


def test_only_nodes_of_one_epoch_talk_to_each_other() -> None:
    met = Met()
    assert met.code() == ""
    assert met.code(epoch=FOUNDED) == OutdatedData.code
    assert met.code(epoch=RIVAL) == WrongCluster.code
    assert met.code(DIALLED_IN, epoch=FOUNDED, purpose="rpc", role="replicant") == (
        OutdatedData.code
    )
    # A replicant that is to begin anew must hear what to begin.
    assert met.code(DIALLED_IN, epoch=FOUNDED, purpose="follow", role="replicant") == ""
    assert met.code(epoch=NEW, cluster_id="") == "", "it belongs to no cluster yet"
    assert not met.faults


@pytest.mark.parametrize("proof", [DIALLED, CERTIFIED])
def test_a_core_that_meets_a_newer_epoch_stops_itself(proof: Proof) -> None:
    met = Met()
    assert met.code(proof, epoch=NEW) == OutdatedData.code
    (fault,) = met.faults
    assert isinstance(fault, OutdatedData)
    assert "core1 are of epoch 1-aa" in str(fault)
    told = Met()
    told.peering.settled = True
    told.peering.refused(wire.Refusal(OutdatedData.code, "old"), "core2:1", proof)
    assert isinstance(told.faults[0], OutdatedData)


ELSEWHERE = Proof(Kind.NONE, "", "evil:1", "core2")
#: What must not be believed, as (proof, the name that is claimed).
UNPROVED = {
    "dialled in, without certificates": (DIALLED_IN, "core2"),
    "dialled at an address of hearsay": (ELSEWHERE, "core2"),
    "another node was dialled there": (DIALLED, "core1"),
    "a certificate for a replicant only": (Proof(Kind.REPLICANT_ONLY, "core2"), "core2"),
    "the same, dialled": (Proof(Kind.REPLICANT_ONLY, "core2", "core2:1", "core2"), "core2"),
    "the certificate of another name": (Proof(Kind.CORE, "edge1"), "core2"),
    "a certificate of no core": (Proof(Kind.CORE, "edge1"), "edge1"),
    "a replicant of the log": (Proof(Kind.NONE, "", "edge2:1", "edge2"), "edge2"),
}


def of_the_log() -> dict[str, Member]:
    """A replicant and a core that the configuration file does not name."""
    return {
        name: Member(name, role, f"{name}-aa", f"{name}:1", None, 1, True, 0)
        for name, role in (("edge2", "replicant"), ("core9", "core"))
    }


@pytest.mark.parametrize("role", ["core", "replicant"])
@pytest.mark.parametrize("what", UNPROVED)
def test_a_newer_epoch_without_a_proof_is_an_alarm_and_nothing_else(what: str, role: str) -> None:
    proof, name = UNPROVED[what]
    met = Met(role)
    met.peering.addresses.members = of_the_log
    met.peering.addresses.greeted("core2", "evil:1")
    met.peering.addresses.heard("core2", "evil:1")
    # A certificate for a replicant only does not even begin a link for consensus.
    purposes = ("rpc",) if proof.kind is Kind.REPLICANT_ONLY else ("raft", "follow", "rpc")
    for purpose in purposes:
        claimed = {"epoch": NEW, "purpose": purpose, "raft_id": f"{name}-bb", "role": "replicant"}
        assert met.code(proof, **claimed) == "unproved_epoch"
    assert (met.faults, met.adopted) == ([], [])
    assert met.peering.credibility.unproved_epochs == len(purposes)
    assert f"{name} at " in str(met.peering.credibility.unproved_epoch)
    assert "claims epoch 2-bb" in str(met.peering.credibility.unproved_epoch)
    assert "configuration file" in str(met.peering.credibility.unproved_epoch)
    if proof.dialled is not None and proof.wanted == name:
        for code in (OutdatedData.code, RemovedNode.code, WipedNode.code, WrongCluster.code):
            met.peering.refused(wire.Refusal(code, "go"), proof.dialled, proof)
    assert not met.faults


def test_the_alarm_about_a_newer_epoch_ends_a_while_after_the_last_claim() -> None:
    met = Met()
    credibility, runtime = met.peering.credibility, met.peering.hub.runtime
    assert not credibility.alarm
    for _ in range(2):
        assert met.code(DIALLED_IN, epoch=NEW) == "unproved_epoch"
        runtime.advance(ALARM_S - 1.0)
        assert credibility.alarm
    runtime.advance(2.0)
    assert not credibility.alarm
    assert credibility.unproved_epoch


def test_a_core_of_the_log_is_believed_too() -> None:
    met = Met()
    met.peering.addresses.members = of_the_log
    assert met.code(Proof(Kind.NONE, "", "core9:1", "core9"), epoch=NEW, raft_id="core9-bb") == (
        OutdatedData.code
    )
    assert len(met.faults) == 1


def test_to_be_asked_for_a_proof_stops_no_node() -> None:
    met = Met()
    met.peering.refused(wire.Refusal("unproved_epoch", "?"), "core2:1", DIALLED)
    assert not met.faults


def test_a_replicant_that_meets_a_newer_epoch_adopts_it() -> None:
    met = Met("replicant")
    assert met.code(epoch=NEW, purpose="follow") == ""
    assert met.code(epoch=OLD, purpose="follow") == ""
    assert met.adopted == [NEW]
    met.peering.refused(wire.Refusal(OutdatedData.code, "old"), "core2:1", DIALLED)
    assert not met.faults


def test_a_replicant_that_cannot_store_a_newer_epoch_takes_no_link_of_it() -> None:
    met = Met("replicant")
    met.stores = False
    assert met.code(epoch=NEW, purpose="follow") == "unfounded"
    met.stores = True
    assert met.code(epoch=NEW, purpose="follow") == ""
    assert not met.faults


def test_a_greeting_for_somebody_else_is_refused() -> None:
    met = Met()
    assert met.code(wanted="core1") == ""
    assert met.code(wanted="core3") == "other_node"


@pytest.mark.parametrize("purpose", ["raft", "follow", "rpc"])
def test_the_own_address_and_other_clusters_are_refused(purpose: str) -> None:
    met = Met()
    mine = met.peering.hello("raft").raft_id
    assert met.code(raft_id=mine, purpose=purpose) == "own_address"
    assert met.code(cluster="other", purpose=purpose) == WrongCluster.code
    assert met.code(cluster_id="c2", purpose=purpose) == WrongCluster.code


def test_a_refusal_that_comes_again_and_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its node dials twice a second, for as long as the refusal lasts."""
    met = Met()
    met.peering.settled = True
    for address in ("core2:1", "core2:1", "core3:1", "core2:1"):
        met.peering.refused(wire.Refusal("wrong_cluster", "another cluster"), address, DIALLED)
    met.peering.refused(wire.Refusal("wrong_cluster", "yet another"), "core2:1", DIALLED)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.count("core2:1") for line in lines] == [1, 0, 1]
    assert met.faults == []


class ALink:
    """An accepted link, as far as what is said on it is concerned."""

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.peer_name = "core2"
        self.peer = wire.Hello(1, purpose, "raftkv", "c1", "core2-aa", "core", "core2:1")
        self.proof = CERTIFIED
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_links_of_another_cluster_are_left_once_the_own_one_is_known() -> None:
    """A node that belongs to none takes links of any, and can judge them only afterwards."""
    runtime: Any = FakeRuntime()
    config = NodeConfig(name="core2", dir="/d", peer_address="core2:1", cores=CORES, insecure=True)
    peering = Peering(config, DataDirectory(config, runtime), runtime, lambda fault: None)
    links: dict[str, Any] = {name: ALink("raft") for name in ("same", "none", "other")}
    for name, cluster_id in (("none", ""), ("other", "c2")):
        links[name].peer = msgspec.structs.replace(links[name].peer, cluster_id=cluster_id)
    peering.engine = SimpleNamespace(  # type: ignore[assignment]
        links=links, snapshotting=SimpleNamespace(cluster_id="")
    )
    peering.on_founded(links["none"], wire.Founded("c1"))
    assert {name: link.closed for name, link in links.items()} == {
        "same": 0,
        "none": 0,
        "other": 1,
    }
    # Its peer belonged to none when the link came up, and has joined another cluster since.
    peering.on_founded(links["none"], wire.Founded("c2"))
    assert links["none"].closed == 1
    assert peering._directory.identity.cluster_id == "c1"


@pytest.mark.parametrize("purpose", ["raft", "rpc", "follow"])
def test_only_who_dials_for_consensus_can_found_or_stop_a_node(purpose: str) -> None:
    """The certificate of a replicant does for the other purposes."""
    believed = purpose == "raft"
    met = Met()
    link: Any = ALink(purpose)
    met.peering.on_refusal(link, wire.Refusal(RemovedNode.code, "no member any more"))
    assert len(met.faults) == believed
    assert link.closed == 1
    runtime: Any = FakeRuntime()
    config = NodeConfig(name="core2", dir="/d", peer_address="core2:1", cores=CORES, insecure=True)
    directory = DataDirectory(config, runtime)
    peering = Peering(config, directory, runtime, lambda fault: None)
    if believed:
        peering.on_founded(link, wire.Founded("c1"))
    else:
        with pytest.raises(wire.ProtocolError, match="Founded on a"):
            peering.on_founded(link, wire.Founded("c1"))
    assert directory.identity.cluster_id == ("c1" if believed else "")
