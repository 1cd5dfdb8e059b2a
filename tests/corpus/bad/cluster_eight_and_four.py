# mypy: disable-error-code="empty-body"
"""One node has 8 GPUs and the other 4, but the configuration has a single number of GPUs for all nodes.

Seen: https://github.com/verl-project/verl/issues/1182
Elsewhere: the configuration has only nodes times GPUs; users ask what to write.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout

N_GPUS_PER_NODE, N_NODES = 8, 2


@hf.dataflow
def rollout(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([N_GPUS_PER_NODE] * N_NODES)
experiment = hf.Experiment(
    rollout,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),  # <- HF502
    ),
    dims={B: 64, P: 1024, R: 1024},
    cluster=hf.Cluster(
        hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=64), hf.Nodes(1, gpus=4, gpu_memory_gib=80, cpus=64)
    ),
)
