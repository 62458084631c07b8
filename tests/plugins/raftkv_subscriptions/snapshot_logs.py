"""Regions in snapshot mode, whose links are carried by hand: `pure.Regions` and their markers."""

from __future__ import annotations

from typing import Any

from raftkv_subscriptions import markers, views
from raftkv_subscriptions.commands import (
    Answered,
    Merged,
    SnapshotAbandon,
    SnapshotAnswer,
    SnapshotAnswered,
    SnapshotStart,
    Started,
    Update,
)
from raftkv_subscriptions.rows import Advance, Answer, Marker, Pending, Request
from tests.plugins.raftkv_subscriptions.pure import RegionLog, Regions, must


class SnapshotRegions(Regions):
    """In snapshot mode. Region a has the replicated subscription "s" from the beginning."""

    def __init__(self, *names: str, subscribed: bool = True, **more: Any) -> None:
        super().__init__(*names, **more)
        for log in self.logs.values():
            log.set("mode", "snapshot")
        if subscribed:
            self[names[0]].subscribe(replicate=True, initial="earliest")

    # --- commands ---

    def start(self, region: str = "a", topic: str = "t") -> Started:
        return must(Started, self[region].anywhere(SnapshotStart(topic)))

    def ask(self, source: str, target: str, round: int = 1, id: int = 0) -> Answer:
        """The source's request gets to the target; its answer there."""
        log = self[target]
        if not id:
            id = self.request(source).id
        log.anywhere(SnapshotAnswer("t", source, id, 1 if round == 1 else 2))
        marker = marker_of(log, markers.answer_to(source))
        assert marker is not None
        return must(Answer, marker.what)

    def tell(self, target: str, answer: Answer) -> Answered:
        """The answer gets to the one that asked."""
        command = SnapshotAnswered(
            "t",
            answer.region,
            answer.id,
            1 if answer.round == 1 else 2,
            answer.position,
            answer.vector,
        )
        return must(Answered, self[target].anywhere(command))

    def round(self, source: str, *targets: str, number: int = 1) -> Answered:
        """Ask all, with what links carry on the way; what the last answer did."""
        last = Answered(False)
        for target in targets:
            answer = self.ask(source, target, number)
            self.carry(target, source, only=(target,))
            last = self.tell(source, answer)
        return last

    def abandon(self, region: str, id: int) -> Answered:
        return must(Answered, self[region].anywhere(SnapshotAbandon("t", id)))

    def update(self, source: str, target: str, sub: str = "s") -> Merged:
        """The source's last update gets to the target."""
        what = self.advance(source, sub)
        assert what is not None
        command = Update(
            "t",
            source,
            sub,
            what.kind,
            what.id,
            dict(what.positions)[target],
            what.base,
            what.without,
        )
        return must(Merged, self[target].anywhere(command))

    # --- state ---

    def request(self, region: str) -> Request:
        marker = marker_of(self[region], markers.REQUEST)
        assert marker is not None
        return must(Request, marker.what)

    def advance(self, region: str, sub: str = "s") -> Advance | None:
        marker = marker_of(self[region], markers.update_of(sub))
        return None if marker is None else must(Advance, marker.what)

    def pending(self, region: str = "a") -> Pending | None:
        log = self[region]
        return views.pending_of(log.view(), log.topic().id)

    def snapshots(self, region: str = "a") -> dict[int, dict[str, int]]:
        log = self[region]
        kept = views.snapshots_of(log.view(), log.topic().id)
        return {position: dict(row.positions) for position, row in kept}

    def cached(self, region: str = "a", sub: str = "s") -> list[int]:
        log = self[region]
        return [position for position, _ in views.cached_of(log.view(), log.sub(sub).id)]


def marker_of(log: RegionLog, meaning: str, topic: str = "t") -> Marker | None:
    return markers.marker_of(log.view(), log.topic(topic).id, meaning)
