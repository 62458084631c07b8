"""Errors: what a program may do with an exception besides catching it."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import raftkv
from raftkv import errors
from raftkv.testing import LocalCluster
from raftkv_limbo.errors import RolledBack, StillPending
from raftkv_txqueue.errors import TransactionAborted
from tests.client.fake_door import in_loop

PACKAGES = (
    "raftkv",
    "raftkv_cluster_call",
    "raftkv_conf",
    "raftkv_lcr",
    "raftkv_limbo",
    "raftkv_subscriptions",
    "raftkv_txqueue",
)


def every_error() -> list[type[errors.RaftkvError]]:
    for package in map(importlib.import_module, PACKAGES):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if ".testing" not in found.name and not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    known: list[type[errors.RaftkvError]] = [errors.RaftkvError]
    for kind in known:
        known += [below for below in kind.__subclasses__() if below not in known]
    return [kind for kind in known if kind.__module__.startswith("raftkv")]


MADE: list[errors.RaftkvError] = [
    errors.DamagedLog("file", 1, "reason"),
    errors.DamagedSnapshot("file", 1, "reason"),
    errors.NewerFormat("file", 2, 1),
    errors.Timeout("late", session=3, seq=4),
    errors.WatchCancelled("slow", resume_revision=7),
    errors.PluginFault("lcr", "ValueError"),
    RolledBack(5, "vetoed", "n1"),
    StillPending(6),
    TransactionAborted("t1", "conflict"),
]


def test_a_refusal_reads_as_its_text_whatever_else_it_carries() -> None:
    kinds = [kind for kind in every_error() if issubclass(kind, errors.Refused)]
    with_text = [kind for kind in kinds if kind.has_text]
    assert len(with_text) > 20
    for kind in with_text:
        assert str(kind("text", 1, "more")) == "text", kind
    for fault in (errors.PluginFault("lcr", "ValueError"), errors.PluginFault("lcr", "")):
        assert str(fault).startswith("the plugin lcr has raised ")
    assert "ValueError" in str(errors.PluginFault("lcr", "ValueError"))


def copies(error: Any) -> list[Any]:
    return [copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_d4_an_error_is_carried_whole(error: errors.RaftkvError) -> None:
    for carried in copies(error):
        assert type(carried) is type(error)
        assert (str(carried), carried.args, vars(carried)) == (str(error), error.args, vars(error))


def test_d4_every_error_can_be_pickled_and_copied() -> None:
    kinds = every_error()
    assert len(kinds) > 100
    for kind in kinds:
        error = kind.__new__(kind, "text", 1)
        for carried in copies(error):
            assert type(carried) is kind
            assert carried.args == ("text", 1)


def test_d4_a_process_pool_survives_an_error_with_arguments_of_its_own() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(errors.DamagedLog, match="byte 7"),
    ):
        pool.submit(damaged).result()


def damaged() -> None:
    raise errors.DamagedLog("file", 7, "reason")


def test_d4_what_lives_in_one_process_stays_there() -> None:
    error = StillPending(6)
    error.submission = object()  # type: ignore[assignment]
    carried = pickle.loads(pickle.dumps(error))
    assert carried.position == 6
    assert carried.submission is None


def trace_length(error: BaseException) -> int:
    length, trace = 0, error.__traceback__
    while trace is not None:
        length, trace = length + 1, trace.tb_next
    return length


def failing(_: int) -> None:
    raise OSError(5, "Input/output error")


@in_loop
async def test_d4_every_call_of_a_faulted_node_raises_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with LocalCluster(cores=1, directory=str(tmp_path)) as cluster:
        node = cluster.nodes[0]
        monkeypatch.setattr(os, "fdatasync", failing)
        with pytest.raises(raftkv.RaftkvError):
            await node.kv.put(b"k", b"v")
        fault = await node.fault
        raised = []
        for _ in range(3):
            with pytest.raises(errors.DiskFailed) as caught:
                await node.kv.put(b"k", b"v")
            raised.append(caught.value)
        monkeypatch.undo()
    assert len({id(error) for error in raised}) == 3
    assert {trace_length(error) for error in raised} == {trace_length(raised[0])}
    for error in raised:
        assert error.__cause__ is fault
        assert str(error) == str(fault)
