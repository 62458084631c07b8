"""Each rule's fix taken out again, and the test that must notice.

    with MUTANTS["rule 27: ..."].patch(): ...      # the fix is gone while this is entered

A test that passes with the fix and without it shows nothing. Where the simulation has a planted bug
for the same defect (raftkv/testing/planted.py), it is used here as well; all others are replaced
functions like those. No mutant is written to a file.
"""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from raftkv import failure_detector
from raftkv.errors import DamagedLog
from raftkv.failure_detector import FailureDetector
from raftkv.raft import campaigning, engine, identity, wal
from raftkv.raft.applying import Applying
from raftkv.raft.composition import Composition
from raftkv.raft.election import Deadline
from raftkv.raft.engine import Engine
from raftkv.raft.leading import Leading
from raftkv.raft.membership import ConfigurationLog
from raftkv.raft.progress import Progress
from raftkv.raft.snapshot import SnapshotReceiver, SnapshotStore
from raftkv.replica import Replica
from raftkv.replicant.follower import Follower
from raftkv.state.machine import StateMachine
from raftkv.testing import patching
from raftkv.testing.own_errors import watched
from raftkv.testing.patching import around, replaced
from raftkv.testing.planted import planted
from tests import test_detector, test_failure_detector, test_rules_node
from tests.raft import (
    harness,
    test_applying,
    test_changing,
    test_composition,
    test_office,
    test_rules_answers,
    test_rules_bounds,
    test_rules_disk,
    test_rules_log,
    test_rules_stalls,
)
from tests.state import test_rules_state

__all__ = ["MUTANTS", "Mutant"]

Function = Callable[..., Any]
Patch = Callable[[], contextlib.AbstractContextManager[None]]


