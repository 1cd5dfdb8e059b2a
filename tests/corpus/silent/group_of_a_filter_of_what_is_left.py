"""Single responses are dropped, and a second filter keeps groups of four of what is left."""

import hfdsl as hf
from tests.corpus.advantages import gained, passed
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    kept = hf.fill(hf.filter(rollout, passed(reward.score(rollout)).keep), 32)
    better = passed(reward.score(kept), least=0.5)
    chosen = hf.fill(hf.filter(kept, better.keep, group=4), 32)  # <- HF331
    return actor.update(chosen, gained(reward.score(chosen), chosen))


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
