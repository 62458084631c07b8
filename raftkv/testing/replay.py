"""A run made for the eye: one compact line per event, with the state of every node beside it.

    time s    core1      core2      core3        who    event
    4.180233  · 2 118    ▲ 2 118    ✗            core3  power cut, silent

It only listens: a run that is shown takes the same steps as one that is not, and has the same
fingerprint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from raftkv.raft.engine import ROLE_NAMES, Engine
from raftkv.testing.current import CURRENT, running_host
from raftkv.testing.patching import around
from raftkv.testing.simulated import SimulatedCluster

__all__ = ["LEGEND", "Replay"]

LEGEND = (
    "▲ leader  △ candidate  · follower  ◦ replicant  ○ starting  ‖ paused  ✗ down;"
    "  then term and commit index"
)
GLYPHS = {"leader": "▲", "candidate": "△", "follower": "·", "replicant": "◦"}
# Happen many times a second, and say little one by one.
QUIET_MARKS = frozenset(["command answered from the table", "log compacted", "compare failed"])
STATE_WIDTH = 12


class Replay:
    """Shows one cluster's run while entered; `show` is given every line."""

    def __init__(self, cluster: SimulatedCluster, show: Callable[[str], object]) -> None:
        self._cluster = cluster
        self._show = show
        self._columns: list[str] = []
        self._roles: dict[str, tuple[int, int]] = {}
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        cluster = self._cluster
        self._show(LEGEND)
        # A column for everybody who may ever be a member.
        others = [name for name in cluster.names if name not in cluster.core_names]
        self._columns = [*cluster.core_names, *others]
        states = "".join(name.ljust(STATE_WIDTH) for name in self._columns)
        self._show(f"{'time s':>10}  {states}{'who':<12}event")
        cluster.world.trace.echo = self._traced
        hit = cluster.marks.hit

        def shown(name: str, times: int = 1) -> None:
            hit(name, times)
            if name not in QUIET_MARKS:
                self._line(self._who(), name)

        cluster.marks.hit = shown  # type: ignore[method-assign]
        self._patches.callback(lambda: delattr(cluster.marks, "hit"))
        self._patches.enter_context(around(Engine, "_onTick", self._wrap_tick))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.world.trace.echo = None
        self._patches.close()

    def _who(self) -> str:
        return "*" if CURRENT.get() is None else running_host()

    def _traced(self, line: str) -> None:
        _, host, event = line.split(" ", 2)
        self._line(host, event)

    def _wrap_tick(self, original: Callable[..., None]) -> Callable[..., None]:
        def tick(engine: Engine, *arguments: Any) -> None:
            original(engine, *arguments)
            name = running_host()
            now = (engine.role, engine.term)
            before = self._roles.get(name)
            if now != before:
                self._roles[name] = now
                self._line(name, f"{ROLE_NAMES[engine.role]} in term {engine.term}")

        return tick

    def _line(self, who: str, event: str) -> None:
        cluster = self._cluster
        states = "".join(self._state(name).ljust(STATE_WIDTH) for name in self._columns)
        self._show(f"{cluster.world.loop.now:10.6f}  {states}{who:<12}{event}")

    def _state(self, name: str) -> str:
        # Not `host(name)`, which would make it.
        host = self._cluster.world.hosts.get(name)
        if host is None:
            return ""
        if not host.is_up:
            return "✗"
        node = self._cluster.nodes.get(name)
        part = None if node is None else node._part
        if part is None:
            return "○"
        glyph = "‖" if host.is_paused else GLYPHS[part.role_name]
        return f"{glyph} {part.term} {part.commit}"
