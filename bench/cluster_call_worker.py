"""A node with the plugin `calls` and the callers of a load (`bench.cluster_calls`) beside it.

It serves the coordinator as `bench.worker.NodeWorker` does for the registry. The functions are
registered as soon as there is a node, by each of its processes: one that came back executes what it
missed as soon as it has a leader, whoever else may wait for it to be ready.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bench.clock import OsClock
from bench.cluster_calls import Callers, CallSeat, ClusterCallLoad, effect_key, register
from bench.control import (
    AwaitCallers,
    Done,
    Effects,
    Flush,
    Lag,
    Ran,
    Request,
    Setup,
    State,
    Status,
    TakePart,
)
from bench.executions import Executions
from bench.messages import MessageCount
from bench.roles import RoleWatch
from bench.schema import Row, RowWriter
from raftkv import Node
from raftkv.state import SetSetting
from raftkv_cluster_call import Calls

__all__ = ["ClusterCallWorker"]

READY_TIMEOUT_S = 50.0
SETTING_TIMEOUT_S = 15.0


class ClusterCallWorker:
    """The requests of the coordinator that concern one node with cluster calls."""

    def __init__(self, setup: Setup, node: Node, writer: RowWriter) -> None:
        assert setup.node is not None
        self._setup = setup
        self._node = node
        self._writer = writer
        self._lags = False
        self._role = RoleWatch(node)
        self._messages = MessageCount()
        self._messages.install()
        self._api: Any = node.plugin(Calls)
        self._executions = Executions(
            Path(setup.node.dir).parent, setup.run, setup.name, self._current_role
        )
        self._clock = OsClock()
        register(self._api, setup.name, self._executions, self._clock)
        seat = CallSeat(setup.run, setup.layout, setup.name, self._current_role)
        self._callers = Callers(self._api, seat, self._clock, writer.add)

    async def start(self) -> None:
        """Wait for the node to take part."""
        await self._node.wait_ready(READY_TIMEOUT_S)
        self._role.start()

    def _current_role(self) -> str:
        return "lagging" if self._lags else self._role.current

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case Status():
                return self._state()
            case ClusterCallLoad():
                self._callers.start(request)
            case AwaitCallers():
                tally = await self._callers.over()
                return Ran(outcomes=tally.outcomes, buckets=tally.buckets, elapsed_s=0.0)
            case TakePart(on):
                command = SetSetting.of("calls", "replicants_take_part", on)
                await self._node.propose("core", command, timeout_s=SETTING_TIMEOUT_S)
            case Effects():
                await self._effects(request)
            case Lag(seconds):
                self._lags = seconds > 0
                self._node.inject_lag(seconds)
            case Flush():
                await asyncio.to_thread(self._writer.flush)
            case _:
                raise ValueError(f"a node with cluster calls cannot do {type(request).__name__}")
        return Done()

    def _state(self) -> State:
        status, calls = self._node.status(), self._api.status(limit=1)
        tally = self._callers.tally
        return State(
            role=status.role,
            leader=status.leader,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            endpoint=status.endpoint,
            outcomes=tally.outcomes,
            buckets=tally.buckets,
            commands_applied=status.commands_applied,
            messages=self._messages.messages,
            sent_bytes=self._messages.bytes,
            last_call=calls.last,
            cursors={node.name: node.cursor for node in calls.nodes if node.state == "following"},
        )

    async def _effects(self, request: Effects) -> None:
        """A row for each node that takes part: how often its key was put in this load."""
        load, setup = request.load, self._setup
        for node in request.nodes:
            start_us, began = self._clock.wall_us(), self._clock.now()
            found = await self._node.kv.get(effect_key(load.number, node))
            duration_us = round((self._clock.now() - began) * 1e6)
            versions = 0 if found is None else found.version
            self._writer.add(
                Row(
                    setup.run, setup.layout, load.scenario, "audit", "none", setup.name,
                    self._current_role(), "effects", node, 1, start_us, duration_us, "ok",
                    index=versions, load=load.load,
                )
            )  # fmt: skip

    def close(self) -> None:
        # Not the file of executions: the node's own worker ends later than this one.
        self._messages.remove()
