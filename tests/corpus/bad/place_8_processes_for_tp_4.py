# mypy: disable-error-code="empty-body"
"""8 processes are started for a generation engine of tensor-parallel size 4 and pipeline size 1.

Seen: https://github.com/modelscope/ms-swift/issues/3739
Elsewhere: vLLM raises a RuntimeError (world_size 8 is not 4 x 1) on the ranks, while the engine is built.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores


@hf.dataflow
def rollout(prompts: Prompts, engine: Actor, reward: Reward) -> Scores:
    return reward.score(engine.generate(prompts))


node = hf.ResourcePool([8], name="node")
experiment = hf.Experiment(
    rollout,
    hf.Deployment(
        engine=hf.place(Actor, PolicyConfig(), pool=node, mesh=hf.Mesh(pp=1, dp=1, tp=4)),  # <- HF501
        reward=hf.place(Reward, pool=node),
    ),
    dims={B: 64, P: 4096, R: 2048},
)
