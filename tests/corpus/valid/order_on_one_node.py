"""On one node the ranks of a tensor-parallel group may have any numbers."""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([8], name="train")
mesh = hf.Mesh(dp=2, tp=4, order=("pp", "tp", "dp"))
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=mesh)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
    cluster=hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=64)),
)
