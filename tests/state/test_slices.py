"""An entry is applied in slices; the state and the answers do not depend on how it is cut."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.errors import Diverged
from raftkv.kv import KV, Compare, Put, PutOp, Txn
from raftkv.state.batch import Envelope, encode_batch
from raftkv.state.machine import StateMachine
from raftkv.state.slicing import SLICE_COMMANDS, SLICE_ROWS
from tests.state.harness import encode, node_up

KEYS = 3 * SLICE_COMMANDS


class Log:
    """A machine with a node's session in it."""

    def __init__(self) -> None:
        self.machine = StateMachine([KV()])
        self.machine.skip(1)
        up = node_up(9, "n1", self.machine)
        ((_, _, opened),) = self.machine.apply(
            2, encode_batch(1, [Envelope(0, 9, 0, "core", encode(up))])
        )
        self.session: int = opened.session
        self.seq = 0

    def body(self, *commands: Any) -> bytes:
        envelopes = []
        for command in commands:
            self.seq += 1
            envelopes.append(Envelope(self.session, self.seq, 0, "kv", encode(command)))
        return encode_batch(1, envelopes)

    @property
    def revision(self) -> int:
        revision: int = self.machine.view("kv").table("meta").get("revision", 1)
        return revision


def puts(count: int = KEYS) -> list[Put]:
    return [Put(b"%06d" % number, b"v") for number in range(count)]


def poison() -> Txn:
    """A write that looks at all keys first."""
    return Txn(
        compare=(Compare(b"\0", "version", ">", 0, b"\0"),), success=(PutOp(b"000000", b"p"),)
    )


def test_the_index_moves_at_the_end_and_readers_see_whole_commands_before_it() -> None:
    log = Log()
    revisions = []
    for outcomes in log.machine.slices(3, log.body(*puts())):
        assert outcomes, "a slice without a command"
        assert outcomes[-1][2].revision == log.revision, "the last answer is what a reader finds"
        revisions.append((log.machine.index, log.machine.view("kv").index, log.revision))
        assert log.machine.newest_index == 3, "what has applied that shows what was answered"
    assert log.machine.newest_index == 3
    assert revisions == [
        (2, 2, 1 + SLICE_COMMANDS),
        (2, 2, 1 + 2 * SLICE_COMMANDS),
        (3, 3, 1 + 3 * SLICE_COMMANDS),
    ]


def test_an_entry_of_few_commands_is_one_slice() -> None:
    log = Log()
    assert len(list(log.machine.slices(3, log.body(*puts(SLICE_COMMANDS))))) == 1
    assert len(list(log.machine.slices(4, log.body()))) == 1
    assert log.machine.index == 4


def test_a_command_that_looks_at_many_rows_ends_its_slice() -> None:
    log = Log()
    log.machine.apply(3, log.body(*puts(SLICE_ROWS + 1)))
    slices = list(log.machine.slices(4, log.body(poison(), poison(), poison())))
    # Each is left in the middle, too: then there is no outcome yet.
    assert [len(outcomes) for outcomes in slices if outcomes] == [1, 1, 1]
    assert len(slices) > 3


def test_the_same_state_and_answers_in_slices_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [*puts(), poison(), *puts(50), poison()]
    digests, answers = set(), []
    for rows, few in ((SLICE_ROWS, SLICE_COMMANDS), (1, 1), (10**9, 10**9)):
        monkeypatch.setattr("raftkv.state.machine.SLICE_ROWS", rows)
        monkeypatch.setattr("raftkv.state.machine.SLICE_COMMANDS", few)
        log = Log()
        answers.append(log.machine.apply(3, log.body(*commands)))
        digests.add(log.machine.digest())
    assert len(digests) == 1
    assert answers[0] == answers[1] == answers[2]


def test_listeners_get_the_changes_of_each_slice_before_its_callers_are_answered() -> None:
    log = Log()
    got: list[tuple[int, int]] = []
    log.machine.subscribe(lambda index, changes: got.append((index, len(changes))), ("kv",))
    told = 0
    for outcomes in log.machine.slices(3, log.body(*puts())):
        told += len(outcomes)
        # A put changes a key, the revision and the history.
        assert sum(changes for _, changes in got) == 3 * told
    assert {index for index, _ in got} == {3}


def test_in_the_middle_of_an_entry_nothing_else_is_applied_and_nothing_frozen() -> None:
    log = Log()
    slices = log.machine.slices(3, log.body(*puts()))
    next(slices)
    assert not log.machine.between_entries
    with pytest.raises(AssertionError):
        log.machine.freeze()
    for other in (3, 4):
        with pytest.raises(Diverged):
            log.machine.skip(other)
    with pytest.raises(Diverged):
        log.machine.apply(3, log.body(*puts(1)))
    list(slices)
    assert log.machine.between_entries
    log.machine.freeze().close()


@pytest.mark.parametrize("steps", [1, 2])
def test_a_snapshot_in_the_middle_of_an_entry_replaces_what_it_has_done(steps: int) -> None:
    other = Log()
    other.machine.apply(3, other.body(*puts(10)))
    other.machine.apply(4, other.body(Put(b"z", b"z")))
    log = Log()
    log.machine.subscribe(lambda index, changes: None, None)
    slices = log.machine.slices(3, log.body(*puts()))
    for _ in range(steps):
        next(slices)
    log.machine.restore(list(other.machine.freeze().slices(100)), 4)
    assert log.machine.digest() == other.machine.digest()
    for machine in (log.machine, other.machine):
        machine.apply(5, other.body(Put(b"y", b"y")))
        other.seq -= 1
    assert log.machine.digest() == other.machine.digest()


def test_a_reset_in_the_middle_of_an_entry_begins_with_nothing() -> None:
    log = Log()
    next(log.machine.slices(3, log.body(*puts())))
    log.machine.reset()
    log.machine.skip(1)
    assert log.machine.index == 1
    assert log.machine.digest() == _empty().digest()


def _empty() -> StateMachine:
    machine = StateMachine([KV()])
    machine.skip(1)
    return machine
