"""Whether the source of a link is who it should be, and has not lost what it gave out before.

A region that is built anew with its old name would number other messages with numbers that were
used already: what others have of it would be taken for what it publishes now. So both sides look at
what the other one has of them before anything is taken.
"""

from __future__ import annotations

from raftkv.plugin import Host
from raftkv_subscriptions.mapping import number_in
from raftkv_subscriptions.rows import Topic
from raftkv_subscriptions.scope import own_region

from .errors import LinkRefused
from .frames import Hello, LinkRequest, TopicFrame

__all__ = ["check_name", "check_own", "check_source"]


def check_name(hello: Hello, region: str, endpoint: str) -> None:
    """Raises LinkRefused if another region answers there."""
    if hello.region != region:
        raise LinkRefused(
            "wrong_region",
            f"{endpoint} serves the region {hello.region!r}, not {region!r}: mend its endpoints, "
            f"or its name",
        )


def check_source(frame: TopicFrame, asked: LinkRequest, region: str) -> None:
    """Raises LinkRefused if the source has published less than this region had when it asked."""
    known = number_in(asked.topics.get(frame.topic, ()), region)
    head = number_in(frame.head, region)
    if head < known:
        raise LinkRefused(
            "origin_behind",
            f"{region} has published {head} messages of {frame.topic!r}, and this region has "
            f"{known} of them: it was rebuilt under its old name. Give it a new one, or exclude it",
        )


async def check_own(host: Host, frame: TopicFrame, region: str) -> None:
    """Raises LinkRefused if the source has messages of this region that it never published."""
    for fresh in (False, True):
        if fresh:
            # They may only be newer than what this node has applied.
            await host.barrier("linearizable")
        view = host.view()
        own = own_region(view)
        topic: Topic | None = view.table("topics").get(frame.topic)
        mine = topic.seq if topic is not None else view.table("gone").get(frame.topic, 0)
        if number_in(frame.head, own) <= mine:
            return
    raise LinkRefused(
        "origin_behind",
        f"{region} has messages of {frame.topic!r} of a region {own!r} that this one did not "
        f"publish: it was rebuilt under its old name. Give it a new one",
    )
