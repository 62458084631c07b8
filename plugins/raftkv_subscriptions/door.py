"""Topics, subscriptions and regions at the network door: `/v1/subscriptions/...`.

    GET    status                              regions, links, what this node does
    GET    settings                            the replicated settings: ?consistency=
    PUT    settings/{key}                      {"value": json}, null: its default
    GET    topics                              all topics with their figures: ?consistency=
    GET    topics/{topic}                      one
    PUT    topics/{topic}                      declare it: {"replicated", "compacted", ...}
    DELETE topics/{topic}                      delete it, with its subscriptions
    POST   topics/{topic}/publish              {"messages": [{"body", "key", "headers"}]}; numbered
    GET    topics/{topic}/messages             read: ?from= &limit= &wait_s= &compacted=
    GET    topics/{topic}/subs                 its subscriptions: ?consistency=
    GET    topics/{topic}/subs/{sub}           one
    PUT    topics/{topic}/subs/{sub}           subscribe: {"kind", "initial", "replicate"}
    DELETE topics/{topic}/subs/{sub}           unsubscribe: ?force=
    PUT    topics/{topic}/subs/{sub}/replicate {"replicate": true}
    POST   topics/{topic}/subs/{sub}/seek      {"position": 17 | "earliest" | "latest"} | {"at_ms"}
    POST   topics/{topic}/subs/{sub}/ack       {"positions": [...]}: by an operator
    POST   topics/{topic}/subs/{sub}/ack_to    {"position"}: everything up to it
    POST   consumers                           {"topic", "sub", "kind", ...}: open one at this node
    GET    consumers/{id}                      what it is
    DELETE consumers/{id}                      close it
    POST   consumers/{id}/receive              {"count", "wait_s"}
    POST   consumers/{id}/ack                  {"positions"}
    POST   consumers/{id}/ack_to               {"position"}
    POST   consumers/{id}/nack                 {"positions"}: deliver them again
    POST   consumers/{id}/seek                 as above
    POST   consumers/{id}/keepalive            it is used, although nothing is done
    GET    regions                             all regions and the links to them
    PUT    regions/{region}                    {"state": "active" | "excluded", "fetches"}
    DELETE regions/{region}                    forget an excluded one
    PUT    region                              {"region"}: this region's own name
    PUT    mode                                {"mode": "vector" | "snapshot"}

`link` and `report` are for other regions (links/door.py).

Rules of this file: what a consumer does is asked of the node that it was opened at (409
`subscriptions_consumer_elsewhere` names it, with its address); everything else may be asked
anywhere. A position, where something begins, means that the next message is the one after it; where
something is read `from`, it is the first one that is read. What is not known in time is 504. An
answer that is no result has the shape of the door's own errors (docs/http-api.md). No error shows a
body, a key or a header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Literal

from raftkv.errors import InvalidSetting, OutcomeUnknown, Refused
from raftkv.plugin import (
    BadRequest,
    Handler,
    Host,
    Request,
    Response,
    Route,
    answered,
    body_of,
    error_response,
    fresh,
    only_query,
    query_flag,
    query_number,
    query_seconds,
    query_word,
    settings_routes,
)

from .api import SubscriptionsApi
from .bodies import (
    LIST_DEFAULT,
    LIST_MAX,
    NUMBER_MAX,
    TIMEOUT_MAX_S,
    WantedAck,
    WantedAckTo,
    WantedConsumer,
    WantedDeclare,
    WantedNothing,
    WantedPublish,
    WantedReceive,
    WantedReplicate,
    WantedSeek,
    WantedSubscribe,
)
from .door_consumers import ConsumerElsewhere, DoorConsumers, TooManyDoorConsumers
from .door_regions import RegionDoor
from .errors import StillUnderWay
from .refusals import (
    BadMessage,
    BadName,
    BatchTooLarge,
    EmptyBatch,
    MessageTooLarge,
    UnknownPosition,
    UnknownRegion,
    UnknownSubscription,
    UnknownTopic,
)
from .reports import ANSWER_BYTES_MAX, consumer_report, fields, plain, read_report, received_report
from .views import topic_of

__all__ = ["routes"]

# What of an error a program may need: never a body, a key or a header.
_FIELDS: Final = (
    "topic", "sub", "region", "origin", "consumer", "node", "position", "first", "next", "kind",
    "limit", "what", "seq", "known", "expected", "consumers",
    "backlog_bytes",
)  # fmt: skip
# The request itself is wrong, whatever the state.
_WRONG: Final = (
    BadMessage,
    BadName,
    BatchTooLarge,
    EmptyBatch,
    InvalidSetting,
    MessageTooLarge,
    UnknownPosition,
)
_UNKNOWN: Final = (UnknownTopic, UnknownSubscription, UnknownRegion)

# One command each, and worth being sent until it is known to be done, once.
_NUMBERED: Final = frozenset(("topics/{topic}/publish",))

Method = Literal["GET", "PUT", "POST", "DELETE"]


def routes(host: Host, api: SubscriptionsApi, consumers: DoorConsumers) -> Sequence[Route]:
    """The plugin's routes on this node, but for those of other regions (links/door.py)."""
    topics, subs = _Topics(host, api), _Subs(host, api)
    used, regions = _Consumers(host, consumers), RegionDoor(host, api, consumers)
    sub = "topics/{topic}/subs/{sub}"
    made: tuple[tuple[Method, str, Handler, str], ...] = (
        ("GET", "status", regions.status, "Regions, links, this node."),
        ("GET", "topics", topics.topics, "All topics with their figures."),
        ("GET", "topics/{topic}", topics.topic, "One topic."),
        ("PUT", "topics/{topic}", topics.declare, "Declare a topic, or change its limits."),
        ("DELETE", "topics/{topic}", topics.delete, "Delete a topic with its subscriptions."),
        ("POST", "topics/{topic}/publish", topics.publish, "Publish messages."),
        ("GET", "topics/{topic}/messages", topics.messages, "Read messages."),
        ("GET", "topics/{topic}/subs", subs.subs, "A topic's subscriptions."),
        ("GET", sub, subs.sub, "One subscription."),
        ("PUT", sub, subs.subscribe, "Subscribe."),
        ("DELETE", sub, subs.unsubscribe, "Delete a subscription."),
        ("PUT", f"{sub}/replicate", subs.replicate, "Whether its state goes to other regions."),
        ("POST", f"{sub}/seek", subs.seek, "Where it goes on, in this region."),
        ("POST", f"{sub}/ack", subs.ack, "Acknowledge messages for its consumers."),
        ("POST", f"{sub}/ack_to", subs.ack_to, "Acknowledge everything up to a position."),
        ("POST", "consumers", used.open, "Open a consumer at this node."),
        ("GET", "consumers/{id}", used.consumer, "What a consumer is."),
        ("DELETE", "consumers/{id}", used.close, "Close a consumer."),
        ("POST", "consumers/{id}/receive", used.receive, "Receive messages."),
        ("POST", "consumers/{id}/ack", used.ack, "Acknowledge messages."),
        ("POST", "consumers/{id}/ack_to", used.ack_to, "Acknowledge all up to a message."),
        ("POST", "consumers/{id}/nack", used.nack, "Have messages delivered again."),
        ("POST", "consumers/{id}/seek", used.seek, "Where the subscription goes on."),
        ("POST", "consumers/{id}/keepalive", used.keepalive, "Keep a consumer."),
        ("GET", "regions", regions.regions, "All regions and the links to them."),
        ("PUT", "regions/{region}", regions.put, "Add, exclude or include a region."),
        ("DELETE", "regions/{region}", regions.remove, "Forget an excluded region."),
        ("PUT", "region", regions.name, "Name this region."),
        ("PUT", "mode", regions.mode, "How subscriptions are replicated."),
    )
    return [
        *(
            Route(
                method, path, answered(handler, partial(_answer_to, host)), doc, path in _NUMBERED
            )
            for method, path, handler, doc in made
        ),
        *settings_routes(host),
    ]


