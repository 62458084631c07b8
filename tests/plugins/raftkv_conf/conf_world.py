"""A simulated cluster whose nodes have the same handlers, and a record of what each brought about.

    with ConfWorld(seed=1) as world:
        world.set("core1", "mail.port", 587)
        assert world.conf("core2").get("mail.port") == 587

Consensus, disks and network are those of `raftkv.testing`: the real nodes in virtual time. What a
handler has brought about lies outside the nodes, in a `Room`, and outlives their processes, but not
a `Room.forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from raftkv.plugin import Host
from raftkv.testing.simulated import SimulatedCluster
from raftkv_cluster_call import Calls, CallsApi
from raftkv_conf import Conf, ConfApi

__all__ = ["Broken", "ConfWorld", "Room"]

T = TypeVar("T")


class Broken(Exception):
    """What a handler raises where the test says so."""


class Room:
    """What stands outside one node."""

    def __init__(self) -> None:
        #: Every value that was brought about, in order.
        self.brought: list[tuple[str, Any]] = []
        #: What the callback of `on_change` was told.
        self.told: list[tuple[str, Any]] = []
        self.broken: set[str] = set()

    def apply(self, path: str) -> Callable[[Any], None]:
        def bring(value: Any) -> None:
            if path in self.broken:
                raise Broken(f"the value was {value!r}")
            self.brought.append((path, value))

        return bring

    def last(self, path: str) -> Any:
        return next((value for at, value in reversed(self.brought) if at == path), None)


class RoomConf(Conf):
    """The plugin, with the test's handlers on every node."""

    def __init__(self, rooms: dict[str, Room]) -> None:
        self._rooms = rooms

    def open(self, host: Host) -> ConfApi:
        conf = super().open(host)
        room = self._rooms.setdefault(host.name, Room())
        conf.handler(
            "mail.port",
            int,
            default=25,
            validate=lambda port: None if 0 < port < 65_536 else "must be 1 to 65535",
            apply=room.apply("mail.port"),
            doc="Where mail goes.",
        )

        async def slowly(value: Any) -> None:
            room.apply("mail.host")(value)

        conf.handler("mail.host", str, default="localhost", apply=slowly)
        conf.handler("mail.password", str, apply=room.apply("mail.password"), secret=True)
        conf.handler("mail.note", str)
        conf.on_change(lambda path, value: room.told.append((path, value)))
        return conf


class ConfWorld(SimulatedCluster):
    """See the module's text. `local`: node -> its options' local values."""

    def __init__(
        self,
        seed: int = 1,
        cores: int = 3,
        replicants: int = 0,
        local: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.rooms: dict[str, Room] = {}
        plugins = [Calls(), RoomConf(self.rooms)]
        super().__init__(seed, cores, replicants, plugins=plugins, rate_per_s=0.1)
        for name, values in (local or {}).items():
            options = {"conf": {"local": dict(values)}}
            self.configs[name] = msgspec.structs.replace(self.configs[name], options=options)

    def __enter__(self) -> ConfWorld:
        super().__enter__()
        self.following(self.cores)
        return self

    # -- doing

    def conf(self, name: str) -> ConfApi:
        return self.nodes[name].plugin(Conf)

    def calls(self, name: str) -> CallsApi:
        return self.nodes[name].plugin(Calls)

    def do(self, name: str, coroutine: Coroutine[Any, Any, T], timeout_s: float = 150.0) -> T:
        """Run this on the node, and wait for what comes out."""
        call = self.world.call(name, coroutine)
        self.world.wait(call.done, timeout_s, "an answer")
        return call.result()

    def set(self, name: str, path: str, value: Any, **options: Any) -> Any:
        return self.do(name, self.conf(name).set(path, value, **options))

    def get(self, path: str) -> dict[str, Any]:
        """The effective value on every node that runs."""
        return {name: self.conf(name).get(path) for name in self.names if self.is_up(name)}

    def kill(self, name: str, *, power_cut: bool = True) -> None:
        self.world.crash(name, power_cut=power_cut)
        self.nodes.pop(name, None)

    def start_again(self, *names: str) -> None:
        for name in names:
            self.start(name)
        self.until(lambda: all(self.is_up(n) and self.nodes[n].session for n in names))

    # -- looking

    def row(self, name: str) -> Any:
        """The node's cursor, by the copy of some node that runs."""
        for each in sorted(self.nodes):
            if self.is_up(each):
                return self.nodes[each].machine.view("calls").table("cursors").get(name)
        return None

    def record(self, id: int, at: str | None = None) -> Any:
        """The record of a call, by the copy of this node, or of some node that runs."""
        name = next(each for each in sorted(self.nodes) if self.is_up(each)) if at is None else at
        return self.nodes[name].machine.view("calls").table("records").get(id)

    def state(self, name: str) -> str:
        row = self.row(name)
        return "" if row is None else str(row.state)

    def following(self, names: list[str] | None = None) -> None:
        wanted = self.names if names is None else names
        self.until(lambda: all(self.state(name) == "following" for name in wanted))

    def reached(self, id: int, *names: str) -> None:
        """Wait until these nodes (all) have executed the call, as each of them sees it."""

        def there(name: str) -> bool:
            if not self.is_up(name):
                return False
            row = self.nodes[name].machine.view("calls").table("cursors").get(name)
            return row is not None and row.state == "following" and row.id >= id

        self.until(lambda: all(there(name) for name in names or self.names))

    def until_step(self, condition: Callable[[], bool]) -> None:
        """Stop within a fraction of a message's way after something came true."""
        for _ in range(200_000):
            if condition():
                return
            self.world.run(0.000_01)
        raise AssertionError("it did not come")

    def until_unheard(self, name: str, condition: Callable[[], bool]) -> None:
        """`until_step`, and from the reservation of the node's call on nobody hears the node.

        So the commit of that call goes nowhere. It leaves in the instant in which the node learns
        of the reservation; so the others, who decide it without the node, are looked at.
        """
        others = [other for other in self.cores if other != name]
        assert self.nodes[name].status().role == "follower"

        def reserved() -> bool:
            views = [self.nodes[other].machine.view("calls") for other in others]
            return any(
                row.state == "reserved" for view in views for _, row in view.table("records").scan()
            )

        self.until_step(reserved)
        for other in others:
            self.world.network.cut(name, other, one_way=True)
        self.until_step(condition)

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        self.world.wait(condition, timeout_s, "what the test waits for")
