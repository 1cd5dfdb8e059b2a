"""Switches for all tests; their fixtures and marks are those of ``hfdsl.testing.plugin``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Programs that are read or run as scripts, many of them wrong on purpose: never imported.
collect_ignore_glob = ["typing/cases/*", "check/fixtures_run/*"]

# No deadlines: a shared machine is slow at times, and that is no defect. On CI the same examples every time.
settings.register_profile("hfdsl", deadline=None)
settings.register_profile("hfdsl-ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("hfdsl-ci" if os.environ.get("CI") else "hfdsl")


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
