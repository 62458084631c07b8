"""Programs of Debian packages for tests and benchmarks: etcd, wrk, Erlang, RabbitMQ, Tarantool,
ZooKeeper.

    python -m bench.peers.debian [etcd wrk erl rabbitmq tarantool zookeeper]

makes sure that they are there, and says where they are.

What is installed is taken as it is. Otherwise the packages are downloaded with `apt-get download`
and unpacked below the user's cache directory with `dpkg -x`: that needs no root, and it starts no
service, as installing `etcd-server` would. A program counts only if it runs.

Exit code 1 of the command: one of them is missing; the reason is printed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["PROGRAMS", "Missing", "Package", "Program", "find", "main"]

TIMEOUT_S: Final = 120.0


class Missing(Exception):
    """The program is not there and could not be had. The message says why and what to do."""


class Package(msgspec.Struct, frozen=True):
    """How a program is had: the packages to unpack, the program in them, how it is tried out.

    `path` may be a pattern, for paths that hold a version. `environment` is for an unpacked
    program that looks for its parts where its package would have put them: `{root}` stands for the
    directory it was unpacked below, `{bin}` for its own. A program that ends with one of `codes`
    after its trial is taken. What is no program by itself is run `through` one that is installed:
    `{bin}` stands for its directory there, too.
    """

    packages: tuple[str, ...]
    path: str
    trial: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    environment: dict[str, str] = {}
    through: tuple[str, ...] = ()


class Program(msgspec.Struct, frozen=True):
    """A program that runs with this environment beside the usual one.

    `through`: the command that runs it, if it is none itself.
    """

    path: str
    environment: dict[str, str] = {}
    through: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What to start, before any arguments."""
        return list(self.through) or [self.path]

    @property
    def env(self) -> dict[str, str]:
        """The whole environment to start it with."""
        return {**os.environ, **self.environment}


PROGRAMS: Final[Mapping[str, Package]] = {
    "etcd": Package(("etcd-server",), "usr/bin/etcd", ("--version",)),
    # wrk needs LuaJIT's library, which is rarely installed; the rest is on every Debian. It ends
    # with 1 after it has told its version.
    "wrk": Package(("wrk", "libluajit-5.1-2"), "usr/bin/wrk", ("-v",), codes=(0, 1)),
    # Erlang's emulator, with Mnesia. Debian's `erl` is a script that knows only /usr/lib/erlang,
    # so what it ends in is started directly, with the variables that it would have set.
    "erl": Package(
        ("erlang-mnesia", "erlang-base", "erlang-crypto"),
        "usr/lib/erlang/erts-*/bin/erlexec",
        ("-noinput", "-eval", "halt(case code:which(mnesia) of non_existing -> 3; _ -> 0 end)."),
        environment={
            "ROOTDIR": "{root}/usr/lib/erlang", "BINDIR": "{bin}", "EMU": "beam",
            "PROGNAME": "erl",
        },
    ),
    # RabbitMQ is Erlang code: what is started is the emulator, as the package's script would do it.
    "rabbitmq": Package(
        (
            "rabbitmq-server", "erlang-base", "erlang-asn1", "erlang-crypto", "erlang-eldap",
            "erlang-inets", "erlang-mnesia", "erlang-os-mon", "erlang-parsetools",
            "erlang-public-key", "erlang-runtime-tools", "erlang-ssl", "erlang-syntax-tools",
            "erlang-tools", "erlang-xmerl",
        ),
        "usr/lib/erlang/erts-*/bin/erlexec",
        ("-noinput", "-eval", "halt(case code:which(ssl) of non_existing -> 3; _ -> 0 end)."),
        environment={
            "ROOTDIR": "{root}/usr/lib/erlang", "BINDIR": "{bin}", "EMU": "beam",
            "PROGNAME": "erl",
        },
    ),
    # The other libraries that it needs are on nearly every Debian.
    "tarantool": Package(("tarantool", "libunwind8"), "usr/bin/tarantool", ("--version",)),
    # ZooKeeper is Java code. The Java of a package does not run unpacked, so that must be there.
    "zookeeper": Package(
        (
            "libzookeeper-java", "libcommons-cli-java", "libcommons-io-java",
            "libdropwizard-metrics-java", "libjackson2-core-java", "libnetty-java",
            "libslf4j-java", "libsnappy-java",
        ),
        "usr/share/java/zookeeper.jar",
        ("org.apache.zookeeper.version.VersionInfoMain",),
        through=("java", "-cp", "{bin}/*"),
    ),
}  # fmt: skip


