"""A step returns its rollout to be logged: the driver fetches all tokens, and every step waits for it."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[Rollout, Scores]:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    return rollout, scores  # <- HF804


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(4096), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 32768, P: 1024, R: 4096},
    batches=prompts_of(8),
)
