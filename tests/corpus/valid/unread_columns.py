"""Of the responses that pass only the scores are read, as a result of the step."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, Scores]:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    best = hf.filter(scores, passed(scores).keep)
    return actor.update(rollout, gained(scores, rollout)), best


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