class _Topics:
    def __init__(self, host: Host, api: SubscriptionsApi) -> None:
        self._host = host
        self._api = api

    async def topics(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        return Response(
            {"topics": [plain(each) for each in self._api.topics()], "now_ms": self._host.now_ms()}
        )

    async def topic(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        found = await self._api.topic(request.params["topic"], consistency="local")
        return Response({**plain(found), "now_ms": self._host.now_ms()})

    async def declare(self, request: Request) -> Response:
        only_query(request)
        name, asked = request.params["topic"], body_of(request, WantedDeclare)
        with _checked():
            done = await self._api.declare(
                name,
                replicated=asked.replicated,
                compacted=asked.compacted,
                retention_s=asked.retention_s,
                retention_bytes=asked.retention_bytes,
                backlog_bytes_max=asked.backlog_bytes_max,
                change=asked.change,
            )
        return Response({"topic": name, "created": done.created, "changed": done.changed})

    async def delete(self, request: Request) -> Response:
        only_query(request)
        name = request.params["topic"]
        done = await self._api.delete(name)
        return Response({"topic": name, "deleted": True, "messages": done.messages})

    async def publish(self, request: Request) -> Response:
        only_query(request)
        name, asked = request.params["topic"], body_of(request, WantedPublish)
        messages = [each.message for each in asked.messages]
        with _checked():
            if request.under is not None:
                done = await self._api.publish_under(
                    request.under, name, messages, timeout_s=asked.timeout_s
                )
            else:
                done = await self._api.publish(name, messages, timeout_s=asked.timeout_s)
        return Response({"topic": name, **fields(done)})

    async def messages(self, request: Request) -> Response:
        only_query(request, "from", "limit", "wait_s", "compacted", "consistency")
        name = request.params["topic"]
        first = query_number(request, "from", 1, 1, NUMBER_MAX)
        limit = query_number(request, "limit", LIST_DEFAULT, 1, LIST_MAX)
        compacted = query_flag(request, "compacted")
        word = query_word(request, "consistency", "linearizable", ("local",))
        consistency: Literal["linearizable", "local"] = (
            "local" if word == "local" else "linearizable"
        )
        found = await self._api.read(
            name,
            first=first,
            limit=limit,
            bytes_max=ANSWER_BYTES_MAX,
            compacted=compacted,
            consistency=consistency,
        )
        if not found and "wait_s" in request.query:
            wait_s = query_seconds(request, "wait_s", TIMEOUT_MAX_S, TIMEOUT_MAX_S)
            reader = await self._api.reader(name, start=first, compacted=compacted)
            try:
                found = await reader.read(limit, wait_s=wait_s, bytes_max=ANSWER_BYTES_MAX)
            finally:
                reader.close()
        end = topic_of(self._host.view(), name).next
        return Response({"topic": name, **read_report(found, end), "now_ms": self._host.now_ms()})


class _Subs:
    def __init__(self, host: Host, api: SubscriptionsApi) -> None:
        self._host = host
        self._api = api

    async def subs(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        found = await self._api.subscriptions(request.params["topic"], consistency="local")
        return Response({"subs": [plain(each) for each in found]})

    async def sub(self, request: Request) -> Response:
        only_query(request, "consistency")
        await fresh(self._host, request)
        found = await self._api.sub(*_named(request), consistency="local")
        return Response(plain(found))

    async def subscribe(self, request: Request) -> Response:
        only_query(request)
        (topic, sub), asked = _named(request), body_of(request, WantedSubscribe)
        with _checked():
            done = await self._api.subscribe(
                topic, sub, kind=asked.kind, initial=asked.initial, replicate=asked.replicate
            )
        return Response({"topic": topic, "sub": sub, "created": done.created, "mark": done.mark})

    async def unsubscribe(self, request: Request) -> Response:
        only_query(request, "force")
        topic, sub = _named(request)
        await self._api.unsubscribe(topic, sub, force=query_flag(request, "force"))
        return Response({"topic": topic, "sub": sub, "deleted": True})

    async def replicate(self, request: Request) -> Response:
        only_query(request)
        (topic, sub), asked = _named(request), body_of(request, WantedReplicate)
        await self._api.set_replicate(topic, sub, asked.replicate)
        return Response({"topic": topic, "sub": sub, "replicate": asked.replicate})

    async def seek(self, request: Request) -> Response:
        only_query(request)
        (topic, sub), asked = _named(request), body_of(request, WantedSeek)
        with _checked():
            done = await self._api.seek(topic, sub, asked.position, at_ms=asked.at_ms)
        return Response({"topic": topic, "sub": sub, **fields(done)})

    async def ack(self, request: Request) -> Response:
        only_query(request)
        (topic, sub), asked = _named(request), body_of(request, WantedAck)
        with _checked():
            done = await self._api.ack(topic, sub, asked.positions, epoch=asked.epoch)
        return Response({"topic": topic, "sub": sub, **fields(done)})

    async def ack_to(self, request: Request) -> Response:
        only_query(request)
        (topic, sub), asked = _named(request), body_of(request, WantedAckTo)
        done = await self._api.ack_to(topic, sub, asked.position, epoch=asked.epoch)
        return Response({"topic": topic, "sub": sub, **fields(done)})


class _Consumers:
    def __init__(self, host: Host, consumers: DoorConsumers) -> None:
        self._host = host
        self._consumers = consumers

    async def open(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedConsumer)
        with _checked():
            consumer, handle = await self._consumers.open(asked)
        return Response(consumer_report(consumer, handle, self._host.name, self._consumers.idle_s))

    async def consumer(self, request: Request) -> Response:
        only_query(request)
        handle = request.params["id"]
        async with self._consumers.using(handle) as consumer:
            idle_s = self._consumers.idle_s
            return Response(consumer_report(consumer, handle, self._host.name, idle_s))

    async def close(self, request: Request) -> Response:
        only_query(request)
        handle = request.params["id"]
        await self._consumers.close(handle)
        return Response({"consumer": handle, "closed": True})

    async def receive(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedReceive)
        async with self._consumers.using(request.params["id"]) as consumer:
            found = await consumer.receive(
                asked.count, wait_s=asked.wait_s, bytes_max=ANSWER_BYTES_MAX
            )
            return Response(
                {
                    "consumer": request.params["id"],
                    "active": consumer.active,
                    "messages": received_report(found),
                }
            )

    async def ack(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedAck)
        async with self._consumers.using(request.params["id"]) as consumer:
            with _checked():
                mark = await consumer.ack(*asked.positions, epoch=asked.epoch)
            return Response({"consumer": request.params["id"], "mark": mark})

    async def ack_to(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedAckTo)
        async with self._consumers.using(request.params["id"]) as consumer:
            with _checked():
                mark = await consumer.ack_to(asked.position, epoch=asked.epoch)
            return Response({"consumer": request.params["id"], "mark": mark})

    async def nack(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedAck)
        async with self._consumers.using(request.params["id"]) as consumer:
            with _checked():
                done = await consumer.nack(*asked.positions, epoch=asked.epoch)
            return Response({"consumer": request.params["id"], "done": done})

    async def seek(self, request: Request) -> Response:
        only_query(request)
        asked = body_of(request, WantedSeek)
        async with self._consumers.using(request.params["id"]) as consumer:
            with _checked():
                done = await consumer.seek(asked.position, at_ms=asked.at_ms)
            return Response({"consumer": request.params["id"], **fields(done)})

    async def keepalive(self, request: Request) -> Response:
        only_query(request)
        body_of(request, WantedNothing)
        async with self._consumers.using(request.params["id"]):
            return Response({"consumer": request.params["id"], "idle_s": self._consumers.idle_s})


# --- what a request may say, and is told ----------------------------------------------------------


def _named(request: Request) -> tuple[str, str]:
    return request.params["topic"], request.params["sub"]


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """What the API finds wrong with a call before it does anything is wrong with the request."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from None


def _answer_to(host: Host, error: Exception) -> Response | None:
    """The plugin's own kinds of errors, as what they are; the door knows the others."""
    match error:
        case TooManyDoorConsumers():
            status = 429
        case StillUnderWay():
            status = 504
        case Refused() if isinstance(error, _UNKNOWN):
            status = 404
        case Refused() if isinstance(error, _WRONG):
            status = 400
        case Refused():
            status = 409
        case _:
            return None
    assert isinstance(error, (Refused, OutcomeUnknown))
    more = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    if isinstance(error, ConsumerElsewhere):
        member = host.members.get(error.node)
        more["http_address"] = None if member is None else member.http_address
    return error_response(status, error.code, str(error), **more)
