"""A node with the plugin `limbo` and the writers of a load (`bench.limbo`) beside it.

It serves the coordinator as `bench.worker.NodeWorker` does for the registry. Whichever node leads
is made the owner, and has the writers; every node is looked at when a load is over.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench.clock import OsClock
from bench.control import (
    AskConfirmed,
    AwaitCallers,
    CheckRows,
    Confirmed,
    Done,
    DropRows,
    Flush,
    OwnLimbo,
    Ran,
    Request,
    Setup,
    State,
    Status,
)
from bench.limbo import LimboLoad, LimboSeat, LimboWriters, key_of, space_of, value_of
from bench.messages import MessageCount
from bench.roles import RoleWatch
from bench.schema import Row, RowWriter
from raftkv import Node
from raftkv.state import SetSetting
from raftkv_limbo import Limbo, Write

__all__ = ["SETTINGS", "LimboWorker", "count_rows"]

READY_TIMEOUT_S = 50.0
OWN_TIMEOUT_S = 30.0

SETTINGS: Final = {
    "majority": {"quorum_over": "cores", "quorum": "N / 2 + 1"},
    "cores": {"quorum_over": "cores", "quorum": "N"},
    "members": {"quorum_over": "members", "quorum": "N"},
}
"""The words of LIMBO_QUORUMS as replicated settings of the plugin."""


class LimboWorker:
    """The requests of the coordinator that concern one node with the limbo."""

    def __init__(self, setup: Setup, node: Node, writer: RowWriter) -> None:
        self._setup = setup
        self._node = node
        self._writer = writer
        self._role = RoleWatch(node)
        self._messages = MessageCount()
        self._messages.install()
        self._api: Any = node.plugin(Limbo)
        self._clock = OsClock()
        seat = LimboSeat(setup.run, setup.layout, setup.name, self._current_role)
        self._writers = LimboWriters(self._api, Write, seat, self._clock, writer.add)

    async def start(self) -> None:
        """Wait for the node to take part."""
        await self._node.wait_ready(READY_TIMEOUT_S)
        self._role.start()

    def _current_role(self) -> str:
        return self._role.current

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case Status():
                return self._state()
            case OwnLimbo():
                await self._own(request)
            case LimboLoad():
                self._writers.start(request)
            case AwaitCallers():
                tally = await self._writers.over()
                return Ran(outcomes=tally.outcomes, buckets=tally.buckets, elapsed_s=0.0)
            case AskConfirmed():
                return Confirmed(tuple(self._writers.confirmed))
            case CheckRows():
                await self._check(request)
            case DropRows(number):
                await self._api.drop_space(space_of(number))
            case Flush():
                await asyncio.to_thread(self._writer.flush)
            case _:
                raise ValueError(f"a node with the limbo cannot do {type(request).__name__}")
        return Done()

    def _state(self) -> State:
        status, view = self._node.status(), self._node.machine.view("limbo")
        tally = self._writers.tally
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
            acks=self._api.counters["acks"],
            pending=len(view.table("pending")),
            rows_dropped=len(view.table("dropped")),
        )

    async def _own(self, request: OwnLimbo) -> None:
        for name, value in SETTINGS[request.quorum].items():
            command = SetSetting.of("limbo", name, value)
            await self._node.propose("core", command, timeout_s=OWN_TIMEOUT_S)
        await self._api.create_space(space_of(request.number), sync=True)
        await self._api.promote(timeout_s=OWN_TIMEOUT_S)

    async def _check(self, request: CheckRows) -> None:
        """Two rows: how many of the confirmed transactions are here, and how many others."""
        load, setup = request.load, self._setup
        start_us, began = self._clock.wall_us(), self._clock.now()
        rows = await self._api.range(space_of(load.number), view="confirmed")
        found, others = count_rows(request, dict(rows))
        duration_us = round((self._clock.now() - began) * 1e6)
        for op, count in (("rows", found), ("strays", others)):
            self._writer.add(
                Row(
                    setup.run, setup.layout, load.scenario, "audit", "none", setup.name,
                    self._current_role(), op, setup.name, 1, start_us, duration_us, "ok",
                    index=count, load=load.load,
                )
            )  # fmt: skip

    def close(self) -> None:
        self._messages.remove()


def count_rows(asked: CheckRows, rows: dict[bytes, Any]) -> tuple[int, int]:
    """Of the confirmed transactions how many are among `rows` with value and position; and how many
    rows belong to none of them."""
    found, known = 0, set()
    for each in asked.confirmed:
        key = key_of(each.writer, each.turn)
        known.add(key)
        row = rows.get(key)
        value = value_of(each.writer, each.turn, asked.load.value_bytes)
        found += row is not None and (row.value, row.position) == (value, each.position)
    return found, len(rows.keys() - known)
