"""The samples of all rounds are returned: each is small, together they are not."""

import hfdsl as hf
from hfdsl import i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, T, prompts_of


class Samples(hf.Batch):
    ids: i64[B, T]


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> list[Samples]:
    rollouts = [actor.generate(prompts) for _ in range(8)]
    return [Samples(ids=rollout.ids) for rollout in rollouts]  # <- HF804


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(4096), pool=pool)),
    dims={B: 8192, P: 1024, R: 4096},
    batches=prompts_of(8),
)
