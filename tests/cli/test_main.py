"""The `raftkv` command as a user runs it: output, exit codes, one-line errors."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli import main as main_module
from raftkv.cli.devcluster import DevCluster
from raftkv.errors import NoSpace, PluginFault
from raftkv.kv.commands import TxnTooCostly
from tests.cli.conftest import FAKE, ROOT

TIMEOUT_S = 60


def raftkv(
    *arguments: str, stdin: bytes = b"", no_color: bool = True
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if no_color:
        environment["NO_COLOR"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "raftkv", *arguments],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )


def one_line_error(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """The error of a command that failed with `code`, which must be one line and no traceback."""
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """One fake core and one fake replicant, which do not share their data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        dev = DevCluster(tmp_path_factory.mktemp("dev"), command=FAKE)
        dev.up(cores=1, replicants=1, timeout_s=TIMEOUT_S)
        yield dev
        dev.down(timeout_s=1.0)


def test_put_get_del(running: DevCluster) -> None:
    at = ("--dir", running.directory)
    assert raftkv("put", "k", "v", *at).stdout == b"OK\n"
    assert raftkv("get", "k", *at).stdout == b"k\nv\n"
    assert raftkv("get", "k", *at, "--consistency", "local", "--print-value-only").stdout == b"v\n"
    assert raftkv("del", "k", *at).stdout == b"1\n"
    assert raftkv("del", "k", *at).stdout == b"0\n"
    gone = raftkv("get", "k", *at)
    assert (gone.returncode, gone.stdout) == (1, b"")
    assert b"there is no key k" in gone.stderr


def test_json_beside_each_output(running: DevCluster) -> None:
    at = ("--endpoint", running.endpoint("core1"), "--json")
    put = json.loads(raftkv("put", "j", "ü", *at).stdout)
    found = json.loads(raftkv("get", "j", *at).stdout)
    assert found == {
        "key": "j",
        "value": "ü",
        "key_base64": base64.b64encode(b"j").decode(),
        "value_base64": base64.b64encode("ü".encode()).decode(),
        "create_revision": put["revision"],
        "mod_revision": put["revision"],
        "version": 1,
        "lease": None,
    }
    gone = json.loads(raftkv("del", "j", *at).stdout)
    assert gone == {"deleted": 1, "revision": put["revision"] + 1}


def test_a_value_from_stdin_may_be_any_bytes(running: DevCluster) -> None:
    at = ("--dir", running.directory)
    value = bytes(range(256))
    assert raftkv("put", "b", *at, stdin=value).returncode == 0
    assert raftkv("get", "b", *at).stdout == b"b\n" + value + b"\n"
    found = json.loads(raftkv("get", "b", *at, "--json").stdout)
    assert found["value"] is None
    assert base64.b64decode(found["value_base64"]) == value


def test_another_node_is_tried_when_one_is_down(running: DevCluster) -> None:
    nobody = "http://127.0.0.1:1"
    at = ("--endpoint", nobody, "--endpoint", running.endpoint("core1"))
    assert raftkv("put", "f", "v", *at).stdout == b"OK\n"
    assert raftkv("get", "f", *at).stdout == b"f\nv\n"


def test_nobody_to_answer_is_one_line_and_code_3() -> None:
    done = raftkv("get", "k", "--endpoint", "http://127.0.0.1:1", "--timeout", "0.3")
    assert "http://127.0.0.1:1 cannot be reached" in one_line_error(done, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "k"),
        ("get", "k", "--dir", "x", "--endpoint", "http://127.0.0.1:1"),
        ("get", "k", "--endpoint", "127.0.0.1:1"),
        ("get", "k", "--endpoint", "ftp://127.0.0.1:1"),
        ("get", "k", "--endpoint", "http://127.0.0.1:1/v3"),
        ("get", "k", "--endpoint", "http://127.0.0.1:99999"),
        ("get", "k", "--endpoint", "http://127.0.0.1:1", "--consistency", "best"),
        ("cluster", "status", "--dir", "does-not-exist"),
        ("cluster", "down", "--dir", "does-not-exist"),
        ("serve", "--config", "does-not-exist.toml"),
    ],
)
def test_wrong_arguments_are_one_line_and_code_2(arguments: tuple[str, ...]) -> None:
    one_line_error(raftkv(*arguments), 2)


def test_an_empty_key_is_refused_with_code_1(running: DevCluster) -> None:
    done = raftkv("put", "", "v", "--dir", running.directory)
    assert "the key is empty" in one_line_error(done, 1)


def test_a_value_over_the_limit_names_the_limit(running: DevCluster) -> None:
    value = b"x" * (1024 * 1024 + 1)
    done = raftkv("put", "k", "--dir", running.directory, stdin=value)
    assert "value_bytes_max" in one_line_error(done, 3)


def test_status_as_table_and_as_json(running: DevCluster) -> None:
    document = json.loads(raftkv("cluster", "status", "--dir", running.directory, "--json").stdout)
    assert document["leader"] == "core1"
    assert [node["name"] for node in document["nodes"]] == ["core1", "replicant1"]
    expected = {"name", "role", "leader", "term", "applied_index", "endpoint", "pid", "running"}
    for node in document["nodes"]:
        assert expected <= node.keys()
        assert node["endpoint"] == running.endpoint(node["name"])
    table = raftkv("cluster", "status", "--dir", running.directory).stdout.decode()
    assert "\x1b" not in table
    for node in document["nodes"]:
        (row,) = [line for line in table.splitlines() if line.startswith(node["name"])]
        assert str(node["pid"]) in row.split()
        assert node["endpoint"] in row.split()


