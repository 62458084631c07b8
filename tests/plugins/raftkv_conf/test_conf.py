"""Cluster-wide configuration on whole nodes in virtual time."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from raftkv.state.core import SetSetting
from raftkv.testing.world import WorldFailed
from raftkv_conf import (
    CONF_BYTES_MAX,
    HIDDEN,
    InvalidValue,
    NotSet,
    TooMuchConf,
    UnknownPath,
)
from tests.plugins.raftkv_conf.conf_world import ConfWorld


def test_a_value_is_checked_once_and_in_effect_everywhere() -> None:
    with ConfWorld() as world:
        assert world.get("mail.port") == {"core1": 25, "core2": 25, "core3": 25}
        done = world.set("core2", "mail.port", 587)
        assert (done.outcome, done.id) == ("ok", 1)
        world.reached(1)
        assert set(world.get("mail.port").values()) == {587}
        for room in world.rooms.values():
            assert room.brought == [("mail.port", 587)]
            assert room.told == [("mail.port", 587)]
        done = world.do("core1", world.conf("core1").unset("mail.port"))
        assert done.outcome == "ok"
        world.reached(2)
        assert set(world.get("mail.port").values()) == {25}
        assert {room.last("mail.port") for room in world.rooms.values()} == {25}
        # An async handler, and one that does nothing.
        world.set("core3", "mail.host", "example.org")
        world.set("core3", "mail.note", "y")
        world.reached(4)
        assert {room.last("mail.host") for room in world.rooms.values()} == {"example.org"}
        # Setting what is set already brings nothing about.
        world.set("core1", "mail.host", "example.org")
        assert world.rooms["core1"].brought.count(("mail.host", "example.org")) == 1


@pytest.mark.parametrize(
    ("path", "value", "error", "expected"),
    [
        ("mail.prot", 1, UnknownPath, "did you mean mail.port"),
        ("user.", 1, UnknownPath, "no such path"),
        ("nothing.like.it", 1, UnknownPath, "conf list"),
        ("mail.port", "hunter2", InvalidValue, "Expected `int`, got `str`"),
        ("mail.port", 70_000, InvalidValue, "must be 1 to 65535"),
        ("log.level", "hunter2", InvalidValue, "that are allowed .*: debug, info, warning, error,"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_changed(
    path: str, value: Any, error: type[Exception], expected: str
) -> None:
    with ConfWorld() as world:
        with pytest.raises(error, match=expected) as caught:
            world.set("core1", path, value)
        assert "hunter2" not in str(caught.value)
        assert all(room.brought == [] for room in world.rooms.values())
        assert all(dict(world.conf(name)._store.values) == {} for name in world.names)
        # The id was taken and given back; the next change is not held up.
        assert world.set("core1", "mail.port", 587).outcome == "ok"


def test_user_paths_take_any_json() -> None:
    with ConfWorld(cores=1) as world:
        value = {"rate": [1, 2.5, None], "deep": {"a": True}}
        world.set("core1", "user.limits.my-app", value)
        assert world.conf("core1").get("user.limits.my-app") == value
        assert world.conf("core1").get("user.other") is None
        world.do("core1", world.conf("core1").unset("user.limits.my-app"))
        assert world.conf("core1").get("user.limits.my-app") is None


@pytest.mark.parametrize("value", [float("nan"), [1, {"a": float("-inf")}], {"a": object()}])
def test_what_has_no_json_form_is_refused_and_not_bent(value: Any) -> None:
    with ConfWorld(cores=1) as world:
        with pytest.raises(InvalidValue, match="no JSON form"):
            world.set("core1", "user.limit", value)
        assert world.conf("core1").all()[-1].path != "user.limit"


@pytest.mark.parametrize(
    "value",
    [None, 0, -1, 1.0, 1e-300, 2**53 + 1, 10**40, "", "\u2028\0", [], {}, [[None], {"": 0}]],
)
def test_json_comes_back_as_it_was_said(value: Any) -> None:
    with ConfWorld(cores=1) as world:
        world.set("core1", "user.it", value)
        found = world.conf("core1").get("user.it")
        assert (found, type(found)) == (value, type(value))
        assert world.conf("core1").entry("user.it").source == "set"


def test_a_local_value_without_a_json_form_keeps_the_node_from_starting() -> None:
    # TOML knows numbers that JSON does not.
    with (
        pytest.raises(WorldFailed, match="options.conf.local: user.it: this has no JSON form"),
        ConfWorld(cores=1, local={"core1": {"user.it": float("inf")}}),
    ):
        pass


def test_all_values_together_are_limited() -> None:
    with ConfWorld(cores=1) as world:
        piece = "x" * 60_000
        count = CONF_BYTES_MAX // 60_000
        for number in range(count):
            world.set("core1", f"user.n{number}", piece)
        with pytest.raises(TooMuchConf, match="keyspace"):
            world.set("core1", "user.last", piece)
        # What is there may be made smaller.
        world.set("core1", "user.n0", "")
        world.set("core1", "user.last", piece)


def test_a_handler_that_fails_on_the_initiator_changes_nothing() -> None:
    with ConfWorld() as world:
        world.set("core1", "mail.port", 587)
        world.rooms["core1"].broken.add("mail.port")
        with pytest.raises(NotSet, match="Broken"):
            world.set("core1", "mail.port", 2525)
        assert set(world.get("mail.port").values()) == {587}
        world.rooms["core1"].broken.clear()
        world.world.run(2)
        # What is in effect outside is what is kept, also where the handler had half done it.
        assert {room.last("mail.port") for room in world.rooms.values()} == {587}
        assert all(("mail.port", 2525) not in room.brought for room in world.rooms.values())


def test_a_handler_that_fails_on_a_replica_is_tried_until_it_succeeds() -> None:
    with ConfWorld() as world:
        world.rooms["core3"].broken.add("mail.port")
        done = world.set("core1", "mail.port", 587, timeout_s=3.0)
        assert (done.outcome, done.nodes) == ("peers_lagging", ("core3",))
        world.until(
            lambda: (
                [(each.name, each.node, each.id) for each in world.calls("core1").alarms()]
                == [("call_failed", "core3", 1)]
            )
        )
        [alarm] = world.calls("core1").alarms()
        assert "Broken" in alarm.cause
        assert "587" not in alarm.cause
        report = world.do("core1", world.conf("core1").diff())
        [row] = report.rows
        assert (row.path, row.cause) == ("mail.port", "stored")
        assert {each.node: each.value for each in row.values} == {
            "core1": 587,
            "core2": 587,
            "core3": None,
        }
        world.rooms["core3"].broken.clear()
        world.reached(1)
        world.until(lambda: not world.calls("core1").alarms())
        assert world.rooms["core3"].brought == [("mail.port", 587)]
        assert world.do("core1", world.conf("core1").diff()).consistent


# --- what is kept -------------------------------------------------------------------------------


def test_values_survive_a_power_cut_of_the_whole_cluster() -> None:
    for seed in range(4):
        with ConfWorld(seed) as world:
            world.set("core1", "mail.port", 587)
            world.set("core2", "user.name", "ann")
            world.reached(2)
            for name in world.cores:
                world.kill(name)
            world.start_again(*world.cores)
            world.following()
            assert set(world.get("mail.port").values()) == {587}
            assert set(world.get("user.name").values()) == {"ann"}
            # They are brought about again, for the process may know nothing of it.
            world.until(
                lambda world=world: all(  # type: ignore[misc]
                    room.brought == [("mail.port", 587)] * 2 for room in world.rooms.values()
                )
            )
            assert world.set("core3", "mail.port", 25, timeout_s=30).outcome == "ok"


def test_a_node_that_was_away_gets_what_it_missed() -> None:
    with ConfWorld() as world:
        world.kill("core3")
        done = world.set("core1", "mail.port", 587, required=2)
        assert done.outcome == "ok"
        world.start_again("core3")
        world.reached(1)
        assert world.rooms["core3"].brought == [("mail.port", 587)]


def test_a_node_whose_file_is_gone_or_damaged_copies_the_others() -> None:
    with ConfWorld() as world:
        world.set("core1", "mail.port", 587)
        world.set("core1", "user.name", "ann")
        world.reached(2)
        disk = world.world.host("core3").disk
        [path] = [path for path in disk.paths() if path.endswith("plugins/conf/values")]
        world.kill("core3")
        disk.flip_bit(path, 60, 1)
        world.start_again("core3")
        world.until(lambda: world.state("core3") == "gap")
        world.following()
        world.reached(2)
        assert world.conf("core3").get("user.name") == "ann"
        world.kill("core3")
        disk.remove(path)
        disk.sync_dir(path.rpartition("/")[0])
        world.start_again("core3")
        world.until(lambda: world.state("core3") == "gap")
        world.reached(2)
        assert world.conf("core3").get("mail.port") == 587
        assert world.do("core1", world.conf("core1").diff()).consistent


def test_a_new_core_has_all_values_before_it_takes_part() -> None:
    with ConfWorld() as world:
        world.set("core1", "mail.port", 587)
        world.set("core1", "mail.password", "hunter2")
        node = world.nodes["core1"]
        world.employ("core4", [*world.cores, "core4"])
        world.do("core1", node.membership.add("core4"), 60)
        world.until(lambda: world.state("core4") == "following")
        world.reached(2, "core4")
        assert world.rooms["core4"].brought == [("mail.password", "hunter2"), ("mail.port", 587)]


@pytest.mark.parametrize("before", [None, 2525])
def test_an_initiator_that_dies_before_its_commit_undoes_its_change(before: int | None) -> None:
    """Scenario 10: no other node runs it, and this one must not keep it."""
    with ConfWorld() as world:
        if before is not None:
            world.set("core3", "mail.port", before)
            world.reached(1)
        room = world.rooms["core3"]
        world.world.call("core3", world.conf("core3").set("mail.port", 587))
        store = world.conf("core3")._store
        # It is in effect; the commit reaches nobody.
        world.until_unheard("core3", lambda: room.last("mail.port") == 587)
        assert store.values["mail.port"] == b"587"
        id = store.as_of
        world.kill("core3", power_cut=False)
        assert room.last("mail.port") == 587
        # Only now: what a dead process has sent is delivered once there is a way again.
        world.until(lambda: world.record(id).state != "reserved")
        world.world.network.heal()
        assert world.record(id).cause == "initiator_ended"
        world.start_again("core3")
        world.following()
        expected = 25 if before is None else before
        world.until(lambda: set(world.get("mail.port").values()) == {expected})
        world.until(lambda: not world.calls("core1").alarms())
        assert world.do("core1", world.conf("core1").diff()).consistent
        assert all(
            587 not in dict(world.rooms[name].brought).values() for name in ("core1", "core2")
        )
        # Outside the node, too, where the default was in effect before.
        assert room.last("mail.port") == expected
        assert world.set("core3", "mail.port", 465).outcome == "ok"
        world.reached(id + 1)
        assert set(world.get("mail.port").values()) == {465}


def test_an_aborted_change_is_undone_also_when_its_record_is_gone() -> None:
    with ConfWorld() as world:
        room = world.rooms["core3"]
        world.world.call("core3", world.conf("core3").set("mail.port", 587))
        world.until_unheard("core3", lambda: room.last("mail.port") == 587)
        id = world.conf("core3")._store.as_of
        world.kill("core3", power_cut=False)
        world.until(lambda: world.record(id).state == "aborted")
        world.world.network.heal()
        # Whoever is impatient takes the record of the abort with it.
        world.do("core1", world.calls("core1").reset())
        assert world.record(id) is None
        world.start_again("core3")
        world.following()
        world.until(lambda: not world.calls("core1").alarms())
        assert set(world.get("mail.port").values()) == {25}
        assert world.do("core1", world.conf("core1").diff()).consistent


def test_a_dump_has_no_change_whose_fate_is_open() -> None:
    """It is as of the id before: who copied more would keep what is aborted later."""
    with ConfWorld() as world:
        world.set("core3", "mail.port", 2525)
        world.reached(1)
        store = world.conf("core3")._store
        world.world.call("core3", world.conf("core3").set("mail.port", 587))
        world.until_step(lambda: store.values["mail.port"] == b"587")
        assert store.undo is not None
        assert world.record(2).state == "reserved"
        world.world.network.isolate("core3")
        world.world.run(0.5)
        assert world.do("core3", world.conf("core3").dump()) == {"mail.port": b"2525"}


def test_a_change_whose_time_was_up_before_its_commit_is_undone_while_the_node_runs() -> None:
    with ConfWorld() as world:
        world.set("core3", "mail.port", 2525)
        world.reached(1)
        leader = next(name for name in world.cores if world.nodes[name].leader == name)
        name = next(each for each in world.cores if each != leader)
        network = world.world.network
        call = world.world.call(name, world.conf(name).set("mail.port", 587, timeout_s=5.0))
        store = world.conf(name)._store
        world.until_step(lambda: store.values.get("mail.port") == b"587")
        assert world.record(2).state == "reserved"
        network.isolate(name)
        at = next(each for each in world.cores if each != name)
        world.until(lambda: world.record(2, at).state == "aborted")
        assert world.record(2, at).cause in ("expired", "initiator_ended")
        network.heal()
        world.until(call.done, 150)
        assert call.exception() is not None
        world.until(lambda: set(world.get("mail.port").values()) == {2525})
        world.until(lambda: not world.calls(at).alarms())
        assert world.rooms[name].last("mail.port") == 2525


def test_sync_mends_a_node_that_was_told_to_pass_a_change() -> None:
    with ConfWorld() as world:
        world.rooms["core3"].broken.add("mail.port")
        world.set("core1", "mail.port", 587, required=2)
        world.do("core1", world.calls("core1").skip("core3"))
        world.reached(1)
        assert world.get("mail.port") == {"core1": 587, "core2": 587, "core3": 25}
        report = world.do("core1", world.conf("core1").diff())
        assert [(row.path, row.cause) for row in report.rows] == [("mail.port", "stored")]
        # Under one cursor nobody knows who is right: sync says so, and changes nothing.
        fixed = world.do("core1", world.conf("core1").sync())
        assert fixed.verdict == "differs"
        assert [(each.node, each.keys) for each in fixed.differing] == [
            ("core3", ("conf:mail.port",))
        ]
        # The way out: set it again.
        world.rooms["core3"].broken.clear()
        world.set("core1", "mail.port", 587)
        world.reached(2)
        assert world.do("core1", world.conf("core1").diff()).consistent


def test_sync_gives_a_stuck_node_everything_once_its_handler_can() -> None:
    with ConfWorld() as world:
        world.rooms["core3"].broken.add("mail.port")
        world.set("core1", "mail.port", 587, required=2)
        world.set("core1", "user.name", "ann", required=2)
        world.until(lambda: bool(world.row("core3").failing))
        fixed = world.do("core1", world.conf("core1").sync(), 200)
        assert (fixed.verdict, fixed.synced, fixed.copying) == ("fixed", ("core3",), ("core3",))
        # What it holds is not in effect, so it takes no part, and says why.
        trouble = str(world.calls("core3").joining.trouble)
        assert "Broken in" in trouble
        assert "587" not in trouble
        assert "mail.port" in world.conf("core3").status()["failing"]
        world.rooms["core3"].broken.clear()
        world.reached(3)
        assert world.conf("core3").get("user.name") == "ann"
        assert world.rooms["core3"].brought == [("mail.port", 587)]
        assert world.do("core1", world.conf("core1").diff()).consistent
        assert world.do("core2", world.conf("core2").sync()).verdict == "consistent"


# --- local values ---------------------------------------------------------------------------------


def test_replicants_that_take_no_part_are_not_compared() -> None:
    with ConfWorld(replicants=1) as world:
        world.set("core1", "mail.port", 587)
        world.reached(1, *world.cores)
        [replicant] = set(world.names) - set(world.cores)
        report = world.do("core1", world.conf("core1").diff())
        assert report.consistent
        assert set(report.nodes) == set(world.cores)
        # One that does take part is.
        on = SetSetting.of("calls", "replicants_take_part", True)
        world.do("core1", world.nodes["core1"].propose("core", on))
        world.following()
        report = world.do("core1", world.conf("core1").diff())
        assert report.consistent
        assert replicant in report.nodes


def test_local_values_win_and_are_shown() -> None:
    with ConfWorld(local={"core2": {"mail.port": 2525, "mail.nope": 1}}) as world:
        world.until(lambda: world.rooms["core2"].brought == [("mail.port", 2525)])
        world.set("core1", "mail.port", 587)
        world.reached(1)
        assert world.get("mail.port") == {"core1": 587, "core2": 2525, "core3": 587}
        assert world.rooms["core2"].brought == [("mail.port", 2525)]
        entry = world.conf("core2").entry("mail.port")
        assert (entry.value, entry.source, entry.doc) == (2525, "local", "Where mail goes.")
        unknown = world.conf("core2").entry("mail.nope")
        assert (unknown.value, unknown.source, unknown.known) == (1, "local", False)
        report = world.do("core3", world.conf("core3").diff())
        rows = {row.path: row for row in report.rows}
        assert set(rows) == {"mail.port", "mail.nope"}
        assert rows["mail.port"].cause == "local"
        assert {each.node: (each.value, each.source) for each in rows["mail.port"].values} == {
            "core1": (587, "set"),
            "core2": (2525, "local"),
            "core3": (587, "set"),
        }
        # It is not what `sync` is about: the cluster's values agree.
        assert world.do("core1", world.conf("core1").sync()).verdict == "consistent"


def test_a_local_value_of_the_wrong_type_keeps_the_node_from_starting() -> None:
    with (
        pytest.raises(WorldFailed, match="options.conf.local: mail.port: Expected `int`"),
        ConfWorld(cores=1, local={"core1": {"mail.port": "hunter2"}}),
    ):
        pass


# --- secrets --------------------------------------------------------------------------------------


def test_the_mask_of_a_secret_is_not_stored_as_the_secret() -> None:
    """EMQX 18474: a program reads all values, changes one, and writes all of them back."""
    with ConfWorld() as world:
        world.set("core1", "mail.password", "hunter2")
        for entry in world.conf("core2").all():
            if entry.path == "mail.password":
                with pytest.raises(InvalidValue, match="the mask that is shown"):
                    world.set("core2", entry.path, entry.value)
        for mask in (HIDDEN, f"{HIDDEN} (0123456789ab)"):
            with pytest.raises(InvalidValue, match="leave the path out"):
                world.set("core1", "mail.password", mask)
        assert world.conf("core1").get("mail.password") == "hunter2"
        world.set("core1", "mail.password", "***hunter***")
        # Where nothing is masked it is a value as any other.
        world.set("core1", "user.stars", HIDDEN)
        assert world.conf("core3").get("user.stars") == HIDDEN


def test_a_local_value_that_is_the_mask_is_refused() -> None:
    with (
        pytest.raises(WorldFailed, match="the mask that is shown"),
        ConfWorld(cores=1, local={"core1": {"mail.password": HIDDEN}}),
    ):
        pass


def test_a_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ConfWorld() as world:
        world.rooms["core3"].broken.add("mail.password")
        world.set("core1", "mail.password", "hunter2", timeout_s=5)
        world.rooms["core2"].broken.add("mail.password")
        with pytest.raises(InvalidValue) as caught:
            world.set("core1", "mail.password", ["hunter3"])
        world.rooms["core1"].broken.add("mail.password")
        with pytest.raises(NotSet, match="Broken in ") as failed:
            # Its handler's own words quote it.
            world.set("core1", "mail.password", "hunter4")
        report = world.do("core1", world.conf("core1").diff())
        [row] = report.rows
        assert row.secret
        shown = {each.node: each.value for each in row.values}
        assert shown == {"core1": HIDDEN, "core2": HIDDEN, "core3": None}
        [one, two, _] = row.values
        assert one.digest == two.digest != ""
        again = world.do("core1", world.conf("core1").diff())
        # A digest says nothing beyond its own report.
        assert again.rows[0].values[0].digest != one.digest
        entry = world.conf("core1").entry("mail.password")
        assert (entry.value, entry.secret) == (HIDDEN, True)
        texts = [
            str(world.conf("core1").all()),
            str(report),
            str(world.conf("core1").status()),
            str(list(world.conf("core1").metrics())),
            str(world.calls("core1").status(every=True)),
            str(world.calls("core1").alarms()),
            str(caught.value),
            str(failed.value),
            caplog.text,
        ]
        assert not [text for text in texts if "hunter" in text]
        # The program itself needs it.
        assert world.conf("core1").get("mail.password") == "hunter2"


def test_log_level_is_built_in_and_given_back() -> None:
    logger = logging.getLogger("raftkv")
    before = logger.level
    with ConfWorld(cores=1) as world:
        assert world.conf("core1").get("log.level") is None
        world.set("core1", "log.level", "error")
        assert logger.level == logging.ERROR
        world.do("core1", world.conf("core1").unset("log.level"))
        assert logger.level == before


def test_paths_that_cannot_be_registered() -> None:
    with ConfWorld(cores=1) as world:
        conf = world.conf("core1")
        for path in ("single", "a..b", "a.b ", "user.mine", "mail.port", "x" * 300 + ".y"):
            with pytest.raises(ValueError, match="path|user|already"):
                conf.handler(path, int)
        # One that is registered late is brought about.
        world.set("core1", "user.x", 1)
        assert [entry.path for entry in conf.all()] == [
            "log.level",
            "mail.host",
            "mail.note",
            "mail.password",
            "mail.port",
            "user.x",
        ]


def test_a_handler_that_comes_late_gets_the_value_that_is_kept() -> None:
    with ConfWorld() as world:
        brought: list[tuple[str, int]] = []

        def register(name: str) -> None:
            def apply(value: int) -> None:
                brought.append((name, value))

            world.conf(name).handler("late.one", int, default=0, apply=apply)

        register("core1")
        register("core2")
        world.set("core1", "late.one", 7)
        world.reached(1)
        # The third node knows nothing of it, and keeps it: the call is committed.
        assert sorted(brought) == [("core1", 7), ("core2", 7)]
        entry = world.conf("core3").entry("late.one")
        assert (entry.value, entry.source, entry.known) == (7, "set", False)
        with pytest.raises(UnknownPath):
            world.conf("core3").get("late.one")
        register("core3")
        world.until(lambda: ("core3", 7) in brought)
        assert world.conf("core3").get("late.one") == 7


def test_what_cannot_be_brought_about_after_a_start_is_tried_again_and_told() -> None:
    with ConfWorld() as world:
        world.set("core1", "mail.port", 587)
        world.set("core1", "mail.host", "example.org")
        world.reached(2)
        room = world.rooms["core2"]
        room.brought.clear()
        world.kill("core2")
        room.broken.add("mail.port")
        world.start_again("core2")
        world.until(lambda: "mail.port" in world.conf("core2").status()["failing"])
        # One failing path keeps no other from coming into effect.
        world.until(lambda: room.last("mail.host") == "example.org")
        assert "Broken in" in world.conf("core2").entry("mail.port").failing
        gauge = {metric.name: metric.value for metric in world.conf("core2").metrics()}
        assert (gauge["failing"], gauge["values"]) == (1, 2)
        room.broken.clear()
        world.until(lambda: not world.conf("core2").status()["failing"])
        assert room.last("mail.port") == 587
        assert room.brought.count(("mail.host", "example.org")) == 1


def test_a_listener_that_raises_keeps_nobody_from_the_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ConfWorld(cores=1) as world:

        def broken(path: str, value: Any) -> None:
            raise ValueError(f"{path} is {value}")

        world.conf("core1").on_change(broken)
        assert world.set("core1", "mail.host", "hunter2.org").outcome == "ok"
        assert world.get("mail.host") == {"core1": "hunter2.org"}
        assert "ValueError at" in caplog.text
        assert "hunter2" not in caplog.text


@pytest.mark.parametrize("seed", range(6))
def test_changes_from_all_nodes_under_crashes_end_equal_everywhere(seed: int) -> None:
    """Nodes die at any moment and come back; in the end all have one configuration, in effect."""
    rng = random.Random(f"conf/{seed}")
    with ConfWorld(seed) as world:
        done: dict[int, int] = {}

        async def change(name: str, number: int) -> None:
            path = f"user.n{number % 5}" if number % 3 else "mail.port"
            result = await world.conf(name).set(path, 1000 + number, required=1, timeout_s=20)
            done[result.id] = 1000 + number

        calls = []
        for number in range(40):
            up = [name for name in world.cores if world.is_up(name) and world.nodes[name].session]
            if up:
                name = rng.choice(up)
                calls.append(world.world.call(name, change(name, number)))
            world.world.run(rng.uniform(0, 0.4))
            down = [name for name in world.cores if not world.world.host(name).is_up]
            if down and rng.random() < 0.5:
                world.start(rng.choice(down))
            elif not down and rng.random() < 0.3:
                world.kill(rng.choice(world.cores), power_cut=rng.random() < 0.5)
        for name in world.cores:
            if not world.world.host(name).is_up:
                world.start(name)
        world.until(lambda: all(call.done() for call in calls), 300)
        for call in calls:
            call.exception()
        world.until(lambda: all(world.is_up(n) and world.nodes[n].session for n in world.cores))
        world.until(lambda: {world.state(name) for name in world.cores} == {"following"})
        world.until(lambda: not world.calls("core1").alarms(), 120)
        last = world.set("core1", "user.end", True, timeout_s=60)
        assert last.outcome == "ok", f"seed {seed}"
        world.reached(last.id)
        world.until(lambda: world.do("core2", world.conf("core2").diff()).consistent)
        found = [dict(world.conf(name)._store.values) for name in world.cores]
        assert found[0] == found[1] == found[2], f"seed {seed}"
        # What was acknowledged last is there: nothing that was committed is lost.
        assert done, f"seed {seed}"
        kept = {int(value) for path, value in found[0].items() if path != "user.end"}
        assert done[max(done)] in kept, f"seed {seed}"
        port = world.get("mail.port")["core1"]
        for name in world.cores:
            assert world.rooms[name].last("mail.port") in ((port,) if port != 25 else (25, None))
