# mypy: disable-error-code="empty-body, arg-type"
"""A model in bfloat16 receives image features in float16.

Seen: https://github.com/thu-ml/MMTrustEval/issues/3
Elsewhere: a RuntimeError on different dtypes (Half and BFloat16) in the first forward pass.
"""

import hfdsl as hf
from hfdsl import Dispatch, bf16, f16, register
from tests.corpus.vocabulary import B, Scores


class F(hf.Dim):
    """Image features."""


class Images(hf.Batch):
    features: f16[B, F]


class RewardModel(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, features: bf16[B, F]) -> Scores: ...


@hf.dataflow
def score(images: Images, reward: RewardModel) -> Scores:
    return reward.score(images.features)  # <- HF220


experiment = hf.Experiment(
    score, hf.Deployment(reward=hf.place(RewardModel, pool=hf.ResourcePool([1]))), dims={B: 16, F: 1024}
)
