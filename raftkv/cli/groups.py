"""The commands of plugins: `raftkv <plugin> ...`, as docs/plugin-contract.md A8 promises them.

A plugin has one group under its own name, or several under names that it chooses. A name that is
taken, by raftkv itself or by a plugin before it in the order of the names, is not given twice: the
later one is left out and warned of, like a plugin that cannot be loaded. A command imports its own
group, or one plugin where no entry point names the group; help and completion import all plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from .saying import note_line

__all__ = ["add_plugin_groups"]


def add_plugin_groups(app: typer.Typer, wanted: str | None = None) -> None:
    """Add the command groups of every installed plugin that has some.

    With `wanted`, the name of a group, only that group is imported, if an entry point of
    `raftkv.commands` names it, else only the plugin of that name, if there is one that has it.

    A plugin that cannot be loaded costs a warning, not the other commands: the broken one may be
    the very thing that somebody is about to look into.
    """
    if wanted is not None and _add_group(app, wanted):
        return
    taken = set(_names(app))
    for point in sorted(entry_points(group="raftkv.plugins"), key=lambda point: point.name):
        try:
            groups = _of_plugin(point, point.load())
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            note_line(f"warning: the commands of plugin {point.name} are missing: {what}")
            continue
        for name, group in groups.items():
            if name in taken:
                what = f"warning: the commands `{name}` of plugin {point.name} are missing"
                note_line(f"{what}: there are others of that name")
                continue
            taken.add(name)
            app.add_typer(group, name=name)


def _add_group(app: typer.Typer, wanted: str) -> bool:
    """Add one group; False if it is not known which plugin has it, or if that one has not."""
    points: list[EntryPoint] = [
        *entry_points(group="raftkv.commands", name=wanted),
        *entry_points(group="raftkv.plugins", name=wanted),
    ]
    for point in points:
        try:
            found = point.load()
            if not isinstance(found, typer.Typer):
                found = _of_plugin(point, found).get(wanted)
        except Exception:
            return False  # with the others it gets its warning
        if found is not None:
            app.add_typer(found, name=wanted)
            return True
    return False


def _of_plugin(point: EntryPoint, plugin: Callable[[], Any]) -> Mapping[str, typer.Typer]:
    made = plugin().cli()
    if made is None:
        return {}
    return made if isinstance(made, Mapping) else {point.name: made}


def _names(app: typer.Typer) -> Iterator[str]:
    """Of the commands and groups that are there already."""
    named = [command.name for command in app.registered_commands]
    named += [group.name for group in app.registered_groups]
    yield from (name for name in named if isinstance(name, str))
