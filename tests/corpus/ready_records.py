"""Tiny roles that take and give the ready records, for programs that call the ready functions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import (
    AdvantagesAndReturns,
    Costs,
    Experience,
    Prompts,
    ReferenceLogProbs,
    Rollout,
    Scores,
    Sequences,
    ValueExperience,
    Values,
)
from hfdsl.rl.losses import Clip
from tests.corpus.vocabulary import TOKENS, PolicyConfig, Table


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Policy(Table):
    """Samples until it says 0, gives log-probs, and learns by the ratio to its old ones."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for draw in hf.current_call().uniforms(self.config.response).T:
            chances = self.table[ids[:, -1]].softmax(-1).cumsum(-1)
            token = (chances < draw[:, None]).sum(-1, keepdim=True).clamp(max=TOKENS - 1)
            ids = torch.cat([ids, token], dim=1)
        ends = ids[:, -self.config.response :] == 0
        response_mask = ends.long().cumsum(1) - ends.long() == 0
        mask = torch.cat([prompts.mask.tensor, response_mask], dim=1)
        log_probs = self.chosen(ids) * response_mask
        return Rollout(ids=ids, mask=mask, response_mask=response_mask, log_probs=log_probs)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def learn(self, experience: Experience) -> Loss:
        import torch

        ids, mask = experience.ids.tensor, experience.response_mask.tensor
        ratio = (self.chosen(ids) * mask - experience.log_probs.tensor).exp()
        weights: Any = ratio * experience.advantage.tensor * mask
        before, after = ids[:, -self.config.response - 1 : -1], ids[:, -self.config.response :]
        step = torch.zeros_like(self.table)
        step.index_put_((before.flatten(), after.flatten()), weights.flatten() / max(len(ids), 1), accumulate=True)
        self.move(step)
        return Loss(loss=float(-weights.mean()))


class Regularized(Policy):
    """Learns by a loss that it is given."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def learn_by(self, experience: Experience, *, loss: Clip) -> Loss:
        mask, ref = experience.response_mask.tensor, experience.ref_log_probs
        terms = loss(
            self.chosen(experience.ids.tensor) * mask,
            experience.log_probs.tensor,
            experience.advantage.tensor,
            mask,
            reference_log_probs=None if ref is None else ref.tensor,
        )
        self.learn(experience)
        return Loss(loss=float(terms.loss.mean()))


class Reference(Table):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("reference")
    def log_probs(self, sequences: Sequences) -> ReferenceLogProbs:
        return ReferenceLogProbs(ref_log_probs=self.chosen(sequences.ids.tensor) * sequences.response_mask.tensor)


class Critic(Table):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def values(self, sequences: Sequences) -> Values:
        said = self.said(sequences.ids.tensor).mean(-1)
        return Values(values=said * sequences.response_mask.tensor)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("critic")
    def learn(self, targets: ValueExperience) -> Loss:
        wrong = cast("Any", targets.returns.tensor - self.said(targets.ids.tensor).mean(-1))
        self.table += self.config.learning_rate * float(self.axis("dp").all_reduce(wrong.mean(), "mean"))
        return Loss(loss=float((wrong**2).mean()))


class Judge(hf.Worker):
    """The share of even tokens is the reward of a response, and that of odd ones its cost."""

    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        return Scores(score=self._even(sequences))

    @register(Dispatch.DP_PROTO)
    def cost(self, sequences: Sequences) -> Costs:
        return Costs(cost=1 - self._even(sequences))

    def _even(self, sequences: Sequences) -> Any:
        mask = sequences.response_mask.tensor
        even = (sequences.ids.tensor[:, -mask.shape[1] :] % 2 == 0) & mask
        return even.sum(1) / mask.sum(1)


def places(*critics: str) -> hf.Deployment:
    """A policy, its reference, a judge and some critics on one pool."""
    pool, config = hf.ResourcePool([2]), PolicyConfig()
    return hf.Deployment(
        policy=hf.place(Policy, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        judge=hf.place(Judge, pool=pool),
        **{critic: hf.place(Critic, config, pool=pool) for critic in critics},
    )


@hf.dataflow
def targets_of(rollout: Rollout, values: Values, estimates: AdvantagesAndReturns) -> ValueExperience:
    """What a critic learns."""
    return hf.merge(ValueExperience, rollout, values, estimates)


def prompts_of(rows: int, length: int = 3) -> Callable[[], Iterator[Prompts]]:
    """A data set with one batch."""

    def batches() -> Iterator[Prompts]:
        import torch

        ids = torch.arange(rows * length).view(rows, length) % TOKENS
        yield Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{"row": row} for row in range(rows)])

    return batches
