"""One core of a simulated cluster holds another state than the others: it must find that out.

    cluster.storm(10)
    cluster.settle_members()
    corrupt_one(cluster, random.Random(7))
    cluster.settle()

The damage is one that no client can see: a row of the settings of a plugin that does not exist, or
an outcome under a number that no command has, as memory that fails or a wrong decision leaves them.
Checked: the core answers nothing once it has noticed (`watch_alarms`), stops with `CorruptState`
within a bound, and no other one does; it does not start
again from its directory, and an operator replaces it; or, in half of the seeds, it comes back by
itself as a new core (`on_corruption`). Then every alarm ends. That no core is marked and no alarm
raised without damage is checked in every run (`watch_alarms`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from raftkv import corruption_check
from raftkv.corruption_check import BYTE_S, LOOP_PART, ROW_S, SLICE_S, CorruptionCheck
from raftkv.errors import CorruptState
from raftkv.kv import KV
from raftkv.node import Node
from raftkv.raft.membership import name_of
from raftkv.state.sessions import ABANDONED
from raftkv.testing import current
from raftkv.testing.damage import damage
from raftkv.testing.patching import around

if TYPE_CHECKING:
    from raftkv.state.machine import StateMachine
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["check_settings", "corrupt_one", "watch_alarms"]

#: How often the cores of a simulated cluster compare their states.
CHECK_S: Final = 4.0
# Beyond the walks: looks of a second, the reports and a leader that changes.
SLACK_S: Final = 10.0
# Bytes of a row or an outcome on the average, at most.
ROW_BYTES: Final = 2_000
# Numbers above the floor of a session: more than it gives out in any run.
UNREACHED: Final = 1 << 32
# How long a voter may be behind while the corrupt core leaves.
SLOW_S: Final = 1.5
# For stopping, replacing and the end of the alarms.
WAIT_S: Final = 60.0


def check_settings(seed: int) -> dict[str, Any]:
    """What the nodes of this seed have in their configuration."""
    kind = random.Random(f"{seed}/on corruption").choice(("stop", "rebuild"))
    return {"corruption_check_s": CHECK_S, "on_corruption": kind}


@contextlib.contextmanager
def watch_alarms(cluster: SimulatedCluster) -> Iterator[None]:
    """Without damage there is no alarm."""

    def watched(original: Callable[..., None]) -> Callable[..., None]:
        def raise_alarm(check: CorruptionCheck, verdict: Any, index: int) -> None:
            original(check, verdict, index)
            if not cluster.damaged:
                cluster.violated(
                    "equal states agree", f"{current.running_host()} finds that {check.alarm}"
                )

        return raise_alarm

    def copied(original: Callable[..., None]) -> Callable[..., None]:
        def copy_again(node: Node) -> None:
            if cluster.damaged:
                # What it had copied from the damaged core is given up on purpose.
                cluster.load.copies_again(node)
            original(node)

        return copy_again

    def silent(original: Callable[..., None]) -> Callable[..., None]:
        def leave(check: CorruptionCheck, verdict: Any, index: int) -> None:
            original(check, verdict, index)
            if answers := _answers(check._node):
                cluster.violated(
                    "a corrupt core answers nothing",
                    f"{check._node.name} knows that its state is corrupt, and {answers}",
                )

        return leave

    with (
        around(CorruptionCheck, "_leave", silent),
        around(CorruptionCheck, "_raise_alarm", watched),
        around(Node, "_copy_again", copied),
    ):
        yield


def _answers(node: Node) -> str:
    """What this core still shows of its state; empty if nothing."""
    if node._running:
        return "takes calls"
    try:
        node.hosting.hosts[KV.name].view()
    except CorruptState:
        return ""
    return "lets the keyspace read it"


def corrupt_one(cluster: SimulatedCluster, rng: random.Random) -> None:
    """See the module's text. Does nothing unless three voters run that trust each other."""
    with cluster.judging():
        _corrupt(cluster, rng)


def _caught_up(cluster: SimulatedCluster, index: int) -> bool:
    nodes, names = cluster.nodes, cluster.names
    return cluster._revived() and all(nodes[name].machine.index >= index for name in names)


