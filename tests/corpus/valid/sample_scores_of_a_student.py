"""A teacher's responses are imitated where the student's own score low: weights, not rewards."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    prompts_of,
)


@hf.function
def missed(scores: Scores) -> Scores:
    return Scores(reward=1 - scores.reward.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, teacher: Actor, reward: Reward) -> ActorMetrics:
    tried, shown = learner.generate(prompts), teacher.generate(prompts)
    return learner.reinforce(shown, gained(missed(reward.score(tried)), shown))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        teacher=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
