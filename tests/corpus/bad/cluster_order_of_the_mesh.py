"""A mesh has its tensor-parallel axis before the data-parallel one, so each tensor-parallel group spans several nodes.

Seen: https://github.com/pytorch/torchtitan/issues/286
Elsewhere: silent: a reader of the code noticed the order, which matters between nodes; it was corrected.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([8, 8], name="train")
mesh = hf.Mesh(dp=2, tp=8, order=("pp", "tp", "dp"))
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=mesh)),  # <- HF503
    dims={B: 64, P: 1024, R: 1024},
    cluster=hf.Cluster(hf.Nodes(2, gpus=8, gpu_memory_gib=80, cpus=96)),
)
