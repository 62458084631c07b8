"""What one seed of a storm of the limbo means: cluster, faults, quorum, writers, owners, operators.

The cluster and its faults are those that the seed draws for every simulation
(`raftkv/testing/scenario.py`), with three to five cores and up to three replicants, with little
load besides and without the loss of a majority: what is then given up by force includes
transactions that were confirmed, and nothing of what is checked here is promised of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from raftkv.plugin import Setting
from raftkv.testing.scenario import Scenario
from raftkv.testing.scenario import draw as draw_scenario
from raftkv_limbo.settings import SETTINGS

from .storm_quorum import QUORUMS

__all__ = ["EXPECTED", "KEYS", "SPACES", "VALIDATORS", "ZONES", "Plan", "draw"]

# Operations on keys per second, over all nodes: something for the log to do besides.
LOAD_PER_S = 5.0

# Of the runs with replicants, in so many everybody counts from the first to the last moment.
EVERYBODY_SHARE = 0.25
QUORUM_VERBS = ("quorum", "over", "zones", "validators", "limits", "roll back")

# Spaces that there are from the start -> sync; operators make, alter and drop further ones.
SPACES: Mapping[str, bool] = {"s1": True, "s2": True, "a1": False, "a2": False}
# Few, so that transactions meet on them.
KEYS = (b"k1", b"k2", b"k3")
ZONES = ("east", "west")
VALIDATORS = ("audit", "check")

# What some of many seeds must hit.
EXPECTED = (
    "entered sync",
    "entered async",
    "entered independent",
    "confirmed fast",
    "confirmed by an ack",
    "confirmed by a member change",
    "confirmed by a change of voters",
    "confirmed by a setting",
    "confirmed behind a sync one",
    "rolled back by a veto",
    "rolled back on request",
    "rolled back by a promotion",
    "rolled back in cascade",
    "independent between rolled back ones",
    "promoted",
    "promoted again",
    "demoted",
    "promotion refused InterferingPromote",
    "promotion refused NotSettled",
    "rollback refused AlreadyConfirmed",
    "rejected Unclaimed",
    "rejected ForeignOwner",
    "rejected StaleOwner",
    "rejected ConditionFailed",
    "rejected KeyPending",
    "rejected QueueFull",
    "rejected UnknownSpace",
    "space refused SpaceBusy",
    "space dropped",
    "space refused ForeignOwner",
    "drop waits for its quorum",
    "rejected DropPending",
    "answered confirmed",
    "answered pending",
    "answered rolled back",
    "answered still pending",
    "answered refused",
    "answered not applied",
    "answered unknown",
    "answered given up",
    "answered to a replicant",
    "asked for the verdict: confirmed",
    "asked for the verdict: rolled back",
    "promote timed out",
    "promote in another promote",
    "read confirmed",
    "read pending",
    "read linearizable",
    "read what was pending",
    "hook heard confirmed",
    "hook heard rolled back",
    "hooks jumped over a snapshot",
    "validator approved",
    "validator vetoed",
    "validator failed",
    "verdict forgotten",
    "space swept",
)


@dataclass(frozen=True)
class Plan:
    """One run, before it is run."""

    seed: int
    scenario: Scenario
    # Writers of the run, the mean time between two acts of one of them, and how many transactions
    # it submits in one turn at most.
    writers: int
    pause_s: float
    burst: int
    # Of the transactions: so many go to the owner, are to sync spaces, have conditions, are given
    # up by their caller.
    owner_share: float
    sync_share: float
    condition_share: float
    vanish_share: float
    waits: Mapping[str, float]
    timeouts_s: tuple[float, ...]
    # Mean time between two promotions or demotions that people ask for.
    promote_every_s: float
    # Mean time between two things that operators do; how often each. Empty: nothing.
    operate_every_s: float
    verbs: Mapping[str, float]
    # Validators on the nodes, and how many proposals each of them vetoes, or fails at.
    validators: tuple[str, ...]
    veto_share: float
    broken_share: float
    # Replicated settings that differ from the defaults.
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return (
            f"{self.scenario}; {self.writers} writers every {self.pause_s:g} s, up to {self.burst} "
            f"at once, {self.owner_share:g} at the owner, {min(self.timeouts_s):g} to "
            f"{max(self.timeouts_s):g} s, promotions every {self.promote_every_s:g} s, operators: "
            f"{' '.join(self.verbs) or 'none'}, validators: {' '.join(self.validators) or 'none'}, "
            f"settings {settings or 'default'}"
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

    def zone_of(self, node: str) -> str:
        """Where the machine stands: every other one in the same zone."""
        return ZONES[int(node[-1]) % len(ZONES)] if node[-1].isdigit() else ""


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed whose storm lasts so long."""
    rng = random.Random(f"{seed}/limbo plan")
    validators = VALIDATORS[: rng.choices((0, 1, 2), (6, 3, 2))[0]]
    scenario = _scenario(seed, rng)
    plan = _drawn(seed, seconds, rng, scenario, validators)
    # In some runs all members count, so that a replicant that leaves completes a quorum.
    if scenario.replicants and random.Random(f"{seed}/limbo members").random() < EVERYBODY_SHARE:
        raft = msgspec.structs.replace(scenario.raft, node_down_ms=1_000)
        return replace(
            plan,
            scenario=replace(scenario, raft=raft),
            timeouts_s=(5.0,),
            verbs={name: plan.verbs[name] for name in plan.verbs if name not in QUORUM_VERBS},
            settings={"quorum": "N", "quorum_over": "members", "entries_kept": 20},
        )
    return plan


