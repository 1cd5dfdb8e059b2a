# mypy: disable-error-code="empty-body"
"""A staleness that is not a number of steps."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    # good: @hf.reads("policy", staleness=1)
    @hf.reads("policy", staleness=-1)  # <- bad
    def score(self, prompts: Prompts) -> Scores: ...
