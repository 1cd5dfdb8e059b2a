"""One of two policies that train side by side learns from what the other one sampled."""

import hfdsl as hf
from tests.corpus.advantages import Experience, gained
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, white: Policy, black: Policy, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    theirs = black.sample(prompts)
    of_black = hf.merge(Experience, theirs, gained(reward.score(theirs), theirs))
    return (
        white.learn(of_black),  # <- HF335
        black.learn(of_black),
    )


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        white=hf.place(Policy, PolicyConfig(), pool=pool),
        black=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
