"""Rehearse PPO at the shapes of a real run: no model, no GPU, two placements, and the schedule of each.

    python examples/rehearsal.py [--seconds 0.002]

Every role is a fake. Ranks sleep for the stated time of each row, and values of the true sizes move between them.
"""

from __future__ import annotations

import argparse

import ray

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.workers.config import ActorConfig, CriticConfig, GenerationConfig, ModelConfig, ReferenceConfig
from hfdsl.testing import fake_batch, faked

DIMS: dict[type[hf.Dim], int] = {B: 64, P: 256, R: 512}
WORK = {
    "actor.generate": 8.0,
    "actor.update": 3.0,
    "critic.values": 1.0,
    "critic.update": 3.0,
    "reference.log_probs": 1.0,
    "reward.score": 1.0,
}
"""How long a row takes, in units of ``--seconds``."""


def deployment(split: bool) -> hf.Deployment:
    """All roles on one pool, or the critic, the reference and the reward on a second one."""
    model = ModelConfig(path="/no/such/model")
    first = hf.ResourcePool([2], use_gpu=False, name="first")
    second = hf.ResourcePool([2], use_gpu=False, name="second") if split else first
    return hf.Deployment(
        actor=hf.place(w.Actor, ActorConfig(model, GenerationConfig(DIMS[R])), pool=first),
        critic=hf.place(w.Critic, CriticConfig(model), pool=second),
        reference=hf.place(w.Reference, ReferenceConfig(model), pool=second),
        reward=hf.place(w.Reward, pool=second),
    )


def rehearse(split: bool, seconds: float) -> None:
    """Run two steps, and print when each call of the second one began and ended."""
    call_seconds = {node: lambda rows, each=units: rows * each * seconds for node, units in WORK.items()}
    plan = ppo.compile(faked(deployment(split), DIMS, seconds=call_seconds), DIMS)
    with plan.launch("ray") as running:
        for _ in range(2):
            running.step(fake_batch(Prompts, DIMS))
        timeline = running.timeline
    print(f"\n{'two pools' if split else 'one pool'}: a step takes {timeline.seconds:.2f} s")
    for label, (start, stop) in timeline.nodes.items():
        start_column, width = (
            round(40 * start / timeline.seconds),
            max(1, round(40 * (stop - start) / timeline.seconds)),
        )
        print(f"  {label:20} {start:6.2f} to {stop:5.2f} s  {' ' * start_column}{'#' * width}")


def main() -> None:
    """Both placements, on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.002, help="a unit of work a row")
    seconds = parser.parse_args().seconds
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=4)
    try:
        for split in (False, True):
            rehearse(split, seconds)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
