# mypy: disable-error-code="empty-body, arg-type"
"""A sentiment pipeline returns one score per text, and the loop reads the second of two.

Seen: https://github.com/huggingface/trl/issues/37
Elsewhere: a KeyError in the notebook's training loop, after the first batch has been generated.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class Sentiment(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...


@hf.function
def positive(rollout: Rollout, output: f32[B, Literal[2]]) -> Advantages: ...


@hf.dataflow
def ppo(prompts: Prompts, policy: Actor, sentiment: Sentiment) -> ActorMetrics:
    rollout = policy.generate(prompts)
    scores = sentiment.score(rollout)
    return policy.update(rollout, positive(rollout, scores.reward))  # <- HF210


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(policy=hf.place(Actor, PolicyConfig(), pool=pool), sentiment=hf.place(Sentiment, pool=pool)),
    dims={B: 256, P: 8, R: 16},
)
