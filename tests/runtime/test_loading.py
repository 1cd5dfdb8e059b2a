"""A loader reads what it is asked for and no more, and nothing of it is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hfdsl.errors import HfError
from hfdsl.runtime.loading import END, LoaderThread

THREADS = list[LoaderThread]()
"""The threads of the test that runs."""


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    yield
    while THREADS:
        THREADS.pop().close()


def thread(loader: Iterator[Any], seconds: float = 60.0, earlier: LoaderThread | None = None) -> LoaderThread:
    THREADS.append(LoaderThread(loader, seconds, lambda: "an empty queue", earlier))
    return THREADS[-1]


def gated(gate: threading.Event, *batches: Any) -> Iterator[Any]:
    """Batches behind a gate, and an error where one is an error."""
    for batch in batches:
        gate.wait()
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def test_a_loader_reads_a_batch_once_it_is_asked_for() -> None:
    loader = iter([1, 2, 3])
    source = thread(loader)
    source.ask()
    source.ask()
    source.wait()
    source.ask()
    assert (source.has_batch, source.next()) == (True, 1)
    source.close()
    assert source.next() is END
    assert list(loader) == [2, 3]


def test_a_driver_need_not_wait_for_a_batch() -> None:
    gate = threading.Event()
    source = thread(gated(gate, 1))
    assert not source.pending
    source.ask()
    assert source.pending
    assert not source.has_batch
    gate.set()
    source.wait()
    assert not source.pending
    assert (source.next(), source.next() is END) == (1, True)


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_what_an_earlier_loader_was_asked_for_comes_first(arrives: str) -> None:
    gate = threading.Event()
    earlier = thread(gated(gate, 1, 2))
    earlier.ask()
    if arrives == "before":
        gate.set()
        earlier.wait()
    earlier.close()
    source = thread(iter([7]), earlier=earlier)
    gate.set()
    assert [source.next() for _ in range(3)] == [1, 7, END]


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_the_end_of_an_earlier_loader_is_not_that_of_the_next(arrives: str) -> None:
    gate = threading.Event()
    earlier = thread(batch for batch in [1] if gate.wait() and batch > 1)
    earlier.ask()
    if arrives == "before":
        gate.set()
        earlier.wait()
    source = thread(iter([7]), earlier=earlier)
    gate.set()
    assert [source.next() for _ in range(2)] == [7, END]


def test_an_error_of_an_earlier_loader_is_raised() -> None:
    gate = threading.Event()
    earlier = thread(gated(gate, KeyError("gone")))
    earlier.ask()
    source = thread(iter([7]), earlier=earlier)
    gate.set()
    with pytest.raises(KeyError, match="gone"):
        source.next()


def test_a_loader_that_takes_too_long_is_named_where_its_batch_is_taken() -> None:
    gate = threading.Event()
    source = thread(gated(gate, 1), seconds=0.0)
    source.ask()
    assert not source.pending
    source.wait()
    assert not source.has_batch
    with pytest.raises(HfError, match=r"HF764: the loader yielded no batch for 0 s \(an empty queue\)"):
        source.next()
    assert source.next() is END
    gate.set()


def test_a_batch_that_is_given_back_comes_again() -> None:
    source = thread(iter([1, 2]))
    source.give_back(source.next())
    source.close()
    assert [source.next() for _ in range(2)] == [1, END]


READS_AT_EXIT = """
import time

import torch

from hfdsl.runtime.loading import LoaderThread


def batches():
    end, batch = time.monotonic() + 1.0, torch.randn(300, 300)
    while time.monotonic() < end:
        batch = torch.tanh(batch @ batch)
    print("read", flush=True)
    yield batch


LoaderThread(batches(), 60.0, str).ask()
time.sleep(0.3)
"""


def test_the_interpreter_waits_at_its_exit_for_the_batch_that_is_read() -> None:
    """A thread that is in a C++ library then would abort it."""
    ended = subprocess.run([sys.executable, "-c", READS_AT_EXIT], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr
