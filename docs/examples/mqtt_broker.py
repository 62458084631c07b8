"""An MQTT broker of several nodes, whose sessions raftkv_lcr decides.

    python docs/examples/mqtt_broker.py --nodes 3

    mosquitto_sub -p 1883 -i me -c -q 1 -t news/#        a session on the first node; end it ...
    mosquitto_pub -p 1884 -q 1 -t news/today -m hello    ... publish at another one ...
    mosquitto_sub -p 1885 -i me -c -q 1 -t news/#        ... and go on at a third: "hello" is there
    raftkv lcr list --endpoint http://127.0.0.1:8083     who is where: the ports are printed

It speaks MQTT 3.1.1 and 5 (mqtt_wire.py, on amqtt's packets), QoS 0 and 1. A session
(mqtt_session.py) lives in the memory of the node that its client connected to last, and moves when
the client comes elsewhere: the registry says where it is, and that only one connection of a client
has it.

The broker is itself a plugin of raftkv:

- **its pure half** is one replicated table: who subscribes to what;
- **its node's half** listens, publishes, and is the `ChannelOwner` that the registry calls when a
  session is to be frozen, handed over, discarded or kicked.

**Publishing.** The publisher's node reads the subscriptions (linearizable: a barrier, then the own
copy), asks the registry where each client's channel is, and calls that node, which queues the
message. If the channel has moved meanwhile, it asks again. PUBACK goes out when all have taken it.

**What a real broker would add**: QoS 2, retained messages, wills, users and access rules, TLS,
shared subscriptions; sessions that survive the node they live on (kept on disk, or as rows of a
table); one call per node instead of one per subscriber, and a tree instead of a scan for wildcard
filters.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, ClassVar

import msgspec
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from mqtt_session import Publication, Session, is_filter, matches
from mqtt_wire import (
    ADMINISTRATIVE_ACTION,
    BAD_CLIENT_ID,
    KEEP_ALIVE_TIMEOUT,
    PROTOCOL_ERROR,
    QOS_NOT_SUPPORTED,
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    Closed,
    Hello,
    Wire,
)

from raftkv import Node, NodeConfig
from raftkv.errors import NotApplied, RaftkvError
from raftkv.plugin import (
    ABSENT,
    Change,
    Context,
    Host,
    Plugin,
    Service,
    TableSpec,
)
from raftkv.server import door_of
from raftkv.testing.local_cluster import free_ports
from raftkv_lcr import LCR, Channel, ChannelGone, LcrApi, Message, NothingToTakeOver, OldNodes

# A client that connects must say who it is within this time.
HELLO_TIMEOUT_S = 10.0
# Subscriptions of one session; what is beyond is refused in SUBACK.
SUBSCRIPTIONS_MAX = 100
# How long a publisher's node tries to reach the node that has a subscriber's session.
DELIVERY_TIMEOUT_S = 2.0
DELIVERY_ATTEMPTS = 5
REFUSED = 0x80
ENABLE_TIMEOUT_S = 30.0


# --- the pure half: who subscribes to what --------------------------------------------------------


class Subscribed(msgspec.Struct, frozen=True, array_like=True):
    """What each filter was granted: a QoS, or `REFUSED`."""

    codes: tuple[int, ...]


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """How many subscriptions went."""

    rows: int


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Add filters to the session that was born with ticket `born`."""

    Result: ClassVar[Any] = Subscribed
    client_id: str
    born: int
    filters: tuple[tuple[str, int], ...]


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    Result: ClassVar[Any] = Changed
    client_id: str
    born: int
    filters: tuple[str, ...]


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Delete what the client's sessions up to `born` subscribed to; a newer one keeps its own."""

    Result: ClassVar[Any] = Changed
    client_id: str
    born: int


