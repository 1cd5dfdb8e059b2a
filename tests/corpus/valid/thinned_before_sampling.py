"""Questions are dropped one by one, and those that stay are repeated: the groups are new."""

import hfdsl as hf
from tests.corpus.advantages import centered, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    tried = reward.score(actor.generate(prompts))
    asked = hf.fill(hf.filter(prompts, passed(tried).keep), 8)
    rollout = actor.generate(hf.repeat(asked, 4))
    return actor.update(rollout, centered(reward.score(rollout), rollout, group=4))


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
