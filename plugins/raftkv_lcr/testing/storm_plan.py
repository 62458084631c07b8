"""What one seed of a connect storm means: cluster, faults, clients, settings and modes.

The cluster and its faults are those that the seed draws for every simulation
(`raftkv/testing/scenario.py`), with little load besides and without the loss of a majority: what is
then given up by force includes registrations, and nothing of what is checked here is promised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from raftkv.testing.scenario import Scenario
from raftkv.testing.scenario import draw as draw_scenario
from raftkv_lcr.commands import Mode
from raftkv_lcr.options import LcrOptions
from raftkv_lcr.settings import SETTINGS

__all__ = ["EXPECTED", "Plan", "draw"]

# Operations on keys per second, over all nodes: something for the log to do besides.
LOAD_PER_S = 10.0
# In so many runs the mode is switched under way; in so many another one than "enabled" stands.
SWITCHING_SHARE = 0.25
STANDING_SHARE = 0.12
# Of the runs that switch back and forth, so many switch back to where they began.
BACK_SHARE = 0.5
# In so many runs older connections are kept.
KEEPING_SHARE = 0.2
# In so many runs a connect time may be little before its entry.
AGE_SHARE = 0.4
# In so many a node is cut off until it is declared dead, twice, while a client stays connected to
# it. Otherwise clients have left such a node long before.
RETURNING_SHARE = 0.4
# `node_down_ms` in those runs, and how long the node is cut off: its death is declared within
# `bound_s` (raftkv/testing/death_drill.py).
RETURNING_DOWN_MS = 2_000
RETURNING_AWAY_S = (5.0, 7.0)

# What some of many seeds must hit. ("retries exhausted" takes hundreds: with claims, the newest
# connection needs two attempts, and it has to meet another owner each of four times.)
EXPECTED = (
    "registered",
    "taken over on another node",
    "restart",
    "ahead",
    "outdated early",
    "outdated late",
    "in progress",
    "older connection kept",
    "client away",
    "retries exhausted",
    "version decided against the ticket",
    "time after the stamp",
    "time before the oldest",
    "several at the same instant",
    "clean start over a session",
    "begin refused",
    "handover complete",
    "handover lost",
    "connect failed",
    "connect given up",
    "message accepted",
    "message accepted while frozen",
    "message refused",
    "disconnected",
    "kicked",
    "discarded",
    "ended without a word",
    "channel fell silent",
    "deleted by a sweep",
    "a frozen channel went on",
    "entered again after the return",
    "dead life cleaned",
    "mode switched",
    "switch refused",
    "mode changed under a connect",
    "adopted after a switch",
    "row taken out under disabled",
    "history kept",
    "history expired",
    "opened under disabled",
    "anomaly under disabled",
)


@dataclass(frozen=True)
class Plan:
    """One run, before it is run."""

    seed: int
    scenario: Scenario
    clients: int
    # Mean time between two things that happen to one client.
    pause_s: float
    # Of the connects: so many start clean, bring a version, are given up by their client.
    clean_share: float
    version_share: float
    vanish_share: float
    # Seconds after the start, and the mode that is then asked for. The last one stays.
    modes: tuple[tuple[float, Mode], ...]
    # Replicated settings that differ from the defaults, and local options.
    settings: dict[str, Any]
    options: type[LcrOptions]
    # Seconds after the start, and for how many of them a node is then cut off.
    away: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        modes = " ".join(f"{mode}@{at:.0f}" for at, mode in self.modes) or "disabled"
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        away = "".join(f", a node away for {for_s:.1f} s @{at:.0f}" for at, for_s in self.away)
        return (
            f"{self.scenario}; {self.clients} clients every {self.pause_s:g} s, "
            f"modes {modes}, settings {settings or 'default'}{away}"
        )

    @property
    def keeps_older(self) -> bool:
        """Whether a client that is connected keeps its connection."""
        return self.settings.get("older_connection") == "keep"

    @property
    def never_disabled(self) -> bool:
        """Whether nobody can act as under "disabled", from the first connect to the end.

        "migration" is one step, and the first connect may meet a node that has yet to hear of it.
        The others are two, and the second waits until all nodes have adopted the first that are
        not declared dead.
        """
        standing = bool(self.modes) and self.modes[0][0] == 0.0
        return standing and not {mode for _, mode in self.modes} & {"disabled", "migration"}

    @property
    def final(self) -> Mode:
        """The mode in which the run ends."""
        return self.modes[-1][1] if self.modes else "disabled"

    def plugin_settings(self) -> tuple[Any, ...]:
        """The plugin's settings, with this run's values as their defaults."""
        changed = self.settings
        return tuple(
            msgspec.structs.replace(each, default=changed.get(each.key, each.default))
            for each in SETTINGS
        )


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed whose storm lasts so long."""
    rng = random.Random(f"{seed}/lcr plan")
    scenario = replace(draw_scenario(seed), rate_per_s=LOAD_PER_S, disaster=False)
    away = _away(seed, seconds, scenario)
    if away:
        raft = msgspec.structs.replace(scenario.raft, node_down_ms=RETURNING_DOWN_MS)
        scenario = replace(scenario, raft=raft)
    return Plan(
        seed=seed,
        scenario=scenario,
        clients=rng.choice((2, 4, 6, 10)),
        pause_s=rng.choice((0.1, 0.2, 0.5)),
        clean_share=rng.choice((0.0, 0.1, 0.3)),
        version_share=rng.choice((0.0, 0.0, 0.3, 1.0)),
        vanish_share=rng.choice((0.0, 0.1, 0.3)),
        modes=_all_the_way_back(seed, _modes(rng, seconds)),
        settings=_settings(rng) | _older(seed) | _age(seed),
        options=_options(rng),
        away=away,
    )


