"""Two policies that learn are each other's references."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.function
def held(scores: Scores, rollout: Rollout, reference: RefLogProbs) -> Advantages:
    gap = rollout.log_probs.tensor - reference.ref_log_probs.tensor
    return Advantages(advantages=(scores.reward.tensor[:, None] - 0.1 * gap) * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, rival: Learner, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    mine, theirs = learner.generate(prompts), rival.generate(prompts)
    gains = held(reward.score(mine), mine, rival.log_probs_now(mine))
    losses = held(reward.score(theirs), theirs, learner.log_probs_now(theirs))
    return learner.learn(mine, gains), rival.learn(theirs, losses)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        rival=hf.place(Learner, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
