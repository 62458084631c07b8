"""Ports that are given to development clusters: each to one of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raftkv.cli import ports


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of this test alone; the programs that it starts find it by the environment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def given(folder: Path) -> list[int]:
    (file,) = folder.glob("raftkv-ports-*")
    return [int(word) for word in file.read_bytes().split()]


def test_free_ports_are_distinct_and_free() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_is_not_given_again_while_its_node_has_not_bound_it(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The range holds just what is asked for: a second caller must not be given any of it.
    monkeypatch.setattr(ports, "_PORT_MIN", 15_000)
    monkeypatch.setattr(ports, "_ephemeral_min", lambda: 15_040)
    first = ports.free_ports(10)
    second = ports.free_ports(10)
    assert not set(first) & set(second)
    assert given(own_file) == first + second


def test_another_process_is_not_given_it_either(own_file: Path) -> None:
    first = ports.free_ports(5)
    program = "from raftkv.cli.ports import free_ports; print(*free_ports(5))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert given(own_file) == first + [int(word) for word in said.stdout.split()]


def test_a_port_of_the_ephemeral_range_is_not_given_again_either(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That range may begin at 1,024, and then there is nothing below it."""
    monkeypatch.setattr(ports, "_ephemeral_min", lambda: 1_024)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        near = probe.getsockname()[1]
    low = max(1_024, min(near - ports.REMEMBERED // 2, 65_535 - ports.REMEMBERED))
    lately = range(low, low + ports.REMEMBERED)
    file = own_file / f"raftkv-ports-{os.geteuid()}"
    file.write_bytes(b" ".join(b"%d" % port for port in lately))
    # One in seven of them would be among these.
    assert not set(ports.free_ports(200)) & set(lately)


def test_only_the_last_ones_are_remembered(own_file: Path) -> None:
    file = own_file / f"raftkv-ports-{os.geteuid()}"
    file.write_bytes(b" ".join(b"%d" % port for port in range(1, ports.REMEMBERED + 1)))
    found = ports.free_ports(3)
    kept = given(own_file)
    assert len(kept) == ports.REMEMBERED
    assert kept[0] == 4
    assert kept[-3:] == found


@pytest.mark.parametrize("content", [b"\xff\x00 rubbish -3 99999999 ", b"7" * 100_000])
def test_a_file_that_holds_something_else_does_no_harm(own_file: Path, content: bytes) -> None:
    (own_file / f"raftkv-ports-{os.geteuid()}").write_bytes(content)
    assert len(ports.free_ports(3)) == 3


def test_a_file_that_cannot_be_written_does_no_harm(own_file: Path) -> None:
    """As with no space left: the limit on the size of files is another error of that kind."""
    program = (
        "import resource, tempfile; from raftkv.cli.ports import free_ports; "
        "tempfile.gettempdir(); "  # which tries to write, too
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "print(*free_ports(3), end='')"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert len(done.stdout.split()) == 3
    assert given(own_file) == []


def test_a_link_in_its_place_is_not_followed(own_file: Path) -> None:
    target = own_file / "target"
    target.write_bytes(b"kept")
    (own_file / f"raftkv-ports-{os.geteuid()}").symlink_to(target)
    assert len(ports.free_ports(3)) == 3
    assert target.read_bytes() == b"kept"
