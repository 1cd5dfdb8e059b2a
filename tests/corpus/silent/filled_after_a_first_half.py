"""Half of the rollout is filtered, and filled to twice the whole."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    first, second = hf.minibatches(actor.generate(prompts), 2)
    kept = hf.fill(hf.filter(first, passed(reward.score(first)).keep), 16)  # <- HF360
    actor.update(second, gained(reward.score(second), second))
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
