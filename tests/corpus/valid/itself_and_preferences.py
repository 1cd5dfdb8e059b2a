"""Preferences hold the policy to a frozen model."""

import hfdsl as hf
from hfdsl import Add, Dispatch, bool_, f32, i64, register
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


class Pairs(hf.Batch):
    ids: i64[B, Add[P, R]]
    response_mask: bool_[B, R]
    ref_log_probs: f32[B, R]
    better: f32[B]


@hf.function(rows=hf.Grouped(2))
def chosen(scores: Scores) -> f32[B]:
    import torch

    first, second = scores.reward.tensor.view(-1, 2).unbind(1)
    return f32(torch.stack([first - second, second - first], dim=1).sign().flatten())


class Prefers(Learner):
    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(2))
    @hf.writes("policy")
    def prefer(self, pairs: Pairs) -> ActorMetrics:
        import torch

        gap = self.chosen(pairs.ids.tensor) - pairs.ref_log_probs.tensor
        margins = (pairs.better.tensor * gap.sum(1)).view(-1, 2).sum(1)
        rollout = Rollout(ids=pairs.ids, response_mask=pairs.response_mask, log_probs=pairs.ref_log_probs)
        weights = torch.sigmoid(-margins).repeat_interleave(2) * pairs.better.tensor
        return self.update(rollout, Advantages(advantages=weights[:, None] * pairs.response_mask.tensor))


@hf.dataflow
def program(prompts: Prompts, learner: Prefers, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(hf.repeat(prompts, 2))
    ref = reference.log_probs(rollout)
    pairs = Pairs(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        ref_log_probs=ref.ref_log_probs,
        better=chosen(reward.score(rollout)),
    )
    return learner.prefer(pairs)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Prefers, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
