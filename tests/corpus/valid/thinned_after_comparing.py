"""Advantages are compared in groups first; then single responses are dropped from what is trained on."""

import hfdsl as hf
from tests.corpus.advantages import Experience, centered, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = reward.score(rollout)
    batch = hf.merge(Experience, rollout, centered(scores, rollout, group=4))
    kept = hf.fill(hf.filter(batch, passed(scores).keep), 16)
    return actor.update(kept, Advantages(advantages=kept.advantages))


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
