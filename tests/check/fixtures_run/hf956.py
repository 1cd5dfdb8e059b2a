"""Weights with a name that the engine's model does not have."""

import torch

from hfdsl.rl.engines.handle import Versioned
from tests.rl.engines import fake

ids = torch.full((2, 3), 5)
# good: name = "model.weight"
name = "model.wait"  # bad


def weights() -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.ones(1))]


engine = fake.handle()
engine.sample(ids, ids > 0, Versioned(1, weights), greedy=True)  # <-
engine.process.close()
