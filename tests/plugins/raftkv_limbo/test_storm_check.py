"""The checks of storms of the limbo, checked: what is right passes, and each wrong is found.

`Bench` plays a log: of every command it makes the tables that an honest plugin would leave behind,
and can be told to spoil them, or the answer, before they are judged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as with_

from raftkv.errors import Refused
from raftkv.plugin import Member, MemberChange, SettingChange
from raftkv.testing.storm_worlds import Answers
from raftkv_limbo.commands import (
    Ack,
    Acked,
    Condition,
    Confirmation,
    CreateSpace,
    Declare,
    Demote,
    DropSpace,
    Entry,
    Promote,
    Promoted,
    Rejected,
    RollBack,
    Rollback,
    RolledBackTo,
    Row,
    Space,
    Submit,
    Submitted,
    Transaction,
    Veto,
    Vetoed,
    Write,
)
from raftkv_limbo.refusals import (
    AlreadyConfirmed,
    ConditionFailed,
    InterferingPromote,
    NotSettled,
    QueueFull,
    SpaceBusy,
    UnknownSpace,
)
from raftkv_limbo.settings import SETTINGS
from raftkv_limbo.testing.storm_answers import (
    Hearing,
    Story,
    check_fates,
    check_story,
    check_turns,
    check_version,
    check_waiting_row,
)
from raftkv_limbo.testing.storm_check import check_step
from raftkv_limbo.testing.storm_ledger import Effect, Ledger, Seen, Step, seen_of, tag_of
from raftkv_limbo.testing.storm_quorum import QUORUMS, Basis, has_quorum, is_fast, nodes_needed

Spoil = Callable[[Seen], Seen]
DECIDES, VERDICT = "the log decides rightly", "one verdict for each position"
ORDER, ROWS, OWNER = (
    "positions are given in order",
    "rows are what was confirmed",
    "one owner a term",
)


def member(name: str, role: str = "core", incarnation: int = 1, *, up: bool = True) -> Member:
    return Member(name, role, f"{name}-id", "", None, incarnation, up, 0)


MEMBERS = {
    "n1": member("n1"),
    "n2": member("n2"),
    "n3": member("n3"),
    "r1": member("r1", "replicant"),
}
VOTERS = ("n1-id", "n2-id", "n3-id")
ALL: Mapping[str, Any] = {each.key: each.default for each in SETTINGS} | {"quorum": "N"}


class Bench:
    """A log in which all is well, until something is spoiled."""

    def __init__(self, **settings: Any) -> None:
        self.ledger = Ledger()
        self.seen = Seen()
        self.settings = {**ALL, **settings}
        self.members = dict(MEMBERS)
        self.index = 0
        self.do(CreateSpace("s", True))
        self.do(CreateSpace("a", False))

    def do(
        self,
        command: Any,
        node: str = "n1",
        *,
        result: Any = None,
        refusal: Exception | None = None,
        spoil: Spoil | None = None,
    ) -> list[str]:
        """Apply it; the checks that found something. What was spoiled is not kept."""
        self.index += 1
        origin = (node, self.members[node].incarnation) if node else None
        step = Step(
            index=self.index,
            serial=self.index,
            now=self.index,
            command=command,
            origin=origin,
            members=self.members,
            voters=VOTERS,
            settings=self.settings,
            before=self.seen,
            after=self.seen,
            result=result,
            refusal=refusal,
        )
        effect, _ = check_step(step, copy.deepcopy(self.ledger))
        after = self.seen if refusal is not None else self.honest(step, effect)
        honest = replace(step, after=after)
        if spoil is not None:
            spoiled = replace(step, after=spoil(after))
            _, found = check_step(spoiled, copy.deepcopy(self.ledger))
            return sorted({check for check, _ in found})
        effect, found = check_step(honest, self.ledger)
        self.ledger.note(honest, effect)
        self.seen = after
        return sorted({check for check, _ in found})

    def honest(self, step: Step, effect: Effect) -> Seen:
        """The tables that the step must leave behind."""
        ledger = copy.deepcopy(self.ledger)
        rollbacks = dict(self.seen.rollbacks)
        for number in effect.rolled_back:
            reason = f"{getattr(step.command, 'validator', '')} {step.origin} " + getattr(
                step.command, "reason", ""
            )
            node = "" if step.origin is None else step.origin[0]
            run = Rollback(number, effect.rolled_back[-1], step.index, 0, 0, reason, node)
            rollbacks[number] = run
        check_step(step, ledger)
        ledger.note(step, effect)
        index, at_ms, *why = effect.record
        confirmations = {
            number: Confirmation(number, index, ledger.term, at_ms, *why)
            for number in effect.confirmed
        }
        spaces = {
            name: Space(id_, sync, 0) for id_, (name, sync) in enumerate(ledger.spaces.items())
        }
        entries = {
            number: Entry(
                each.sync,
                each.independent,
                tuple(Write(*write) for write in each.writes),
                each.bytes,
                each.term,
                0,
                each.index,
            )
            for number, each in ledger.positions.items()
        }
        waiting = [ledger.positions[number] for number in ledger.queue]
        state = with_(
            self.seen.state,
            owner=ledger.owner,
            incarnation=ledger.incarnation,
            term=ledger.term,
            last=ledger.last,
            head=min(ledger.queue, default=0),
            pending=len(ledger.queue),
        )
        return Seen(
            state=state,
            spaces=spaces,
            rows={(spaces[space].id, key): Row(*row) for (space, key), row in ledger.rows.items()},
            pending={
                (spaces[space].id, key, each.number): value
                for each in waiting
                for space, key, value in each.writes
            },
            entries=entries,
            rollbacks=rollbacks,
            confirmations={**self.seen.confirmations, **confirmations},
        )

    # --- commands in short ---

    def promote(self, node: str = "n1") -> None:
        given = Promote(self.ledger.term, self.ledger.last)
        gone = len(self.ledger.queue)
        assert not self.do(given, node, result=Promoted(self.ledger.term + 1, 0, gone))

    def submit(self, *transactions: Transaction, node: str = "n1", **more: Any) -> list[str]:
        return self.do(self.command(*transactions), node, **{"result": self.entered(), **more})

    def command(self, *transactions: Transaction) -> Submit:
        return Submit(transactions, self.ledger.term)

    def entered(self, confirmed: int = 0, *rejected: Rejected) -> Submitted:
        term = self.ledger.term
        return Submitted(self.ledger.last + 1, self.index + 1, confirmed, term, rejected)

    def ack(self, *nodes: str, upto: int | None = None) -> list[str]:
        found: list[str] = []
        for node in nodes:
            found += self.do(Ack(upto or self.ledger.last), node, result=Acked(0))
        return found


def writes(space: str, key: bytes = b"k", value: bytes | None = b"1/0", **more: Any) -> Transaction:
    return Transaction((Write(space, key, value),), **more)


def rejected(refusal: Refused) -> Rejected:
    return Rejected.of(0, refusal)


def state(**changes: Any) -> Spoil:
    return lambda seen: replace(seen, state=with_(seen.state, **changes))


def owned(**settings: Any) -> Bench:
    bench = Bench(**settings)
    bench.promote()
    return bench


# --- what is right passes -------------------------------------------------------------------------


def test_a_whole_life_of_the_queue_passes() -> None:
    bench = owned()
    assert not bench.submit(writes("s"))
    assert not bench.submit(writes("a", b"x", b"2/0"))
    assert not bench.submit(writes("a", b"y", b"3/0", independent=True), result=bench.entered())
    assert bench.ledger.queue == [1, 2]
    assert not bench.ack("n1", "n2")
    assert bench.ledger.queue == [1, 2]
    assert not bench.ack("n3")
    assert bench.ledger.queue == []
    assert bench.ledger.rows == {
        ("a", b"y"): (b"3/0", 3),
        ("s", b"k"): (b"1/0", 1),
        ("a", b"x"): (b"2/0", 2),
    }
    assert [each.position for each in bench.ledger.decided] == [3, 1, 2]


def test_rolled_back_is_a_whole_end_of_the_queue_newest_first() -> None:
    bench = owned()
    for number in (1, 2, 3):
        assert not bench.submit(writes("s", b"%d" % number))
    assert not bench.do(RollBack(2, 1, "enough"), "n2", result=RolledBackTo(2, 3, 2))
    assert bench.ledger.queue == [1]
    assert [each.position for each in bench.ledger.decided] == [3, 2]
    assert bench.ledger.positions[3].reason.endswith("enough")


def test_a_promotion_takes_the_rest_and_the_term() -> None:
    bench = owned()
    assert not bench.submit(writes("s"))
    assert not bench.do(Promote(1, 0), "n2", result=Promoted(2, 0, 1))
    assert (bench.ledger.owner, bench.ledger.term) == ("n2", 2)
    assert bench.ledger.terms == {0: ("", 0), 1: ("n1", 1), 2: ("n2", 1)}


def test_a_fast_quorum_confirms_at_once() -> None:
    bench = owned(quorum="N / 2 + 1")
    assert not bench.submit(writes("s"), result=bench.entered(1))
    assert bench.ledger.rows == {("s", b"k"): (b"1/0", 1)}


def test_a_lower_quorum_and_a_new_life_count_at_once() -> None:
    bench = owned()
    bench.submit(writes("s"))
    bench.ack("n1", "n2")
    bench.settings["quorum"] = "2"
    assert not bench.do(SettingChange("quorum", "N", "2"), "")
    assert not bench.ledger.queue
    bench.settings["quorum"] = "N"
    bench.submit(writes("s", value=b"2/0"))
    bench.ack("n1", "n2")
    bench.members["n2"] = member("n2", incarnation=2)
    assert not bench.do(MemberChange(MEMBERS["n2"], bench.members["n2"], 1), "")
    assert not bench.ack("n3")
    assert bench.ledger.queue == [2], "what the former life of n2 said no longer counts"
    assert not bench.ack("n2")
    assert not bench.ledger.queue


def test_zones_and_validators_are_asked_besides() -> None:
    bench = owned(quorum="1", quorum_zones={"east": 1}, quorum_validators={"audit": 1})
    for node in ("n1", "n2"):
        assert not bench.do(Declare("east" if node == "n2" else "", ("audit",)), node)
    bench.submit(writes("s"))
    bench.ack("n1")
    assert bench.ledger.queue == [1]
    bench.ack("n2")
    assert bench.ledger.queue == [1]
    assert not bench.do(Ack(1, ("audit",)), "n1", result=Acked(1))
    assert not bench.ledger.queue


# --- each wrong is found --------------------------------------------------------------------------


def test_a_hole_and_a_position_too_many_are_found() -> None:
    bench = owned()
    command = bench.command(writes("s"))
    more = {"result": bench.entered()}
    assert ORDER in bench.do(command, spoil=state(last=2), **more)
    bench = owned()
    lost = lambda seen: replace(seen, entries={})  # noqa: E731
    assert bench.submit(writes("s"), spoil=lost) == [VERDICT, ORDER]
    bench = owned()
    other = lambda seen: replace(  # noqa: E731
        seen, entries={1: with_(seen.entries[1], writes=(Write("s", b"k", b"other"),))}
    )
    assert bench.submit(writes("s"), spoil=other) == [ORDER]


def test_confirmed_below_its_quorum_and_pending_above_it_are_found() -> None:
    bench = owned()
    bench.submit(writes("s"))
    bench.ack("n1")
    early = state(head=0, pending=0)
    assert VERDICT in bench.do(Ack(1), "n2", result=Acked(1), spoil=early)
    bench.ack("n2")
    late = state(head=1, pending=1)
    assert VERDICT in bench.do(Ack(1), "n3", result=Acked(1), spoil=late)


def test_rolling_back_what_is_confirmed_or_too_little_is_found() -> None:
    def more(seen: Seen) -> Seen:
        run = next(iter(seen.rollbacks.values()))
        return replace(seen, rollbacks={**seen.rollbacks, 1: with_(run, last=1)})

    bench = owned()
    bench.submit(writes("s"))
    bench.ack("n1", "n2", "n3")
    bench.submit(writes("s", b"x"))
    bench.submit(writes("s", b"y"))
    command = RollBack(2, 1, "enough")
    answer = RolledBackTo(2, 3, 2)
    assert bench.do(command, result=answer, spoil=more) == [VERDICT]
    less = lambda seen: replace(  # noqa: E731
        seen, rollbacks={n: run for n, run in seen.rollbacks.items() if n != 2}
    )
    assert VERDICT in bench.do(command, result=answer, spoil=less)
    assert bench.do(command, result=RolledBackTo(3, 3, 1), spoil=lambda s: s) == [DECIDES]
    assert DECIDES in bench.do(RollBack(1, 1, "no"), result=RolledBackTo(1, 3, 3))


def test_rows_that_nobody_confirmed_and_rows_in_a_wrong_order_are_found() -> None:
    bench = owned()
    dirty = lambda seen: replace(seen, rows={(0, b"k"): Row(b"1/0", 1)})  # noqa: E731
    assert bench.submit(writes("s"), spoil=dirty) == [ROWS]
    bench.submit(writes("s"))
    bench.submit(writes("s", value=b"2/0"))
    bench.ack("n1", "n2")
    assert bench.do(Ack(2), "n3", result=Acked(2), spoil=dirty) == [ROWS]


@pytest.mark.parametrize(
    "change",
    [{"owner": "n2"}, {"term": 7}, {"incarnation": 2}],
    ids=["owner", "term", "incarnation"],
)
def test_an_owner_that_nobody_promoted_is_found(change: dict[str, Any]) -> None:
    assert owned().submit(writes("s"), spoil=state(**change)) == [OWNER]


def test_a_write_of_a_stranger_or_a_stale_owner_that_enters_is_found() -> None:
    assert DECIDES in owned().submit(writes("s"), node="n2")
    bench = owned()
    bench.members["n1"] = member("n1", incarnation=2)
    assert DECIDES in bench.submit(writes("s"))
    bench = owned()
    assert DECIDES in bench.do(Submit((writes("s"),), 0), result=bench.entered())
    bench = Bench()
    assert DECIDES in bench.submit(writes("s"))
    assert not bench.submit(writes("a", b"x"), result=bench.entered(1))


def test_a_condition_that_does_not_hold_and_one_that_does_are_told_apart() -> None:
    bench = owned()
    bench.submit(writes("s"))
    meets = (Condition("s", b"k", "position", None, 1),)
    misses = (Condition("s", b"k", "exists", None, 0),)
    assert not bench.submit(writes("s", b"x", conditions=meets))
    assert DECIDES in bench.submit(writes("s", b"y", conditions=misses))
    bench = owned()
    bench.submit(writes("s"))
    refused = rejected(ConditionFailed("s", b"k", 1))
    answer = bench.entered(0, refused)
    assert not bench.submit(writes("s", b"x", conditions=misses), result=answer)
    answer = bench.entered(0, refused)
    assert DECIDES in bench.submit(writes("s", b"x", conditions=meets), result=answer)


def test_a_limit_that_is_exceeded_and_a_refusal_without_reason_are_found() -> None:
    bench = owned(queue_entries_max=1)
    bench.submit(writes("s"))
    full = rejected(QueueFull("entries", 1))
    assert not bench.submit(writes("s", b"x"), result=bench.entered(0, full))
    assert DECIDES in bench.submit(writes("s", b"x"))
    bench = owned()
    assert DECIDES in bench.submit(writes("s"), result=bench.entered(0, full))


def test_an_independent_one_that_touches_what_is_pending_is_found() -> None:
    bench = owned()
    bench.submit(Transaction((Write("s", b"k", b"1/0"), Write("a", b"k", b"1/1"))))
    assert DECIDES in bench.submit(writes("a", independent=True))


def test_a_promotion_that_must_be_refused_and_one_that_must_not_are_found() -> None:
    bench = owned()
    bench.submit(writes("s"))
    done = Promoted(2, 0, 1)
    assert DECIDES in bench.do(Promote(1, 1), "n2", result=done, spoil=lambda s: s)
    assert DECIDES in bench.do(Promote(0, 0), "n2", result=done, spoil=lambda s: s)
    assert not bench.do(Promote(1, 1), "n2", refusal=NotSettled(1, 1))
    assert not bench.do(Promote(0, 0), "n2", refusal=InterferingPromote("n1", 1))
    assert DECIDES in bench.do(Promote(1, 0), "n2", refusal=NotSettled(1, 0))
    assert DECIDES in bench.do(Demote(1, 0), "n2", result=done, spoil=lambda s: s)


def test_a_wrong_answer_to_a_veto_or_a_rollback_is_found() -> None:
    bench = owned(quorum_validators={"audit": 1})
    bench.do(Declare("", ("audit",)), "n2")
    bench.submit(writes("s"))
    veto = Veto(1, "audit", "bad")
    assert DECIDES in bench.do(veto, "n3", result=Vetoed("rolled back"), spoil=lambda s: s)
    assert DECIDES in bench.do(veto, "n2", result=Vetoed("confirmed"), spoil=lambda s: s)
    assert not bench.do(veto, "n2", result=Vetoed("rolled back"))
    assert not bench.do(veto, "n2", result=Vetoed("rolled back"))
    assert DECIDES in bench.do(RollBack(1, 1, ""), refusal=AlreadyConfirmed(1))


def test_a_space_that_is_dropped_under_a_pending_write_is_found() -> None:
    bench = owned()
    bench.submit(writes("s"))
    assert not bench.do(DropSpace("s"), refusal=SpaceBusy("s", 1))
    assert not bench.do(DropSpace("nowhere"), refusal=UnknownSpace("nowhere"))
    assert DECIDES in bench.do(DropSpace("a"), refusal=SpaceBusy("a", 1))
    space = lambda seen: replace(seen, spaces={})  # noqa: E731
    assert DECIDES in bench.submit(writes("s", b"x"), spoil=space)


# --- quorums --------------------------------------------------------------------------------------


def test_quorums_are_what_they_say() -> None:
    assert {text: function(5) for text, function in QUORUMS.items()} == {
        "N / 2 + 1": 3,
        "N": 5,
        "1": 1,
        "2": 2,
        "3": 3,
        "4": 4,
        "ceil(N * 2 / 3)": 4,
        "max(2, N - 1)": 4,
        "min(N, floor(N / 2) + 2)": 4,
        "(N + 3) / 2": 4,
    }


def test_who_counts_follows_the_voters_and_the_setting() -> None:
    basis = Basis(MEMBERS, VOTERS, ALL)
    assert (basis.n, basis.counting()) == (3, ["n1", "n2", "n3"])
    assert nodes_needed(basis) == 3
    members = Basis(MEMBERS, VOTERS, {**ALL, "quorum_over": "members"})
    assert members.n == 4
    less = Basis(MEMBERS, VOTERS[:2], {**ALL, "quorum": "N / 2 + 1"})
    assert (less.n, is_fast(less)) == (2, True)
    assert not is_fast(Basis(MEMBERS, (), {**ALL, "quorum": "1"}))
    assert not has_quorum(1, Ledger(), basis)


# --- answers, reads, hooks ------------------------------------------------------------------------


def story(number: int = 1, turn: int = 1, **more: Any) -> Story:
    given = (Write("s", b"k", b"%d/0" % number),)
    made = Story(number, "n1", 1, "complete", "ordered", given, (), 1.0, 0.0, turn=turn)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def settled() -> Bench:
    """1 is confirmed, 2 and 3 are rolled back, 4 is pending."""
    bench = owned()
    bench.submit(writes("s"))
    bench.ack("n1", "n2", "n3")
    bench.submit(writes("s", value=b"2/0"))
    bench.submit(writes("s", value=b"3/0"))
    bench.do(RollBack(2, 1, "enough"), result=RolledBackTo(2, 3, 2))
    bench.submit(writes("s", value=b"4/0"))
    return bench


def test_answers_are_held_against_the_log() -> None:
    ledger = settled().ledger
    reason, by = ledger.positions[2].reason, ledger.positions[2].by
    assert not check_story(story(1, outcome="confirmed", position=1, term=1), ledger)
    told = {"outcome": "rolled back", "position": 2, "reason": reason, "by": by}
    assert not check_story(story(2, **told), ledger)
    assert not check_story(story(4, outcome="still pending", position=4), ledger)
    assert not check_story(story(9, outcome="refused"), ledger)
    assert not check_story(story(1, outcome="unknown"), ledger)
    for wrong in (
        story(1, outcome="confirmed", position=2),
        story(1, outcome="confirmed", position=1, term=2),
        story(1, outcome="confirmed"),
        story(2, outcome="confirmed", position=2),
        story(2, **{**told, "reason": "another"}),
        story(1, outcome="refused"),
        story(4, outcome="not applied"),
    ):
        assert check_story(wrong, ledger), wrong


def test_a_transaction_that_entered_twice_is_found() -> None:
    bench = owned()
    bench.submit(writes("s"))
    bench.submit(writes("s", b"x"))
    assert "2 times" in check_story(story(1, outcome="unknown"), bench.ledger)[0]


def test_calls_of_one_process_keep_their_order() -> None:
    ledger = settled().ledger
    assert not check_turns([story(1, 1), story(2, 2), story(4, 3)], ledger)
    assert check_turns([story(1, 2), story(2, 1)], ledger)
    assert not check_turns([story(1, 2), story(2, 1, boots=2)], ledger)
    assert not check_turns([story(1, 2), story(2, 1, order="independent")], ledger)


def test_reads_show_a_confirmed_version_that_is_not_too_old() -> None:
    ledger, key = settled().ledger, ("s", b"k")
    assert check_version(key, None, 0, ledger) == (0, [])
    assert check_version(key, (b"1/0", 1), 0, ledger) == (1, [])
    assert check_version(key, None, 1, ledger)[1]
    assert check_version(key, (b"4/0", 4), 0, ledger)[1]


def test_pending_reads_show_the_queue_of_their_node() -> None:
    bench = settled()
    key = ("s", b"k")
    assert not check_waiting_row(key, (b"4/0", 4), bench.seen, bench.ledger)
    assert check_waiting_row(key, (b"1/0", 1), bench.seen, bench.ledger)
    assert check_waiting_row(key, None, bench.seen, bench.ledger)
    assert check_waiting_row(key, (b"3/0", 3), bench.seen, bench.ledger)


def test_the_fates_of_a_node_are_those_of_the_log_or_older_ones() -> None:
    bench = settled()
    assert not check_fates("n1", bench.seen, bench.ledger, whole=True)
    behind = replace(bench.seen, state=with_(bench.seen.state, last=1))
    assert not check_fates("n1", behind, bench.ledger, whole=False)
    assert check_fates("n1", behind, bench.ledger, whole=True)
    other = replace(bench.seen, rollbacks={})
    assert check_fates("n1", other, bench.ledger, whole=False)
    run = with_(bench.seen.rollbacks[2], reason="another")
    another = replace(bench.seen, rollbacks={**bench.seen.rollbacks, 2: run})
    assert check_fates("n1", another, bench.ledger, whole=False)


def hears(hearing: Hearing, ledger: Ledger, kind: str, number: int) -> list[str]:
    position = ledger.positions[number]
    given = [SimpleNamespace(space=s, key=k, value=v) for s, k, v in position.writes]
    return hearing.hear(kind, number, given, position.reason, position.by)


def test_hooks_hear_each_verdict_once_and_in_order() -> None:
    ledger = settled().ledger
    told = [("confirmed", 1), ("rolled back", 3), ("rolled back", 2)]
    right = Hearing("n1", ledger)
    assert [hears(right, ledger, *each) for each in told] == [[], [], []]
    assert right.is_complete
    for wrong in (
        [told[0], told[0]],
        [told[0], told[2]],
        [told[1], told[0]],
        [("confirmed", 2)],
        [("confirmed", 4)],
    ):
        hearing = Hearing("n1", ledger)
        found = [hears(hearing, ledger, *each) for each in wrong]
        assert found[-1], wrong
    first = Hearing("n1", ledger)
    hears(first, ledger, *told[0])
    assert not first.is_complete


def test_hooks_may_jump_with_a_snapshot_and_not_back() -> None:
    bench = settled()
    bench.ack("n1", "n2", "n3")
    ledger = bench.ledger
    hearing = Hearing("n1", ledger)
    assert not hears(hearing, ledger, "confirmed", 1)
    hearing.restored()
    assert not hears(hearing, ledger, "confirmed", 4)
    hearing.restored()
    assert hears(hearing, ledger, "confirmed", 1)
    others = hearing.hear("rolled back", 2, [], "", "")
    assert others


def test_values_tell_their_submission() -> None:
    assert [tag_of(each) for each in (b"12/0", b"x/1", b"", None)] == [12, 0, 0, 0]


def test_what_tables_show_is_read_as_it_is() -> None:
    bench = settled()

    def table(name: str) -> Any:
        rows = {"state": bench.seen.state} if name == "meta" else getattr(bench.seen, name)
        return SimpleNamespace(get=rows.get, scan=lambda: rows.items())

    assert seen_of(SimpleNamespace(table=table)) == bench.seen


def test_another_answer_at_the_same_place_of_the_log_is_told() -> None:
    answers = Answers()
    assert not answers.known((7, 1))
    answers.first((7, 1), "confirmed")
    assert answers.known((7, 1))
    assert not answers.check((7, 1), "confirmed", "Ack")
    assert answers.check((7, 1), "pending", "Ack") == ["Ack at (7, 1): confirmed, and now pending"]


def test_item_9_record_of_another_acknowledgement_is_found() -> None:
    bench = Bench()
    bench.promote()
    assert not bench.submit(writes("s"))
    for node in ("n1", "n2"):
        assert not bench.do(Ack(1), node, result=Acked(0))

    def other(seen: Seen) -> Seen:
        [(first, run)] = seen.confirmations.items()
        return replace(seen, confirmations={first: with_(run, by="n1")})

    def none(seen: Seen) -> Seen:
        return replace(seen, confirmations={})

    for spoil in (other, none):
        assert bench.do(Ack(1), "n3", result=Acked(1), spoil=spoil) == [VERDICT]
    assert not bench.do(Ack(1), "n3", result=Acked(1))
