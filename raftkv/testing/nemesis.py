"""The nemesis: draws faults from the seed, lets them overlap, and heals everything at the end.

    storm = Nemesis(world, ["core1", "core2", "core3"])
    storm.run(20)          # virtual seconds of faults, then heal
    world.wait(lambda: progress(), timeout_s=10)

Every fault ends by itself after a while. At most `down_max` of its hosts are down, paused or
isolated at one time (a minority by default), so that a cluster may be expected to go on; a test
that wants more says so. `can_spare` asks somebody who knows better, such as whoever knows the
configuration in force. `hosts` is looked at anew for every fault: hosts may come and go. `salt`
tells apart several of them in one world.

`counts` tells which faults really happened: a run without faults proves nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from raftkv.config import Limits
from raftkv.raft.records import read_batches
from raftkv.runtime import Space
from raftkv.testing.disk import SECTOR_BYTES, SPACE, SimDisk

if TYPE_CHECKING:
    from raftkv.testing.world import World

__all__ = [
    "DAMAGE_FAULTS",
    "DISK_FAULTS",
    "FAULTS",
    "OPERATIONS",
    "SILENT_FAULTS",
    "SPACE_FAULTS",
    "Nemesis",
]

# Relative frequency of each fault.
FAULTS: Mapping[str, float] = {
    "reset": 4,
    "stall": 3,
    "cut": 2,
    "cut_one_way": 2,
    "isolate": 2,
    "expel": 1,
    "mute": 3,
    "power_cut": 2,
    "kill": 2,
    "pause": 2,
    "stall_disk": 1,
    "jump_wall": 1,
    "die_at_step": 2,
    "die_at_write": 2,
}
# Faults that a program is to answer by stopping itself (NodeFault); only when asked for, as in
# `faults={**FAULTS, **DISK_FAULTS}`. The machine is then rebooted: what a failed sync left in the
# page cache only would otherwise look durable, and no program can tell.
DISK_FAULTS: Mapping[str, float] = {
    "fail_syncs": 1,
    "fail_writes": 1,
    "fail_reads": 1,
}
# A disk is full for snapshots only, for a while: no reason to stop. For programs whose files are
# called as those of a node.
SPACE_FAULTS: Mapping[str, float] = {
    "fill_disk": 3,
}
# A bit of a log or snapshot flips, or a sector is lost, in what had been synced, while its program
# is killed and started again. The program must notice and stop; the damage is mended before the
# next start. Only for programs with files named *.wal and *.snap. A sector of the newest batch
# never turns into zeros: nothing tells that from a write that a crash has torn (raft/records.py).
DAMAGE_FAULTS: Mapping[str, float] = {
    "flip_bit": 1,
    "lose_sector": 1,
}
# Connections that swallow all that is sent on them, while new ones work; only when asked for, as
# nodes of core format 1 wait for TCP to give up.
SILENT_FAULTS: Mapping[str, float] = {
    "swallow": 2,
}
# What an operator does: the program is asked to end and started again.
OPERATIONS: Mapping[str, float] = {
    "stop": 1,
}

ALL_FAULTS = (*FAULTS, *DISK_FAULTS, *SPACE_FAULTS, *DAMAGE_FAULTS, *SILENT_FAULTS, *OPERATIONS)
# These need more than one host.
NETWORK_FAULTS = frozenset(
    ["reset", "stall", "cut", "cut_one_way", "isolate", "expel", "mute", *SILENT_FAULTS]
)
# How late a mute host hears, uniform: such that the others may elect somebody before or after.
LATE_S = (0.2, 0.9)
# A disk stays full so many times longer than other faults last: snapshots are due now and then.
FULL_TIMES = 4
# What a program then sees of the free space, for snapshots and for the log, and how often each: it
# sees it, a quota lets writes fail all the same, the reserve of the log is nearly used up or is.
RESERVE_BYTES = Limits().disk_reserve_bytes
FULL_DISKS: Sequence[tuple[int, int, int]] = (
    (4, 0, SPACE.free_bytes),
    (4, SPACE.free_bytes, SPACE.free_bytes),
    (1, RESERVE_BYTES * 3 // 8, RESERVE_BYTES * 3 // 8),
    (1, RESERVE_BYTES // 8, RESERVE_BYTES // 8),
)
# How often it is looked whether a program that was asked to end has done so.
STOP_POLL_S = 0.1
# What a program dies at: one of its callbacks, which may be the next in the same instant; or one of
# its changes of the disk, such as in the middle of a batch, of a snapshot, of recovery or joining.
Doom = Literal["steps", "changes"]
# After so many of them at most, every decade as likely as the next; a start does some dozens.
DOOM_MAX: Mapping[Doom, int] = {"steps": 3_000, "changes": 100}
# Chance that the start after such a death is doomed as well: recovery must survive its own crash.
DOOM_AGAIN = 0.5


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
        can_spare: Callable[[Sequence[str]], bool] | None = None,
        salt: str = "",
    ) -> None:
        unknown = [name for name in faults if name not in ALL_FAULTS]
        if unknown or not faults:
            raise ValueError(f"faults must be among {', '.join(ALL_FAULTS)}; not {unknown}")
        if len(hosts) < 2 and not NETWORK_FAULTS.isdisjoint(faults):
            raise ValueError("faults of the network need at least two hosts")
        self.counts: dict[str, int] = dict.fromkeys(faults, 0)
        self._world = world
        self._hosts = hosts
        self._faults = dict(faults)
        self._interval_s = interval_s
        self._duration_s = duration_s
        self._down_max = (len(hosts) - 1) // 2 if down_max is None else down_max
        self._can_spare = can_spare or self._few_enough
        self._storming = True
        # While set, a storm brings nothing new.
        self.calm = False
        self._rng = random.Random(f"{world.seed}/nemesis{salt}")
        # Hosts that cannot take part at the moment, and until when.
        self._away: dict[str, float] = {}
        # host -> what mends the damage that its disk has now.
        self.flipped: dict[str, Callable[[], None]] = {}
        self._actions: dict[str, Callable[[float], bool]] = {
            "reset": self._reset,
            "stall": self._stall,
            "swallow": self._swallow,
            "cut": lambda duration_s: self._cut(duration_s, one_way=False),
            "cut_one_way": lambda duration_s: self._cut(duration_s, one_way=True),
            "isolate": self._isolate,
            "expel": self._expel,
            "mute": self._mute,
            "power_cut": lambda duration_s: self._crash(duration_s, power_cut=True),
            "kill": lambda duration_s: self._crash(duration_s, power_cut=False),
            "pause": self._pause,
            "stall_disk": self._stall_disk,
            "jump_wall": self._jump_wall,
            "die_at_step": lambda duration_s: self._die(duration_s, "steps"),
            "die_at_write": lambda duration_s: self._die(duration_s, "changes"),
            "fail_syncs": lambda duration_s: self._fail_disk(duration_s, "fail_syncs"),
            "fail_writes": lambda duration_s: self._fail_disk(duration_s, "fail_writes"),
            "fail_reads": lambda duration_s: self._fail_disk(duration_s, "fail_reads"),
            "fill_disk": self._fill_disk,
            "flip_bit": lambda duration_s: self._damage(duration_s, self._flip_bit),
            "lose_sector": lambda duration_s: self._damage(duration_s, self._lose_sector),
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
            if not self.calm:
                self._storming = True
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
        self._storming = False
        self._away.clear()
        world.network.heal()
        for name in list(self._hosts):
            world.resume(name)
            world.spare(name)
            self._repair(name, world.host(name).boots)
            world.host(name).disk.fail_snapshots = False
            self._unflip(name)
            if not world.host(name).is_up:
                world.restart(name)

    def take_down(self, name: str, duration_s: float) -> bool:
        """Kill this one and start it again after so long, unless it or too many are away."""
        return self._take(name, duration_s) and self._kill(name, duration_s, power_cut=False)

    def keep_away(self, name: str, duration_s: float) -> bool:
        """Cut this one off for so long, unless it or too many are away."""
        if not self._take(name, duration_s):
            return False
        self._cut_off(name, duration_s)
        return True

    def _take(self, name: str, duration_s: float) -> bool:
        self._forget_returned()
        host = self._world.host(name)
        ready = host.is_up and not host.is_paused and name not in self._away
        if not ready or name in self.flipped or not self._can_spare([*self._away, name]):
            return False
        self._away[name] = self._world.loop.now + duration_s
        return True

    # -- choosing ---------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """The host is taken out of service, or gets an empty disk: nothing is mended there."""
        self._away.pop(name, None)
        self.flipped.pop(name, None)
        self._world.spare(name)

    def _few_enough(self, away: Sequence[str]) -> bool:
        return len(away) <= self._down_max

    def _pair(self) -> tuple[str, str] | None:
        """Two hosts, unless members have gone and one is left."""
        if len(self._hosts) < 2:
            return None
        first, second = self._rng.sample(list(self._hosts), 2)
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
        self._forget_returned()
        name = self._up()
        if name is None or name in self._away or not self._can_spare([*self._away, name]):
            return None
        self._away[name] = self._world.loop.now + duration_s
        return name

    def _forget_returned(self) -> None:
        now = self._world.loop.now
        self._away = {name: until for name, until in self._away.items() if until > now}

    def _later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        world = self._world
        world.loop.call_later(delay_s, callback, *args, context=world.context.copy())

    # -- faults -----------------------------------------------------------------------------------

    def _reset(self, duration_s: float) -> bool:
        pair = self._pair()
        return pair is not None and self._world.network.reset(*pair) > 0

    def _swallow(self, duration_s: float) -> bool:
        pair = self._pair()
        return pair is not None and self._world.network.swallow(*pair) > 0

    def _stall(self, duration_s: float) -> bool:
        pair = self._pair()
        if pair is not None:
            self._world.network.stall(*pair, duration_s)
        return pair is not None

    def _cut(self, duration_s: float, *, one_way: bool) -> bool:
        pair = self._pair()
        if pair is None or self._down_max < 1:
            return False
        a, b = pair
        self._world.network.cut(a, b, one_way=one_way)
        self._later(duration_s, self._world.network.heal, a, b)
        return True

    def _isolate(self, duration_s: float) -> bool:
        name = self._victim(duration_s)
        if name is not None:
            self._cut_off(name, duration_s)
        return name is not None

    def _cut_off(self, name: str, duration_s: float) -> None:
        self._world.network.isolate(name)
        self._later(duration_s, self._world.network.heal, name)

    def _expel(self, duration_s: float) -> bool:
        """Its connections break at once and no new ones come: a router that restarts."""
        name = self._victim(duration_s)
        if name is None:
            return False
        for other in list(self._hosts):
            if other != name:
                self._world.network.reset(name, other)
        self._world.network.isolate(name)
        self._later(duration_s, self._world.network.heal, name)
        return True

    def _mute(self, duration_s: float) -> bool:
        """What it says gets nowhere, and what it hears comes late: answers to old questions."""
        name = self._victim(duration_s)
        if name is None:
            return False
        world, rng = self._world, self._rng
        others = [other for other in self._hosts if other != name]
        late_s = rng.uniform(*LATE_S)
        for other in others:
            world.network.stall(other, name, late_s)
        self._later(rng.uniform(0, late_s / 2), self._silence, name, others)
        self._later(max(duration_s, late_s), world.network.heal, name)
        return True

    def _silence(self, name: str, others: Sequence[str]) -> None:
        for other in others:
            if self._storming:
                self._world.network.cut(name, other, one_way=True)

    def _crash(self, duration_s: float, *, power_cut: bool) -> bool:
        name = self._victim(duration_s)
        return name is not None and self._kill(name, duration_s, power_cut=power_cut)

    def _kill(self, name: str, duration_s: float, *, power_cut: bool) -> bool:
        self._world.crash(name, power_cut=power_cut)
        boots = self._world.host(name).boots
        self._later(duration_s, self._restart, name, boots)
        return True

    def _restart(self, name: str, boots: int) -> None:
        host = self._world.host(name)
        if name in self._hosts and not host.is_up and host.boots == boots:
            self._world.restart(name)

    def _die(self, duration_s: float, kind: Doom) -> bool:
        name = self._victim(duration_s)
        if name is not None:
            self._doom(name, duration_s, kind)
        return name is not None

    def _doom(self, name: str, duration_s: float, kind: Doom) -> None:
        """The program dies at some step within this time, or is spared when it has passed."""
        world, rng = self._world, self._rng
        boots = world.host(name).boots
        until = world.loop.now + duration_s
        count = int(DOOM_MAX[kind] ** rng.random()) - 1

        def struck() -> None:
            self._later(rng.uniform(0, max(0.0, until - world.loop.now)), again)

        def again() -> None:
            self._restart(name, boots)
            host = world.host(name)
            if self._storming and host.is_up and host.boots == boots + 1:
                left_s = rng.uniform(*self._duration_s)
                if name not in self._away and rng.random() < DOOM_AGAIN:
                    self._away[name] = world.loop.now + left_s
                    self._doom(name, left_s, kind)

        def spare() -> None:
            if world.host(name).boots == boots:
                world.spare(name)

        world.doom(name, struck, power_cut=rng.random() < 0.5, **{kind: count})
        self._later(duration_s, spare)

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
        if fault == "fail_reads" and self._rng.random() < 0.5:
            # A running node reads little: a start reads everything.
            world.crash(name, power_cut=False)
            world.restart(name)
        self._later(duration_s, self._repair, name, world.host(name).boots)
        return True

    def _repair(self, name: str, boots: int) -> None:
        """A good disk again, and a reboot if the program has stopped itself over the bad one."""
        host = self._world.host(name)
        disk = host.disk
        was_bad = disk.fail_syncs or disk.fail_writes or disk.fail_reads
        disk.fail_syncs = disk.fail_writes = disk.fail_reads = False
        if was_bad and not host.is_up:
            host.disk.crash()
            self._restart(name, boots)

    def _fill_disk(self, duration_s: float) -> bool:
        """Full for snapshots; see FULL_DISKS."""
        name = self._up()
        if name is None:
            return False
        disk = self._world.host(name).disk
        _, *free = self._rng.choices(FULL_DISKS, [weight for weight, *_ in FULL_DISKS])[0]
        spaces = [Space(free_bytes, SPACE.total_bytes) for free_bytes in free]
        disk.space_of_snapshots, disk.space_of_log = spaces
        disk.fail_snapshots = True
        self._world.note(name, "the disk is full for snapshots")
        self._later(duration_s * FULL_TIMES, self._make_room, name)
        return True

    def _make_room(self, name: str) -> None:
        if name in self._hosts:
            self._world.note(name, "the disk has room for snapshots")
            self._world.host(name).disk.fail_snapshots = False

    def _damage(self, duration_s: float, hurt: Callable[[str, str], bool]) -> bool:
        """The program is killed and started again on a file that was hurt, or on a good one."""
        name = self._victim(duration_s)
        if name is None:
            return False
        world, disk = self._world, self._world.host(name).disk
        world.crash(name, power_cut=False)
        files = {path.rpartition(".")[2]: path for path in disk.paths()}  # the newest of each kind
        paths = [files[kind] for kind in ("wal", "snap") if kind in files]
        done = bool(paths) and hurt(name, self._rng.choice(paths))
        world.restart(name)
        self._later(duration_s, self._unflip, name)
        return done

    def _flip_bit(self, name: str, path: str) -> bool:
        disk = self._world.host(name).disk
        size = disk.synced_bytes(path)
        if size:
            offset, bit = self._rng.randrange(size), self._rng.randrange(8)
            disk.flip_bit(path, offset, bit)
            self.flipped[name] = lambda: disk.unflip_bit(path, offset, bit)
            self._world.note(name, f"bit {bit} of byte {offset} of {path} flips")
        return size > 0

    def _lose_sector(self, name: str, path: str) -> bool:
        disk = self._world.host(name).disk
        size = disk.synced_bytes(path)
        readable = self._rng.random() < 0.5
        if readable and path.endswith(".wal"):
            size = min(size, _newest_batch(path, disk))
        sectors = size // SECTOR_BYTES if readable else -(-size // SECTOR_BYTES)
        if not sectors:
            return False
        sector = self._rng.randrange(sectors)
        held = disk.lose_sector(path, sector, readable=readable)
        if readable and not any(held):
            return False  # it is what it was
        self.flipped[name] = lambda: disk.mend_sector(path, sector, held)
        self._world.note(name, f"sector {sector} of {path} is lost")
        return True

    def _unflip(self, name: str) -> None:
        """Good data again, and another start: the program has stopped itself over the bad."""
        mend = self.flipped.pop(name, None)
        host = self._world.host(name)
        if mend is not None and name in self._hosts:
            if host.is_up:
                self._world.crash(name, power_cut=False)
            mend()
            self._world.note(name, "its disk is mended")
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
        self._world.jump_wall(self._rng.choice(list(self._hosts)), self._rng.randint(-5_000, 5_000))
        return True


def _newest_batch(path: str, disk: SimDisk) -> int:
    """Where the newest batch of a log's segment begins; 0 if there is no other one in it."""
    data = bytes(disk.platter(path) or b"")
    number = int(path.rpartition("/")[2].partition(".")[0])
    batches = list(read_batches(path, data, number, last=True))
    return batches[-1].offset if len(batches) > 1 else 0
