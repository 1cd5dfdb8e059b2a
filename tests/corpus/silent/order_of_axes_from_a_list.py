"""Two nodes of 4: data parallel ranks are numbered first, so that groups of 4 tensor-parallel ranks are on both."""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


pool = hf.ResourcePool([4, 4], name="train")
mesh = hf.Mesh(dp=2, tp=4, order=("pp", "tp", "dp"))
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=mesh)),  # <- HF503
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
    cluster=hf.Cluster(hf.Nodes(2, gpus=4, gpu_memory_gib=80, cpus=64)),
)