class Broker(Plugin["BrokerNode"]):
    """The plugin: its table and its commands."""

    name: ClassVar[str] = "mqtt"
    uses: ClassVar[tuple[str, ...]] = ("lcr",)
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Subscribe, Unsubscribe, Forget)
    # (client id, born, filter) -> QoS. Deleting is fenced by `born`: late is harmless.
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec("subscriptions", tuple[str, int, str], int),
    )

    def apply(self, command: Any, ctx: Context) -> Any:
        table = ctx.table("subscriptions")
        match command:
            case Subscribe(client_id, born, filters):
                codes = []
                for topic_filter, qos in filters:
                    key = (client_id, born, topic_filter)
                    room = key in table or table.count(prefix=key[:2]) < SUBSCRIPTIONS_MAX
                    codes.append(qos if room else REFUSED)
                    if room:
                        table.put(key, qos)
                return Subscribed(tuple(codes))
            case Unsubscribe(client_id, born, filters):
                return Changed(sum(table.delete((client_id, born, each)) for each in filters))
            case Forget(client_id, born):
                own = table.scan(prefix=(client_id,), limit=5 * SUBSCRIPTIONS_MAX)
                keys = [key for key, _ in own if key[1] <= born]
                return Changed(sum(map(table.delete, keys)))

    def open(self, host: Host) -> BrokerNode:
        return BrokerNode(host)

    def service(self, host: Host, api: BrokerNode) -> Service:
        return BrokerService(api)


class BrokerService(Service):
    """Starts and stops the broker with its node, and keeps its index of subscriptions."""

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker

    async def start(self) -> None:
        self._broker.attach()

    async def stop(self) -> None:
        await self._broker.stop()

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table == "subscriptions":
                self._broker.index.change(change.key, change.new)

    def on_restored(self, index: int) -> None:
        self._broker.read_index()

    def on_incarnation(self, incarnation: int) -> None:
        self._broker.subscribe_again()


class Index:
    """The subscriptions by filter, on one node: a copy of the table that is quick to search."""

    def __init__(self) -> None:
        self._plain: dict[str, dict[tuple[str, int], int]] = {}
        self._wild: dict[str, dict[tuple[str, int], int]] = {}

    def change(self, key: tuple[str, int, str], qos: Any) -> None:
        client_id, born, topic_filter = key
        side = self._wild if {"+", "#"} & set(topic_filter) else self._plain
        takers = side.setdefault(topic_filter, {})
        if qos is ABSENT:
            takers.pop((client_id, born), None)
            if not takers:
                del side[topic_filter]
        else:
            takers[(client_id, born)] = qos

    def takers(self, topic: str) -> dict[tuple[str, int], int]:
        """Who gets a message of this topic, each with the highest QoS that it asked for."""
        found = dict(self._plain.get(topic, {}))
        for topic_filter, takers in self._wild.items():
            if matches(topic_filter, topic):
                for taker, qos in takers.items():
                    found[taker] = max(qos, found.get(taker, 0))
        return found


