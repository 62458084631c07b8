"""The leader's failure detector: proposes `NodeDown` for members that nobody hears (rule 30).

Cores are heard by their answers to append messages. Replicants are heard through the cores that
feed them: every core tells the leader their names. After any change of leader everybody gets a
full grace period, and so do the replicants of a core that has fallen silent, else one dead core
would look like many dead replicants. A partition is no death until the period has passed, and then
the log says so once, for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .raft import wire
from .raft.engine import Engine
from .raft.transport import Link
from .runtime import Timer
from .state import Member

__all__ = ["Detector"]

# How often a core reports the replicants it feeds, and the leader looks for silent members.
PERIOD_S = 1.0


class Detector:
    """Runs on every core; acts where the leader is."""

    def __init__(
        self,
        engine: Engine,
        members: Callable[[], Mapping[str, Member]],
        fed: Callable[[], Sequence[str]],
        declare_down: Callable[[Member], None],
    ) -> None:
        self._engine = engine
        self._members = members
        self._fed = fed
        self._declare_down = declare_down
        self._heard: dict[str, float] = {}
        # Raft id of a core -> the replicants that it feeds, as it said last.
        self._fed_by: dict[str, tuple[str, ...]] = {}
        self._led_since: float | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._engine.runtime.call_later(PERIOD_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_liveness(self, link: Link, message: wire.Liveness) -> None:
        """Only a core's word counts, and only about nodes that are members."""
        if link.peer_id not in self._engine.configuration.members:
            return
        now = self._engine.runtime.monotonic()
        members = self._members()
        names = tuple(name for name in message.names if name in members)
        self._fed_by[link.peer_id] = names
        for name in (link.peer_name, *names):
            self._heard[name] = now

    def _look(self) -> None:
        engine = self._engine
        if engine.stopped:
            return
        self._timer = engine.runtime.call_later(PERIOD_S, self._look)
        now = engine.runtime.monotonic()
        fed = list(self._fed())
        if engine.leading is None:
            self._led_since = None
            leader = engine.links.get(engine.leader) if engine.leader is not None else None
            if leader is not None:
                leader.send(wire.Liveness(fed))
            return
        if self._led_since is None:
            self._led_since = now
            self._heard.clear()
            self._fed_by.clear()
        for name in (*fed, *self._orphans(now)):
            self._heard[name] = now
        self._judge(now)

    def _orphans(self, now: float) -> list[str]:
        """The replicants of cores that have just fallen silent: they need time to move."""
        engine = self._engine
        assert engine.leading is not None
        alive = engine.leading.alive(now)
        silent = [core for core in self._fed_by if core not in alive]
        return [name for core in silent for name in self._fed_by.pop(core)]

    def _judge(self, now: float) -> None:
        engine = self._engine
        assert engine.leading is not None
        assert self._led_since is not None
        limit_s = engine.times.node_down_ms / 1000
        for member in list(self._members().values()):
            if not member.up or member.raft_id == engine.me:
                continue
            heard = max(
                self._led_since,
                self._heard.get(member.name, 0.0),
                engine.leading.heard_at(member.raft_id) or 0.0,
            )
            if now - heard > limit_s:
                self._declare_down(member)
