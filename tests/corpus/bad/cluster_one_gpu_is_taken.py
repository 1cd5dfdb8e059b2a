# mypy: disable-error-code="empty-body"
"""A pool of 8 GPUs is requested on a node with only 7 free GPUs.

Seen: https://github.com/verl-project/verl/issues/5954
Elsewhere: verl raises a ValueError in the driver, after Ray has started; choosing devices by a variable does not help.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores


@hf.dataflow
def scores(prompts: Prompts, actor: Actor, reward: Reward) -> Scores:
    return reward.score(actor.generate(prompts))


experiment = hf.Experiment(
    scores,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8])),  # <- HF502
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 64, P: 512, R: 512},
    cluster=hf.Cluster(hf.Nodes(1, gpus=7, gpu_memory_gib=64, cpus=64)),
)
