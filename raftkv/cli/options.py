"""The options that many commands share, and the decorators that add them.

`@connected` gives a command the options that say which cluster it speaks to, `@formatted` those
that say how its result is printed. The command takes what came of them as its first argument, an
`At` or a `Format`; typer sees a function with all the options. So each option is written, and
checked, once.

    @app.command("del", epilog=examples("raftkv del greeting --dir demo"))
    @connected("simple", "json", "fields")
    def delete(at: At, key: Key, prefix: Prefix = False) -> None: ...
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec

import typer

from raftkv.errors import ConfigError

__all__ = [
    "ENDPOINTS_VARIABLE",
    "MARKUP",
    "At",
    "Directory",
    "Format",
    "ReaderGone",
    "TlsOptions",
    "connected",
    "examples",
    "formatted",
    "group",
]

ENDPOINTS_VARIABLE: Final = "RAFTKV_ENDPOINTS"

P = ParamSpec("P")


class ReaderGone(Exception):
    """Whoever read the output of this command has gone (`raftkv ... | head`)."""


# Frames and colours are for a terminal. Without it help and usage errors are plain text, which
# also starts much faster.
MARKUP: Final[Literal["rich"] | None] = (
    "rich" if all(each and each.isatty() for each in (sys.stdout, sys.stderr)) else None
)

Directory = Annotated[str, typer.Option("--dir", help="The directory of the cluster.")]
SomeDirectory = Annotated[
    str | None, typer.Option("--dir", metavar="DIR", help="The directory of a development cluster.")
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        "--endpoints",
        metavar="URL",
        help="http://HOST:PORT of a node; several times, or with commas. "
        f"Default: the variable {ENDPOINTS_VARIABLE}.",
    ),
]


def _a_number(value: float) -> float:
    """The bounds let nan through: it compares as false with both."""
    if math.isnan(value):
        raise typer.BadParameter("nan is no number of seconds")
    return value


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="S",
        min=0.1,
        max=3600.0,
        callback=_a_number,
        help="Seconds to try for.",
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--cacert", metavar="FILE", envvar="RAFTKV_CACERT", help="The authorities to trust (PEM)."
    ),
]
CertFile = Annotated[
    str | None,
    typer.Option("--cert", metavar="FILE", envvar="RAFTKV_CERT", help="A certificate to show."),
]
KeyFile = Annotated[
    str | None, typer.Option("--key", metavar="FILE", envvar="RAFTKV_KEY", help="Its private key.")
]
Json = Annotated[bool, typer.Option("--json", help="The same as --output json.")]


class TlsOptions:
    """The files of a TLS connection; each may be None."""

    __slots__ = ("ca", "certificate", "key")

    def __init__(self, ca: str | None, certificate: str | None, key: str | None) -> None:
        self.ca = ca
        self.certificate = certificate
        self.key = key

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return any((self.ca, self.certificate, self.key))


class At:
    """Which cluster a command speaks to, for how long it tries, and how it prints the result."""

    __slots__ = ("directory", "endpoints", "output", "timeout_s", "tls")

    def __init__(
        self,
        *,
        endpoints: tuple[str, ...],
        directory: str | None = None,
        timeout_s: float = 5.0,
        tls: TlsOptions | None = None,
        output: str = "simple",
    ) -> None:
        self.endpoints = endpoints
        self.directory = directory
        self.timeout_s = timeout_s
        self.tls = tls or TlsOptions(None, None, None)
        self.output = output

    def changed(
        self, *, timeout_s: float | None = None, endpoints: tuple[str, ...] | None = None
    ) -> At:
        """The same with another time, or with these endpoints in place of what was given."""
        return At(
            endpoints=self.endpoints if endpoints is None else endpoints,
            directory=self.directory if endpoints is None else None,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            tls=self.tls,
            output=self.output,
        )


class Format:
    """How a command that speaks to nobody prints its result."""

    __slots__ = ("output",)

    def __init__(self, output: str) -> None:
        self.output = output


def examples(*lines: str) -> str:
    """The examples below a command's help, each on a line of its own, whatever prints it."""
    heading = "Example:" if len(lines) == 1 else "Examples:"
    if MARKUP == "rich":
        return "\n\n".join([heading, *lines])
    return "\b\n" + "\n".join([heading, *(f"  {line}" for line in lines)])


