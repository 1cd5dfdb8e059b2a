"""The update's batch is that of 32 prompts, and there are 8."""

import hfdsl as hf
from tests.corpus.advantages import gained, some_passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    questions = hf.repeat(prompts, 4)
    rollout = actor.generate(questions)
    scores = reward.score(rollout)
    keep = some_passed(scores, group=4).keep
    kept = hf.fill(hf.filter(rollout, keep, group=4), 128)  # <- HF360
    return actor.update(kept, gained(reward.score(kept), kept))


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
