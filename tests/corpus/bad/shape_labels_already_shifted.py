# mypy: disable-error-code="empty-body, arg-type"
"""Advantages have an entry for every token, but their mask lacks the first.

Seen: https://github.com/McGill-NLP/nano-aha-moment/issues/9
Elsewhere: a shape mismatch in the policy loss; other readers ran into it before it was fixed.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, bool_, f32, i64, register
from tests.corpus.vocabulary import B


class S(hf.Dim):
    """Tokens after the first."""


class Episodes(hf.Batch):
    ids: i64[B, Add[S, Literal[1]]]
    advantages: f32[B, Add[S, Literal[1]]]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def shifted_labels_mask(self, episodes: Episodes) -> bool_[B, S]: ...


@hf.function
def zero_advantages(advantages: f32[B, S], labels_mask: bool_[B, S]) -> f32[B]: ...


@hf.dataflow
def compute_pg_loss(episodes: Episodes, policy: Policy) -> f32[B]:
    mask = policy.shifted_labels_mask(episodes)
    return zero_advantages(episodes.advantages, mask)  # <- HF210


experiment = hf.Experiment(
    compute_pg_loss, hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([1]))), dims={B: 64, S: 1023}
)
