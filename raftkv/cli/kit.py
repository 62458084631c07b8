"""What the command group of a plugin is made of: the one module of `raftkv.cli` it may import.

    from raftkv.cli.kit import At, Ask, connected, examples, group, print_json, print_table

    app = group("What the plugin is about.")

    @app.command(epilog=examples("raftkv toy size --dir demo"))
    @connected("table", "json")
    def size(at: At) -> None:
        answer = Ask(at)("GET", "/v1/toy/size")
        ...

So a plugin's commands have the options, the output formats and the exit codes of raftkv's own. They
speak to the door and never to the plugin's Python objects (docs/plugin-contract.md, A8). A plugin's
`cli()` imports its commands when it is called: a node needs none of this.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from raftkv.errors import ConfigError, RaftkvError

from .options import At, Directory, Format, connected, examples, formatted, group
from .plugin_settings import add_setting
from .quoting import printable
from .saying import ask, confirm, note, say

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from .localclusters import LocalClusters
    from .output import Row

__all__ = [
    "Ask",
    "At",
    "Directory",
    "Format",
    "Stage",
    "add_setting",
    "ask",
    "bring_up",
    "cell",
    "confirm",
    "connected",
    "examples",
    "first_answering",
    "formatted",
    "group",
    "local_clusters",
    "note",
    "path_part",
    "patient",
    "print_json",
    "print_table",
    "say",
    "shown",
    "wait_for",
    "while_waiting",
]

T = TypeVar("T")

# How often the progress is asked for.
LOOK_S: Final = 0.3
# How often a condition is looked at.
POLL_S: Final = 0.1
# A node waits as long as the command may take; its answer needs this much longer to arrive.
ANSWER_S: Final = 5.0
# How long an endpoint has to answer before another one is taken for a session.
PROBE_S: Final = 2.0
ENDPOINTS_AT_ONCE_MAX: Final = 32


class Ask:
    """Requests to the cluster: each endpoint in turn until one answers or the time is up."""

    def __init__(self, at: At) -> None:
        from .connecting import endpoints_of, tls_context

        self._endpoints = endpoints_of(at)
        self._context: ssl.SSLContext | None = tls_context(at)
        self._timeout_s = at.timeout_s
        self._probed = False

    @property
    def endpoints(self) -> Sequence[str]:
        """The nodes that are asked, in this order."""
        return tuple(self._endpoints)

    def __call__(self, method: str, path: str, body: Any = None, *, repeat: bool = True) -> Any:
        """The decoded answer of the first node that gives one.

        A refusal is an answer, and raised. Without `repeat` nothing is asked a second time of which
        it is unknown whether it happened. Raises the last node's error when the time is up; for a
        change the text of a `Timeout` has that it may still take effect.
        """
        from .door_client import in_turn, of_a_change, request, working_first

        deadline = time.monotonic() + self._timeout_s
        if not (repeat or self._probed or len(self._endpoints) == 1):
            # What is not repeated may take all the time at the first node.
            self._probed, half_s = True, self._timeout_s / 2
            self._endpoints, _ = working_first(self._endpoints, half_s, self._context)
        change = method != "GET"
        with of_a_change(repeat=repeat) if change else contextlib.nullcontext():
            return in_turn(
                self._endpoints,
                deadline - time.monotonic(),
                lambda endpoint, left_s: request(
                    endpoint, method, path, body, timeout_s=left_s, context=self._context
                ),
                repeat=repeat,
                read=not change,
            )

    def each(self, method: str, path: str) -> Iterator[tuple[str, Any, RaftkvError | None]]:
        """Every endpoint asked itself, once: its answer and None, or None and the error.

        All are asked at the same time, and given in their order.
        """
        from .door_client import request

        def one(endpoint: str) -> tuple[str, Any, RaftkvError | None]:
            try:
                answer = request(
                    endpoint, method, path, timeout_s=self._timeout_s, context=self._context
                )
            except RaftkvError as error:
                return endpoint, None, error
            return endpoint, answer, None

        yield from _at_once(one, self._endpoints)


def _at_once(ask: Callable[[str], T], endpoints: Sequence[str]) -> Iterator[T]:
    """What `ask` makes of each, in their order.

    A caller that needs no more of them waits for none of the rest, nor does the exit of the
    process: the threads of a pool would be joined.
    """
    from concurrent.futures import Future

    answers: list[Future[T]] = [Future() for _ in endpoints]
    todo = deque(zip(endpoints, answers, strict=True))

    def work() -> None:
        while todo:
            try:
                endpoint, answer = todo.popleft()
            except IndexError:
                return  # another thread has taken the last one
            try:
                answer.set_result(ask(endpoint))
            except BaseException as error:
                answer.set_exception(error)

    for _ in endpoints[:ENDPOINTS_AT_ONCE_MAX]:
        threading.Thread(target=work, daemon=True).start()
    for answer in answers:
        yield answer.result()


def patient(at: At, more_s: float = 0.0) -> At:
    """The same, with time for an answer that comes when the time is up, or `more_s` later."""
    return at.changed(timeout_s=at.timeout_s + more_s + ANSWER_S)


def first_answering(
    at: At, path: str, wanted: Callable[[Any], bool] = lambda answer: True
) -> tuple[At | None, list[tuple[str, RaftkvError]]]:
    """The first endpoint whose answer to a GET of `path` is `wanted`, and those that failed.

    For what has to be asked of one node. The time that this takes is taken off that of the result;
    an endpoint has two seconds at most. None if no answer is wanted.
    """
    began = time.monotonic()
    silent: list[tuple[str, RaftkvError]] = []
    probe = Ask(at.changed(timeout_s=min(at.timeout_s, PROBE_S)))
    for endpoint, answer, error in probe.each("GET", path):
        if error is not None:
            silent.append((endpoint, error))
        elif wanted(answer):
            left_s = max(at.timeout_s - (time.monotonic() - began), 0.1)
            return at.changed(endpoints=(endpoint,), timeout_s=left_s), silent
    return None, silent


class Stage(NamedTuple):
    """How far something is: a short text, and a bar while `total` is positive."""

    text: str
    completed: int = 0
    total: int = 0


def while_waiting(act: Callable[[], T], look: Callable[[], Stage]) -> T:
    """Run `act`, and meanwhile show on stderr what `look` sees: a bar, or lines for a file.

    What `look` raises as a `RaftkvError` is passed over: the next look may see more.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, _reporting() as report:
        done = pool.submit(act)
        while not done.done():
            with contextlib.suppress(RaftkvError):
                report(look())
            until = time.monotonic() + LOOK_S
            while not done.done() and time.monotonic() < until:
                time.sleep(0.02)
        return done.result()


