# mypy: disable-error-code="empty-body"
"""A model with 28 attention heads is sharded over the 8 GPUs of a node.

Seen: https://github.com/DAMO-NLP-SG/LongPO/issues/5
Elsewhere: the parallel degree is the world size and has to divide the heads; a reader asks how it can run at all.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, RefLogProbs, Sequences


@dataclass(frozen=True)
class Qwen7B:
    num_attention_heads: int = 28


@hf.requires("num_attention_heads % tp == 0")
class UlyssesPolicy(hf.Worker):
    def __init__(self, model: Qwen7B) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, pairs: Sequences) -> RefLogProbs: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, pairs: Sequences, short: RefLogProbs) -> ActorMetrics: ...


@hf.dataflow
def longpo(pairs: Sequences, policy: UlyssesPolicy) -> ActorMetrics:
    return policy.update(pairs, policy.log_probs(pairs))


node = hf.ResourcePool([8])
experiment = hf.Experiment(
    longpo,
    hf.Deployment(
        policy=hf.place(UlyssesPolicy, Qwen7B(), pool=node, mesh=hf.Mesh(dp=1, tp=8)),  # <- HF512
    ),
    dims={B: 8, P: 131072, R: 4096},
)
