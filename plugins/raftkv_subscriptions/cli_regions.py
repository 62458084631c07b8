"""`raftkv region ...`: what a region knows of the others, and three of them on this machine.

What a region knows, and whom it excludes, is its own: an exclusion has to be said in every region
that shall go on without the other one. `up` and `down` are for development: every region is a
cluster in a directory below `--dir`, and has the doors of the others as endpoints of its links.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import typer

from raftkv.cli.kit import (
    Ask,
    At,
    Directory,
    Format,
    bring_up,
    confirm,
    connected,
    examples,
    formatted,
    group,
    local_clusters,
    note,
    print_json,
    say,
    shown,
    wait_for,
)
from raftkv.errors import ConfigError, RaftkvError, Refused

from .cli_common import Local, Yes, path, print_sheet, query, tell
from .sheets import lag_sheet, regions_sheet, status_words

__all__ = ["region_app"]

NAMES: Final = ("a", "b", "c")
MODES: Final = ("vector", "snapshot")
# How long `up` waits for the links once all regions take writes.
LINKS_S: Final = 15.0

region_app = group("Regions: the links between them, and three on this machine.")

RegionName = Annotated[str, typer.Argument(metavar="REGION", help="The name of a region.")]


# --- the regions that one knows -------------------------------------------------------------------


@region_app.command("list", epilog=examples("raftkv region list --dir demo/a"))
@connected("table", "json")
def list_regions(at: At, local: Local = False) -> None:
    """All regions, the links to them, and how far behind each side is."""
    found = Ask(at)("GET", f"{path('regions')}{query(local)}")
    if at.output == "json":
        print_json(found)
    else:
        print_sheet(regions_sheet(found["regions"]))


@region_app.command(epilog=examples("raftkv region status --dir demo/a"))
@connected("simple", "json")
def status(at: At, local: Local = False) -> None:
    """This region in a few figures, and what is behind, topic by topic."""
    found = Ask(at)("GET", f"{path('status')}{query(local)}")
    if at.output == "json":
        print_json(found)
        return
    for line in status_words(found):
        say(shown(line))
    print_sheet(lag_sheet(found["regions"]))


@region_app.command(
    epilog=examples(
        "raftkv region add eu --dir demo/a", "raftkv region add eu --no-fetches --dir demo/a"
    )
)
@connected("simple", "json")
def add(
    at: At,
    region: RegionName,
    fetches: Annotated[
        bool | None,
        typer.Option(
            "--fetches/--no-fetches", help="It fetches from here, so retention waits for it."
        ),
    ] = None,
) -> None:
    """Make another region known. One that has a link in the configuration is known already."""
    body = {"state": "active", "fetches": fetches}
    done = Ask(at)("PUT", path("regions", region), body)
    what = "added" if done["created"] else "changed" if done["changed"] else "was so already"
    tell(at, done, f"{done['region']}: {what}")


@region_app.command(epilog=examples("raftkv region exclude c --yes --dir demo/a"))
@connected("simple", "json")
def exclude(at: At, region: RegionName, yes: Yes = False) -> None:
    """Go on without a region: fetch nothing from it, wait for it no more. Say it everywhere."""
    ask = Ask(at)
    if not yes:
        _state(ask, region)
        confirm(f"{shown(region)} may miss what retention removes meanwhile.", region)
    done = ask("PUT", path("regions", region), {"state": "excluded"})
    tell(at, done, f"{done['region']}: {'excluded' if done['changed'] else 'was so already'}")


@region_app.command(epilog=examples("raftkv region include c --dir demo/a"))
@connected("simple", "json")
def include(at: At, region: RegionName) -> None:
    """Let an excluded region return."""
    ask = Ask(at)
    _state(ask, region)
    done = ask("PUT", path("regions", region), {"state": "active"})
    tell(at, done, f"{done['region']}: {'included' if done['changed'] else 'was so already'}")


@region_app.command(epilog=examples("raftkv region remove c --yes --dir demo/a"))
@connected("simple", "json")
def remove(at: At, region: RegionName, yes: Yes = False) -> None:
    """Forget an excluded region. Its messages stay; its name cannot be used by a new one."""
    ask = Ask(at)
    if not yes:
        if _state(ask, region) != "excluded":
            raise Refused(f"{shown(region)} is not excluded: exclude it first")
        confirm(f"{shown(region)} will be forgotten here.", region)
    done = ask("DELETE", path("regions", region), repeat=False)
    tell(at, done, f"{done['region']}: removed")


def _state(ask: Ask, region: str) -> str:
    """Raises Refused for a region that is not known, before anything is announced of it."""
    regions = ask("GET", path("regions"))["regions"]
    known: dict[str, str] = {each["name"]: each["state"] for each in regions if not each["own"]}
    if region not in known:
        these = f"not one of {', '.join(known)}" if known else "not known"
        raise Refused(f"{shown(region)} is {these}: add it first")
    return known[region]


@region_app.command(epilog=examples("raftkv region name eu --dir demo/a"))
@connected("simple", "json")
def name(at: At, region: RegionName) -> None:
    """Name this region; fixed from its first message on."""
    done = Ask(at)("PUT", path("region"), {"region": region})
    tell(at, done, f"this is {done['region']}")


@region_app.command(
    epilog=examples(
        "raftkv region mode snapshot --dir demo/a   (then for b and c)",
        "raftkv region mode --dir demo/a",
    )
)
@connected("simple", "json")
def mode(
    at: At,
    to: Annotated[
        str | None, typer.Argument(metavar="[vector|snapshot]", help="Show it if left out.")
    ] = None,
) -> None:
    """How this region replicates subscriptions: all regions should do it alike."""
    ask = Ask(at)
    if to is not None and to not in MODES:
        raise ConfigError(f"{shown(to)} is no mode: say one of {', '.join(MODES)}")
    if to is None:
        found = {"mode": ask("GET", path("settings"))["settings"]["mode"]}
    else:
        found = ask("PUT", path("mode"), {"mode": to})
    tell(at, found, found["mode"])


# --- three of them here ---------------------------------------------------------------------------


@region_app.command(
    epilog=examples(
        "raftkv region up --dir demo",
        "raftkv region up --dir demo --cores 3 --detach",
        "raftkv region up --dir demo --name eu --name us",
    )
)
def up(
    directory: Directory,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="REGION", help="One for each; new ones are a, b, c."),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Voters of each; a new one gets 1.")
    ] = None,
    replicants: Annotated[
        int | None, typer.Option("--replicants", min=0, help="Of each; a new one gets none.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once writes succeed.")] = False,
    fsync: Annotated[
        Literal["on", "off"] | None,
        typer.Option("--fsync", help="off loses acknowledged writes at a power cut; default on."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds until writes must succeed.")
    ] = 60.0,
) -> None:
    """Create regions on this machine that fetch from each other, or start what is not running.

    Show them until Ctrl-C ends them, or return with --detach, once writes succeed.
    """
    clusters = local_clusters(directory)
    wanted = tuple(names or ())
    new = not clusters.exists

    def start(progress: Callable[[str], None]) -> Sequence[str]:
        started = clusters.up(
            (wanted or NAMES) if new else wanted,
            _options,
            cores=1 if new and cores is None else cores,
            replicants=0 if new and replicants is None else replicants,
            fsync=fsync,
            timeout_s=timeout_s,
            progress=progress,
        )
        open_links = {each: clusters.cluster(each).endpoints() for each in started}
        late = _not_linked(open_links)
        lines = [f"regions {', '.join(started)} take writes; directory {clusters.directory}"]
        lines += [f"the link {link} is not there yet: raftkv region list" for link in late]
        return [*lines, *_first_steps(directory, started)]

    bring_up(clusters, start, detach=detach)


@region_app.command(epilog=examples("raftkv region down --dir demo"))
@formatted("simple", "json")
def down(form: Format, directory: Directory) -> None:
    """Stop the regions of `region up` and leave their data."""
    stopped = local_clusters(directory).down()
    if form.output == "json":
        print_json({"stopped": stopped})
    else:
        say(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def _options(own: str, endpoints: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """What the nodes of the region `own` are told: a link to each of the others."""
    links = {
        other: {"endpoints": list(doors)} for other, doors in endpoints.items() if other != own
    }
    return {"subscriptions": {"region": own, "links": links}}


def _not_linked(endpoints: Mapping[str, Sequence[str]]) -> list[str]:
    """The links that are not there after a while, like "a to b"."""
    asks = {own: Ask(At(endpoints=tuple(doors))) for own, doors in endpoints.items()}
    late: list[str] = []

    def all_there() -> bool:
        late[:] = [f"from {own} to {other}" for own, ask in asks.items() for other in _late(ask)]
        return not late

    wait_for(all_there, LINKS_S)
    return late


def _late(ask: Ask) -> list[str]:
    try:
        regions = ask("GET", path("regions"))["regions"]
    except RaftkvError as error:
        note(f"a region does not answer: {error}")
        return ["the others"]
    others = [each for each in regions if not each["own"] and each["state"] == "active"]
    return [
        each["name"]
        for each in others
        if each["link"] is None or each["link"]["state"] != "connected"
    ]


def _first_steps(directory: str, names: Sequence[str]) -> list[str]:
    if len(names) < 2:
        return []
    first, second = (os.path.join(directory, each) for each in names[:2])
    return [
        "to try them:",
        f"  raftkv topic declare orders --dir {first}",
        f"  raftkv topic publish orders 'order 1' 'order 2' --dir {first}",
        f"  raftkv sub consume orders billing --initial earliest --replicate --dir {second}",
        f"  raftkv sub consume orders billing --dir {first}",
    ]