class Mutant(NamedTuple):
    rule: int
    patch: Patch
    test: Callable[[], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(rule: int, what: str, patch: Patch, test: Callable[[], None]) -> None:
    name = f"rule {rule}: {what}"
    assert name not in MUTANTS, name
    MUTANTS[name] = Mutant(rule, lambda: watched(name, patch, (__file__, patching.__file__)), test)


def bug(rule: int, name: str, test: Callable[[], None]) -> None:
    """One that the simulation finds, too."""
    mutant(rule, name, lambda: planted(name), test)


def instead(owner: Any, name: str, function: Function) -> Patch:
    return lambda: replaced(owner, name, function)


def wrapped(owner: Any, name: str, wrap: Callable[[Function], Function]) -> Patch:
    return lambda: around(owner, name, wrap)


@contextlib.contextmanager
def _limits(engine_: Engine, **changes: int) -> Iterator[None]:
    before = engine_.limits
    engine_.limits = msgspec.structs.replace(before, **changes)
    try:
        yield
    finally:
        engine_.limits = before


# Data loss, two leaders --------------------------------------------------------------------------

_one = test_rules_log.TestRule01CommitOnlyWhatIsVerified()
_two = test_rules_log.TestRule02Append()
bug(
    1,
    "commit-unverified-tail",
    _one.test_a_heartbeat_from_before_the_tail_commits_only_its_own_prefix,
)
bug(2, "truncate-matching", _two.test_a_repeated_short_message_cuts_nothing)
bug(2, "acknowledge-log-end", _two.test_a_repeated_short_message_cuts_nothing)
_three = test_changing.TestRule03OneMembershipChangeInFlight()
mutant(
    3,
    "changes are not looked at",
    instead(engine, "check_change", lambda *_, **__: None),
    _three.test_four_adds_in_one_tick_are_one_add,
)
_four = test_rules_log.TestRule04MembershipComesFromTheLog()
mutant(
    4,
    "configurations in the log are not noticed",
    instead(ConfigurationLog, "append", lambda *_: None),
    _four.test_a_restarted_node_counts_votes_in_the_configuration_of_its_log,
)
_five = test_rules_log.TestRule05EntriesCarryTheWholeConfiguration()
mutant(
    5,
    "truncation pops no configuration",
    instead(ConfigurationLog, "truncate_from", lambda *_: False),
    _five.test_truncation_pops_one_configuration_after_the_other,
)
mutant(
    5,
    "a snapshot stores today's configuration",
    instead(ConfigurationLog, "at", lambda log, _: log.latest),
    _five.test_a_snapshot_holds_the_configuration_at_its_own_index,
)


def _drop_the_tail(recover: Function) -> Function:
    def broken(*arguments: Any, **options: Any) -> Any:
        found = recover(*arguments, **options)
        if found.snapshot is not None:
            found.wal.rebase(found.applied, found.snapshot.meta.term)
        return found

    return broken


_six = test_rules_log.TestRule06RecoveryKeepsTheLog()
mutant(
    6,
    "a start drops what lies behind the snapshot",
    wrapped(harness, "recover", _drop_the_tail),
    _six.test_a_kept_tail_survives_the_restart,
)


def _any_chunk(receiver: Any, offset: int, data: bytes, crc: int) -> bool:
    receiver._file.write(data)
    receiver.offset = min(receiver.size_bytes, receiver.offset + len(data))
    return True


_seven = test_rules_disk.TestRule07Install()
mutant(
    7,
    "chunks are taken whatever their offset",
    instead(SnapshotReceiver, "add", _any_chunk),
    _seven.test_a_chunk_that_was_not_asked_for_changes_nothing,
)


def _remove_first(writer: Function) -> Function:
    def broken(store: Any, meta: Any) -> Any:
        for name in store._files.listdir(store._directory):
            store._files.remove(os.path.join(store._directory, name))
        return writer(store, meta)

    return broken


_eight = test_rules_disk.TestRule08NoSerializerHooks()
mutant(
    8,
    "the old snapshot goes before the new one is there",
    wrapped(SnapshotStore, "writer", _remove_first),
    _eight.test_the_last_good_snapshot_stays_until_the_next_is_complete,
)
_nine = test_rules_disk.TestRule09VotesAreASet()
bug(9, "count-votes-twice", _nine.test_the_same_voter_counts_once)
bug(9, "count-late-votes", _nine.test_grants_of_an_earlier_attempt_count_nothing)
_ten = test_rules_disk.TestRule10AWipedNodeIsANewNode()
mutant(
    10,
    "an id is a name only",
    instead(identity, "make_raft_id", lambda name, _: f"{name}-0"),
    _ten.test_its_raft_id_is_its_name_and_what_was_minted_with_the_directory,
)


def _damage_is_a_torn_tail(recover: Function) -> Function:
    def broken(*arguments: Any) -> Any:
        try:
            return recover(*arguments)
        except DamagedLog:
            return None

    return broken


_eleven = test_rules_disk.TestRule11TornOrDamaged()
mutant(
    11,
    "damage counts as a torn tail",
    wrapped(wal, "recover", _damage_is_a_torn_tail),
    lambda: _eleven.test_a_flipped_bit_in_what_was_synced_is_never_cut(0.4),
)
_twelve = test_rules_disk.TestRule12GroupCommit()
bug(12, "acknowledge-before-sync", _twelve.test_a_followers_acknowledgement_waits_for_its_disk)
mutant(
    12,
    "votes leave before they are durable",
    lambda: planted("acknowledge-before-sync"),
    _twelve.test_a_vote_waits_for_its_disk,
)
bug(12, "leader-counts-early", _twelve.test_a_single_core_commits_only_what_its_disk_holds)

# Wrong answers -----------------------------------------------------------------------------------

_thirteen = test_rules_state.TestRule13SessionsAreOpenedThroughTheLog()
mutant(
    13,
    "a session is not asked for",
    instead(StateMachine, "_without_session", lambda machine, envelope: machine._run(envelope)),
    lambda: _thirteen.test_an_unknown_session_is_refused_and_never_created(77),
)
_fourteen = test_rules_state.TestRule14TheExactlyOnceTable()
bug(
    14,
    "no-exactly-once",
    _fourteen.test_it_keeps_refusals_too,
)
_fifteen = test_rules_node.TestRule15AnInstallJumpsOverWaitingEntries()
mutant(
    15,
    "callers are forgotten at an install",
    instead(Replica, "restored", lambda *_: None),
    _fifteen.test_what_the_snapshot_knows_is_answered_from_it,
)
_sixteen = test_office.TestRule16Lease()
bug(
    16,
    "lease-from-the-answer",
    _sixteen.test_it_lasts_from_the_sending_of_what_a_majority_has_answered,
)
bug(
    16,
    "break-lease-promise",
    _sixteen.test_a_follower_keeps_its_promise_though_the_stream_to_the_leader_was_reset,
)
mutant(
    16,
    "a restart forgets the promise",
    instead(Deadline, "started", Deadline.redraw),
    _sixteen.test_a_restarted_follower_grants_nothing_for_a_lease,
)
_seventeen = test_rules_answers.TestRule17ReadIndex()
bug(
    17,
    "read-without-round",
    _seventeen.test_a_round_is_not_confirmed_by_a_minority_or_another_round,
)
bug(17, "read-before-no-op", _seventeen.test_no_read_before_an_entry_of_the_own_term_is_committed)


def _believe(on_feed: Function) -> Function:
    def broken(follower: Any, link: Any, message: Any) -> None:
        follower._queued, follower._queued_term = message.prev_index, message.prev_term
        on_feed(follower, link, message)

    return broken


_eighteen = test_rules_node.TestRule18Replicants()
mutant(
    18,
    "a feed is believed wherever it begins",
    wrapped(Follower, "on_feed", _believe),
    lambda: _eighteen.test_what_does_not_continue_its_log_stops_it(2, 2),
)
_nineteen = test_rules_node.TestRule19TheLogsClock()
mutant(
    19,
    "the clock starts from what is applied",
    instead(Replica, "elected", lambda replica, _: replica.clock.elected(replica.machine.now)),
    _nineteen.test_a_new_leader_starts_behind_the_largest_stamp_of_the_unapplied_tail,
)


def _raise(machine: Any, plugin: str, command: Any, error: Exception) -> Any:
    raise error


_twenty = test_rules_state.TestRule20Determinism()
mutant(
    20,
    "a plugin's mistake stops the node",
    instead(StateMachine, "_refusal", _raise),
    lambda: _twenty.test_any_other_exception_is_an_undone_refusal_on_every_node("key"),
)

# Stalls ------------------------------------------------------------------------------------------

_terms = test_rules_stalls.TestRule21TermsOnEveryMessage()
mutant(
    21,
    "a higher term in an answer is dropped in silence",
    instead(Engine, "_settle", lambda self, sender, term: term == self.term),
    _terms.test_a_follower_with_a_higher_term_is_not_stranded,
)
_deadlines = test_rules_stalls.TestRule22Deadlines()
mutant(
    22,
    "a step-down draws no deadline",
    instead(Deadline, "redraw", lambda *_: None),
    _deadlines.test_a_leader_that_steps_down_waits_before_it_campaigns,
)


def _not_sticky(judge_vote: Function) -> Function:
    return lambda request, **known: judge_vote(request, **{**known, "leader_alive": False})


mutant(
    22,
    "a request touches the term before it is filtered",
    wrapped(campaigning, "judge_vote", _not_sticky),
    _deadlines.test_a_request_is_filtered_before_it_touches_the_term,
)
_strangers = test_rules_stalls.TestRule23Strangers()
mutant(
    23,
    "a removed node is not told",
    instead(Engine, "removed", lambda *_: False),
    _strangers.test_a_removed_node_that_asks_for_votes_loses_its_stream,
)


def _next_goes_back(acknowledged: Function) -> Function:
    def broken(progress: Any, match: int, last_index: int) -> bool:
        news: bool = acknowledged(progress, match, last_index)
        progress.next = match + 1
        return news

    return broken


_progress = test_rules_stalls.TestRule24Progress()
mutant(
    24,
    "an old acknowledgement moves next back",
    wrapped(Progress, "acknowledged", _next_goes_back),
    _progress.test_an_old_acknowledgement_moves_nothing_back,
)


def _one_step_back(rejected: Function) -> Function:
    return lambda progress, prev, hint_term, hint_index, log: rejected(
        progress, prev, 0, max(prev, 1), log
    )


mutant(
    24,
    "the leader steps back one index at a time",
    wrapped(Progress, "rejected", _one_step_back),
    _progress.test_a_follower_far_behind_is_found_term_by_term,
)
_sending = test_rules_bounds.TestRule25SnapshotSending()
mutant(
    25,
    "the log forgets what lies behind a snapshot in transit",
    instead(Leading, "in_transit", lambda _: []),
    _sending.test_the_log_is_kept_from_the_snapshot_in_transit,
)


def _beat_for_ever(self: Engine, now: float) -> None:
    if self.leading is not None:
        self.leading.heartbeat(now)
        self.arm()


_hung = test_rules_bounds.TestRule26AHungDisk()
mutant(
    26,
    "heartbeats go on although the disk hangs",
    instead(Engine, "_heartbeat_while_frozen", _beat_for_ever),
    _hung.test_heartbeats_go_on_for_one_shortest_time_out,
)
_late = test_rules_bounds.TestRule27LateTimers()
mutant(
    27,
    "a late timer is believed at once",
    instead(Engine, "_alarm", lambda self: self._alarm_heard()),
    _late.test_what_waits_in_the_sockets_is_read_before_a_deadline_is_judged,
)
_slices = test_rules_bounds.TestRule28RecoveryInSlices()
mutant(
    28,
    "one tick applies everything",
    instead(engine, "APPLY_ENTRIES_PER_TICK", 10**9),  # type: ignore[arg-type]
    _slices.test_a_tick_applies_a_bounded_number_of_entries,
)


def _settle_for_all(self: Engine, sender: str, term: int) -> bool:
    if term > self.term:
        self.become_follower(term, None)
    return term == self.term


_removed = test_rules_bounds.TestRule29RemovedPeers()
mutant(
    29,
    "answers of removed members count",
    instead(Engine, "_settle", _settle_for_all),
    _removed.test_their_answers_are_ignored,
)
_down = test_detector.TestRule30NodeDown()
mutant(
    30,
    "the death of an upstream gives no grace",
    wrapped(FailureDetector, "_reported", lambda reported: lambda *seen: reported(*seen) and set()),
    _down.test_the_replicants_of_a_core_that_died_get_a_full_period_to_move,
)
mutant(
    30,
    "time in which the leader stood still is silence",
    instead(failure_detector, "STEP_MAX_S", 1e9),
    test_failure_detector.test_time_in_which_the_leader_stood_still_is_no_silence,
)
mutant(
    30,
    "old reports confirm a death",
    wrapped(
        FailureDetector,
        "report",
        lambda report: lambda self, core, heard, made_at: report(self, core, heard, 1e9),
    ),
    test_failure_detector.test_reports_made_before_the_deadline_was_noticed_do_not_count,
)


def _unlimited(append_batches: Function) -> Function:
    def broken(self: Any) -> None:
        with _limits(self._engine, batch_bytes_max=1 << 40, uncommitted_bytes_max=1 << 50):
            append_batches(self)

    return broken


_bounds = test_rules_bounds.TestRule31Bounds()
mutant(
    31,
    "one tick makes one entry, however large",
    wrapped(Leading, "_append_batches", _unlimited),
    _bounds.test_what_one_tick_gathers_is_split_at_the_limit_of_a_batch,
)
mutant(
    31,
    "costly commands are taken as they come",
    wrapped(
        Composition,
        "take",
        lambda take: (
            lambda self, size, count, flight, marks, reach: take(
                self, size, count, flight, (), reach
            )
        ),
    ),
    test_composition.test_an_entry_and_the_entries_on_their_way_hold_a_bounded_share,
)
mutant(
    31,
    "origins have no shares, only sessions",
    wrapped(Composition, "add", lambda add: lambda self, commands, origin="": add(self, commands)),
    test_composition.test_an_origin_gains_nothing_by_further_sessions,
)
mutant(
    28,
    "an entry is applied in one turn, however long that takes",
    wrapped(Applying, "run", lambda run: lambda self, until: run(self, float("inf"))),
    test_applying.test_a_long_entry_takes_many_turns_and_moves_the_applied_index_once,
)
mutant(
    31,
    "what is uncommitted has no bound",
    wrapped(Leading, "_append_batches", _unlimited),
    _bounds.test_what_is_not_committed_is_bounded,
)
