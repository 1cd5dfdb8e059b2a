"""DAPO with two filters: groups without a spread are dropped, then answers that do not end; two mini-batches."""

import hfdsl as hf
from hfdsl import bool_
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

GROUP, ROWS, END = 4, 16, 7


class Judged(Rollout, Advantages):
    informative: bool_[B]
    ended: bool_[B]


@hf.function(rows=hf.Grouped(GROUP))
def judged(rollout: Rollout, scores: Scores) -> Judged:
    rewards = scores.reward.tensor.view(-1, GROUP)
    centered = (rewards - rewards.mean(1, keepdim=True)).flatten()
    width = rollout.response_mask.tensor.shape[1]
    return Judged(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        log_probs=rollout.log_probs,
        advantages=centered[:, None] * rollout.response_mask.tensor,
        informative=(rewards.std(1) > 0).repeat_interleave(GROUP),
        ended=(rollout.ids.tensor[:, -width:] == END).any(1),
    )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    batch = judged(rollout, reward.score(rollout))
    spread = hf.filter(batch, batch.informative, group=GROUP)
    kept = hf.fill(hf.filter(spread, spread.ended), ROWS)
    return [actor.update(part, part) for part in hf.minibatches(kept, 2)]


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(mini_batch=8), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