def _corrupt(cluster: SimulatedCluster, rng: random.Random) -> None:
    world = cluster.world
    # A disk may hang on after healing. A core that is behind then would copy the damaged state if
    # it is the leader's, and be as corrupt as that.
    known = max((node.machine.index for node in cluster.nodes.values()), default=0)
    world.wait(lambda: _caught_up(cluster, known), WAIT_S, "every node caught up before a damage")
    configuration = cluster.observer.possible_configurations()[-1]
    voters = [name_of(voter) for voter in configuration.voters]
    if len(voters) < 3 or configuration.distrusted or not all(map(cluster.is_up, voters)):
        return
    name = rng.choice(voters)
    machine = cluster.nodes[name].machine
    if machine.core_format < 2:
        return
    cluster.damaged.add(name)
    kind = rng.choice((_stray_row, _undecided_outcome))
    # The session of a node that is away may end before the damage is found, and the damage with it.
    lasting = [node.session for each, node in cluster.nodes.items() if cluster.is_up(each)]
    world.host(name).inside(kind, machine, rng, lasting)
    world.note(name, f"damage: {kind.__name__.strip('_')}")
    host = world.host(name)
    check = cluster.nodes[name].corruption
    with _violation(cluster, f"{name} does not stop although its state is damaged"):
        noticed = "the corrupt core notices it"
        world.wait(lambda: check._leaving is not None or not host.is_up, _bound_s(machine), noticed)
        _slow_one(cluster, voters, name, rng)
        world.wait(lambda: not host.is_up, SLOW_S + SLACK_S, "the end of the corrupt core")
    _expect_corrupt(cluster, name)
    cluster.marks.hit("corrupt core stopped")
    if cluster.configs[name].on_corruption == "rebuild":
        _await_rebuilt(cluster, name)
    else:
        _replace(cluster, name)
    cluster.settle_members()
    # It lasts until a later comparison agrees.
    bound_s = max(WAIT_S, *(_bound_s(node.machine) for node in cluster.nodes.values()))
    with _violation(cluster, "an alarm goes on although the corrupt core is gone"):
        world.wait(lambda: not _alarms(cluster), bound_s, "the end of the alarms")


def _slow_one(cluster: SimulatedCluster, voters: list[str], name: str, rng: random.Random) -> None:
    """One voter learns late of what becomes of the corrupt core, if the others need it not."""
    others = [each for each in voters if each != name]
    slow = [each for each in others if cluster.nodes[each].leader != each]
    if len(others) < 3 or not slow:
        return
    late = rng.choice(slow)
    for each in others:
        if each != late:
            cluster.world.network.stall(each, late, SLOW_S)


def _replace(cluster: SimulatedCluster, name: str) -> None:
    """It does not start again; the operator gives it an empty disk."""
    world, operator = cluster.world, cluster.operator
    assert operator is not None
    cluster.start(name)
    with _violation(cluster, f"{name} starts from the directory of a corrupt core"):
        world.wait(
            lambda: not world.host(name).is_up, SLACK_S, "the refusal of the marked directory"
        )
    _expect_corrupt(cluster, name)
    operator._start_empty(name)
    world.complete(operator._rejoin(name), WAIT_S)


def _await_rebuilt(cluster: SimulatedCluster, name: str) -> None:
    """It comes back under another raft id, without an operator."""
    world, operator = cluster.world, cluster.operator
    former = cluster.running_id(name)
    assert operator is not None
    assert former is not None
    operator._gone.add(former)
    cluster.observer.promises.wiped.add(former)
    cluster.start(name)

    def votes() -> bool:
        voters = cluster.observer.possible_configurations()[-1].voters
        return cluster.running_id(name) in voters and cluster.running_id(name) != former

    with _violation(cluster, f"{name} does not come back as a new core"):
        world.wait(votes, WAIT_S, "the rebuilt core among the voters")
    cluster.marks.hit("corrupt core rebuilt")


def _alarms(cluster: SimulatedCluster) -> list[str]:
    nodes = [cluster.nodes[name] for name in cluster.names if cluster.is_up(name)]
    return [node.name for node in nodes if node.corruption.alarm]


@contextlib.contextmanager
def _violation(cluster: SimulatedCluster, what: str) -> Iterator[None]:
    """What does not come within its time is a broken promise."""
    try:
        yield
    except AssertionError:
        if cluster.violation is None:
            cluster.violated("corruption noticed", what)
        raise


def _expect_corrupt(cluster: SimulatedCluster, name: str) -> None:
    failure = cluster.world.host(name).failure
    if not isinstance(failure, CorruptState):
        cluster.violated("corruption noticed", f"{name} ended with {failure!r}")


def _bound_s(machine: StateMachine) -> float:
    """A check that has just begun, the next one, and two walks."""
    rows = sum(machine.row_counts().values()) + machine.outcome_count
    slices = 2 * (len(machine.row_counts()) + machine.session_count)
    walk_s = (rows * (ROW_S + ROW_BYTES * BYTE_S) + slices * SLICE_S) / LOOP_PART
    return 2 * CHECK_S + corruption_check.RESULT_MIN_S + 3 * walk_s + SLACK_S


def _stray_row(machine: StateMachine, rng: random.Random, sessions: list[int]) -> None:
    damage(machine, "core", "settings", ("no-such-plugin", "key"), rng.randbytes(4))


def _undecided_outcome(machine: StateMachine, rng: random.Random, sessions: list[int]) -> None:
    """In one of these sessions, far above every number that one gives out: no command meets it.

    Just above the window is not far enough. The windows of the simulated world are small, so a
    busy session reaches the number before the damage is found; then the core answers a command
    with this outcome, and shows its clients a revision less than the others do.
    """
    known = machine._sessions.by_id
    session = known[rng.choice(sorted(known.keys() & set(sessions)))]
    session.done[session.floor + UNREACHED] = ABANDONED
