"""detector.py: which nodes are declared dead, by which node, and after how long (rule 30)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raftkv.config import RaftTimes
from raftkv.detector import LOOK_S, PERIOD_S, REPORT_DELAY_S, Detector
from raftkv.failure_detector import Verdict
from raftkv.presence import Stream
from raftkv.raft import wire
from raftkv.raft.changing import add_learner
from raftkv.state import Member
from tests.raft.harness import MAX_S, A, B, Bench, C, FakeLink, accepted, append

DOWN_S = 3.0
# From the end of a period to the verdict. The leadership is noticed, the deadline is noticed,
# reports confirm it, and the leader looks again.
SLACK_S = 3 * LOOK_S + REPORT_DELAY_S + 0.2
TIMES = RaftTimes(node_down_ms=int(DOWN_S * 1000))


# Under which c has asked for its session.
NONCE = 99


def follow_link(name: str) -> Any:
    link: Any = FakeLink(f"{name}-1")
    link.peer_name, link.purpose = name, "follow"
    return link


class Watch:
    """Core a, which leads cores b and c; what its detector declares. r1 and r2 are replicants."""

    def __init__(self, times: RaftTimes = TIMES) -> None:
        self.bench = Bench(A, times=times)
        self.bench.application.core_format = 1
        self.term = self.bench.lead()
        names = {"a": A, "b": B, "c": C, "r1": "r1-1", "r2": "r2-1"}
        self.members = {}
        for name, raft_id in names.items():
            role = "core" if name in "abc" else "replicant"
            self.members[name] = Member(name, role, raft_id, "", None, 1, True, 0)
        self.declared: list[str] = []
        self.fed: Sequence[str] = ()
        self.feeds: dict[str, Any] = {}
        for link in self.bench.links.values():
            link.peer_name = link.peer_id.partition("-")[0]  # type: ignore[attr-defined]
        self.detector = Detector(
            self.bench.engine, lambda: self.members, self.streams, self.down, self.session_of
        )
        self.detector.start()

    def down(self, verdict: Verdict, valid: Callable[[], bool]) -> None:
        assert valid()
        self.valid = valid
        self.declared.append(verdict.name)

    def pause(self, seconds: float) -> None:
        """The process stands still: nothing runs, and then everything that is due at once."""
        self.bench.runtime.now += seconds
        self.bench.runtime.advance(0.0)

    def streams(self) -> list[Stream]:
        """To the replicants that follow core a itself."""
        return [Stream(name, self.feeds.setdefault(name, follow_link(name))) for name in self.fed]

    def session_of(self, name: str, nonce: int) -> tuple[int, int] | None:
        return (5, 1) if (name, nonce) == ("c", NONCE) else None

    def pass_time(self, seconds: float, **feeding: Sequence[str]) -> None:
        """Time passes; the cores named answer the leader and report whom they feed."""
        end = self.bench.runtime.now + seconds
        while self.bench.runtime.now < end:
            for core, names in feeding.items():
                self.report(core, names)
            self.bench.runtime.advance(0.1)
            self.bench.runtime.settle()

    def report(self, core: str, names: Sequence[str]) -> None:
        link: Any = self.bench.links[f"{core}-1"]
        self.bench.receive(link.peer_id, accepted(self.bench.engine.term, 3))
        self.detector.on_liveness(link, wire.Liveness(list(names)))


class TestRule30NodeDown:
    def test_who_is_reported_by_a_core_lives(self) -> None:
        watch = Watch()
        watch.pass_time(4 * DOWN_S, b=["r1"], c=["r2"])
        assert watch.declared == []

    def test_a_replicant_that_becomes_a_core_is_heard_by_its_upstream_alone(self) -> None:
        """A learner by the configuration, until it has a log of its own."""
        watch = Watch()
        engine = watch.bench.engine
        learning = add_learner(engine.configuration, "r1-1")
        engine.change_configuration(learning, force=False)
        watch.pass_time(4 * DOWN_S, b=["r1"], c=["r2"])
        assert watch.declared == []

    def test_who_follows_the_leader_itself_lives(self) -> None:
        watch = Watch()
        watch.fed = ["r1", "r2"]
        watch.pass_time(4 * DOWN_S, b=[], c=[])
        assert watch.declared == []

    def test_who_is_reported_by_nobody_is_declared_dead(self) -> None:
        watch = Watch()
        watch.pass_time(DOWN_S, b=["r1"], c=[])
        assert watch.declared == []
        watch.pass_time(PERIOD_S + SLACK_S, b=["r1"], c=[])
        assert set(watch.declared) == {"r2"}

    def test_a_core_that_answers_nothing_is_declared_dead(self) -> None:
        watch = Watch()
        watch.fed = ["r1", "r2"]
        watch.pass_time(DOWN_S, b=[])
        assert watch.declared == []
        watch.pass_time(SLACK_S, b=[])
        assert set(watch.declared) == {"c"}

    def test_a_new_leader_gives_everybody_a_full_period(self) -> None:
        watch = Watch()
        watch.pass_time(DOWN_S - PERIOD_S, b=[], c=[])
        watch.bench.receive(B, append(watch.term + 1, 3, watch.term))
        watch.pass_time(2 * PERIOD_S)
        watch.bench.disconnect(B)
        for voter in (B, C):
            link: Any = watch.bench.links.get(voter) or watch.bench.connect(voter)
            link.peer_name = voter.partition("-")[0]
        watch.bench.lead()
        watch.pass_time(DOWN_S - PERIOD_S, b=[], c=[])
        assert watch.declared == []
        watch.pass_time(3 * PERIOD_S, b=[], c=[])
        assert set(watch.declared) == {"r1", "r2"}

    def test_the_replicants_of_a_core_that_died_get_a_full_period_to_move(self) -> None:
        """Else one dead upstream looks like many dead nodes."""
        watch = Watch()
        watch.pass_time(2 * DOWN_S, b=["r1"], c=["r2"])
        # It is slow to find another core: longer than the period since it was last seen.
        watch.pass_time(DOWN_S + MAX_S - 0.2, b=["r1"])
        assert set(watch.declared) == {"c"}
        watch.pass_time(DOWN_S, b=["r1", "r2"])
        assert set(watch.declared) == {"c"}

    def test_the_period_is_given_once_for_a_death_of_an_upstream(self) -> None:
        watch = Watch()
        watch.pass_time(2 * DOWN_S, b=["r1"], c=["r2"])
        watch.pass_time(MAX_S + 3 * PERIOD_S + DOWN_S, b=["r1"])
        assert "r2" in watch.declared
        assert "r1" not in watch.declared

    def test_only_a_core_is_believed_and_only_about_members(self) -> None:
        watch = Watch()
        link: Any = watch.bench.connect("z-1")
        link.peer_name = "z"
        for _ in range(50):
            watch.detector.on_liveness(link, wire.Liveness(["r1", "r2"]))
            watch.report("b", ["nobody"])
            watch.report("c", [])
            watch.bench.runtime.advance(0.1)
        assert set(watch.declared) == {"r1", "r2"}

    def test_who_does_not_lead_reports_to_the_leader_and_declares_nothing(self) -> None:
        watch = Watch()
        watch.fed = ["r1"]
        for _ in range(11):
            watch.bench.receive(B, append(watch.term + 1, 3, watch.term))
            watch.pass_time(PERIOD_S / 10)
        assert watch.bench.take(B, wire.Liveness) == [wire.Liveness(["r1"])]
        watch.pass_time(3 * DOWN_S)
        assert watch.declared == []

    def test_a_leader_that_stood_still_declares_nothing(self) -> None:
        watch = Watch()
        watch.fed = ["r1"]
        watch.pass_time(2 * DOWN_S, b=["r2"], c=[])
        watch.pause(3 * DOWN_S)
        watch.pass_time(DOWN_S, b=["r2"], c=[])
        assert watch.declared == []

    def test_many_short_pauses_add_up_to_no_death(self) -> None:
        watch = Watch()
        for _ in range(20):
            watch.pass_time(PERIOD_S, b=["r1", "r2"], c=[])
            watch.pause(MAX_S - 0.2)
        assert watch.declared == []

    def test_a_verdict_is_void_once_the_leadership_has_ended(self) -> None:
        watch = Watch()
        watch.fed = ["r1", "r2"]
        watch.pass_time(DOWN_S + SLACK_S, b=[])
        assert watch.valid()
        watch.bench.receive(B, append(watch.term + 1, 3, watch.term))
        watch.bench.runtime.settle()
        assert not watch.valid()


class TestRule30Presence:
    """From core format 2 on: heard is what has said so, not what has an open stream."""

    def test_every_node_that_is_present_lives(self) -> None:
        watch = Present()
        watch.fed = ["r1"]
        watch.go(4 * DOWN_S, present="b c r1", heard={"b": "a c", "c": "a b r2"})
        assert watch.declared == []

    def test_a_time_below_two_report_periods_is_no_death(self) -> None:
        """Replicants follow the leader alone, and one `Presence` of each is late by a period."""
        watch = Present(RaftTimes(node_down_ms=500))
        watch.fed = ["r1", "r2"]
        for _ in range(6):
            watch.go(0.2, present="b c r1 r2", heard={"b": "a c", "c": "a b"})
            watch.go(2 * PERIOD_S, present="", heard={"b": "a c", "c": "a b"})
        assert watch.declared == []

    def test_answers_to_append_messages_are_not_enough(self) -> None:
        """Its consensus is alive, in an incarnation that the log does not know."""
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.incarnations["c"] = 2
        watch.go(DOWN_S + 2 * PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        assert set(watch.declared) == {"c"}

    def test_an_open_stream_is_not_enough(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.go(PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        watch.go(DOWN_S + 2 * PERIOD_S, present="b c r1", heard={"b": "c", "c": "b"})
        assert set(watch.declared) == {"r2"}

    def test_a_link_that_only_has_its_name_shows_no_life_of_a_core(self) -> None:
        """It is of the machine that it was on before, say, which went without a word."""
        watch = Present()
        watch.fed = ["r1", "r2"]
        other: Any = FakeLink("c-2")
        other.peer_name, other.purpose = "c", "raft"
        watch.go(PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        watch.bench.engine.links["c-2"] = other
        watch.go(4 * DOWN_S, present="b r1 r2", heard={"b": ""})
        assert set(watch.declared) == {"c"}

    def test_a_core_that_another_core_has_heard_lives(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.be_present("c")
        watch.go(4 * DOWN_S, present="b r1 r2", heard={"b": "c"})
        assert watch.declared == []

    def test_a_report_of_a_core_whose_disk_hangs_counts(self) -> None:
        """It acknowledges no entry for as long, and has heard its replicant."""
        watch = Present()
        watch.fed = ["r1"]
        how: dict[str, Any] = {"present": "b c r1", "heard": {"b": "c", "c": "b r2"}}
        watch.go(2 * PERIOD_S, **how)
        watch.go(4 * DOWN_S, **how, acknowledging="b")
        assert watch.declared == []

    def test_reports_are_asked_for_as_soon_as_a_deadline_is_noticed(self) -> None:
        """A verdict comes two looks after the deadline, not a period later."""
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.go(2 * PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        silent_at = watch.bench.runtime.now
        while not watch.declared:
            watch.go(0.1, present="b c r1", heard={"b": "c", "c": "b"})
            assert watch.bench.runtime.now - silent_at < 2 * DOWN_S
        assert set(watch.declared) == {"r2"}
        assert watch.bench.runtime.now - silent_at <= DOWN_S + 2 * LOOK_S + 0.2

    @pytest.mark.parametrize("late_s", [0.01, 0.1, 0.2])
    def test_what_came_just_before_the_stream_ended_counts(self, late_s: float) -> None:
        """Between two looks: the stream is gone at the next one."""
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.go(PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        watch.go(PERIOD_S, present="b c r1", heard={"b": "c", "c": "b"})
        watch.bench.runtime.advance(late_s)
        watch.be_present("r2")
        heard_at = watch.bench.runtime.now
        watch.fed = ["r1"]
        while not watch.declared:
            watch.go(0.1, present="b c r1", heard={"b": "c", "c": "b"})
        assert watch.bench.runtime.now - heard_at >= DOWN_S

    def test_a_deadline_that_nothing_confirms_brings_no_flood_of_periods(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.go(PERIOD_S, present="b c r1 r2", heard={"b": "c", "c": "b"})
        before = watch.round
        watch.go(3 * DOWN_S, present="b r1 r2", heard={"b": "c"})
        assert watch.declared == []
        assert watch.round - before <= 3 * DOWN_S / PERIOD_S + 1

    def test_a_report_about_another_incarnation_is_none(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.be_present("c")
        watch.incarnations["c"] = 2
        watch.go(DOWN_S + 2 * PERIOD_S, present="b r1 r2", heard={"b": "c"})
        assert set(watch.declared) == {"c"}

    def test_a_node_without_a_session_is_known_by_its_nonce(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.incarnations["c"] = 0
        watch.go(4 * DOWN_S, present="b c r1 r2", heard={"b": "", "c": "b"})
        assert watch.declared == []

    def test_reports_about_periods_of_another_term_do_not_count(self) -> None:
        watch = Present()
        watch.fed = ["r1", "r2"]
        watch.be_present("c")
        watch.echoed_term = watch.term - 1
        watch.go(4 * DOWN_S, present="b r1 r2", heard={"b": ""})
        assert watch.declared == []

    def test_a_follower_answers_the_leader_with_a_report(self) -> None:
        watch = Present()
        watch.fed = ["r1"]
        term = watch.term + 1
        watch.bench.receive(B, append(term, 3, watch.term))
        watch.bench.runtime.settle()
        links: Any = watch.bench.links
        watch.be_present("c r1")
        links[B].messages.clear()
        watch.detector.on_presence(links[B], wire.Presence(1, 0, term, 17))
        assert watch.bench.take(B, wire.Presence) == [
            wire.Presence(4, 0, term, 17, [("b", 1, 0), ("c", 1, 0), ("r1", 1, 0)])
        ]

    def test_a_core_whose_disk_holds_up_its_term_answers_the_next_leader(self) -> None:
        """It is heard, so a report that it owed would hold up every verdict about a replicant."""
        watch = Present()
        term = watch.term + 1
        watch.bench.receive(B, append(term, 3, watch.term))
        watch.bench.runtime.settle()
        links: Any = watch.bench.links
        for leader, of_term in ((C, term + 1), (B, term - 1)):
            links[leader].messages.clear()
            watch.detector.on_presence(links[leader], wire.Presence(1, 0, of_term, 4))
        assert watch.bench.take(C, wire.Presence) == [
            wire.Presence(4, 0, term + 1, 4, [("b", 1, 0), ("c", 1, 0)])
        ]
        assert watch.bench.take(B, wire.Presence) == []

    def test_at_format_1_nothing_of_it_is_sent(self) -> None:
        watch = Watch()
        watch.fed = ["r1"]
        watch.pass_time(3 * PERIOD_S, b=[], c=[])
        links: list[Any] = list(watch.bench.links.values())
        sent = [message for link in links for message in link.messages]
        assert not any(isinstance(message, wire.Presence) for message in sent)


class Present(Watch):
    """The same at core format 2."""

    def __init__(self, times: RaftTimes = TIMES) -> None:
        super().__init__(times)
        self.bench.application.core_format = 2
        self.detector.identity = lambda: (4, 0)
        self.incarnations = dict.fromkeys("abc", 1)
        self.echoed_term = self.term
        for link in self.bench.links.values():
            link.purpose = "raft"  # type: ignore[attr-defined]
        self.round = 0

    def link(self, name: str) -> Any:
        link: Any = self.bench.links.get(f"{name}-1")
        if link is None:
            self.streams()
            link = self.feeds[name]
        return link

    def identity(self, name: str) -> tuple[int, int]:
        incarnation = self.incarnations.get(name, 1)
        return (incarnation, 0 if incarnation else NONCE)

    def be_present(self, names: str) -> None:
        for name in names.split():
            self.detector.on_presence(self.link(name), wire.Presence(*self.identity(name)))

    def go(
        self, seconds: float, *, present: str, heard: dict[str, str], acknowledging: str = "bc"
    ) -> None:
        """Time passes; nodes are present, and cores report about the leader's latest period."""
        end = self.bench.runtime.now + seconds
        while self.bench.runtime.now < end:
            self.be_present(present)
            for core in acknowledging:
                self.bench.receive(f"{core}-1", accepted(self.bench.engine.term, 3))
            for core, names in heard.items():
                report = [(name, *self.identity(name)) for name in names.split()]
                for message in self.bench.take(f"{core}-1", wire.Presence):
                    self.round = max(self.round, message.round)
                answer = wire.Presence(*self.identity(core), self.echoed_term, self.round, report)
                self.detector.on_presence(self.link(core), answer)
            self.bench.runtime.advance(0.1)
            self.bench.runtime.settle()
