# mypy: disable-error-code="assignment"
"""A column that is never None, with the default None."""

import hfdsl as hf


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]
    # good: baseline: hf.f32[B] | None = None
    baseline: hf.f32[B] = None  # <- bad
