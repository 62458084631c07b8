"""The nemesis: draws faults from the seed, lets them overlap, and heals everything at the end.

    storm = Nemesis(world, ["core1", "core2", "core3"])
    storm.run(20)          # virtual seconds of faults, then heal
    world.wait(lambda: progress(), timeout_s=10)

Every fault ends by itself after a while. At most `down_max` of its hosts are down, paused or
isolated at one time (a minority by default), so that a cluster may be expected to go on; a test
that wants more says so. `counts` tells which faults really happened: a run without faults proves
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftkv.testing.world import World

__all__ = ["DAMAGE_FAULTS", "DISK_FAULTS", "FAULTS", "OPERATIONS", "Nemesis"]

# Relative frequency of each fault.
FAULTS: Mapping[str, float] = {
    "reset": 4,
    "stall": 3,
    "cut": 2,
    "cut_one_way": 2,
    "isolate": 2,
    "expel": 1,
    "power_cut": 2,
    "kill": 2,
    "pause": 2,
    "stall_disk": 1,
    "jump_wall": 1,
}
# Faults that a program is to answer by stopping itself (NodeFault); only when asked for, as in
# `faults={**FAULTS, **DISK_FAULTS}`. The machine is then rebooted: what a failed sync left in the
# page cache only would otherwise look durable, and no program can tell.
DISK_FAULTS: Mapping[str, float] = {
    "fail_syncs": 1,
    "fail_writes": 1,
}
# A bit of a log or snapshot flips, in what had been synced, while its program is killed and started
# again. The program must notice and stop; the bit is flipped back before the next start. Only for
# programs with files named *.wal and *.snap.
DAMAGE_FAULTS: Mapping[str, float] = {
    "flip_bit": 1,
}
# What an operator does: the program is asked to end and started again.
OPERATIONS: Mapping[str, float] = {
    "stop": 1,
}

ALL_FAULTS = (*FAULTS, *DISK_FAULTS, *DAMAGE_FAULTS, *OPERATIONS)
# These need more than one host.
NETWORK_FAULTS = frozenset(["reset", "stall", "cut", "cut_one_way", "isolate", "expel"])
# How often it is looked whether a program that was asked to end has done so.
STOP_POLL_S = 0.1


class Nemesis:
    """Faults among `hosts`; `interval_s` and `duration_s` are bounds of uniform draws."""

    def __init__(
        self,
        world: World,
        hosts: Sequence[str],
        *,
        faults: Mapping[str, float] = FAULTS,
        interval_s: tuple[float, float] = (0.2, 2.0),
        duration_s: tuple[float, float] = (0.2, 3.0),
        down_max: int | None = None,
    ) -> None:
        unknown = [name for name in faults if name not in ALL_FAULTS]
        if unknown or not faults:
            raise ValueError(f"faults must be among {', '.join(ALL_FAULTS)}; not {unknown}")
        if len(hosts) < 2 and not NETWORK_FAULTS.isdisjoint(faults):
            raise ValueError("faults of the network need at least two hosts")
        self.counts: dict[str, int] = dict.fromkeys(faults, 0)
        self._world = world
        self._hosts = list(hosts)
        self._faults = dict(faults)
        self._interval_s = interval_s
        self._duration_s = duration_s
        self._down_max = (len(hosts) - 1) // 2 if down_max is None else down_max
        self._rng = random.Random(f"{world.seed}/nemesis")
        # Hosts that cannot take part at the moment, and until when.
        self._away: dict[str, float] = {}
        # host -> (file, offset, bit) that is flipped now.
        self.flipped: dict[str, tuple[str, int, int]] = {}
        self._actions: dict[str, Callable[[float], bool]] = {
            "reset": self._reset,
            "stall": self._stall,
            "cut": lambda duration_s: self._cut(duration_s, one_way=False),
            "cut_one_way": lambda duration_s: self._cut(duration_s, one_way=True),
            "isolate": self._isolate,
            "expel": self._expel,
            "power_cut": lambda duration_s: self._crash(duration_s, power_cut=True),
            "kill": lambda duration_s: self._crash(duration_s, power_cut=False),
            "pause": self._pause,
            "stall_disk": self._stall_disk,
            "jump_wall": self._jump_wall,
            "fail_syncs": lambda duration_s: self._fail_disk(duration_s, "fail_syncs"),
            "fail_writes": lambda duration_s: self._fail_disk(duration_s, "fail_writes"),
            "flip_bit": self._flip_bit,
            "stop": self._stop,
        }

    def run(self, seconds: float) -> None:
        """Let the world go on under faults for so many virtual seconds, then heal it."""
        task = self._world.spawn(self.storm(), "nemesis")
        self._world.run(seconds)
        task.cancel()
        self.heal()

    async def storm(self) -> None:
        """Faults until cancelled."""
        while True:
            await asyncio.sleep(self._rng.uniform(*self._interval_s))
            self.strike()

    def strike(self) -> str | None:
        """One fault now. Returns its name, None when what was drawn cannot happen."""
        names = list(self._faults)
        name = self._rng.choices(names, [self._faults[name] for name in names])[0]
        if not self._actions[name](self._rng.uniform(*self._duration_s)):
            return None
        self.counts[name] += 1
        return name

    def heal(self) -> None:
        """End all cuts, stalls and pauses and start every host that is down."""
        world = self._world
        self._away.clear()
        world.network.heal()
        for name in self._hosts:
            world.resume(name)
            self._repair(name, world.host(name).boots)
            self._unflip(name)
            if not world.host(name).is_up:
                world.restart(name)

    # -- choosing ---------------------------------------------------------------------------------

    def _pair(self) -> tuple[str, str]:
        first, second = self._rng.sample(self._hosts, 2)
        return first, second

    def _up(self) -> str | None:
        """A host that runs."""
        world = self._world
        names = [
            name
            for name in self._hosts
            if world.host(name).is_up and not world.host(name).is_paused
        ]
        return self._rng.choice(names) if names else None

    def _victim(self, duration_s: float) -> str | None:
        """A host to take away, unless enough are away already."""
        now = self._world.loop.now
        self._away = {name: until for name, until in self._away.items() if until > now}
        name = self._up()
        if name is None or name in self._away or len(self._away) >= self._down_max:
            return None
        self._away[name] = now + duration_s
        return name

    def _later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        world = self._world
        world.loop.call_later(delay_s, callback, *args, context=world.context.copy())

    # -- faults -----------------------------------------------------------------------------------

    def _reset(self, duration_s: float) -> bool:
        return self._world.network.reset(*self._pair()) > 0

    def _stall(self, duration_s: float) -> bool:
        self._world.network.stall(*self._pair(), duration_s)
        return True

    def _cut(self, duration_s: float, *, one_way: bool) -> bool:
        a, b = self._pair()
        if self._down_max < 1:
            return False
        self._world.network.cut(a, b, one_way=one_way)
        self._later(duration_s, self._world.network.heal, a, b)
        return True

    def _isolate(self, duration_s: float) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        self._world.network.isolate(name)
        self._later(duration_s, self._world.network.heal, name)
        return True

    def _expel(self, duration_s: float) -> bool:
        """Its connections break at once and no new ones come: a router that restarts."""
        name = self._victim(duration_s)
        if name is None:
            return False
        for other in self._hosts:
            if other != name:
                self._world.network.reset(name, other)
        self._world.network.isolate(name)
        self._later(duration_s, self._world.network.heal, name)
        return True

    def _crash(self, duration_s: float, *, power_cut: bool) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        self._world.crash(name, power_cut=power_cut)
        boots = self._world.host(name).boots
        self._later(duration_s, self._restart, name, boots)
        return True

    def _restart(self, name: str, boots: int) -> None:
        host = self._world.host(name)
        if not host.is_up and host.boots == boots:
            self._world.restart(name)

    def _pause(self, duration_s: float) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        self._world.pause(name, duration_s)
        return True

    def _stall_disk(self, duration_s: float) -> bool:
        name = self._up()
        if name is None:
            return False
        self._world.stall_disk(name, duration_s)
        return True

    def _fail_disk(self, duration_s: float, fault: str) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        world = self._world
        world.note(name, fault)
        setattr(world.host(name).disk, fault, True)
        self._later(duration_s, self._repair, name, world.host(name).boots)
        return True

    def _repair(self, name: str, boots: int) -> None:
        """A good disk again, and a reboot if the program has stopped itself over the bad one."""
        host = self._world.host(name)
        was_bad = host.disk.fail_syncs or host.disk.fail_writes
        host.disk.fail_syncs = host.disk.fail_writes = False
        if was_bad and not host.is_up:
            host.disk.crash()
            self._restart(name, boots)

    def _flip_bit(self, duration_s: float) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        world, disk = self._world, self._world.host(name).disk
        world.crash(name, power_cut=False)
        files = {path.rpartition(".")[2]: path for path in disk.paths()}  # the newest of each kind
        paths = [files[kind] for kind in ("wal", "snap") if kind in files]
        path = self._rng.choice(paths) if paths else ""
        size = disk.synced_bytes(path) if paths else 0
        if size:
            offset, bit = self._rng.randrange(size), self._rng.randrange(8)
            disk.flip_bit(path, offset, bit)
            self.flipped[name] = (path, offset, bit)
            world.note(name, f"bit {bit} of byte {offset} of {path} flips")
        world.restart(name)
        self._later(duration_s, self._unflip, name)
        return size > 0

    def _unflip(self, name: str) -> None:
        """Good data again, and another start: the program has stopped itself over the bad."""
        flip = self.flipped.pop(name, None)
        host = self._world.host(name)
        if flip is not None:
            if host.is_up:
                self._world.crash(name, power_cut=False)
            host.disk.unflip_bit(*flip)
            self._world.note(name, "the bit flips back")
            self._world.restart(name)

    def _stop(self, duration_s: float) -> bool:
        name = self._victim(duration_s)
        if name is None:
            return False
        self._world.stop(name)
        self._later(duration_s, self._restart_stopped, name, self._world.host(name).boots)
        return True

    def _restart_stopped(self, name: str, boots: int) -> None:
        """It may take its time to end, when its disk hangs."""
        host = self._world.host(name)
        if host.is_up and host.boots == boots:
            self._later(STOP_POLL_S, self._restart_stopped, name, boots)
        else:
            self._restart(name, boots)

    def _jump_wall(self, duration_s: float) -> bool:
        self._world.jump_wall(self._rng.choice(self._hosts), self._rng.randint(-5_000, 5_000))
        return True
