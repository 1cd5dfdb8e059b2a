# mypy: disable-error-code="empty-body"
"""The critic's values exist on the last pipeline stage, but are collected from the first.

Seen: https://github.com/radixark/miles/pull/3125
Elsewhere: "object of type 'NoneType' has no len()" on a worker in the first update, only with a pipeline.
"""

import hfdsl as hf
from hfdsl import register
from tests.corpus.vocabulary import B, Estimates, P, R, Reward, Rollout, Scores, Values

FROM_STAGE_0 = hf.Protocol("FROM_STAGE_0", split=("dp",), collect={"dp": "join", "pp": "first", "tp": "first"})


class MegatronCritic(hf.Worker):
    @register(FROM_STAGE_0)
    def values(self, rollout: Rollout) -> Values: ...


@hf.function
def gae(rollout: Rollout, values: Values, scores: Scores) -> Estimates: ...


@hf.dataflow
def advantages(rollout: Rollout, critic: MegatronCritic, reward: Reward) -> Estimates:
    values = critic.values(rollout)  # <- HF404
    return gae(rollout, values, reward.score(rollout))


experiment = hf.Experiment(
    advantages,
    hf.Deployment(
        critic=hf.place(MegatronCritic, pool=hf.ResourcePool([8]), mesh=hf.Mesh(pp=2, dp=2, tp=2)),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 64, P: 1024, R: 4096},
)
