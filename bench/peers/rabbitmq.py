"""RabbitMQ as Debian has it: three nodes on loopback, with quorum queues, that is, Raft.

A quorum queue is a Raft group with a replica on each node; a publication is confirmed once a
majority has synced it to its log. Defaults are kept, syncing included. What differs is where things
are: ports, directories, the cookie and Erlang's port mapper are ours, below one directory, and no
plugin is enabled. Nodes are started as the package's own script would start them, with its options
for the emulator, but without its shells around them, so that each is a child that can be ended.

The clients are processes of their own (`amqp_client.py`).
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.peers import debian
from bench.peers.children import Children
from bench.peers.erlang import HOST, emulator_environment, start_port_mapper
from bench.peers.peer import PeerFailed
from raftkv.cli.ports import free_ports

__all__ = ["RabbitMq", "RabbitMqFailed"]

START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.1

#: What the package's script passes to the emulator.
_EMULATOR: Final = (
    "+W w +MBas ageffcbf +MHas ageffcbf +MBlmbcs 512 +MHlmbcs 512 +MMmcs 30 +P 1048576 +t 5000000 "
    "+stbt db +zdbbl 128000 +sbwt none +sbwtdcpu none +sbwtdio none"
).split()

#: Ends as soon as every node runs and the first one sees all of them; prints the versions.
_WATCH: Final = """
Names = [{names}],
Ready = fun() ->
    Run = [catch rpc:call(Each, rabbit, is_running, [], 5000) || Each <- Names],
    case lists:usort(Run) of
        [true] -> length(rpc:call(hd(Names), rabbit_mnesia, cluster_nodes, [running])) == {members};
        _ -> false
    end
end,
Wait = fun Again() -> case catch Ready() of true -> ok; _ -> timer:sleep(200), Again() end end,
Wait(),
io:format("~s, OTP ~s~n", [rpc:call(hd(Names), rabbit_misc, version, []),
    erlang:system_info(otp_release)]),
halt(0).
"""


class RabbitMqFailed(PeerFailed):
    """RabbitMQ did not do what it should; the message has its last words."""


class RabbitMq:
    """One cluster, started by entering the context and ended by leaving it.

    `directory` must exist and is the caller's to remove. Raises `debian.Missing` when there is no
    RabbitMQ, `RabbitMqFailed` when it does not get ready.
    """

    version: str

    def __init__(self, directory: Path, *, members: int = 3) -> None:
        self._directory = directory.resolve()
        self._children = Children(self._directory)
        self._program = debian.find("rabbitmq")
        self._home = _home(Path(self._program.environment["ROOTDIR"]))
        ports = free_ports(2 * members + 1)
        self.ports = ports[:members]
        self._mutual = ports[members:-1]
        # With longer names than the host's own, which need not be known to anybody.
        self._names = [f"r{number}@{HOST}" for number in range(members)]
        self._environment = emulator_environment(self._program.env, self._directory, ports[-1])

    def __enter__(self) -> RabbitMq:
        try:
            mapper = str(Path(self._program.environment["BINDIR"]) / "epmd")
            start_port_mapper(self._children, mapper, self._environment, RabbitMqFailed)
            for number in range(len(self._names)):
                self._launch(number)
            self._wait()
        except BaseException:
            self._children.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._children.stop()

    @property
    def pids(self) -> list[int]:
        return self._children.pids

    def _launch(self, number: int) -> None:
        place = self._directory / f"r{number}"
        place.mkdir()
        nodes = ", ".join(f"'{name}'" for name in self._names)
        (place / "advanced.config").write_text(
            f'[{{rabbit, [{{tcp_listeners, [{{"{HOST}", {self.ports[number]}}}]}}, '
            f"{{cluster_nodes, {{[{nodes}], disc}}}}]}}].\n",
            encoding="utf-8",
        )
        (place / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        (place / "rabbitmq.conf").touch()
        command = [
            self._program.path, "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl",
            *_EMULATOR, "-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false",
            "-kernel", "prevent_overlapping_partitions", "false",
            "-kernel", "inet_dist_use_interface", "{127,0,0,1}",
        ]  # fmt: skip
        environment = self._environment | {
            "ERL_LIBS": str(self._home / "plugins"),
            "ERL_MAX_ETS_TABLES": "50000",
            "ERL_MAX_PORTS": "65536",
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(place / "advanced.config"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            # There may be one of this machine's own.
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_DIST_PORT": str(self._mutual[number]),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(place / "feature_flags"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(place / "config"),
            "RABBITMQ_HOME": str(self._home),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(place),
            "RABBITMQ_MNESIA_BASE": str(place),
            "RABBITMQ_MNESIA_DIR": str(place / "data"),
            "RABBITMQ_NODENAME": self._names[number],
            "RABBITMQ_PID_FILE": str(place / "pid"),
            "RABBITMQ_PLUGINS_DIR": str(self._home / "plugins"),
            "RABBITMQ_USE_LONGNAME": "true",
            "SYS_PREFIX": "",
        }
        self._children.start(f"r{number}", command, environment)

    def _wait(self) -> None:
        """Until all nodes run as one cluster; learns the version."""
        names = ", ".join(f"'{name}'" for name in self._names)
        watch = _WATCH.format(names=names, members=len(self._names))
        command = [
            self._program.path, "-noinput", "-hidden", "-start_epmd", "false",
            "-name", f"watch@{HOST}", "-eval", watch,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env=self._children.environment(self._environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        until = time.monotonic() + START_TIMEOUT_S
        try:
            while process.poll() is None:
                gone = self._children.ended()
                if gone is not None:
                    words = self._children.last_words(gone)
                    raise RabbitMqFailed(f"{gone} has ended. It wrote: {words}")
                if time.monotonic() > until:
                    words = self._children.last_words("r0")
                    raise RabbitMqFailed(
                        f"rabbitmq is not ready after {START_TIMEOUT_S:.0f} s. r0 wrote: {words}"
                    )
                time.sleep(_POLL_S)
            said = process.communicate()[0].strip()
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode != 0 or not said:
            raise RabbitMqFailed(f"rabbitmq: its nodes could not be asked: {said or 'no answer'}")
        self.version = said.splitlines()[-1]


def _home(root: Path) -> Path:
    """Where RabbitMQ's own code is, beside Erlang's."""
    homes = sorted(root.parent.glob("rabbitmq/lib/rabbitmq_server-*"))
    if not homes:
        raise debian.Missing(f"there is no rabbitmq-server beside {root}: apt-get install it")
    return homes[-1]
