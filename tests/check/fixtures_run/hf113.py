# mypy: disable-error-code="empty-body"
"""A function that works on groups of no rows."""

import hfdsl as hf


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


# good: @hf.function(rows=hf.Grouped(8))
@hf.function(rows=hf.Grouped(0))  # <- bad
def centre(scores: Scores) -> Scores: ...
