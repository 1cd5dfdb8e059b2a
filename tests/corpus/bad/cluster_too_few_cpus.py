# mypy: disable-error-code="empty-body"
"""Reward processes ask for more CPUs than are left on the only node.

Seen: https://github.com/verl-project/verl/pull/6663
Elsewhere: the driver waits for its placement groups forever, without a message and with all GPUs idle.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores


@hf.dataflow
def scores(prompts: Prompts, actor: Actor, reward: Reward) -> Scores:
    return reward.score(actor.generate(prompts))


experiment = hf.Experiment(
    scores,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8])),
        reward=hf.place(Reward, pool=hf.ResourcePool([64], use_gpu=False)),  # <- HF505
    ),
    dims={B: 64, P: 512, R: 512},
    cluster=hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=80, cpus=4)),
)
