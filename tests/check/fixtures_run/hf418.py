# mypy: disable-error-code="empty-body"
"""Padding of a list of outputs, from which nobody would take the pad rows."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    # good: @register(Dispatch.DP_PROTO, pad="cycle")
    @register(Dispatch.ONE_TO_ALL, pad="cycle")  # <- bad
    def score(self, prompts: Prompts) -> Scores: ...
