# mypy: disable-error-code="empty-body"
"""The rollout engine gets a tensor-parallel size of 16 on nodes with 8 GPUs.

Seen: https://github.com/OpenRLHF/OpenRLHF/issues/758
Elsewhere: the engine fails to start; the answer is 8 tensor-parallel ranks in a node, and a pipeline over the nodes.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def reinforce(prompts: Prompts, engine: Actor, actor: Actor) -> ActorMetrics:
    rollout = engine.generate(prompts)
    return actor.update(rollout, advantages_of(rollout))


experiment = hf.Experiment(
    reinforce,
    hf.Deployment(
        engine=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8, 8]), mesh=hf.Mesh(tp=16)),  # <- HF503
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8, 8])),
    ),
    dims={B: 128, P: 1024, R: 1024},
)
