"""The `raftkv` command.

Exit codes: 0 done; 1 the key does not exist, or the cluster refused; 2 wrong usage or
configuration; 3 a node or the cluster could not do it; 130 ended by Ctrl-C. A command that runs
another (`lock NAME -- COMMAND`) ends with that one's code. Errors are one line on stderr, never a
traceback; wrong usage is told in a few lines.

Commands are started often, so a module of this package imports at its top only what declares the
options; what a command needs it imports when it runs (tests/cli/test_startup.py).
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from raftkv.errors import (
    ConfigError,
    FormatRefused,
    MembershipRefused,
    RaftkvError,
    Refused,
    without_python,
)

from . import (
    alarm,
    certs,
    check,
    clusters,
    core_format,
    endpoint,
    keys,
    lease,
    lock,
    member,
    quota,
    recover,
    txn,
    watch,
)
from .options import MARKUP, ReaderGone, examples
from .quoting import ESCAPES, printable
from .running import WithCommand
from .saying import ADVICE

__all__ = ["app", "main"]

EXIT_NEGATIVE: Final = 1
EXIT_CONFIG: Final = 2
EXIT_FAULT: Final = 3
EXIT_INTERRUPTED: Final = 130

# Bytes that are not UTF-8, as Python's repr of an argument shows them; elsewhere they are \xHH.
_LONE_SURROGATE: Final = re.compile(r"\\udc([89a-f][0-9a-f])")

# Set, it shows where a defect of this command lies.
TRACEBACK_VARIABLE: Final = "RAFTKV_TRACEBACK"


class Commands(TyperGroup):
    """All commands. An argument that was taken for an option is named with the remedy."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if type(error).__name__ == "NoSuchOption" and isinstance(option, str):
                error.message += _remedy(error.ctx, option)  # type: ignore[attr-defined]
            elif str(getattr(error, "message", "")).startswith("Got unexpected extra argument"):
                error.message += _order(error.ctx)  # type: ignore[attr-defined]
            raise


def _remedy(context: Any, option: str) -> str:
    """What to write if the option is none: a key or value that begins with a dash."""
    if isinstance(context.command, WithCommand) or not any(
        each.param_type_name == "argument" and type(each.type).__name__ == "StringParamType"
        for each in context.command.params
    ):
        return ""  # no argument is text: a number that begins with a dash is refused as well
    given = next((each for each in sys.argv[1:] if each.startswith(option)), option)
    shown = given.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return (
        f". A key or value that begins with a dash stands behind all options and --: "
        f"{context.command_path} ... -- {shown}"
    )


def _order(context: Any) -> str:
    """Where to write an option that stands behind `--`, and was taken for an argument."""
    _, *behind = sys.argv[sys.argv.index("--") :] if "--" in sys.argv else ("",)
    options = {name for each in context.command.params for name in each.opts}
    option = next((each for each in behind if each.partition("=")[0] in options), "")
    return f". Options stand before --: {context.command_path} {option} ... --" if option else ""


app = typer.Typer(
    name="raftkv",
    cls=Commands,
    help="raftkv: an embeddable, Raft-replicated key-value module.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=MARKUP,
    epilog=examples(
        "raftkv cluster up --dir demo --detach",
        "raftkv put greeting hello --dir demo",
        "raftkv get greeting --dir demo",
        "raftkv --install-completion   (for this shell)",
    ),
)


@app.command("serve", epilog=examples("raftkv serve --config /etc/raftkv/node.toml"))
def serve(
    config: Annotated[str, typer.Option("--config", help="The node's TOML file.")],
    verbose: Annotated[bool, typer.Option("--verbose", help="Log debugging lines, too.")] = False,
) -> None:
    """Run one node until SIGTERM or SIGINT. Logs JSON lines to stderr."""
    import logging
    import signal

    from raftkv.config import load_config

    from . import logs
    from .log_writer import QueuedText

    # Before the slow imports: SIGHUP must not end a node that starts. serve.py handles it later.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    loaded = load_config(config)
    place = logs.configure(loaded.name, logging.DEBUG if verbose else logging.INFO)
    QueuedText(place.writer).take_over()
    # Imported late: the other commands start faster without the engine.
    from .serve import run

    run(loaded, place)


for commands in (keys, txn, watch, lock):
    commands.register(app)
app.add_typer(lease.app, name="lease")
app.add_typer(member.app, name="member")
app.add_typer(core_format.app, name="format")
app.add_typer(endpoint.app, name="endpoint")
app.add_typer(alarm.app, name="alarm")
app.add_typer(quota.app, name="quota")
endpoint.register_health(app)
app.add_typer(check.app, name="check")
app.add_typer(clusters.app, name="cluster")
app.add_typer(certs.app, name="certs")
recover.register(app)


def main() -> None:
    """The entry point: run the command and turn errors into one line and an exit code."""
    _open_standard_streams()
    _accept_any_text()
    try:
        if _may_be_of_a_plugin(sys.argv[1:]):
            from .groups import add_plugin_groups

            add_plugin_groups(app, _wanted(sys.argv[1:]))
        app()
    except ConfigError as error:
        _fail(error, EXIT_CONFIG)
    except (Refused, MembershipRefused, FormatRefused) as error:
        _fail(error, EXIT_NEGATIVE)
    except RaftkvError as error:
        _fail(error, EXIT_FAULT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (BrokenPipeError, ReaderGone):
        # Python would try to write the rest once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAULT)
    except OSError as error:
        # A directory without permission, a full disk: the system's words name the file.
        _fail(error, EXIT_FAULT)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        what = f"{type(error).__name__}: {error}"
        advice = f"please report it with what {TRACEBACK_VARIABLE}=1 shows"
        _fail(RaftkvError(f"a defect of raftkv: {what}; {advice}"), EXIT_FAULT)


def _open_standard_streams() -> None:
    """Put the null device where a standard stream was closed, as daemons are started.

    Python has None for it, and the next file or socket would get its number, which a command that
    is run (`lock NAME -- COMMAND`) would write to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _accept_any_text() -> None:
    """Print what the encoding of the terminal or pipe lacks with escapes, and bytes as \\xHH."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPES)


def _may_be_of_a_plugin(arguments: list[str]) -> bool:
    """Whether the plugins must be asked for their commands: for help, completion, other words."""
    return not arguments or arguments[0] not in _own_commands()


def _wanted(arguments: list[str]) -> str | None:
    """The group that a command line is for; None for help and completion, which are for all."""
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    return None if completes or not arguments or arguments[0].startswith("-") else arguments[0]


def _own_commands() -> set[str]:
    named = {command.name for command in app.registered_commands}
    named |= {group.name for group in app.registered_groups}
    return {name for name in named if isinstance(name, str)}


def _fail(error: Exception, code: int) -> NoReturn:
    said = str(error)
    text = without_python(said)
    if text != said:
        text += f". {ADVICE}"
    text = _LONE_SURROGATE.sub(r"\\x\1", text)
    sys.stderr.write(f"error: {printable(' '.join(text.split()))}\n")
    sys.exit(code)
