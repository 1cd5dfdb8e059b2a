# mypy: disable-error-code="empty-body, arg-type"
"""Log-probabilities are [n] and advantages [n, 1]: their product is [n, n].

Seen: https://github.com/pytorch/rl/issues/1243
Elsewhere: silent: the product broadcasts, and the mean over it is not the intended loss.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observations: f32[B]
    sample_log_prob: f32[B]


class Judged(hf.Batch):
    advantage: f32[B, Literal[1]]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def judge(self, steps: Steps) -> Judged: ...


class Reinforce(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def loss(self, log_prob: f32[B], advantage: f32[B]) -> ActorMetrics: ...


@hf.dataflow
def reinforce(steps: Steps, critic: Critic, learner: Reinforce) -> ActorMetrics:
    judged = critic.judge(steps)
    return learner.loss(steps.sample_log_prob, judged.advantage)  # <- HF215


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    reinforce,
    hf.Deployment(critic=hf.place(Critic, pool=pool), learner=hf.place(Reinforce, pool=pool)),
    dims={B: 256},
)
