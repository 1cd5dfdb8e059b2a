"""Interrupts while Ray starts: they wait, and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hfdsl.single_controller.interrupts import delayed_interrupts


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The signals that a handler of the test gets."""
    numbers = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_and_is_one(seen: list[int]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with delayed_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert seen == []
    assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler


def test_without_an_interrupt_nothing_is_raised(seen: list[int]) -> None:
    with delayed_interrupts():
        pass
    assert seen == []


def test_an_error_within_does_not_hide_an_interrupt() -> None:
    def fails() -> None:
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise ConnectionError("no cluster")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        fails()
    signal.signal(signal.SIGINT, before)
    assert isinstance(interrupt.value.__context__, ConnectionError)


def test_another_thread_and_an_ignored_signal_are_left_alone(seen: list[int]) -> None:
    def handler_within() -> None:
        with delayed_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers = list[object]()
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=handler_within)
    thread.start()
    thread.join()
    assert handlers == [handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler_within()
    assert handlers[1:] == [signal.SIG_IGN]


INTERRUPTED = """
import os, signal, threading
import ray
from hfdsl.runtime.ray.cluster import connect
started = threading.Event()
def interrupt():
    while not started.wait(0.02):
        os.kill(os.getpid(), signal.SIGINT)
thread, start = threading.Thread(target=interrupt), ray.init
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted_start(**options):
    thread.start()
    start(**options)
    started.set()
    thread.join()
ray.init = interrupted_start
try:
    connect()
except KeyboardInterrupt:
    print("interrupted", ray.is_initialized())
"""


@pytest.mark.nightly
def test_interrupts_throughout_the_start_of_ray_end_in_one_error() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("RAY_ADDRESS", None)
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert (run.returncode, run.stdout) == (0, "interrupted True\n"), run.stderr
