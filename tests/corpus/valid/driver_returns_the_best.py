"""Of all samples the driver fetches the first rows only."""

import hfdsl as hf
from hfdsl import i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, T, prompts_of


class Shown(hf.Batch):
    ids: i64[B, T]


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Shown:
    rollout = hf.take(actor.generate(prompts), 2)
    return Shown(ids=rollout.ids)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
