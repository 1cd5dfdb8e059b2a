# mypy: disable-error-code="empty-body"
"""A script for two nodes is started on one: it requests 16 GPUs, but there are only 8.

Seen: https://github.com/verl-project/verl/issues/2515
Elsewhere: verl counts the cluster's GPUs after Ray has started and raises a ValueError in the driver.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout


@hf.dataflow
def rollout(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


experiment = hf.Experiment(
    rollout,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8, 8])),  # <- HF502
    ),
    dims={B: 128, P: 2048, R: 20480},
    cluster=hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=128)),
)
