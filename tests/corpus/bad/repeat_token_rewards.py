# mypy: disable-error-code="empty-body, arg-type"
"""The reward model returns a number for each token, but PPO expects one for each response.

Seen: https://github.com/hiyouga/LlamaFactory/issues/216
Elsewhere: TRL finds 499 scores for a batch of 16 in its first PPO step, after generation and scoring.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout, T


class TokenScores(hf.Batch):
    scores: f32[B, T]


class RewardModel(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def get_scores(self, rollout: Rollout) -> TokenScores: ...


@hf.function
def advantages_of(rollout: Rollout, scores: f32[B]) -> Advantages: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, reward: RewardModel) -> ActorMetrics:
    rollout = actor.generate(prompts)
    rewards = reward.get_scores(rollout)
    return actor.update(rollout, advantages_of(rollout, rewards.scores))  # <- HF210


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(RewardModel, pool=pool)),
    dims={B: 16, P: 256, R: 243},
)
