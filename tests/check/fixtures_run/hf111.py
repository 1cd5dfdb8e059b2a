# mypy: disable-error-code="empty-body, override"
"""A method with a name by which a body asks for its rank."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):  # <-
    @register(Dispatch.DP_PROTO)
    # good: def ordered(self, prompts: Prompts) -> Scores: ...
    def rank(self, prompts: Prompts) -> Scores: ...  # bad
