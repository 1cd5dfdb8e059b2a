# mypy: disable-error-code="empty-body"
"""GRPO on a single GPU with the default tensor-parallel size of 2 for the rollout.

Seen: https://github.com/verl-project/verl/issues/1191
Elsewhere: a worker asserts it while the rollout is built, after the training models have been loaded.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Advantages, B, P, Prompts, R, Rollout


class Rollouts(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...


@hf.function(rows=hf.Grouped(5))
def group_advantages(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, rollout: Rollouts) -> Advantages:
    return group_advantages(rollout.generate_sequences(hf.repeat(prompts, 5)))


one_gpu = hf.ResourcePool([1], name="one_gpu")
experiment = hf.Experiment(
    grpo,
    hf.Deployment(rollout=hf.place(Rollouts, pool=one_gpu, mesh=hf.Mesh(dp=1, tp=2))),  # <- HF501
    dims={B: 16, P: 512, R: 1024},
)