def _drawn(
    seed: int,
    seconds: float,
    rng: random.Random,
    scenario: Scenario,
    validators: tuple[str, ...],
) -> Plan:
    return Plan(
        seed=seed,
        scenario=scenario,
        writers=rng.choice((2, 4, 6)),
        pause_s=rng.choice((0.1, 0.3, 0.6)),
        burst=rng.choice((1, 3, 8)),
        owner_share=rng.choice((0.5, 0.85, 0.95)),
        sync_share=rng.choice((0.3, 0.6, 0.9)),
        condition_share=rng.choice((0.1, 0.4)),
        vanish_share=rng.choice((0.0, 0.1, 0.3)),
        waits={"complete": 4, "submit": rng.choice((0.5, 3)), "none": rng.choice((0.5, 3))},
        timeouts_s=rng.choice(((5.0,), (0.3, 1.0, 4.0), (0.05, 0.5), (2.0,))),
        promote_every_s=rng.choice((0.5, 1.5, seconds / 2)),
        operate_every_s=rng.choice((0.4, 1.0)),
        verbs=_verbs(rng, validators),
        validators=validators,
        veto_share=rng.choice((0.0, 0.05, 0.2)),
        broken_share=rng.choice((0.0, 0.1)),
        settings=_settings(rng, validators),
    )


def _scenario(seed: int, rng: random.Random) -> Scenario:
    """What the seed draws, on a cluster in which a quorum can be more than a majority."""
    drawn = draw_scenario(seed)
    cores = rng.choices((3, 4, 5), (6, 2, 2))[0]
    replicants = rng.choices((0, 1, 2, 3), (4, 3, 2, 1))[0]
    minority = (cores - 1) // 2
    # One core in the draw means that everybody may be away.
    everything = drawn.down_max > (drawn.cores - 1) // 2
    return replace(
        drawn,
        cores=cores,
        replicants=replicants,
        rate_per_s=LOAD_PER_S,
        # Lives end within a short storm.
        raft=msgspec.structs.replace(drawn.raft, node_down_ms=rng.choice((1_000, 2_000, 10_000))),
        down_max=cores + replicants if everything and drawn.cores > 1 else minority,
        disaster=False,
    )


def _verbs(rng: random.Random, validators: tuple[str, ...]) -> dict[str, float]:
    """What operators do; nothing in a quarter of the runs."""
    if rng.random() < 0.25:
        return {}
    verbs = {
        "quorum": 3.0,
        "over": 1.0,
        "zones": 1.0,
        "validators": 2.0 if validators else 0.0,
        "limits": 1.0,
        "roll back": 2.0,
        "create": 1.0,
        "drop": 2.0,
        "alter": 0.7,
        "leader promotes": 0.3,
        "flush": 0.7,
        "raw": 3.0,
        "look": 1.0,
    }
    chosen = {name: weight for name, weight in verbs.items() if weight and rng.random() < 0.75}
    return chosen or {"quorum": 1.0}


def _settings(rng: random.Random, validators: tuple[str, ...]) -> dict[str, Any]:
    """Small figures, so that what usually takes many transactions happens in a run."""
    settings: dict[str, Any] = {"entries_kept": rng.choice((0, 3, 20))}
    if rng.random() < 0.75:
        settings["quorum"] = rng.choice([*QUORUMS, "N", "N"])
    if rng.random() < 0.4:
        settings["quorum_over"] = "members"
    if rng.random() < 0.25:
        settings["quorum_zones"] = {rng.choice(ZONES): rng.choice((1, 1, 2))}
    if validators and rng.random() < 0.8:
        settings["quorum_validators"] = {rng.choice(validators): rng.choice((1, 2))}
    if rng.random() < 0.4:
        settings["queue_entries_max"] = rng.choice((2, 5, 10))
    if rng.random() < 0.2:
        settings["queue_bytes_max"] = rng.choice((1, 60, 200))
    if rng.random() < 0.2:
        settings["queue_writes_max"] = rng.choice((1, 4, 10))
    if rng.random() < 0.1:
        settings["transaction_writes_max"] = 2
    if rng.random() < 0.3:
        settings["rollback_after_ms"] = rng.choice((150, 400, 1500))
    if rng.random() < 0.25:
        settings["leader_promotes"] = True
    if rng.random() < 0.3:
        settings["rollbacks_kept"] = 10
    if rng.random() < 0.2:
        settings["spaces_max"] = len(SPACES) + 1
    return settings
