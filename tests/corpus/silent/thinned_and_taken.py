"""Of the responses that pass, the first sixteen are taken, and groups are compared."""

import hfdsl as hf
from tests.corpus.advantages import centered, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = reward.score(rollout)
    kept = hf.take(hf.filter(rollout, passed(scores).keep), 16)
    return actor.update(kept, centered(reward.score(kept), kept, group=4))  # <- HF331


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
