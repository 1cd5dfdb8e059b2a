"""What writing a trace costs: ``python benchmarks/tracing.py`` steps a PPO chain on Ray with and without one, in turn.

Six calls on four workers, with next to no payload: the driver's own work is nearly all that there is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time

import torch

import hfdsl as hf


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def map(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + 1)

    @hf.register(hf.Dispatch.DP_PROTO)
    def join(self, left: Rows, right: Rows) -> Rows:
        return Rows(x=left.x.tensor + right.x.tensor)


@hf.dataflow
def chain(rows: Rows, actor: Role, critic: Role, reference: Role, reward: Role) -> tuple[Rows, Rows]:
    rollout = actor.map(rows)
    values, frozen, scores = critic.map(rollout), reference.map(rollout), reward.map(rollout)
    return actor.join(values, frozen), critic.join(values, scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=20, help="rounds with a trace, and as many without")
    parser.add_argument("--json", action="store_true", help="for machines")
    arguments = parser.parse_args()
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    places = zip(("actor", "critic", "reference", "reward"), (0, 1, 0, 1), strict=True)
    plan = chain.compile(hf.Deployment(**{n: hf.place(Role, pool=pools[i]) for n, i in places}), dims={B: 8})
    wall: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder, plan.launch("ray") as running:
        batch = Rows(x=torch.zeros(8))
        for number in range(2 * arguments.rounds + 2):
            traced = number % 4 in {0, 3}  # neither of them always comes first
            with running.trace(Path(folder) / "steps.json") if traced else nullcontext():
                start, used = perf_counter(), process_time()
                for _ in range(arguments.steps):
                    running.step(batch)
                took = perf_counter() - start, process_time() - used
            if number >= 2:  # the first two warm up
                wall[traced].append(took[0] / arguments.steps)
                cpu[traced].append(took[1] / arguments.steps)
    results = {
        f"{clock} {'with' if traced else 'without'} a trace": statistics.median(times[traced]) * 1000
        for clock, times in (("wall", wall), ("driver CPU", cpu))
        for traced in (False, True)
    }
    results["wall, added in percent"] = (statistics.median(wall[True]) / statistics.median(wall[False]) - 1) * 100
    if arguments.json:
        print(json.dumps(results | {"load": os.getloadavg()[0]}))
        return
    for name, value in results.items():
        print(f"{name:32} {value:8.3f}{'' if 'percent' in name else ' ms a step'}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
