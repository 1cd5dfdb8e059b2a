"""A filter asks which groups have a spread, and each has copies of one response."""

import hfdsl as hf
from tests.corpus.advantages import gained, some_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    answers = actor.generate(prompts)
    scores, rollout = hf.repeat(reward.score(answers), 4), hf.repeat(answers, 4)
    kept = hf.filter(rollout, some_passed(scores, group=4).keep, group=4)  # <- HF337
    filled = hf.fill(kept, 32)
    return actor.update(filled, gained(reward.score(filled), filled))


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
