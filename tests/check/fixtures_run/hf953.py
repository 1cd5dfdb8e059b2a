"""A token that the model of an engine does not have."""

import torch

from hfdsl.rl.engines.handle import Versioned
from tests.rl.engines import fake

name = "model.weight"
# good: ids = torch.full((2, 3), 5)
ids = torch.full((2, 3), fake.VOCABULARY)  # bad


def weights() -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.ones(1))]


engine = fake.handle()
engine.sample(ids, ids > 0, Versioned(1, weights), greedy=True)  # <-
engine.process.close()
