# mypy: disable-error-code="empty-body"
"""A prompt of 2048 and a response of 8192 tokens do not fit a model of 4096 positions.

Seen: https://github.com/verl-project/verl/issues/1873
Elsewhere: verl asserts it in the rollout worker's constructor, after the training model has been loaded on every GPU.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


@dataclass(frozen=True)
class ModelConfig:
    max_position_embeddings: int = 4096


class VllmRollout(hf.Worker):
    def __init__(self, model: ModelConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("P + R <= max_position_embeddings")
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def rollout(prompts: Prompts, engine: VllmRollout) -> Rollout:
    return engine.generate_sequences(prompts)  # <- HF322


experiment = hf.Experiment(
    rollout,
    hf.Deployment(engine=hf.place(VllmRollout, ModelConfig(), pool=hf.ResourcePool([8]))),
    dims={B: 64, P: 2048, R: 8192},
)
