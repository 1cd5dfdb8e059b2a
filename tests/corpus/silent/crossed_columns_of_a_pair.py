"""A pair has the score of the rejected response as that of the chosen one."""

import hfdsl as hf
from hfdsl import f32
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Pair(hf.Batch):
    chosen: f32[B]
    rejected: f32[B]


@hf.function
def margins(pair: Pair) -> Scores:
    """By how much the chosen response is better."""
    return Scores(reward=pair.chosen.tensor - pair.rejected.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> Scores:
    chosen, rejected = reward.score(actor.generate(prompts)), reward.score(actor.generate(prompts))
    return margins(Pair(chosen=rejected.reward, rejected=chosen.reward))  # <- HF230


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