@contextlib.contextmanager
def _reporting() -> Iterator[Callable[[Stage], None]]:
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=None)

            def bar(stage: Stage) -> None:
                progress.update(
                    task,
                    description=printable(stage.text),
                    completed=stage.completed,
                    total=stage.total or None,
                )

            yield bar
        return
    said = ""

    def line(stage: Stage) -> None:
        nonlocal said
        if stage.text != said:
            said = stage.text
            note(stage.text)

    yield line


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Look until the condition holds, or the time is up: whether it did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


# --- clusters on this machine ---------------------------------------------------------------------


def local_clusters(directory: str) -> LocalClusters:
    """Several development clusters in one directory, for plugins whose clusters speak to each
    other: `up` gives each of them options that name the others' endpoints."""
    from .localclusters import LocalClusters

    return LocalClusters(directory)


def bring_up(
    clusters: LocalClusters,
    start: Callable[[Callable[[str], None]], Sequence[str]],
    *,
    detach: bool,
) -> None:
    """Run `start` and show the clusters until Ctrl-C stops them, as `raftkv cluster up` does; with
    `detach` they go on. `start` gets what shows its progress, and gives lines that are said once
    it is done."""
    from .foreground import bring_up

    bring_up(clusters, start, detach=detach)


# What is drawn, quoted and sent is imported late: `--help` needs none of it.


def print_table(headings: Sequence[str], rows: Iterable[Row], numbers: Sequence[str] = ()) -> None:
    """A table on stdout; the columns in `numbers` are aligned to the right."""
    from .output import print_table

    print_table(headings, rows, numbers)


def print_json(document: Any) -> None:
    """One JSON document on one line of stdout."""
    from .output import print_json

    print_json(document)


def cell(value: object) -> str:
    """A cell's text; what is not known is a dash."""
    return "-" if value is None else str(value)


def shown(text: str) -> str:
    """`text` on one line, what cannot be printed escaped: for a table."""
    from .quoting import shown

    return shown(text.encode("utf-8", "surrogateescape"))


def path_part(text: str) -> str:
    """`text` as one segment of a path, whatever letters it has."""
    from urllib.parse import quote

    try:
        encoded = quote(text, safe="", errors="strict")
    except UnicodeEncodeError:
        raise ConfigError(f"{shown(text)} is not valid UTF-8, as ids and names are") from None
    # "." and ".." are what some proxies and libraries would resolve.
    return encoded.replace(".", "%2E") if set(text) == {"."} else encoded
