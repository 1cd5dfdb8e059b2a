# mypy: disable-error-code="empty-body"
"""A validation set of 21 is padded to 22 for 2 GPUs, and the metric counts all 22.

Seen: https://github.com/roboflow/rf-detr/issues/1507
Elsewhere: silent: validation and test numbers depend on the number of GPUs; found by counting the merged state.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B, P


class Images(hf.Batch):
    pixels: f32[B, P]


class Quality(hf.Batch):
    mean_average_precision: hf.Metric[float, Literal["mean"]]


class Detector(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="cycle")
    def validate(self, images: Images) -> Quality: ...


@hf.dataflow
def validation(images: Images, model: Detector) -> Quality:
    return model.validate(images)  # <- HF317


experiment = hf.Experiment(
    validation, hf.Deployment(model=hf.place(Detector, pool=hf.ResourcePool([2]))), dims={B: 21, P: 147456}
)
