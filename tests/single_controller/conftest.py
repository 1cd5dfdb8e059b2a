"""Groups that many tests share: a process start is the dear thing here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hfdsl.single_controller import Mesh, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from tests.single_controller import roles


@pytest.fixture(scope="session")
def pool(ray_cluster: Any) -> Iterator[RayResourcePool]:
    with RayResourcePool([4], use_gpu=False, max_colocate_count=20) as pool:
        yield pool


@pytest.fixture(scope="session")
def pair(ray_cluster: Any) -> Iterator[RayResourcePool]:
    """For tests whose groups nobody shares."""
    with RayResourcePool([2], use_gpu=False, max_colocate_count=8) as pool:
        pool.place()
        yield pool


@pytest.fixture(scope="session")
def methods(pool: RayResourcePool) -> Iterator[RayWorkerGroup]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(cls=roles.Methods, x=2)) as group:
        yield group


@pytest.fixture(scope="session")
def accumulators(pool: RayResourcePool) -> Iterator[RayWorkerGroup]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(roles.Accumulator), name_prefix="acc") as group:
        yield group


@pytest.fixture(scope="session")
def grid(pool: RayResourcePool) -> Iterator[RayWorkerGroup]:
    mesh = Mesh(pp=2, tp=2, gen_tp=1, order=("tp", "dp", "pp"))
    with RayWorkerGroup(pool, RayClassWithInitArgs(roles.Grid), mesh) as group:
        yield group


@pytest.fixture(scope="session")
def failing(pair: RayResourcePool) -> Iterator[RayWorkerGroup]:
    """For calls that end."""
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Failing)) as group:
        yield group


@pytest.fixture(scope="session")
def rows(pair: RayResourcePool) -> Iterator[RayWorkerGroup]:
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Rows)) as group:
        yield group
