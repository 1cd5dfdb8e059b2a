"""The same, mended: A column that is never None, with the default None."""

import hfdsl as hf


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]
    baseline: hf.f32[B] | None = None
