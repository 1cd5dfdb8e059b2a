# mypy: disable-error-code="empty-body"
"""Rows without an advantage and overlong rows are filtered, and the rest is split into a fixed number of mini-batches.

Seen: https://github.com/allenai/open-instruct/issues/843
Elsewhere: the batch of each update has another size; users ask what keeps it stable.
"""

import hfdsl as hf
from hfdsl import bool_
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


class Judged(Rollout, Advantages):
    of_use: bool_[B]


@hf.function(rows=hf.Grouped(16))
def judged(rollout: Rollout) -> Judged: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor) -> list[ActorMetrics]:
    batch = judged(actor.generate(hf.repeat(prompts, 16)))
    left = hf.filter(batch, batch.of_use)
    return [actor.update(part, part) for part in hf.minibatches(left, 4)]  # <- HF321


experiment = hf.Experiment(
    grpo,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8]))),
    dims={B: 64, P: 2048, R: 8192},
)
