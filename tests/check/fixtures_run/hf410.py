"""Rank 0 alone would get its part of the rows, and the other parts would never be done."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    # good: @register(Dispatch.ALL_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @register(Dispatch.DP_PROTO, execute_mode=hf.Execute.RANK_ZERO)  # <- bad
    def save(self, path: str) -> None: ...