def find(name: str, *, package: Package | None = None, cache: Path | None = None) -> Program:
    """The program `name` of `PROGRAMS`, or of `package`, downloaded if it is not there.

    Raises `Missing`.
    """
    package = package or PROGRAMS[name]
    if package.through and shutil.which(package.through[0]) is None:
        raise Missing(f"{name} needs {package.through[0]}, which is not installed")
    installed = None if package.through else shutil.which(name)
    if installed is not None and _runs(Program(installed), package):
        return Program(installed)
    root = ((cache or _cache()) / name).resolve()
    unpacked = _unpacked(root, package)
    if unpacked is None:
        root.parent.mkdir(parents=True, exist_ok=True)
        # Several test processes may want it at once.
        with open(root.parent / f"{name}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unpacked = _unpacked(root, package) or _download(root, name, package)
    return unpacked


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "raftkv-debian"


def _unpacked(root: Path, package: Package) -> Program | None:
    path = next(iter(sorted(root.glob(package.path))), None)
    if path is None:
        return None
    libraries = sorted({str(each.parent) for each in root.glob("usr/lib/**/*.so*")})
    environment = {
        name: value.format(root=root, bin=path.parent)
        for name, value in package.environment.items()
    }
    if libraries:
        known = os.environ.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *([known] if known else [])])
    through = tuple(part.format(bin=path.parent) for part in package.through)
    program = Program(str(path), environment, through)
    return program if _runs(program, package) else None


def _download(root: Path, name: str, package: Package) -> Program:
    advice = f"On Debian or Ubuntu: apt-get install {package.packages[0]}"
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise Missing(
                f"{name} is not installed and there is no {tool} to get it with. {advice}"
            )
    shutil.rmtree(root, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="raftkv-debian-") as place:
        said = _call(["apt-get", "download", "-q", *package.packages], place)
        if said and os.geteuid() == 0:
            # The lists of packages may never have been fetched; only root may do that.
            _call(["apt-get", "update", "-q"], place)
            said = _call(["apt-get", "download", "-q", *package.packages], place)
        if said:
            raise Missing(f"{name} could not be downloaded: {said}. {advice}")
        for archive in sorted(Path(place).glob("*.deb")):
            said = _call(["dpkg", "-x", str(archive), str(root)], place)
            if said:
                raise Missing(f"{name} could not be unpacked: {said}. {advice}")
    program = _unpacked(root, package)
    if program is None:
        raise Missing(f"{name} was unpacked below {root} and does not run here. {advice}")
    return program


def _runs(program: Program, package: Package) -> bool:
    """Whether it starts at all."""
    try:
        done = subprocess.run(
            [*program.command, *package.trial], env=program.env, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=30.0, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode in package.codes


def _call(command: Sequence[str], directory: str) -> str:
    """Run it; "" or the last line of what it complained of."""
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"{command[0]} ended with {done.returncode}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    names = list(sys.argv[1:] if argv is None else argv) or list(PROGRAMS)
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        known = " ".join(PROGRAMS)
        print(f"usage: python -m bench.peers.debian [{known}], not {unknown[0]}", file=sys.stderr)
        return 2
    missing = 0
    for name in names:
        try:
            print(f"{name}: {find(name).path}")
        except Missing as error:
            missing = 1
            print(f"{name}: {error}", file=sys.stderr)
    return missing


if __name__ == "__main__":
    sys.exit(main())
