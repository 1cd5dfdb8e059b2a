"""The deviation of a group of one response."""

import torch

from hfdsl.rl.advantages import group_normalized

# good: advantages = group_normalized(torch.tensor([1.0, 0.0]), group=2)
advantages = group_normalized(torch.tensor([1.0, 0.0]), group=1)  # <- bad
