"""Two nodes of 4: data parallel ranks are numbered first, and yet both pairs of a stage are on one node."""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([4, 4], name="train")
mesh = hf.Mesh(pp=2, dp=2, tp=2, order=("pp", "tp", "dp"))
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=mesh)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
    cluster=hf.Cluster(hf.Nodes(2, gpus=4, gpu_memory_gib=80, cpus=64)),
)
