"""The same, mended: The deviation of a group of one response."""

import torch

from hfdsl.rl.advantages import group_normalised

advantages = group_normalised(torch.tensor([1.0, 0.0]), group=2)