# --- the node's half ------------------------------------------------------------------------------


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A call to the node that has the channel."""

    client_id: str
    channel: str
    born: int
    message: Message


class BrokerNode:
    """The broker on one node: `node.plugin(Broker)`. It is the registry's `ChannelOwner`, too."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.index = Index()
        self.sessions: dict[tuple[str, str], Session] = {}
        self.undelivered = 0
        self._numbers = itertools.count(1)
        self._messages = itertools.count(1)
        self._server: asyncio.Server | None = None

    def attach(self) -> None:
        """Before the node takes part: offer the registry our sessions, and answer calls."""
        self._lcr = self._host.api(LCR)
        self._manager = self._lcr.sessions(self)
        self._host.rpc.register("deliver", self._taken)
        self.read_index()

    def read_index(self) -> None:
        self.index = Index()
        for key, qos in self._host.view().table("subscriptions").scan():
            self.index.change(key, qos)

    async def listen(self, host: str, port: int) -> int:
        """Serve clients; the port."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions.values()):
            session.end(SERVER_SHUTTING_DOWN)
        self.sessions.clear()

    # --- one connection ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        # Of the transport: slow authentication makes a connection no newer.
        connected_ms = self._host.runtime.wall_ms()
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await wire.hello()
            session = await self._open(hello, wire, connected_ms)
            sender = self._host.spawn(_until_closed(session.send(wire)), "mqtt-send")
            try:
                await self._read(session, wire)
            finally:
                sender.cancel()
                self._disconnected(session, wire)
        except Closed as closed:
            wire.close(closed.code, closed.reason)
        except TimeoutError:
            wire.close()

    async def _open(self, hello: Hello, wire: Wire, connected_ms: int) -> Session:
        """Have the registry decide for this connection, and answer CONNECT. Raises Closed."""
        channel = str(next(self._numbers))
        session = Session(channel, hello, wire)
        key = (hello.client_id, channel)
        # From now on messages find it, and newer connections wait until it is decided.
        self.sessions[key] = session
        why, code = "", SERVER_UNAVAILABLE
        try:
            opened = await self._manager.open_session(
                hello.client_id, hello.clean_start, channel, version=connected_ms
            )
        except (RaftkvError, ValueError) as error:
            why = str(error)
            code = BAD_CLIENT_ID if isinstance(error, ValueError) else code
        else:
            if opened.outcome == "ok" and session.ended:
                # Kicked before it was there.
                assert opened.channel is not None
                await self._manager.close(opened.channel)
                raise Closed
            if opened.outcome == "ok":
                session.install(opened)
                if not opened.present:
                    # What a former session subscribed to, here or on a node that is gone.
                    self._forget(session.client_id, session.born - 1)
                wire.welcome(hello, present=opened.present)
                return session
            why, code = opened.outcome, SERVER_BUSY
        self.sessions.pop(key, None)
        wire.refuse(code, why)
        session.end()
        raise Closed

    async def _read(self, session: Session, wire: Wire) -> None:
        """Handle what the client sends, until it says good-bye. Raises Closed."""
        patience_s = 1.5 * session.hello.keep_alive_s or None
        while True:
            try:
                packet = await asyncio.wait_for(wire.packet(), patience_s)
            except TimeoutError:
                raise Closed(KEEP_ALIVE_TIMEOUT) from None
            # While another takes over, what the client changes in its session would be lost.
            await session.thawed.wait()
            if session.ended:
                raise Closed
            match packet:
                case PublishPacket():
                    if packet.qos > 1:
                        raise Closed(QOS_NOT_SUPPORTED, "this broker knows QoS 0 and 1")
                    await self._publish(packet.topic_name, packet.data, packet.qos)
                    if packet.qos:
                        wire.puback(packet.packet_id)
                case PubackPacket():
                    session.acknowledged(packet.packet_id)
                case SubscribePacket():
                    codes = await self._subscribe(session, packet.payload.topics)
                    wire.suback(packet.variable_header.packet_id, codes)
                case UnsubscribePacket():
                    await self._unsubscribe(session, packet.payload.topics)
                    wire.unsuback(packet.variable_header.packet_id, len(packet.payload.topics))
                case PingReqPacket():
                    wire.pong()
                case DisconnectPacket():
                    raise Closed
                case _:
                    kind = type(packet).__name__
                    raise Closed(PROTOCOL_ERROR, f"a client of this broker sends no {kind}")

    def _disconnected(self, session: Session, wire: Wire) -> None:
        """The client's connection has ended; its session ends now, later, or not here."""
        if session.wire is wire:
            session.disconnected()
        if not session.ended:
            self._host.spawn(self._expire(session), "mqtt-expire")

    async def _expire(self, session: Session) -> None:
        # A client that comes back does so in a new channel, which ends this one.
        await self._host.runtime.sleep(session.hello.expiry_s)
        await session.thawed.wait()
        if not session.ended:
            await self._close(session)

    async def _close(self, session: Session) -> None:
        """The session ends here and now, and nobody takes it over."""
        key = (session.client_id, session.channel)
        self.sessions.pop(key, None)
        session.end()
        self._forget(session.client_id, session.born)
        row = self._manager.held.get(key, session.row)
        if row is not None:
            await self._manager.close(row)

    # --- subscriptions ---

    async def _subscribe(self, session: Session, topics: list[tuple[str, int]]) -> list[int]:
        asked = {name: min(options & 0x03, 1) for name, options in topics if is_filter(name)}
        try:
            granted = await self._host.propose(
                Subscribe(session.client_id, session.born, tuple(asked.items()))
            )
        except RaftkvError:
            return [REFUSED] * len(topics)
        codes = dict(zip(asked, granted.codes, strict=True))
        session.filters |= {name: qos for name, qos in codes.items() if qos != REFUSED}
        return [codes.get(name, REFUSED) for name, _ in topics]

    async def _unsubscribe(self, session: Session, topics: list[str]) -> None:
        for name in topics:
            session.filters.pop(name, None)
        with contextlib.suppress(RaftkvError):  # what still comes for it is not sent, then
            await self._host.propose(Unsubscribe(session.client_id, session.born, tuple(topics)))

    def subscribe_again(self) -> None:
        """This node was taken for dead, and what its sessions subscribed to perhaps deleted."""
        for session in self.sessions.values():
            if session.filters:
                filters = tuple(session.filters.items())
                command = Subscribe(session.client_id, session.born, filters)
                self._host.spawn(self._quietly(command), "mqtt-subscribe")

    def _forget(self, client_id: str, born: int) -> None:
        rows = self._host.view().table("subscriptions").scan(prefix=(client_id,), limit=1)
        if any(key[1] <= born for key, _ in rows):
            self._host.spawn(self._quietly(Forget(client_id, born)), "mqtt-forget")

    async def _quietly(self, command: msgspec.Struct) -> None:
        # What is left over is deleted when somebody publishes to it (`_deliver`).
        with contextlib.suppress(RaftkvError):
            await self._host.propose(command)

    # --- publishing ---

    async def _publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Return when every subscriber's session has the message. Raises Closed."""
        try:
            await self._host.barrier()
        except NotApplied:
            raise Closed(SERVER_UNAVAILABLE, "the cluster does not answer") from None
        number = f"{self._host.name}.{self._host.incarnation}.{next(self._messages)}"
        async with asyncio.TaskGroup() as group:
            for (client_id, born), granted in self.index.takers(topic).items():
                publication = Publication(topic, payload, min(qos, granted))
                message = Message(number, msgspec.msgpack.encode(publication))
                group.create_task(self._deliver(client_id, born, message))

    async def _deliver(self, client_id: str, born: int, message: Message) -> None:
        """Bring a message to where the client's session is, which may be moving."""
        for attempt in range(DELIVERY_ATTEMPTS):
            try:
                row = self._lcr.lookup_local(client_id)
                if attempt or row is None:
                    row = await self._lcr.lookup(client_id)
                if row is None:
                    return self._forget(client_id, born)
                delivery = Delivery(client_id, row.channel, born, message)
                payload = msgspec.msgpack.encode(delivery)
                answer = await self._host.rpc.call(row.node, "deliver", payload, DELIVERY_TIMEOUT_S)
                if answer == b"ended":
                    return self._forget(client_id, born)
                if answer == b"taken":
                    return None
            except RaftkvError as error:
                self._host.log.debug("mqtt: delivering to %s waits: %s", client_id, error)
            await self._host.runtime.sleep(0.02 * 2**attempt)
        self.undelivered += 1
        self._host.log.warning("mqtt: a message for %s could not be delivered", client_id)
        return None

    async def _taken(self, node: str, payload: bytes) -> bytes:
        """Another node, or this one, has a message for a channel of ours."""
        delivery = msgspec.msgpack.decode(payload, type=Delivery)
        session = self.sessions.get((delivery.client_id, delivery.channel))
        if session is None:
            return b"elsewhere"
        return session.take(delivery.born, delivery.message).encode()

    # --- ChannelOwner: what the registry asks of us ---

    async def begin(self, channel: Channel) -> bytes:
        session = self._session(channel)
        await session.decided.wait()
        if session.ended:
            raise ChannelGone("normal", "the session has ended")
        if not session.hello.expiry_s:
            raise NothingToTakeOver
        return session.freeze()

    async def end(self, channel: Channel) -> Sequence[Message]:
        return self._session(channel, gone=True).end(SESSION_TAKEN_OVER)

    async def resume(self, channel: Channel) -> None:
        session = self._session(channel)
        session.thaw()

    async def discard(self, channel: Channel) -> None:
        session = self._session(channel, gone=True)
        session.end(SESSION_TAKEN_OVER)
        self._forget(session.client_id, session.born)

    async def kick(self, channel: Channel, reason: str) -> None:
        session = self._session(channel, gone=True)
        session.end(ADMINISTRATIVE_ACTION, reason)
        self._forget(session.client_id, session.born)

    def is_alive(self, channel: Channel) -> bool:
        return (channel.client_id, channel.channel) in self.sessions

    def is_connected(self, channel: Channel) -> bool:
        session = self.sessions.get((channel.client_id, channel.channel))
        return session is not None and session.wire is not None

    def channels(self) -> Iterable[Channel]:
        return [session.row for session in self.sessions.values() if session.row is not None]

    def _session(self, channel: Channel, *, gone: bool = False) -> Session:
        """The session of a channel; from now on it is here no longer if it is `gone`."""
        key = (channel.client_id, channel.channel)
        session = self.sessions.pop(key, None) if gone else self.sessions.get(key)
        if session is None:
            raise ChannelGone("noproc", "there is no such channel here")
        return session


