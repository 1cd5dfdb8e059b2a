"""A rollout is sorted by length before it is scored, so that its advantages have the same order."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout, prompts_of


@hf.function(rows=hf.Whole)
def shortest_first(rollout: Rollout) -> Rollout:
    order = rollout.response_mask.tensor.sum(1).argsort()
    ids, mask, log_probs = rollout.ids.tensor, rollout.response_mask.tensor, rollout.log_probs.tensor
    return Rollout(ids=ids[order], response_mask=mask[order], log_probs=log_probs[order])


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = shortest_first(actor.generate(prompts))
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
