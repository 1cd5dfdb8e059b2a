"""Fixtures and switches for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Programs that are read or run as scripts, many of them wrong on purpose: never imported.
collect_ignore_glob = ["typing/cases/*", "check/fixtures_run/*"]

# No deadlines: a shared machine is slow at times, and that is no defect. On CI the same examples every time.
settings.register_profile("hfdsl", deadline=None)
settings.register_profile("hfdsl-ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("hfdsl-ci" if os.environ.get("CI") else "hfdsl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the cluster, and skip what needs a GPU where there is none."""
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not cuda_is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def cuda_is_available() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of four CPUs on this machine, shared by the whole run; the value is the ``ray`` module.

    It says that it has four GPUs too: groups are placed on them, and their tensors go directly, on CPUs by gloo.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # num_gpus=0 leaves CUDA_VISIBLE_DEVICES alone
        import ray

        ray.init(
            address="local",  # a cluster of our own, also where RAY_ADDRESS names another
            num_cpus=4,
            num_gpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=400 * 1024**2,
        )
        try:
            yield ray
        finally:
            ray.shutdown()
