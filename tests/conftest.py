"""Switches for all tests; their fixtures and marks are those of ``hfdsl.testing.plugin``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Programs that are read or run as scripts, many of them wrong on purpose: never imported.
collect_ignore_glob = ["typing/cases/*", "check/fixtures_run/*"]

# No deadlines: a shared machine is slow at times, and that is no defect. On CI the same examples every time.
settings.register_profile("hfdsl", deadline=None)
settings.register_profile("hfdsl-ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("hfdsl-ci" if os.environ.get("CI") else "hfdsl")

# Processes of pytest-xdist share the cores: with threads of their own small products can take tens of times as long.
# And they have clusters of their own, which do not find each other.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["RAY_TMPDIR"] = str(Path(tempfile.gettempdir()) / f"hfdsl_{os.getuid()}_{worker}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is marked ``nightly``: it costs many processes and differs little from a test that always runs."""
    for item in items:
        if item.get_closest_marker("nightly") and not os.environ.get("HFDSL_NIGHTLY"):
            item.add_marker(pytest.mark.skip(reason="only with HFDSL_NIGHTLY=1"))


@pytest.fixture
def modes() -> Iterator[None]:
    """For a test that registers a dispatch mode: afterwards no message lists it."""
    from hfdsl.protocols import Dispatch

    known = set(Dispatch.__members__)
    yield
    for name in set(Dispatch.__members__) - known:
        Dispatch._member_names_.remove(name)
        del Dispatch._member_map_[name], Dispatch._value2member_map_[name]
        delattr(Dispatch, name)
