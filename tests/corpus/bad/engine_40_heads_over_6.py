# mypy: disable-error-code="empty-body"
"""A model with 40 attention heads is to be served by all 6 GPUs of a node.

Seen: https://github.com/vllm-project/vllm/issues/4232
Elsewhere: a ValueError in the engine's constructor names both numbers; the answers are 4 GPUs, or three engines of 2.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Reward, Rollout, Scores


@hf.requires("num_attention_heads % tp == 0")
class Qwen32B(hf.Worker):
    def __init__(self, num_attention_heads: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def best_of_n(prompts: Prompts, engine: Qwen32B, verifier: Reward) -> Scores:
    return verifier.score(engine.generate(hf.repeat(prompts, 4)))


t4 = hf.ResourcePool([6])
experiment = hf.Experiment(
    best_of_n,
    hf.Deployment(
        engine=hf.place(Qwen32B, num_attention_heads=40, pool=t4, mesh=hf.Mesh(tp=6)),  # <- HF512
        verifier=hf.place(Reward, pool=t4),
    ),
    dims={B: 36, P: 2048, R: 2048},
)
