"""What a process keeps of a cluster that it has ended."""

from __future__ import annotations

from typing import Any

import pytest
from ray._private import worker as ray_worker
from ray.experimental.rdt.rdt_manager import RDTManager

from hfdsl.single_controller import ray_internals


def test_transfers_of_an_ended_cluster_are_not_monitored_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    manager: Any = RDTManager()  # type: ignore[no-untyped-call]  # Ray declares no types here
    manager._unmonitored_transfers.put("a transfer of this cluster")
    monkeypatch.setattr(ray_worker.global_worker, "_rdt_manager", manager)
    monkeypatch.setattr("ray.shutdown", manager.shutdown)
    ray_internals.shut_down()
    following: Any = ray_worker.global_worker.rdt_manager
    assert following._unmonitored_transfers.empty()
