# mypy: disable-error-code="empty-body"
"""Rewards of chosen and of rejected samples are plain numbers of every rank: one rank may have seen only one kind.

Seen: https://github.com/hiyouga/LlamaFactory/pull/10830
Elsewhere: silent: the main process logs its own numbers, without a margin where it saw no rejected sample.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, R, RefLogProbs, Sequences


class Kto(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def get_batch_loss_metrics(self, samples: Sequences, reference: RefLogProbs) -> dict[str, float]: ...


class Reference(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def log_probs(self, samples: Sequences) -> RefLogProbs: ...


@hf.dataflow
def kto(samples: Sequences, policy: Kto, reference: Reference) -> dict[str, float]:
    return policy.get_batch_loss_metrics(samples, reference.log_probs(samples))  # <- HF413


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    kto,
    hf.Deployment(policy=hf.place(Kto, pool=pool), reference=hf.place(Reference, pool=pool)),
    dims={B: 8, P: 512, R: 512},
)
