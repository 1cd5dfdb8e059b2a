"""Three nodes of 2, and tensor-parallel pairs with consecutive numbers."""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([2, 2, 2], name="train")
mesh = hf.Mesh(dp=3, tp=2)
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=mesh)),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
    cluster=hf.Cluster(hf.Nodes(3, gpus=2, gpu_memory_gib=80, cpus=64)),
)
