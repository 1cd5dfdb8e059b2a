"""A fixture for tests and doctests that register dispatch modes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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


@pytest.fixture(autouse=True)
def _modes_of_doctests(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("modes")
