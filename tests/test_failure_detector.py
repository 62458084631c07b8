"""failure_detector.py: the decision alone, over made-up worlds (rule 30)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.failure_detector import STEP_MAX_S, FailureDetector, Observed, Suspect, Verdict

DOWN_S = 4.0
LOOK_S = 0.25
TERM = 7


class Watcher:
    """A leader "a" among voters "a" to "e" (or fewer), and replicants "r" and "s"."""

    def __init__(self, voters: str = "abc", replicants: str = "r") -> None:
        self.voters = list(voters)
        self.suspects = [Suspect(name, 1, name, name in voters) for name in voters + replicants]
        self.decider = FailureDetector(DOWN_S)
        self.now = 100.0
        self.decider.begin(self.now)

    def look(
        self,
        heard: Iterable[str],
        reports: Mapping[str, Iterable[str]],
        *,
        step_s: float = LOOK_S,
        age_s: float = 0.0,
        alive: Iterable[str] | None = None,
    ) -> list[str]:
        """One step: the names that the leader has heard, and those that cores report."""
        self.now += step_s
        self.decider.step(self.now)
        for core, names in reports.items():
            self.decider.report(core, names, self.decider.clock - age_s)
        verdicts = self.decider.look(
            self.now,
            Observed(
                TERM,
                "a",
                self.voters,
                self.suspects,
                dict.fromkeys(heard, 0.0),
                ["a", *(reports if alive is None else alive)],
            ),
        )
        assert all(verdict == Verdict(verdict.name, 1, TERM) for verdict in verdicts)
        return [verdict.name for verdict in verdicts]

    def looks(self, seconds: float, heard: str, reports: Mapping[str, str]) -> set[str]:
        found: set[str] = set()
        for _ in range(round(seconds / LOOK_S)):
            found.update(self.look(heard, reports))
        return found


def test_a_core_that_no_voter_has_heard_is_dead_after_the_time() -> None:
    watcher = Watcher()
    assert watcher.looks(DOWN_S, "b", {"b": "r"}) == set()
    assert watcher.looks(2 * LOOK_S, "b", {"b": "r"}) == {"c"}


def test_a_core_that_the_leader_alone_does_not_hear_lives() -> None:
    assert Watcher().looks(5 * DOWN_S, "b", {"b": "cr"}) == set()


def test_the_word_of_the_accused_is_not_counted() -> None:
    """Of two voters the other one is accused: there is no majority without it."""
    assert Watcher("ab").looks(5 * DOWN_S, "r", {"b": ""}) == set()


def test_one_voter_alone_decides_by_itself() -> None:
    assert Watcher("a").looks(DOWN_S + 2 * LOOK_S, "", {}) == {"r"}


def test_reports_made_before_the_deadline_was_noticed_do_not_count() -> None:
    watcher = Watcher()
    late = DOWN_S + 3 * LOOK_S
    for _ in range(round(late / LOOK_S)):
        assert watcher.look("b", {"b": "r"}, age_s=late) == []
    assert watcher.look("b", {"b": "r"}) == ["c"]


def test_without_any_report_nothing_is_declared_dead() -> None:
    """Two voters are alive and have reported nothing: a replicant counts as heard."""
    watcher = Watcher()
    for _ in range(100):
        assert watcher.look("bc", {}, alive="bc") == []


def test_a_replicant_that_one_voter_has_heard_lives() -> None:
    assert Watcher().looks(5 * DOWN_S, "bc", {"b": "r", "c": ""}) == set()


def test_a_replicant_waits_for_every_voter_that_is_not_silent() -> None:
    watcher = Watcher()
    watcher.look("bc", {"b": "", "c": ""})
    for _ in range(round(2 * DOWN_S / LOOK_S)):
        assert watcher.look("bc", {"b": ""}, alive="bc") == []
    assert watcher.look("bc", {"b": "", "c": ""}) == ["r"]


def test_a_silent_voter_holds_nothing_up_after_a_full_period() -> None:
    watcher = Watcher()
    watcher.looks(DOWN_S, "bc", {"b": "", "c": "r"})
    # c falls silent. Until now it heard r.
    assert watcher.looks(DOWN_S, "b", {"b": ""}) <= {"c"}
    assert watcher.looks(3 * LOOK_S, "b", {"b": ""}) == {"c", "r"}


def test_time_in_which_the_leader_stood_still_is_no_silence() -> None:
    watcher = Watcher()
    watcher.looks(2 * DOWN_S, "bc", {"b": "r", "c": ""})
    assert watcher.look("", {"b": "", "c": ""}, step_s=100.0) == []
    assert watcher.looks(DOWN_S - STEP_MAX_S - LOOK_S, "", {"b": "", "c": ""}) == set()


def test_a_new_leadership_starts_the_time_again() -> None:
    watcher = Watcher()
    watcher.looks(DOWN_S, "b", {"b": "r"})
    watcher.decider.begin(watcher.now)
    assert watcher.looks(DOWN_S, "b", {"b": "r"}) == set()


def test_a_new_incarnation_starts_the_time_again() -> None:
    watcher = Watcher()
    watcher.looks(DOWN_S, "b", {"b": "r"})
    watcher.suspects = [Suspect(s.name, 2, s.raft_id, s.core) for s in watcher.suspects]
    for _ in range(round(DOWN_S / LOOK_S)):
        watcher.now += LOOK_S
        watcher.decider.report("b", "r", watcher.decider.clock + LOOK_S)
        seen = Observed(TERM, "a", "abc", watcher.suspects, {"b": 0.0}, "ab")
        assert watcher.decider.look(watcher.now, seen) == []


def test_which_core_is_isolated() -> None:
    watcher = Watcher("abcde", "")
    reports = {"b": "acde", "c": "abd", "d": "abc", "e": "ab"}
    watcher.look("bcd", reports)
    seen = Observed(TERM, "a", "abcde", watcher.suspects, dict.fromkeys("bcd", 0.0), "abcde")
    assert watcher.decider.isolated(seen) == ["e"]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[str, list[tuple[float, set[str], dict[str, set[str]]]]]:
    voters = "abcde"[: draw(st.integers(1, 5))]
    names = st.sets(st.sampled_from(voters + "rs"))
    step = st.tuples(
        st.sampled_from([0.1, LOOK_S, LOOK_S, LOOK_S, 1.0, 30.0]),
        names,
        st.dictionaries(st.sampled_from(voters), names),
    )
    return voters, draw(st.lists(step, min_size=1, max_size=80))


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_what_a_verdict_proves(
    world: tuple[str, list[tuple[float, set[str], dict[str, set[str]]]]],
) -> None:
    """In any world: the leader was attentive and deaf to the node long enough, and others agree."""
    voters, steps = world
    watcher = Watcher(voters, "rs")
    attentive, heard_at = 0.0, dict.fromkeys(voters + "rs", 0.0)
    latest: dict[str, set[str]] = {}
    for step_s, heard, reports in steps:
        attentive += min(step_s, STEP_MAX_S)
        heard_at.update(dict.fromkeys(heard, attentive))
        latest = {core: names for core, names in latest.items() if core in reports} | reports
        for name in watcher.look(heard, reports, step_s=step_s):
            assert name != "a"
            assert attentive - heard_at[name] > DOWN_S - 1e-6
            others = [core for core in voters if core not in ("a", name)]
            deny = [core for core in others if core in latest and name not in latest[core]]
            if name in voters:
                assert 1 + len(deny) > len(voters) // 2
            else:
                assert len(deny) == len([core for core in others if core in latest])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.data())
def test_a_dead_node_is_declared_dead_within_the_bound(count: int, data: st.DataObject) -> None:
    """While the leader runs and a majority reports, whatever was reported before."""
    voters = "abcde"[:count]
    watcher = Watcher(voters, "rs")
    names = st.sets(st.sampled_from(voters + "rs"))
    for _ in range(data.draw(st.integers(0, 30))):
        watcher.look(data.draw(names), {core: data.draw(names) for core in voters[1:]})
    dead = data.draw(st.sampled_from([*voters[1:], "r"]))
    rest = set(voters + "rs") - {dead}
    reports = {core: rest for core in voters[1:] if core != dead}
    found: set[str] = set()
    for _ in range(round((DOWN_S + 3 * LOOK_S) / LOOK_S)):
        found.update(watcher.look(rest, reports))
    assert found == (set() if count == 2 and dead == "b" else {dead})
