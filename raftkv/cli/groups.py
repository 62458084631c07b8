"""The commands of plugins: `raftkv <plugin> ...`, as docs/plugin-contract.md A8 promises them."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

__all__ = ["add_plugin_groups"]


def add_plugin_groups(app: typer.Typer) -> None:
    """Add the command group of every installed plugin that has one.

    A plugin that cannot be loaded costs a warning, not the other commands: the broken one may be
    the very thing that somebody is about to look into.
    """
    for point in sorted(entry_points(group="raftkv.plugins"), key=lambda point: point.name):
        try:
            group = point.load()().cli()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"warning: the commands of plugin {point.name} are missing: {what}\n")
            continue
        if group is not None:
            app.add_typer(group, name=point.name)
