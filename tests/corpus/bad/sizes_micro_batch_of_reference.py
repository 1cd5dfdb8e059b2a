# mypy: disable-error-code="empty-body"
"""A DPO batch gives each of 8 ranks 2 rows, but the reference needs micro-batches of 8.

Seen: https://github.com/NVIDIA-NeMo/RL/issues/355
Elsewhere: NeMo-RL asserts that a rank's data is a multiple of the micro-batch, within the first reference pass.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, R, RefLogProbs, Sequences


@dataclass(frozen=True)
class DpoConfig:
    logprob_batch_size: int = 8
    data_parallel: int = 8


class ReferencePolicy(hf.Worker):
    def __init__(self, config: DpoConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B // data_parallel % logprob_batch_size == 0")
    def get_reference_logprobs(self, pairs: Sequences) -> RefLogProbs: ...


@hf.dataflow
def validation(pairs: Sequences, reference: ReferencePolicy) -> RefLogProbs:
    return reference.get_reference_logprobs(pairs)  # <- HF322


experiment = hf.Experiment(
    validation,
    hf.Deployment(reference=hf.place(ReferencePolicy, DpoConfig(), pool=hf.ResourcePool([8]))),
    dims={B: 16, P: 512, R: 512},
)
