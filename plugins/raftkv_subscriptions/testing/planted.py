"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("two-rounds-are-one"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
mistakes of the seed's upstream (snapshots that are used too early, a subscription that begins at
the wrong end, markers that get lost), and those that sets of acknowledgements invite: what is below
a base is taken for acknowledged, a seek is undone by what others say, a hole counts as a message.

Here are those of topics, subscriptions and consumers; those of snapshots and links are in
`planted_links.py`, which this module imports: `BUGS` has them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.testing.patching import around, replaced
from raftkv_subscriptions import (
    acking,
    arriving,
    backlog,
    consumers,
    handing,
    marks,
    merging,
    ranges,
    reading,
    retention,
    snapshots,
    subs,
    sweeping,
    topics,
)
from raftkv_subscriptions.commands import (
    Ack,
    AckDelivered,
    AckTo,
    AckToDelivered,
    Merge,
    Report,
)
from raftkv_subscriptions.links import pulling
from raftkv_subscriptions.mapping import vector_of_rows, with_vector
from raftkv_subscriptions.views import vector_before_first

from .planted_links import BUGS
from .planting import SEEDS_MAX, applying, everywhere, patching, wrapping

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

planted = BUGS.planted


# Topics -------------------------------------------------------------------------------------------


@wrapping(
    "double-taken", "now and then a double is taken for a new message", arriving._Arrival, "take"
)
def _double_taken(take: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: arriving._Arrival, copy: Any) -> None:
        known = self._known.get(copy.origin)
        known = self._first_of(copy.origin) if known is None else known
        if copy.seq == known and copy.origin != self._own:
            self._known[copy.origin] = known - 1
        take(self, copy)

    return broken


