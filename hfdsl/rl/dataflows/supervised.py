"""The supervised stage before reinforcement learning: imitate demonstrations.

Ouyang et al., 2022, Training Language Models to Follow Instructions with Human Feedback, section 3.5 (SFT).
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ImitationMetrics, Sequences
from hfdsl.rl.workers import Actor


@hf.dataflow
def supervised(demonstrations: Sequences, actor: Actor) -> ImitationMetrics:
    """One step of supervised learning."""
    return actor.imitate(demonstrations)
