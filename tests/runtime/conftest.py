"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pytest

from hfdsl.plan import buckets


@pytest.fixture(params=["buffered", "direct"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights travel through buffers, and then as large ones do."""
    least = 1 if request.param == "direct" else 2**20
    for name in ("BROADCAST_BYTES", "SEND_BYTES"):
        monkeypatch.setattr(buckets, name, least)
