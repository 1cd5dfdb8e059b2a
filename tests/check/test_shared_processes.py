"""HF754 is said where a lag gains nothing, and nowhere else."""

from __future__ import annotations

import pytest

import hfdsl as hf
from tests.check.fixtures import hf754 as p

POOL, OTHER = hf.ResourcePool([4]), hf.ResourcePool([4], name="other")
CPUS = hf.ResourcePool([4], use_gpu=False)


@pytest.mark.parametrize(
    ("pools", "colocate", "warned"),
    [
        ((POOL, POOL), True, True),
        ((POOL, POOL), False, False),  # in processes of their own, calls run at the same time
        ((POOL, OTHER), True, False),
        ((CPUS, CPUS), True, False),
    ],
)
def test_stages_that_share_processes_with_gpus_are_warned_of(
    pools: tuple[hf.ResourcePool, hf.ResourcePool], colocate: bool, warned: bool
) -> None:
    trainer, engine = pools
    deployment = hf.Deployment(
        trainer=hf.place(p.Trainer, pool=trainer), engine=hf.place(p.Engine, pool=engine, colocate=colocate)
    )
    assert p.program.check(deployment, dims={p.B: 64}).codes == (("HF754",) if warned else ())
