# mypy: disable-error-code="empty-body, arg-type"
"""Positions of images and text are packed with a length per row; the rotary embedding takes them with one length.

Seen: https://github.com/verl-project/verl/issues/6073
Elsewhere: a RuntimeError on sizes in a forward pass, only when all samples of a micro-batch happen to be equally long.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import B, P, R, T


class Sample(hf.Batch):
    ids: i64[B, hf.Ragged[T]]
    positions: i64[B, hf.Ragged[T]]


class Qwen3VL(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def rotary(self, positions: i64[B, T]) -> f32[B, T]: ...


@hf.dataflow
def sft(sample: Sample, model: Qwen3VL) -> f32[B, T]:
    return model.rotary(sample.positions)  # <- HF214


experiment = hf.Experiment(
    sft, hf.Deployment(model=hf.place(Qwen3VL, pool=hf.ResourcePool([8]))), dims={B: 16, P: 1024, R: 1024}
)
