"""Planted bugs about who is a member, who votes and who somebody is; see planted.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from raftkv import member_changes, removed_members, voters
from raftkv import node as node_module
from raftkv.parts import CorePart
from raftkv.raft import engine as engine_module
from raftkv.raft import leading as leading_module
from raftkv.raft import recovery, wire
from raftkv.raft.campaigning import Campaigning
from raftkv.raft.election import Stage
from raftkv.raft.engine import Engine
from raftkv.raft.identity import DataDirectory
from raftkv.raft.leading import Leading
from raftkv.raft.membership import Configuration, ConfigurationLog
from raftkv.testing.patching import around, replaced
from raftkv.testing.planting import BUGS, Bug, pretending, wrapping

__all__: list[str] = []


# Changing ----------------------------------------------------------------------------------------


@wrapping(
    "two-changes-at-once",
    "a change of the members is begun while another is not committed",
    member_changes.MemberChange,
    "_append",
    seeds_max=50,
    members=True,
)
def _two_changes(append: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(
        change: member_changes.MemberChange, make: Any, *, force: bool = False, **more: Any
    ) -> bool:
        engine = change._engine
        with replaced(engine_module, "check_change", lambda proposed, **known: None):
            proposed = make(engine.configuration)
            if engine.leading is not None and proposed != engine.configuration:
                engine.change_configuration(proposed, force=force)
        return bool(await append(change, make, force=force, **more))

    return broken


@wrapping(
    "removed-unannounced",
    "a core is removed while the state goes on taking it for a voter",
    voters.VoterNews,
    "strike_off",
    seeds_max=50,
    members=True,
)
def _removed_unannounced(strike_off: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(news: voters.VoterNews, raft_id: str, timeout_s: float) -> None:
        """Nobody is told."""

    return broken


@wrapping(
    "forced-removal-corrected",
    "the leader corrects the voters that the state knows between the two steps of a forced removal",
    voters.VoterNews,
    "suspended",
    seeds_max=50,
    members=True,
)
def _corrected_meanwhile(suspended: Callable[..., Any]) -> Callable[..., Any]:
    return lambda news: contextlib.nullcontext()


@wrapping(
    "removal-untold",
    "no leader proposes to the state that a core was removed",
    removed_members.RemovedMembers,
    "look",
    seeds_max=50,
    members=True,
)
def _removal_untold(look: Callable[..., None]) -> Callable[..., None]:
    return lambda component: None


@contextlib.contextmanager
def _change_before_no_op() -> Iterator[None]:
    def wrap_leads(_: Any) -> Any:
        return property(lambda part: part.engine.leading is not None)

    def wrap_append(append: Callable[..., Any]) -> Callable[..., Any]:
        async def broken(change: Any, make: Any, *, force: bool = False, **more: Any) -> bool:
            engine = change._engine
            if engine.leading is not None:
                with pretending(engine.leading, "first_index", 0):
                    proposed = make(engine.configuration)
                    if proposed != engine.configuration:
                        engine.change_configuration(proposed, force=force)
            return bool(await append(change, make, force=force, **more))

        return broken

    with (
        around(CorePart, "leads", wrap_leads),
        around(member_changes.MemberChange, "_append", wrap_append),
    ):
        yield


BUGS["change-before-no-op"] = Bug(
    "a new leader changes the members before its term has committed",
    _change_before_no_op,
    seeds_max=100,
    members=True,
)


@wrapping(
    "promote-at-once",
    "a copy votes before it has caught up",
    member_changes.MemberChange,
    "_caught_up",
    seeds_max=50,
    members=True,
)
def _promote_at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(change: member_changes.MemberChange, raft_id: str) -> bool:
        return True

    return broken


# Counting ----------------------------------------------------------------------------------------


@wrapping(
    "count-copies",
    "a copy's acknowledgement counts towards the majority",
    Leading,
    "_advance_commit",
    seeds_max=50,
    members=True,
)
def _count_copies(advance: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading) -> None:
        learners = leading._engine.configuration.learners
        copied = [leading._progress[each].match for each in learners if each in leading._progress]

        def quorum_index(matches: list[int]) -> int:
            return sorted([*matches, *copied], reverse=True)[len(matches) // 2]

        with replaced(leading_module, "quorum_index", quorum_index):
            advance(leading)

    return broken


@wrapping(
    "count-strangers-votes",
    "each node that can be reached is asked for a vote, and every vote counts",
    Campaigning,
    "_campaign",
    seeds_max=100,
    members=True,
)
def _count_strangers(campaign: Callable[..., None]) -> Callable[..., None]:
    def broken(part: Campaigning, stage: Stage, now: float, *, transfer: bool) -> None:
        campaign(part, stage, now, transfer=transfer)
        candidacy, engine = part._candidacy, part._engine
        if candidacy is None or candidacy.stage is not stage:
            return
        own = engine.configuration.voters
        strangers = [peer for peer in engine.links if peer not in own]
        log, pre_vote = engine.wal, stage is Stage.PRE_VOTE
        request = wire.Vote(
            candidacy.term, part._attempt, log.last_index, log.last_term, pre_vote, transfer
        )
        for peer in strangers:
            engine.send_held(peer, request)
        candidacy.won = lambda configuration: (  # type: ignore[method-assign]
            2 * len(candidacy._granted) > len(configuration.voters)
        )

    return broken


# Remembering -------------------------------------------------------------------------------------


@wrapping(
    "configuration-at-commit",
    "a configuration is in force once it is committed, not once it is in the log",
    Engine,
    "configuration",
    members=True,
)
def _configuration_at_commit(_: Any) -> Any:
    def broken(engine: Engine) -> Configuration:
        committed = engine.configurations.at(engine.commit)
        # Else nobody could be elected in a new cluster.
        return committed if committed.voters else engine.configurations.latest

    return property(broken)


class _NoConfigurations(ConfigurationLog):
    """Forgets what is appended while the founding configuration is known."""

    def append(self, index: int, configuration: Configuration) -> None:
        if self.latest.voters:
            return
        super().append(index, configuration)


@wrapping(
    "configuration-forgotten",
    "a restarted core takes the members from its snapshot, or from the bootstrap",
    node_module,
    "recover",
    seeds_max=50,
    members=True,
)
def _configuration_forgotten(recover: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any, **named: Any) -> Any:
        with replaced(recovery, "ConfigurationLog", _NoConfigurations):
            recovered = recover(*arguments, **named)
        forgetful = recovered.configurations
        recovered.configurations = ConfigurationLog(*forgetful._history[0])
        for index, configuration in forgetful._history[1:]:
            recovered.configurations.append(index, configuration)
        return recovered

    return broken


class _NoChance:
    """A runtime whose tokens are zeros."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def token(self, count: int) -> bytes:
        return bytes(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


@wrapping(
    "wiped-as-before",
    "a core whose disk was wiped comes back under its old id",
    DataDirectory,
    "_mint",
    seeds_max=50,
    members=True,
)
def _wiped_as_before(mint: Callable[..., Any]) -> Callable[..., Any]:
    def broken(directory: DataDirectory, config: Any, runtime: Any) -> Any:
        return mint(directory, config, _NoChance(runtime))

    return broken
