"""The driver of the failure detector: timers and messages around `failure_detector.py` (rule 30).

Every core runs one. Where the engine does not lead, it reports to the leader once in `PERIOD_S`.
Where it leads, it looks every `LOOK_S` and hands verdicts on. A look whose timer is late waits
until the sockets were read: what others sent while this process stood still must count first.

Cores are heard by their answers to append messages. Replicants are heard through the cores that
they follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .failure_detector import FailureDetector, Observed, Suspect, Verdict
from .raft import wire
from .raft.engine import Engine
from .raft.leading import Leading
from .raft.transport import Link
from .runtime import Timer
from .state import Member

__all__ = ["LOOK_S", "PERIOD_S", "Detector"]

# How often a core reports to the leader the nodes that it has heard.
PERIOD_S = 1.0
# How often the leader judges. A shorter pause finds a death earlier, by at most as much.
LOOK_S = 0.25
# A timer that fires later than this was held up: the sockets are read before anything is judged.
LATE_TIMER_S = 0.05
# A report without a number does not tell when it was made. No healthy network delays one longer.
REPORT_DELAY_S = 0.2


class Detector:
    """Runs on every core; acts where the leader is."""

    def __init__(
        self,
        engine: Engine,
        members: Callable[[], Mapping[str, Member]],
        fed: Callable[[], Sequence[str]],
        declare_down: Callable[[Verdict, Callable[[], bool]], None],
    ) -> None:
        """`declare_down(verdict, valid)` proposes the verdict; only as long as `valid()`."""
        self._engine = engine
        self._members = members
        self._fed = fed
        self._declare_down = declare_down
        self._decider = FailureDetector(engine.times.node_down_ms / 1000)
        self._leading: Leading | None = None
        self._due = 0.0
        self._reported_at: float | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        self._reported_at = self._engine.runtime.monotonic()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_liveness(self, link: Link, message: wire.Liveness) -> None:
        """Only a core's word counts, and only about nodes that are members."""
        if link.peer_id not in self._engine.configuration.members:
            return
        decider = self._decider
        decider.step(self._engine.runtime.monotonic())
        members = self._members()
        names = [name for name in message.names if name in members]
        decider.report(link.peer_id, names, decider.clock - REPORT_DELAY_S)

    def _arm(self) -> None:
        self._due = self._engine.runtime.monotonic() + LOOK_S
        self._timer = self._engine.runtime.call_later(LOOK_S, self._alarm)

    def _alarm(self) -> None:
        runtime = self._engine.runtime
        if runtime.monotonic() - self._due > LATE_TIMER_S:
            # What waits in the sockets is read in the turns before this.
            self._timer = runtime.call_later(0.001, self._look)
        else:
            self._look()

    def _look(self) -> None:
        engine = self._engine
        if engine.stopped:
            return
        self._arm()
        now = engine.runtime.monotonic()
        if engine.leading is None:
            self._leading = None
            self._decider.step(now)
            self._report(now)
            return
        if engine.leading is not self._leading:
            self._leading = engine.leading
            self._decider.begin(now)
        self._judge(engine.leading, now)

    def _report(self, now: float) -> None:
        """Report to the leader the nodes that this core has heard, once in a period."""
        engine = self._engine
        leader = engine.links.get(engine.leader) if engine.leader is not None else None
        assert self._reported_at is not None
        # Looks do not come at exact times: half of one early is on time.
        if leader is not None and now - self._reported_at >= PERIOD_S - LOOK_S / 2:
            self._reported_at = now
            leader.send(wire.Liveness(list(self._fed())))

    def _judge(self, leading: Leading, now: float) -> None:
        """Look, and propose what was decided unless this leadership is about to end."""
        for verdict in self._decider.look(now, self._observed(leading, now)):
            if self._in_force(leading):
                self._declare_down(verdict, lambda: self._in_force(leading))

    def _in_force(self, leading: Leading) -> bool:
        """Whether a verdict that was reached under `leading` may still be appended."""
        return self._engine.leading is leading and not leading.handing_over

    def _observed(self, leading: Leading, now: float) -> Observed:
        engine = self._engine
        heard = dict.fromkeys(self._fed(), 0.0)
        suspects = []
        for member in self._members().values():
            at = leading.heard_at(member.raft_id)
            if at is not None:
                heard[member.name] = min(now - at, heard.get(member.name, now - at))
            if member.up:
                core = member.role == "core" or member.raft_id in engine.configuration.members
                suspects.append(Suspect(member.name, member.incarnation, member.raft_id, core))
        return Observed(
            engine.term,
            engine.me,
            engine.configuration.voters,
            suspects,
            heard,
            leading.alive(now),
        )
