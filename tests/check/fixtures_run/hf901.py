"""A field with a letter too few."""

from dataclasses import dataclass

from hfdsl.rl.training.typed import build


@dataclass(frozen=True)
class Optimizer:
    learning_rate: float = 1e-6


# good: optimizer = build(Optimizer, {"learning_rate": 1e-5})
optimizer = build(Optimizer, {"learnig_rate": 1e-5})  # <- bad