async def _until_closed(sending: Any) -> None:
    with contextlib.suppress(Closed):  # the reader notices it, too
        await sending


# --- running it -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def cluster(nodes: int, directory: str) -> AsyncIterator[list[Node]]:
    """So many nodes in this process: three cores at most, the others replicants.

    In earnest each runs in a process of its own, on a machine of its own.
    """
    names = [f"broker{number}" for number in range(1, nodes + 1)]
    ports = free_ports(2 * nodes)
    peers = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)}
    cores = {name: peers[name] for name in names[:3]}
    running = [
        Node(
            NodeConfig(
                name=name,
                role="core" if name in cores else "replicant",
                dir=f"{directory}/{name}",
                peer_address=peers[name],
                http_address=f"127.0.0.1:{port}",
                cores=cores,
                plugins=(),
            ),
            plugins=(LCR(), Broker()),
        )
        for name, port in zip(names, ports[nodes:], strict=True)
    ]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(node) for node in running))
        await asyncio.gather(*(node.wait_ready() for node in running))
        await _enable(running[0].plugin(LCR))
        yield running


async def _enable(lcr: LcrApi) -> None:
    """Let the linear registry decide: once in the life of a cluster, for it is a value in the log.

    A node counts as one of an older version until it has announced itself, soon after its start.
    """
    async with asyncio.timeout(ENABLE_TIMEOUT_S):
        while True:
            with contextlib.suppress(OldNodes):
                await lcr.switch_mode("enabled")
                return
            await asyncio.sleep(0.1)


async def main(nodes: int, port: int, directory: str) -> None:
    """Run until SIGINT or SIGTERM. `port` 0: any that are free."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with cluster(nodes, directory) as running, contextlib.AsyncExitStack() as stack:
        for place, node in enumerate(running):
            own = await node.plugin(Broker).listen("127.0.0.1", port and port + place)
            door = door_of(node)
            await door.start()
            stack.push_async_callback(door.stop)
            print(f"{node.config.name}: MQTT at 127.0.0.1:{own}, HTTP at {door.endpoint}")
        print("ready", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An MQTT broker of several nodes.")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (3)")
    parser.add_argument("--port", type=int, default=1883, help="MQTT port of the first (1883)")
    parser.add_argument("--dir", help="where the nodes keep their logs (a temporary directory)")
    given = parser.parse_args()
    if not 1 <= given.nodes <= 9:
        sys.exit("--nodes: say 1 to 9")
    with tempfile.TemporaryDirectory(prefix="mqtt-broker-") as temporary:
        asyncio.run(main(given.nodes, given.port, given.dir or temporary))
