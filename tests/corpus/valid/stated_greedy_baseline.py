"""The likeliest response to each prompt is a baseline beside responses that differ."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Engine,
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


class Likely(Engine):
    """An engine that always says the likeliest token."""

    @staticmethod
    def repeats_responses(config: PolicyConfig) -> str:
        return "greedy"


@hf.function(rows=hf.GroupedBy("group"))
def above_group(scores: Scores, baseline: Scores, rollout: Rollout, *, group: int) -> Advantages:
    gained = (scores.reward.tensor - baseline.reward.tensor).view(-1, group)
    return Advantages(advantages=gained.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Likely, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    questions = hf.repeat(prompts, 4)
    rollout, likeliest = learner.generate(questions), engine.sample(questions)
    gains = above_group(reward.score(rollout), reward.score(likeliest), rollout, group=4)
    return learner.learn(rollout, gains)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Likely, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
