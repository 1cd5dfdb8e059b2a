"""Runs whose actor raises on both ranks, by ``python -m tests.runtime.failing_programs drop refill``."""

from __future__ import annotations

import sys
import time
from typing import cast

import ray

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import RoleError
from hfdsl.protocols.queueing import Late
from tests.runtime import in_flight_programs as p

GRACE_SECONDS = 6.0
"""The time after which Ray has printed each error that nobody has looked at."""


class FailingActor(p.Actor):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: p.Samples) -> p.Trained:
        """An update; the third one raises."""
        if self.updates == 2:
            raise ValueError("the third update")
        return super().update(batch)


def main() -> None:
    """Run a discipline after the other, and print the first line of each error."""
    ray.init(address="local", include_dashboard=False, num_cpus=4)
    engine, actor = (hf.ResourcePool([2], use_gpu=False, name=name) for name in ("engine", "actor"))
    places = hf.Deployment(
        engine=hf.place(p.Engine, p.TOKENS, 0.05, pool=engine), actor=hf.place(FailingActor, 0.1, pool=actor)
    )
    for late in sys.argv[1:]:
        program = p.between_calls.given(lag=2, late=cast(Late, late))
        plan = program.compile(places, dims={p.B: 4, p.R: p.TOKENS})
        try:
            with plan.launch("ray", seed=3, deadline=60) as running:
                list(running.stream(p.prompts(8, 4)))
        except RoleError as error:
            print(str(error).partition("\n")[0])
    time.sleep(GRACE_SECONDS)


if __name__ == "__main__":
    main()
