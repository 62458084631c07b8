"""Producers and consumers of AMQP 0-9-1 in a process of their own, by pika.

    python -m bench.peers.amqp_client SETUP.json

One JSON object a line on the standard input and output, one answer for each request; the first
answer comes unasked. It ends with its standard input.

A producer is a channel, all share one connection, and each has one batch outstanding. A batch is
published and then awaited in one of two ways:

    confirms   publisher confirms: every message is confirmed for itself, when a majority of the
               queue's replicas has it on disk. Of a batch any part may have happened.
    tx         tx.commit after the batch. The broker keeps it in memory until then, publishes it
               message by message, and answers when all are confirmed. It says itself that this is
               no promise of all or nothing: whoever reads meanwhile sees a part, and so does
               everybody when the broker is lost in between.

A consumer is a channel, too: it takes deliveries up to its prefetch and acknowledges so many at
once (`multiple`). The broker does not answer acknowledgements; but a channel is closed after what
came before on it was handled, so the time ends when all channels are closed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pika

__all__ = ["AmqpAsk", "AmqpSetup", "AmqpTold", "Consume", "Declare", "Depth", "Produce", "Purge"]

HOST: Final = "127.0.0.1"
Way = Literal["confirms", "tx"]
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


class AmqpSetup(msgspec.Struct, frozen=True):
    """The process's file: the port of the node that all clients use."""

    port: int


class Declare(msgspec.Struct, frozen=True, tag="declare"):
    """Make a quorum queue with so many replicas; its leader is on the node that is asked."""

    queue: str
    replicas: int


class Purge(msgspec.Struct, frozen=True, tag="purge"):
    """Empty the queue."""

    queue: str


class Depth(msgspec.Struct, frozen=True, tag="depth"):
    """How many messages are ready in the queue."""

    queue: str


class Produce(msgspec.Struct, frozen=True, tag="produce"):
    """A closed loop of so many producers, for so long, in batches of so many messages.

    `most` (0: no bound) ends it earlier: no batch begins once so many messages were published.
    """

    queue: str
    way: Way
    batch: int
    producers: int
    seconds: float
    value_bytes: int
    most: int = 0


class Consume(msgspec.Struct, frozen=True, tag="consume"):
    """Take so many messages by so many consumers; acknowledge in batches.

    The broker sends a consumer up to `prefetch` messages beyond what it has acknowledged.
    """

    queue: str
    batch: int
    consumers: int
    messages: int
    prefetch: int


AmqpAsk = Declare | Purge | Depth | Produce | Consume


class AmqpTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `took_us`: how long each batch waited; `late` of them beyond the time.

    `failed`: batches that were refused. `seconds`: from the first request to the last answer.
    """

    error: str = ""
    took_us: list[int] = []
    late: int = 0
    failed: int = 0
    messages: int = 0
    seconds: float = 0.0


class _Play:
    """One request: a connection with `count` channels, which `ready` sees when all are open."""

    def __init__(self, port: int, count: int) -> None:
        self._count = count
        self.channels: list[Any] = []
        self.told = AmqpTold()
        self._error = ""
        # The server's default of a minute would be as good: nothing here lasts so long.
        parameters = pika.ConnectionParameters(HOST, port, heartbeat=0)
        self.connection: Any = pika.SelectConnection(
            parameters, on_open_callback=self._opened, on_open_error_callback=self._failed,
            on_close_callback=self._closed,
        )  # fmt: skip

    def run(self) -> AmqpTold:
        self.connection.ioloop.start()
        return AmqpTold(error=self._error) if self._error else self.told

    def ready(self) -> None:
        """All channels are open."""
        raise NotImplementedError

    def end(self, told: AmqpTold) -> None:
        self.told = told
        self.connection.close()

    def prepare(self, _channel: Any, done: Callable[[Any], None]) -> None:
        """Bring the channel into its mode; then call `done`."""
        done(None)

    def _opened(self, _connection: Any) -> None:
        for _ in range(self._count):
            self.connection.channel(on_open_callback=self._channel)

    def _channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self.left)

        def done(_frame: Any) -> None:
            self.channels.append(channel)
            if len(self.channels) == self._count:
                self.ready()

        self.prepare(channel, done)

    def left(self, _channel: Any, reason: Any) -> None:
        if not self.connection.is_closing and not self.connection.is_closed:
            self._error = str(reason)
            self.connection.close()

    def _failed(self, _connection: Any, error: Any) -> None:
        self._error = f"no connection: {error}"
        self.connection.ioloop.stop()

    def _closed(self, connection: Any, reason: Any) -> None:
        if reason.reply_code != 200:
            self._error = self._error or str(reason)
        connection.ioloop.stop()


class _Once(_Play):
    """A single question about a queue."""

    def __init__(self, port: int, ask: Declare | Purge | Depth) -> None:
        self._ask = ask
        super().__init__(port, 1)

    def ready(self) -> None:
        channel, ask = self.channels[0], self._ask
        match ask:
            case Declare(queue, replicas):
                arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": replicas}
                channel.queue_declare(
                    queue, durable=True, arguments=arguments, callback=self._answered
                )
            case Purge(queue):
                channel.queue_purge(queue, callback=self._answered)
            case Depth(queue):
                channel.queue_declare(queue, passive=True, callback=self._answered)

    def _answered(self, frame: Any) -> None:
        self.end(AmqpTold(messages=frame.method.message_count))


class _Producing(_Play):
    """The load; its producers call back here."""

    def __init__(self, port: int, ask: Produce) -> None:
        self.ask = ask
        self.body = b"v" * ask.value_bytes
        self.until_s = 0.0
        self.took_us: list[int] = []
        self.late = 0
        self.failed = 0
        self.published = 0
        self._began_s = 0.0
        self._running = ask.producers
        super().__init__(port, ask.producers)

    def prepare(self, channel: Any, done: Callable[[Any], None]) -> None:
        if self.ask.way == "tx":
            channel.tx_select(done)
        else:
            channel.producer = _Confirmed(self, channel)
            channel.confirm_delivery(channel.producer.confirmed, done)

    def ready(self) -> None:
        self._began_s = time.perf_counter()
        self.until_s = self._began_s + self.ask.seconds
        for channel in self.channels:
            producer = channel.producer if self.ask.way == "confirms" else _InTx(self, channel)
            producer.next(self._began_s)

    def publish(self, channel: Any) -> None:
        """The messages of one batch."""
        publish, queue, body = channel.basic_publish, self.ask.queue, self.body
        for _ in range(self.ask.batch):
            publish("", queue, body, PERSISTENT)
        self.published += self.ask.batch

    def over(self, now_s: float) -> bool:
        return now_s >= self.until_s or 0 < self.ask.most <= self.published

    def note(self, began_s: float, ended_s: float, ok: bool) -> None:
        if ok:
            self.took_us.append(round((ended_s - began_s) * 1e6))
            self.late += ended_s > self.until_s
        else:
            self.failed += 1

    def ended(self) -> None:
        self._running -= 1
        if self._running == 0:
            self.end(
                AmqpTold(
                    took_us=self.took_us, late=self.late, failed=self.failed,
                    messages=len(self.took_us) * self.ask.batch,
                    seconds=time.perf_counter() - self._began_s,
                )
            )  # fmt: skip


class _InTx:
    """A producer that commits."""

    def __init__(self, load: _Producing, channel: Any) -> None:
        self._load = load
        self._channel = channel
        self._began_s = 0.0

    def next(self, now_s: float) -> None:
        if self._load.over(now_s):
            self._load.ended()
            return
        self._began_s = now_s
        self._load.publish(self._channel)
        self._channel.tx_commit(self._committed)

    def _committed(self, _frame: Any) -> None:
        now_s = time.perf_counter()
        self._load.note(self._began_s, now_s, ok=True)
        self.next(now_s)


class _Confirmed:
    """A producer that waits until each message of its batch is confirmed."""

    def __init__(self, load: _Producing, channel: Any) -> None:
        self._load = load
        self._channel = channel
        self._began_s = 0.0
        self._last = 0
        self._waited: set[int] = set()
        self._refused = False

    def next(self, now_s: float) -> None:
        if self._load.over(now_s):
            self._load.ended()
            return
        self._began_s, self._refused = now_s, False
        first, self._last = self._last + 1, self._last + self._load.ask.batch
        self._waited.update(range(first, self._last + 1))
        self._load.publish(self._channel)

    def confirmed(self, frame: Any) -> None:
        method = frame.method
        if method.multiple:
            self._waited -= {tag for tag in self._waited if tag <= method.delivery_tag}
        else:
            self._waited.discard(method.delivery_tag)
        self._refused |= isinstance(method, pika.spec.Basic.Nack)
        if not self._waited:
            now_s = time.perf_counter()
            self._load.note(self._began_s, now_s, ok=not self._refused)
            self.next(now_s)


class _Consuming(_Play):
    """Consumers until all messages have been taken."""

    def __init__(self, port: int, ask: Consume) -> None:
        self._ask = ask
        self._left = ask.messages
        self._began_s = 0.0
        self._open = ask.consumers
        super().__init__(port, ask.consumers)

    def prepare(self, channel: Any, done: Callable[[Any], None]) -> None:
        channel.basic_qos(prefetch_count=self._ask.prefetch, callback=done)

    def ready(self) -> None:
        self._began_s = time.perf_counter()
        for channel in self.channels:
            channel.held = 0
            channel.basic_consume(self._ask.queue, self._delivered)

    def _delivered(self, channel: Any, deliver: Any, _properties: Any, _body: bytes) -> None:
        if self._left == 0:
            return  # one too many: it goes back when the channel is closed
        self._left -= 1
        channel.held += 1
        if channel.held == self._ask.batch:
            channel.held = 0
            channel.basic_ack(deliver.delivery_tag, multiple=True)
        channel.newest = deliver.delivery_tag
        if self._left == 0:
            for each in self.channels:
                if each.held:
                    each.basic_ack(each.newest, multiple=True)
                each.close()

    def left(self, channel: Any, reason: Any) -> None:
        if self._left:
            super().left(channel, reason)
            return
        self._open -= 1
        if self._open == 0:
            seconds = time.perf_counter() - self._began_s
            self.end(AmqpTold(messages=self._ask.messages, seconds=seconds))


def _answer(port: int, ask: AmqpAsk) -> AmqpTold:
    match ask:
        case Produce():
            return _Producing(port, ask).run()
        case Consume():
            return _Consuming(port, ask).run()
        case _:
            return _Once(port, ask).run()


def _say(told: AmqpTold) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Answer to the end of the standard input."""
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=AmqpSetup)
    decode = msgspec.json.Decoder(AmqpAsk).decode
    _say(AmqpTold())
    for line in sys.stdin.buffer:
        _say(_answer(setup.port, decode(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
