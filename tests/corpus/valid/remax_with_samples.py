"""ReMax with several samples: the greedy baseline is repeated to stand beside each of them."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)
from tests.corpus.vocabulary import Actor as Sampling

SAMPLES = 3


class Actor(Sampling):
    @register(Dispatch.THREE_D_PROTO)
    def greedy(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for _ in range(self.config.response):
            ids = torch.cat([ids, (ids[:, -1:] + 1) % TOKENS], dim=1)
        mask = torch.ones(len(ids), self.config.response, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=self.chosen(ids))


@hf.function
def above(scores: Scores, baseline: Scores, rollout: Rollout) -> Advantages:
    gain = scores.reward.tensor - baseline.reward.tensor
    return Advantages(advantages=gain[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, SAMPLES))
    baseline = hf.repeat(reward.score(actor.greedy(prompts)), SAMPLES)
    return actor.update(rollout, above(reward.score(rollout), baseline, rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 4, P: 3, R: 4},
    batches=prompts_of(4),
)
