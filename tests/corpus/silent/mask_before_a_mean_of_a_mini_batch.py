"""Advantages are normalized in each mini-batch by a mean and a spread that count padding as zeros."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Descending, LearnerMetrics
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, prompts_of


class Gains(hf.Batch):
    advantages: f32[B, R]


@hf.function
def of_tokens(rollout: Rollout, scores: Scores) -> Gains:
    return Gains(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, gains: Gains) -> LearnerMetrics:
        ids, mask, losses = rollout.ids.tensor, rollout.response_mask.tensor, []
        for rows in torch.randperm(len(ids)).split(2):
            present = mask[rows]
            gain = gains.advantages.tensor[rows] * present
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)  # <- HF355
            now = self.chosen(ids[rows])[:, -present.shape[1] :]
            losses.append(-(now * gain * present).sum() / present.sum())
        return self.descend(torch.stack(losses).mean())


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Reward) -> LearnerMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, of_tokens(rollout, reward.score(rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
