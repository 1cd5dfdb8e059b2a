# mypy: disable-error-code="empty-body"
"""A node with 4 GPUs and one with 2 should hold tensor-parallel groups of 4.

Seen: https://github.com/verl-project/verl/issues/2596
Elsewhere: the program hangs without an error: a placement group stays pending.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout


@hf.dataflow
def rollout(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


nodes = hf.ResourcePool([4, 2], name="nodes")
experiment = hf.Experiment(
    rollout,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=nodes, mesh=hf.Mesh(dp=2, tp=4))),  # <- HF501
    dims={B: 64, P: 1024, R: 1024},
)
