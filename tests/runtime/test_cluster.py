"""The cluster of a launch: one that has gone is reported at once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hfdsl.errors import HfError
from hfdsl.runtime.ray.cluster import connect


@pytest.fixture
def gone() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_cluster_that_has_gone_is_reported(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", gone)
    port = gone.partition(":")[2]
    with pytest.raises(HfError, match=rf"HF807: no Ray cluster answers at \S+:{port}, in RAY_ADDRESS .*'local'"):
        connect()


def test_so_is_one_whose_address_was_left_behind(gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after processes were killed: ``ray start`` writes the address, and only ``ray stop`` removes it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
    with pytest.raises(HfError, match=r"HF807: no Ray cluster answers at .*, which `ray start` has left behind"):
        connect()
