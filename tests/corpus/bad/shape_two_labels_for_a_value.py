# mypy: disable-error-code="empty-body, arg-type"
"""A classifier with its default of 2 labels is used as a value model, which needs one number per token.

Seen: https://github.com/huggingface/trl/issues/3269
Elsewhere: a RuntimeError (53 against 2 at dimension 2) in the first PPO step, after generation.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, B, Estimates, P, PolicyConfig, Prompts, R, Rollout


class Logits(hf.Batch):
    logits: f32[B, R, Literal[2]]


class SequenceClassifier(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Logits: ...


@hf.function
def gae(rollout: Rollout, values: f32[B, R], lam: float = 0.95) -> Estimates: ...


@hf.dataflow
def ppo(prompts: Prompts, policy: Actor, value_model: SequenceClassifier) -> Estimates:
    rollout = policy.generate(prompts)
    return gae(rollout, value_model.values(rollout).logits)  # <- HF210


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        policy=hf.place(Actor, PolicyConfig(), pool=pool), value_model=hf.place(SequenceClassifier, pool=pool)
    ),
    dims={B: 1, P: 512, R: 53},
)
