"""A KL term without the log-probs of a reference."""

import torch

from hfdsl.rl.losses import Clip

one = torch.ones(1, 1)
# good: loss = Clip(0.2)
loss = Clip(0.2, kl=0.04)  # bad
print(loss(-one, -one, one, one).loss)  # <-
