"""Switches for all tests; their fixtures and marks are those of ``hfdsl.testing.plugin``."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import fork_server, forks
from tests.nightly import NIGHTLY, examples

# Programs that are read or run as scripts, many of them wrong on purpose: never imported. Neither is a module that
# registers a dispatch mode, which messages would list from then on. Other programs have no doctests, and the tests that
# check them import them: to search their 500 modules would take every process of a run seconds.
collect_ignore_glob = [
    *("typing/cases/*", "check/fixtures_run/*", "single_controller/lambda_mode.py"),
    *("check/fixtures/*", "check/programs/*", "corpus/bad/*", "corpus/silent/*", "corpus/valid/*"),
]

# No deadlines: a shared machine is slow at times, and that is no defect. On CI the same examples every time.
settings.register_profile("hfdsl", deadline=None, max_examples=examples(100))
settings.register_profile("hfdsl-ci", settings.get_profile("hfdsl"), derandomize=True, database=None, print_blob=True)
settings.load_profile("hfdsl-ci" if os.environ.get("CI") else "hfdsl")

# Processes of pytest-xdist share the cores: with threads of their own small products can take tens of times as long.
# Without xdist, too: Ray gives a worker one thread, and products of several threads can have other bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Those of pytest-xdist have clusters of their own, which find neither each other nor what an earlier run left behind.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    run = os.environ["PYTEST_XDIST_TESTRUNUID"][:6]  # the paths of sockets are short
    os.environ["RAY_TMPDIR"] = str(Path(tempfile.gettempdir()) / f"hfdsl_{os.getuid()}_{run}_{worker}")

# Ray replaces the built-in print once a worker has written to its log: messages that name it would differ after that.
os.environ["RAY_TQDM_PATCH_PRINT"] = "0"

# Ray looks for logs to show ten times a second, which takes 7 % of a core where there are 600; no test reads them.
os.environ |= {"RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0", "LOG_NAME_UPDATE_INTERVAL_S": "86400"}

# A shell ignores SIGINT in what it starts in the background, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


RUNTIME = {Path(__file__).parent / room for room in ("faults", "runtime")}
"""Folders whose tests with Ray take as long as all others with Ray."""

FORK_SERVER = pytest.StashKey[subprocess.Popen[bytes]]()  # it would end if Python collected its standard input

CASES = {"nightly_cases": False, "nightly_besides": True}
"""Marks that leave a part of the cases to the nightly run: whether it is those that the mark does not name."""


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what is marked ``nightly`` to the nightly run, and mark the properties, of which it tries more examples."""
    for item in items:
        case = str(item.callspec.id) if hasattr(item, "callspec") else ""
        names = {case, *case.split("-")}
        for mark in item.iter_markers():
            if mark.name in CASES and names.isdisjoint(mark.args) is CASES[mark.name]:
                item.add_marker("nightly")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("sampled")
        if item.get_closest_marker("nightly") and not NIGHTLY:
            item.add_marker(pytest.mark.skip(reason="only with HFDSL_NIGHTLY=1"))
        # In the nightly run tests with Ray take longest: those of faults and of runs go to different processes.
        if NIGHTLY and "ray_cluster" in getattr(item, "fixturenames", ()) and RUNTIME.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.xdist_group("besides"))


@pytest.fixture(scope="module")
def forked_engines() -> Iterator[None]:
    """For tests that start engines by the dozen: their processes are forks of one that has imported torch."""
    from hfdsl.rl.engines import process

    with pytest.MonkeyPatch.context() as patch:
        if forks.AVAILABLE:
            patch.setattr(process, "Popen", forks.Popen)
        yield


@pytest.fixture(scope="module")
def forked_vllm_engines() -> Iterator[None]:
    """The same for engines of vLLM: the process has imported vLLM as well."""
    import torch

    from hfdsl.rl.engines import process

    with pytest.MonkeyPatch.context() as patch:
        if forks.AVAILABLE and not torch.cuda.is_available():
            patch.setattr(process, "Popen", forks.VllmPopen)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out whole files of tests, and those with Ray first: they take longest.

    To hand out single tests takes half a minute more, since pytest-xdist goes through those before at each of them. And
    a module fixture is set up in one process only.
    """
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):  # type: ignore[misc]  # pytest-xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return scope.partition("::")[0] if scope == nodeid else scope

        def _assign_work_unit(self, node: Any) -> None:
            for group in {"ray", "besides"} & self.workqueue.keys():
                self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    return Files(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """Have garbage collections pass over what was there before the first test: modules, and the tests themselves.

    With Python's own thresholds they take an eighth of the time of small tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test with Ray, start the process whose forks are Ray's workers."""
    if item.get_closest_marker("ray") and fork_server.SOCKET not in os.environ:
        item.config.stash[FORK_SERVER] = fork_server.install()
