"""A policy gives log-probs of tokens by a model, which gives a tensor, of those before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    RefLogProbs,
    Reward,
    Rollout,
    Sequences,
    gains,
    prompts_of,
)

if TYPE_CHECKING:
    import torch


class Policy(Actor):
    def network(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids]

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for draw in hf.current_call().uniforms(self.config.response).T:
            sums = self.network(ids)[:, -1].softmax(-1).cumsum(-1)
            token = (sums < draw[:, None]).sum(-1, keepdim=True).clamp(max=TOKENS - 1)
            ids = torch.cat([ids, token], dim=1)
        mask = torch.ones(len(ids), self.config.response, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=self.chosen(ids))

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        ids = sequences.ids.tensor
        logits = self.network(ids[:, :-1])
        picked = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return RefLogProbs(ref_log_probs=picked[:, -self.config.response :])


@hf.function
def weighted(rollout: Rollout, ref: RefLogProbs) -> Rollout:
    kept = rollout.response_mask.tensor & (ref.ref_log_probs.tensor > -10.0)
    return Rollout(ids=rollout.ids, response_mask=kept, log_probs=rollout.log_probs)


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    kept = weighted(rollout, actor.log_probs(rollout))
    return actor.update(kept, gains(reward.score(kept), kept))


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
