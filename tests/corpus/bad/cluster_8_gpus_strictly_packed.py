# mypy: disable-error-code="empty-body"
"""An engine of 8 ranks needs all of them on one node, but the 2 nodes have 4 GPUs each.

Seen: https://github.com/ray-project/ray/pull/62888
Elsewhere: the placement group stays pending and the deployment never starts; a review of the example saw it.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout


@hf.dataflow
def serve(prompts: Prompts, engine: Actor) -> Rollout:
    return engine.generate(prompts)


experiment = hf.Experiment(
    serve,
    hf.Deployment(
        engine=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8]), mesh=hf.Mesh(pp=2, tp=4)),  # <- HF502
    ),
    dims={B: 64, P: 1024, R: 1024},
    cluster=hf.Cluster(hf.Nodes(2, gpus=4, gpu_memory_gib=80, cpus=64)),
)
