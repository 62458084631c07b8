"""All commands against a real cluster: one core with its door, started once for the module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from raftkv.cli import main as cli
from raftkv.cli.devcluster import DevCluster
from tests.cli.conftest import ROOT
from tests.cli.test_main import raftkv

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster = DevCluster(tmp_path_factory.mktemp("commands"))
        cluster.up(cores=1, replicants=1, fsync="off", plugins=[], timeout_s=TIMEOUT_S)
        yield cluster
        cluster.down()


class Shell:
    """Commands in this process, which is ten times as fast as a process for each."""

    def __init__(
        self,
        dev: DevCluster,
        capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._capfd = capfd
        self._monkeypatch = monkeypatch
        self.directory = dev.directory
        self.code: Any = None

    def run(self, *arguments: str, stdin: str = "", code: int | tuple[int, ...] = 0) -> str:
        """stdout of a command, which must end with `code`; stderr is kept in `err`."""
        assert "--" not in arguments, "a command behind -- needs a process of its own"
        self._monkeypatch.setattr(sys, "argv", ["raftkv", *arguments, "--dir", self.directory])
        read_end, write_end = os.pipe()
        with open(write_end, "wb") as given:
            given.write(stdin.encode())
        with open(read_end, encoding="utf-8") as replaced:
            self._monkeypatch.setattr(sys, "stdin", replaced)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        sys.stdout.flush()
        out, self.err = self._capfd.readouterr()
        self.code = ended.value.code
        codes = code if isinstance(code, tuple) else (code,)
        assert self.code in codes, (arguments, out, self.err)
        return out

    def json(self, *arguments: str, stdin: str = "", code: int | tuple[int, ...] = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", stdin=stdin, code=code))


@pytest.fixture
def shell(
    dev: DevCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(dev, capfd, monkeypatch)


@contextlib.contextmanager
def started(
    dev: DevCluster, *arguments: str, behind: tuple[str, ...] = (), stdin: bool = True
) -> Iterator[Any]:
    """A command in a process of its own, which is ended if it has not by itself."""
    shell = [] if stdin else ["sh", "-c", 'exec "$@" <&-', "sh"]
    process = subprocess.Popen(
        [*shell, sys.executable, "-m", "raftkv", *arguments, "--dir", dev.directory, *behind],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # a command that it runs ends with it, and closes the pipes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_S)
            process.kill()
        process.communicate(timeout=TIMEOUT_S)


def line_of(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.readline().decode().rstrip("\n")


# Keys --------------------------------------------------------------------------------------------


def test_put_get_and_del_with_their_options(shell: Shell) -> None:
    assert shell.run("put", "o/a", "1") == "OK\n"
    assert shell.run("put", "o/a", "2", "--prev-kv") == "OK\no/a\n1\n"
    revision = shell.json("put", "o/b", stdin="from stdin")["revision"]
    assert shell.run("put", "o/a", "--ignore-value", stdin="is not read") == "OK\n"
    assert shell.run("get", "o/", "--prefix") == "o/a\n2\no/b\nfrom stdin\n"
    assert shell.run("get", "o/a", "o/b") == "o/a\n2\n"
    assert shell.run("get", "o/b", "--from-key", "--limit", "1") == "o/b\nfrom stdin\n"
    assert shell.run("get", "o/", "--prefix", "--keys-only") == "o/a\no/b\n"
    assert shell.run("get", "o/", "--prefix", "--count-only") == "2\n"
    assert shell.run("get", "o/b", "--print-value-only") == "from stdin\n"
    assert shell.run("get", "o/a", "--hex") == "\\x6f\\x2f\\x61\n\\x32\n"
    options = ("--sort-by", "CREATE", "--order", "DESCEND", "--keys-only")
    assert shell.run("get", "o/", "--prefix", *options) == "o/b\no/a\n"
    assert shell.run("get", "o/b", "--rev", str(revision), "--consistency", "l").startswith("o/b")
    assert shell.run("get", "o/b", "--rev", str(revision - 1), code=1) == ""
    assert shell.err == "there is no key o/b\n"
    found = shell.json("get", "o/", "--prefix", "--limit", "1")
    assert (found["count"], found["more"], found["kvs"][0]["version"]) == (2, True, 3)
    assert '"Key" : "o/a"\n' in shell.run("get", "o/a", "-w", "fields")
    assert shell.run("get", "o/a", "-w", "table", "--consistency", "s").startswith("KEY  ")
    assert shell.run("del", "o/", "--prefix", "--prev-kv") == "2\no/a\n2\no/b\nfrom stdin\n"
    assert shell.run("del", "o/a") == "0\n"
    assert shell.run("get", "o/", "--prefix") == ""


def test_a_large_range_is_printed_in_parts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = "".join(f"put large/{number:03} {number}\n" for number in range(50))
    assert shell.run("txn", stdin=f"\n{puts}\n\n").count("OK") == 50
    monkeypatch.setattr("raftkv.cli.keys.PAGE_KEYS", 7)
    printed = shell.run("get", "large/", "--prefix").split("\n")
    assert printed[:-1:2] == [f"large/{number:03}" for number in range(50)]
    assert printed[1::2] == [str(number) for number in range(50)]
    assert shell.run("get", "z", "a") == "", "a range with its end before its start is empty"


def test_refusals_are_code_1_and_say_why(shell: Shell) -> None:
    for arguments, why in [
        (("put", "k", "--ignore-value"), "does not exist"),
        (("put", "k", "v", "--lease", "1f"), "no lease 000000000000001f"),
        (("get", "k", "--rev", "1000000"), "revision"),
        (("compact", "1000000"), "revision"),
        (("put", "", "v"), "empty"),
        (("lease", "revoke", "1f"), "no lease 000000000000001f"),
        (("lease", "keep-alive", "1f"), "000000000000001f expired or revoked"),
    ]:
        assert shell.run(*arguments, code=1) == ""
        assert shell.err.startswith("error: ")
        assert why in shell.err
        assert shell.err.count("\n") == 1


def test_what_was_compacted_is_refused(shell: Shell) -> None:
    old = shell.json("put", "c", "1")["revision"]
    new = shell.json("put", "c", "2")["revision"]
    assert shell.run("compact", str(new)) == f"compacted revision {new}\n"
    shell.run("compact", str(new), code=1)
    shell.run("get", "c", "--rev", str(old), code=1)
    assert "compacted" in shell.err
    shell.run("watch", "c", "--rev", str(old), code=3)
    assert f"The lowest revision is {new}" in shell.err


# Transactions ------------------------------------------------------------------------------------


def test_a_transaction_from_stdin(shell: Shell) -> None:
    text = 'version("t") = "0"\n\nput t "first one"\nget t\n\nget t --keys-only\ndel t --prev-kv\n'
    assert shell.run("txn", stdin=text) == "SUCCESS\n\nOK\n\nt\nfirst one\n"
    assert shell.run("txn", stdin=text) == "FAILURE\n\nt\n\n\n1\nt\nfirst one\n"
    done = shell.json("txn", stdin=text)
    assert done["succeeded"] is True
    assert done["responses"][1]["get"]["kvs"][0]["value"] == "first one"
    shell.run("txn", "--interactive", stdin="\n\n\n")
    assert shell.err.splitlines() == [
        "compares:",
        "success requests (get, put, del):",
        "failure requests (get, put, del):",
    ]


def test_a_wrong_transaction_names_its_line_and_changes_nothing(shell: Shell) -> None:
    assert shell.run("txn", stdin="\nput wrong 1\nput wrong\n\n", code=2) == ""
    assert shell.err.startswith("error: line 3: put takes a KEY and a VALUE")
    shell.run("get", "wrong", code=1)
    shell.run("txn", stdin="\nput wrong 1\nput wrong 2\n", code=1)
    assert "twice" in shell.err


# Leases ------------------------------------------------------------------------------------------


def test_leases(shell: Shell) -> None:
    assert shell.run("lease", "grant", "60", "--id", "abc") == (
        "lease 0000000000000abc granted with TTL(60s)\n"
    )
    shell.run("lease", "grant", "60", "--id", "abc", code=1)
    assert "0000000000000abc" in shell.err
    assert shell.run("put", "l", "v", "--lease", "0xABC") == "OK\n"
    assert shell.json("get", "l")["lease"] == "0000000000000abc"
    assert shell.run("lease", "keep-alive", "abc", "--once") == (
        "lease 0000000000000abc keepalived with TTL(60)\n"
    )
    line = shell.run("lease", "timetolive", "abc", "--keys")
    assert line.startswith("lease 0000000000000abc granted with TTL(60s), remaining(")
    assert line.endswith("), attached keys([l])\n")
    left = shell.json("lease", "timetolive", "abc", "--keys")
    assert (left["granted_s"], left["keys"]) == (60, [{"key": "l", "key_base64": "bA=="}])
    assert shell.json("lease", "list") == {"leases": ["0000000000000abc"]}
    assert shell.json("lease", "revoke", "abc")["deleted"] == 1
    assert shell.run("lease", "list") == "found 0 leases\n"
    assert shell.run("lease", "timetolive", "abc") == "lease 0000000000000abc already expired\n"
    shell.run("get", "l", code=1)


def test_keep_alive_ends_with_its_lease(dev: DevCluster, shell: Shell) -> None:
    lease = shell.json("lease", "grant", "60")["id"]
    with started(dev, "lease", "keep-alive", lease) as keeping:
        assert line_of(keeping.stdout) == f"lease {lease} keepalived with TTL(60)"
        keeping.send_signal(signal.SIGINT)
        _, err = keeping.communicate(timeout=TIMEOUT_S)
        assert (keeping.returncode, err) == (130, b"")
    shell.run("lease", "revoke", lease)


# Watches -----------------------------------------------------------------------------------------


def test_a_watch_prints_events_until_it_is_interrupted(dev: DevCluster, shell: Shell) -> None:
    first = shell.json("put", "w/a", "1")["revision"]
    with started(dev, "watch", "w/", "--prefix", "--rev", str(first), "--prev-kv") as watching:
        assert [line_of(watching.stdout) for _ in range(3)] == ["PUT", "w/a", "1"]
        shell.run("del", "w/a")
        expected = ["DELETE", "w/a", "1", "w/a", ""]
        assert [line_of(watching.stdout) for _ in range(5)] == expected
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=TIMEOUT_S)
        assert (watching.returncode, out, err) == (130, b"", b"")


def test_a_watch_with_filters_as_json_from_a_key_on(dev: DevCluster, shell: Shell) -> None:
    first = shell.json("put", "x/b", "1")["revision"]
    for arguments in (("put", "x/a", "left out"), ("del", "x/b"), ("put", "x/c", "2")):
        shell.run(*arguments)
    options = ("--from-key", "--rev", str(first), "--filter", "nodelete", "--json")
    with started(dev, "watch", "x/b", *options) as watching:
        events = [json.loads(line_of(watching.stdout)) for _ in range(2)]
    assert [(e["type"], e["kv"]["key"], e["kv"]["value"]) for e in events] == [
        ("PUT", "x/b", "1"),
        ("PUT", "x/c", "2"),
    ]
    assert events[0]["revision"] == first


def test_a_watch_runs_a_command_for_each_event_until_one_fails(
    dev: DevCluster, shell: Shell, tmp_path: Path
) -> None:
    first = shell.json("put", "e", "a b")["revision"]
    shell.run("put", "e", "stop")
    script = (
        'echo "$RAFTKV_WATCH_EVENT_TYPE $RAFTKV_WATCH_KEY $RAFTKV_WATCH_VALUE'
        ' $ETCD_WATCH_VALUE $RAFTKV_WATCH_REVISION"; cat >> "$0"; '
        'test "$RAFTKV_WATCH_VALUE" != stop'
    )
    seen = tmp_path / "seen"
    behind = ("--", "sh", "-c", script, str(seen))
    with started(dev, "watch", "e", "--rev", str(first), behind=behind) as watching:
        out, err = watching.communicate(timeout=TIMEOUT_S)
    assert out.decode().splitlines() == [
        f'PUT e a b "a b" {first}',
        f'PUT e stop "stop" {first + 1}',
    ]
    assert watching.returncode == 3
    assert f"sh ended with 1 at revision {first + 1}" in err.decode()
    documents = [json.loads(line) for line in seen.read_text("utf-8").splitlines()]
    assert [document["kv"]["value"] for document in documents] == ["a b", "stop"]


# Locks and elections -----------------------------------------------------------------------------


def test_a_lock_runs_a_command_and_ends_with_its_code(dev: DevCluster, shell: Shell) -> None:
    script = 'echo "$RAFTKV_LOCK_KEY $RAFTKV_FENCING_TOKEN"; exit 7'
    tokens = []
    for _ in range(2):
        with started(dev, "lock", "job", behind=("--", "sh", "-c", script)) as locking:
            out, err = locking.communicate(timeout=TIMEOUT_S)
        assert (locking.returncode, err) == (7, b"")
        key, token = out.decode().split()
        assert key.startswith("job/")
        tokens.append(int(token))
    assert tokens[0] < tokens[1]
    assert shell.run("get", "job/", "--prefix", "--count-only") == "0\n"
    assert shell.json("lease", "list") == {"leases": []}


def test_a_lock_is_held_until_a_signal_and_then_goes_to_the_next(
    dev: DevCluster, shell: Shell
) -> None:
    with started(dev, "lock", "held", "--json") as first:
        holder = json.loads(line_of(first.stdout))
        assert shell.run("lock", "held", "--try", code=1) == ""
        assert "is held by another" in shell.err
        with started(dev, "lock", "held") as second:
            first.send_signal(signal.SIGTERM)
            _, err = first.communicate(timeout=TIMEOUT_S)
            assert (first.returncode, err) == (0, b"")
            assert line_of(second.stdout).startswith("held/")
            word, _, token = line_of(second.stdout).rpartition(" ")
            assert word == "fencing token"
            assert int(token) > holder["token"]
            second.send_signal(signal.SIGINT)
            second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 0
    assert shell.run("get", "held/", "--prefix", "--count-only") == "0\n"


def test_a_signal_reaches_the_command_of_a_lock(dev: DevCluster, shell: Shell) -> None:
    script = 'trap "echo got it; exit 3" TERM; echo ready; while :; do sleep 0.05; done'
    with started(dev, "lock", "sig", behind=("--", "sh", "-c", script)) as locking:
        assert line_of(locking.stdout) == "ready"
        locking.send_signal(signal.SIGTERM)
        out, err = locking.communicate(timeout=TIMEOUT_S)
    assert (locking.returncode, out) == (3, b"got it\n")
    # The signal reaches the whole process group: some shells tell how their child ended.
    assert err in (b"", b"Terminated\n")
    assert shell.run("get", "sig/", "--prefix", "--count-only") == "0\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_defect(shell: Shell, closed: str) -> None:
    line = f'exec "$@" {closed}'
    for words, code in ((("put", "closed/a", "b"), 0), (("get", "closed/none"), 1)):
        command = [sys.executable, "-m", "raftkv", *words, "--dir", shell.directory]
        done = subprocess.run(
            ["sh", "-c", line, "sh", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=TIMEOUT_S,
        )
        said = b"" if code == 0 or "2>" in closed else b"there is no key closed/none\n"
        assert (done.returncode, done.stderr) == (code, said)


def test_a_lock_works_without_a_stdin(dev: DevCluster, shell: Shell) -> None:
    """As a daemon is started: Python then has no sys.stdin."""
    script = 'trap "exit 3" INT; echo ready; while :; do sleep 0.05; done'
    with started(dev, "lock", "bare", behind=("--", "sh", "-c", script), stdin=False) as locking:
        assert line_of(locking.stdout) == "ready"
        locking.send_signal(signal.SIGINT)
        _, err = locking.communicate(timeout=TIMEOUT_S)
    assert (locking.returncode, err) == (3, b"")
    assert shell.run("get", "bare/", "--prefix", "--count-only") == "0\n"


def test_a_command_whose_lock_is_lost_is_ended(dev: DevCluster, shell: Shell) -> None:
    script = "echo ready; exec sleep 60"
    behind = ("--", "sh", "-c", script)
    with started(dev, "lock", "lost", "--ttl", "2", behind=behind) as locking:
        assert line_of(locking.stdout) == "ready"
        (lease,) = shell.json("lease", "list")["leases"]
        shell.run("lease", "revoke", lease)
        out, err = locking.communicate(timeout=TIMEOUT_S)
    assert (locking.returncode, out) == (3, b"")
    assert "lost" in err.decode()
    assert err.count(b"\n") == 1


def test_an_election_is_won_and_shown(dev: DevCluster) -> None:
    with (
        started(dev, "elect", "office", "--listen", "--json") as listening,
        started(dev, "elect", "office", "me") as leading,
    ):
        key, value, token = (line_of(leading.stdout) for _ in range(3))
        assert (key.startswith("office/"), value) == (True, "me")
        shown: dict[str, Any] = {"token": None}
        while shown["token"] is None:
            shown = json.loads(line_of(listening.stdout))
        assert (shown["key"], shown["value"]) == (key, "me")
        assert token == f"fencing token {shown['token']}"
        leading.send_signal(signal.SIGINT)
        leading.communicate(timeout=TIMEOUT_S)
        assert leading.returncode == 0
        assert json.loads(line_of(listening.stdout)) == {"token": None}


# The cluster -------------------------------------------------------------------------------------


def test_endpoints_and_members(dev: DevCluster, shell: Shell) -> None:
    rows = shell.run("endpoint", "status").splitlines()
    assert rows[0].split()[:4] == ["ENDPOINT", "NODE", "ROLE", "LEADER"]
    assert rows[1].split()[:4] == [dev.endpoint("core1"), "core1", "leader", "core1"]
    found = shell.json("endpoint", "status", "--cluster")
    assert {each["status"]["name"] for each in found} == {"core1", "replicant1"}
    assert [each["error"] for each in found] == [None, None]
    healthy = shell.run("health").splitlines()
    assert len(healthy) == 2
    assert f"{dev.endpoint('core1')} is healthy" in healthy[0]
    assert all(each["health"] for each in shell.json("endpoint", "health", "--cluster"))
    assert shell.run("health", "-w", "table").startswith("ENDPOINT ")
    assert shell.run("member", "list").splitlines()[1].startswith("core1 ")


def test_the_nodes_hold_the_same_keys(dev: DevCluster, shell: Shell) -> None:
    for number in range(5):
        revision = shell.json("put", f"hash/{number}", "v")["revision"]
    shell.json("get", "hash/4")  # a linearizable read: the leader, at least, has it
    found = shell.json("endpoint", "hashkv", "--cluster", "--rev", str(revision - 2))
    assert (found["revision"], found["same"], len(found["nodes"])) == (revision - 2, True, 2)
    assert len({each["digest"] for each in found["nodes"]}) == 1
    assert found["nodes"][0]["keys"] >= 3
    rows = shell.run("endpoint", "hashkv", "--cluster").splitlines()
    assert rows[0].split() == ["ENDPOINT", "HASH", "REVISION", "KEYS", "ERROR"]
    assert len(rows) == 3
    assert rows[1].split()[1:] == rows[2].split()[1:]
    future = shell.json("endpoint", "hashkv", "--rev", "99999999", code=3)
    assert future["same"] is False
    assert "99999999" in future["nodes"][0]["error"]


def test_an_endpoint_that_does_not_answer_is_code_3(dev: DevCluster) -> None:
    at = ("--endpoint", f"{dev.endpoint('core1')},http://127.0.0.1:1", "--timeout", "5")
    done = raftkv("health", *at)
    assert done.returncode == 3
    assert done.stdout.startswith(f"{dev.endpoint('core1')} is healthy".encode())
    assert b"http://127.0.0.1:1 is unhealthy: cannot be reached" in done.stderr
    document = json.loads(raftkv("endpoint", "status", *at, "--json").stdout)
    assert [each["status"] is None for each in document] == [False, True]
    assert "cannot be reached" in document[1]["error"]


def test_check_perf_tells_and_leaves_nothing_behind(shell: Shell) -> None:
    """Whether the machine is fast enough at this moment is not what is asked here."""
    document = shell.json("check", "perf", "--duration", "0.4", code=(0, 3))
    assert document["passed"] == (shell.code == 0) == all(document["verdicts"].values())
    assert (document["load"], document["writes"], document["failed"]) == ("s", 60, 0)
    said = shell.run("check", "perf", "--duration", "0.2", "--prefix", "mine/", code=(0, 3))
    *lines, last = said.splitlines()
    verdicts = [line.split(": ")[0] for line in lines if ": " in line]
    assert len(verdicts) == 3
    assert set(verdicts) <= {"PASS", "FAIL"}
    assert last == ("PASS" if shell.code == 0 else "FAIL")
    assert (last == "PASS") == (verdicts == ["PASS"] * 3)
    assert shell.run("get", "", "--from-key", "--keys-only").count("perf") == 0
    shell.run("put", "mine/own", "v")
    assert shell.run("check", "perf", "--duration", "0.2", "--prefix", "mine/", code=1) == ""
    assert "there are 1 keys below mine/" in shell.err
    assert shell.run("get", "mine/own") == "mine/own\nv\n"


def test_a_reader_that_has_gone_is_no_traceback(dev: DevCluster, shell: Shell) -> None:
    shell.run("put", "pipe", "v")
    for arguments in (("get", "pipe"), ("get", "pipe", "--json"), ("endpoint", "status")):
        read_end, write_end = os.pipe()
        os.close(read_end)
        with open(write_end, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "raftkv", *arguments, "--dir", dev.directory],
                stdout=closed,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=TIMEOUT_S,
                check=False,
            )
        assert (done.returncode, done.stderr) == (3, b"")
