"""The greedy baseline is filled up to the samples' number instead of repeated: it stands beside other questions."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = reward.score(rollout)
    baseline = hf.fill(reward.score(actor.generate(prompts)), 32)
    return actor.update(rollout, above(scores, baseline, rollout))  # <- HF333


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
