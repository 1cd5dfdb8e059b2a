# mypy: disable-error-code="empty-body"
"""A vision-language model with 12 attention heads is sharded over 8 GPUs, for generation only.

Seen: https://github.com/MIV-XJTU/FSDrive/issues/21
Elsewhere: a ValueError in the engine's constructor; the authors answer that 8 GPUs cannot be used with this model.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


@hf.requires("heads % tp == 0")
class Qwen2VL(hf.Worker):
    def __init__(self, heads: int) -> None: ...

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def inference(prompts: Prompts, model: Qwen2VL) -> Rollout:
    return model.generate(prompts)


experiment = hf.Experiment(
    inference,
    hf.Deployment(
        model=hf.place(Qwen2VL, heads=12, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8)),  # <- HF512
    ),
    dims={B: 64, P: 1024, R: 1024},
)
