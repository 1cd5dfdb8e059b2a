"""Two rollouts of a question make a pair: each with its own tokens and log-probs."""

import hfdsl as hf
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


@hf.function
def preferred(first: Rollout, second: Rollout, score: Scores, other: Scores) -> Advantages:
    sign = (score.reward.tensor - other.reward.tensor).sign()
    gap = (first.log_probs.tensor - second.log_probs.tensor).mean(1)
    return Advantages(advantages=(sign * (1 - gap))[:, None] * first.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    first, second = actor.generate(prompts), actor.generate(prompts)
    gaps = preferred(first, second, reward.score(first), reward.score(second))
    return actor.update(first, gaps)


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
