"""The commands of plugins: `raftkv <plugin> ...`, as docs/plugin-contract.md A8 promises them.

A plugin has one group under its own name, or several under names that it chooses. A name that is
taken, by raftkv itself or by a plugin before it in the order of the names, is not given twice: the
later one is left out and warned of, like a plugin that cannot be loaded. A command imports one
plugin, help and completion all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points

import typer

from .saying import note_line

__all__ = ["add_plugin_groups"]


def add_plugin_groups(app: typer.Typer, wanted: str | None = None) -> None:
    """Add the command groups of every installed plugin that has some.

    With `wanted`, the name of a group, only the plugin that has it is imported, if that is known
    without importing any: by its own name, or by the entry points `raftkv.commands`.

    A plugin that cannot be loaded costs a warning, not the other commands: the broken one may be
    the very thing that somebody is about to look into.
    """
    if wanted is not None and _add_group(app, wanted):
        return
    taken = set(_names(app))
    for point in sorted(entry_points(group="raftkv.plugins"), key=lambda point: point.name):
        try:
            groups = _by_name(point.name, point.load()().cli())
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
        *entry_points(group="raftkv.plugins", name=wanted),
        *entry_points(group="raftkv.commands", name=wanted),
    ]
    for point in points:
        try:
            group = _by_name(point.name, point.load()().cli()).get(wanted)
        except Exception:
            return False  # with the others it gets its warning
        if group is not None:
            app.add_typer(group, name=wanted)
            return True
    return False


def _by_name(
    plugin: str, made: typer.Typer | Mapping[str, typer.Typer] | None
) -> Mapping[str, typer.Typer]:
    if made is None:
        return {}
    return made if isinstance(made, Mapping) else {plugin: made}


def _names(app: typer.Typer) -> Iterator[str]:
    """Of the commands and groups that are there already."""
    named = [command.name for command in app.registered_commands]
    named += [group.name for group in app.registered_groups]
    yield from (name for name in named if isinstance(name, str))
