"""Storms of calls: whole nodes that call, and run what is called, in the simulated world.

    result = run_storm(7)                 # a raftkv.testing.scenario.Result
    result.check, result.message          # empty when nothing was violated

Every node of a `SimulatedCluster` runs the plugin with the same functions, registered as an
embedding program does it, and a state that dies with its process or stays on its disk. Meanwhile
the nemesis does what it does in every simulation (`raftkv/testing/nemesis.py`), callers call
(`storm_callers.py`), functions fail and hang, operators interfere (`storm_operators.py`). What a
seed means is in `storm_plan.py`, how the log is observed in `storm_log.py`, and all judging in
`storm_check.py` and `storm_runs.py`.

The end. When the world has healed and operators have mended what only they can mend, nothing that
is under way may stay so: all callers are answered, every node comes to the last id, alarms end,
the queue is empty. Then every node calls once more, and all goes well. At last all states must be
equal, and all effects there as often as the log says.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from raftkv.plugin import Host, MemberChange
from raftkv.testing.scenario import Result
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.world import NotReached
from raftkv_cluster_call import CallsApi
from raftkv_cluster_call.commands import (
    Advance,
    Behind,
    Commit,
    Failing,
    Force,
    Granted,
    Join,
    Leave,
    Queued,
    Rejoin,
    Reset,
    Skip,
    Sync,
    Trim,
    Withdraw,
)
from raftkv_cluster_call.invariants import violations

from .planted import planted
from .storm_callers import Callers
from .storm_check import STUCK, Step, follows
from .storm_log import Log, StormCalls
from .storm_operators import Operators
from .storm_plan import Plan, draw
from .storm_runs import Ending, Run, check_ending, check_run, check_runs, check_story
from .storm_works import EFFECTFUL, EFFECTS, Works, key_of, make_state

__all__ = ["Seat", "Storm", "run_storm"]

# Bounds after healing: answers to all that is under way; every node at the last id, nothing left
# (copies back off for up to 5 s, and operators come after some seconds); the last calls.
ANSWERS_S = 150.0
AGREE_S = 90.0
CALM_S = 60.0
# How often it is looked for callers without an answer; the plugin's invariants walk all tables.
LOOK_S = 0.5
# In so many lives a node knows the newer version of "new" at once; the others learn it in time.
NEW_SHARE = 0.5


class Seat:
    """One life of a node with its functions and its state. It ends with its process."""

    def __init__(self, storm: Storm, host: Host, api: CallsApi) -> None:
        self.host = host
        self.api = api
        self.boots = storm.world.host(host.name).boots
        loaded = storm.log.ledger.loaded
        self.state = make_state(
            storm.plan.memory, host, lambda as_of: loaded.add((host.name, as_of))
        )
        if self.state is not None:
            api.state(self.state)


class Storm:
    """One run: the cluster, what is known of its calls, and the verdicts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.marks: Counter[str] = Counter()
        self.log = Log(EFFECTFUL, self.violated, self._decided)
        self.works = Works(self)
        self._seats: dict[str, Seat] = {}
        self._rng = random.Random(f"{plan.seed}/calls storm")
        self._everybody_upgraded = False
        scenario = plan.scenario
        plugin = StormCalls(self.log, self._node_opened, plan.plugin_settings(), plan.options)
        self.cluster = SimulatedCluster(
            plan.seed,
            scenario.cores,
            scenario.replicants,
            plugins=[plugin],
            rate_per_s=scenario.rate_per_s,
            limits=scenario.limits,
            raft=scenario.raft,
            options=scenario.options,
            deliveries=False,
            members=scenario.members,
            early=scenario.early,
        )
        self.world = self.cluster.world
        self.callers = Callers(self)
        self.operators = Operators(self)

    # --- nodes ---

    def _node_opened(self, host: Host, api: CallsApi) -> None:
        """A node starts. What ran in its former process has died."""
        seat = self._seats[host.name] = Seat(self, host, api)
        self.works.node_died(host.name, seat.boots)
        new = self._everybody_upgraded or self._rng.random() < NEW_SHARE
        self.works.register(seat, new=new)
        if not new:
            host.spawn(self._upgrade(seat), "upgrade")

    async def _upgrade(self, seat: Seat) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 5.0))
        self.works.register_new(seat)

    def seat(self, name: str) -> Seat | None:
        """The node's present life, if it runs."""
        seat = self._seats.get(name)
        if seat is None or not self.cluster.is_up(name):
            return None
        # A process that has just been started has no node yet, and hence no seat.
        return seat if self.world.host(name).boots == seat.boots else None

    def all_seats(self) -> list[Seat]:
        """Those of all nodes in service."""
        return [seat for name in self.cluster.names if (seat := self.seat(name)) is not None]

    def any_seat(self, rng: random.Random) -> Seat | None:
        """One of them."""
        seats = self.all_seats()
        return rng.choice(seats) if seats else None

    # --- verdicts ---

    def violated(self, check: str, found: Sequence[str]) -> None:
        """End the run if anything was found."""
        if found:
            self.cluster.violated(f"calls: {check}", "; ".join(found[:5]))

    def began(self, run: Run, seat: Seat) -> None:
        """A function begins to run."""
        going_on = [each for each in self.works.of_process(run.node, run.boots) if not each.end]
        self.violated("runs are right", check_run(run, self.log.ledger, going_on))
        if run.kind == "replicate":
            self.marks["executed on a replica"] += 1
            self.marks["executed on a replicant"] += seat.host.role == "replicant"

    def _decided(self, step: Step) -> None:
        """The log did something new."""
        for mark in _marks_of(step):
            self.marks[mark] += 1

    # --- a whole run ---

    def run(self, seconds: float) -> None:
        """The storm, the healing, and the last checks. Raises SafetyViolation."""
        cluster, scenario = self.cluster, self.plan.scenario
        with cluster:
            self.world.spawn(self._look_around(), "looking around")
            self.callers.start()
            self.operators.start()
            cluster.storm(
                seconds,
                scenario.faults,
                interval_s=scenario.interval_s,
                duration_s=scenario.duration_s,
                down_max=scenario.down_max,
            )
            self.callers.stop()
            self.operators.stop()
            self._everybody_upgraded = True
            cluster.settle_members()
            with cluster.judging():
                self._finish()
            cluster.settle()
            with cluster.judging():
                self._conclude()

    async def _look_around(self) -> None:
        """Nobody waits too long, and the plugin's own invariants hold on every node."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.violated("nobody starves", self.callers.overdue())
            for seat in self.all_seats():
                self.marks["alarm seen"] += len(seat.api.alarms()) > 0
                found = violations(seat.host.view())
                self.violated("invariants", [f"{seat.host.name}: {each}" for each in found])

    # --- the end ---

    def _finish(self) -> None:
        """What is under way comes to an end; then everybody calls once more, in peace."""
        self._wait(lambda: not self.callers.under_way, ANSWERS_S, "answers to what was under way")
        settling = self.world.spawn(self.operators.settle(), "operators")
        self._wait(settling.done, AGREE_S, "an end of what operators mend")
        self._wait(self._agreed, AGREE_S, "every node at the last id, and nothing left")
        if self.plan.verbs:
            failing = self.world.spawn(self.operators.fix_failing(), "fix beside a failing node")
            self._wait(failing.done, AGREE_S, "a fix beside a node that fails")
            self._wait(self._agreed, AGREE_S, "every node at the last id, and nothing left")
        calm = self.world.spawn(self.callers.call_everywhere_once_more(), "calm")
        self._wait(calm.done, CALM_S, "the last calls")
        self._wait(self._agreed, AGREE_S, "every node at the last id, and nothing left")
        fixing = self.world.spawn(self._fix(), "fix")
        self._wait(fixing.done, AGREE_S, "the last fix")
        self._wait(self._agreed, AGREE_S, "every node at the last id, and nothing left")

    def _wait(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        try:
            self.world.wait(condition, timeout_s, what)
        except NotReached as late:
            under_way = [str(story) for story in self.callers.under_way]
            self.violated("an end of all that is under way", [str(late), *under_way, *self._left()])

    async def _fix(self) -> None:
        """With all cursors equal it changes nothing, and tells whether the states are, too."""
        seat = self.any_seat(self._rng)
        assert seat is not None
        report = await self.world.call(seat.host.name, seat.api.fix(timeout_s=CALM_S))
        self.marks[f"fix {report.verdict}"] += 1
        shelves = list(self._ending().shelves.values())
        equal = all(each == shelves[0] for each in shelves)
        if report.verdict != ("consistent" if equal else "differs"):
            text = f"{report} on {seat.host.name}; the states are {shelves}"
            self.violated("fix tells the truth", [text])

    def _agreed(self) -> bool:
        return len(self.all_seats()) == len(self.cluster.names) and not self._left()

    def _left(self) -> list[str]:
        return check_ending(self._ending(), self.log.ledger, self._keys())

    def _keys(self) -> dict[int, str]:
        found = {id_: key_of(each.function, each.args) for id_, each in self._calls()}
        return {id_: key for id_, key in found.items() if key is not None}

    def _calls(self) -> list[tuple[int, Any]]:
        entries = self.log.ledger.entries
        return [(id_, each) for id_, each in entries.items() if each.kind == "call"]

    def _conclude(self) -> None:
        """Everything has converged: judge what is left, and all that ever happened together."""
        ledger, works = self.log.ledger, self.works
        self.violated("the end", self._left())
        self.violated("runs fit the log", check_runs(works.runs, ledger))
        found: list[str] = []
        for story in self.callers.stories:
            found += check_story(story, works.by_number.get(story.number, []), ledger)
        self.violated("answers stay true", found)

    def _ending(self) -> Ending:
        ending = Ending()
        take_part = []
        for seat in self.all_seats():
            name, view = seat.host.name, seat.host.view()
            ending.cursors[name] = dict(view.table("cursors").scan())
            ending.waiting[name] = len(view.table("queue")) + len(view.table("due"))
            ending.last[name] = view.table("meta").get("last", 0)
            ending.alarms[name] = [f"{each.name} {each.id}" for each in seat.api.alarms()]
            ending.under_way[name] = len(seat.api.initiations) + len(seat.api.waiting)
            if seat.state is not None:
                ending.shelves[name] = dict(seat.state.items)
            if seat.host.role == "core" or view.settings["replicants_take_part"]:
                take_part.append(name)
            else:
                ending.shelves.pop(name, None)
            ending.effects = {
                _effect_of(key): row.version
                for key, row in seat.host.view("kv").table("keys").scan(prefix=EFFECTS)
            }
        ending.expected = tuple(take_part)
        return ending


def _effect_of(key: bytes) -> tuple[int, str]:
    id_, _, node = key.removeprefix(EFFECTS).decode().partition("@")
    return int(id_), node


def _marks_of(step: Step) -> list[str]:
    """What of all that is to be hit this step hit."""
    command, before, after = step.command, step.before, step.after
    if step.refusal:
        return ["commit refused"] if isinstance(command, Commit) else []
    marks = []
    for id_, record in after.records.items():
        old = before.records.get(id_)
        if old is not None and old.state != record.state:
            cause = record.cause.partition(":")[0]
            marks.append(f"{record.state} {cause}".rstrip())
    if after.granted and after.granted != before.granted:
        at_once = after.granted == step.serial
        marks.append("granted at once" if at_once else "granted from the queue")
    gone = before.queue.keys() - after.queue.keys() - {after.granted}
    if gone:
        withdrawn = isinstance(command, Withdraw)
        marks.append("withdrawn from the queue" if withdrawn else "dropped from the queue")
    marks += ["effect lost"] * len(after.lost.keys() - before.lost.keys())
    marks += ["effect lost acknowledged"] * len(before.lost.keys() - after.lost.keys())
    fell_out = [
        node
        for node, cursor in after.cursors.items()
        if cursor.state == "gap" and follows(before.cursors.get(node))
    ]
    match command:
        case MemberChange() if before.cursors.keys() - after.cursors.keys():
            marks.append("a cursor went with its member")
        case Commit() | Advance() if command.effect is not None:
            marks.append("effect in the keyspace")
        case Failing():
            marks.append("stuck reported" if command.attempts >= STUCK else "failure reported")
        case Skip():
            marks.append("skipped")
        case Force():
            marks.append("forced")
        case Reset():
            marks.append("reset")
        case Join() if step.result.state == "gap":
            marks.append("state lost")
        case Join():
            at_once = step.result.state == "following"
            marks.append("joined at once" if at_once else "joined with a copy")
        case Sync():
            marks.append("synced")
        case Trim():
            marks += ["trimmed"] * (before.records.keys() > after.records.keys())
            marks += ["gap by trimming"] * len(fell_out)
        case Leave() if step.result.found:
            marks.append("left by force" if command.forced else "left")
        case Rejoin() if step.result.found:
            marks.append("rejoined")
    match step.result:
        case Queued():
            marks.append("queued")
        case Behind():
            marks.append("behind")
        case Granted():
            pass
    return marks


def run_storm(
    seed: int,
    *,
    seconds: float = 20.0,
    bug: str | None = None,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's storm of so many seconds, healing and all checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one of
    planted.py's; BugFailed if its own code fails. `prepare` is given the cluster before it starts.
    """
    result, begun = Result(seed), perf_counter()
    storm = Storm(draw(seed, seconds))
    prepare(storm.cluster)
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        try:
            storm.run(seconds)
            result.fingerprint = storm.cluster.fingerprint()
        except Exception as error:
            result.ended_by(error)
    result.simulated_s = storm.world.loop.now
    result.operations = len(storm.callers.stories)
    result.marks = +storm.marks
    if storm.cluster.nemesis is not None:
        result.faults = Counter(storm.cluster.nemesis.counts)
    result.real_s = perf_counter() - begun
    return result
