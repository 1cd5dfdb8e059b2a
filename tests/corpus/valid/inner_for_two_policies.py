"""One dataflow samples and scores, for the policy and for a derived one that answers greedily."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
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


class Greedy(Actor):
    """The same policy, in a role of its own."""


@hf.dataflow
def scored(prompts: Prompts, policy: Actor, reward: Reward) -> tuple[Rollout, Scores]:
    rollout = policy.generate(prompts)
    return rollout, reward.score(rollout)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, greedy: Greedy, reward: Reward) -> ActorMetrics:
    rollout, scores = scored(prompts, actor, reward)
    _, baseline = scored(prompts, policy=greedy, reward=reward)
    return actor.update(rollout, above(scores, baseline, rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        greedy=hf.place(Greedy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
