"""Plans on pools with GPUs: writes into tensors sent directly are refused, and failures are reported.

These launches are no test's but their own. In a module of their own they do not need GPUs beside the launch that the
tests of ``test_direct_plans`` share.
"""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import RoleError, WiringError
from hfdsl.plan.optimize import Optimize
from tests.runtime import moving_programs as p
from tests.runtime.test_direct_plans import compiled, deployment, inputs, keeps


def parked() -> hf.Deployment:
    """A maker that gives memory back whenever its reader, another process of the same device, is at work."""
    pool = hf.ResourcePool([1])
    reader = hf.place(p.Reader, pool=pool, colocate=False)
    return hf.Deployment(maker=hf.place(p.Parked, pool=pool, offload=True), reader=reader)


@pytest.mark.nightly
def test_mappings_are_not_kept_where_memory_is_given_back(ray_cluster: Any) -> None:
    plan = compiled(p.split, parked())
    assert "cuda ipc readers map GPU memory again for every transfer, since offload releases memory" in str(plan)
    with plan.launch("ray") as running:
        assert keeps(running) == {False}
    with compiled(p.split, parked(), Optimize(offload=False)).launch("ray") as running:
        assert keeps(running) == {True}


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize("launched", ["local", "ray"])
def test_writing_into_what_arrived_is_refused(ray_cluster: Any, launched: Any) -> None:
    with (
        compiled(p.writing, deployment(use_gpu=True)).launch(launched) as running,
        pytest.raises(WiringError, match=r"HF703: 'reader.write' wrote into column 'y' of its argument 'outputs'"),
    ):
        running.step(inputs())


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize("launched", ["local", "ray"])
def test_writing_into_what_is_under_way_is_refused(ray_cluster: Any, launched: Any) -> None:
    with (
        compiled(p.overwriting, deployment(use_gpu=True)).launch(launched) as running,
        pytest.raises(WiringError, match=r"HF703: column 'y' of its result was changed after 'maker.make'"),
    ):
        running.step(inputs())


@pytest.mark.nightly
def test_a_maker_that_fails_is_named(ray_cluster: Any) -> None:
    with (
        compiled(p.failing, deployment(use_gpu=True)).launch("ray") as running,
        pytest.raises(RoleError, match=r"HF806: 'maker.fail' raised on rank 0 in step 0: KeyError"),
    ):
        running.step(inputs())
