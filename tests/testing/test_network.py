"""The simulated network: TCP's contract, and each fault it can show."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftkv.testing.clock import SimLoop, run
from raftkv.testing.network import NetworkOptions, SimNetwork


class Peer(asyncio.Protocol):
    """Keeps what happened to one end of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost_s: float | None = None
        self.on_data: Callable[[bytes], object] | None = None
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        if self.on_data is not None:
            self.on_data(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc
        self.lost_s = asyncio.get_running_loop().time()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def make_network(seed: int = 1, **options: float) -> SimNetwork:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return SimNetwork(loop, random.Random(seed), NetworkOptions(**options))


async def joined(network: SimNetwork, a: str = "a", b: str = "b") -> tuple[Peer, Peer]:
    """A connection from a to b: (client's protocol, server's protocol)."""
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(Peer())
        return accepted[-1]

    listener = network.listen(accept, b, 0)
    client = Peer()
    await network.connect(a, lambda: client, b, listener.port)
    listener.close()
    return client, accepted[0]


def simulate(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scenario())


def test_bytes_arrive_in_order_and_in_other_pieces_than_they_were_written() -> None:
    async def scenario() -> None:
        client, server = await joined(make_network())
        rng = random.Random(3)
        written: list[bytes] = []
        for _ in range(500):
            data = rng.randbytes(rng.randint(1, 100))
            written.append(data)
            client.transport.write(data)
            if rng.random() < 0.7:
                await asyncio.sleep(rng.random() * 0.001)
        await asyncio.sleep(1)
        assert server.data == b"".join(written)
        lengths = {len(data) for data in written}
        assert any(len(piece) > max(lengths) for piece in server.pieces), "never joined"
        starts, position = set(), 0
        for data in written:
            starts.add(position)
            position += len(data)
        position, split = 0, 0
        for piece in server.pieces:
            split += position not in starts
            position += len(piece)
        assert split > 10, "never split"

    simulate(scenario)


def test_both_directions_extra_info_and_writelines() -> None:
    async def scenario() -> None:
        client, server = await joined(make_network())
        server.on_data = lambda data: server.transport.write(data.upper())
        client.transport.writelines([b"ab", bytearray(b"c"), memoryview(b"d")])
        client.transport.write(b"")
        await asyncio.sleep(1)
        assert client.data == b"ABCD"
        peername = client.transport.get_extra_info("peername")
        assert peername == server.transport.get_extra_info("sockname")
        assert peername[0] == "b"
        assert client.transport.get_extra_info("sslcontext") is None
        assert client.transport.get_extra_info("nothing", 5) == 5
        with pytest.raises(TypeError):
            client.transport.write("text")  # type: ignore[arg-type]

    simulate(scenario)


def test_close_delivers_what_was_written_and_then_the_end() -> None:
    async def scenario() -> None:
        client, server = await joined(make_network())
        client.transport.write(b"x" * 1000)
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert server.data == b"x" * 1000
        assert client.events == ["made", "lost"]
        assert server.events == ["made", "eof", "lost"]
        assert client.error is None
        assert server.error is None

    simulate(scenario)


def test_a_half_closed_connection_still_answers() -> None:
    async def scenario() -> None:
        network = make_network()
        client, server = await joined(network)
        server.keep_open = True
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            client.transport.write(b"more")
        await asyncio.sleep(1)
        assert server.events == ["made", "eof"]
        server.transport.write(b"answer")
        server.transport.close()
        await asyncio.sleep(1)
        assert client.data == b"answer"
        assert client.events == ["made", "eof", "lost"]
        assert network.connections == []

    simulate(scenario)


def test_abort_resets_the_peer() -> None:
    async def scenario() -> None:
        client, server = await joined(make_network())
        client.transport.abort()
        await asyncio.sleep(1)
        assert client.error is None
        assert isinstance(server.error, ConnectionResetError)

    simulate(scenario)


def test_reset_breaks_both_ends_and_loses_what_was_on_its_way() -> None:
    async def scenario() -> None:
        network = make_network()
        client, server = await joined(network)
        client.transport.write(b"lost")
        server.transport.write(b"lost")
        assert network.reset("b", "a") == 1
        client.transport.write(b"into the void")
        await asyncio.sleep(1)
        assert client.data == server.data == b""
        assert isinstance(client.error, ConnectionResetError)
        assert isinstance(server.error, ConnectionResetError)
        assert network.reset("a", "b") == 0
        assert network.connections == []

    simulate(scenario)


def test_a_stall_holds_one_direction_only() -> None:
    async def scenario() -> None:
        network = make_network()
        client, server = await joined(network)
        network.stall("a", "b", 3)
        client.transport.write(b"slow")
        server.transport.write(b"fast")
        await asyncio.sleep(1)
        assert (client.data, server.data) == (b"fast", b"")
        await asyncio.sleep(1.9)
        assert server.data == b""
        await asyncio.sleep(0.2)
        assert server.data == b"slow"
        network.stall("a", "b", 100)
        client.transport.write(b" again")
        await asyncio.sleep(1)
        network.heal("a")
        await asyncio.sleep(0.1)
        assert server.data == b"slow again"

    simulate(scenario)


def test_a_cut_that_heals_soon_looks_like_a_stall() -> None:
    async def scenario() -> None:
        network = make_network(give_up_min_s=2, give_up_max_s=3)
        client, server = await joined(network)
        network.cut("a", "b")
        client.transport.write(b"patience")
        await asyncio.sleep(1.5)
        assert server.data == b""
        network.heal("a", "b")
        await asyncio.sleep(5)
        assert server.data == b"patience"
        assert client.events == ["made"]

    simulate(scenario)


def test_a_lasting_cut_resets_connections_and_lets_connects_time_out() -> None:
    async def scenario() -> None:
        network = make_network(give_up_min_s=2, give_up_max_s=3)
        client, server = await joined(network)
        listener = network.listen(Peer, "b", 7000)
        network.cut("a", "b")
        client.transport.write(b"lost")
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        with pytest.raises(TimeoutError):
            await network.connect("a", Peer, "b", listener.port)
        assert loop.time() - start_s == pytest.approx(5)
        assert server.data == b""
        for peer in (client, server):
            assert isinstance(peer.error, ConnectionResetError)
            assert peer.lost_s is not None
            assert 2 <= peer.lost_s - start_s < 3.1

    simulate(scenario)


def test_a_connect_that_hangs_gets_through_when_the_cut_heals() -> None:
    async def scenario() -> None:
        network = make_network()
        network.listen(Peer, "b", 7000)
        network.cut("b", "a", one_way=True)
        asyncio.get_running_loop().call_later(2, network.heal)
        await network.connect("a", Peer, "b", 7000)
        assert 2 < asyncio.get_running_loop().time() < 3

    simulate(scenario)


def test_a_one_way_cut_and_partitions_of_groups() -> None:
    async def scenario() -> None:
        network = make_network(give_up_min_s=50, give_up_max_s=60)
        ab = await joined(network, "a", "b")
        ac = await joined(network, "a", "c")
        network.cut("a", "b", one_way=True)
        ab[0].transport.write(b"1")
        ab[1].transport.write(b"2")
        await asyncio.sleep(1)
        assert (ab[0].data, ab[1].data) == (b"2", b"")
        network.heal()
        network.partition(["a", "b"], ["c"])
        ab[0].transport.write(b"3")
        ac[0].transport.write(b"4")
        await asyncio.sleep(1)
        assert (ab[1].data, ac[1].data) == (b"13", b"")
        network.isolate("b")
        ab[0].transport.write(b"5")
        network.heal("c")
        await asyncio.sleep(1)
        assert (ab[1].data, ac[1].data) == (b"13", b"4")

    simulate(scenario)


def test_nobody_listening_refuses_and_a_taken_address_is_an_error() -> None:
    async def scenario() -> None:
        network = make_network()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("a", Peer, "b", 7000)
        listener = network.listen(Peer, "b", 7000)
        with pytest.raises(OSError, match="in use"):
            network.listen(Peer, "b", 7000)
        await network.connect("a", Peer, "b", 7000)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("a", Peer, "b", 7000)
        network.listen(Peer, "b", 7000)

    simulate(scenario)


def test_a_cancelled_connect_leaves_no_connection_behind() -> None:
    async def scenario() -> None:
        for delay_ms in range(30):
            network = make_network(delay_ms)
            network.listen(Peer, "b", 7000)
            task = asyncio.create_task(network.connect("a", Peer, "b", 7000))
            await asyncio.sleep(delay_ms / 10_000)
            if not task.cancel():
                (await task).abort()
            await asyncio.sleep(1)
            assert network.connections == []

    simulate(scenario)


def test_a_killed_process_resets_its_peers_and_a_silent_one_only_later() -> None:
    async def scenario() -> None:
        network = make_network(give_up_min_s=5, give_up_max_s=6)
        killed, _ = await joined(network, "a", "b")
        silent, _ = await joined(network, "a", "c")
        revived, _ = await joined(network, "a", "d")
        start_s = asyncio.get_running_loop().time()
        network.host_down("b")
        network.host_down("c", silent=True)
        network.host_down("d", silent=True)
        await asyncio.sleep(1)
        assert isinstance(killed.error, ConnectionResetError)
        assert silent.lost_s is None
        network.host_up("d")
        await asyncio.sleep(1)
        assert isinstance(revived.error, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await network.connect("a", Peer, "b", 7000)
        with pytest.raises(TimeoutError):
            await network.connect("a", Peer, "c", 7000)
        assert isinstance(silent.error, ConnectionResetError)
        assert silent.lost_s is not None
        assert silent.lost_s - start_s > 5
        assert network.connections == []

    simulate(scenario)


def test_a_dying_process_loses_only_the_end_of_what_it_sent() -> None:
    lengths = set()

    async def scenario(seed: int) -> None:
        network = make_network(seed, latency_mean_s=0.01)
        client, server = await joined(network)
        for number in range(10):
            client.transport.write(bytes([number]))
            await asyncio.sleep(0.002)
        network.host_down("a")
        await asyncio.sleep(1)
        assert server.data == bytes(range(10))[: len(server.data)]
        assert isinstance(server.error, ConnectionResetError)
        lengths.add(len(server.data))

    for seed in range(30):
        run(scenario(seed))
    assert 10 in lengths
    assert len(lengths) > 2


def test_back_pressure_reaches_the_writer_and_ends() -> None:
    async def scenario() -> None:
        client, server = await joined(make_network())
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.set_write_buffer_limits(high=1000, low=200)
        assert client.transport.get_write_buffer_limits() == (200, 1000)
        client.transport.write(b"x" * 1000)
        assert client.events == ["made"]
        client.transport.write(b"y")
        client.transport.write(b"y")
        assert client.events == ["made", "pause"]
        await asyncio.sleep(10)
        assert client.transport.get_write_buffer_size() == 1002
        assert server.data == b""
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.data == b"x" * 1000 + b"yy"
        assert client.events == ["made", "pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0
        with pytest.raises(ValueError, match="must be at least low"):
            client.transport.set_write_buffer_limits(high=1, low=2)

    simulate(scenario)


def test_a_protocol_that_raises_loses_its_connection() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        reports: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: reports.append(context))
        client, server = await joined(make_network())

        def broken(data: bytes) -> None:
            raise ValueError("cannot parse")

        server.on_data = broken
        client.transport.write(b"x")
        await asyncio.sleep(1)
        assert isinstance(server.error, ValueError)
        assert isinstance(client.error, ConnectionResetError)
        assert len(reports) == 1

    simulate(scenario)


def test_streams_of_the_standard_library_run_on_it() -> None:
    async def scenario() -> None:
        network = make_network()
        loop = asyncio.get_running_loop()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
            writer.close()

        network.listen(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), echo), "b", 7000
        )
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await network.connect("a", lambda: protocol, "b", 7000)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        for number in range(100):
            writer.write(b"%d" % number * 5000 + b"\n")
            await writer.drain()
            assert await reader.readline() == b"%d" % number * 5000 + b"\n"
        writer.close()
        await writer.wait_closed()

    simulate(scenario)
