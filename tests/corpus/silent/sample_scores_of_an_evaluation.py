"""An engine samples for training and for an evaluation, whose scores are then used for both."""

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> tuple[ActorMetrics, Scores]:
    hf.sync(learner, engine)
    questions = hf.repeat(prompts, 4)
    rollout, evaluated = engine.sample(questions), engine.sample(questions)
    scores = reward.score(evaluated)
    return learner.reinforce(rollout, centered(scores, rollout, group=4)), scores  # <- HF339


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
