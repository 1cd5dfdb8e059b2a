"""DPO: the policy learns to prefer the better of two responses of the data set; it generates none.

Rafailov et al., 2023, Direct Preference Optimization: Your Language Model is Secretly a Reward Model.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Pairs, PreferenceMetrics, Preferences
from hfdsl.rl.losses import DPO
from hfdsl.rl.workers import Actor, Reference


@hf.dataflow
def dpo(pairs: Pairs, actor: Actor, reference: Reference, *, loss: DPO = DPO(0.1)) -> PreferenceMetrics:
    """One step of DPO."""
    ref = reference.log_probs(pairs)
    return actor.prefer(hf.merge(Preferences, pairs, ref), loss=loss)