def group(help_text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=MARKUP)


def connected(
    *outputs: str, timeout_s: float = 5.0
) -> Callable[[Callable[Concatenate[At, P], None]], Callable[..., None]]:
    """Add the options of a connection, and of the result with `outputs` (the first is default).

    The command is called with the `At` that they make. Raises `ConfigError` when they contradict
    each other or name no cluster.
    """
    options: dict[str, tuple[Any, Any]] = {
        "directory": (SomeDirectory, None),
        "endpoint": (Endpoints, None),
        "timeout_s": (Timeout, timeout_s),
        "cacert": (CaFile, None),
        "cert": (CertFile, None),
        "key_file": (KeyFile, None),
        **_output_options(outputs),
    }

    def decorate(function: Callable[Concatenate[At, P], None]) -> Callable[..., None]:
        return _with_options(function, options, lambda given: _at(given, outputs))

    return decorate


def formatted(
    *outputs: str,
) -> Callable[[Callable[Concatenate[Format, P], None]], Callable[..., None]]:
    """Add --output and --json; the command is called with the `Format` that they make."""

    def decorate(function: Callable[Concatenate[Format, P], None]) -> Callable[..., None]:
        return _with_options(
            function, _output_options(outputs), lambda given: Format(_output(given, outputs))
        )

    return decorate


def _with_options(
    function: Callable[..., None],
    options: Mapping[str, tuple[Any, Any]],
    convert: Callable[[dict[str, Any]], At | Format],
) -> Callable[..., None]:
    """`function` whose first parameter is replaced by `options`, from which `convert` makes it."""
    own = inspect.signature(function, eval_str=True)
    _, *parameters = own.parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=kind) for parameter in parameters]
    parameters += [
        inspect.Parameter(name, kind, annotation=annotation, default=default)
        for name, (annotation, default) in options.items()
    ]

    def command(**given: Any) -> None:
        first = convert({name: given.pop(name) for name in options})
        try:
            try:
                function(first, **given)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # typer has an exit code of its own for it, and Python a complaint at the end.
            raise ReaderGone from None

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__module__ = function.__module__
    # typer reads the signature; the annotations of `command` itself would be taken for options.
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def _output_options(outputs: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    text = f"{', '.join(outputs[:-1])} or {outputs[-1]}."
    option = typer.Option("--output", "-w", metavar="FORMAT", help=f"How to print: {text}")
    return {"output": (Annotated[str | None, option], None), "as_json": (Json, False)}


def _output(given: Mapping[str, Any], outputs: tuple[str, ...]) -> str:
    output: str | None = given["output"]
    if given["as_json"]:
        if output not in (None, "json"):
            raise ConfigError(f"--json and --output {output} contradict each other: leave out one")
        output = "json"
    if output is None:
        return outputs[0]
    if output not in outputs:
        raise ConfigError(f"--output {output} is not one of {', '.join(outputs)}")
    return output


def _at(given: Mapping[str, Any], outputs: tuple[str, ...]) -> At:
    output = _output(given, outputs)
    directory: str | None = given["directory"]
    endpoints = _split(given["endpoint"] or [])
    if directory is not None and endpoints:
        raise ConfigError("say which cluster: either --dir DIR or --endpoint http://HOST:PORT")
    if directory is None and not endpoints:
        endpoints = _split([os.environ.get(ENDPOINTS_VARIABLE, "")])
        if not endpoints:
            raise ConfigError(
                "say which cluster: --dir DIR, or --endpoint http://HOST:PORT, or set "
                f"{ENDPOINTS_VARIABLE}"
            )
    tls = TlsOptions(given["cacert"], given["cert"], given["key_file"])
    if tls.key is not None and tls.certificate is None:
        raise ConfigError("--key belongs to a certificate: name that with --cert")
    return At(
        endpoints=tuple(endpoints),
        directory=directory,
        timeout_s=given["timeout_s"],
        tls=tls,
        output=output,
    )


def _split(given: list[str]) -> list[str]:
    return [part.strip() for text in given for part in text.split(",") if part.strip()]
