# mypy: disable-error-code="empty-body"
"""A protocol that sends rows out and does not say how outputs come back."""

import hfdsl as hf
from hfdsl import register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    # good: @register({"dispatch_fn": lambda group, *args: (args, {}), "collect_fn": lambda group, outputs: outputs[0]})
    @register({"dispatch_fn": lambda group, *args: (args, {})})  # <- bad
    def score(self, prompts: Prompts) -> Scores: ...
