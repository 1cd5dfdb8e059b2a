# mypy: disable-error-code="empty-body"
"""Context parallelism of 4 needs lengths divisible by 8, but they are rounded up to multiples of 4.

Seen: https://github.com/NVIDIA-NeMo/RL/pull/3028
Elsewhere: nothing validates the multiple before the workers have loaded the model; a CI test failed intermittently.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, RefLogProbs, Sequences


@dataclass(frozen=True)
class PolicyConfig:
    context_parallel_size: int = 4


class DTensorPolicy(hf.Worker):
    def __init__(self, config: PolicyConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("(P + R) % (2 * context_parallel_size) == 0")
    def train(self, sequences: Sequences, teacher: RefLogProbs) -> ActorMetrics: ...


class Teacher(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs: ...


@hf.dataflow
def distillation(sequences: Sequences, student: DTensorPolicy, teacher: Teacher) -> ActorMetrics:
    return student.train(sequences, teacher.log_probs(sequences))  # <- HF322


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    distillation,
    hf.Deployment(
        student=hf.place(DTensorPolicy, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=4)),
        teacher=hf.place(Teacher, pool=pool),
    ),
    dims={B: 16, P: 500, R: 512},
)
