"""The driver of the failure detector: timers and messages around `failure_detector.py` (rule 30).

Every core runs one. Where the engine does not lead, it reports to the leader once in `PERIOD_S`.
Where it leads, it looks every `LOOK_S` and hands verdicts on. A look whose timer is late waits
until the sockets were read: what others sent while this process stood still must count first.

In core format 1 cores are heard by their answers to append messages, replicants by the streams on
which they follow a core. From core format 2 on every node sends a `Presence` on each of its
streams once in `PERIOD_S`. The leader's are numbered and are answered at once with a report, so
that it knows when each report was made at the earliest. A leader that notices that a deadline has
passed begins such a period at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from .failure_detector import FailureDetector, Observed, Suspect, Verdict
from .presence import HEARD_S, Identity, Presences, Stream
from .raft import wire
from .raft.engine import Engine
from .raft.leading import Leading
from .raft.membership import name_of
from .raft.transport import Link
from .runtime import Timer
from .state import Member

__all__ = ["FORMAT_PRESENCE", "LOOK_S", "PERIOD_S", "Detector"]

# How often a core reports to the leader the nodes that it has heard.
PERIOD_S = 1.0
# How often the leader judges. A shorter pause finds a death earlier, by at most as much.
LOOK_S = 0.25
# A timer that fires later than this was held up: the sockets are read before anything is judged.
LATE_TIMER_S = 0.05
# A report without a number does not tell when it was made. No healthy network delays one longer.
REPORT_DELAY_S = 0.2
# Periods of the leader whose beginning is remembered. A report about an older one is worthless.
ROUNDS_KEPT = 16
# A shorter `raft.node_down_ms` counts as this: two report periods and two looks. Otherwise one late
# message would be a death.
NODE_DOWN_MIN_S = 2.5
# The core format in which nodes send `Presence`.
FORMAT_PRESENCE = 2


class Detector:
    """Runs on every core; acts where the leader is."""

    def __init__(
        self,
        engine: Engine,
        members: Callable[[], Mapping[str, Member]],
        fed: Callable[[], Sequence[Stream]],
        declare_down: Callable[[Verdict, Callable[[], bool]], None],
        session_of: Callable[[str, int], tuple[int, int] | None] = lambda name, nonce: None,
    ) -> None:
        """`fed` gives the streams to replicants.

        `declare_down(verdict, valid)` proposes the verdict; only as long as `valid()`.
        """
        self._engine = engine
        self._members = members
        self._fed = fed
        self._declare_down = declare_down
        node_down_s = max(engine.times.node_down_ms / 1000, NODE_DOWN_MIN_S)
        self._decider = FailureDetector(node_down_s)
        self._presences = Presences(session_of)
        # Set by the node: what it is now.
        self.identity: Callable[[], Identity] = lambda: (0, 0)
        self._leading: Leading | None = None
        self._isolated: list[str] = []
        # This leader's latest periods: (number, its beginning on the decider's clock).
        self._rounds: deque[tuple[int, float]] = deque(maxlen=ROUNDS_KEPT)
        self._round = 0
        self._due = 0.0
        self._reported_at: float | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        self._reported_at = self._engine.runtime.monotonic()
        self._arm()

    @property
    def isolated(self) -> list[str]:
        """On a leader: the cores that at most half of the others have heard lately."""
        return [] if self._engine.leading is None else self._isolated

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def spoke(self, link: Link) -> bool:
        """Whether a `Presence` has come on this very stream."""
        return self._presences.spoke(link)

    def on_liveness(self, link: Link, message: wire.Liveness) -> None:
        """Only a core's word counts, and only about nodes that are members."""
        if link.peer_id not in self._engine.configuration.members:
            return
        decider = self._decider
        decider.step(self._engine.runtime.monotonic())
        members = self._members()
        names = [name for name in message.names if name in members]
        if self._speaks_presence:
            if self._presences.spoke(link):
                return
            # A core that has not applied the new format: it cannot tell which cores it has heard.
            names += [name for name, member in members.items() if member.role == "core"]
        decider.report(link.peer_id, names, decider.clock - REPORT_DELAY_S)

    def on_presence(self, link: Link, message: wire.Presence) -> None:
        """A node is there; if it is a core, it also reports, or wants a report."""
        engine = self._engine
        now = engine.runtime.monotonic()
        self._presences.arrived(link, message, now)
        if engine.leading is not None and engine.leading is self._leading:
            member = self._members().get(link.peer_name)
            identity = (message.incarnation, message.nonce)
            if member is not None and self._presences.is_current(member, *identity):
                self._decider.heard(member.name, member.incarnation, now)
        if link.purpose != "raft" or link.peer_id not in engine.configuration.members:
            return
        if engine.leading is not None:
            self._take_report(link, message, now)
        elif message.term and message.term >= engine.term:
            # Only the leader of a term sends it. Where the disk hangs, the own term stays behind.
            self._send_report(link, message, now)

    def _take_report(self, link: Link, message: wire.Presence, now: float) -> None:
        engine, decider, presences = self._engine, self._decider, self._presences
        decider.step(now)
        began = dict(self._rounds).get(message.round)
        if message.term != engine.term or began is None or engine.leading is not self._leading:
            return
        members = self._members()
        current = [
            name
            for name, incarnation, nonce in message.heard
            if name in members and presences.is_current(members[name], incarnation, nonce)
        ]
        decider.report(link.peer_id, current, began)

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
        if self._speaks_presence:
            self._presences.update(self._streams(), now)
        if engine.leading is None:
            self._leading = None
            self._decider.step(now)
        elif engine.leading is not self._leading:
            self._leading = engine.leading
            self._rounds.clear()
            self._decider.begin(now)
        assert self._reported_at is not None
        # Looks do not come at exact times: half of one early is on time.
        if now - self._reported_at >= PERIOD_S - LOOK_S / 2:
            self._reported_at = now
            self._report(now)
        if engine.leading is not None:
            self._judge(engine.leading, now)

    @property
    def _speaks_presence(self) -> bool:
        return self._engine.application.core_format >= FORMAT_PRESENCE

    def _streams(self) -> Iterator[Stream]:
        """One for each name: of two links, that of the member."""
        links: dict[str, Link] = {}
        members = self._engine.configuration.members
        for raft_id, link in self._engine.links.items():
            if link.peer_name not in links or raft_id in members:
                links[link.peer_name] = link
        for name, link in links.items():
            yield Stream(name, link)
        yield from self._fed()

    def _report(self, now: float) -> None:
        """Once in a period: be present on all streams, and tell the leader what was heard."""
        engine = self._engine
        leader = None if engine.leader is None else engine.links.get(engine.leader)
        if leader is not None and not (self._speaks_presence and self._presences.spoke(leader)):
            leader.send(wire.Liveness(sorted(stream.name for stream in self._fed())))
        if self._speaks_presence:
            self._be_present(leader)

    def _be_present(self, leader: Link | None) -> None:
        """A `Presence` on each consensus link. That of a leader begins a period with a number."""
        engine, term = self._engine, 0
        if engine.leading is not None:
            term, self._round = engine.term, self._round + 1
            self._rounds.append((self._round, self._decider.clock))
        presence = wire.Presence(*self.identity(), term, self._round if term else 0)
        for link in list(engine.links.values()):
            # The leader is sent a report at each of its own, which is once in a period.
            if link is not leader or not self._presences.spoke(link):
                link.send(presence)

    def _send_report(self, leader: Link, asked: wire.Presence, now: float) -> None:
        if self._speaks_presence:
            self._presences.update(self._streams(), now)
            heard = self._presences.report(self._members(), now)
            leader.send(wire.Presence(*self.identity(), asked.term, asked.round, heard))

    def _judge(self, leading: Leading, now: float) -> None:
        """Look, and propose what was decided unless this leadership is about to end."""
        observed = self._observed(leading, now)
        verdicts = self._decider.look(now, observed)
        began = self._rounds[-1][1] if self._rounds else 0.0
        if self._speaks_presence and self._decider.noticed_at > began:
            # Only reports made from now on count: they are asked for at once.
            self._reported_at = now
            self._be_present(None)
        self._isolated = self._decider.isolated(observed) if self._speaks_presence else []
        for verdict in verdicts:
            if self._in_force(leading):
                self._declare_down(verdict, lambda: self._in_force(leading))

    def _in_force(self, leading: Leading) -> bool:
        """Whether a verdict that was reached under `leading` may still be appended."""
        return self._engine.leading is leading and not leading.handing_over

    def _observed(self, leading: Leading, now: float) -> Observed:
        engine, members = self._engine, self._members()
        heard = self._heard(members, leading, now)
        suspects = [
            Suspect(
                member.name,
                member.incarnation,
                member.raft_id,
                member.role == "core",
            )
            for member in members.values()
            if member.up
        ]
        return Observed(
            engine.term,
            engine.me,
            engine.configuration.voters,
            suspects,
            heard,
            self._not_silent(leading, heard, now),
        )

    def _not_silent(self, leading: Leading, heard: Mapping[str, float], now: float) -> set[str]:
        """The raft ids of the members that have shown life lately, this one included."""
        found = set(leading.alive(now))
        if self._speaks_presence:
            # One whose disk hangs acknowledges nothing, and what it reports is true.
            voters = self._engine.configuration.voters
            found.update(v for v in voters if heard.get(name_of(v), HEARD_S) < HEARD_S)
        return found

    def _heard(
        self, members: Mapping[str, Member], leading: Leading, now: float
    ) -> dict[str, float]:
        """Seconds since this leader has heard each member."""
        speaks = self._speaks_presence
        if speaks:
            heard = dict(self._presences.heard(members, now))
        else:
            heard = {stream.name: 0.0 for stream in self._fed()}
        for member in members.values():
            link = self._engine.links.get(member.raft_id)
            at = leading.heard_at(member.raft_id)
            spoke = speaks and link is not None and self._presences.spoke(link)
            if at is not None and not spoke:
                age_s = now - at
                known_s = age_s if speaks else heard.get(member.name, age_s)
                heard[member.name] = min(age_s, known_s)
        return heard
