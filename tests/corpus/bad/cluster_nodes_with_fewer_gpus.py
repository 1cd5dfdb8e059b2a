# mypy: disable-error-code="empty-body"
"""Two nodes with 8 GPUs each are requested of nodes with 4: there are enough GPUs, but no node fits.

Seen: https://github.com/alibaba/ROLL/issues/107
Elsewhere: ROLL counts only nodes with as many GPUs as configured, finds 0, and asserts while Ray shows 3.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, Critic, P, PolicyConfig, Prompts, R, Values


@hf.dataflow
def values(prompts: Prompts, actor: Actor, critic: Critic) -> Values:
    return critic.values(actor.generate(prompts))


nodes, config = hf.ResourcePool([8, 8]), PolicyConfig()
experiment = hf.Experiment(
    values,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=nodes),  # <- HF502
        critic=hf.place(Critic, config, pool=nodes),
    ),
    dims={B: 64, P: 1024, R: 1024},
    cluster=hf.Cluster(hf.Nodes(4, gpus=4, gpu_memory_gib=80, cpus=64)),
)
