"""The second half of the prompts is sampled; its scores are cut from those of all."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    asked = hf.minibatches(prompts, 2)[1]
    rollout = actor.generate(hf.repeat(asked, 4))
    baseline = hf.minibatches(hf.repeat(reward.score(actor.generate(prompts)), 4), 2)[1]
    return actor.update(rollout, above(reward.score(rollout), baseline, rollout))


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
