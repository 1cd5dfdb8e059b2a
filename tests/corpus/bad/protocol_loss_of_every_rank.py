# mypy: disable-error-code="empty-body"
"""Each of 8 data-parallel ranks returns its own loss, and the step mistakes it for the batch's.

Seen: https://github.com/OpenRLHF/OpenRLHF/issues/833
Elsewhere: silent: the logged training loss of the reward model is that of one GPU; only evaluation reduces it.
"""

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from tests.corpus.vocabulary import B, P, R, T


class Comparisons(hf.Batch):
    chosen: i64[B, T]
    rejected: i64[B, T]


class RewardModel(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def training_step(self, comparisons: Comparisons) -> float: ...


@hf.dataflow
def train(comparisons: Comparisons, model: RewardModel) -> float:
    return model.training_step(comparisons)  # <- HF417


experiment = hf.Experiment(
    train, hf.Deployment(model=hf.place(RewardModel, pool=hf.ResourcePool([8]))), dims={B: 128, P: 512, R: 512}
)
