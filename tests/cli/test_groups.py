"""Command groups of plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raftkv.cli import groups


class Point:
    """An entry point: what an installed plugin announces."""

    def __init__(self, name: str, plugin: Callable[[], Any]) -> None:
        self.name = name
        self._plugin = plugin

    def load(self) -> Callable[[], Any]:
        return self._plugin


class Toy:
    def cli(self) -> typer.Typer:
        group = typer.Typer()

        @group.command()
        def hello(name: str) -> None:
            typer.echo(f"hello {name}")

        @group.command()
        def bye() -> None:
            typer.echo("bye")

        return group


def greeting(word: str) -> typer.Typer:
    """A group with the one command `say`."""
    group = typer.Typer()

    @group.callback()
    def about() -> None:
        pass

    @group.command()
    def say() -> None:
        typer.echo(word)

    return group


class Many:
    """Several groups, one of whose names is taken."""

    def cli(self) -> dict[str, typer.Typer]:
        return {"one": greeting("1"), "toy": greeting("another"), "two": greeting("2")}


class Silent:
    def cli(self) -> None:
        return None


def broken() -> None:
    raise ImportError("no such thing")


def test_groups_of_plugins_are_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [Point("toy", Toy), Point("silent", Silent), Point("broken", broken)]
    monkeypatch.setattr(groups, "entry_points", lambda group: points)
    app = typer.Typer()
    groups.add_plugin_groups(app)
    assert "plugin broken are missing: ImportError: no such thing" in capsys.readouterr().err
    done = CliRunner().invoke(app, ["toy", "hello", "you"])
    assert (done.exit_code, done.output) == (0, "hello you\n")
    assert CliRunner().invoke(app, ["silent"]).exit_code == 2


def test_a_plugin_may_have_several_groups_and_no_name_is_given_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [Point("toys", Many), Point("toy", Toy), Point("many", Many)]
    monkeypatch.setattr(groups, "entry_points", lambda group: points)
    app = typer.Typer()
    app.add_typer(greeting("mine"), name="two")
    groups.add_plugin_groups(app)
    said = {name: CliRunner().invoke(app, [name, "say"]).output for name in ("one", "toy", "two")}
    # In the order of the plugins' names: "many" comes first; raftkv's own come before all.
    assert said == {"one": "1\n", "toy": "another\n", "two": "mine\n"}
    missing = [line.split("`")[1] for line in capsys.readouterr().err.splitlines()]
    assert missing == ["two", "toy", "one", "toy", "two"]


def test_a_group_that_is_wanted_imports_its_plugin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def point(name: str, plugin: Callable[[], Any]) -> Point:
        def load() -> Any:
            loaded.append(name)
            return plugin()

        return Point(name, load)

    plugins = [point("broken", broken), point("many", Many), point("toy", Toy)]
    commands = [point("one", Many), point("gone", Silent)]

    def found(*, group: str, name: str | None = None) -> list[Point]:
        points = plugins if group == "raftkv.plugins" else commands
        return [each for each in points if name in (None, each.name)]

    monkeypatch.setattr(groups, "entry_points", found)
    for wanted, expected in (
        ("toy", ["toy"]),
        ("one", ["one"]),
        # Not announced, announced in vain, or broken: then all are asked.
        ("two", ["broken", "many", "toy"]),
        ("gone", ["gone", "broken", "many", "toy"]),
        ("broken", ["broken", "broken", "many", "toy"]),
    ):
        loaded.clear()
        app = typer.Typer()
        groups.add_plugin_groups(app, wanted)
        assert loaded == expected, wanted
        names = {each.name for each in app.registered_groups}
        assert wanted in names or wanted in ("gone", "broken")
