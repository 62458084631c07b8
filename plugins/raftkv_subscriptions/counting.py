"""What the API of one node counts. No labels: names of topics are the users', and unbounded."""

from __future__ import annotations

from typing import Final

from raftkv.plugin import Counters as PluginCounters

__all__ = ["Counters"]

_DOC: Final = {
    "published": "Messages published on this node.",
    "backlog_refused": "Publications of this node that were refused with BacklogFull.",
    "publish_commands": "Commands that it took to publish them.",
    "read": "Messages handed out by readers of this node.",
    "received": "Messages handed out by consumers of this node.",
    "redelivered": "Those of them that had been handed out before, as far as is known.",
    "acked": "Messages that consumers of this node acknowledged, cumulative ones not counted.",
    "ack_commands": "Commands that it took to acknowledge, cumulative ones included.",
    "stale_acks": "Acknowledgements and releases of before a seek, which were dropped.",
    "nacked": "Messages that consumers of this node gave back.",
    "takes": "Take commands of this node (shared subscriptions).",
    "empty_takes": "Those of them that found nothing.",
    "waits": "Readers and consumers of this node that had to wait for a message.",
    "wakeups": "Waiting readers and consumers of this node that were woken.",
    "consumers_opened": "Consumers that this node opened.",
    "consumers_ended": "Consumers of this node that were ended by others than their user.",
    "door_consumers_closed": "Consumers of this node's door that nobody used.",
    "detached": "Callers that left, or whose time was over, while their command went on.",
    "released_unheard": "Messages that were taken for a caller who had left, and given back.",
    "unknown_outcomes": "Proposals whose answer was lost, and had to be settled.",
}


class Counters(PluginCounters):
    """What this node has done (`_DOC`)."""

    def __init__(self) -> None:
        super().__init__(_DOC)
