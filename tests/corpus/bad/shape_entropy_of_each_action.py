# mypy: disable-error-code="empty-body, arg-type"
"""The entropy has an entry for each action dimension, the policy loss one for each step.

Seen: https://github.com/google-research/batch-ppo/pull/45
Elsewhere: the policy loss broadcasts to a larger shape, or fails with an error that names another tensor.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B, R


class D(hf.Dim):
    """Dimensions of an action."""


class Episodes(hf.Batch):
    observations: f32[B, R]
    surrogate: f32[B, R]


class Entropy(hf.Batch):
    entropy: f32[B, R, D]


class PolicyLoss(hf.Batch):
    policy_loss: f32[B, R]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def entropy(self, episodes: Episodes) -> Entropy: ...


@hf.function
def with_entropy(surrogate: f32[B, R], entropy: f32[B, R], weight: float = 0.01) -> PolicyLoss: ...


@hf.dataflow
def ppo(episodes: Episodes, policy: Policy) -> PolicyLoss:
    return with_entropy(episodes.surrogate, policy.entropy(episodes).entropy)  # <- HF210


experiment = hf.Experiment(
    ppo, hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([1]))), dims={B: 25, R: 1000, D: 6}
)
