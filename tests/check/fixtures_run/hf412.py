# mypy: disable-error-code="empty-body, arg-type"
"""A protocol by a name that nobody registered."""

import hfdsl as hf
from hfdsl import register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    # good: @register("3D_PROTO")
    @register("3D_PROTOCOL")  # <- bad
    def score(self, prompts: Prompts) -> Scores: ...
