# mypy: disable-error-code="empty-body"
"""A worker cannot be constructed for one of its two roles: an argument is missing.

Seen: https://github.com/NVlabs/Long-RL/issues/5
Elsewhere: a TypeError on every worker while the model is built, after the checkpoint shards have begun to load.
"""

from dataclasses import dataclass
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, RefLogProbs, Rollout


@dataclass(frozen=True)
class FsdpConfig:
    offload: bool = True


class FSDPWorker(hf.Worker):
    def __init__(self, config: FsdpConfig, role: Literal["actor", "ref"]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def sample_images(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def log_probs(self, rollout: Rollout) -> RefLogProbs: ...


@hf.dataflow
def diffusion_grpo(prompts: Prompts, actor: FSDPWorker, reference: FSDPWorker) -> RefLogProbs:
    return reference.log_probs(actor.sample_images(prompts))


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    diffusion_grpo,
    hf.Deployment(
        actor=hf.place(FSDPWorker, FsdpConfig(), "actor", pool=pool),
        reference=hf.place(FSDPWorker, FsdpConfig(), pool=pool),  # <- HF516
    ),
    dims={B: 64, P: 77, R: 16},
)
