"""`raftkv put`, `get`, `del` and `compact`: etcdctl's commands on keys."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raftkv.errors import ConfigError

from .options import At, connected, examples
from .saying import note_line, say_line

if TYPE_CHECKING:
    from raftkv.client import Client
    from raftkv.kv.commands import OperationResult, RangeOp, RangeResult
    from raftkv.plugin import Consistency

    from .printing import Style

__all__ = ["register", "show_result"]

EXIT_NEGATIVE: Final = 1
# A large range is read, and printed, in parts of so many keys.
PAGE_KEYS: Final = 1000

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
FirstKey = Annotated[str, typer.Argument(metavar="KEY", help="The key, or the first of a range.")]
RangeEnd = Annotated[
    str | None,
    typer.Argument(metavar="RANGE_END", help="All keys from KEY up to, without, this one."),
]
Prefix = Annotated[bool, typer.Option("--prefix", help="All keys that start with KEY.")]
FromKey = Annotated[bool, typer.Option("--from-key", help="All keys from KEY on.")]
PrevKv = Annotated[bool, typer.Option("--prev-kv", help="Print what was there before, too.")]
Hex = Annotated[bool, typer.Option("--hex", help="Print bytes as \\xHH.")]
ValueOnly = Annotated[
    bool, typer.Option("--print-value-only", help="Print no keys; a line for each value.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Print the bytes of the values and nothing else.")]


def put(
    at: At,
    key: Key,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Read from stdin if left out.")
    ] = None,
    lease: Annotated[
        str | None, typer.Option("--lease", metavar="ID", help="Attach the key to this lease.")
    ] = None,
    prev_kv: PrevKv = False,
    ignore_value: Annotated[
        bool, typer.Option("--ignore-value", help="Keep the value that the key has.")
    ] = False,
    ignore_lease: Annotated[
        bool, typer.Option("--ignore-lease", help="Keep the lease that the key has.")
    ] = False,
    hexed: Hex = False,
) -> None:
    """Set a key; prints OK once the cluster has it on disk."""
    from .connecting import run
    from .printing import Style
    from .requests import lease_id

    if ignore_value and value is not None:
        raise ConfigError("--ignore-value keeps the value: leave VALUE out")
    if ignore_lease and lease is not None:
        raise ConfigError("--lease and --ignore-lease cannot both be given")
    number = 0 if lease is None else lease_id(lease)
    if ignore_value:
        data = b""
    else:
        data = sys.stdin.buffer.read() if value is None else os.fsencode(value)

    async def act(client: Client) -> OperationResult:
        return await client.kv.put(
            os.fsencode(key),
            data,
            lease=number,
            prev_kv=prev_kv,
            ignore_value=ignore_value,
            ignore_lease=ignore_lease,
        )

    show_result(at, run(at, act), Style(hexed=hexed), prev_kv=prev_kv)


def get(
    at: At,
    key: FirstKey,
    range_end: RangeEnd = None,
    prefix: Prefix = False,
    from_key: FromKey = False,
    limit: Annotated[int, typer.Option("--limit", help="At most so many keys; 0: all.")] = 0,
    sort_by: Annotated[
        str | None,
        typer.Option("--sort-by", metavar="BY", help="key, version, create, modify or value."),
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", metavar="ORDER", help="ascend or descend.")
    ] = None,
    revision: Annotated[
        int, typer.Option("--rev", metavar="REVISION", help="As of this revision; 0: now.")
    ] = 0,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Print no values.")] = False,
    count_only: Annotated[bool, typer.Option("--count-only", help="Only count the keys.")] = False,
    value_only: ValueOnly = False,
    raw: Raw = False,
    consistency: Annotated[
        str,
        typer.Option(
            "--consistency",
            metavar="HOW",
            help="linearizable (l), lease, or local (s): at once, may be stale.",
        ),
    ] = "linearizable",
    hexed: Hex = False,
) -> None:
    """Print a key and its value, or a range of them.

    Exit code 1 if the one KEY does not exist.
    """
    from .connecting import run
    from .printing import Style, pair_document
    from .quoting import shown
    from .requests import consistency_of, range_op

    style = Style(hexed, value_only or raw, keys_only, count_only, raw)
    _check_style(style, at)
    operation = range_op(
        os.fsencode(key),
        None if range_end is None else os.fsencode(range_end),
        prefix=prefix,
        from_key=from_key,
        limit=limit,
        sort_by=sort_by,
        order=order,
        revision=revision,
        keys_only=keys_only,
        count_only=count_only,
    )
    how = consistency_of(consistency)
    if at.output == "simple" and _pageable(operation):
        run(at, lambda client: _print_pages(client, operation, how, style))
        return
    found: RangeResult = run(at, lambda client: client.kv.read(operation, consistency=how))
    one = not operation.range_end and not count_only
    if one and not found.kvs:
        note_line(f"there is no key {shown(os.fsencode(key))}")
        raise typer.Exit(EXIT_NEGATIVE)
    if one and at.output == "json":
        from .output import print_json

        print_json(pair_document(found.kvs[0]))
        return
    show_result(at, found, style)


def _check_style(style: Style, at: At) -> None:
    """Raise ConfigError for options of the output that contradict each other."""
    narrow = style.keys_only or style.count_only
    if style.raw and (narrow or style.hexed or at.output != "simple"):
        raise ConfigError(
            "--raw prints the values as they are: leave out --keys-only, --count-only, --hex, "
            "--json and --output"
        )
    if style.value_only and narrow:
        raise ConfigError("--print-value-only leaves nothing of --keys-only and --count-only")


def _pageable(operation: RangeOp) -> bool:
    """Whether the range may be large, and comes in the order in which its keys lie."""
    from raftkv.kv.commands import FROM_KEY

    ordered = operation.sort_by == "key" and not operation.descending
    some = operation.range_end == FROM_KEY or operation.range_end > operation.key
    return ordered and some and not operation.limit and not operation.count_only


async def _print_pages(client: Client, operation: RangeOp, how: Consistency, style: Style) -> None:
    from raftkv.kv.commands import FROM_KEY

    from .output import write_bytes
    from .printing import result_text

    pages: AsyncIterator[RangeResult] = client.kv.pages(
        operation.key,
        None if operation.range_end == FROM_KEY else operation.range_end,
        page_keys=PAGE_KEYS,
        keys_only=operation.keys_only,
        revision=operation.revision,
        consistency=how,
    )
    async for page in pages:
        if page.kvs:
            write_bytes(result_text(page, style))


def delete(
    at: At,
    key: FirstKey,
    range_end: RangeEnd = None,
    prefix: Prefix = False,
    from_key: FromKey = False,
    prev_kv: PrevKv = False,
    hexed: Hex = False,
) -> None:
    """Delete a key or a range; prints how many there were."""
    from .connecting import run
    from .printing import Style
    from .requests import delete_op

    operation = delete_op(
        os.fsencode(key),
        None if range_end is None else os.fsencode(range_end),
        prefix=prefix,
        from_key=from_key,
        prev_kv=prev_kv,
    )
    result = run(at, lambda client: client.kv.delete_range(operation))
    show_result(at, result, Style(hexed=hexed), prev_kv=prev_kv)


def compact(
    at: At,
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=1, help="Keep from here on.")],
) -> None:
    """Forget the history before a revision.

    What the keys were at REVISION is kept; reads and watches of what was before are refused.
    """
    from .connecting import run

    result = run(at, lambda client: client.kv.compact(revision))
    if at.output == "json":
        from .output import print_json

        print_json({"compacted": revision, "revision": result.revision})
    else:
        say_line(f"compacted revision {revision}")


def show_result(at: At, result: OperationResult, style: Style, *, prev_kv: bool = False) -> None:
    """Print the result of an operation as `at.output` says."""
    from . import output, printing

    match at.output:
        case "json":
            output.print_json(printing.result_document(result, prev_kv=prev_kv))
        case "fields":
            sys.stdout.write(printing.fields_text(result))
        case "table":
            cells = [printing.pair_cells(kv, style) for kv in printing.pairs_of(result)]
            output.print_table(printing.PAIR_HEADINGS, cells, numbers=("CREATE", "MOD", "VERSION"))
        case _:
            output.write_bytes(printing.result_text(result, style))


def register(app: typer.Typer) -> None:
    """Add the commands to the top level."""
    every: tuple[str, ...] = ("simple", "table", "json", "fields")
    commands: list[tuple[str, Any, str]] = [
        (
            "put",
            connected("simple", "json", "fields")(put),
            examples(
                "raftkv put greeting hello --dir demo",
                "echo -n hello | raftkv put greeting --dir demo",
                "raftkv put worker alive --lease 694d8a1b --dir demo",
            ),
        ),
        (
            "get",
            connected(*every)(get),
            examples(
                "raftkv get greeting --dir demo",
                "raftkv get greeting --print-value-only --dir demo",
                "raftkv get jobs/ --prefix --limit 10 --json --dir demo",
                "raftkv get greeting --rev 7 --consistency s --dir demo",
            ),
        ),
        (
            "del",
            connected("simple", "json", "fields")(delete),
            examples("raftkv del greeting --dir demo", "raftkv del jobs/ --prefix --dir demo"),
        ),
        (
            "compact",
            connected("simple", "json")(compact),
            examples("raftkv compact 1000 --dir demo"),
        ),
    ]
    for name, command, epilog in commands:
        app.command(name, epilog=epilog)(command)
