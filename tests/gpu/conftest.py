"""A cluster of Ray that has the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[Any]:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
