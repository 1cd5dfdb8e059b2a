"""The policy plays as the rival, and the rival learns."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def played(prompts: Prompts, policy: Actor, rival: Actor, reward: Reward) -> ActorMetrics:
    answers, others = policy.generate(prompts), rival.generate(prompts)
    gains = above(reward.score(answers), reward.score(others), answers)
    return policy.update(answers, gains)


@hf.dataflow
def program(prompts: Prompts, policy: Actor, rival: Actor, reward: Reward) -> ActorMetrics:
    return played(prompts, rival, policy, reward)  # <- HF230


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Actor, PolicyConfig(), pool=pool),
        rival=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
