"""A role of a module in a folder that only the driver looks into."""

# good: import os
import sys
from pathlib import Path

import torch

import hfdsl as hf

FOLDER = str(Path(__file__).parent / "elsewhere")
sys.path.insert(0, FOLDER)  # workers do not see it

from my_roles import B, Critic, Prompts, Scores  # type: ignore[import-not-found]  # noqa: E402  # found by hand


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


pool = hf.ResourcePool([1], use_gpu=False, name="pool")
plan = program.compile(hf.Deployment(critic=hf.place(Critic, pool=pool)), {B: 4})
# good: with plan.launch("ray", worker_env={"PYTHONPATH": os.pathsep.join((FOLDER, *sys.path))}) as running:
with plan.launch("ray") as running:  # <- bad
    running.step(Prompts(ids=torch.arange(4)))
