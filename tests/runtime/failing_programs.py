"""Runs whose actor raises on both ranks, exports a wrong weight, or dies.

``python -m tests.runtime.failing_programs drop refill exports dies``
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import ray

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import RoleError, SyncError
from hfdsl.protocols.queueing import Late
from tests.runtime import in_flight_programs as p
from tests.runtime import resharding_programs as sharded

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


class ListedEngine(p.Engine):
    """An engine that writes the number of its process into a file of a folder."""

    @staticmethod
    def concurrent_calls(folder: str) -> dict[str, int]:  # type: ignore[override]  # as its constructor
        """One at a time."""
        return {"generate": 1}

    def __init__(self, folder: str) -> None:
        super().__init__()
        Path(folder, str(self.rank)).write_text(str(os.getpid()), encoding="utf-8")


def pools() -> list[hf.ResourcePool]:
    """Of the engine and of the actor."""
    return [hf.ResourcePool([2], use_gpu=False, name=name) for name in ("engine", "actor")]


def fail(late: Late) -> None:
    """Print the first line of the error that ends a run."""
    engine, actor = pools()
    places = hf.Deployment(
        engine=hf.place(p.Engine, p.TOKENS, 0.05, pool=engine), actor=hf.place(FailingActor, 0.1, pool=actor)
    )
    plan = p.between_calls.given(lag=2, late=late).compile(places, dims={p.B: 4, p.R: p.TOKENS})
    try:
        with plan.launch("ray", seed=3, deadline=60) as running:
            list(running.stream(p.prompts(8, 4)))
    except RoleError as error:
        print(str(error).partition("\n")[0])


def export() -> None:
    """Print the first line of the error of a rank that exports a weight without values in the second step."""
    engine, actor = pools()
    mesh = hf.Mesh(tp=2)
    places = hf.Deployment(
        actor=hf.place(sharded.Unsendable, sharded.TENSOR, 0, "meta", pool=actor, mesh=mesh),
        engine=hf.place(sharded.Engine, sharded.TENSOR, pool=engine, mesh=mesh),
    )
    with sharded.synced.compile(places).launch("ray", deadline=60) as running:
        running.step()
        try:
            running.step()
        except SyncError as error:
            print(str(error).partition("\n")[0])


def recover(folder: str) -> None:
    """Kill an engine, and print how often the run recovers: calls behind that of the engine fail with it."""
    engine, _ = pools()
    places = hf.Deployment(
        engine=hf.place(ListedEngine, folder, pool=engine),
        actor=hf.place(p.Actor, pool=hf.ResourcePool([1], use_gpu=False, name="actor")),
    )
    plan = p.between_calls.given(lag=4, late="wait").compile(places, dims={p.B: 8, p.R: p.TOKENS})
    with plan.launch("ray", seed=3, deadline=60, retries=hf.Retries()) as running:
        for number, _ in enumerate(running.stream(p.prompts(400, 8))):
            if number == 100:
                os.kill(int(Path(folder, "0").read_text(encoding="utf-8")), signal.SIGKILL)
        print(f"{len(running.recoveries)} recovery")


def main() -> None:
    """One run after another."""
    ray.init(address="local", include_dashboard=False, num_cpus=4)
    for argument in sys.argv[1:]:
        if argument == "dies":
            with TemporaryDirectory() as folder:
                recover(folder)
        elif argument == "exports":
            export()
        else:
            fail(cast(Late, argument))
    gc.collect()  # so that Ray learns that nobody holds these results
    time.sleep(GRACE_SECONDS)


if __name__ == "__main__":
    main()
