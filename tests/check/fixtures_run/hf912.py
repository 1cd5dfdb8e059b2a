"""A teacher of a name that the server does not know."""

import torch

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers import GenerationConfig, ServedConfig, ServedPolicy, ServerConfig
from tests.rl.workers.server import serving


@hf.dataflow
def program(prompts: Prompts, teacher: ServedPolicy) -> Rollout:
    return teacher.generate(prompts)


prompts = Prompts(ids=torch.full((2, 3), 7), mask=torch.ones(2, 3, dtype=torch.bool), task=[{}, {}])
pool = hf.ResourcePool([2], use_gpu=False, name="pool")
with serving(models=("teacher",)) as here:
    # good: server = ServerConfig(here.url, model="teacher", patience=0)
    server = ServerConfig(here.url, model="techer", patience=0)  # bad
    config = ServedConfig(server, GenerationConfig(max_tokens=4), pad_token=0)
    deployment = hf.Deployment(teacher=hf.place(ServedPolicy, config, pool=pool))
    with program.compile(deployment).launch("local") as running:
        running.step(prompts)  # <-
