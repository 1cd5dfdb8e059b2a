# mypy: disable-error-code="empty-body"
"""A rollout returns one sample for one prompt and two for the next, and groups of two are compared.

Seen: https://github.com/THUDM/slime/issues/378
Elsewhere: 3 samples are not divisible by 1 * 2; users add dummy samples to make all rollouts equally large.
"""

import hfdsl as hf
from hfdsl import bool_
from tests.corpus.vocabulary import Actor, Advantages, B, P, PolicyConfig, Prompts, R, Rollout

SAMPLES = 2


class Returned(Rollout):
    finished: bool_[B]


@hf.function
def finished_in_time(rollout: Rollout) -> Returned: ...


@hf.function(rows=hf.Grouped(SAMPLES))
def group_advantages(samples: Returned) -> Advantages: ...


@hf.dataflow
def rollout(prompts: Prompts, engine: Actor) -> Advantages:
    returned = finished_in_time(engine.generate(hf.repeat(prompts, SAMPLES)))
    return group_advantages(hf.filter(returned, returned.finished))  # <- HF321


experiment = hf.Experiment(
    rollout,
    hf.Deployment(engine=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 1, P: 2048, R: 2048},
)
