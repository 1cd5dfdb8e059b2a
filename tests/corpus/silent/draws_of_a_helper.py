"""A method makes the stream of each call from the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)

if TYPE_CHECKING:
    import torch


class Sampler(Learner):
    def stream(self) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(0)  # <- HF362

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout:
        import torch

        draw = self.stream()
        ids = prompts.ids.tensor
        for _ in range(self.config.response):
            token = torch.multinomial(self.table[ids[:, -1]].softmax(-1), 1, generator=draw)
            ids = torch.cat([ids, token % TOKENS], dim=1)
        mask = torch.ones(len(ids), self.config.response, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=self.chosen(ids))


@hf.dataflow
def program(prompts: Prompts, actor: Sampler, reward: Reward) -> ActorMetrics:
    rollout = actor.write(prompts)
    return actor.learn(rollout, gains(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Sampler, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
