"""The returns of a critic are advantages of a record that has no returns."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    Learner,
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
def gained(rollout: Rollout, scores: Scores) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, critic: Critic, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = learner.generate(prompts)
    gains = gained(rollout, reward.score(rollout))
    targets = Estimates(advantages=gains.advantages, returns=gains.advantages)
    return learner.learn(rollout, gains), critic.update(rollout, targets)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
