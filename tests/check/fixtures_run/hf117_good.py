"""The same, mended: A column with a default that is a number."""

import hfdsl as hf


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]
    baseline: hf.f32[B] | None = None
