# mypy: disable-error-code="empty-body"
"""An engine with tensor-parallel pairs is put on a node with 3 GPUs.

Seen: https://github.com/vllm-project/vllm/issues/596
Elsewhere: vLLM raises a ValueError in its constructor; with all 3 GPUs the number of attention heads does not divide.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


class Engine(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def sample(prompts: Prompts, engine: Engine) -> Rollout:
    return engine.generate(prompts)


pool = hf.ResourcePool([3], name="three")
experiment = hf.Experiment(
    sample,
    hf.Deployment(engine=hf.place(Engine, pool=pool, mesh=hf.Mesh(dp=1, tp=2))),  # <- HF501
    dims={B: 6, P: 512, R: 512},
)
