# mypy: disable-error-code="empty-body"
"""With 8 GPUs and 2 pairs on each, the loss is the mean over all GPUs, but the accuracy next to it is that of one.

Seen: https://github.com/hiyouga/LlamaFactory/issues/3215
Elsewhere: silent: a reader finds 0.78 logged where the mean of all 16 pairs is 0.72.
"""

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, T


class Pairs(hf.Batch):
    chosen: i64[B, T]
    rejected: i64[B, T]


class Dpo(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def training_step(self, pairs: Pairs) -> ActorMetrics: ...

    @register(Dispatch.DP_PROTO)
    def reward_accuracy(self, pairs: Pairs) -> float: ...


@hf.dataflow
def dpo(pairs: Pairs, policy: Dpo) -> tuple[ActorMetrics, float]:
    accuracy = policy.reward_accuracy(pairs)  # <- HF417
    return policy.training_step(pairs), accuracy


experiment = hf.Experiment(
    dpo, hf.Deployment(policy=hf.place(Dpo, pool=hf.ResourcePool([8]))), dims={B: 16, P: 512, R: 512}
)
