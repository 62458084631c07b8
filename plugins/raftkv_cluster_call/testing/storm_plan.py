"""What one seed of a storm of calls means: cluster, faults, callers, troubles, operators, settings.

The cluster and its faults are those that the seed draws for every simulation
(`raftkv/testing/scenario.py`), with little load besides and without the loss of a majority: what is
then given up by force includes calls that were answered, and nothing of what is checked here is
promised of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from raftkv.plugin import Setting
from raftkv.testing.scenario import Scenario
from raftkv.testing.scenario import draw as draw_scenario
from raftkv_cluster_call.settings import SETTINGS

__all__ = ["EXPECTED", "FUNCTIONS", "Memory", "Plan", "draw"]

# Operations on keys per second, over all nodes: something for the log to do besides.
LOAD_PER_S = 10.0

# What a node keeps of the effects of calls: on its disk, as a good provider of a `NodeState` does;
# in its process only, so that each restart loses it; or nothing that could be copied (no provider).
Memory = Literal["kept", "lost", "none"]

# What callers call, and how often. "note" is quick; "slow" takes a while; "hang" does not return
# for longer than callers wait; "picky" may raise on its initiator; "count" has its effect on the
# keyspace only; "new" is known to some nodes only, for a while.
FUNCTIONS: Mapping[str, float] = {
    "note": 6,
    "slow": 2,
    "hang": 0.3,
    "picky": 2,
    "count": 4,
    "new": 1,
}

# What some of many seeds must hit.
EXPECTED = (
    "granted at once",
    "queued",
    "granted from the queue",
    "dropped from the queue",
    "withdrawn from the queue",
    "behind",
    "committed",
    "aborted failed",
    "aborted expired",
    "aborted initiator_ended",
    "aborted stale_view",
    "aborted withdrawn",
    "commit refused",
    "effect lost",
    "effect lost acknowledged",
    "effect in the keyspace",
    "executed on a replica",
    "executed on a replicant",
    "failure reported",
    "stuck reported",
    "skipped",
    "fast-forwarded",
    "forced",
    "reset",
    "joined at once",
    "joined with a copy",
    "synced",
    "state lost",
    "gap by trimming",
    "trimmed",
    "left",
    "rejoined",
    "left by force",
    "answered ok",
    "answered init_failure",
    "answered peers_lagging",
    "answered stopped_nodes",
    "raised StaleView",
    "raised DeadlinePassed",
    "raised QueueFull",
    "caller gave up",
    "called on a replicant",
    "run raised",
    "run hung",
    "run again after a success",
    "run cut off",
    "alarm seen",
    "fix consistent",
    "fix fixed",
    "fix differs",
    "fix moved",
)


@dataclass(frozen=True)
class Plan:
    """One run, before it is run."""

    seed: int
    scenario: Scenario
    # Callers at each node, and the mean time between two calls of one of them.
    callers: int
    pause_s: float
    functions: Mapping[str, float]
    # Seconds that callers give a call; each is drawn anew.
    timeouts_s: tuple[float, ...]
    # Of the calls: so many are given up by their caller in the middle.
    vanish_share: float
    # Mean time between two troubles (a function fails or hangs on a node), and their longest.
    trouble_every_s: float
    trouble_max_s: float
    # Chance that "picky" raises on its initiator.
    picky_share: float
    # Mean time between two things that operators do; how often each. Empty: nothing.
    operate_every_s: float
    verbs: Mapping[str, float]
    memory: Memory
    # Replicated settings that differ from the defaults, and local options.
    settings: Mapping[str, Any]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        verbs = " ".join(self.verbs)
        return (
            f"{self.scenario}; {self.callers} callers a node every {self.pause_s:g} s with "
            f"{min(self.timeouts_s):g} to {max(self.timeouts_s):g} s, troubles every "
            f"{self.trouble_every_s:g} s up to {self.trouble_max_s:g} s, state {self.memory}, "
            f"operators: {verbs or 'none'}, settings {settings or 'default'}"
        )

    def plugin_settings(self) -> tuple[Setting, ...]:
        """The plugin's settings, with this run's values as their defaults.

        A run lasts seconds, so some stay below what an operator may set.
        """
        return tuple(
            msgspec.structs.replace(each, default=self.settings[each.key], check=None)
            if each.key in self.settings
            else each
            for each in SETTINGS
        )


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed whose storm lasts so long."""
    rng = random.Random(f"{seed}/calls plan")
    scenario = replace(draw_scenario(seed), rate_per_s=LOAD_PER_S, disaster=False)
    return Plan(
        seed=seed,
        scenario=scenario,
        callers=rng.choice((1, 2, 4)),
        pause_s=rng.choice((0.2, 0.5, 1.0)),
        functions=_functions(rng),
        timeouts_s=rng.choice(((20.0,), (0.3, 2.0, 10.0), (0.05, 0.5), (3.0,))),
        vanish_share=rng.choice((0.0, 0.1, 0.3)),
        trouble_every_s=rng.choice((1.0, 3.0, seconds)),
        trouble_max_s=rng.choice((0.5, 3.0, 8.0)),
        picky_share=rng.choice((0.1, 0.5)),
        operate_every_s=rng.choice((0.7, 2.0)),
        verbs=_verbs(rng),
        memory=rng.choices(("kept", "lost", "none"), (6, 3, 1))[0],
        settings=_settings(rng),
        options=_options(rng),
    )


def _functions(rng: random.Random) -> dict[str, float]:
    """All of them, or some."""
    chosen = {name: weight for name, weight in FUNCTIONS.items() if rng.random() < 0.8}
    return chosen or dict(FUNCTIONS)


def _verbs(rng: random.Random) -> dict[str, float]:
    """What operators do. A third of the runs has none, so that nothing excuses a difference."""
    if rng.random() < 0.33:
        return {}
    verbs = {
        "skip": 3.0,
        "fast-forward": 2.0,
        "fix": 2.0,
        "leave": 1.0,
        "rejoin": 2.0,
        "force-leave": 1.0,
        "look": 2.0,
        "acknowledge": 2.0,
    }
    chosen = {name: weight for name, weight in verbs.items() if rng.random() < 0.75}
    if rng.random() < 0.15:
        chosen["reset"] = 1.0
    return chosen


def _settings(rng: random.Random) -> dict[str, Any]:
    """Small figures, so that what usually takes minutes happens in a run."""
    settings: dict[str, Any] = {
        "retry_ms": rng.choice((50, 200, 1000)),
        "cleanup_ms": rng.choice((200, 1000)),
    }
    if rng.random() < 0.7:
        settings["history_max"] = rng.choice((1, 3, 10))
    if rng.random() < 0.4:
        settings["history_hard_max"] = rng.choice((3, 8, 20))
    if rng.random() < 0.3:
        settings["queue_max"] = rng.choice((1, 2, 5))
    if rng.random() < 0.4:
        settings["replicants_take_part"] = True
    return settings


def _options(rng: random.Random) -> dict[str, Any]:
    """The usual limit of a run in some, in others one that the hanging ones exceed."""
    return {"run_timeout_s": rng.choice((60.0, 2.0, 0.5))}
