# mypy: disable-error-code="assignment"
"""A column with a default that is a number."""

import hfdsl as hf


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]
    # good: baseline: hf.f32[B] | None = None
    baseline: hf.f32[B] = 0.0  # <- bad
