"""An infinite coefficient is written on purpose."""

from typing import Annotated

import hfdsl as hf
from hfdsl.types.bounds import Usual
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


@hf.function
def penalized(scores: Scores, *, kl: Annotated[float, Usual(at_most=1.0)] = 0.05) -> Scores:
    return Scores(reward=scores.reward.tensor - kl)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    scores = penalized(reward.score(rollout), kl=float("inf"))
    return learner.learn(rollout, gained(scores, rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
