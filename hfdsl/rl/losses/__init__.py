"""Losses, one term per token. A policy's loss is a small frozen object, so that a dataflow can take it as an option.

``actor.update(experience, loss=Clip(0.2, 0.28))`` weights the terms by ``loss.weights(mask, reduce)`` and adds them up;
see :func:`hfdsl.rl.masked.token_weights`.
"""

from hfdsl.rl.losses.critic import ClippedValue, ValueTerms
from hfdsl.rl.losses.policy import CISPO, Clip, PolicyLoss, PolicyTerms, Reinforce, SequenceClip
from hfdsl.rl.losses.preferences import DPO, BradleyTerry, PreferenceTerms
from hfdsl.rl.losses.tokens import entropy, imitation

__all__ = [
    "CISPO",
    "DPO",
    "BradleyTerry",
    "Clip",
    "ClippedValue",
    "PolicyLoss",
    "PolicyTerms",
    "PreferenceTerms",
    "Reinforce",
    "SequenceClip",
    "ValueTerms",
    "entropy",
    "imitation",
]