def _away(seed: int, seconds: float, scenario: Scenario) -> tuple[tuple[float, float], ...]:
    """In some runs nodes return after they were declared dead, which takes three cores."""
    # Chance of its own, so that all other runs stay what they were.
    rng = random.Random(f"{seed}/lcr returns")
    if scenario.cores < 3 or rng.random() >= RETURNING_SHARE:
        return ()
    starts = (rng.uniform(0.05, 0.2) * seconds, rng.uniform(0.5, 0.6) * seconds)
    return tuple((at, rng.uniform(*RETURNING_AWAY_S)) for at in starts)


def _modes(rng: random.Random, seconds: float) -> tuple[tuple[float, Mode], ...]:
    kind = rng.random()
    if kind < SWITCHING_SHARE:
        # From the old registry to the linear one under way; sometimes back and forth again.
        first = rng.uniform(0.1, 0.4) * seconds
        second = rng.uniform(first + 1, 0.7 * seconds)
        steps: list[tuple[float, Mode]] = [(first, "migration"), (second, "enabled")]
        if rng.random() < 0.5:
            between: Mode = rng.choice(("dual", "migration"))
            third = rng.uniform(second + 1, 0.9 * seconds)
            steps += [(third, between), (rng.uniform(third, seconds), "enabled")]
        return tuple(steps)
    if kind < SWITCHING_SHARE + STANDING_SHARE:
        standing: Mode = rng.choice(("dual", "migration", "disabled"))
        return () if standing == "disabled" else ((0.0, standing),)
    return ((0.0, "enabled"),)


def _all_the_way_back(
    seed: int, modes: tuple[tuple[float, Mode], ...]
) -> tuple[tuple[float, Mode], ...]:
    """Some runs that switch back and forth switch back to "disabled"."""
    # Chance of its own, so that all other runs stay what they were.
    if len(modes) < 4 or random.Random(f"{seed}/lcr back").random() >= BACK_SHARE:
        return modes
    return (*modes[:2], (modes[2][0], "disabled"), *modes[3:])


def _settings(rng: random.Random) -> dict[str, Any]:
    """Small figures, so that what usually takes minutes happens in a run."""
    settings: dict[str, Any] = {"sweep_interval_s": rng.choice((2, 5, 600))}
    if rng.random() < 0.3:
        settings["policy"] = "refuse"
    if rng.random() < 0.5:
        settings["claim_ms"] = rng.choice((100, 1_000, 5_000))
    if rng.random() < 0.3:
        settings["cleanup_rows_max"] = rng.choice((1, 3))
    if rng.random() < 0.4:
        settings["history_ms"] = rng.choice((500, 5_000, 3_600_000))
        settings["history_rows_max"] = rng.choice((1, 3, 100_000))
    return settings


def _older(seed: int) -> dict[str, Any]:
    """In some runs a client that is connected keeps its connection."""
    # Chance of its own, so that all other runs stay what they were.
    if random.Random(f"{seed}/lcr older").random() >= KEEPING_SHARE:
        return {}
    return {"older_connection": "keep"}


def _age(seed: int) -> dict[str, Any]:
    """In some runs a wall clock that jumps leaves what a connect time may be."""
    # Chance of its own, so that all other runs stay what they were.
    rng = random.Random(f"{seed}/lcr age")
    return {"connect_age_max_ms": rng.choice((50, 500))} if rng.random() < AGE_SHARE else {}


def _options(rng: random.Random) -> type[LcrOptions]:
    """The usual times in half of the runs, short ones in the others."""
    # In all runs: what nobody comes back for must be gone before the end.
    given: dict[str, float | int] = {"parked_keep_s": rng.choice((2.0, 20.0))}
    if rng.random() < 0.5:
        given |= _short_times(rng)
    made = msgspec.defstruct(
        "StormOptions",
        [(name, type(value), value) for name, value in given.items()],
        bases=(LcrOptions,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, LcrOptions)
    return made


def _short_times(rng: random.Random) -> dict[str, float | int]:
    call_s = rng.choice((0.3, 1.0, 2.0))
    return {
        "begin_timeout_s": call_s,
        "end_timeout_s": call_s,
        "discard_timeout_s": call_s,
        "kick_timeout_s": call_s,
        "open_timeout_s": rng.choice((3.0, 10.0)),
        "begin_ttl_s": rng.choice((0.5, 2.0, 5.0)),
        "handover_keep_s": rng.choice((12.0, 30.0)),
        "lost_grace_s": rng.choice((2.0, 6.0)),
        # Most sessions take several pages.
        "page_bytes": 1024,
    }