def test_up_with_another_number_of_cores_is_refused(running: DevCluster) -> None:
    done = raftkv("cluster", "up", "--dir", running.directory, "--cores", "3", "--detach")
    assert "has cores = 1, not 3" in one_line_error(done, 2)


@pytest.mark.parametrize(
    "arguments",
    [(), ("cluster",), ("cluster", "up"), ("cluster", "status"), ("cluster", "down"), ("serve",),
     ("put",), ("get",), ("del",)],
)  # fmt: skip
def test_help_is_there_with_an_example(arguments: tuple[str, ...]) -> None:
    done = raftkv(*arguments, "--help")
    assert done.returncode == 0
    if arguments not in ((), ("cluster",)):
        assert b"Example" in done.stdout


def test_up_in_the_foreground_shows_the_cluster_until_it_is_interrupted(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        dev = DevCluster(tmp_path, command=FAKE)
        dev.up(cores=1, replicants=0, timeout_s=TIMEOUT_S)
    pid = dev.pid("core1")
    command = [sys.executable, "-m", "raftkv", "cluster", "up", "--dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    shown = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert shown.stderr is not None
    lines = [shown.stderr.readline() for _ in range(2)]
    assert lines[0] == b"core1 is running\n"
    assert b"1 cores and 0 replicants take writes" in lines[1]
    assert shown.stdout is not None
    assert shown.stdout.readline().startswith(b"NODE")
    assert shown.stdout.readline().startswith(b"core1")
    shown.send_signal(signal.SIGINT)
    _, stderr = shown.communicate(timeout=TIMEOUT_S)
    assert shown.returncode == 0, stderr
    assert b"stopping" in stderr
    assert b"Traceback" not in stderr
    assert dev.pid("core1") is None
    assert pid is not None


# serve -------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """One core with a door."""
    dev = DevCluster(tmp_path)
    dev.create(cores=1, replicants=0, plugins=[])
    return Path(dev.config_path("core1"))


def start_serve(config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "raftkv", "serve", "--config", str(config)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_logs_json_lines_and_stops_on_a_signal(config: Path, number: int) -> None:
    serving = start_serve(config)
    assert serving.stderr is not None
    lines: list[bytes] = []
    awaited = [b"serving at", b" leads term "]
    while awaited:
        lines.append(serving.stderr.readline())
        assert lines[-1], "serve ended before it served"
        awaited = [words for words in awaited if words not in lines[-1]]
    serving.send_signal(number)
    _, rest = serving.communicate(timeout=TIMEOUT_S)
    assert serving.returncode == 0, rest
    records = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    assert all(record["node"] == "core1" and record["time"].endswith("Z") for record in records)
    assert records[-1]["message"] == "stopped"
    led = next(record for record in records if " leads term " in record["message"])
    assert (led["role"], led["term"] >= 1) == ("leader", True)
    assert records[-1]["index"] >= 2


@pytest.mark.cluster
def test_serve_names_a_bad_key_of_its_configuration(config: Path) -> None:
    config.write_text("colour = 1\n" + config.read_text("utf-8"), encoding="utf-8")
    assert "colour" in one_line_error(raftkv("serve", "--config", str(config)), 2)


@pytest.mark.cluster
def test_serve_in_an_impossible_directory_is_one_line(config: Path) -> None:
    text = config.read_text("utf-8").replace('dir = "data"', 'dir = "node.toml/data"')
    config.write_text(text, encoding="utf-8")
    assert "node.toml" in one_line_error(raftkv("serve", "--config", str(config)), 2)


@pytest.mark.cluster
@pytest.mark.parametrize("key", ["peer_address", "http_address"])
def test_serve_on_a_taken_port_names_the_address(config: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        lines = config.read_text("utf-8").splitlines()
        if key == "peer_address":
            lines = [f'core1 = "{address}"' if x.startswith("core1 =") else x for x in lines]
        lines = [f'{key} = "{address}"' if x.startswith(f"{key} =") else x for x in lines]
        config.write_text("\n".join(lines), encoding="utf-8")
        done = raftkv("serve", "--config", str(config))
    assert done.returncode == 2, done.stderr
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("error: ")
    assert address in last
    assert b"Traceback" not in done.stderr


@pytest.mark.cluster
def test_serve_twice_says_that_the_directory_is_in_use(config: Path) -> None:
    serving = start_serve(config)
    try:
        assert serving.stderr is not None
        while b"serving at" not in serving.stderr.readline():
            time.sleep(0)
        done = raftkv("serve", "--config", str(config))
        assert done.returncode in (2, 3)
        assert done.stderr.decode().splitlines()[-1].startswith("error: ")
        assert b"Traceback" not in done.stderr
    finally:
        serving.terminate()
        serving.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoSpace("kv"), "error: the quota of kv is used up"),
        (TxnTooCostly("too many rows", 5), "error: too many rows\n"),
        (PluginFault("lcr", "ValueError"), "error: the plugin lcr has raised ValueError"),
        (FileNotFoundError(2, "No such file", "x.toml"), "error: [Errno 2] No such file: 'x.toml'"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    error: Exception, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_module._fail(error, 1)
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(text)
