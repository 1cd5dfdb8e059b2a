"""Reward modeling: a model learns to give the better of two responses the higher score.

Ouyang et al., 2022, Training Language Models to Follow Instructions with Human Feedback, section 3.5 (RM).
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Pairs, PreferenceMetrics
from hfdsl.rl.losses import BradleyTerry
from hfdsl.rl.workers import RewardLearner


@hf.dataflow
def reward_modeling(pairs: Pairs, reward: RewardLearner, *, loss: BradleyTerry = BradleyTerry()) -> PreferenceMetrics:
    """One step of reward modeling."""
    return reward.prefer(pairs, loss=loss)
