"""`raftkv GROUP setting`: the replicated settings of a plugin, one command for all plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from raftkv.errors import ConfigError

from .options import At, connected, examples

__all__ = ["add_setting"]


def json_or_text(key: str, text: str) -> Any:
    """The value as JSON; a text that is none stands for itself."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def add_setting(
    app: typer.Typer,
    plugin: str,
    group: str,
    key: str,
    value: str,
    *,
    parse: Callable[[str, str], Any] = json_or_text,
) -> None:
    """Give a command group the verb `setting`, over `/v1/<plugin>/settings`.

    `group` is the group as it is typed; `key` and `value` are an example. `parse` makes the value
    of (key, text), or raises ConfigError.
    """

    @app.command(
        epilog=examples(
            f"{group} setting --dir demo",
            f"{group} setting {key} {value} --dir demo",
            f"{group} setting {key} default --dir demo",
        )
    )
    @connected("table", "json")
    def setting(
        at: At,
        key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Which one.")] = None,
        value: Annotated[
            str | None, typer.Argument(metavar="[VALUE]", help='A value, or "default".')
        ] = None,
    ) -> None:
        """Show the settings, which are the same on all nodes, or change one."""
        from .kit import Ask, path_part, print_json, print_table, shown

        ask = Ask(at)
        place = f"/v1/{plugin}/settings"
        if key is None or value is None:
            found = ask("GET", place)["settings"]
            if key is not None and key not in found:
                raise ConfigError(f"there is no setting {shown(key)}: {', '.join(found)}")
        else:
            body = {"value": None if value == "default" else parse(key, value)}
            found = ask("PUT", f"{place}/{path_part(key)}", body)["settings"]
        if key is not None:
            found = {key: found[key]}
        if at.output == "json":
            print_json(found)
        else:
            print_table(("SETTING", "VALUE"), [(name, _cell(each)) for name, each in found.items()])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in sorted(value.items()))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
