"""membership.py: the configuration is a function of the log's prefix, whatever order it came in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftkv.errors import Diverged
from raftkv.raft.membership import (
    EMPTY,
    Configuration,
    ConfigurationLog,
    decode,
    encode,
    make_raft_id,
    name_of,
)

ids = st.lists(st.text("abc-", min_size=1, max_size=4), max_size=5, unique=True).map(sorted)


@given(ids, ids)
def test_a_configuration_survives_its_encoding(voters: list[str], learners: list[str]) -> None:
    configuration = Configuration(tuple(voters), tuple(learners))
    assert decode(encode(configuration)) == configuration


@given(st.binary(max_size=60))
def test_other_bytes_are_a_fault_and_nothing_else(body: bytes) -> None:
    try:
        found = decode(body)
    except Diverged:
        return
    assert decode(encode(found)) == found


@given(st.sets(st.sampled_from("abcdelx")), st.integers(0, 5))
def test_a_majority_is_more_than_half_of_the_voters(who: set[str], voters: int) -> None:
    configuration = Configuration(tuple("abcde"[:voters]), ("l",))
    assert configuration.majority(who) is (2 * len(who & set("abcde"[:voters])) > voters)


def test_nobody_is_a_majority_of_nobody() -> None:
    assert not EMPTY.majority({"a"})


def test_names_and_raft_ids() -> None:
    assert make_raft_id("core-1", "1f") == "core-1-1f"
    assert name_of("core-1-1f") == "core-1"
    configuration = Configuration(("a-1", "b-2"), ("l-3",))
    assert configuration.members == ("a-1", "b-2", "l-3")
    assert configuration.raft_id_of("b") == "b-2"
    assert configuration.raft_id_of("l") == "l-3"
    assert configuration.raft_id_of("b-2") is None


class Prefixes(RuleBasedStateMachine):
    """Against a naive model: a dict of all entries of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.at_base = 1, EMPTY
        self.last = 1
        self.entries: dict[int, Configuration] = {}
        self.log = ConfigurationLog(1, EMPTY)

    def expected(self, index: int) -> Configuration:
        known = [i for i in self.entries if i <= index]
        return self.entries[max(known)] if known else self.at_base

    @rule(gap=st.integers(1, 4), number=st.integers(0, 99))
    def append(self, gap: int, number: int) -> None:
        self.last += gap
        self.entries[self.last] = Configuration((f"v{number}",))
        self.log.append(self.last, self.entries[self.last])

    @rule(back=st.integers(0, 9))
    def truncate(self, back: int) -> None:
        index = max(self.base + 1, self.last - back)
        before = self.expected(self.last)
        fell = [i for i in self.entries if i >= index]
        for i in fell:
            del self.entries[i]
        self.last = max(self.base, min(self.last, index - 1))
        assert self.log.truncate_from(index) is bool(fell)
        assert fell or self.log.latest == before

    @rule(forward=st.integers(0, 6), keep=st.booleans())
    def rebase(self, forward: int, keep: bool) -> None:
        index = self.base + forward
        configuration = self.expected(index)
        self.entries = {i: c for i, c in self.entries.items() if keep and i > index}
        self.base, self.at_base = index, configuration
        self.last = max([index, *self.entries])
        self.log.rebase(index, configuration, keep_behind=keep)

    @invariant()
    def every_prefix_says_the_same(self) -> None:
        for index in range(self.base, self.last + 2):
            assert self.log.at(index) == self.expected(index)
        assert self.log.latest == self.expected(self.last)
        assert self.log.latest_index == max([self.base, *self.entries])


TestPrefixes = Prefixes.TestCase
TestPrefixes.settings = settings(max_examples=40, stateful_step_count=30)


def test_configurations_come_in_order() -> None:
    log = ConfigurationLog(5, EMPTY)
    with pytest.raises(AssertionError):
        log.append(5, EMPTY)
