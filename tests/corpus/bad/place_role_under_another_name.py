# mypy: disable-error-code="empty-body"
"""A trainer asks for a role that is not mapped, though a mapped role looks like it.

Seen: https://github.com/verl-project/verl/issues/1061
Elsewhere: an assertion in the trainer's constructor prints the mapping's keys, and the role seems to be among them.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


@hf.function(rows=hf.Whole)
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def search_grpo(prompts: Prompts, actor_rollout: Actor) -> ActorMetrics:
    rollout = actor_rollout.generate(prompts)
    return actor_rollout.update(rollout, advantages_of(rollout))


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    search_grpo,
    hf.Deployment(actor_rollout_ref=hf.place(Actor, PolicyConfig(), pool=pool)),  # <- HF507
    dims={B: 512, P: 4096, R: 1000},
)
