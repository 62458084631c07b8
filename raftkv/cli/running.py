"""Commands behind `--`: `raftkv watch KEY -- COMMAND` and `raftkv lock NAME -- COMMAND`.

What stands behind the first lone `--` belongs to the command, options and all, so it is cut off
before anything else is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand

from raftkv.errors import ConfigError, RaftkvError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    import typer

__all__ = ["WithCommand", "command_behind", "exit_code", "start"]

_BEHIND: Final = "raftkv.cli.running.behind"


class WithCommand(TyperCommand):
    """A command that may be followed by `-- COMMAND [ARGUMENT]...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_BEHIND] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def command_behind(context: typer.Context) -> list[str] | None:
    """The command behind `--`, if there is one. Raises `ConfigError` if there is only the `--`."""
    found: list[str] | None = context.meta.get(_BEHIND)
    if found == []:
        raise ConfigError("a command must follow the --")
    return found


async def start(
    command: Sequence[str],
    environment: Mapping[bytes, bytes],
    *,
    piped: bool = False,
    of_child: Callable[[], None] | None = None,
) -> asyncio.subprocess.Process:
    """Start a command with more in its environment; `piped` gives it a stdin to be written to.

    With `of_child` the command is the first process of a group of its own, and runs that before
    its program.

    Raises `ConfigError` if there is no such program, `RaftkvError` if it cannot be started.
    """
    import asyncio

    stdin = asyncio.subprocess.PIPE if piped else None
    whole = {**os.environb, **environment}
    try:
        if of_child is None:
            return await asyncio.create_subprocess_exec(*command, stdin=stdin, env=whole)
        return await asyncio.create_subprocess_exec(
            *command, stdin=stdin, env=whole, process_group=0, preexec_fn=of_child
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
    except OSError as error:
        raise RaftkvError(f"{command[0]} cannot be run: {error.strerror}") from None


def exit_code(returncode: int) -> int:
    """What a shell would give for a child that has ended like this."""
    return 128 - returncode if returncode < 0 else returncode
