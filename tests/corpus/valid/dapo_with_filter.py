"""DAPO with its filter: groups without a spread are dropped, and the batch is filled up to its size again."""

import hfdsl as hf
from hfdsl import bool_, f32
from tests.corpus.vocabulary import (
    Actor,
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

GROUP, ROWS = 4, 16


class Judged(Rollout):
    advantages: f32[B, R]
    informative: bool_[B]


@hf.function(rows=hf.Grouped(GROUP))
def judged(rollout: Rollout, scores: Scores) -> Judged:
    rewards = scores.reward.tensor.view(-1, GROUP)
    centered = (rewards - rewards.mean(1, keepdim=True)).flatten()
    spread = (rewards.std(1) > 0).repeat_interleave(GROUP)
    return Judged(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        log_probs=rollout.log_probs,
        advantages=centered[:, None] * rollout.response_mask.tensor,
        informative=spread,
    )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    batch = judged(rollout, reward.score(rollout))
    kept = hf.fill(hf.filter(batch, batch.informative, group=GROUP), ROWS)
    return actor.update(kept, Advantages(advantages=kept.advantages))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(mini_batch=8), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 4, P: 3, R: 4},
    batches=prompts_of(4),
)
