# mypy: disable-error-code="empty-body, arg-type"
"""Advantages are computed from a sample batch without value predictions.

Seen: https://github.com/ray-project/ray/issues/43460
Elsewhere: a KeyError for 'vf_preds' during training, after sampling.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B, R


class Samples(hf.Batch):
    observations: f32[B, R]
    rewards: f32[B, R]


class Valued(Samples):
    vf_preds: f32[B, R]


class Targets(hf.Batch):
    advantages: f32[B, R]
    value_targets: f32[B, R]


class Module(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def explore(self, samples: Samples) -> Samples: ...

    @register(Dispatch.DP_PROTO)
    def update(self, samples: Samples, targets: Targets) -> None: ...


@hf.function
def compute_gae(samples: Valued, lam: float = 0.95) -> Targets: ...


@hf.dataflow
def ppo(samples: Samples, module: Module) -> Targets:
    explored = module.explore(samples)
    targets = compute_gae(explored)  # <- HF204
    module.update(explored, targets)
    return targets


experiment = hf.Experiment(ppo, hf.Deployment(module=hf.place(Module, pool=hf.ResourcePool([2]))), dims={B: 64, R: 200})