@wrapping(
    "hole-forgotten", "a hole is passed over and not remembered", arriving._Arrival, "_put_hole"
)
def _hole_forgotten(put_hole: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, origin, first, last: None


@wrapping("named-again", "a topic that is made anew begins with 1 again", topics, "_made")
def _named_again(made: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str) -> Any:
        ctx.table("gone").delete(name)
        return made(ctx, name)

    return broken


@wrapping(
    "redeclare-resets",
    "a topic that is declared again gets the limits of a new one",
    topics,
    "declare",
)
def _redeclare_resets(declare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, ctx: declare(
        replace(command, replicated=True, backlog_bytes_max=0, retention_bytes=0), ctx
    )


@wrapping("retention-forgets-marks", "retention does not look at marks", retention, "free_to")
def _retention_forgets_marks(free_to: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, topic: Any) -> int:
        free = free_to(view, topic)
        waiting = any(
            region.state == "active" and region.fetches
            for _, region in view.table("regions").scan()
        )
        return int(free if waiting and topic.replicated else topic.next - 1)

    return broken


@wrapping("retention-forgets-regions", "retention waits for no other region", retention, "free_to")
def _retention_forgets_regions(free_to: Callable[..., Any]) -> Callable[..., Any]:
    return lambda view, topic: free_to(view, replace(topic, replicated=False))


@wrapping(
    "backlog-is-all-that-is-kept",
    "a topic without retention is full once and for ever",
    backlog,
    "bytes_for",
)
def _backlog_is_all(bytes_for: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic, room: topic.bytes


@wrapping(
    "backlog-forgets-seeks",
    "what a seek or a new subscription wants again is not counted",
    backlog,
    "has_moved_back",
)
def _backlog_forgets_seeks(moved: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic_id, mark: None


@applying("report-says-all", "a region that reports anything is taken to have everything", Report)
def _report_says_all(report: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        said = []
        for name, vector in command.topics:
            topic = ctx.table("topics").get(name)
            said.append((name, vector if topic is None else vector_of_rows(ctx, topic.id)))
        return report(replace(command, topics=tuple(said)), ctx)

    return broken


# Subscriptions ------------------------------------------------------------------------------------


@wrapping("latest-is-earlier", "latest begins with what is here already", subs, "_beginning")
def _latest_is_earlier(beginning: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, topic: Any, initial: str) -> Any:
        base, mark = beginning(ctx, topic, initial)
        return tuple((o, seq - 1) for o, seq in base if seq > 1), mark

    return broken


@wrapping("earliest-is-latest", "a subscription begins with the latest message", subs, "_beginning")
def _earliest_is_latest(beginning: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic, initial: beginning(ctx, topic, "latest")


@wrapping("seek-keeps-acks", "a seek leaves what was acknowledged out of order", subs, "clear")
def _seek_keeps_acks(clear: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, sub_id: 0


@wrapping("seek-without-mask", "what others say undoes a seek", subs, "highest")
def _seek_without_mask(highest: Callable[..., Any]) -> Callable[..., Any]:
    return lambda view, sub_id, origin: 0


@wrapping(
    "seek-undone-by-old-acks",
    "an acknowledgement of what was delivered before a seek counts after it",
    acking,
    "_is_stale",
)
def _seek_undone_by_old_acks(is_stale: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, sub: False


@wrapping(
    "seek-undone-by-old-releases",
    "a release of what was delivered before a seek counts after it",
    handing,
    "_is_stale",
)
def _seek_undone_by_old_releases(is_stale: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, sub: False


@wrapping(
    "cache-only",
    "a mark that lags uses what the cache of snapshots happens to hold",
    snapshots,
    "_newest_kept",
)
def _cache_only(newest_kept: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic_id, before, mark: None


@applying("ack-loses-one", "of several acknowledgements the last one is lost", Ack, AckDelivered)
def _ack_loses_one(ack: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        kept = command.positions[:-1] if len(command.positions) > 1 else command.positions
        return ack(replace(command, positions=kept), ctx)

    return broken


@applying(
    "ack-to-goes-on",
    "a cumulative acknowledgement takes one message more",
    AckTo,
    AckToDelivered,
)
def _ack_to_goes_on(ack_to: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        topic = ctx.table("topics").get(command.topic)
        if topic is not None and command.position + 1 < topic.next:
            command = replace(command, position=command.position + 1)
        return ack_to(command, ctx)

    return broken


@everywhere("add", ranges, acking)("gap-is-closed", "a gap of one message is taken for none")
def _gap_is_closed(add: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, sub_id: int, origin: str, first: int, last: int, **more: Any) -> Any:
        floor = ctx.table("floors").get((sub_id, origin))
        if floor is not None and first == floor.floor + 2:
            first -= 1
        return add(ctx, sub_id, origin, first, last, **more)

    return broken


@everywhere("mark_of", marks)("mark-too-far", "a mark passes a message that is wanted")
def _mark_too_far(mark_of: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, topic: Any, sub: Any, rows: int = 1_000) -> Any:
        mark, looked, more = mark_of(view, topic, sub, rows)
        if mark > sub.mark and mark + 1 < topic.next:
            mark += 1
        return mark, looked, more

    return broken


# What others say ----------------------------------------------------------------------------------


@applying("base-is-acknowledged", "what lies below another region's base is acknowledged", Merge)
def _base_is_acknowledged(merge: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        below = tuple((origin, 1, seq) for origin, seq in command.base)
        return merge(replace(command, ranges=(*command.ranges, *below)), ctx)

    return broken


@wrapping("merge-mends-the-base", "a merged base is raised to what is kept", merging, "_base_of")
def _merge_mends_the_base(base_of: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, topic: Any, told: Any) -> Any:
        return with_vector(base_of(ctx, topic, told), vector_before_first(ctx, topic))

    return broken


@contextlib.contextmanager
def _merge_into_all() -> Iterator[None]:
    def unasked(reason: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ctx, source, old: reason(ctx, source, None)

    def unfiltered(merge_of: Callable[..., Any]) -> Callable[..., Any]:
        def broken(view: Any, frame: Any, source: str) -> Any:
            found = merge_of(view, frame, source)
            if found == "not replicated":
                return Merge(frame.topic, source, frame.sub, frame.kind, frame.base, frame.ranges)
            return found

        return broken

    with (
        around(merging, "_reason_against", unasked),
        around(pulling, "merge_of", unfiltered),
    ):
        yield


patching("merge-into-all", "what is not replicated is merged too", _merge_into_all)


@contextlib.contextmanager
def _mask_is_not_asked() -> Iterator[None]:
    def unasked(mask_of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ctx, topic, sub, origin: 0

    def unfiltered(merge_of: Callable[..., Any]) -> Callable[..., Any]:
        def broken(view: Any, frame: Any, source: str) -> Any:
            found = merge_of(view, frame, source)
            if isinstance(found, str) or not frame.ranges:
                return found
            return Merge(frame.topic, source, frame.sub, frame.kind, frame.base, frame.ranges)

        return broken

    with around(merging, "_mask_of", unasked), around(pulling, "merge_of", unfiltered):
        yield


patching("mask-is-not-asked", "a merge does not look at the mask", _mask_is_not_asked)


@wrapping(
    "merge-replaces", "what another region says takes the place of the last range", merging, "unite"
)
def _merge_replaces(unite: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, sub: Any, told: Any, ranges_max: int) -> Any:
        rows = list(ctx.table("acks").scan((sub.id, "", 0), (sub.id + 1, "", 0), limit=1))
        if rows and told:
            ctx.table("acks").delete(rows[0][0])
            sub = replace(sub, ranges=sub.ranges - 1)
        return unite(ctx, sub, told, ranges_max)

    return broken


@wrapping(
    "full-takes-nothing",
    "a set that has all its ranges takes nothing of what others say",
    merging,
    "unite",
)
def _full_takes_nothing(unite: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, sub: Any, told: Any, ranges_max: int) -> Any:
        if sub.ranges >= ranges_max:
            return sub, 0, len(told)
        return unite(ctx, sub, told, ranges_max)

    return broken


@wrapping(
    "arrived-is-wanted", "a mark does not move on messages acknowledged before", marks, "arrived"
)
def _arrived_is_wanted(arrived: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, name, topic: None


# Consumers ----------------------------------------------------------------------------------------


@wrapping(
    "taken-twice", "the cursor of a shared subscription stays behind", handing._Hands, "fresh"
)
def _taken_twice(fresh: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: handing._Hands) -> int:
        cursor = fresh(self)
        return int(cursor - 1 if len(self.taken) > 1 else cursor)

    return broken


@wrapping("given-back-is-lost", "what a consumer held is lost with it", handing, "_return")
def _given_back_is_lost(give: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic, sub, position, deliveries: None


@wrapping("deliveries-forgotten", "what came back is counted as new", handing, "_return")
def _deliveries_forgotten(give: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, topic, sub, position, deliveries: give(ctx, topic, sub, position, 0)


@wrapping("two-exclusive", "an exclusive subscription is given to everybody", consumers, "_active")
def _two_exclusive(active: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, command: Any, sub: Any, id: int) -> int:
        return id if sub.kind == "exclusive" else int(active(ctx, command, sub, id))

    return broken


@wrapping(
    "wanted-is-passed", "a consumer passes over every seventh message", reading.Wanted, "__call__"
)
def _wanted_is_passed(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, origin, seq: seq % 7 != 0 and call(self, origin, seq)


@wrapping(
    "acknowledged-is-wanted",
    "a consumer of the node's copy gets all that is behind the mark",
    reading.Wanted,
    "__call__",
)
def _acknowledged_is_wanted(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, origin, seq: True


def _without(step: Callable[..., Any]) -> Any:
    """Sweeps without that step."""
    return replaced(sweeping, "_STEPS", tuple(each for each in sweeping._STEPS if each is not step))


patching(
    "nobody-ends-them",
    "consumers of nodes that ended stay",
    lambda: _without(sweeping._end_lives),
)
